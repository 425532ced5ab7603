/*
 * The part of the CUDA driver API and of NCCL that tide calls: types and
 * values as the vendor documents them (CUDA 12.8 and newer, NCCL 2.30 and
 * newer), so that a build needs neither installed. Both libraries are opened
 * when a communicator needs them. tests/unit/test_cuda_abi.c compares all of it
 * with the vendor's headers where those are found.
 */
#ifndef TIDE_BACKEND_CUDA_API_H
#define TIDE_BACKEND_CUDA_API_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- CUDA driver -------------------------------------------------------- */

typedef int cu_result; /* CUresult */
typedef int cu_device;
typedef unsigned long long cu_pointer; /* CUdeviceptr */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphNode_st *cu_node;
typedef struct CUgraphExec_st *cu_graph_exec;

typedef struct cu_uuid { /* CUuuid */
    char bytes[16];
} cu_uuid;

enum {
    CU_OK = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NOT_READY = 600,
};

/* CUdevice_attribute */
enum {
    CU_ATTRIBUTE_SM_COUNT = 16,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_ATTRIBUTE_MEM_OPS_64 = 122,
};

enum {
    CU_STREAM_NON_BLOCKING_FLAG = 1,
    CU_EVENT_NO_TIMING = 2,
    CU_FUNCTION_MAX_DYNAMIC_SHARED = 8, /* CUfunction_attribute */
};

/* CUstreamBatchMemOpType, CUstreamWaitValue_flags */
enum {
    CU_OP_WAIT_64 = 4,
    CU_OP_WRITE_64 = 5,
    CU_WAIT_GEQ = 0,
};

/* CUstreamBatchMemOpParams: waitValue and writeValue have one layout. */
typedef union cu_mem_op {
    struct {
        unsigned int operation;
        cu_pointer address;
        uint64_t value;
        unsigned int flags;
        cu_pointer alias; /* the driver's */
    };
    uint64_t pad[6];
} cu_mem_op;

enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_UNIFIED = 4 };

/* CUDA_MEMCPY2D */
typedef struct cu_copy_2d {
    size_t src_x;
    size_t src_y;
    unsigned int src_type;
    const void *src_host;
    cu_pointer src;
    void *src_array;
    size_t src_pitch;
    size_t dst_x;
    size_t dst_y;
    unsigned int dst_type;
    void *dst_host;
    cu_pointer dst;
    void *dst_array;
    size_t dst_pitch;
    size_t width;
    size_t height;
} cu_copy_2d;

enum {
    CU_OPERAND_POINTER = 1,    /* CUmemcpy3DOperandType */
    CU_ORDER_STREAM = 1,       /* CUmemcpySrcAccessOrder */
    CU_PREFER_COPY_ENGINE = 1, /* CUmemcpyFlags: overlap with compute */
};

/* CUmemcpy3DOperand of a pointer */
typedef struct cu_operand {
    unsigned int type;
    union {
        struct {
            cu_pointer pointer;
            size_t row_length;   /* the pitch, in bytes */
            size_t layer_height; /* in rows */
            unsigned int location_type;
            int location_id;
        };
        struct {
            void *array;
            size_t x, y, z;
        } unused;
    };
} cu_operand;

/* CUDA_MEMCPY3D_BATCH_OP */
typedef struct cu_batch_copy {
    cu_operand src;
    cu_operand dst;
    size_t width;
    size_t height;
    size_t depth;
    unsigned int src_order;
    unsigned int flags;
} cu_batch_copy;

/* CUmemcpyAttributes */
typedef struct cu_copy_attributes {
    unsigned int src_order;
    unsigned int src_location_type;
    int src_location_id;
    unsigned int dst_location_type;
    int dst_location_id;
    unsigned int flags;
} cu_copy_attributes;

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct cu_kernel_node {
    cu_function function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    void **params;
    void **extra;
    void *kernel;       /* CUkernel, instead of a function; NULL */
    cu_context context; /* of such a kernel */
} cu_kernel_node;

/* Flags of cuMemHostRegister: for every context, and for devices to touch. */
enum { CU_HOST_PORTABLE = 1, CU_HOST_DEVICE_MAP = 2 };

/* field, symbol, arguments. The suffixes are the versions whose arguments
 * these are. */
#define TDI_CUDA_FUNCTIONS(X)                                                  \
    X(init, cuInit, (unsigned int flags))                                      \
    X(driver_version, cuDriverGetVersion, (int *version))                      \
    X(error_name, cuGetErrorName, (cu_result error, const char **name))        \
    X(device_count, cuDeviceGetCount, (int *count))                            \
    X(device_get, cuDeviceGet, (cu_device * device, int ordinal))              \
    X(device_name, cuDeviceGetName, (char *name, int size, cu_device device))  \
    X(device_uuid, cuDeviceGetUuid_v2, (cu_uuid * uuid, cu_device device))     \
    X(device_attribute, cuDeviceGetAttribute,                                  \
      (int *value, int attribute, cu_device device))                           \
    X(primary_retain, cuDevicePrimaryCtxRetain,                                \
      (cu_context * context, cu_device device))                                \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))       \
    X(context_get, cuCtxGetCurrent, (cu_context * context))                    \
    X(context_set, cuCtxSetCurrent, (cu_context context))                      \
    X(context_device, cuCtxGetDevice, (cu_device * device))                    \
    X(priority_range, cuCtxGetStreamPriorityRange,                             \
      (int *least, int *greatest))                                             \
    X(stream_create, cuStreamCreateWithPriority,                               \
      (cu_stream * stream, unsigned int flags, int priority))                  \
    X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                  \
    X(stream_query, cuStreamQuery, (cu_stream stream))                         \
    X(stream_sync, cuStreamSynchronize, (cu_stream stream))                    \
    X(stream_wait_event, cuStreamWaitEvent,                                    \
      (cu_stream stream, cu_event event, unsigned int flags))                  \
    X(mem_ops, cuStreamBatchMemOp_v2,                                          \
      (cu_stream stream, unsigned int count, cu_mem_op *ops,                   \
       unsigned int flags))                                                    \
    X(event_create, cuEventCreate, (cu_event * event, unsigned int flags))     \
    X(event_destroy, cuEventDestroy_v2, (cu_event event))                      \
    X(event_record, cuEventRecord, (cu_event event, cu_stream stream))         \
    X(event_query, cuEventQuery, (cu_event event))                             \
    X(event_sync, cuEventSynchronize, (cu_event event))                        \
    X(event_elapsed, cuEventElapsedTime,                                       \
      (float *ms, cu_event start, cu_event end))                               \
    X(mem_alloc, cuMemAlloc_v2, (cu_pointer * memory, size_t bytes))           \
    X(mem_free, cuMemFree_v2, (cu_pointer memory))                             \
    X(host_alloc, cuMemAllocHost_v2, (void **memory, size_t bytes))            \
    X(host_free, cuMemFreeHost, (void *memory))                                \
    X(host_register, cuMemHostRegister_v2,                                     \
      (void *memory, size_t bytes, unsigned int flags))                        \
    X(host_unregister, cuMemHostUnregister, (void *memory))                    \
    X(copy_async, cuMemcpyAsync,                                               \
      (cu_pointer dst, cu_pointer src, size_t bytes, cu_stream stream))        \
    X(copy_2d_async, cuMemcpy2DAsync_v2,                                       \
      (const cu_copy_2d *copy, cu_stream stream))                              \
    X(fill_8_async, cuMemsetD8Async,                                           \
      (cu_pointer memory, unsigned char value, size_t count,                   \
       cu_stream stream))                                                      \
    X(fill_32_async, cuMemsetD32Async,                                         \
      (cu_pointer memory, unsigned int value, size_t count, cu_stream stream)) \
    X(module_load, cuModuleLoadData, (cu_module * module, const void *image))  \
    X(module_unload, cuModuleUnload, (cu_module module))                       \
    X(module_function, cuModuleGetFunction,                                    \
      (cu_function * function, cu_module module, const char *name))            \
    X(function_set, cuFuncSetAttribute,                                        \
      (cu_function function, int attribute, int value))                        \
    X(launch, cuLaunchKernel,                                                  \
      (cu_function function, unsigned int grid_x, unsigned int grid_y,         \
       unsigned int grid_z, unsigned int block_x, unsigned int block_y,        \
       unsigned int block_z, unsigned int shared_bytes, cu_stream stream,      \
       void **params, void **extra))                                           \
    X(graph_create, cuGraphCreate, (cu_graph * graph, unsigned int flags))     \
    X(graph_destroy, cuGraphDestroy, (cu_graph graph))                         \
    X(graph_add_kernel, cuGraphAddKernelNode_v2,                               \
      (cu_node * node, cu_graph graph, const cu_node *after, size_t count,     \
       const cu_kernel_node *params))                                          \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                          \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))        \
    X(graph_set_kernel, cuGraphExecKernelNodeSetParams_v2,                     \
      (cu_graph_exec exec, cu_node node, const cu_kernel_node *params))        \
    X(graph_launch, cuGraphLaunch, (cu_graph_exec exec, cu_stream stream))     \
    X(graph_exec_destroy, cuGraphExecDestroy, (cu_graph_exec exec))

/* Used where the driver has it (13.0 and newer), else copy_2d_async. */
#define TDI_CUDA_OPTIONAL_FUNCTIONS(X)                                         \
    X(copy_batch, cuMemcpy3DBatchAsync_v2,                                     \
      (size_t count, cu_batch_copy *copies, unsigned long long flags,          \
       cu_stream stream))                                                      \
    X(copy_batch_1d, cuMemcpyBatchAsync_v2,                                    \
      (cu_pointer * dsts, cu_pointer * srcs, size_t *sizes, size_t count,      \
       cu_copy_attributes *attributes, size_t *first, size_t kinds,            \
       cu_stream stream))

/* --- NCCL --------------------------------------------------------------- */

typedef int nccl_result; /* ncclResult_t */
typedef struct ncclComm *nccl_comm;
typedef struct ncclWindow_vidmem *nccl_window;

typedef struct nccl_id { /* ncclUniqueId */
    char bytes[128];
} nccl_id;

enum {
    NCCL_OK = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_INT8 = 0,      /* ncclDataType_t */
    NCCL_FLOAT32 = 7,   /* ncclDataType_t */
    NCCL_BFLOAT16 = 9,  /* ncclDataType_t */
    NCCL_SUM = 0,       /* ncclRedOp_t */
    NCCL_SYMMETRIC = 1, /* NCCL_WIN_COLL_SYMMETRIC */
    NCCL_API_MAGIC_WORD = (int)0xcafebeef,
    NCCL_POLICY_DEFAULT = 0, /* CTAPolicy */
    NCCL_POLICY_ZERO = 2,
    NCCL_UNSET = INT_MIN,
    NCCL_VERSION_NEEDED = 23000, /* major * 10000 + minor * 100 + patch */
};

/* ncclConfig_t of 2.30; the library takes a shorter one than its own, by the
 * size and version that are in it. */
typedef struct nccl_config {
    size_t size;
    unsigned int magic;
    unsigned int version; /* NCCL_VERSION_NEEDED */
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
    const char *comm_name;
    int collnet_enable;
    int cta_policy;
    int shrink_share;
    int nvls_ctas;
    int channels_per_net_peer;
    int nvlink_centric;
    int graph_usage_mode;
    int rma_contexts;
    int max_p2p_peers;
    int graph_stream_ordering;
} nccl_config;

#define NCCL_CONFIG_UNSET                                                      \
    {sizeof(nccl_config), 0xcafebeef, NCCL_VERSION_NEEDED,                     \
     NCCL_UNSET,          NCCL_UNSET, NCCL_UNSET,                              \
     NCCL_UNSET,          NULL,       NCCL_UNSET,                              \
     NCCL_UNSET,          NULL,       NCCL_UNSET,                              \
     NCCL_UNSET,          NCCL_UNSET, NCCL_UNSET,                              \
     NCCL_UNSET,          NCCL_UNSET, NCCL_UNSET,                              \
     NCCL_UNSET,          NCCL_UNSET, NCCL_UNSET}

/* ncclCommProperties_t of 2.30, with room for what later versions add; its
 * version is that of the loaded library. */
typedef struct nccl_properties {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int ranks;
    int cuda_device;
    int nvml_device;
    bool device_api;
    bool multimem;
    int gin_type;
    int lsa_teams;
    bool host_rma;
    int railed_gin_type;
    char later[192];
} nccl_properties;

typedef struct nccl_team { /* ncclTeam_t */
    int ranks;
    int rank;
    int stride;
} nccl_team;

typedef struct nccl_wait { /* ncclWaitSignalDesc_t */
    int count;
    int peer;
    int signal;
    int context;
} nccl_wait;

/* field, symbol, result, arguments */
#define TDI_NCCL_FUNCTIONS(X)                                                  \
    X(version, ncclGetVersion, nccl_result, (int *version))                    \
    X(error_text, ncclGetErrorString, const char *, (nccl_result result))      \
    X(last_error, ncclGetLastError, const char *, (nccl_comm comm))            \
    X(unique_id, ncclGetUniqueId, nccl_result, (nccl_id * id))                 \
    X(init_rank, ncclCommInitRankConfig, nccl_result,                          \
      (nccl_comm * comm, int ranks, nccl_id id, int rank,                      \
       nccl_config *config))                                                   \
    X(destroy, ncclCommDestroy, nccl_result, (nccl_comm comm))                 \
    X(abort, ncclCommAbort, nccl_result, (nccl_comm comm))                     \
    X(async_error, ncclCommGetAsyncError, nccl_result,                         \
      (nccl_comm comm, nccl_result * result))                                  \
    X(properties, ncclCommQueryProperties, nccl_result,                        \
      (nccl_comm comm, nccl_properties * properties))                          \
    X(memory_alloc, ncclMemAlloc, nccl_result, (void **memory, size_t bytes))  \
    X(memory_free, ncclMemFree, nccl_result, (void *memory))                   \
    X(window_register, ncclCommWindowRegister, nccl_result,                    \
      (nccl_comm comm, void *memory, size_t bytes, nccl_window *window,        \
       int flags))                                                             \
    X(window_deregister, ncclCommWindowDeregister, nccl_result,                \
      (nccl_comm comm, nccl_window window))                                    \
    X(team_lsa, ncclTeamLsa, nccl_team, (nccl_comm comm))                      \
    X(lsa_pointer, ncclGetLsaDevicePointer, nccl_result,                       \
      (nccl_window window, size_t offset, int lsa_rank, void **pointer))       \
    X(multimem_pointer, ncclGetLsaMultimemDevicePointer, nccl_result,          \
      (nccl_window window, size_t offset, void **pointer))                     \
    X(put_signal, ncclPutSignal, nccl_result,                                  \
      (const void *from, size_t count, int type, int peer, nccl_window window, \
       size_t offset, int signal, int context, unsigned int flags,             \
       nccl_comm comm, cu_stream stream))                                      \
    X(signal, ncclSignal, nccl_result,                                         \
      (int peer, int signal, int context, unsigned int flags, nccl_comm comm,  \
       cu_stream stream))                                                      \
    X(wait_signal, ncclWaitSignal, nccl_result,                                \
      (int count, nccl_wait *waits, nccl_comm comm, cu_stream stream))         \
    X(group_start, ncclGroupStart, nccl_result, (void))                        \
    X(group_end, ncclGroupEnd, nccl_result, (void))                            \
    X(all_gather, ncclAllGather, nccl_result,                                  \
      (const void *from, void *to, size_t count, int type, nccl_comm comm,     \
       cu_stream stream))                                                      \
    X(reduce_scatter, ncclReduceScatter, nccl_result,                          \
      (const void *from, void *to, size_t count, int type, int op,             \
       nccl_comm comm, cu_stream stream))

/* --- Both, opened ------------------------------------------------------- */

typedef struct tdi_cuda_api {
#define X(field, symbol, args) cu_result(*field) args;
    TDI_CUDA_FUNCTIONS(X)
    TDI_CUDA_OPTIONAL_FUNCTIONS(X) /* NULL where missing */
#undef X
} tdi_cuda_api;

typedef struct tdi_nccl_api {
#define X(field, symbol, result, args) result(*field) args;
    TDI_NCCL_FUNCTIONS(X)
#undef X
} tdi_nccl_api;

#endif
