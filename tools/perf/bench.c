/* Times the variants of a collective and checks what they deliver. */
#include "perf/bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/util.h"

typedef struct run {
    const tdi_bench *bench;
    const tide_bootstrap *boot;
    void *state;
    double *times; /* [variant][iteration], milliseconds */
    uint64_t wrong[TDI_BENCH_VARIANTS];
} run;

void *tdi_bench_take(uint64_t bytes, tide_status *status)
{
    void *memory = aligned_alloc(64, tdi_round_up(tdi_max(bytes, 1), 64));
    if (!memory)
        *status =
            tdi_fail(TIDE_ERR_MEMORY, "no memory for %" PRIu64 " bytes", bytes);
    return memory;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static tide_status exchange(const tide_bootstrap *boot, const void *send,
                            void *recv, size_t bytes)
{
    if (boot->allgather(boot->context, send, recv, bytes))
        return tdi_fail(TIDE_ERR_PEER, "rank %" PRIu32 ": a rank did not come",
                        boot->rank);
    return TIDE_OK;
}

static tide_status time_variant(run *r, uint32_t v, double *ms)
{
    TDI_TRY(exchange(r->boot, NULL, NULL, 0));
    double start = now_ms();
    TDI_TRY(r->bench->variants[v]->run(r->state));
    *ms = now_ms() - start;
    return TIDE_OK;
}

/* Not timed: its fills and poison would warm some caches and cool others. */
static tide_status check_variants(run *r, uint64_t seed)
{
    const tdi_bench_op *op = r->bench->op;
    double ignored;
    op->fill(r->state, seed);
    for (uint32_t v = 0; v < r->bench->variant_count; v++) {
        op->poison(r->state);
        TDI_TRY(time_variant(r, v, &ignored));
        r->wrong[v] += op->count_wrong(r->state, seed);
    }
    return TIDE_OK;
}

static void show_progress(const run *r, uint32_t done, uint32_t of)
{
    if (!r->bench->progress || r->boot->rank)
        return;
    fprintf(stderr, "\r%s: %" PRIu32 " of %" PRIu32 " iterations\033[K",
            r->bench->op->name, done, of);
    if (done == of)
        fprintf(stderr, "\r\033[K");
}

/* Variants take turns within an iteration, so that noise hits all alike. */
static tide_status time_variants(run *r)
{
    uint32_t iters = r->bench->iters, warmup = r->bench->warmup;
    for (uint32_t i = 0; i < warmup + iters; i++) {
        for (uint32_t v = 0; v < r->bench->variant_count; v++) {
            double ms;
            TDI_TRY(time_variant(r, v, &ms));
            if (i >= warmup)
                r->times[v * iters + i - warmup] = ms;
        }
        show_progress(r, i + 1, warmup + iters);
    }
    return TIDE_OK;
}

/* times becomes that of the slowest rank, wrong the sum over ranks. */
static tide_status combine_ranks(run *r)
{
    size_t count = (size_t)r->bench->variant_count * r->bench->iters;
    uint32_t ranks = r->boot->ranks;
    uint64_t (*wrong)[TDI_BENCH_VARIANTS] = calloc(ranks, sizeof(*wrong));
    double *times = calloc(ranks * count, sizeof(*times));
    tide_status status = TIDE_OK;
    if (!wrong || !times)
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory for the results");
    if (!status)
        status = exchange(r->boot, r->wrong, wrong, sizeof(r->wrong));
    if (!status)
        status = exchange(r->boot, r->times, times, count * sizeof(*times));
    for (uint32_t rank = 0; !status && rank < ranks; rank++) {
        for (uint32_t v = 0; v < r->bench->variant_count; v++)
            r->wrong[v] = (rank ? r->wrong[v] : 0) + wrong[rank][v];
        for (size_t i = 0; i < count; i++)
            if (times[rank * count + i] > r->times[i])
                r->times[i] = times[rank * count + i];
    }
    free(times);
    free(wrong);
    return status;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tide_status make_row(run *r, uint32_t v, tdi_row *row)
{
    const tdi_variant *variant = r->bench->variants[v];
    uint32_t n = r->bench->iters;
    double *times = r->times + (size_t)v * n;
    qsort(times, n, sizeof(*times), compare_times);
    row->op = r->bench->op->name;
    row->variant = variant->name;
    row->bytes = r->bench->op->bytes(r->state);
    row->min_ms = times[0];
    row->time_ms = (times[n / 2] + times[(n - 1) / 2]) / 2;
    row->p99_ms = times[tdi_ceil_div((uint64_t)n * 99, 100) - 1];
    row->wrong = r->wrong[v];
    return variant->buffer_bytes(r->state, &row->buffer_bytes);
}

/* Two seeds: what the first check left behind cannot pass the second. */
static tide_status measure(run *r, tdi_row *rows)
{
    TDI_TRY(check_variants(r, 1));
    TDI_TRY(time_variants(r));
    TDI_TRY(check_variants(r, 2));
    TDI_TRY(combine_ranks(r));
    for (uint32_t v = 0; v < r->bench->variant_count; v++)
        TDI_TRY(make_row(r, v, &rows[v]));
    return TIDE_OK;
}

tide_status tdi_bench_run(const tdi_bench *bench, tide_comm *comm,
                          const tide_bootstrap *boot, const tdi_params *params,
                          tdi_row *rows)
{
    run r = {.bench = bench, .boot = boot};
    tide_status status = bench->op->create(comm, params, &r.state);
    if (!status)
        r.times = tdi_bench_take(
            sizeof(*r.times) * bench->variant_count * bench->iters, &status);
    if (!status)
        status = measure(&r, rows);
    free(r.times);
    bench->op->free(r.state);
    return status;
}
