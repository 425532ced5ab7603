/* The walk over a rank's reduce-scatter output, piece by piece. */
#include "layout/layout.h"

#include "base/util.h"

/* The first parameter that ends behind `position`; count if none does. */
static size_t find_param(const tide_layout *layout, uint64_t position)
{
    size_t low = 0, high = layout->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const tide_param_layout *entry = &layout->params[middle];
        if (entry->out_offset + entry->shard_elems > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void tdi_pieces_begin(tdi_piece_iter *iter, const tide_layout *layout,
                      uint32_t rank, uint64_t first, uint64_t last)
{
    *iter = (tdi_piece_iter){
        .layout = layout,
        .rank = rank,
        .param = find_param(layout, first),
        .position = first,
        .last = tdi_min(last, layout->out_elems),
    };
}

/*
 * Cuts the piece that begins `inside` elements into the parameter's shard. The
 * shard is `outer` runs of s * inner elements, each real rows before padding;
 * a single rank owns the tensor whole, so there all runs are one.
 */
static void cut_piece(const tdi_piece_iter *iter, uint64_t inside,
                      tdi_piece *piece)
{
    const tide_layout *layout = iter->layout;
    const tide_param_layout *entry = &layout->params[iter->param];
    uint64_t row = entry->param.inner, pitch = entry->param.rows * row, first;
    uint64_t run = entry->shard_rows * row;
    uint64_t real =
        row * tide_layout_rows(layout, iter->param, iter->rank, &first);
    if (layout->ranks == 1)
        run = real = pitch = entry->shard_elems;
    uint64_t at = inside % run;
    piece->real = at < real;
    piece->elems = (piece->real ? real : run) - at;
    piece->grad_offset =
        piece->real ? inside / run * pitch + first * row + at : 0;
}

bool tdi_pieces_next(tdi_piece_iter *iter, tdi_piece *piece)
{
    const tide_param_layout *params = iter->layout->params;
    if (iter->position >= iter->last)
        return false;
    while (iter->position >=
           params[iter->param].out_offset + params[iter->param].shard_elems)
        iter->param++;
    piece->param = iter->param;
    piece->out_offset = iter->position;
    cut_piece(iter, iter->position - params[iter->param].out_offset, piece);
    piece->elems = tdi_min(piece->elems, iter->last - iter->position);
    iter->position += piece->elems;
    return true;
}
