/* The sum and the copy in AVX-512: vectors of 16. */
#include "backend/host/kernels_isa.h"

#if TDI_HOST_X86
#include <immintrin.h>

#define KERNEL_SUM    tdi_host_sum_avx512
#define KERNEL_COPY   tdi_host_copy_avx512
#define KERNEL_BYTES  64
#define KERNEL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
#define KERNEL_STREAM(to, from)                                                \
    _mm512_stream_si512((void *)(to), _mm512_loadu_si512((const void *)(from)))
#include "backend/host/kernels_copy_body.h"
#include "backend/host/kernels_sum_body.h"
#endif
