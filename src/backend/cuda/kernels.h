/*
 * The kernels: sums of gradients and of node sums, and the layout copies of
 * the flat path that tide-perf compares with. Sources in kernels/ become one
 * fat binary that is embedded in the library and loaded by the driver; without
 * a CUDA compiler at build time there is none, and loading says so.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_H
#define TIDE_BACKEND_CUDA_KERNELS_H

#include "backend/cuda/api.h"

#include <tide/plan.h>

enum { TDI_CUDA_SOURCES = 128 }; /* most sources of one sum */

typedef struct tdi_cuda_kernels tdi_cuda_kernels;

/* One REDUCE of a plan. Sources are added in order, in fp32; with TIDE_ADD the
 * destination is the first summand. With TIDE_SWITCH src[0] is one multicast
 * address and the switch adds. */
typedef struct tdi_cuda_sum {
    cu_pointer dst;
    const cu_pointer *src; /* TDI_CUDA_SOURCES at most; 1 with TIDE_SWITCH */
    uint32_t sources;      /* 0: the destination becomes zeros */
    uint32_t flags;        /* of the REDUCE */
    uint64_t elems;
    float scale;
} tdi_cuda_sum;

/* How much of the GPU a sum may hold, and for how long: at most `ctas` blocks
 * at a time, and each launch reads at most `chunk` bytes, over all sources.
 * Without a bound on blocks there may be many short ones: each reads at most
 * `share` bytes, over all sources. 0: no bound. */
typedef struct tdi_cuda_bounds {
    uint32_t ctas;
    uint64_t chunk;
    uint64_t share; /* ignored where ctas is not 0 */
} tdi_cuda_bounds;

/* `height` rows of `width` bytes within one GPU, at any alignment; best where
 * all of it is a multiple of 16. */
typedef struct tdi_cuda_strided {
    cu_pointer dst;
    cu_pointer src;
    uint64_t width;
    uint64_t height;
    uint64_t dst_pitch;
    uint64_t src_pitch;
} tdi_cuda_strided;

/* Was the library built with kernels? */
bool tdi_cuda_kernels_built(void);
/* Loads them into the current context. TIDE_ERR_UNSUPPORTED if there are none
 * for this device. */
tide_status tdi_cuda_kernels_load(const tdi_cuda_api *cuda,
                                  tdi_cuda_kernels **kernels);
void tdi_cuda_kernels_free(tdi_cuda_kernels *kernels); /* NULL is fine */

/*
 * Graphs of 2 to TDI_CUDA_CHAIN launches in a row, for sums that are cut in
 * many. A node costs the host 0.6 us, a launch of its own 3 to 4; launches
 * follow one another sooner, and what waits for SMs beside them waits longer
 * (docs/performance.md, Bounds of a sum). A chain serves one stream at a time:
 * where two share one, the driver has the later graph wait for the earlier.
 */
enum { TDI_CUDA_CHAIN = 16 };
typedef struct tdi_cuda_chain tdi_cuda_chain;

/* Runs each of its graphs once, with nothing to add, and waits for the stream:
 * what the driver sets up at first use can wait for other streams. The kernels
 * must outlive it. */
tide_status tdi_cuda_chain_create(const tdi_cuda_kernels *kernels,
                                  cu_stream stream, tdi_cuda_chain **chain);
void tdi_cuda_chain_free(tdi_cuda_chain *chain); /* NULL is fine */

/* Queues a sum on the stream: one launch or several, none waits. With a chain
 * (NULL: without) several of a sum of up to 16 sources are graphs. */
tide_status tdi_cuda_sum_queue(const tdi_cuda_kernels *kernels,
                               tdi_cuda_chain *chain, const tdi_cuda_sum *sum,
                               const tdi_cuda_bounds *bounds, cu_stream stream);

/* Queues copies, in no order among themselves: one launch for up to 64 of them,
 * two where some are not aligned. At most `ctas` blocks at a time; 0: no bound.
 */
tide_status tdi_cuda_strided_queue(const tdi_cuda_kernels *kernels,
                                   const tdi_cuda_strided *copies,
                                   uint32_t count, uint32_t ctas,
                                   cu_stream stream);

/* Where not 0: the address of a 64-bit counter in device memory to which every
 * block adds the nanoseconds that it held its SM. */
void tdi_cuda_kernels_count_time(tdi_cuda_kernels *kernels, cu_pointer counter);

/* --- The flat path of the baselines ------------------------------------- */

/*
 * The copies between a rank-major buffer and a group's tensors, one launch for
 * the whole group. TIDE_ALL_GATHER unpacks: address[p] is the storage of
 * parameter p, the buffer has R packed shards of tide_layout_shard_bytes each.
 * TIDE_REDUCE_SCATTER packs: address[p] is the gradient of parameter p
 * (grad_elems elements of `dtype`, BF16 or F32), the buffer gets R shards of
 * tide_layout_out_elems fp32 each, zeros in the padding. `dtype` is ignored in
 * an unpack.
 */
typedef struct tdi_cuda_flat tdi_cuda_flat;

/* Waits for the device. Errors: TIDE_ERR_INVALID (dtype; more than 2^31 tiles),
 * TIDE_ERR_MEMORY, TIDE_ERR_SYSTEM. The kernels must outlive it. */
tide_status tdi_cuda_flat_create(const tdi_cuda_kernels *kernels,
                                 const tide_layout *layout, tide_coll coll,
                                 tide_dtype dtype, const cu_pointer *address,
                                 tdi_cuda_flat **flat);
void tdi_cuda_flat_free(tdi_cuda_flat *flat); /* NULL is fine */
/* Queues it for a buffer (16-byte aligned, for speed). */
tide_status tdi_cuda_flat_queue(const tdi_cuda_flat *flat, cu_pointer buffer,
                                cu_stream stream);

#endif
