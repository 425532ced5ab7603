/* Kernels: the embedded image, loaded into a context. */
#include "backend/cuda/kernels.h"

#include "backend/cuda/image.h"
#include "backend/cuda/load.h"
#include "base/fail.h"

#include <stdlib.h>

/* Defined by cmake/kernels.cmake where it found a CUDA compiler. */
#ifdef TIDE_KERNELS_IMAGE
__asm__(".pushsection .rodata\n"
        ".hidden tdi_cuda_image\n"
        ".global tdi_cuda_image\n"
        ".balign 16\n"
        "tdi_cuda_image:\n"
        ".incbin \"" TIDE_KERNELS_IMAGE "\"\n"
        ".popsection\n");
extern const unsigned char tdi_cuda_image[]
    __attribute__((visibility("hidden")));
enum { TDI_HAS_IMAGE = 1 };
#else
enum { TDI_HAS_IMAGE = 0 };
static const unsigned char *const tdi_cuda_image = NULL;
#endif

/* Threads of a block, and the shared memory that it may have. */
typedef struct kernel {
    const char *name;
    uint32_t threads;
    uint32_t shared;
} kernel;

#define KERNEL(name, threads, shared)                                          \
    [TDI_KERNEL_##name] = {#name, threads, shared}

static const kernel kernels_of[TDI_KERNEL_COUNT] = {
    KERNEL(tide_sum_bulk, TDI_SUM_THREADS + 32, TDI_SUM_RING),
    KERNEL(tide_sum_bulk_many, TDI_SUM_THREADS + 32, TDI_SUM_RING),
    KERNEL(tide_sum_loads, TDI_SUM_THREADS, 0),
    KERNEL(tide_sum_loads_many, TDI_SUM_THREADS, 0),
    KERNEL(tide_sum_switch, TDI_SUM_THREADS, 0),
    KERNEL(tide_copy_bulk, 32, TDI_STRIDED_RING),
    KERNEL(tide_copy_bulk_many, 32, TDI_STRIDED_RING),
    KERNEL(tide_copy_loads, TDI_STRIDED_THREADS, 0),
    KERNEL(tide_copy_loads_many, TDI_STRIDED_THREADS, 0),
    KERNEL(tide_flat_unpack, TDI_FLAT_THREADS, 0),
    KERNEL(tide_flat_pack, TDI_FLAT_THREADS, 0),
};

bool tdi_cuda_kernels_built(void)
{
    return TDI_HAS_IMAGE;
}

tide_status tdi_cuda_kernels_check(const tdi_cuda_api *cuda, cu_result result,
                                   const char *what)
{
    return tdi_cuda_check(cuda, result, TDI_NO_RANK, what);
}

/* The attribute is set for every kernel: that loads its code now, for a first
 * launch that loads it waits for all streams, some of which wait for peers. */
static tide_status find_kernels(tdi_cuda_kernels *k)
{
    const tdi_cuda_api *cuda = k->cuda;
    for (int i = 0; i < TDI_KERNEL_COUNT; i++) {
        TDI_TRY(tdi_cuda_kernels_check(
            cuda,
            cuda->module_function(&k->function[i], k->module,
                                  kernels_of[i].name),
            kernels_of[i].name));
        TDI_TRY(tdi_cuda_kernels_check(
            cuda,
            cuda->function_set(k->function[i], CU_FUNCTION_MAX_DYNAMIC_SHARED,
                               (int)kernels_of[i].shared),
            "shared memory of a kernel"));
    }
    return TIDE_OK;
}

static tide_status load_image(tdi_cuda_kernels *k)
{
    const tdi_cuda_api *cuda = k->cuda;
    cu_device device;
    int sms, major, minor;
    TDI_TRY(tdi_cuda_kernels_check(cuda, cuda->context_device(&device),
                                   "the context's device"));
    TDI_TRY(tdi_cuda_kernels_check(
        cuda, cuda->device_attribute(&sms, CU_ATTRIBUTE_SM_COUNT, device),
        "the number of SMs"));
    TDI_TRY(tdi_cuda_kernels_check(
        cuda, cuda->device_attribute(&major, CU_ATTRIBUTE_MAJOR, device),
        "the compute capability"));
    TDI_TRY(tdi_cuda_kernels_check(
        cuda, cuda->device_attribute(&minor, CU_ATTRIBUTE_MINOR, device),
        "the compute capability"));
    if (major < 9)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "device %d has compute capability %d.%d; the kernels "
                        "need 9.0 or newer",
                        device, major, minor);
    k->sms = (uint32_t)sms;
    return tdi_cuda_kernels_check(cuda,
                                  cuda->module_load(&k->module, tdi_cuda_image),
                                  "loading the kernels");
}

tide_status tdi_cuda_kernels_load(const tdi_cuda_api *cuda,
                                  tdi_cuda_kernels **kernels)
{
    *kernels = NULL;
    if (!tdi_cuda_kernels_built())
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "this library was built without kernels: no CUDA "
                        "compiler (nvcc) was found");
    tdi_cuda_kernels *k = calloc(1, sizeof(*k));
    if (!k)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the kernels' table");
    k->cuda = cuda;
    k->ring = TDI_SUM_RING;
    tide_status status = load_image(k);
    if (!status)
        status = find_kernels(k);
    if (status) {
        tdi_cuda_kernels_free(k);
        return status;
    }
    *kernels = k;
    return TIDE_OK;
}

void tdi_cuda_kernels_free(tdi_cuda_kernels *kernels)
{
    if (!kernels)
        return;
    /* May fail when the context is gone: then so is the module. */
    if (kernels->module)
        kernels->cuda->module_unload(kernels->module);
    free(kernels);
}

void tdi_cuda_kernels_count_time(tdi_cuda_kernels *kernels, cu_pointer counter)
{
    kernels->counter = counter;
}

cu_kernel_node tdi_cuda_node(const tdi_cuda_kernels *kernels, tdi_kernel_id id,
                             uint32_t blocks, void **params)
{
    const kernel *what = &kernels_of[id];
    bool sums =
        id == TDI_KERNEL_tide_sum_bulk || id == TDI_KERNEL_tide_sum_bulk_many;
    return (cu_kernel_node){.function = kernels->function[id],
                            .grid = {blocks, 1, 1},
                            .block = {what->threads, 1, 1},
                            .shared_bytes = sums ? kernels->ring : what->shared,
                            .params = params};
}

tide_status tdi_cuda_launch(const tdi_cuda_kernels *kernels, tdi_kernel_id id,
                            uint32_t blocks, void **params, cu_stream stream)
{
    cu_kernel_node node = tdi_cuda_node(kernels, id, blocks, params);
    cu_result result = kernels->cuda->launch(
        node.function, node.grid[0], node.grid[1], node.grid[2], node.block[0],
        node.block[1], node.block[2], node.shared_bytes, stream, params, NULL);
    return tdi_cuda_kernels_check(kernels->cuda, result, kernels_of[id].name);
}
