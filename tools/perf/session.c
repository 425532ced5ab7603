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

/* What the arena must hold at a time. Buffers stay, and grow at the start to
 * what the largest case needs (tdi_bench_grow); tensors are given back. */
typedef struct arena_needs {
    uint64_t gather;
    uint64_t reduce;
    uint64_t tensors;
} arena_needs;

static tide_status keep_plan(const tdi_session *s, const tide_layout *layout,
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
    *bytes = tdi_max(*bytes, stats.buffer_bytes);
    return TIDE_OK;
}

/* Gradients lie there twice: in place, and in the slot. */
static void keep_grads(const tide_layout *layout, arena_needs *needs)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < tide_layout_count(layout); p++)
        bytes +=
            2 * (tide_layout_param(layout, p)->grad_elems * sizeof(uint16_t) +
                 RANGE_BYTES);
    needs->tensors = tdi_max(needs->tensors, bytes);
}

/* Storages of push landing lie there. */
static void keep_pushed(const tide_layout *layout, arena_needs *needs)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < tide_layout_count(layout); p++)
        bytes += tide_layout_param(layout, p)->storage_bytes + RANGE_BYTES;
    needs->tensors = tdi_max(needs->tensors, bytes);
}

static bool pushes(const tdi_bench_part *part)
{
    for (uint32_t v = 0; v < part->variant_count; v++)
        if (!strcmp(part->variants[v]->key, "push"))
            return true;
    return false;
}

/* What a part needs; of the soak, which has none, both collectives. */
static tide_status add_needs(tdi_session *s, const tdi_bench_part *part,
                             const tide_layout *layout, arena_needs *needs)
{
    if (!s->args->device->queued)
        return TIDE_OK;
    if (part)
        s->flat_bytes = tdi_max(s->flat_bytes, part->op->flat_bytes(layout));
    if (!part || part->op == &tdi_bench_gather)
        TDI_TRY(keep_plan(s, layout, TIDE_ALL_GATHER, &needs->gather));
    if (part && pushes(part))
        keep_pushed(layout, needs);
    if (!part || part->op == &tdi_bench_reduce) {
        TDI_TRY(keep_plan(s, layout, TIDE_REDUCE_SCATTER, &needs->reduce));
        keep_grads(layout, needs);
    }
    return TIDE_OK;
}

/* A device's arena is memory, not just addresses: it is made as large as the
 * groups need, unless the user says how large. */
static void size_arena(tdi_session *s, const arena_needs *needs)
{
    uint64_t bytes = needs->gather + needs->reduce + needs->tensors;
    if (!s->args->device->queued || getenv("TIDE_ARENA_MIB"))
        return;
    bytes = s->args->soak ? bytes * TDI_SOAK_DEPTH : bytes;
    s->arena_bytes = tdi_round_up(bytes + bytes / 4 + SPARE_BYTES, 2u << 20);
}

/* --- Sessions ------------------------------------------------------------- */

/* The bytes of --bytes are those of the shard, or of the fp32 output. */
static tide_status load_params(const tdi_session *s, uint32_t i,
                               const tdi_bench_part *part, tdi_params *params)
{
    const tdi_perf_args *args = s->args;
    tide_dtype dtype =
        part && part->op == &tdi_bench_reduce ? TIDE_F32 : TIDE_BF16;
    if (args->group_count)
        return tdi_params_load(args->groups[i], args->scales[i], params);
    return tdi_params_split(
        tdi_ceil_div(args->sizes[i], tide_dtype_size(dtype)), args->ranks,
        params);
}

/* The layout is made here too, so that a bad group is said once. */
static tide_status load_part(tdi_session *s, uint32_t i,
                             const tdi_bench_part *part, tdi_params *params,
                             arena_needs *needs)
{
    tide_layout *layout;
    TDI_TRY(load_params(s, i, part, params));
    TDI_TRY(tide_layout_create(params->params, params->count, s->args->ranks,
                               &layout));
    tide_status status = add_needs(s, part, layout, needs);
    tide_layout_free(layout);
    return status;
}

static tide_status load_case(tdi_session *s, uint32_t i, arena_needs *needs)
{
    const tdi_perf_args *args = s->args;
    tdi_case *made = &s->groups[i];
    *made = (tdi_case){.group = args->groups[i], .scale = args->scales[i]};
    if (args->soak)
        return load_part(s, i, NULL, &made->params[0], needs);
    for (uint32_t p = 0; p < args->bench.part_count; p++)
        TDI_TRY(
            load_part(s, i, &args->bench.parts[p], &made->params[p], needs));
    return TIDE_OK;
}

tide_status tdi_session_open(tdi_session *s)
{
    const tdi_perf_args *args = s->args;
    uint32_t count = args->group_count ? args->group_count : args->size_count;
    arena_needs needs = {0};
    for (; s->group_count < count; s->group_count++)
        TDI_TRY(load_case(s, s->group_count, &needs));
    size_arena(s, &needs);
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
        for (uint32_t p = 0; p < TDI_OPS; p++)
            tdi_params_free(&s->groups[i].params[p]);
    if (s->report)
        munmap(s->report, s->report_bytes);
    free(s->codes);
    if (s->json)
        fclose(s->json);
}
