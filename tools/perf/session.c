/* Loads the groups of a run and finds out what memory they need. */
#include "perf/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"

#define RANGE_BYTES (64u << 10) /* more than an arena rounds a range up by */
#define SPARE_BYTES (64ull << 20)

/* --- Room in the arena of a device ---------------------------------------- */

/* As many ranks of a node as tide will find. */
static uint32_t guess_local(const tdi_perf_args *args)
{
    uint32_t local = args->local;
    if (!local)
        local = (uint32_t)tdi_env_number(TDI_ENV_LOCAL_SIZE);
    if (!local)
        local = args->is_started ? args->started.local_ranks : args->ranks;
    return args->ranks % local ? args->ranks : local;
}

static tide_status plan_bytes(const tdi_session *s, const tide_layout *layout,
                              tide_coll coll, uint64_t *bytes)
{
    uint32_t local = guess_local(s->args);
    tide_topology topology = {s->args->ranks / local, local};
    tide_plan_options options = {.coll = coll,
                                 .grad_dtype = TIDE_BF16,
                                 .out_dtype = TIDE_F32,
                                 .staged = 1};
    tide_plan_stats stats;
    tide_plan *plan;
    TDI_TRY(tide_plan_create(layout, topology, 0, &options, &plan));
    tide_plan_get_stats(plan, &stats);
    tide_plan_free(plan);
    *bytes += stats.buffer_bytes;
    return TIDE_OK;
}

/* Gradients lie there twice: in place, and in the slot. */
static void grad_bytes(const tide_layout *layout, uint64_t *bytes)
{
    for (size_t p = 0; p < tide_layout_count(layout); p++)
        *bytes +=
            2 * (tide_layout_param(layout, p)->grad_elems * sizeof(uint16_t) +
                 RANGE_BYTES);
}

/* Storages of push landing lie there. */
static void push_bytes(const tdi_bench *bench, const tide_layout *layout,
                       uint64_t *bytes)
{
    bool pushes = false;
    for (uint32_t v = 0; v < bench->variant_count; v++)
        pushes |= !strcmp(bench->variants[v]->key, "push");
    for (size_t p = 0; pushes && p < tide_layout_count(layout); p++)
        *bytes += tide_layout_param(layout, p)->storage_bytes + RANGE_BYTES;
}

/* A device's arena is memory, not just addresses: it is made as large as the
 * groups need, unless the user says how large. */
static tide_status add_needs(tdi_session *s, const tide_layout *layout)
{
    const tdi_perf_args *args = s->args;
    bool gathers = args->soak || args->bench.op == &tdi_bench_gather;
    bool reduces = args->soak || args->bench.op == &tdi_bench_reduce;
    uint64_t bytes = 0;
    if (!args->device->queued)
        return TIDE_OK;
    if (args->bench.op)
        s->flat_bytes =
            tdi_max(s->flat_bytes, args->bench.op->flat_bytes(layout));
    if (getenv("TIDE_ARENA_MIB"))
        return TIDE_OK;
    if (gathers) {
        TDI_TRY(plan_bytes(s, layout, TIDE_ALL_GATHER, &bytes));
        push_bytes(&args->bench, layout, &bytes);
    }
    if (reduces) {
        TDI_TRY(plan_bytes(s, layout, TIDE_REDUCE_SCATTER, &bytes));
        grad_bytes(layout, &bytes);
    }
    bytes = args->soak ? bytes * TDI_SOAK_DEPTH : bytes;
    bytes = tdi_round_up(bytes + bytes / 4 + SPARE_BYTES, 2u << 20);
    s->arena_bytes = tdi_max(s->arena_bytes, bytes);
    return TIDE_OK;
}

/* --- Sessions ------------------------------------------------------------- */

/* The layout is made here too, so that a bad group is said once. */
static tide_status load_group(tdi_session *s, uint32_t i)
{
    const tdi_perf_args *args = s->args;
    tide_dtype dtype =
        args->bench.op == &tdi_bench_reduce ? TIDE_F32 : TIDE_BF16;
    tide_layout *layout;
    if (args->group)
        TDI_TRY(tdi_params_load(args->group, args->scale, &s->groups[i]));
    else
        TDI_TRY(tdi_params_split(
            tdi_ceil_div(args->sizes[i], tide_dtype_size(dtype)), args->ranks,
            &s->groups[i]));
    TDI_TRY(tide_layout_create(s->groups[i].params, s->groups[i].count,
                               args->ranks, &layout));
    tide_status status = add_needs(s, layout);
    tide_layout_free(layout);
    return status;
}

tide_status tdi_session_open(tdi_session *s)
{
    uint32_t count = s->args->group ? 1 : s->args->size_count;
    for (; s->group_count < count; s->group_count++)
        TDI_TRY(load_group(s, s->group_count));
    s->report_bytes =
        sizeof(*s->report) + s->args->ranks * sizeof(s->report->errors[0]);
    void *shared = mmap(NULL, s->report_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tdi_fail_errno("no memory for the report");
    s->report = shared;
    s->codes = calloc(s->args->ranks, sizeof(*s->codes));
    if (!s->codes)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the exit codes");
    /* Now, so that a bad name is known before the work rather than after. */
    if (s->args->json && tdi_is_reporter(s) &&
        !(s->json = fopen(s->args->json, "w")))
        return tdi_fail_errno("%s cannot be written", s->args->json);
    return TIDE_OK;
}

void tdi_session_close(tdi_session *s)
{
    for (uint32_t i = 0; i < TDI_COUNT(s->groups); i++)
        tdi_params_free(&s->groups[i]);
    if (s->report)
        munmap(s->report, s->report_bytes);
    free(s->codes);
    if (s->json)
        fclose(s->json);
}
