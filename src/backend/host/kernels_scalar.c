/* The sum and the copy without any instruction that the build's target may
 * lack: on any processor, and the reference that the other sets must equal. */
#include "backend/host/kernels_isa.h"

#if TDI_HOST_X86
#include <emmintrin.h>
#define KERNEL_STREAM(to, from)                                                \
    _mm_stream_si128((void *)(to), _mm_loadu_si128((const void *)(from)))
#else
#define KERNEL_STREAM(to, from) memcpy((to), (from), KERNEL_BYTES)
#endif
#define KERNEL_SUM   tdi_host_sum_scalar
#define KERNEL_COPY  tdi_host_copy_scalar
#define KERNEL_BYTES 16
#define KERNEL_TARGET
#include "backend/host/kernels_copy_body.h"
#include "backend/host/kernels_sum_body.h"
