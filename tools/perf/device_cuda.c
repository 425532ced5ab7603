/* Data on a GPU, work on a stream of its own, times between two events. */
#include "perf/device.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"
#include "base/util.h"

typedef struct cuda {
    const tdi_cuda_api *api;
    cu_device device;
    cu_stream stream;
    cu_event start;
    cu_event stop;
    struct timespec called; /* the host's time of start, and of stop */
    struct timespec queued;
    tdi_cuda_kernels *kernels; /* of the layout copies */
    cu_pointer counter;        /* nanoseconds that kernels held SMs */
    void *view;
    uint64_t view_bytes;
    bool retained;
} cuda;

/* What is found once a process, for all its ranks. */
static struct {
    bool tried;
    const tdi_cuda_api *api;
    int devices;
    tide_status status;
    char why[256];
} found;

static cu_pointer address_of(const void *memory)
{
    return (cu_pointer)(uintptr_t)memory;
}

static tide_status check(const cuda *c, cu_result result, const char *what,
                         uint64_t bytes)
{
    const char *name = NULL;
    if (result == CU_OK)
        return TIDE_OK;
    c->api->error_name(result, &name);
    return tdi_fail(result == CU_ERROR_OUT_OF_MEMORY ? TIDE_ERR_MEMORY
                                                     : TIDE_ERR_SYSTEM,
                    "GPU %d: %s of %" PRIu64 " bytes: %s", c->device, what,
                    bytes, name ? name : "unknown error");
}

/* --- Opening -------------------------------------------------------------- */

/*
 * Kernels are loaded at once: loading one at its first launch waits for the
 * device, on which another rank's kernel may wait for this rank. Streams that
 * wait for each other need queues of their own. NCCL takes several ranks on a
 * GPU when told so, and its kernels must then leave each other room.
 */
static void set_defaults(bool shared)
{
    static const char *const defaults[][2] = {
        {"CUDA_MODULE_LOADING", "EAGER"},
        {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MAX_CTAS", "8"},
    };
    size_t first = shared ? 2 : 0;
    size_t last = shared ? TDI_COUNT(defaults) : 2;
    for (size_t i = first; i < last; i++)
        setenv(defaults[i][0], defaults[i][1], 0);
}

static tide_status find_devices(const tdi_place *place)
{
    set_defaults(false);
    TDI_TRY(tdi_cuda_load(&found.api));
    cu_result result = found.api->init(0);
    if (result == CU_OK)
        result = found.api->device_count(&found.devices);
    if (result != CU_OK || found.devices < 1)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "backend cuda: no GPU (driver's error %d)", result);
    if ((uint32_t)found.devices < place->local_ranks)
        set_defaults(true);
    return TIDE_OK;
}

/* One thread finds out; its message must reach the others. */
static tide_status find_once(const tdi_place *place)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!found.tried) {
        found.tried = true;
        found.status = find_devices(place);
        if (found.status)
            snprintf(found.why, sizeof(found.why), "%s", tide_last_error());
    }
    pthread_mutex_unlock(&lock);
    return found.status ? tdi_fail(found.status, "%s", found.why) : TIDE_OK;
}

static tide_status open_context(cuda *c, const tdi_place *place)
{
    cu_context context;
    int ordinal = (int)(place->local_rank % (uint32_t)found.devices);
    TDI_TRY(check(c, c->api->device_get(&c->device, ordinal), "device", 0));
    TDI_TRY(
        check(c, c->api->primary_retain(&context, c->device), "context", 0));
    c->retained = true;
    TDI_TRY(check(c, c->api->context_set(context), "context", 0));
    TDI_TRY(check(c, c->api->event_create(&c->start, 0), "event", 0));
    return check(c, c->api->event_create(&c->stop, 0), "event", 0);
}

static tide_status open_cuda(tdi_device *device, const tdi_place *place)
{
    cuda *c = device->state = calloc(1, sizeof(*c));
    if (!c)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a device");
    TDI_TRY(find_once(place));
    c->api = found.api;
    TDI_TRY(open_context(c, place));
    /* Without kernels only the baselines with layout copies are missing. */
    if (tdi_cuda_kernels_built())
        TDI_TRY(tdi_cuda_kernels_load(c->api, &c->kernels));
    TDI_TRY(check(c, c->api->mem_alloc(&c->counter, sizeof(uint64_t)), "memory",
                  sizeof(uint64_t)));
    return TIDE_OK;
}

static tide_status open_stream_cuda(tdi_device *device)
{
    cuda *c = device->state;
    TDI_TRY(check(
        c, c->api->stream_create(&c->stream, CU_STREAM_NON_BLOCKING_FLAG, 0),
        "stream", 0));
    device->stream = c->stream;
    return TIDE_OK;
}

static void close_cuda(tdi_device *device)
{
    cuda *c = device->state;
    if (!c)
        return;
    tdi_cuda_kernels_free(c->kernels);
    if (c->counter)
        c->api->mem_free(c->counter);
    if (c->view)
        c->api->host_free(c->view);
    if (c->stop)
        c->api->event_destroy(c->stop);
    if (c->start)
        c->api->event_destroy(c->start);
    if (c->stream)
        c->api->stream_destroy(c->stream);
    if (c->retained)
        c->api->primary_release(c->device);
    free(c);
    device->state = NULL;
}

static void describe_cuda(const tdi_device *device, tdi_device_info *info)
{
    const cuda *c = device->state;
    const tdi_nccl_api *nccl;
    *info = (tdi_device_info){.devices = (uint32_t)found.devices};
    c->api->device_name(info->name, sizeof(info->name) - 1, c->device);
    c->api->driver_version(&info->driver);
    if (!tdi_nccl_load(&nccl))
        nccl->version(&info->nccl);
}

/* --- Memory --------------------------------------------------------------- */

static tide_status take_cuda(tdi_device *device, uint64_t bytes, void **memory)
{
    cuda *c = device->state;
    cu_pointer made = 0;
    TDI_TRY(
        check(c, c->api->mem_alloc(&made, tdi_max(bytes, 1)), "memory", bytes));
    *memory = (void *)(uintptr_t)made;
    return TIDE_OK;
}

static void give_cuda(tdi_device *device, void *memory)
{
    cuda *c = device->state;
    if (memory)
        c->api->mem_free(address_of(memory));
}

static tide_status set_cuda(tdi_device *device, void *memory, int byte,
                            uint64_t bytes)
{
    cuda *c = device->state;
    if (!bytes)
        return TIDE_OK;
    return check(c,
                 c->api->fill_8_async(address_of(memory), (unsigned char)byte,
                                      bytes, c->stream),
                 "fill", bytes);
}

static tide_status copy_cuda(tdi_device *device, void *to, const void *from,
                             uint64_t bytes)
{
    cuda *c = device->state;
    if (!bytes)
        return TIDE_OK;
    return check(
        c,
        c->api->copy_async(address_of(to), address_of(from), bytes, c->stream),
        "copy", bytes);
}

static tide_status reserve_cuda(tdi_device *device, uint64_t bytes)
{
    cuda *c = device->state;
    if (bytes <= c->view_bytes)
        return TIDE_OK;
    if (c->view)
        c->api->host_free(c->view);
    c->view = NULL;
    c->view_bytes = 0;
    TDI_TRY(
        check(c, c->api->host_alloc(&c->view, bytes), "host memory", bytes));
    c->view_bytes = bytes;
    return TIDE_OK;
}

static void *view_cuda(tdi_device *device, void *memory)
{
    (void)memory;
    return ((cuda *)device->state)->view;
}

static tide_status move_view(tdi_device *device, void *to, const void *from,
                             uint64_t bytes)
{
    cuda *c = device->state;
    if (bytes > c->view_bytes)
        return tdi_fail(TIDE_ERR_INVALID,
                        "a view of %" PRIu64 " bytes, with %" PRIu64
                        " reserved",
                        bytes, c->view_bytes);
    TDI_TRY(copy_cuda(device, to, from, bytes));
    return check(c, c->api->stream_sync(c->stream), "copy", bytes);
}

static tide_status upload_cuda(tdi_device *device, void *memory, uint64_t bytes)
{
    return move_view(device, memory, view_cuda(device, NULL), bytes);
}

static tide_status download_cuda(tdi_device *device, const void *memory,
                                 uint64_t bytes, const void **seen)
{
    *seen = view_cuda(device, NULL);
    return move_view(device, view_cuda(device, NULL), memory, bytes);
}

/* --- Time ----------------------------------------------------------------- */

static tide_status start_cuda(tdi_device *device)
{
    cuda *c = device->state;
    TDI_TRY(check(c, c->api->event_record(c->start, c->stream), "event", 0));
    clock_gettime(CLOCK_MONOTONIC, &c->called);
    return TIDE_OK;
}

static tide_status stop_cuda(tdi_device *device)
{
    cuda *c = device->state;
    clock_gettime(CLOCK_MONOTONIC, &c->queued);
    return check(c, c->api->event_record(c->stop, c->stream), "event", 0);
}

/* Polls, so that a rank whose peers are stuck gets out of here; rarely, as
 * polls hold up peers that queue work on the same GPU. */
static tide_status await_stop(const cuda *c, uint64_t limit_ms)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t deadline = tdi_now_ms() + limit_ms;
    for (;;) {
        cu_result result = c->api->event_query(c->stop);
        if (result != CU_ERROR_NOT_READY)
            return check(c, result, "work", 0);
        if (tdi_now_ms() >= deadline)
            return tdi_fail(TIDE_ERR_PEER,
                            "GPU %d: not done within %" PRIu64 " ms", c->device,
                            limit_ms);
        nanosleep(&nap, NULL);
    }
}

static tide_status wait_cuda(tdi_device *device, uint64_t limit_ms,
                             tdi_sample *sample)
{
    cuda *c = device->state;
    float ms;
    TDI_TRY(await_stop(c, limit_ms));
    TDI_TRY(
        check(c, c->api->event_elapsed(&ms, c->start, c->stop), "event", 0));
    *sample = (tdi_sample){
        .ms = (double)ms,
        .host_us = (double)(c->queued.tv_sec - c->called.tv_sec) * 1e6 +
                   (double)(c->queued.tv_nsec - c->called.tv_nsec) * 1e-3};
    return TIDE_OK;
}

/* --- Kernels -------------------------------------------------------------- */

static tide_status make_flat(tdi_device *device, const tide_layout *layout,
                             tide_coll coll, const void *const *address,
                             void **flat)
{
    cuda *c = device->state;
    size_t count = tide_layout_count(layout);
    tdi_cuda_flat *made = NULL;
    *flat = NULL;
    if (!c->kernels) /* said when it is queued */
        return TIDE_OK;
    cu_pointer *pointers = calloc(tdi_max(count, 1), sizeof(*pointers));
    if (!pointers)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu addresses", count);
    for (size_t p = 0; p < count; p++)
        pointers[p] = address_of(address[p]);
    tide_status status = tdi_cuda_flat_create(c->kernels, layout, coll,
                                              TIDE_BF16, pointers, &made);
    free(pointers);
    *flat = made;
    return status;
}

static void free_flat(void *flat)
{
    tdi_cuda_flat_free(flat);
}

static tide_status queue_flat(tdi_device *device, const void *flat,
                              void *buffer)
{
    cuda *c = device->state;
    if (!flat)
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "built without CUDA kernels");
    return tdi_cuda_flat_queue(flat, address_of(buffer), c->stream);
}

static tide_status count_time(tdi_device *device, tide_comm *comm)
{
    cuda *c = device->state;
    TDI_TRY(
        set_cuda(device, (void *)(uintptr_t)c->counter, 0, sizeof(uint64_t)));
    TDI_TRY(check(c, c->api->stream_sync(c->stream), "fill", 8));
    tdi_cuda_kernels *kernels = cuda_of(comm)->kernels;
    if (kernels)
        tdi_cuda_kernels_count_time(kernels, c->counter);
    return TIDE_OK;
}

static tide_status read_time(tdi_device *device, tide_comm *comm, double *sm_us)
{
    cuda *c = device->state;
    const void *seen;
    tdi_cuda_kernels *kernels = cuda_of(comm)->kernels;
    if (kernels)
        tdi_cuda_kernels_count_time(kernels, 0);
    TDI_TRY(download_cuda(device, (void *)(uintptr_t)c->counter,
                          sizeof(uint64_t), &seen));
    *sm_us = (double)*(const uint64_t *)seen * 1e-3;
    return TIDE_OK;
}

const tdi_device_kind tdi_device_cuda = {
    .name = "cuda",
    .queued = true,
    .open = open_cuda,
    .open_stream = open_stream_cuda,
    .close = close_cuda,
    .describe = describe_cuda,
    .take = take_cuda,
    .give = give_cuda,
    .set = set_cuda,
    .copy = copy_cuda,
    .reserve = reserve_cuda,
    .view = view_cuda,
    .upload = upload_cuda,
    .download = download_cuda,
    .start = start_cuda,
    .stop = stop_cuda,
    .wait = wait_cuda,
    .make_flat = make_flat,
    .free_flat = free_flat,
    .queue_flat = queue_flat,
    .count_time = count_time,
    .read_time = read_time,
};
