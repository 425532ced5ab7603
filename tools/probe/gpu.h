/*
 * The device under the probe: tide's kernels, the probe's own, streams, memory,
 * times. Every function's error is a status with a message.
 */
#ifndef TIDE_TOOLS_PROBE_GPU_H
#define TIDE_TOOLS_PROBE_GPU_H

#include "backend/cuda/kernels.h"
#include "backend/cuda/load.h"

typedef struct gpu {
    const tdi_cuda_api *cuda;
    tdi_cuda_kernels *kernels;
    tdi_cuda_chain *chain; /* of sums; NULL: launches go one by one */
    cu_context context;
    cu_module module; /* the probe's own kernels */
    cu_function copy;
    cu_function spin;
    cu_device device;
    char name[128];
    uint32_t sms;
    cu_stream stream; /* where the GEMMs go */
    cu_stream beside; /* where tide goes: high priority, or low */
    cu_stream copies; /* the same, for copies */
} gpu;

#define TRY_CUDA(g, call)                                                      \
    TDI_TRY(tdi_cuda_check((g)->cuda, (g)->cuda->call, 0, #call))

/* Errors: TIDE_ERR_UNSUPPORTED where there is no device or driver. */
tide_status gpu_open(gpu *g, bool low_priority);
void gpu_close(gpu *g);

/* Device memory; `fill` random bf16 of tame size, else poison. */
tide_status gpu_take(const gpu *g, uint64_t bytes, bool fill, cu_pointer *out);
void gpu_give(const gpu *g, cu_pointer memory);

tide_status gpu_launch_copy(const gpu *g, cu_pointer to, cu_pointer from,
                            uint64_t bytes, uint32_t blocks, cu_stream stream);
tide_status gpu_launch_spin(const gpu *g, const volatile int *stop, uint64_t ns,
                            cu_stream stream);

/* The median of `runs` timings of work(context), after one untimed. *host_us,
 * if wanted, is the host's time of one call. */
typedef tide_status gpu_work(const gpu *g, void *context);
tide_status gpu_time(const gpu *g, gpu_work *work, void *context, uint32_t runs,
                     double *ms, double *host_us);

double gpu_median(double *values, uint32_t count);
double gpu_now_us(void);

#endif
