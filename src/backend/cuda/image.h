/* The kernels as the library carries them and as a context has them. */
#ifndef TIDE_BACKEND_CUDA_IMAGE_H
#define TIDE_BACKEND_CUDA_IMAGE_H

#include "backend/cuda/kernels.h"
#include "backend/cuda/kernels/params.h"

typedef enum tdi_kernel_id {
#define X(name, params) TDI_KERNEL_##name,
    TDI_KERNEL_LIST(X)
#undef X
        TDI_KERNEL_COUNT
} tdi_kernel_id;

struct tdi_cuda_kernels {
    const tdi_cuda_api *cuda;
    cu_module module;
    cu_function function[TDI_KERNEL_COUNT];
    uint32_t sms;       /* of the device */
    uint32_t ring;      /* bytes of shared memory of a bulk sum */
    cu_pointer counter; /* 0: none */
};

/* One launch; `params` are the kernel's, in order. */
tide_status tdi_cuda_launch(const tdi_cuda_kernels *kernels, tdi_kernel_id id,
                            uint32_t blocks, void **params, cu_stream stream);
/* The same as a node of a graph. */
cu_kernel_node tdi_cuda_node(const tdi_cuda_kernels *kernels, tdi_kernel_id id,
                             uint32_t blocks, void **params);

/* A part of a sum. */
typedef struct tdi_sum_launch {
    tdi_sum_params params;
    uint32_t blocks;
} tdi_sum_launch;

/* 2 to TDI_CUDA_CHAIN launches of a kernel that takes few sources, one after
 * the other. */
tide_status tdi_cuda_chain_queue(tdi_cuda_chain *chain, tdi_kernel_id id,
                                 tdi_sum_launch *launches, uint32_t count,
                                 tdi_sum_few *sources, cu_stream stream);

/* tdi_cuda_check for kernels, which know no rank. */
tide_status tdi_cuda_kernels_check(const tdi_cuda_api *cuda, cu_result result,
                                   const char *what);

#endif
