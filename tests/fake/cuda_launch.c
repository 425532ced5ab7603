/* The driver's modules and launches: kernels are host functions by name. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { ALIVE = 0x6d6f6475, UNLOADED = 0x64656164, MOST = 16 };

/* Never freed, so that use of an unloaded one is seen. */
struct CUmod_st {
    struct CUmod_st *next;
    unsigned state;
    int device;
    struct CUfunc_st functions[MOST];
};

static struct { /* keeps them reachable */
    pthread_mutex_t lock;
    cu_module first;
} modules = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void check_module(cu_module module, const char *call)
{
    if (!module || module->state != ALIVE)
        fake_fail("%s of %p, which is no module that is loaded", call,
                  (void *)module);
}

cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    cu_device device;
    cu_result result = cuCtxGetDevice(&device);
    if (result)
        return result;
    if (!image)
        return FAKE_INVALID_VALUE;
    cu_module made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    made->device = device;
    pthread_mutex_lock(&modules.lock);
    made->next = modules.first;
    modules.first = made;
    pthread_mutex_unlock(&modules.lock);
    *module = made;
    return CU_OK;
}

cu_result cuModuleUnload(cu_module module)
{
    check_module(module, "cuModuleUnload");
    module->state = UNLOADED;
    return CU_OK;
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module,
                              const char *name)
{
    check_module(module, "cuModuleGetFunction");
    for (size_t i = 0; fake_kernels[i].name; i++) {
        if (!strcmp(fake_kernels[i].name, name)) {
            module->functions[i].kernel = &fake_kernels[i];
            module->functions[i].module = module;
            *function = &module->functions[i];
            return CU_OK;
        }
    }
    return FAKE_NOT_FOUND;
}

cu_result cuFuncSetAttribute(cu_function function, int attribute, int value)
{
    check_module(function->module, "cuFuncSetAttribute");
    if (attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value < 0 ||
        value > 227 << 10)
        return FAKE_INVALID_VALUE;
    function->shared_bytes = value;
    return CU_OK;
}

/* --- Launches ------------------------------------------------------------- */

typedef struct launch_work {
    fake_work work;
    const fake_kernel *kernel;
    fake_params params;
} launch_work;

static void run_launch(fake_work *work)
{
    launch_work *launch = (launch_work *)work;
    launch->kernel->run(fake_device_of(work->stream), launch->params.at,
                        work->random);
}

void fake_check_function(cu_function function, const char *call)
{
    check_module(function->module, call);
}

fake_params fake_copy_params(const fake_kernel *kernel, void **params)
{
    fake_params copy = {0};
    size_t bytes = 0, at = 0;
    for (size_t i = 0; kernel->sizes[i]; i++)
        bytes += (kernel->sizes[i] + 15) & ~(size_t)15;
    copy.memory = calloc(1, bytes);
    for (size_t i = 0; kernel->sizes[i]; i++) {
        copy.at[i] = (char *)copy.memory + at;
        memcpy(copy.at[i], params[i], kernel->sizes[i]);
        at += (kernel->sizes[i] + 15) & ~(size_t)15;
    }
    return copy;
}

/* Parameters are copied when the launch is called. */
void fake_launch(const fake_kernel *kernel, void **params, cu_stream stream)
{
    launch_work *launch = fake_work_new(sizeof(*launch), run_launch);
    launch->kernel = kernel;
    launch->params = fake_copy_params(kernel, params);
    launch->work.extra = launch->params.memory;
    fake_queue_work(stream, &launch->work);
}

bool fake_is_launch(const cu_kernel_node *node, int device)
{
    fake_check_function(node->function, "a launch");
    uint64_t threads =
        (uint64_t)node->block[0] * node->block[1] * node->block[2];
    return node->function->module->device == device && node->grid[0] &&
           node->grid[1] && node->grid[2] && threads && threads <= 1024 &&
           !node->extra && !node->kernel &&
           (node->shared_bytes <= 48 << 10 ||
            node->shared_bytes <= (unsigned)node->function->shared_bytes);
}

cu_result cuLaunchKernel(cu_function function, unsigned int grid_x,
                         unsigned int grid_y, unsigned int grid_z,
                         unsigned int block_x, unsigned int block_y,
                         unsigned int block_z, unsigned int shared_bytes,
                         cu_stream stream, void **params, void **extra)
{
    const cu_kernel_node node = {.function = function,
                                 .grid = {grid_x, grid_y, grid_z},
                                 .block = {block_x, block_y, block_z},
                                 .shared_bytes = shared_bytes,
                                 .params = params,
                                 .extra = extra};
    cu_device device;
    cu_result result = cuCtxGetDevice(&device);
    if (result)
        return result;
    stream = fake_stream(stream, device, "cuLaunchKernel");
    if (fake_device_of(stream) != device)
        return FAKE_INVALID_HANDLE;
    if (!fake_is_launch(&node, device))
        return FAKE_INVALID_VALUE;
    fake_launch(function->kernel, params, stream);
    return CU_OK;
}
