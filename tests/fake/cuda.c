/* The driver's devices, contexts, memory and streams. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUctx_st {
    int device;
    atomic_int retained;
};

static struct CUctx_st contexts[FAKE_MAX_DEVICES];
static atomic_bool initialised;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local cu_context current;

static int count_devices(void)
{
    int64_t count = fake_setting("FAKE_DEVICES", 16);
    if (fake_fault("no_device", -1))
        return 0;
    return count < FAKE_MAX_DEVICES ? (int)count : FAKE_MAX_DEVICES;
}

#define NEED_INIT()                                                            \
    do {                                                                       \
        if (!initialised)                                                      \
            return FAKE_NOT_INITIALIZED;                                       \
    } while (0)

#define NEED_CONTEXT()                                                         \
    do {                                                                       \
        NEED_INIT();                                                           \
        if (!current)                                                          \
            return FAKE_INVALID_CONTEXT;                                       \
    } while (0)

/* --- Devices and contexts ------------------------------------------------- */

static void number_contexts(void)
{
    for (int d = 0; d < FAKE_MAX_DEVICES; d++)
        contexts[d].device = d;
}

cu_result cuInit(unsigned int flags)
{
    if (flags)
        return FAKE_INVALID_VALUE;
    if (!count_devices())
        return FAKE_NO_DEVICE;
    pthread_once(&once, number_contexts);
    initialised = true;
    return CU_OK;
}

cu_result cuDriverGetVersion(int *version)
{
    int64_t usual = fake_fault("old_driver", -1) ? 12040 : 13000;
    *version = (int)fake_setting("FAKE_DRIVER_VERSION", usual);
    return CU_OK;
}

cu_result cuGetErrorName(cu_result error, const char **name)
{
    static const struct {
        cu_result error;
        const char *name;
    } names[] = {
        {CU_OK, "CUDA_SUCCESS"},
        {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CU_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {FAKE_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {FAKE_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {FAKE_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {CU_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].error == error) {
            *name = names[i].name;
            return CU_OK;
        }
    }
    *name = NULL;
    return FAKE_INVALID_VALUE;
}

cu_result cuDeviceGetCount(int *count)
{
    NEED_INIT();
    *count = count_devices();
    return CU_OK;
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    NEED_INIT();
    if (ordinal < 0 || ordinal >= count_devices())
        return FAKE_INVALID_DEVICE;
    *device = ordinal;
    return CU_OK;
}

cu_result cuDeviceGetName(char *name, int size, cu_device device)
{
    NEED_INIT();
    snprintf(name, (size_t)size, "Fake %d", device);
    return CU_OK;
}

cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device)
{
    NEED_INIT();
    if (device < 0 || device >= count_devices())
        return FAKE_INVALID_DEVICE;
    memset(uuid, 0, sizeof(*uuid));
    snprintf(uuid->bytes, sizeof(uuid->bytes), "fake %d", device);
    return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    bool old = fake_fault("old_device", device);
    NEED_INIT();
    if (device < 0 || device >= count_devices())
        return FAKE_INVALID_DEVICE;
    switch (attribute) {
    case CU_ATTRIBUTE_SM_COUNT:
        *value = 8;
        return CU_OK;
    case CU_ATTRIBUTE_MAJOR:
        *value = old ? 8 : 9;
        return CU_OK;
    case CU_ATTRIBUTE_MINOR:
        *value = 0;
        return CU_OK;
    case CU_ATTRIBUTE_MEM_OPS_64:
        *value = !fake_fault("no_mem_ops", device);
        return CU_OK;
    }
    fake_fail("cuDeviceGetAttribute of %d: not one that api.h lists",
              attribute);
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    NEED_INIT();
    if (device < 0 || device >= count_devices())
        return FAKE_INVALID_DEVICE;
    contexts[device].retained++;
    *context = &contexts[device];
    return CU_OK;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    NEED_INIT();
    if (device < 0 || device >= count_devices())
        return FAKE_INVALID_DEVICE;
    if (--contexts[device].retained < 0)
        fake_fail("the context of device %d is released too often", device);
    return CU_OK;
}

cu_result cuCtxGetCurrent(cu_context *context)
{
    NEED_INIT();
    *context = current;
    return CU_OK;
}

cu_result cuCtxSetCurrent(cu_context context)
{
    NEED_INIT();
    if (context && context->retained < 1)
        fake_fail("cuCtxSetCurrent of device %d, whose context is released",
                  context->device);
    current = context;
    return CU_OK;
}

cu_result cuCtxGetDevice(cu_device *device)
{
    NEED_CONTEXT();
    *device = current->device;
    return CU_OK;
}

cu_result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    NEED_CONTEXT();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CU_OK;
}

/* --- Memory --------------------------------------------------------------- */

cu_result cuMemAlloc_v2(cu_pointer *memory, size_t bytes)
{
    NEED_CONTEXT();
    if (!bytes)
        return FAKE_INVALID_VALUE;
    if (fake_fault("alloc_fails", current->device))
        return CU_ERROR_OUT_OF_MEMORY;
    *memory = fake_alloc(current->device, bytes, 512);
    return *memory ? CU_OK : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFree_v2(cu_pointer memory)
{
    NEED_CONTEXT();
    if (memory)
        fake_free(memory, "cuMemFree");
    return CU_OK;
}

cu_result cuMemAllocHost_v2(void **memory, size_t bytes)
{
    NEED_CONTEXT();
    *memory = fake_host_alloc(bytes);
    return *memory ? CU_OK : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFreeHost(void *memory)
{
    NEED_CONTEXT();
    fake_host_free(memory);
    return CU_OK;
}

cu_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    enum { PORTABLE = 1, DEVICE_MAP = 2 };
    NEED_CONTEXT();
    if (!memory || !bytes || (flags & ~(unsigned)(PORTABLE | DEVICE_MAP)))
        return FAKE_INVALID_VALUE;
    return fake_host_register(memory, bytes) ? CU_OK : FAKE_ALREADY_REGISTERED;
}

cu_result cuMemHostUnregister(void *memory)
{
    NEED_CONTEXT();
    fake_host_unregister(memory);
    return CU_OK;
}

/* --- Streams -------------------------------------------------------------- */

cu_result cuStreamCreateWithPriority(cu_stream *stream, unsigned int flags,
                                     int priority)
{
    (void)priority; /* the driver clamps it */
    NEED_CONTEXT();
    if (flags > CU_STREAM_NON_BLOCKING_FLAG)
        return FAKE_INVALID_VALUE;
    *stream = fake_stream_create(current->device, flags != 0);
    return CU_OK;
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
    NEED_CONTEXT();
    if (!stream)
        return FAKE_INVALID_HANDLE;
    fake_stream_destroy(
        fake_stream(stream, current->device, "cuStreamDestroy"));
    return CU_OK;
}

cu_result cuStreamQuery(cu_stream stream)
{
    NEED_CONTEXT();
    stream = fake_stream(stream, current->device, "cuStreamQuery");
    return fake_stream_idle(stream) ? CU_OK : CU_ERROR_NOT_READY;
}

cu_result cuStreamSynchronize(cu_stream stream)
{
    NEED_CONTEXT();
    fake_stream_finish(
        fake_stream(stream, current->device, "cuStreamSynchronize"));
    return CU_OK;
}
