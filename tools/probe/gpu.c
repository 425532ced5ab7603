/* The device under the probe. */
#include "probe/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "probe/params.h"

/* Defined where a CUDA compiler was found, as for the library's kernels. */
#ifdef TIDE_KERNELS_IMAGE
__asm__(".pushsection .rodata\n"
        ".hidden probe_image\n"
        ".global probe_image\n"
        ".balign 16\n"
        "probe_image:\n"
        ".incbin \"" TIDE_KERNELS_IMAGE "\"\n"
        ".popsection\n");
extern const unsigned char probe_image[] __attribute__((visibility("hidden")));
#else
static const unsigned char *const probe_image = NULL;
#endif

enum { POISON = 0xa5, PATTERN = 16 << 20, RUNS = 256 };

static tide_status open_streams(gpu *g, bool low_priority)
{
    int least = 0, greatest = 0;
    TRY_CUDA(g, priority_range(&least, &greatest));
    int beside = low_priority ? least : greatest;
    int gemm = low_priority ? greatest : least;
    TRY_CUDA(g, stream_create(&g->stream, CU_STREAM_NON_BLOCKING_FLAG, gemm));
    TRY_CUDA(g, stream_create(&g->beside, CU_STREAM_NON_BLOCKING_FLAG, beside));
    TRY_CUDA(g, stream_create(&g->copies, CU_STREAM_NON_BLOCKING_FLAG, beside));
    return TIDE_OK;
}

static tide_status open_device(gpu *g)
{
    int count = 0, sms = 0;
    TDI_TRY(tdi_cuda_load(&g->cuda));
    TRY_CUDA(g, init(0));
    TRY_CUDA(g, device_count(&count));
    if (!count)
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "there is no CUDA device");
    TRY_CUDA(g, device_get(&g->device, 0));
    TRY_CUDA(g, device_name(g->name, sizeof(g->name), g->device));
    TRY_CUDA(g, device_attribute(&sms, CU_ATTRIBUTE_SM_COUNT, g->device));
    g->sms = (uint32_t)sms;
    TRY_CUDA(g, primary_retain(&g->context, g->device));
    TRY_CUDA(g, context_set(g->context));
    return TIDE_OK;
}

tide_status gpu_open(gpu *g, bool low_priority)
{
    *g = (gpu){0};
    if (!tdi_cuda_kernels_built())
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "built without kernels: no CUDA compiler was found");
    TDI_TRY(open_device(g));
    TDI_TRY(tdi_cuda_kernels_load(g->cuda, &g->kernels));
    TRY_CUDA(g, module_load(&g->module, probe_image));
    TRY_CUDA(g, module_function(&g->copy, g->module, "probe_copy"));
    TRY_CUDA(g, module_function(&g->spin, g->module, "probe_spin"));
    TDI_TRY(open_streams(g, low_priority));
    return tdi_env_number(TDI_ENV_SUM_GRAPHS)
               ? tdi_cuda_chain_create(g->kernels, g->beside, &g->chain)
               : TIDE_OK;
}

void gpu_close(gpu *g)
{
    const cu_stream streams[] = {g->stream, g->beside, g->copies};
    if (!g->context)
        return;
    tdi_cuda_chain_free(g->chain);
    for (size_t i = 0; i < TDI_COUNT(streams); i++)
        if (streams[i])
            g->cuda->stream_destroy(streams[i]);
    if (g->module)
        g->cuda->module_unload(g->module);
    tdi_cuda_kernels_free(g->kernels);
    g->cuda->primary_release(g->device);
}

/* --- Memory --------------------------------------------------------------- */

/* One random pattern, repeated: kernels do not care that it repeats. */
static tide_status fill_random(const gpu *g, cu_pointer memory, uint64_t bytes)
{
    uint16_t *pattern = malloc(PATTERN);
    uint64_t x = 88172645463325252u;
    if (!pattern)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a pattern");
    for (uint64_t i = 0; i < PATTERN / 2; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        pattern[i] = (uint16_t)((x & 0x807f) | (120 + (x >> 20) % 8) << 7);
    }
    cu_result result = CU_OK;
    for (uint64_t at = 0; at < bytes && !result; at += PATTERN)
        result =
            g->cuda->copy_async(memory + at, (cu_pointer)(uintptr_t)pattern,
                                tdi_min(PATTERN, bytes - at), g->stream);
    if (!result)
        result = g->cuda->stream_sync(g->stream);
    free(pattern);
    return tdi_cuda_check(g->cuda, result, 0, "filling device memory");
}

tide_status gpu_take(const gpu *g, uint64_t bytes, bool fill, cu_pointer *out)
{
    *out = 0;
    TRY_CUDA(g, mem_alloc(out, tdi_max(bytes, 1)));
    if (fill)
        return fill_random(g, *out, bytes);
    TRY_CUDA(g, fill_8_async(*out, POISON, bytes, g->stream));
    TRY_CUDA(g, stream_sync(g->stream));
    return TIDE_OK;
}

void gpu_give(const gpu *g, cu_pointer memory)
{
    if (memory)
        g->cuda->mem_free(memory);
}

/* --- Launches ------------------------------------------------------------- */

tide_status gpu_launch_copy(const gpu *g, cu_pointer to, cu_pointer from,
                            uint64_t bytes, uint32_t blocks, cu_stream stream)
{
    probe_copy_params p = {to, from, bytes / 16};
    void *params[] = {&p};
    TRY_CUDA(g, launch(g->copy, blocks, 1, 1, PROBE_THREADS, 1, 1, 0, stream,
                       params, NULL));
    return TIDE_OK;
}

tide_status gpu_launch_spin(const gpu *g, const volatile int *stop, uint64_t ns,
                            cu_stream stream)
{
    probe_spin_params p = {(uintptr_t)stop, ns};
    void *params[] = {&p};
    TRY_CUDA(g, launch(g->spin, 1, 1, 1, PROBE_THREADS, 1, 1, 0, stream, params,
                       NULL));
    return TIDE_OK;
}

/* --- Times ---------------------------------------------------------------- */

double gpu_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gpu_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return count % 2 ? values[count / 2]
                     : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static tide_status time_once(const gpu *g, gpu_work *work, void *context,
                             cu_event begin, cu_event end, double *ms,
                             double *host_us)
{
    float elapsed;
    TRY_CUDA(g, event_record(begin, g->stream));
    double start = gpu_now_us();
    TDI_TRY(work(g, context));
    *host_us = gpu_now_us() - start;
    TRY_CUDA(g, event_record(end, g->stream));
    TRY_CUDA(g, event_sync(end));
    TRY_CUDA(g, event_elapsed(&elapsed, begin, end));
    *ms = elapsed;
    return TIDE_OK;
}

tide_status gpu_time(const gpu *g, gpu_work *work, void *context, uint32_t runs,
                     double *ms, double *host_us)
{
    double times[RUNS], hosts[RUNS], warm[2];
    cu_event begin, end;
    uint32_t count = (uint32_t)tdi_min(runs, RUNS);
    TRY_CUDA(g, event_create(&begin, 0));
    TRY_CUDA(g, event_create(&end, 0));
    TDI_TRY(time_once(g, work, context, begin, end, &warm[0], &warm[1]));
    for (uint32_t i = 0; i < count; i++)
        TDI_TRY(time_once(g, work, context, begin, end, &times[i], &hosts[i]));
    *ms = gpu_median(times, count);
    if (host_us)
        *host_us = gpu_median(hosts, count);
    g->cuda->event_destroy(begin);
    g->cuda->event_destroy(end);
    return TIDE_OK;
}
