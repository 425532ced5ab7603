/*
 * The sum over one multicast address: the switch reads that offset of every
 * rank's memory, adds in fp32 and returns the sum.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_SUM_SWITCH_CUH
#define TIDE_BACKEND_CUDA_KERNELS_SUM_SWITCH_CUH

#include "device.cuh"

namespace switched
{

enum { VECTORS = 4 }; /* loads of a thread that are under way together */

DEVICE float4 load_sum(u64 from)
{
    float4 x;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

DEVICE void sum_one_element(const tdi_sum_params &p, u64 src, u64 i)
{
    float x, sum = p.flags & TDI_SUM_ADD ? get<float>(p.dst + 4 * i) : -0.0f;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"
                 : "=f"(x)
                 : "l"(src + 4 * i)
                 : "memory");
    store_one(p.dst, i, p.flags & TDI_SUM_DST_BF16, (sum + x) * p.scale);
}

/* Vectors [0, body) of four elements from `first` on. */
DEVICE void sum_body(const tdi_sum_params &p, u64 src, u64 first, u64 body)
{
    const bool vectors = whole_vectors(p, first);
    const u64 stride = (u64)gridDim.x * TDI_SUM_THREADS;
    for (u64 at = (u64)blockIdx.x * TDI_SUM_THREADS + threadIdx.x; at < body;
         at += VECTORS * stride) {
        float4 x[VECTORS];
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++)
            if (at + v * stride < body)
                x[v] = load_sum(src + 4 * (first + 4 * (at + v * stride)));
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
            u64 i = first + 4 * (at + v * stride);
            if (at + v * stride >= body)
                break;
            float4 sum = first_summand(p, i, vectors);
            add(sum, x[v]);
            store_four(p, i, vectors, sum);
        }
    }
}

DEVICE void sum(const tdi_sum_params &p, u64 src)
{
    const u64 start = read_timer();
    const u64 from = src + 4 * p.first;
    const u64 head = min((u64)((0 - from) % 16 / 4), (u64)p.count);
    const u64 body = (p.count - head) / 4;
    sum_body(p, src, p.first + head, body);
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < 8) {
        u64 i = threadIdx.x < head ? threadIdx.x : 4 * body + threadIdx.x;
        if (i < p.count)
            sum_one_element(p, src, p.first + i);
    }
    count_time(p.counter, start);
}

} // namespace switched

extern "C" __global__ void __launch_bounds__(TDI_SUM_THREADS, 2)
    tide_sum_switch(const __grid_constant__ tdi_sum_params p,
                    const __grid_constant__ tdi_sum_few sources)
{
    switched::sum(p, sources.src[0]);
}

#endif
