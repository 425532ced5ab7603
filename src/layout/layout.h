/*
 * Inside of the layout, and the walk over a rank's reduce-scatter output that
 * planners build on.
 */
#ifndef TIDE_LAYOUT_LAYOUT_H
#define TIDE_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <tide/layout.h>

struct tide_layout {
    uint32_t ranks;
    size_t count;
    uint64_t shard_bytes;
    uint64_t out_elems;
    uint64_t hash;
    tide_param_layout params[];
};

/*
 * A run of output elements that lies inside one parameter and is contiguous in
 * that parameter's unpadded gradient [outer, rows, inner], or all padding.
 */
typedef struct tdi_piece {
    size_t param;
    uint64_t grad_offset; /* elements into the gradient; 0 for padding */
    uint64_t out_offset;  /* elements into the rank's output */
    uint64_t elems;       /* never 0 */
    bool real;            /* false: padding, which no one may read */
} tdi_piece;

typedef struct tdi_piece_iter {
    const tide_layout *layout;
    uint32_t rank;
    size_t param;
    uint64_t position; /* in the output, in elements */
    uint64_t last;
} tdi_piece_iter;

/*
 * Walks [first, last) of rank's output in order, in the longest pieces there
 * are; parameters without elements are skipped. `last` is clipped to the
 * output. Beginning costs a binary search, whatever `first` is.
 */
void tdi_pieces_begin(tdi_piece_iter *iter, const tide_layout *layout,
                      uint32_t rank, uint64_t first, uint64_t last);
/* The next piece, or false after the last one. */
bool tdi_pieces_next(tdi_piece_iter *iter, tdi_piece *piece);

#endif
