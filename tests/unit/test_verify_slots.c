/*
 * All-gathers next to reduce-scatters, as FSDP2 alternates them. Slot-Reuse: a
 * parameter's gradient is staged where the parameter was, and the next
 * all-gather lands there again; the order of both kinds together must keep
 * every reader of a gradient before that landing, and every landing before the
 * gradient. In-Place: the tensors are apart, only the calls alternate.
 */
#include "support/check.h"
#include "support/verify_all.h"

#include "base/util.h"
#include "plan/verify.h"

static const uint32_t alternating[] = {0, 1, 0, 1, 0};

typedef struct pair {
    planset gather;
    planset reduce;
    tdi_set views[2];
} pair;

static void make_pair(pair *p, const char *group, tide_topology topology,
                      const tide_plan_options *gather,
                      const tide_plan_options *reduce, int slots)
{
    p->gather = make_plans(find_group(group), topology, gather);
    p->reduce = make_plans(find_group(group), topology, reduce);
    p->views[0] = (tdi_set){.layout = p->gather.layout,
                            .plans = (const tide_plan *const *)p->gather.plans};
    p->views[1] = (tdi_set){.layout = p->reduce.layout,
                            .plans = (const tide_plan *const *)p->reduce.plans,
                            .slots = slots ? &p->views[0] : NULL};
}

static void free_pair(pair *p)
{
    free_plans(&p->gather);
    free_plans(&p->reduce);
}

static tide_status verify_pair(const pair *p)
{
    return tdi_verify_order(p->views, 2, alternating, TDI_COUNT(alternating));
}

static void test_both_modes(void)
{
    static const tide_topology topologies[] = {{1, 1}, {1, 4}, {2, 2},
                                               {3, 2}, {4, 1}, {2, 4}};
    const tide_plan_options *gathers[] = {&plan_pull, &plan_push, &plan_paced};
    const tide_plan_options *reduces[] = {&plan_direct, &plan_staged};
    for (size_t t = 0; t < TDI_COUNT(topologies); t++) {
        for (uint32_t i = 0; i < 3 * 2 * 2; i++) {
            pair p;
            make_pair(&p, "uneven", topologies[t], gathers[i % 3],
                      reduces[i / 3 % 2], (int)(i / 6));
            CHECK_OK(verify_pair(&p));
            free_pair(&p);
        }
    }
}

/* Rank 1 does not wait until its peers have read its gradients. Alone, with
 * nothing said at READS, that hurts nobody; but the next all-gather lands its
 * own shard in the slot that they still read. (On one node: with several, the
 * second level's signals say the same as READ.) */
static void test_early_slot(void)
{
    pair p;
    make_pair(&p, "uneven", (tide_topology){1, 4}, &plan_pull, &plan_direct, 1);
    tide_plan *plans[4], *early = clone_plan(p.reduce.plans[1]);
    memcpy(plans, p.reduce.plans, sizeof(plans));
    plans[1] = early;
    drop_op(early, find_op(early, TIDE_OP_WAIT, TIDE_CH_READ, 0));
    for (uint32_t i = 0; i < early->op_count; i++)
        if (early->ops[i].kind == TIDE_OP_MARK &&
            early->ops[i].channel == TIDE_PHASE_READS)
            drop_op(early, i); /* nothing is said at READS any more */
    p.views[1].plans = (const tide_plan *const *)plans;
    static const uint32_t once[] = {1};
    CHECK_OK(tdi_verify_order(p.views, 2, once, 1));
    CHECK_STATUS(verify_pair(&p), TIDE_ERR_PLAN);
    CHECK_TEXT(tide_last_error(), "race on byte");
    CHECK_TEXT(tide_last_error(), "of rank 1");
    CHECK_TEXT(tide_last_error(), "of call 1");
    CHECK_TEXT(tide_last_error(), "of call 2");
    p.views[1].slots = NULL; /* in memory of its own the landing hurts not */
    CHECK_OK(verify_pair(&p));
    free(early);
    free_pair(&p);
}

int main(void)
{
    test_both_modes();
    test_early_slot();
    return 0;
}
