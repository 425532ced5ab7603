/*
 * The sum of sources that have one phase against 16 bytes.
 *
 * One thread of a block loads tiles of the sources into a ring in shared
 * memory with bulk copies, as many as fit; 512 threads add them. Up to 192 KiB
 * are then under way for a block, more than an SM's bandwidth times the
 * memory's latency, so few blocks suffice and each ends soon. What lies before
 * the first and behind the last 16 bytes is added by single loads.
 */
#ifndef TIDE_BACKEND_CUDA_KERNELS_SUM_BULK_CUH
#define TIDE_BACKEND_CUDA_KERNELS_SUM_BULK_CUH

#include "bulk.cuh"

namespace bulk
{

/* A stage has the tiles of one group of sources, one `slot` each. */
template <bool BF16> struct shape {
    static constexpr u32 size = BF16 ? 2 : 4;
    static constexpr u32 unit = 16 / size; /* elements of 16 bytes */
    static constexpr u32 slot = TDI_SUM_TILE * size;
    static constexpr u32 most = BF16 ? 4 : 2; /* slots of a stage */
    u32 group; /* slots in use, as even as can be over the groups */
    u32 stages;

    DEVICE shape(const tdi_sum_params &p)
    {
        u32 groups = (p.sources + most - 1) / most;
        group = (p.sources + groups - 1) / groups;
        stages = min(p.ring / (slot * group), (u32)TDI_SUM_STAGES);
    }
};

struct barriers {
    u64 full[TDI_SUM_STAGES];
    u64 empty[TDI_SUM_STAGES];
};

/* Elements [first, first + count) are 16-byte units of every source. */
struct span {
    u64 first;
    u64 count;
};

template <bool BF16> DEVICE span body_of(const tdi_sum_params &p, u64 src)
{
    typedef shape<BF16> form;
    u64 from = src + p.first * form::size;
    u64 head = min((u64)((0 - from) % 16 / form::size), (u64)p.count);
    return {p.first + head, (p.count - head) / form::unit * form::unit};
}

template <bool BF16>
DEVICE void produce(const tdi_sum_params &p, const uint64_t *src, span body,
                    char *ring, barriers *b)
{
    const shape<BF16> form(p);
    cursor at = {0, 0};
    for (u64 tile = (u64)blockIdx.x * p.tile; tile < body.count;
         tile += (u64)gridDim.x * p.tile) {
        u32 bytes = (u32)min((u64)p.tile, body.count - tile) * form.size;
        u64 offset = (body.first + tile) * form.size;
        for (u32 s = 0; s < p.sources; s += form.group) {
            u32 n = min(form.group, p.sources - s);
            char *to = ring + at.stage * form.group * form.slot;
            wait(&b->empty[at.stage], at.phase ^ 1);
            arrive_expecting(&b->full[at.stage], n * bytes);
            for (u32 i = 0; i < n; i++)
                load(to + i * form.slot, src[s + i] + offset, bytes,
                     &b->full[at.stage]);
            at.step(form.stages);
        }
    }
}

/* All loads of a group come before its additions. */
template <bool BF16, u32 N>
DEVICE void add_group(float4 (&sum)[TDI_SUM_VECTORS], const char *from)
{
    typedef typename four_of<BF16>::type four;
    four x[N][TDI_SUM_VECTORS];
#pragma unroll
    for (u32 i = 0; i < N; i++)
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++)
            x[i][v] = *reinterpret_cast<const four *>(
                from + i * shape<BF16>::slot +
                v * TDI_SUM_THREADS * sizeof(four));
#pragma unroll
    for (u32 i = 0; i < N; i++)
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++)
            add(sum[v], widen(x[i][v]));
}

template <bool BF16>
DEVICE void add_groups(float4 (&sum)[TDI_SUM_VECTORS], const char *from, u32 n)
{
    if (BF16 && n == 4)
        add_group<BF16, 4>(sum, from);
    else if (BF16 && n == 3)
        add_group<BF16, 3>(sum, from);
    else if (n == 2)
        add_group<BF16, 2>(sum, from);
    else
        add_group<BF16, 1>(sum, from);
}

/* Every thread says that it has read a stage: one of a warp would do, and is 1%
 * faster, but racecheck knows of a thread's reads only from its own arrival. */
template <bool BF16>
DEVICE void consume(const tdi_sum_params &p, span body, const char *ring,
                    barriers *b)
{
    const shape<BF16> form(p);
    const bool vectors = whole_vectors(p, body.first);
    cursor at = {0, 0};
    ring += threadIdx.x * 4 * form.size;
    for (u64 tile = (u64)blockIdx.x * p.tile; tile < body.count;
         tile += (u64)gridDim.x * p.tile) {
        u32 count = (u32)min((u64)p.tile, body.count - tile);
        float4 sum[TDI_SUM_VECTORS];
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++) {
            u32 i = 4 * (v * TDI_SUM_THREADS + threadIdx.x);
            sum[v] = i < count
                         ? first_summand(p, body.first + tile + i, vectors)
                         : no_sum();
        }
        for (u32 s = 0; s < p.sources; s += form.group) {
            wait(&b->full[at.stage], at.phase);
            add_groups<BF16>(sum, ring + at.stage * form.group * form.slot,
                             min(form.group, p.sources - s));
            arrive(&b->empty[at.stage]);
            at.step(form.stages);
        }
#pragma unroll
        for (u32 v = 0; v < TDI_SUM_VECTORS; v++) {
            u32 i = 4 * (v * TDI_SUM_THREADS + threadIdx.x);
            if (i < count)
                store_four(p, body.first + tile + i, vectors, sum[v]);
        }
    }
}

/* The at most 2 x 7 elements outside the body, one a lane. */
DEVICE void add_edges(const tdi_sum_params &p, const uint64_t *src, span body,
                      u32 lane)
{
    u64 head = body.first - p.first;
    u64 i = lane < head ? p.first + lane : body.count + p.first + lane;
    if (i < p.first + p.count)
        sum_one(p, src, i);
}

template <bool BF16>
DEVICE void run(const tdi_sum_params &p, const uint64_t *src, char *ring,
                barriers *b)
{
    const span body = body_of<BF16>(p, src[0]);
    const u32 lane = threadIdx.x - TDI_SUM_THREADS;
    if (threadIdx.x < TDI_SUM_THREADS)
        consume<BF16>(p, body, ring, b);
    else if (lane == 0)
        produce<BF16>(p, src, body, ring, b);
    else if (blockIdx.x == gridDim.x - 1)
        add_edges(p, src, body, lane - 1);
}

DEVICE void init_barriers(barriers *b)
{
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < TDI_SUM_STAGES; i++) {
            init_barrier(&b->full[i], 1);
            init_barrier(&b->empty[i], TDI_SUM_THREADS);
        }
        show_barriers();
    }
    __syncthreads();
}

DEVICE void sum(const tdi_sum_params &p, const uint64_t *src)
{
    extern __shared__ __align__(128) char ring[];
    __shared__ barriers b;
    const u64 start = read_timer();
    init_barriers(&b);
    if (p.flags & TDI_SUM_SRC_BF16)
        run<true>(p, src, ring, &b);
    else
        run<false>(p, src, ring, &b);
    count_time(p.counter, start);
}

} // namespace bulk

extern "C" __global__ void __launch_bounds__(TDI_SUM_THREADS + 32, 1)
    tide_sum_bulk(const __grid_constant__ tdi_sum_params p,
                  const __grid_constant__ tdi_sum_few sources)
{
    bulk::sum(p, sources.src);
}

extern "C" __global__ void __launch_bounds__(TDI_SUM_THREADS + 32, 1)
    tide_sum_bulk_many(const __grid_constant__ tdi_sum_params p,
                       const __grid_constant__ tdi_sum_many sources)
{
    bulk::sum(p, sources.src);
}

#endif
