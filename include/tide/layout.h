/*
 * Layout: how FSDP2 shards a parameter group over R ranks.
 *
 * A parameter is seen as [outer, rows, inner], contiguous. Shard(0) has
 * outer = 1; Shard(d) has outer = the product of the dimensions before d, rows
 * = dimension d, inner = the product of those after it. FSDP2 pads the sharded
 * dimension to s = ceil(rows / R) rows a rank, so rank r owns rows
 * [min(r*s, rows), min((r+1)*s, rows)): none, for some ranks. Shard(d > 0)
 * must divide evenly, as FSDP2 demands.
 *
 * Three address spaces, all in bytes:
 *  - a parameter's *storage*: Shard(0): rank r's shard at r*b, contiguous, all
 *    padding at the tail, R*b bytes in all (b = s*inner*itemsize). Shard(d):
 *    the full tensor, each rank's piece strided.
 *  - the *packed shard* of one rank: parameter p's padded shard at
 *    shard_offset(p), each aligned to 16 bytes.
 *  - the *output* of a reduce-scatter: the padded shards of all parameters one
 *    after the other without gaps, in elements (FSDP2's own layout).
 */
#ifndef TIDE_LAYOUT_H
#define TIDE_LAYOUT_H

#include <tide/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_param {
    uint64_t outer; /* 1 for Shard(0) */
    uint64_t rows;  /* size of the sharded dimension; may be 0 */
    uint64_t inner; /* elements of one row; may be 0 */
    tide_dtype dtype;
} tide_param;

/* What the layout says of one parameter; bytes unless named otherwise. */
typedef struct tide_param_layout {
    tide_param param;
    uint64_t shard_rows;    /* s: padded rows of a rank */
    uint64_t shard_elems;   /* outer * s * inner */
    uint64_t shard_bytes;   /* b */
    uint64_t shard_offset;  /* in the packed shard, a multiple of 16 */
    uint64_t out_offset;    /* in the output, in elements */
    uint64_t storage_bytes; /* R * b */
    uint64_t grad_elems;    /* outer * rows * inner: the unpadded tensor */
} tide_param_layout;

typedef struct tide_layout tide_layout;

/*
 * Makes the layout of `count` parameters (0 is legal) over `ranks` ranks. The
 * array is copied. Errors: TIDE_ERR_INVALID for NULL, ranks outside
 * 1..TIDE_MAX_RANKS, an unknown dtype, outer = 0, an uneven Shard(d > 0), or
 * sizes past 2^62 bytes; TIDE_ERR_MEMORY. Free it with tide_layout_free.
 */
TIDE_API tide_status tide_layout_create(const tide_param *params, size_t count,
                                        uint32_t ranks, tide_layout **layout);
TIDE_API void tide_layout_free(tide_layout *layout); /* NULL is fine */

TIDE_API size_t tide_layout_count(const tide_layout *layout);
TIDE_API uint32_t tide_layout_ranks(const tide_layout *layout);
/* The entry of parameter p < count; owned by the layout. */
TIDE_API const tide_param_layout *tide_layout_param(const tide_layout *layout,
                                                    size_t p);
/* B: bytes of a packed shard (a multiple of 16). */
TIDE_API uint64_t tide_layout_shard_bytes(const tide_layout *layout);
/* S: elements of a rank's reduce-scatter output, padding included. */
TIDE_API uint64_t tide_layout_out_elems(const tide_layout *layout);
/* Rows of parameter p that rank really owns, and the first of them. */
TIDE_API uint64_t tide_layout_rows(const tide_layout *layout, size_t p,
                                   uint32_t rank, uint64_t *first);
/* A 64-bit hash of everything above; equal layouts hash equally. */
TIDE_API uint64_t tide_layout_hash(const tide_layout *layout);

#ifdef __cplusplus
}
#endif
#endif
