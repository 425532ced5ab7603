/* What the kernels share: bf16, vectors of four elements, a block's time. */
#ifndef TIDE_BACKEND_CUDA_KERNELS_DEVICE_CUH
#define TIDE_BACKEND_CUDA_KERNELS_DEVICE_CUH

#include "params.h"

typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

/* --- Global memory ------------------------------------------------------ */

/* Spelled out: addresses come as integers, which the compiler takes for
 * generic ones. All are volatile, so they stay in the order that the code has
 * them in: loads together, then what is made of them. */

template <typename T> DEVICE T get(u64 from);

template <> DEVICE unsigned char get(u64 from)
{
    unsigned short x; /* asm has no 8-bit registers */
    asm volatile("ld.global.u8 %0, [%1];" : "=h"(x) : "l"(from));
    return (unsigned char)x;
}

template <> DEVICE unsigned short get(u64 from)
{
    unsigned short x;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(from));
    return x;
}

template <> DEVICE u32 get(u64 from)
{
    u32 x;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

template <> DEVICE float get(u64 from)
{
    return __uint_as_float(get<u32>(from));
}

template <> DEVICE uint2 get(u64 from)
{
    uint2 x;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "l"(from));
    return x;
}

template <> DEVICE uint4 get(u64 from)
{
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

DEVICE void put(u64 to, unsigned char x)
{
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "h"((unsigned short)x));
}

DEVICE void put(u64 to, unsigned short x)
{
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(x));
}

DEVICE void put(u64 to, u32 x)
{
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(x));
}

DEVICE void put(u64 to, float x)
{
    put(to, __float_as_uint(x));
}

DEVICE void put(u64 to, uint2 x)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x),
                 "r"(x.y));
}

DEVICE void put(u64 to, uint4 x)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w));
}

DEVICE void put(u64 to, float4 x)
{
    put(to, make_uint4(__float_as_uint(x.x), __float_as_uint(x.y),
                       __float_as_uint(x.z), __float_as_uint(x.w)));
}

/* --- A block's time ----------------------------------------------------- */

DEVICE u64 read_timer()
{
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* Every thread of the block calls it last. */
DEVICE void count_time(u64 counter, u64 start)
{
    if (!counter)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.global.add.u64 [%0], %1;" ::"l"(counter),
                     "l"(read_timer() - start));
}

/* --- Elements ----------------------------------------------------------- */

/* Two bf16 of one word: the first is the low half. */
DEVICE float low_half(u32 pair)
{
    return __uint_as_float(pair << 16);
}

DEVICE float high_half(u32 pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

DEVICE u32 narrow(float low, float high)
{
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* -0 is the one first summand that changes no bit of what is added to it. */
DEVICE float4 no_sum()
{
    return make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
}

DEVICE void add(float4 &sum, float4 x)
{
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
}

DEVICE float4 widen(uint2 four)
{
    return make_float4(low_half(four.x), high_half(four.x), low_half(four.y),
                       high_half(four.y));
}

/* Four bf16 or fp32, as they lie in memory. */
template <bool BF16> struct four_of;
template <> struct four_of<true> {
    typedef uint2 type;
};
template <> struct four_of<false> {
    typedef float4 type;
};

DEVICE float4 widen(float4 four)
{
    return four;
}

DEVICE float4 as_floats(uint4 x)
{
    return make_float4(__uint_as_float(x.x), __uint_as_float(x.y),
                       __uint_as_float(x.z), __uint_as_float(x.w));
}

/* Four elements by loads of WIDTH bytes, as they lie in memory. */
template <bool BF16, u32 WIDTH>
DEVICE typename four_of<BF16>::type load_four(u64 from)
{
    if constexpr (BF16 && WIDTH == 8) {
        return get<uint2>(from);
    } else if constexpr (BF16 && WIDTH == 4) {
        return make_uint2(get<u32>(from), get<u32>(from + 4));
    } else if constexpr (BF16) {
        u32 a = get<unsigned short>(from), b = get<unsigned short>(from + 2);
        u32 c = get<unsigned short>(from + 4);
        u32 d = get<unsigned short>(from + 6);
        return make_uint2(a | b << 16, c | d << 16);
    } else if constexpr (WIDTH == 16) {
        return as_floats(get<uint4>(from));
    } else if constexpr (WIDTH == 8) {
        uint2 a = get<uint2>(from), b = get<uint2>(from + 8);
        return as_floats(make_uint4(a.x, a.y, b.x, b.y));
    } else {
        return make_float4(get<float>(from), get<float>(from + 4),
                           get<float>(from + 8), get<float>(from + 12));
    }
}

/* --- One element, for edges --------------------------------------------- */

DEVICE float load_one(u64 from, u64 i, bool bf16)
{
    return bf16 ? low_half(get<unsigned short>(from + 2 * i))
                : get<float>(from + 4 * i);
}

DEVICE void store_one(u64 to, u64 i, bool bf16, float x)
{
    if (bf16)
        put(to + 2 * i, (unsigned short)narrow(x, 0));
    else
        put(to + 4 * i, x);
}

DEVICE void sum_one(const tdi_sum_params &p, const uint64_t *src, u64 i)
{
    const bool bf16 = p.flags & TDI_SUM_SRC_BF16;
    float sum = p.flags & TDI_SUM_ADD ? get<float>(p.dst + 4 * i) : -0.0f;
#pragma unroll 4
    for (u32 s = 0; s < p.sources; s++)
        sum += load_one(src[s], i, bf16);
    store_one(p.dst, i, p.flags & TDI_SUM_DST_BF16, sum * p.scale);
}

/* --- Destinations, four elements at a time ------------------------------ */

/* May elements i, i + 4, ... of dst be stored as vectors? */
DEVICE bool whole_vectors(const tdi_sum_params &p, u64 i)
{
    u32 size = p.flags & TDI_SUM_DST_BF16 ? 2 : 4;
    return (p.dst + i * size) % (4 * size) == 0;
}

DEVICE float4 first_summand(const tdi_sum_params &p, u64 i, bool vectors)
{
    if (!(p.flags & TDI_SUM_ADD))
        return no_sum();
    u64 from = p.dst + 4 * i;
    return vectors ? load_four<false, 16>(from) : load_four<false, 4>(from);
}

DEVICE void store_narrow(u64 to, bool vectors, uint2 four)
{
    if (vectors) {
        put(to, four);
        return;
    }
    put(to, (unsigned short)four.x);
    put(to + 2, (unsigned short)(four.x >> 16));
    put(to + 4, (unsigned short)four.y);
    put(to + 6, (unsigned short)(four.y >> 16));
}

DEVICE void store_four(const tdi_sum_params &p, u64 i, bool vectors, float4 sum)
{
    const float4 x = make_float4(sum.x * p.scale, sum.y * p.scale,
                                 sum.z * p.scale, sum.w * p.scale);
    if (p.flags & TDI_SUM_DST_BF16) {
        store_narrow(p.dst + 2 * i, vectors,
                     make_uint2(narrow(x.x, x.y), narrow(x.z, x.w)));
        return;
    }
    const u64 to = p.dst + 4 * i;
    if (vectors) {
        put(to, x);
        return;
    }
    put(to, x.x);
    put(to + 4, x.y);
    put(to + 8, x.z);
    put(to + 12, x.w);
}

#endif
