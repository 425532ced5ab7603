/* Times the variants of a collective and checks what they deliver. */
#include "perf/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "perf/agree.h"

#define BASELINE_LIMIT_MS 20000u

typedef struct run {
    const tdi_bench *bench;
    const tdi_bench_part *part;
    const tdi_rank *rank;
    void *state;
    double *times; /* [variant][iteration], milliseconds */
    double *hosts; /* the same, microseconds until all was queued */
    struct {
        uint64_t wrong[TDI_OP_VARIANTS];
        double sm_us[TDI_OP_VARIANTS];
    } mine;
    tdi_verdict dropped[TDI_OP_VARIANTS]; /* status != 0: why */
} run;

uint64_t tdi_bench_limit_ms(void)
{
    uint64_t timeout = (uint64_t)tdi_env_number(TDI_ENV_TIMEOUT_MS);
    return timeout + timeout / 2; /* tide's own deadline comes first */
}

static bool is_foreign(const run *r, const tdi_variant *variant)
{
    return variant->baseline && r->rank->device->kind->queued;
}

/* Does the rest go on without it? */
static bool is_optional(const run *r, const tdi_variant *variant)
{
    return is_foreign(r, variant) || variant->special;
}

/* --- One run -------------------------------------------------------------- */

static tide_status measure_calls(const run *r, const tdi_variant *variant,
                                 uint32_t calls, tdi_sample *sample)
{
    tdi_device *device = r->rank->device;
    uint64_t limit = is_foreign(r, variant)
                         ? tdi_min(BASELINE_LIMIT_MS, tdi_bench_limit_ms() / 3)
                         : tdi_bench_limit_ms();
    TDI_TRY(device->kind->start(device));
    for (uint32_t i = 0; i < calls; i++)
        TDI_TRY(variant->run(r->state));
    TDI_TRY(device->kind->stop(device));
    TDI_TRY(device->kind->wait(device, limit, sample));
    sample->ms /= calls;
    sample->host_us /= calls;
    return TIDE_OK;
}

tide_status tdi_bench_settle(const tdi_rank *rank)
{
    tdi_device *device = rank->device;
    tdi_sample ignored;
    TDI_TRY(device->kind->start(device));
    TDI_TRY(device->kind->stop(device));
    return device->kind->wait(device, tdi_bench_limit_ms(), &ignored);
}

/*
 * A baseline that has failed on a rank is dropped on all. Where it was not
 * just refused, peers may be stuck in it: its communicator is given up. The
 * device must then come to rest.
 */
static tide_status judge(run *r, uint32_t v, tide_status status)
{
    const tdi_variant *variant = r->part->variants[v];
    if (!is_optional(r, variant))
        return status;
    TDI_TRY(tdi_agree(r->rank->boot, status, &r->dropped[v]));
    if (!r->dropped[v].status)
        return TIDE_OK;
    if (r->dropped[v].status != TIDE_ERR_UNSUPPORTED && variant->baseline)
        tdi_nccl_drop(r->rank->nccl, variant->way, r->dropped[v].why);
    return tdi_bench_settle(r->rank);
}

static tide_status time_variant(run *r, uint32_t v, uint32_t calls,
                                tdi_sample *sample)
{
    *sample = (tdi_sample){(double)NAN, (double)NAN};
    if (r->dropped[v].status)
        return TIDE_OK;
    TDI_TRY(r->rank->device->kind->queued && r->rank->one_machine
                ? tdi_line_up(r->rank->boot)
                : tdi_barrier(r->rank->boot));
    return judge(r, v, measure_calls(r, r->part->variants[v], calls, sample));
}

/* --- Checks --------------------------------------------------------------- */

/* A part of the collective with what it needs around it. */
static tide_status check_part(run *r, uint32_t v,
                              tide_status (*part)(void *state))
{
    tdi_variant whole = *r->part->variants[v];
    tdi_sample ignored;
    if (!part || r->dropped[v].status)
        return TIDE_OK;
    whole.run = part;
    TDI_TRY(tdi_barrier(r->rank->boot));
    return judge(r, v, measure_calls(r, &whole, 1, &ignored));
}

static tide_status check_variant(run *r, uint32_t v, uint64_t seed)
{
    const tdi_bench_op *op = r->part->op;
    const tdi_variant *variant = r->part->variants[v];
    tdi_sample ignored;
    if (r->dropped[v].status)
        return TIDE_OK;
    TDI_TRY(op->poison(r->state));
    TDI_TRY(check_part(r, v, variant->before));
    TDI_TRY(time_variant(r, v, 1, &ignored));
    TDI_TRY(check_part(r, v, variant->after));
    if (r->dropped[v].status)
        return TIDE_OK;
    return op->count_wrong(r->state, seed, &r->mine.wrong[v]);
}

/* Not timed: its fills and poison would warm some caches and cool others.
 * Inputs are filled when no peer reads the old ones any more. */
static tide_status check_variants(run *r, uint64_t seed)
{
    TDI_TRY(tdi_barrier(r->rank->boot));
    TDI_TRY(r->part->op->fill(r->state, seed));
    for (uint32_t v = 0; v < r->part->variant_count; v++)
        TDI_TRY(check_variant(r, v, seed));
    return TIDE_OK;
}

/* Passes beside the timed one are for tide's own variants. */
static bool is_tides(const run *r, uint32_t v)
{
    return !r->part->variants[v]->baseline && !r->dropped[v].status;
}

/* The first run is compared with what it should be. Another one that differs
 * from it in a bit counts as one wrong element. */
static tide_status repeat_variant(run *r, uint32_t v, uint64_t seed)
{
    const tdi_bench_op *op = r->part->op;
    uint64_t first = 0, hash;
    tdi_sample ignored;
    for (uint32_t i = 0; i < r->bench->repeat; i++) {
        TDI_TRY(op->poison(r->state));
        TDI_TRY(time_variant(r, v, 1, &ignored));
        if (!i)
            TDI_TRY(op->count_wrong_noise(r->state, seed, &r->mine.wrong[v]));
        TDI_TRY(op->digest(r->state, &hash));
        if (!i)
            first = hash;
        r->mine.wrong[v] += hash != first;
    }
    return TIDE_OK;
}

static tide_status repeat_variants(run *r, uint64_t seed)
{
    if (!r->bench->repeat)
        return TIDE_OK;
    TDI_TRY(tdi_barrier(r->rank->boot));
    TDI_TRY(r->part->op->fill_noise(r->state, seed));
    for (uint32_t v = 0; v < r->part->variant_count; v++)
        if (is_tides(r, v))
            TDI_TRY(repeat_variant(r, v, seed));
    return TIDE_OK;
}

/* --- Times ---------------------------------------------------------------- */

static void show_progress(const run *r, uint32_t done, uint32_t of)
{
    if (!r->bench->progress || r->rank->boot->rank)
        return;
    fprintf(stderr, "\r%s: %" PRIu32 " of %" PRIu32 " iterations\033[K",
            r->part->op->name, done, of);
    if (done == of)
        fprintf(stderr, "\r\033[K");
}

/* Variants take turns within an iteration, so that noise hits all alike. */
static tide_status time_variants(run *r)
{
    uint32_t iters = r->bench->iters, warmup = r->bench->warmup;
    for (uint32_t i = 0; i < warmup + iters; i++) {
        for (uint32_t v = 0; v < r->part->variant_count; v++) {
            tdi_sample sample;
            TDI_TRY(time_variant(r, v, r->bench->calls, &sample));
            if (i < warmup)
                continue;
            r->times[v * iters + i - warmup] = sample.ms;
            r->hosts[v * iters + i - warmup] = sample.host_us;
        }
        show_progress(r, i + 1, warmup + iters);
    }
    return TIDE_OK;
}

/* Apart from the timed runs: counting costs time. */
static tide_status count_sm_time(run *r)
{
    tdi_device *device = r->rank->device;
    tdi_sample ignored;
    for (uint32_t v = 0; v < r->part->variant_count; v++) {
        r->mine.sm_us[v] = (double)NAN;
        if (!r->bench->sm_time || !is_tides(r, v))
            continue;
        TDI_TRY(device->kind->count_time(device, r->rank->comm));
        TDI_TRY(time_variant(r, v, 1, &ignored));
        TDI_TRY(
            device->kind->read_time(device, r->rank->comm, &r->mine.sm_us[v]));
    }
    return TIDE_OK;
}

/* --- Results -------------------------------------------------------------- */

/* values becomes the greatest of all ranks', element by element. */
static tide_status keep_slowest(const run *r, double *values, size_t count)
{
    uint32_t ranks = r->rank->boot->ranks;
    double *all = calloc(ranks * tdi_max(count, 1), sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the results");
    tide_status status =
        tdi_exchange_bytes(r->rank->boot, values, all, count * sizeof(*values));
    for (size_t i = 0; !status && i < ranks * count; i++)
        if (all[i] > values[i % count])
            values[i % count] = all[i];
    free(all);
    return status;
}

static tide_status add_wrong(run *r)
{
    uint32_t ranks = r->rank->boot->ranks;
    uint64_t (*all)[TDI_OP_VARIANTS] = calloc(ranks, sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the results");
    tide_status status = tdi_exchange_bytes(r->rank->boot, r->mine.wrong, all,
                                            sizeof(r->mine.wrong));
    memset(r->mine.wrong, 0, sizeof(r->mine.wrong));
    for (uint32_t rank = 0; !status && rank < ranks; rank++)
        for (uint32_t v = 0; v < r->part->variant_count; v++)
            r->mine.wrong[v] += all[rank][v];
    free(all);
    return status;
}

static tide_status combine_ranks(run *r)
{
    size_t count = (size_t)r->part->variant_count * r->bench->iters;
    TDI_TRY(add_wrong(r));
    TDI_TRY(keep_slowest(r, r->times, count));
    TDI_TRY(keep_slowest(r, r->hosts, count));
    return keep_slowest(r, r->mine.sm_us, TDI_OP_VARIANTS);
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sort_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), compare_times);
    return (values[n / 2] + values[(n - 1) / 2]) / 2;
}

static tide_status make_row(run *r, uint32_t v, tdi_row *row)
{
    const tdi_variant *variant = r->part->variants[v];
    const tdi_verdict *dropped = &r->dropped[v];
    uint32_t n = r->bench->iters;
    double *times = r->times + (size_t)v * n;
    *row = (tdi_row){.op = r->part->op->name,
                     .variant = variant->name,
                     .bytes = r->part->op->bytes(r->state),
                     .queued = r->rank->device->kind->queued,
                     .wrong = r->mine.wrong[v]};
    if (dropped->status) {
        row->fate = dropped->status == TIDE_ERR_UNSUPPORTED ? TDI_ROW_SKIPPED
                                                            : TDI_ROW_FAILED;
        snprintf(row->why, sizeof(row->why), "%s", dropped->why);
        return TIDE_OK;
    }
    row->time_ms = sort_median(times, n);
    row->min_ms = times[0];
    row->p99_ms = times[tdi_ceil_div((uint64_t)n * 99, 100) - 1];
    row->host_us = sort_median(r->hosts + (size_t)v * n, n);
    row->sm_us = r->mine.sm_us[v];
    return variant->buffer_bytes(r->state, &row->buffer_bytes);
}

/* Two seeds: what the first check left behind cannot pass the second. */
static tide_status measure(run *r, tdi_row *rows)
{
    TDI_TRY(check_variants(r, 1));
    TDI_TRY(time_variants(r));
    TDI_TRY(check_variants(r, 2));
    TDI_TRY(repeat_variants(r, 3));
    TDI_TRY(count_sm_time(r));
    TDI_TRY(combine_ranks(r));
    for (uint32_t v = 0; v < r->part->variant_count; v++)
        TDI_TRY(make_row(r, v, &rows[v]));
    return TIDE_OK;
}

/* Nothing is freed that is in use; and freeing device memory waits for the
 * device, which may wait for what a peer has not queued yet. */
static tide_status free_state(const tdi_bench_part *part, const tdi_rank *rank,
                              void *state, tide_status status)
{
    tide_status settled = state ? tdi_bench_settle(rank) : TIDE_OK;
    if (!status)
        status = settled ? settled : tdi_barrier(rank->boot);
    part->op->free(state);
    return status;
}

static tide_status run_part(const tdi_bench *bench, const tdi_bench_part *part,
                            const tdi_rank *rank, const tdi_params *params,
                            tdi_row *rows)
{
    run r = {.bench = bench, .part = part, .rank = rank};
    size_t count = (size_t)part->variant_count * bench->iters;
    tide_status status = part->op->create(rank, params, &r.state);
    r.times = calloc(count, sizeof(*r.times));
    r.hosts = calloc(count, sizeof(*r.hosts));
    if (!status && (!r.times || !r.hosts))
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory for the times");
    if (!status)
        status = measure(&r, rows);
    free(r.hosts);
    free(r.times);
    return free_state(part, rank, r.state, status);
}

tide_status tdi_bench_run(const tdi_bench *bench, const tdi_rank *rank,
                          const tdi_case *on, tdi_row *rows)
{
    for (uint32_t p = 0; p < bench->part_count; p++) {
        const tdi_bench_part *part = &bench->parts[p];
        TDI_TRY(run_part(bench, part, rank, &on->params[p], rows));
        rows += part->variant_count;
    }
    return TIDE_OK;
}

/* --- Scratch -------------------------------------------------------------- */

static tide_status count_scratch(const tdi_bench_part *part,
                                 const tdi_rank *rank, const tdi_params *params,
                                 uint64_t *bytes)
{
    tide_group *group;
    const tide_plan *plan;
    tide_plan_stats stats;
    TDI_TRY(tide_group_create(rank->comm, params->params, params->count,
                              "scratch", &group));
    tide_status status =
        tide_group_plan(group, part->op->coll, TIDE_BF16, TIDE_F32, &plan);
    if (!status) {
        tide_plan_get_stats(plan, &stats);
        *bytes = stats.buffer_bytes;
    }
    tide_group_free(group);
    return status;
}

/* What the tensors hold does not matter. */
static tide_status run_once(const tdi_bench_part *part, const tdi_rank *rank,
                            const tdi_params *params)
{
    void *state = NULL;
    tide_status status = part->op->create(rank, params, &state);
    if (!status)
        status = part->op->variants[0].run(state);
    return free_state(part, rank, state, status);
}

static tide_status grow_part(const tdi_bench *bench, uint32_t p,
                             const tdi_rank *rank, const tdi_case *cases,
                             uint32_t count)
{
    const tdi_bench_part *part = &bench->parts[p];
    uint64_t most = 0, bytes = 0;
    const tdi_params *largest = NULL;
    for (uint32_t i = 0; i < count; i++) {
        TDI_TRY(count_scratch(part, rank, &cases[i].params[p], &bytes));
        if (bytes > most) {
            most = bytes;
            largest = &cases[i].params[p];
        }
    }
    return largest ? run_once(part, rank, largest) : TIDE_OK;
}

tide_status tdi_bench_grow(const tdi_bench *bench, const tdi_rank *rank,
                           const tdi_case *cases, uint32_t count)
{
    /* One scratch that grows alone leaves no hole. */
    if (!rank->device->kind->queued || count < 2 || bench->part_count < 2)
        return TIDE_OK;
    for (uint32_t p = 0; p < bench->part_count; p++)
        TDI_TRY(grow_part(bench, p, rank, cases, count));
    return TIDE_OK;
}
