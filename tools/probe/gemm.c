/* A GEMM that fills the GPU once, alone and beside tide's work. */
#include "probe/gemm.h"

#include <stdio.h>
#include <time.h>

#include "base/fail.h"
#include "base/util.h"
#include "probe/beside.h"
#include "probe/blas.h"
#include "probe/report.h"

enum { EXTRA = 512 }; /* columns more than asked for, to see a second wave */
enum { TURNS = 5 };   /* of GEMMs alone, and beside a walk */

static const uint64_t spin_ns = 2000000000; /* if nobody stops the block */
static const double settle_us = 5000;       /* before the timing */
static const double alone_us = 60000;       /* of the work without a GEMM */

typedef struct session {
    const gpu *g;
    const probe_args *args;
    blas *blas;
    walk *walk;
    char place[16]; /* "1x8" */
    double median;  /* alone */
    double mean;
} session;

static void pause_us(double us)
{
    struct timespec t = {0, (long)(us * 1e3)};
    nanosleep(&t, NULL);
}

static tide_status time_gemm(session *s, double *median, double *mean)
{
    const uint32_t *gemm = s->args->gemm;
    return blas_time(s->blas, gemm[0], gemm[1], gemm[2], s->args->runs, median,
                     mean);
}

/* --- Alone ---------------------------------------------------------------- */

/* A wave more shows as a step in the times of growing shapes. */
static tide_status measure_shapes(session *s)
{
    const uint32_t *gemm = s->args->gemm;
    for (uint32_t extra = 0; extra <= EXTRA; extra += EXTRA / 4) {
        char text[40];
        double mean;
        uint32_t n = gemm[1] + extra;
        snprintf(text, sizeof(text), "alone %ux%ux%u", gemm[0], n, gemm[2]);
        probe_row row = probe_row_of("gemm", text);
        TDI_TRY(blas_time(s->blas, gemm[0], n, gemm[2], s->args->runs,
                          &row.time_ms, &mean));
        probe_add(&row);
        if (extra)
            continue;
        TDI_TRY(time_gemm(s, &s->median, &s->mean)); /* warm */
        row.time_ms = s->median;
        row.slow = 0;
        row.mean = 0;
        snprintf(row.variant, sizeof(row.variant), "alone, again");
        probe_add(&row);
    }
    return TIDE_OK;
}

static void set_slowdown(const session *s, probe_row *row, double mean)
{
    row->slow = 100 * (row->time_ms / s->median - 1);
    row->mean = 100 * (mean / s->mean - 1);
}

static tide_status measure_spin(session *s)
{
    const gpu *g = s->g;
    probe_row row = probe_row_of("gemm", "one block that spins");
    double mean;
    void *memory;
    row.ctas = 1;
    TRY_CUDA(g, host_alloc(&memory, sizeof(int)));
    volatile int *stop = memory;
    *stop = 0;
    tide_status status = gpu_launch_spin(g, stop, spin_ns, g->beside);
    if (!status)
        status = time_gemm(s, &row.time_ms, &mean);
    *stop = 1;
    if (!status)
        status = tdi_cuda_check(g->cuda, g->cuda->stream_sync(g->beside), 0,
                                "a block that spins");
    g->cuda->host_free(memory);
    TDI_TRY(status);
    set_slowdown(s, &row, mean);
    probe_add(&row);
    return TIDE_OK;
}

/* --- Beside a walk -------------------------------------------------------- */

/* What happens beside the walk: GEMMs, or a pause. */
typedef struct turn {
    double median; /* of a GEMM; 0: a pause */
    double mean;
    double us; /* in all */
    uint64_t bytes;
} turn;

static tide_status take_turn(session *s, bool gemm, turn *t)
{
    beside *b;
    tide_status status = TIDE_OK;
    TDI_TRY(beside_start(s->g, s->walk, &b));
    pause_us(settle_us);
    t->bytes = beside_bytes(b);
    double start = gpu_now_us();
    if (gemm)
        status = time_gemm(s, &t->median, &t->mean);
    else
        pause_us(alone_us);
    t->us = gpu_now_us() - start;
    t->bytes = beside_bytes(b) - t->bytes;
    tide_status ended = beside_stop(b);
    return status ? status : ended;
}

static void set_rate(probe_row *row, uint64_t bytes, double us)
{
    row->bytes = bytes;
    row->gbs = (double)bytes / us / 1e3;
}

static tide_status run_alone(session *s, probe_row *row)
{
    turn t = {0};
    TDI_TRY(take_turn(s, false, &t));
    set_rate(row, t.bytes, t.us);
    return TIDE_OK;
}

/* GEMMs alone and beside the walk take turns, for the device's clocks change
 * while it works: each turn is compared with its own base. */
static tide_status run_gemms(session *s, probe_row *row)
{
    double median[TURNS], slow[TURNS], mean[TURNS], us = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < TURNS; i++) {
        turn alone = {0}, t = {0};
        TDI_TRY(time_gemm(s, &alone.median, &alone.mean));
        TDI_TRY(take_turn(s, true, &t));
        median[i] = t.median;
        slow[i] = 100 * (t.median / alone.median - 1);
        mean[i] = 100 * (t.mean / alone.mean - 1);
        bytes += t.bytes;
        us += t.us;
    }
    row->time_ms = gpu_median(median, TURNS);
    row->slow = gpu_median(slow, TURNS);
    row->mean = gpu_median(mean, TURNS);
    set_rate(row, bytes, us);
    return TIDE_OK;
}

static tide_status measure_walk(session *s, const char *name,
                                const walk_mode *mode)
{
    for (int gemm = 0; gemm < 2; gemm++) {
        char text[40];
        snprintf(text, sizeof(text), "%s %s%s", s->place, name,
                 gemm ? "" : ", no gemm");
        probe_row row = probe_row_of("gemm", text);
        row.ctas = mode->bounds.ctas;
        row.chunk = mode->bounds.chunk;
        row.share = mode->bounds.share;
        walk_set_mode(s->walk, mode);
        TDI_TRY(gemm ? run_gemms(s, &row) : run_alone(s, &row));
        probe_add(&row);
    }
    return TIDE_OK;
}

static tide_status measure_bounds(session *s, const char *name, bool copies)
{
    const probe_args *args = s->args;
    for (uint32_t i = 0; i < args->cta_count; i++)
        for (uint32_t c = 0; c < args->chunk_count; c++) {
            walk_mode mode = {.copies = copies,
                              .sums = true,
                              .bounds = {.ctas = (uint32_t)args->ctas[i],
                                         .chunk = args->chunks[c]}};
            TDI_TRY(measure_walk(s, name, &mode));
        }
    for (uint32_t c = 0; c < args->share_count; c++) {
        walk_mode mode = {.copies = copies,
                          .sums = true,
                          .bounds = {.share = args->shares[c]}};
        TDI_TRY(measure_walk(s, name, &mode));
    }
    return TIDE_OK;
}

static tide_status measure_walks(session *s)
{
    const walk_mode copies = {.copies = true};
    const walk_mode unbounded = {.copies = true, .sums = true};
    const walk_mode sums = {.sums = true};
    TDI_TRY(measure_walk(s, "copies", &copies));
    TDI_TRY(measure_walk(s, "copies+sums", &unbounded));
    TDI_TRY(measure_walk(s, "sums", &sums));
    TDI_TRY(measure_bounds(s, "copies+sums", true));
    return measure_bounds(s, "sums", false);
}

static tide_status measure_topologies(session *s)
{
    static const tide_topology topologies[] = {{1, 8}, {2, 4}};
    tdi_params params;
    tide_layout *layout = NULL;
    TDI_TRY(probe_params(s->args, &params));
    tide_status status =
        tide_layout_create(params.params, params.count, 8, &layout);
    for (size_t i = 0; i < TDI_COUNT(topologies) && !status; i++) {
        snprintf(s->place, sizeof(s->place), "%ux%u", topologies[i].nodes,
                 topologies[i].local_size);
        status = walk_open(s->g, layout, topologies[i], &s->walk);
        if (!status)
            status = measure_walks(s);
        walk_close(s->walk);
        s->walk = NULL;
    }
    tide_layout_free(layout);
    tdi_params_free(&params);
    return status;
}

tide_status probe_run_gemm(const gpu *g, const probe_args *args)
{
    session s = {.g = g, .args = args};
    const uint32_t *gemm = args->gemm;
    TDI_TRY(
        blas_open(g, args->cublas, gemm[0], gemm[1] + EXTRA, gemm[2], &s.blas));
    tide_status status = measure_shapes(&s);
    if (!status)
        status = measure_spin(&s);
    if (!status)
        status = measure_topologies(&s);
    blas_close(s.blas);
    return status;
}
