/*
 * The sum's code, for whichever vectors the including file asks for:
 *   KERNEL_SUM               the function to define
 *   KERNEL_BYTES             bytes of a vector: 16, 32 or 64
 *   KERNEL_TARGET            the function attribute that allows them
 *   KERNEL_STREAM(to, from)  copies a vector past the cache; `to` is aligned
 *
 * Equal bits everywhere: each element sees the same fp32 operations in the
 * same order, be it in a vector of 4 or of 16 lanes or in the rest at the
 * end. The scale comes after the last add, so there is no product for a
 * compiler to contract into a fused multiply-add.
 *
 * All sources are read in one pass, a few cache lines of each in turn, with
 * the sum in registers; so dst is written once and never read back. With 2 to
 * 8 sources in memory that moves as many bytes a second as memcpy (30 GB/s);
 * passes over fewer sources with the sum in the first cache, and prefetches,
 * were measured slower, 16 sources included.
 */
#include <string.h>

#include "backend/host/kernels_lanes.h"

#define LANES  (KERNEL_BYTES / 4)
#define BLOCK  (2 * LANES) /* elements of a block */
#define UNROLL 4           /* blocks at a time */
#define INLINE static inline __attribute__((always_inline)) KERNEL_TARGET

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the even place is the low half of a word");

typedef float vec __attribute__((vector_size(KERNEL_BYTES)));
typedef uint32_t vec_bits __attribute__((vector_size(KERNEL_BYTES)));

/*
 * BLOCK elements as fp32. From bf16 they come apart as even and odd places:
 * one mask and one shift on the words they lie in, where widening each half
 * of the block would need a shuffle per source. From fp32, as first and
 * second half.
 */
typedef struct block {
    vec a, b;
} block;

/* First and second half to even and odd places, and back. */
INLINE block unzip(block x)
{
    return (block){LANES_SHUFFLE(x.a, x.b, LANES_EVEN(0)),
                   LANES_SHUFFLE(x.a, x.b, LANES_EVEN(1))};
}

INLINE block zip(block x)
{
    return (block){LANES_SHUFFLE(x.a, x.b, LANES_ZIP(0)),
                   LANES_SHUFFLE(x.a, x.b, LANES_ZIP(LANES / 2))};
}

/* bf16 in the high half of each word. Rounds to nearest even; a NaN is cut
 * and made quiet instead, as the carry could turn it into an infinity. */
INLINE vec_bits round_high(vec x)
{
    vec_bits bits = (vec_bits)x;
    vec_bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
    vec_bits nan = (vec_bits)(x != x);

    return ((nan & (bits | 0x400000)) | (~nan & rounded)) & 0xffff0000;
}

/* n elements (at most BLOCK) from place i on; the others are zero. */
INLINE block load(const void *from, uint64_t i, uint64_t n, tide_dtype type)
{
    block x = {{0}, {0}};
    vec_bits words = {0};

    if (type == TIDE_F32) {
        memcpy(&x, (const float *)from + i, n * sizeof(float));
        return x;
    }
    memcpy(&words, (const uint16_t *)from + i, n * sizeof(uint16_t));
    return (block){(vec)(words << 16), (vec)(words & 0xffff0000)};
}

/* Past the cache if stream: then the block is whole and its place aligned. */
INLINE void store(void *dst, uint64_t i, uint64_t n, tide_dtype type, block x,
                  int stream)
{
    char *to = (char *)dst + i * (type == TIDE_F32 ? 4 : 2);
    vec_bits words = (round_high(x.a) >> 16) | round_high(x.b);
    vec *vectors = type == TIDE_F32 ? &x.a : (vec *)&words;

    if (!stream) {
        memcpy(to, vectors, n * (type == TIDE_F32 ? 4 : 2));
        return;
    }
    KERNEL_STREAM(to, vectors);
    if (type == TIDE_F32)
        KERNEL_STREAM(to + KERNEL_BYTES, vectors + 1);
}

/* What the sources are added to. With no dst to add, that is the first of
 * them, not zero, which would lose a -0. */
INLINE block first_summand(const tdi_host_sum_args *args, tide_dtype in,
                           uint64_t i, uint64_t n)
{
    if (args->add) {
        block x = load(args->dst, i, n, TIDE_F32);
        return in == TIDE_BF16 ? unzip(x) : x;
    }
    if (args->sources)
        return load(args->src[0], i, n, in);
    return (block){{0}, {0}};
}

INLINE block finish(block sum, tide_dtype in, tide_dtype out, float scale)
{
    if (scale != 1) {
        sum.a *= scale;
        sum.b *= scale;
    }
    if (in == TIDE_BF16 && out == TIDE_F32)
        return zip(sum);
    if (in == TIDE_F32 && out == TIDE_BF16)
        return unzip(sum);
    return sum;
}

/* Sums `blocks` blocks of n elements each from place i on. */
INLINE void sum_blocks(const tdi_host_sum_args *args, tide_dtype in,
                       tide_dtype out, uint64_t i, uint64_t n, int blocks,
                       int stream)
{
    block sum[UNROLL];

#pragma GCC unroll 4
    for (int b = 0; b < blocks; b++)
        sum[b] = first_summand(args, in, i + b * BLOCK, n);
    for (uint32_t s = !args->add; s < args->sources; s++) {
#pragma GCC unroll 4
        for (int b = 0; b < blocks; b++) {
            block x = load(args->src[s], i + b * BLOCK, n, in);
            sum[b].a += x.a;
            sum[b].b += x.b;
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < blocks; b++)
        store(args->dst, i + b * BLOCK, n, out,
              finish(sum[b], in, out, args->scale), stream);
}

INLINE void sum_all(const tdi_host_sum_args *args, tide_dtype in,
                    tide_dtype out, int stream)
{
    /* Up to where dst is aligned, so that no store straddles cache lines. */
    uint64_t bytes = -(uintptr_t)args->dst % KERNEL_BYTES;
    uint64_t i = bytes / (out == TIDE_F32 ? 4 : 2);

    i = i < args->count ? i : args->count;
    if (i)
        sum_blocks(args, in, out, 0, i, 1, 0);
    for (; i + UNROLL * BLOCK <= args->count; i += UNROLL * BLOCK)
        sum_blocks(args, in, out, i, BLOCK, UNROLL, stream);
    for (; i + BLOCK <= args->count; i += BLOCK)
        sum_blocks(args, in, out, i, BLOCK, 1, stream);
    if (i < args->count)
        sum_blocks(args, in, out, i, args->count - i, 1, 0);
}

/* The types are constants below, so that each pair is a loop of its own. */
KERNEL_TARGET void KERNEL_SUM(const tdi_host_sum_args *args, int stream)
{
    if (args->in == TIDE_BF16 && args->out == TIDE_F32)
        sum_all(args, TIDE_BF16, TIDE_F32, stream);
    else if (args->in == TIDE_BF16)
        sum_all(args, TIDE_BF16, TIDE_BF16, stream);
    else if (args->out == TIDE_F32)
        sum_all(args, TIDE_F32, TIDE_F32, stream);
    else
        sum_all(args, TIDE_F32, TIDE_BF16, stream);
}
