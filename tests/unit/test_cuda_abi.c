/* The declarations of backend/cuda/api.h against the vendor's own headers;
 * skipped where those are not installed (TIDE_CUDA_INCLUDE and
 * TIDE_NCCL_INCLUDE name their folders at configure time). */
#include "backend/cuda/api.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define SAME(ours, theirs)                                                     \
    _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
#define SIZE(ours, theirs)                                                     \
    _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define PLACE(ours, field, theirs, member)                                     \
    SAME(offsetof(ours, field), offsetof(theirs, member))

SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ATTRIBUTE_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_ATTRIBUTE_MEM_OPS_64,
     CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(CU_STREAM_NON_BLOCKING_FLAG, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_FUNCTION_MAX_DYNAMIC_SHARED,
     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CU_OP_WAIT_64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME(CU_OP_WRITE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64);
SAME(CU_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_HOST_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SIZE(cu_uuid, CUuuid);
SIZE(cu_kernel_node, CUDA_KERNEL_NODE_PARAMS);
PLACE(cu_kernel_node, function, CUDA_KERNEL_NODE_PARAMS, func);
PLACE(cu_kernel_node, grid, CUDA_KERNEL_NODE_PARAMS, gridDimX);
PLACE(cu_kernel_node, block, CUDA_KERNEL_NODE_PARAMS, blockDimX);
PLACE(cu_kernel_node, shared_bytes, CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
PLACE(cu_kernel_node, params, CUDA_KERNEL_NODE_PARAMS, kernelParams);
PLACE(cu_kernel_node, extra, CUDA_KERNEL_NODE_PARAMS, extra);
PLACE(cu_kernel_node, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
PLACE(cu_kernel_node, context, CUDA_KERNEL_NODE_PARAMS, ctx);
SAME(CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CU_MEMORY_UNIFIED, CU_MEMORYTYPE_UNIFIED);
SIZE(cu_mem_op, CUstreamBatchMemOpParams);
PLACE(cu_mem_op, address, CUstreamBatchMemOpParams, waitValue.address);
PLACE(cu_mem_op, value, CUstreamBatchMemOpParams, waitValue.value64);
PLACE(cu_mem_op, flags, CUstreamBatchMemOpParams, writeValue.flags);
SIZE(cu_copy_2d, CUDA_MEMCPY2D);
PLACE(cu_copy_2d, src, CUDA_MEMCPY2D, srcDevice);
PLACE(cu_copy_2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
PLACE(cu_copy_2d, dst, CUDA_MEMCPY2D, dstDevice);
PLACE(cu_copy_2d, dst_pitch, CUDA_MEMCPY2D, dstPitch);
PLACE(cu_copy_2d, width, CUDA_MEMCPY2D, WidthInBytes);
#if CUDA_VERSION >= 13000
SAME(CU_OPERAND_POINTER, CU_MEMCPY_OPERAND_TYPE_POINTER);
SAME(CU_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME(CU_PREFER_COPY_ENGINE, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
SIZE(cu_copy_attributes, CUmemcpyAttributes);
PLACE(cu_copy_attributes, dst_location_id, CUmemcpyAttributes, dstLocHint.id);
PLACE(cu_copy_attributes, flags, CUmemcpyAttributes, flags);
SIZE(cu_batch_copy, CUDA_MEMCPY3D_BATCH_OP);
PLACE(cu_batch_copy, src.row_length, CUDA_MEMCPY3D_BATCH_OP,
      src.op.ptr.rowLength);
PLACE(cu_batch_copy, src.location_id, CUDA_MEMCPY3D_BATCH_OP,
      src.op.ptr.locHint.id);
PLACE(cu_batch_copy, dst, CUDA_MEMCPY3D_BATCH_OP, dst);
PLACE(cu_batch_copy, width, CUDA_MEMCPY3D_BATCH_OP, extent.width);
PLACE(cu_batch_copy, src_order, CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder);
#endif
#define HAVE_CUDA 1
#else
#define HAVE_CUDA 0
#endif

#if HAVE_CUDA && __has_include(<nccl.h>)
#include <nccl.h>
#include <stddef.h>
SAME(NCCL_INT8, ncclInt8);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME(NCCL_POLICY_ZERO, NCCL_CTA_POLICY_ZERO);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SIZE(nccl_id, ncclUniqueId);
SIZE(nccl_wait, ncclWaitSignalDesc_t);
PLACE(nccl_config, comm_name, ncclConfig_t, commName);
PLACE(nccl_config, cta_policy, ncclConfig_t, CTAPolicy);
PLACE(nccl_config, graph_stream_ordering, ncclConfig_t, graphStreamOrdering);
#define HAVE_NCCL 1
#else
#define HAVE_NCCL 0
#endif

#include <stdio.h>

int main(void)
{
    printf("compared with cuda.h: %s, nccl.h: %s\n", HAVE_CUDA ? "yes" : "no",
           HAVE_NCCL ? "yes" : "no");
    return HAVE_CUDA ? 0 : 77;
}
