/*
 * The sum of sources whose phases differ: loads as wide as the worst of them
 * allows, down to single elements.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_SUM_LOADS_CUH
#define TIDE_BACKEND_CUDA_KERNELS_SUM_LOADS_CUH

#include "device.cuh"

namespace loads
{

enum { TOGETHER = 4 }; /* sources whose loads are under way together */

template <bool BF16, u32 WIDTH, u32 N>
DEVICE void add_sources(float4 (&sum)[TDI_SUM_VECTORS], const uint64_t *src,
                        u64 offset, u32 count)
{
    constexpr u32 size = BF16 ? 2 : 4;
    typename four_of<BF16>::type x[N][TDI_SUM_VECTORS];
#pragma unroll
    for (u32 s = 0; s < N; s++)
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++) {
            u32 i = 4 * (v * TDI_SUM_THREADS + threadIdx.x);
            if (i < count)
                x[s][v] = load_four<BF16, WIDTH>(src[s] + offset + i * size);
        }
#pragma unroll
    for (u32 s = 0; s < N; s++)
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++)
            add(sum[v], widen(x[s][v]));
}

template <bool BF16, u32 WIDTH>
DEVICE void run(const tdi_sum_params &p, const uint64_t *src)
{
    constexpr u32 size = BF16 ? 2 : 4;
    const u64 body = p.count / 4 * 4;
    const bool vectors = whole_vectors(p, p.first);
    for (u64 tile = (u64)blockIdx.x * p.tile; tile < body;
         tile += (u64)gridDim.x * p.tile) {
        u32 count = (u32)min((u64)p.tile, body - tile);
        u64 at = p.first + tile;
        u32 s = 0;
        float4 sum[TDI_SUM_VECTORS];
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++) {
            u32 i = 4 * (v * TDI_SUM_THREADS + threadIdx.x);
            sum[v] = i < count ? first_summand(p, at + i, vectors) : no_sum();
        }
        for (; s + TOGETHER <= p.sources; s += TOGETHER)
            add_sources<BF16, WIDTH, TOGETHER>(sum, src + s, at * size, count);
        for (; s < p.sources; s++)
            add_sources<BF16, WIDTH, 1>(sum, src + s, at * size, count);
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++) {
            u32 i = 4 * (v * TDI_SUM_THREADS + threadIdx.x);
            if (i < count)
                store_four(p, at + i, vectors, sum[v]);
        }
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < p.count % 4)
        sum_one(p, src, p.first + body + threadIdx.x);
}

template <bool BF16>
DEVICE void choose(const tdi_sum_params &p, const uint64_t *src)
{
    u64 bits = 16;
    for (u32 s = 0; s < p.sources; s++)
        bits |= src[s] + p.first * (BF16 ? 2 : 4);
    if (!BF16 && bits % 16 == 0)
        run<BF16, 16>(p, src);
    else if (bits % 8 == 0)
        run<BF16, 8>(p, src);
    else if (!BF16 || bits % 4 == 0)
        run<BF16, 4>(p, src);
    else
        run<BF16, 2>(p, src);
}

DEVICE void sum(const tdi_sum_params &p, const uint64_t *src)
{
    const u64 start = read_timer();
    if (p.flags & TDI_SUM_SRC_BF16)
        choose<true>(p, src);
    else
        choose<false>(p, src);
    count_time(p.counter, start);
}

} // namespace loads

extern "C" __global__ void __launch_bounds__(TDI_SUM_THREADS, 1)
    tide_sum_loads(const __grid_constant__ tdi_sum_params p,
                   const __grid_constant__ tdi_sum_few sources)
{
    loads::sum(p, sources.src);
}

extern "C" __global__ void __launch_bounds__(TDI_SUM_THREADS, 1)
    tide_sum_loads_many(const __grid_constant__ tdi_sum_params p,
                        const __grid_constant__ tdi_sum_many sources)
{
    loads::sum(p, sources.src);
}

#endif
