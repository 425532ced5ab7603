/* Verifies the plans of a case; prints the statistics of one. */
#include "plan/check.h"

#include "base/fail.h"
#include "plan/names.h"
#include "plan/verify.h"

#include <inttypes.h>

static tide_status verify(const tdi_case *c, tide_plan **plans)
{
    const tide_plan *const *all = (const tide_plan *const *)plans;
    TDI_TRY(tide_verify_bounds(c->layout, all));
    TDI_TRY(tide_verify_sync(all));
    TDI_TRY(tide_verify_order(c->layout, all));
    return tide_verify_result(c->layout, all);
}

tide_status tdi_case_verify(const tdi_case *c)
{
    tide_plan **plans;
    uint32_t ranks = tdi_case_ranks(c);
    TDI_TRY(tdi_plans_create(c, ranks, &plans));
    tide_status status = verify(c, plans);
    tdi_plans_free(plans, ranks);
    return status;
}

/* One number of the statistics. */
typedef void emit(void *context, const char *key, uint64_t value);

static void emit_named(emit *on, void *context, const char *kind,
                       const char *name, uint64_t value)
{
    char key[64];
    snprintf(key, sizeof(key), "%s_%s", name, kind);
    if (value)
        on(context, key, value);
}

static void walk_stats(const tide_plan *plan, emit *on, void *context)
{
    tide_plan_stats s;
    tide_plan_get_stats(plan, &s);
    for (unsigned i = 0; i < TIDE_OP_COUNT; i++)
        emit_named(on, context, "ops", tdi_op_name(i), s.ops[i]);
    for (unsigned i = 0; i < TIDE_LANE_COUNT; i++)
        emit_named(on, context, "lane_bytes", tdi_lane_name(i),
                   s.lane_bytes[i]);
    for (unsigned i = 0; i < TIDE_BUF_COUNT; i++)
        emit_named(on, context, "buffer_bytes", tdi_buffer_name(i),
                   plan->buffer_bytes[i]);
    on(context, "local_bytes", s.local_bytes);
    on(context, "rail_bytes", s.rail_bytes);
    on(context, "rounds", s.rounds);
    on(context, "buffer_bytes", s.buffer_bytes);
    on(context, "plan_bytes", plan->op_count * sizeof(tide_op));
}

static void print_stat(void *context, const char *key, uint64_t value)
{
    fprintf(context, "%-22s %" PRIu64 "\n", key, value);
}

static void json_stat(void *context, const char *key, uint64_t value)
{
    tdi_json_count(context, key, value);
}

void tdi_stats_print(FILE *to, const tide_plan *plan)
{
    fprintf(to,
            "# %s, rank %" PRIu32 " of %" PRIu32 " x %" PRIu32
            ": hash %016" PRIx64 "\n",
            tdi_coll_name(plan->options.coll), plan->rank, plan->topology.nodes,
            plan->topology.local_size, tide_plan_hash(plan));
    walk_stats(plan, print_stat, to);
}

void tdi_stats_json(tdi_json *json, const tide_plan *plan)
{
    tdi_json_open(json, "stats", '{');
    walk_stats(plan, json_stat, json);
    tdi_json_close(json, '}');
}
