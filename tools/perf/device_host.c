/* Data in the process itself; every call has done its work when it returns. */
#include "perf/device.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/util.h"

typedef struct host {
    double start_ms;
    double stop_ms;
} host;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static tide_status open_host(tdi_device *device, const tdi_place *place)
{
    (void)place;
    device->state = calloc(1, sizeof(host));
    return device->state ? TIDE_OK
                         : tdi_fail(TIDE_ERR_MEMORY, "no memory for a clock");
}

static void close_host(tdi_device *device)
{
    free(device->state);
    device->state = NULL;
}

static void describe_host(const tdi_device *device, tdi_device_info *info)
{
    (void)device;
    *info = (tdi_device_info){0};
}

static tide_status take_host(tdi_device *device, uint64_t bytes, void **memory)
{
    (void)device;
    *memory = aligned_alloc(64, tdi_round_up(tdi_max(bytes, 1), 64));
    return *memory ? TIDE_OK
                   : tdi_fail(TIDE_ERR_MEMORY,
                              "no memory for %" PRIu64 " bytes", bytes);
}

static void give_host(tdi_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static tide_status set_host(tdi_device *device, void *memory, int byte,
                            uint64_t bytes)
{
    (void)device;
    if (bytes)
        memset(memory, byte, bytes);
    return TIDE_OK;
}

static tide_status copy_host(tdi_device *device, void *to, const void *from,
                             uint64_t bytes)
{
    (void)device;
    if (bytes)
        memcpy(to, from, bytes);
    return TIDE_OK;
}

static tide_status reserve_host(tdi_device *device, uint64_t bytes)
{
    (void)device;
    (void)bytes;
    return TIDE_OK;
}

static void *view_host(tdi_device *device, void *memory)
{
    (void)device;
    return memory;
}

static tide_status upload_host(tdi_device *device, void *memory, uint64_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return TIDE_OK;
}

static tide_status download_host(tdi_device *device, const void *memory,
                                 uint64_t bytes, const void **seen)
{
    (void)device;
    (void)bytes;
    *seen = memory;
    return TIDE_OK;
}

static tide_status start_host(tdi_device *device)
{
    ((host *)device->state)->start_ms = now_ms();
    return TIDE_OK;
}

static tide_status stop_host(tdi_device *device)
{
    ((host *)device->state)->stop_ms = now_ms();
    return TIDE_OK;
}

static tide_status wait_host(tdi_device *device, uint64_t limit_ms,
                             tdi_sample *sample)
{
    const host *h = device->state;
    (void)limit_ms;
    *sample = (tdi_sample){h->stop_ms - h->start_ms, (double)NAN};
    return TIDE_OK;
}

const tdi_device_kind tdi_device_host = {
    .name = "host",
    .open = open_host,
    .close = close_host,
    .describe = describe_host,
    .take = take_host,
    .give = give_host,
    .set = set_host,
    .copy = copy_host,
    .reserve = reserve_host,
    .view = view_host,
    .upload = upload_host,
    .download = download_host,
    .start = start_host,
    .stop = stop_host,
    .wait = wait_host,
};

const tdi_device_kind *tdi_device_find(const char *name)
{
    const tdi_device_kind *kinds[] = {&tdi_device_host, &tdi_device_cuda};
    for (size_t i = 0; i < TDI_COUNT(kinds); i++)
        if (!name || !strcmp(kinds[i]->name, name))
            return kinds[i];
    return NULL;
}
