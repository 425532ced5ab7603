/*
 * Plans over wide topologies, awkward groups and small option values: every
 * one passes the verifiers and, run by the interpreter, gives what the
 * collective is defined to give.
 */
#include "support/check.h"
#include "support/interp.h"
#include "support/planset.h"

#include "base/util.h"
#include "plan/verify.h"

static const tide_plan *const *all(const planset *set)
{
    return (const tide_plan *const *)set->plans;
}

/* --- One case ------------------------------------------------------------- */

/* Two groups that alternate in the same buffers. */
typedef struct plan_case {
    tide_topology topology;
    const test_group *groups[2];
    tide_plan_options options;
    interp_how how;
} plan_case;

static void fail_case(const plan_case *c, const char *what, const char *fault)
{
    char text[256];
    describe_case(c->groups[0]->name, c->topology, &c->options, text,
                  sizeof(text));
    CHECK_FAIL("%s, then group %s, seed %" PRIu64 "%s: %s: %s", text,
               c->groups[1]->name, c->how.seed, c->how.split ? " split" : "",
               what, fault);
}

static void verify_case(const plan_case *c, const planset *sets)
{
    static const uint32_t calls[] = {0, 1, 0, 0};
    tdi_set views[2];
    for (int i = 0; i < 2; i++) {
        views[i] = (tdi_set){.layout = sets[i].layout, .plans = all(&sets[i])};
        if (tide_verify_bounds(sets[i].layout, all(&sets[i])))
            fail_case(c, "bounds", tide_last_error());
        if (tide_verify_sync(all(&sets[i])))
            fail_case(c, "sync", tide_last_error());
        if (tide_verify_result(sets[i].layout, all(&sets[i])))
            fail_case(c, "result", tide_last_error());
    }
    if (tdi_verify_order(views, 2, calls, 4))
        fail_case(c, "order", tide_last_error());
}

static void interpret_case(const plan_case *c, const planset *sets)
{
    interp_call calls[3];
    for (int i = 0; i < 3; i++)
        calls[i] = (interp_call){sets[i % 2].layout, all(&sets[i % 2])};
    char *fault = interp_run(calls, 3, &c->how);
    if (fault)
        fail_case(c, "interpreter", fault);
}

static void check_case(const plan_case *c)
{
    planset sets[2];
    for (int i = 0; i < 2; i++)
        sets[i] = make_plans(c->groups[i], c->topology, &c->options);
    verify_case(c, sets);
    if (sets[0].ranks <= 18)
        interpret_case(c, sets);
    for (int i = 0; i < 2; i++)
        free_plans(&sets[i]);
}

/* --- Many cases ----------------------------------------------------------- */

static uint64_t pick(uint64_t *random, const uint64_t *values, size_t count)
{
    return values[check_random(random) % count];
}

static void choose_options(uint64_t *random, tide_plan_options *o)
{
    static const uint64_t chunks[] = {0, 1, 16, 48, 100, 1000};
    static const uint64_t blocks[] = {0, 1, 64, 256, 1024, 4096};
    static const uint64_t units[] = {0, 1, 256, 1024, 8192};
    o->push = (int)check_between(random, 0, 1);
    o->chunk_bytes = pick(random, chunks, TDI_COUNT(chunks));
    o->window = (uint32_t)check_between(random, 0, 3);
    o->together = (int)check_between(random, 0, 2);
    if (o->coll == TIDE_ALL_GATHER)
        return;
    o->grad_dtype = check_between(random, 0, 1) ? TIDE_BF16 : TIDE_F32;
    o->out_dtype = check_between(random, 0, 1) ? TIDE_BF16 : TIDE_F32;
    o->staged = (int)check_between(random, 0, 1);
    o->switch_reduce = (int)check_between(random, 0, 1);
    o->block_bytes = pick(random, blocks, TDI_COUNT(blocks));
    o->recv_slots = (uint32_t)check_between(random, 0, 3);
    o->unit_bytes = pick(random, units, TDI_COUNT(units));
}

static const test_group *choose_group(uint64_t *random, uint32_t ranks)
{
    const test_group *group;
    do
        group = &test_groups[check_between(random, 0, test_group_count - 1)];
    while (!group_fits(group, ranks));
    return group;
}

static void check_topology(tide_topology topology, tide_coll coll, int cases,
                           uint64_t *random)
{
    uint32_t ranks = topology.nodes * topology.local_size;
    for (int i = 0; i < cases; i++) {
        plan_case c = {.topology = topology,
                       .options.coll = coll,
                       .how = {check_random(random), i % 2, 0.5f}};
        choose_options(random, &c.options);
        for (int g = 0; g < 2; g++)
            c.groups[g] = choose_group(random, ranks);
        check_case(&c);
    }
}

static void test_many(void)
{
    uint64_t random = 20261129;
    for (uint32_t nodes = 1; nodes <= 9; nodes++)
        for (uint32_t local = 1; local <= 8; local++) {
            int cases = nodes * local <= 24 ? 4 : 1;
            tide_topology topology = {nodes, local};
            check_topology(topology, TIDE_ALL_GATHER, cases, &random);
            check_topology(topology, TIDE_REDUCE_SCATTER, cases, &random);
        }
    tide_topology wide = {17, 1};
    check_topology(wide, TIDE_ALL_GATHER, 6, &random);
    check_topology(wide, TIDE_REDUCE_SCATTER, 6, &random);
}

/* Every group on every small topology, with the defaults. */
static void test_groups_on_defaults(void)
{
    static const tide_topology topologies[] = {{1, 1}, {1, 3}, {2, 1}, {2, 2},
                                               {3, 2}, {4, 2}, {3, 4}};
    for (size_t t = 0; t < TDI_COUNT(topologies); t++)
        for (size_t g = 0; g < test_group_count; g++) {
            uint32_t ranks = topologies[t].nodes * topologies[t].local_size;
            plan_case c = {.topology = topologies[t],
                           .groups = {&test_groups[g], &test_groups[g]},
                           .how = {g + 1, 0, 1.0f / (float)ranks}};
            if (!group_fits(&test_groups[g], ranks))
                continue;
            check_case(&c);
            c.options.coll = TIDE_REDUCE_SCATTER;
            check_case(&c);
        }
}

/* Both kinds at once: their signals must not be taken for one another's. */
static void test_kinds_side_by_side(void)
{
    tide_topology topology = {3, 2};
    tide_plan_options gather = {
        .coll = TIDE_ALL_GATHER, .chunk_bytes = 48, .window = 1};
    tide_plan_options scatter = {.coll = TIDE_REDUCE_SCATTER,
                                 .block_bytes = 64};
    planset a = make_plans(find_group("uneven"), topology, &gather);
    planset b = make_plans(find_group("uneven"), topology, &scatter);
    interp_call calls[6];
    for (int i = 0; i < 6; i++)
        calls[i] = i % 2 ? (interp_call){b.layout, all(&b)}
                         : (interp_call){a.layout, all(&a)};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        interp_how how = {seed, seed % 3 == 0, 2.0f};
        char *fault = interp_run(calls, 6, &how);
        if (fault)
            CHECK_FAIL("seed %" PRIu64 ": %s", seed, fault);
    }
    free_plans(&a);
    free_plans(&b);
}

/* --- Extremes --------------------------------------------------------------
 */

/* Extreme options either make a plan that is right or are refused. */
static void test_extreme_options(void)
{
    static const uint64_t sizes[] = {
        1, 15, UINT32_MAX, UINT64_MAX / 2, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < TDI_COUNT(sizes); i++) {
        plan_case c = {.topology = {3, 2},
                       .groups = {find_group("uneven"), find_group("plain")},
                       .options = {.coll = TIDE_ALL_GATHER,
                                   .chunk_bytes = sizes[i],
                                   .window = UINT32_MAX},
                       .how = {i + 1, 0, 1.0f}};
        check_case(&c);
        c.options = (tide_plan_options){.coll = TIDE_REDUCE_SCATTER,
                                        .block_bytes = sizes[i],
                                        .recv_slots = 100};
        check_case(&c);
    }
}

int main(void)
{
    test_groups_on_defaults();
    test_kinds_side_by_side();
    test_extreme_options();
    test_many();
    return 0;
}
