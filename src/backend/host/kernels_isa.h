/*
 * The kernels once per instruction set: kernels_<set>.c each compile
 * kernels_sum_body.h and kernels_copy_body.h for one, kernels.c picks one at
 * run time. Vectors are the compiler's own (vector_size), so that one body
 * serves all.
 */
#ifndef TIDE_BACKEND_HOST_KERNELS_ISA_H
#define TIDE_BACKEND_HOST_KERNELS_ISA_H

#include <stdint.h>

#include "backend/host/kernels.h"

#if defined(__x86_64__)
#define TDI_HOST_X86 1
#else
#define TDI_HOST_X86 0
#endif

/* name, as in tdi_host_sum_<name>; the best last */
#if TDI_HOST_X86
#define TDI_HOST_ISA_LIST(X) X(scalar) X(avx2) X(avx512)
#else
#define TDI_HOST_ISA_LIST(X) X(scalar)
#endif

#define X(isa)                                                                 \
    void tdi_host_sum_##isa(const tdi_host_sum_args *args, int stream);        \
    void tdi_host_copy_##isa(void *dst, const void *src, uint64_t bytes);
TDI_HOST_ISA_LIST(X)
#undef X

typedef struct tdi_host_kernels {
    const char *name;
    /* Past the cache if stream; such stores are unordered until a fence. */
    void (*sum)(const tdi_host_sum_args *args, int stream);
    /* Copies a row past the cache. */
    void (*copy)(void *dst, const void *src, uint64_t bytes);
} tdi_host_kernels;

/* The set for a level of TIDE_SIMD: 0 scalar, 1 AVX2, 2 AVX-512; where this
 * machine lacks it, the next lower one. */
const tdi_host_kernels *tdi_host_kernels_at(int64_t level);

#endif
