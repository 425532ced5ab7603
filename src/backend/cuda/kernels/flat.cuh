/*
 * The copies that the flat path needs around its collectives, one launch for a
 * whole group. They serve the baselines, so they are made as fast as they can
 * be: blocks of equal work, vectors as wide as the addresses allow.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_FLAT_CUH
#define TIDE_BACKEND_CUDA_KERNELS_FLAT_CUH

#include "bytes.cuh"

namespace flat
{

/* One tile: `count` units from `column` on of the run that rank `rank` has of
 * row `row`. */
struct tile {
    u32 rank;
    u32 row;
    u64 column;
    u32 count;
};

DEVICE tile tile_of(const tdi_flat_part &part, u32 index)
{
    u32 columns = (u32)((part.width + TDI_FLAT_TILE - 1) / TDI_FLAT_TILE);
    u32 run = index / columns;
    u64 column = (u64)(index % columns) * TDI_FLAT_TILE;
    return {run / part.outer, run % part.outer, column,
            (u32)min(part.width - column, (u64)TDI_FLAT_TILE)};
}

/* The last part that begins at or before tile `index`. */
DEVICE u32 find_part(const tdi_flat_part *parts, u32 count, u32 index)
{
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (parts[middle].first <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Calls work(part, tile) for this block's share: tiles that lie side by side,
 * so that the part is searched for once. */
template <typename Work>
DEVICE void each_tile(const tdi_flat_params &p, Work work)
{
    const tdi_flat_part *parts =
        reinterpret_cast<const tdi_flat_part *>(p.parts);
    const u64 start = read_timer();
    u32 index = (u32)((u64)p.tiles * blockIdx.x / gridDim.x);
    const u32 end = (u32)((u64)p.tiles * (blockIdx.x + 1) / gridDim.x);
    u32 part = find_part(parts, p.part_count, index);
    for (; index < end; index++) {
        while (parts[part + 1].first <= index)
            part++;
        work(parts[part], tile_of(parts[part], index - parts[part].first));
    }
    count_time(p.counter, start);
}

/* --- Pack: bf16 or fp32 to fp32 ----------------------------------------- */

/* Elements [0, real) of the tensor, then zeros up to `count`. */
template <bool BF16, u32 WIDTH>
DEVICE void widen_run(u64 to, u64 from, u32 count, u32 real)
{
    constexpr u32 together = 4;
    constexpr u32 size = BF16 ? 2 : 4;
    const u32 head = min((u32)((0 - to) % 16 / 4), real);
    const u32 body = (real - head) / 4;
    const u32 tail = head + body * 4;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < body; i += together * TDI_FLAT_THREADS) {
        typename four_of<BF16>::type x[together];
#pragma unroll
        for (u32 v = 0; v < together; v++)
            if (i + v * TDI_FLAT_THREADS < body)
                x[v] = load_four<BF16, WIDTH>(
                    from + size * (head + 4 * (i + v * TDI_FLAT_THREADS)));
#pragma unroll
        for (u32 v = 0; v < together; v++)
            if (i + v * TDI_FLAT_THREADS < body)
                put(to + 4 * (head + 4 * (i + v * TDI_FLAT_THREADS)),
                    widen(x[v]));
    }
    if (threadIdx.x < head)
        put(to + 4 * threadIdx.x, load_one(from, threadIdx.x, BF16));
#pragma unroll 1
    for (u32 i = tail + threadIdx.x; i < count; i += TDI_FLAT_THREADS)
        put(to + 4 * i, i < real ? load_one(from, i, BF16) : 0.0f);
}

/* Stores are vectors whatever the phases, loads where theirs allows. */
template <bool BF16>
DEVICE void widen_any(u64 to, u64 from, u32 count, u32 real)
{
    constexpr u32 size = BF16 ? 2 : 4;
    const u64 phase = from + (0 - to) % 16 / 4 * size;
    if (phase % (4 * size) == 0)
        widen_run<BF16, 4 * size>(to, from, count, real);
    else if (BF16 && phase % 4)
        widen_run<BF16, 2>(to, from, count, real);
    else
        widen_run<BF16, 4>(to, from, count, real);
}

} // namespace flat

extern "C" __global__ void __launch_bounds__(TDI_FLAT_THREADS, TDI_FLAT_BLOCKS)
    tide_flat_unpack(const __grid_constant__ tdi_flat_params p)
{
    flat::each_tile(p, [&](const tdi_flat_part &part, flat::tile t) {
        u64 run = (u64)t.row * p.ranks + t.rank;
        u64 to = part.address + run * part.width + t.column;
        u64 from = p.buffer + t.rank * p.pitch + part.packed +
                   t.row * part.width + t.column;
        copy_bytes<TDI_FLAT_THREADS>(to, from, t.count, threadIdx.x);
    });
}

extern "C" __global__ void __launch_bounds__(TDI_FLAT_THREADS)
    tide_flat_pack(const __grid_constant__ tdi_flat_params p)
{
    flat::each_tile(p, [&](const tdi_flat_part &part, flat::tile t) {
        u64 column = t.rank * part.width + t.column; /* of the tensor's row */
        u64 left = column < part.real ? part.real - column : 0;
        u32 real = (u32)min(left, (u64)t.count);
        u64 at = t.row * part.real + column;
        u64 to = p.buffer + 4 * (t.rank * p.pitch + part.packed +
                                 t.row * part.width + t.column);
        if (p.flags & TDI_SUM_SRC_BF16)
            flat::widen_any<true>(to, part.address + 2 * at, t.count, real);
        else
            flat::widen_any<false>(to, part.address + 4 * at, t.count, real);
    });
}

#endif
