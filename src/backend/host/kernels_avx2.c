/* The sum and the copy in AVX2: vectors of 8. */
#include "backend/host/kernels_isa.h"

#if TDI_HOST_X86
#include <immintrin.h>

#define KERNEL_SUM    tdi_host_sum_avx2
#define KERNEL_COPY   tdi_host_copy_avx2
#define KERNEL_BYTES  32
#define KERNEL_TARGET __attribute__((target("avx2")))
#define KERNEL_STREAM(to, from)                                                \
    _mm256_stream_si256((void *)(to), _mm256_loadu_si256((const void *)(from)))
#include "backend/host/kernels_copy_body.h"
#include "backend/host/kernels_sum_body.h"
#endif
