/*
 * The host backend's arithmetic: strided copies, and sums in fp32 in a fixed
 * order. Chosen at run time: AVX-512, AVX2 or scalar, with equal bits.
 */
#ifndef TIDE_BACKEND_HOST_KERNELS_H
#define TIDE_BACKEND_HOST_KERNELS_H

#include <stdint.h>
#include <tide/types.h>

/*
 * Copies height rows of width bytes. Ranges may not overlap; nothing is
 * touched if either number is 0. `stream` says that this core will not read
 * the destination soon: from some MiB in all, it is then written past the
 * cache (non-temporal stores). When the call returns, every store is ordered
 * before a later release, so that a flag may follow.
 */
void tdi_host_copy(void *dst, uint64_t dst_pitch, const void *src,
                   uint64_t src_pitch, uint64_t width, uint64_t height,
                   int stream);

typedef struct tdi_host_sum_args {
    void *dst;              /* `count` elements of type `out` */
    const void *const *src; /* `sources` pointers to `count` elements of `in` */
    uint32_t sources;       /* 0: writes zeros (scale and add as usual) */
    tide_dtype in;          /* TIDE_BF16 or TIDE_F32 */
    tide_dtype out;         /* TIDE_F32 or TIDE_BF16 (nearest even) */
    uint64_t count;
    uint64_t whole; /* elements of the sum that this is a part of; 0: count */
    int add;        /* dst (fp32 only) is the first summand */
    float scale;    /* multiplies the finished sum; 1 changes no bit */
} tdi_host_sum_args;

/*
 * dst[i] = scale * (((src[0][i] + src[1][i]) + src[2][i]) + ...), in fp32,
 * every element in this order whatever its place or the vector width, so that
 * results are bitwise repeatable. dst may equal a source exactly (same
 * pointer, same type), not overlap one otherwise. No alignment is needed
 * beyond the element's. NaN and infinities go through as IEEE says; which of
 * several NaNs survives is open. A dst that is not added to and whose whole
 * is large is written past the cache, in order before a later release.
 */
void tdi_host_sum(const tdi_host_sum_args *args);

/* "avx512", "avx2" or "scalar": what tdi_host_sum uses here (TIDE_SIMD caps
 * it). */
const char *tdi_host_simd(void);

#endif
