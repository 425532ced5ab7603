/* The soak: batches of rounds that are queued back to back, then checked. */
#include "perf/soak.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/fail.h"
#include "base/util.h"
#include "perf/agree.h"

#define HOST_DELAY_NS  100000u
#define DEVICE_SCRATCH (1u << 20) /* bytes; a fill of it is a delay */

typedef struct soak {
    const tdi_rank *rank; /* whose runs overlap */
    void *gather[TDI_SOAK_DEPTH];
    void *reduce[TDI_SOAK_DEPTH];
    void *scratch;
    uint64_t wrong;
    uint32_t round; /* that is queued next */
} soak;

static tide_status create_states(soak *s, const tdi_params *params)
{
    tdi_device *device = s->rank->device;
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++) {
        TDI_TRY(tdi_bench_gather.create(s->rank, params, &s->gather[k]));
        TDI_TRY(tdi_bench_reduce.create(s->rank, params, &s->reduce[k]));
    }
    return device->kind->take(device, DEVICE_SCRATCH, &s->scratch);
}

static void free_states(soak *s)
{
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++) {
        tdi_bench_gather.free(s->gather[k]);
        tdi_bench_reduce.free(s->reduce[k]);
    }
    s->rank->device->kind->give(s->rank->device, s->scratch);
}

/* One call in four is late on the host, one in eight on the device. */
static tide_status delay(const soak *s, uint64_t salt)
{
    uint64_t dice = tdi_hash(tdi_hash(s->round, s->rank->boot->rank), salt);
    tdi_device *device = s->rank->device;
    if (dice % 4 == 0)
        nanosleep(
            &(struct timespec){.tv_nsec = (long)((dice >> 8) % HOST_DELAY_NS)},
            NULL);
    if (dice % 8 == 1)
        return device->kind->set(device, s->scratch, 0,
                                 (dice >> 8) % DEVICE_SCRATCH);
    return TIDE_OK;
}

static tide_status fill_round(soak *s, uint32_t k)
{
    uint64_t stamp = s->round + k + 1;
    TDI_TRY(tdi_bench_gather.fill(s->gather[k], stamp));
    TDI_TRY(tdi_bench_reduce.fill(s->reduce[k], stamp));
    TDI_TRY(tdi_bench_gather.poison(s->gather[k]));
    return tdi_bench_reduce.poison(s->reduce[k]);
}

static tide_status queue_round(soak *s, uint32_t k)
{
    const tdi_variant *reduce = &tdi_bench_reduce.variants[s->round % 2];
    TDI_TRY(delay(s, 1));
    TDI_TRY(tdi_bench_gather.variants[0].run(s->gather[k]));
    TDI_TRY(delay(s, 2));
    TDI_TRY(reduce->run(s->reduce[k]));
    s->round++;
    return TIDE_OK;
}

/* The barrier: peers have read what the fills overwrite. */
static tide_status run_batch(soak *s, double *round_ms)
{
    tdi_device *device = s->rank->device;
    tdi_sample sample;
    uint32_t first = s->round;
    TDI_TRY(tdi_barrier(s->rank->boot));
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++)
        TDI_TRY(fill_round(s, k));
    TDI_TRY(device->kind->start(device));
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++)
        TDI_TRY(queue_round(s, k));
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++) {
        TDI_TRY(tdi_bench_gather.join(s->gather[k]));
        TDI_TRY(tdi_bench_reduce.join(s->reduce[k]));
    }
    TDI_TRY(device->kind->stop(device));
    TDI_TRY(device->kind->wait(device, tdi_bench_limit_ms(), &sample));
    for (uint32_t k = 0; k < TDI_SOAK_DEPTH; k++) {
        uint64_t stamp = first + k + 1;
        TDI_TRY(tdi_bench_gather.count_wrong(s->gather[k], stamp, &s->wrong));
        TDI_TRY(tdi_bench_reduce.count_wrong(s->reduce[k], stamp, &s->wrong));
    }
    *round_ms = sample.ms / TDI_SOAK_DEPTH;
    return TIDE_OK;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tide_status add_wrong(soak *s)
{
    uint32_t ranks = s->rank->boot->ranks;
    uint64_t *all = calloc(ranks, sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the results");
    tide_status status =
        tdi_exchange_bytes(s->rank->boot, &s->wrong, all, sizeof(s->wrong));
    s->wrong = 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        s->wrong += all[rank];
    free(all);
    return status;
}

static tide_status run_batches(soak *s, double *times, uint32_t batches,
                               int progress)
{
    for (uint32_t i = 0; i < batches; i++) {
        TDI_TRY(run_batch(s, &times[i]));
        if (progress && !s->rank->boot->rank)
            fprintf(stderr, "\rsoak: %" PRIu32 " rounds\033[K%s", s->round,
                    i + 1 == batches ? "\r\033[K" : "");
    }
    return add_wrong(s);
}

tide_status tdi_soak_run(const tdi_rank *rank, const tdi_case *on,
                         uint32_t rounds, int progress, tdi_row *row)
{
    tdi_rank overlapping = *rank;
    overlapping.overlaps = true;
    soak s = {.rank = &overlapping};
    uint32_t batches = (uint32_t)tdi_ceil_div(rounds, TDI_SOAK_DEPTH);
    double *times = calloc(batches, sizeof(*times));
    tide_status status =
        times ? create_states(&s, &on->params[0])
              : tdi_fail(TIDE_ERR_MEMORY, "no memory for the times");
    if (!status)
        status = run_batches(&s, times, batches, progress);
    if (!status) {
        qsort(times, batches, sizeof(*times), compare_times);
        *row = (tdi_row){
            .op = "ag+rs",
            .variant = "soak",
            .bytes = tdi_bench_gather.bytes(s.gather[0]),
            .time_ms = times[batches / 2],
            .min_ms = times[0],
            .p99_ms = times[tdi_ceil_div((uint64_t)batches * 99, 100) - 1],
            .wrong = s.wrong,
            .queued = rank->device->kind->queued,
            .host_us = (double)NAN,
            .sm_us = (double)NAN};
    }
    tide_status settled = tdi_bench_settle(rank);
    if (!status)
        status = settled ? settled : tdi_barrier(rank->boot);
    free_states(&s);
    free(times);
    return status;
}
