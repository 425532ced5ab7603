/* Sums: which kernel, how many blocks, how many launches. */
#include "backend/cuda/image.h"
#include "base/fail.h"
#include "base/util.h"

#include <string.h>

_Static_assert((int)TDI_CUDA_SOURCES == (int)TDI_SUM_MANY,
               "kernels take all sources");
_Static_assert((int)TIDE_SRC_BF16 == (int)TDI_SUM_SRC_BF16 &&
                   (int)TIDE_DST_BF16 == (int)TDI_SUM_DST_BF16 &&
                   (int)TIDE_ADD == (int)TDI_SUM_ADD,
               "kernels take the flags of a REDUCE");

/* Tiles begin at multiples of this many elements, so of 16 bytes. */
enum { GRAIN = 128 };

static uint64_t source_size(const tdi_cuda_sum *sum)
{
    return sum->flags & TIDE_SRC_BF16 ? 2 : 4;
}

/* Bytes that are read for one element; the switch's reads are one. */
static uint64_t read_size(const tdi_cuda_sum *sum)
{
    return source_size(sum) * (sum->flags & TIDE_SWITCH ? 1 : sum->sources);
}

static tide_status queue_zeros(const tdi_cuda_kernels *kernels,
                               const tdi_cuda_sum *sum, cu_stream stream)
{
    const tdi_cuda_api *cuda = kernels->cuda;
    uint64_t bytes = sum->elems * (sum->flags & TIDE_DST_BF16 ? 2 : 4);
    cu_result result =
        (sum->dst | bytes) % 4
            ? cuda->fill_8_async(sum->dst, 0, bytes, stream)
            : cuda->fill_32_async(sum->dst, 0, bytes / 4, stream);
    return tdi_cuda_kernels_check(cuda, result, "zeros of a sum");
}

/* Do all sources lie alike against 16 bytes? */
static bool same_phase(const tdi_cuda_sum *sum)
{
    cu_pointer differ = 0;
    for (uint32_t s = 1; s < sum->sources; s++)
        differ |= sum->src[s] ^ sum->src[0];
    return differ % 16 == 0;
}

static tdi_kernel_id choose_kernel(const tdi_cuda_sum *sum)
{
    bool few = sum->sources <= TDI_SUM_FEW;
    if (sum->flags & TIDE_SWITCH)
        return TDI_KERNEL_tide_sum_switch;
    if (sum->src[0] % source_size(sum) == 0 && same_phase(sum))
        return few ? TDI_KERNEL_tide_sum_bulk : TDI_KERNEL_tide_sum_bulk_many;
    return few ? TDI_KERNEL_tide_sum_loads : TDI_KERNEL_tide_sum_loads_many;
}

/* Elements of the next launch: the first one ends where the sources are
 * aligned, so that the others begin there. */
static uint64_t next_count(const tdi_cuda_sum *sum, uint64_t first,
                           uint64_t chunk)
{
    uint64_t size = source_size(sum);
    uint64_t left = sum->elems - first;
    if (!chunk)
        return left;
    uint64_t most = tdi_max(chunk / read_size(sum) / GRAIN, 1) * GRAIN;
    uint64_t phase = (sum->src[0] + first * size) % 16 / size;
    return tdi_min(most - phase, left);
}

/* Every block has the same number of tiles, so far as that goes. */
static uint32_t set_tile(tdi_sum_params *p, uint32_t ctas)
{
    uint64_t turns =
        tdi_ceil_div(tdi_ceil_div(p->count, ctas), (uint64_t)TDI_SUM_TILE);
    p->tile =
        (uint32_t)tdi_round_up(tdi_ceil_div(p->count, turns * ctas), GRAIN);
    return (uint32_t)tdi_min(tdi_ceil_div(p->count, p->tile), ctas);
}

/* Blocks of a launch of `count` elements, at most. */
static uint32_t most_blocks(const tdi_cuda_kernels *kernels,
                            const tdi_cuda_sum *sum,
                            const tdi_cuda_bounds *bounds, uint64_t count)
{
    if (bounds->ctas)
        return bounds->ctas;
    if (!bounds->share)
        return kernels->sms;
    uint64_t share = tdi_max(bounds->share / read_size(sum), GRAIN);
    return (uint32_t)tdi_min(tdi_ceil_div(count, share), INT32_MAX);
}

/* A sum's launches that are not handed over yet. */
typedef struct batch {
    const tdi_cuda_kernels *kernels;
    tdi_cuda_chain *chain;
    cu_stream stream;
    tdi_kernel_id id;
    tdi_sum_many sources; /* few are its beginning */
    tdi_sum_launch launches[TDI_CUDA_CHAIN];
    uint32_t count;
    uint32_t most;
} batch;

static tide_status hand_over(batch *b)
{
    uint32_t count = b->count;
    void *params[] = {&b->launches[0].params, &b->sources};
    b->count = 0;
    if (count > 1)
        return tdi_cuda_chain_queue(b->chain, b->id, b->launches, count,
                                    (tdi_sum_few *)&b->sources, b->stream);
    return count ? tdi_cuda_launch(b->kernels, b->id, b->launches[0].blocks,
                                   params, b->stream)
                 : TIDE_OK;
}

/* As the nodes of a chain do, whose parameters keep their sizes. */
static bool takes_few(tdi_kernel_id id)
{
    return id != TDI_KERNEL_tide_sum_bulk_many &&
           id != TDI_KERNEL_tide_sum_loads_many;
}

static void open_batch(batch *b, const tdi_cuda_kernels *kernels,
                       tdi_cuda_chain *chain, const tdi_cuda_sum *sum,
                       cu_stream stream)
{
    size_t count = sum->flags & TIDE_SWITCH ? 1 : sum->sources;
    b->kernels = kernels;
    b->chain = chain;
    b->stream = stream;
    b->id = choose_kernel(sum);
    b->count = 0;
    b->most = chain && takes_few(b->id) ? TDI_CUDA_CHAIN : 1;
    memcpy(b->sources.src, sum->src, count * sizeof(b->sources.src[0]));
}

static tide_status queue_launches(batch *b, const tdi_cuda_sum *sum,
                                  const tdi_cuda_bounds *bounds)
{
    tdi_sum_params p = {
        .dst = sum->dst,
        .counter = b->kernels->counter,
        .sources = sum->flags & TIDE_SWITCH ? 1 : sum->sources,
        .flags = sum->flags & (TIDE_SRC_BF16 | TIDE_DST_BF16 | TIDE_ADD),
        .ring = b->kernels->ring,
        .scale = sum->flags & TIDE_SCALE ? sum->scale : 1,
    };
    for (; p.first < sum->elems; p.first += p.count) {
        p.count = next_count(sum, p.first, bounds->chunk);
        uint32_t blocks =
            set_tile(&p, most_blocks(b->kernels, sum, bounds, p.count));
        b->launches[b->count++] = (tdi_sum_launch){p, blocks};
        if (b->count == b->most)
            TDI_TRY(hand_over(b));
    }
    return hand_over(b);
}

tide_status tdi_cuda_sum_queue(const tdi_cuda_kernels *kernels,
                               tdi_cuda_chain *chain, const tdi_cuda_sum *sum,
                               const tdi_cuda_bounds *bounds, cu_stream stream)
{
    batch b; /* large, so it is not cleared */
    if (sum->sources > TDI_CUDA_SOURCES)
        return tdi_fail(TIDE_ERR_INVALID,
                        "a sum of %u sources; the kernels add at most %d",
                        sum->sources, TDI_CUDA_SOURCES);
    if (!sum->elems)
        return TIDE_OK;
    if (!sum->sources)
        return queue_zeros(kernels, sum, stream);
    open_batch(&b, kernels, chain, sum, stream);
    return queue_launches(&b, sum, bounds);
}
