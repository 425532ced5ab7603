/* How fast copies and sums are: alone, unbounded and by some blocks. */
#include "probe/sum.h"

#include "base/fail.h"
#include "base/util.h"
#include "probe/report.h"

#include <stdio.h>

enum { REPEATS = 15, SOURCES = 16, LAUNCHES = 200, STRIDED = 64 };

/* Several times the L2; a sum's sources have as much in all. */
#define COPY_BYTES ((uint64_t)1 << 30)

typedef struct job {
    cu_pointer to;
    cu_pointer from;
    cu_pointer counter; /* of the time that blocks live */
    uint64_t bytes;     /* of a copy */
    uint64_t width;     /* of the rows of a strided copy */
    uint32_t blocks;    /* of a copy; 0: by the driver */
    tdi_cuda_sum sum;
    tdi_cuda_bounds bounds;
} job;

static tide_status do_copy(const gpu *g, void *context)
{
    const job *j = context;
    if (j->blocks)
        return gpu_launch_copy(g, j->to, j->from, j->bytes, j->blocks,
                               g->stream);
    TRY_CUDA(g, copy_async(j->to, j->from, j->bytes, g->stream));
    return TIDE_OK;
}

static tide_status do_sum(const gpu *g, void *context)
{
    const job *j = context;
    return tdi_cuda_sum_queue(g->kernels, g->chain, &j->sum, &j->bounds,
                              g->stream);
}

/* Copies of tide's own: rows of `width` bytes at twice that, 64 of them. */
static tide_status do_strided(const gpu *g, void *context)
{
    const job *j = context;
    tdi_cuda_strided copies[STRIDED];
    uint64_t each = j->bytes / STRIDED;
    for (uint32_t i = 0; i < STRIDED; i++)
        copies[i] = (tdi_cuda_strided){.dst = j->to + i * each,
                                       .src = j->from + i * each,
                                       .width = j->width,
                                       .height = each / j->width / 2,
                                       .dst_pitch = 2 * j->width,
                                       .src_pitch = 2 * j->width};
    return tdi_cuda_strided_queue(g->kernels, copies, STRIDED, j->blocks,
                                  g->stream);
}

static tide_status measure_strided(const gpu *g, const job *from,
                                   uint64_t width)
{
    job j = *from;
    char text[40];
    snprintf(text, sizeof(text), "64 copies, rows of %u KiB",
             (unsigned)(width >> 10));
    probe_row row = probe_row_of("copy", text);
    j.width = width;
    j.bytes = j.bytes / (2 * STRIDED * width) * (2 * STRIDED * width);
    TDI_TRY(gpu_time(g, do_strided, &j, REPEATS, &row.time_ms, &row.host_us));
    row.ctas = j.blocks;
    row.bytes = j.bytes; /* half of it, read and written */
    row.gbs = (double)row.bytes / row.time_ms / 1e6;
    probe_add(&row);
    return TIDE_OK;
}

static tide_status measure_copy(const gpu *g, job *j, const char *experiment)
{
    probe_row row = probe_row_of(experiment, j->blocks ? "copy kernel"
                                                       : "copy by the driver");
    TDI_TRY(gpu_time(g, do_copy, j, REPEATS, &row.time_ms, NULL));
    row.ctas = j->blocks;
    row.bytes = 2 * j->bytes;
    row.gbs = (double)row.bytes / row.time_ms / 1e6;
    probe_add(&row);
    return TIDE_OK;
}

/* Few blocks get less to do, so that a run stays short. */
static uint64_t bytes_for(const gpu *g, uint64_t blocks)
{
    uint64_t share = COPY_BYTES / g->sms * tdi_max(blocks, 16);
    return blocks ? tdi_min(share, COPY_BYTES) / 256 * 256 : COPY_BYTES;
}

static tide_status sweep_copies(const gpu *g, const probe_args *args, job *j)
{
    TDI_TRY(measure_copy(g, j, "copy"));
    for (uint32_t i = 0; i <= args->cta_count + 1; i++) {
        j->blocks = i < args->cta_count    ? (uint32_t)args->ctas[i]
                    : i == args->cta_count ? g->sms
                                           : 4 * g->sms;
        j->bytes = bytes_for(g, j->blocks);
        TDI_TRY(measure_copy(g, j, "copy"));
    }
    for (uint32_t i = 0; i <= args->cta_count; i++) {
        j->blocks = i ? (uint32_t)args->ctas[i - 1] : 0;
        j->bytes = bytes_for(g, j->blocks);
        for (uint64_t width = 2 << 10; width <= 128 << 10; width *= 8)
            TDI_TRY(measure_strided(g, j, width));
    }
    return TIDE_OK;
}

tide_status probe_run_copy(const gpu *g, const probe_args *args)
{
    job j = {.bytes = COPY_BYTES};
    tide_status status;
    TDI_TRY_GOTO(status, gpu_take(g, COPY_BYTES, true, &j.from), out);
    TDI_TRY_GOTO(status, gpu_take(g, COPY_BYTES, false, &j.to), out);
    status = sweep_copies(g, args, &j);
out:
    gpu_give(g, j.from);
    gpu_give(g, j.to);
    return status;
}

/* Runs it once more with the counter. *ns is what its blocks lived in all. */
static tide_status count_blocks(const gpu *g, job *j, uint64_t *ns)
{
    TRY_CUDA(g, fill_8_async(j->counter, 0, sizeof(*ns), g->stream));
    tdi_cuda_kernels_count_time(g->kernels, j->counter);
    tide_status status = do_sum(g, j);
    tdi_cuda_kernels_count_time(g->kernels, 0);
    TDI_TRY(status);
    TRY_CUDA(g, copy_async((cu_pointer)(uintptr_t)ns, j->counter, sizeof(*ns),
                           g->stream));
    TRY_CUDA(g, stream_sync(g->stream));
    return TIDE_OK;
}

/* bf16 to fp32, the level-1 sum. */
static tide_status measure_sum(const gpu *g, job *j, cu_pointer *src,
                               uint32_t sources, uint64_t elems)
{
    probe_row row = probe_row_of(
        "sum", j->bounds.share ? "bf16 to fp32, short blocks" : "bf16 to fp32");
    double host_us;
    uint64_t lived;
    uint64_t launches = j->bounds.chunk
                            ? tdi_ceil_div(2 * sources * elems, j->bounds.chunk)
                            : 1;
    for (uint32_t s = 0; s < sources; s++)
        src[s] = j->from + s * 2 * elems;
    j->sum = (tdi_cuda_sum){.dst = j->to,
                            .src = src,
                            .sources = sources,
                            .flags = TIDE_SRC_BF16,
                            .elems = elems};
    TDI_TRY(gpu_time(g, do_sum, j, REPEATS, &row.time_ms, &host_us));
    row.sources = sources;
    row.ctas = j->bounds.ctas;
    row.chunk = j->bounds.chunk;
    row.share = j->bounds.share;
    row.bytes = elems * (2 * sources + 4);
    row.gbs = (double)row.bytes / row.time_ms / 1e6;
    row.host_us = host_us / (double)launches;
    TDI_TRY(count_blocks(g, j, &lived));
    if (row.share)
        launches = tdi_ceil_div(2 * sources * elems, row.share); /* blocks */
    if (row.ctas || row.share)
        row.block_us =
            (double)lived / 1e3 / (double)(launches * tdi_max(row.ctas, 1));
    probe_add(&row);
    return TIDE_OK;
}

static uint64_t elems_for(const gpu *g, const job *j, uint32_t sources)
{
    uint64_t elems = bytes_for(g, j->bounds.ctas) / 2 / sources;
    if (j->bounds.chunk)
        elems = tdi_min(elems, LAUNCHES * j->bounds.chunk / 2 / sources);
    return elems / 128 * 128;
}

static tide_status sweep_sums(const gpu *g, const probe_args *args, job *j)
{
    cu_pointer src[SOURCES];
    for (uint32_t k = 2; k <= SOURCES; k *= 2)
        for (uint32_t i = 0; i <= args->cta_count; i++) {
            j->bounds =
                (tdi_cuda_bounds){.ctas = i ? (uint32_t)args->ctas[i - 1] : 0};
            TDI_TRY(measure_sum(g, j, src, k, elems_for(g, j, k)));
        }
    for (uint32_t i = 0; i < args->cta_count; i++)
        for (uint32_t c = 0; c < args->chunk_count; c++) {
            j->bounds = (tdi_cuda_bounds){.ctas = (uint32_t)args->ctas[i],
                                          .chunk = args->chunks[c]};
            TDI_TRY(measure_sum(g, j, src, 8, elems_for(g, j, 8)));
        }
    for (uint32_t c = 0; c < args->share_count; c++) {
        j->bounds = (tdi_cuda_bounds){.share = args->shares[c]};
        TDI_TRY(measure_sum(g, j, src, 8, elems_for(g, j, 8)));
    }
    return TIDE_OK;
}

tide_status probe_run_sum(const gpu *g, const probe_args *args)
{
    job j = {0};
    tide_status status;
    TDI_TRY_GOTO(status, gpu_take(g, COPY_BYTES, true, &j.from), out);
    TDI_TRY_GOTO(status, gpu_take(g, COPY_BYTES, false, &j.to), out);
    TDI_TRY_GOTO(status, gpu_take(g, 8, false, &j.counter), out);
    status = sweep_sums(g, args, &j);
out:
    gpu_give(g, j.counter);
    gpu_give(g, j.from);
    gpu_give(g, j.to);
    return status;
}
