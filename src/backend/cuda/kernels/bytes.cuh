/* Runs of bytes, by vectors as wide as the two addresses allow. */
#ifndef TIDE_BACKEND_CUDA_KERNELS_BYTES_CUH
#define TIDE_BACKEND_CUDA_KERNELS_BYTES_CUH

#include "device.cuh"

/* THREADS threads copy one run: each calls it with its number. */
template <typename T, u32 THREADS>
DEVICE void copy_as(u64 to, u64 from, u32 bytes, u32 thread)
{
    constexpr u32 together = 4;
    const u32 head = min((u32)((0 - to) % sizeof(T)), bytes);
    const u32 body = (bytes - head) / sizeof(T);
    const u32 tail = head + body * sizeof(T);
#pragma unroll 1
    for (u32 i = thread; i < body; i += together * THREADS) {
        T x[together];
#pragma unroll
        for (u32 v = 0; v < together; v++)
            if (i + v * THREADS < body)
                x[v] = get<T>(from + head + sizeof(T) * (i + v * THREADS));
#pragma unroll
        for (u32 v = 0; v < together; v++)
            if (i + v * THREADS < body)
                put(to + head + sizeof(T) * (i + v * THREADS), x[v]);
    }
    if (thread < head)
        put(to + thread, get<unsigned char>(from + thread));
    if (tail + thread < bytes)
        put(to + tail + thread, get<unsigned char>(from + tail + thread));
}

template <u32 THREADS>
DEVICE void copy_bytes(u64 to, u64 from, u32 bytes, u32 thread)
{
    u64 phase = to ^ from;
    if (phase % 16 == 0)
        copy_as<uint4, THREADS>(to, from, bytes, thread);
    else if (phase % 8 == 0)
        copy_as<uint2, THREADS>(to, from, bytes, thread);
    else if (phase % 4 == 0)
        copy_as<u32, THREADS>(to, from, bytes, thread);
    else if (phase % 2 == 0)
        copy_as<unsigned short, THREADS>(to, from, bytes, thread);
    else
        copy_as<unsigned char, THREADS>(to, from, bytes, thread);
}

#endif
