/*
 * What the host passes to the kernels: plain C, included by both sides, and by
 * the tests' driver, which runs kernels as host functions by name.
 *
 * Addresses are device addresses. A kernel's parameters are those named in
 * TDI_KERNEL_LIST, in that order.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_PARAMS_H
#define TIDE_BACKEND_CUDA_KERNELS_PARAMS_H

#include <stdint.h>

enum {
    TDI_SUM_FEW = 16,   /* sources that a launch passes cheaply */
    TDI_SUM_MANY = 128, /* sources of any launch at most */
};

/* Flags of a sum: those of a REDUCE with the same values (plan.h). */
enum {
    TDI_SUM_SRC_BF16 = 1,
    TDI_SUM_DST_BF16 = 2,
    TDI_SUM_ADD = 4,
};

/*
 * dst[i] = scale * ([dst[i] +] src[0][i] + src[1][i] + ...) for i in [first,
 * first + count), in fp32 and in this order. `dst` and the sources are the
 * addresses of element 0.
 */
typedef struct tdi_sum_params {
    uint64_t dst;
    uint64_t first;
    uint64_t count;
    uint64_t counter; /* if not 0: += nanoseconds of each block */
    uint32_t sources; /* tide_sum_switch: 1, the switch adds */
    uint32_t flags;
    uint32_t tile; /* elements that a block adds at a time */
    uint32_t ring; /* bytes of shared memory that loads may fill */
    float scale;   /* 1 changes no bit */
} tdi_sum_params;

typedef struct tdi_sum_few {
    uint64_t src[TDI_SUM_FEW];
} tdi_sum_few;

typedef struct tdi_sum_many {
    uint64_t src[TDI_SUM_MANY];
} tdi_sum_many;

/* The tile of a sum has at most this many elements: threads x vectors x 4. */
enum {
    TDI_SUM_THREADS = 512, /* that add; tide_sum_bulk* have a warp more */
    TDI_SUM_VECTORS = 2,   /* of 4 elements, each thread */
    TDI_SUM_TILE = TDI_SUM_THREADS * TDI_SUM_VECTORS * 4,
    TDI_SUM_RING = 24 * TDI_SUM_TILE * 2, /* bytes: one block a SM */
    TDI_SUM_STAGES = 24,                  /* most stages of a ring */
};

/*
 * One parameter of the flat path. Its tensor at `address` is a row of R x width
 * (a pack: of `real`) for each of `outer`; rank r's packed shard has the r-th
 * run of `width` of each row, one after the other, from `packed` on. Units are
 * bytes in tide_flat_unpack, elements in tide_flat_pack.
 */
typedef struct tdi_flat_part {
    uint64_t address;
    uint64_t packed;
    uint64_t width;
    uint64_t real; /* pack: what exists of a row; the rest becomes zeros */
    uint32_t outer;
    uint32_t first; /* tiles of the parts before this one */
} tdi_flat_part;

/* Tiles of a part: ranks x outer x ceil(width / TDI_FLAT_TILE). */
enum {
    TDI_FLAT_TILE = 16384, /* units */
    TDI_FLAT_THREADS = 256,
    TDI_FLAT_BLOCKS = 4, /* of a SM: 64 registers of a thread fit */
};

/* unpack: tensors from the rank-major `buffer`; pack: the other way round, to
 * fp32. */
typedef struct tdi_flat_params {
    uint64_t parts;   /* address of part_count tdi_flat_part and one more, whose
                         `first` is `tiles` */
    uint64_t buffer;  /* rank r's packed shard is at r * pitch */
    uint64_t pitch;   /* units */
    uint64_t counter; /* as in a sum */
    uint32_t part_count;
    uint32_t ranks;
    uint32_t tiles; /* of all parts */
    uint32_t flags; /* pack: TDI_SUM_SRC_BF16 or 0 */
} tdi_flat_params;

/*
 * One strided copy: `height` rows of `width` bytes. Tile i is rows [i / columns
 * * rows, + rows), of each the bytes from i % columns * the copies' tile on: a
 * piece of one row, or several whole rows.
 */
typedef struct tdi_strided_part {
    uint64_t dst;
    uint64_t src;
    uint64_t width;
    uint64_t dst_pitch;
    uint64_t src_pitch;
    uint32_t height;
    uint32_t rows;
    uint32_t columns;
    uint32_t first; /* tiles of the parts before this one */
} tdi_strided_part;

enum {
    TDI_STRIDED_FEW = 8,   /* copies that a launch passes cheaply */
    TDI_STRIDED_MANY = 64, /* copies of any launch at most */
    TDI_STRIDED_TILE = 16384,
    TDI_STRIDED_STAGES = 12, /* tiles of a block's ring */
    TDI_STRIDED_RING = TDI_STRIDED_STAGES * TDI_STRIDED_TILE,
    TDI_STRIDED_THREADS = 256, /* of tide_copy_loads; _bulk has one warp */
};

typedef struct tdi_strided_params {
    uint64_t counter; /* as in a sum */
    uint32_t count;
    uint32_t tiles; /* of all copies */
    uint32_t tile;  /* bytes of a piece of a row at most */
    uint32_t unused;
} tdi_strided_params;

typedef struct tdi_strided_few {
    tdi_strided_part part[TDI_STRIDED_FEW];
} tdi_strided_few;

typedef struct tdi_strided_many {
    tdi_strided_part part[TDI_STRIDED_MANY];
} tdi_strided_many;

/* name, parameters. *_bulk: every address, width and pitch is a multiple of 16.
 */
#define TDI_KERNEL_LIST(X)                                                     \
    X(tide_sum_bulk, (tdi_sum_params, tdi_sum_few))                            \
    X(tide_sum_bulk_many, (tdi_sum_params, tdi_sum_many))                      \
    X(tide_sum_loads, (tdi_sum_params, tdi_sum_few))                           \
    X(tide_sum_loads_many, (tdi_sum_params, tdi_sum_many))                     \
    X(tide_sum_switch, (tdi_sum_params, tdi_sum_few))                          \
    X(tide_copy_bulk, (tdi_strided_params, tdi_strided_few))                   \
    X(tide_copy_bulk_many, (tdi_strided_params, tdi_strided_many))             \
    X(tide_copy_loads, (tdi_strided_params, tdi_strided_few))                  \
    X(tide_copy_loads_many, (tdi_strided_params, tdi_strided_many))            \
    X(tide_flat_unpack, (tdi_flat_params))                                     \
    X(tide_flat_pack, (tdi_flat_params))

#endif
