/* The plans of one collective on all ranks: making and verifying them. */
#include "sets.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "plan/verify.h"

void fail_case(const fuzz_case *c, const char *format, ...)
{
    va_list args;
    fputs("fuzz: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    fuzz_print(c, stderr);
    abort();
}

static tide_plan *make_plan(const fuzz_case *c, const fuzz_coll *coll,
                            const tide_layout *layout, uint32_t rank)
{
    tide_plan *plan;
    if (tide_plan_create(layout, c->topology, rank, &coll->options, &plan))
        fail_case(c, "rank %u: no plan: %s", rank, tide_last_error());
    return plan;
}

static bool same_plan(const tide_plan *a, const tide_plan *b)
{
    return tide_plan_hash(a) == tide_plan_hash(b) && a->key == b->key &&
           a->op_count == b->op_count && a->expect_count == b->expect_count &&
           !memcmp(a->ops, b->ops, a->op_count * sizeof(tide_op)) &&
           !memcmp(a->expects, b->expects,
                   a->expect_count * sizeof(tide_expect)) &&
           !memcmp(a->buffer_bytes, b->buffer_bytes, sizeof(a->buffer_bytes));
}

plan_set make_set(const fuzz_case *c, const fuzz_coll *coll)
{
    const fuzz_group *group = &c->groups[coll->group];
    plan_set set = {.ranks = c->topology.nodes * c->topology.local_size};
    if (tide_layout_create(group->params, group->count, set.ranks, &set.layout))
        fail_case(c, "no layout: %s", tide_last_error());
    set.plans = calloc(set.ranks, sizeof(*set.plans));
    if (!set.plans)
        fail_case(c, "no memory for %u plans", set.ranks);
    for (uint32_t r = 0; r < set.ranks; r++) {
        set.plans[r] = make_plan(c, coll, set.layout, r);
        tide_plan *again = make_plan(c, coll, set.layout, r);
        if (!same_plan(set.plans[r], again))
            fail_case(c, "rank %u: the same arguments gave two plans", r);
        tide_plan_free(again);
        if (set.plans[r]->key != set.plans[0]->key)
            fail_case(c, "ranks 0 and %u: keys differ", r);
        set.ops += set.plans[r]->op_count;
    }
    return set;
}

void free_set(plan_set *set)
{
    for (uint32_t r = 0; r < set->ranks; r++)
        tide_plan_free(set->plans[r]);
    free(set->plans);
    tide_layout_free(set->layout);
}

tide_status verify_sets(const plan_set *sets, uint32_t count,
                        const uint32_t *calls, uint32_t call_count,
                        bool share_slots)
{
    tdi_set views[FUZZ_COLLS] = {{.layout = NULL}};
    for (uint32_t i = 0; i < count; i++) {
        views[i] =
            (tdi_set){.layout = sets[i].layout, .plans = all_plans(&sets[i])};
        TDI_TRY(tide_verify_bounds(views[i].layout, views[i].plans));
        TDI_TRY(tide_verify_sync(views[i].plans));
    }
    for (uint32_t i = 1; i < count && share_slots; i++)
        views[i].slots = &views[0];
    TDI_TRY(tdi_verify_order(views, count, calls, call_count));
    for (uint32_t i = 0; i < count; i++)
        TDI_TRY(tide_verify_result(views[i].layout, views[i].plans));
    return TIDE_OK;
}
