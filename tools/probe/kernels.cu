/* What tide's kernels are compared with: a copy by some blocks, a block that
 * only holds an SM. */
#include "params.h"

typedef unsigned long long u64;

enum { TOGETHER = 8 }; /* loads of a thread that are under way together */

extern "C" __global__ void __launch_bounds__(PROBE_THREADS)
    probe_copy(const __grid_constant__ probe_copy_params p)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(p.from);
    uint4 *to = reinterpret_cast<uint4 *>(p.to);
    const u64 tile = (u64)PROBE_THREADS * TOGETHER;
    for (u64 at = blockIdx.x * tile; at < p.vectors; at += gridDim.x * tile) {
        uint4 x[TOGETHER];
#pragma unroll
        for (int v = 0; v < TOGETHER; v++) {
            u64 i = at + v * PROBE_THREADS + threadIdx.x;
            if (i < p.vectors)
                x[v] = from[i];
        }
#pragma unroll
        for (int v = 0; v < TOGETHER; v++) {
            u64 i = at + v * PROBE_THREADS + threadIdx.x;
            if (i < p.vectors)
                to[i] = x[v];
        }
    }
}

__device__ u64 read_timer()
{
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

extern "C" __global__ void __launch_bounds__(PROBE_THREADS)
    probe_spin(const __grid_constant__ probe_spin_params p)
{
    const volatile int *stop = reinterpret_cast<const volatile int *>(p.stop);
    const u64 end = read_timer() + p.ns;
    while (!*stop && read_timer() < end)
        ;
}
