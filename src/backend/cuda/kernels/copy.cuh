/*
 * Strided copies within one GPU, many to a launch. Where everything is a
 * multiple of 16 bytes, one warp of a block moves tiles through shared memory
 * with bulk copies both ways; else threads load and store.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_COPY_CUH
#define TIDE_BACKEND_CUDA_KERNELS_COPY_CUH

#include "bulk.cuh"
#include "bytes.cuh"

namespace strided
{

enum { AHEAD = TDI_STRIDED_STAGES - 4 }; /* tiles that are being loaded */

struct tile {
    u64 dst; /* of its first row */
    u64 src;
    u32 rows;
    u32 bytes; /* of a row */
};

/* This block's tiles in order, and the part that the next one belongs to. */
struct walk {
    const tdi_strided_part *parts;
    u32 count;
    u32 index;
    u32 part;

    DEVICE tile take(u32 most)
    {
        while (part + 1 < count && parts[part + 1].first <= index)
            part++;
        const tdi_strided_part &p = parts[part];
        const u32 i = index - p.first;
        const u64 row = (u64)(i / p.columns) * p.rows;
        const u64 column = (u64)(i % p.columns) * most;
        index += gridDim.x;
        return {
            p.dst + row * p.dst_pitch + column,
            p.src + row * p.src_pitch + column,
            (u32)min((u64)p.rows, p.height - row),
            (u32)min((u64)(p.columns > 1 ? most : p.width), p.width - column)};
    }

    DEVICE const tdi_strided_part &last() const
    {
        return parts[part];
    }
};

/* --- Bulk ----------------------------------------------------------------- */

/* Rows lie side by side in a stage. One lane says how much is to come before
 * any lane's loads may complete. */
DEVICE void load_tile(walk &w, u32 most, char *to, u64 *full)
{
    const tile t = w.take(most);
    const u32 lane = threadIdx.x;
    if (lane == 0)
        bulk::arrive_expecting(full, t.rows * t.bytes);
    __syncwarp();
    for (u32 r = lane; r < t.rows; r += 32)
        bulk::load(to + r * t.bytes, t.src + r * w.last().src_pitch, t.bytes,
                   full);
}

DEVICE void store_tile(walk &w, u32 most, const char *from)
{
    const tile t = w.take(most);
    for (u32 r = threadIdx.x; r < t.rows; r += 32)
        bulk::store(t.dst + r * w.last().dst_pitch, from + r * t.bytes,
                    t.bytes);
    bulk::commit_stores();
}

/* A stage is loaded again STAGES tiles later, when AHEAD tiles are under way:
 * by then the store of STAGES - AHEAD tiles ago has to have read it. */
DEVICE void copy_all(const tdi_strided_params &p, const tdi_strided_part *parts,
                     char *ring, u64 *full)
{
    walk in = {parts, p.count, blockIdx.x, 0};
    walk out = in;
    bulk::cursor put = {0, 0}, got = {0, 0};
    for (u32 i = 0; i < AHEAD && in.index < p.tiles; i++) {
        load_tile(in, p.tile, ring + put.stage * TDI_STRIDED_TILE,
                  &full[put.stage]);
        put.step(TDI_STRIDED_STAGES);
    }
    while (out.index < p.tiles) {
        bulk::wait(&full[got.stage], got.phase);
        store_tile(out, p.tile, ring + got.stage * TDI_STRIDED_TILE);
        got.step(TDI_STRIDED_STAGES);
        if (in.index >= p.tiles)
            continue;
        bulk::wait_stores_read<TDI_STRIDED_STAGES - AHEAD>();
        __syncwarp(); /* of every lane */
        load_tile(in, p.tile, ring + put.stage * TDI_STRIDED_TILE,
                  &full[put.stage]);
        put.step(TDI_STRIDED_STAGES);
    }
    bulk::wait_stores();
}

DEVICE void copy_bulk(const tdi_strided_params &p,
                      const tdi_strided_part *parts)
{
    extern __shared__ __align__(128) char ring[];
    __shared__ u64 full[TDI_STRIDED_STAGES];
    const u64 start = read_timer();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < TDI_STRIDED_STAGES; i++)
            bulk::init_barrier(&full[i], 1);
        bulk::show_barriers();
    }
    __syncwarp();
    copy_all(p, parts, ring, full);
    count_time(p.counter, start);
}

/* --- Loads ---------------------------------------------------------------- */

/* All threads copy a piece of a row; whole rows go to a warp each. */
DEVICE void copy_tile(const tile &t, const tdi_strided_part &p)
{
    if (t.rows == 1) {
        copy_bytes<TDI_STRIDED_THREADS>(t.dst, t.src, t.bytes, threadIdx.x);
        return;
    }
    for (u32 r = threadIdx.x / 32; r < t.rows; r += TDI_STRIDED_THREADS / 32)
        copy_bytes<32>(t.dst + r * p.dst_pitch, t.src + r * p.src_pitch,
                       t.bytes, threadIdx.x % 32);
}

DEVICE void copy_loads(const tdi_strided_params &p,
                       const tdi_strided_part *parts)
{
    const u64 start = read_timer();
    walk w = {parts, p.count, blockIdx.x, 0};
    while (w.index < p.tiles) {
        const tile t = w.take(p.tile);
        copy_tile(t, w.last());
    }
    count_time(p.counter, start);
}

} // namespace strided

extern "C" __global__ void __launch_bounds__(32)
    tide_copy_bulk(const __grid_constant__ tdi_strided_params p,
                   const __grid_constant__ tdi_strided_few copies)
{
    strided::copy_bulk(p, copies.part);
}

extern "C" __global__ void __launch_bounds__(32)
    tide_copy_bulk_many(const __grid_constant__ tdi_strided_params p,
                        const __grid_constant__ tdi_strided_many copies)
{
    strided::copy_bulk(p, copies.part);
}

extern "C" __global__ void __launch_bounds__(TDI_STRIDED_THREADS)
    tide_copy_loads(const __grid_constant__ tdi_strided_params p,
                    const __grid_constant__ tdi_strided_few copies)
{
    strided::copy_loads(p, copies.part);
}

extern "C" __global__ void __launch_bounds__(TDI_STRIDED_THREADS)
    tide_copy_loads_many(const __grid_constant__ tdi_strided_params p,
                         const __grid_constant__ tdi_strided_many copies)
{
    strided::copy_loads(p, copies.part);
}

#endif
