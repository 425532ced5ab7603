/*
 * Fuzzes the planners: plans a decoded case for all ranks, twice, holds the
 * plans against the verifiers and the bytes that must travel, and runs them in
 * the reference interpreter under several interleavings.
 */
#include "fuzz.h"
#include "sets.h"

#include <inttypes.h>

/* No plan moves more over the rails than its algorithm's lower bound: each
 * slot or node sum goes to every other node once. */
static void check_traffic(const fuzz_case *c, const plan_set *set)
{
    tide_plan_stats stats;
    bool gather = set->plans[0]->options.coll == TIDE_ALL_GATHER;
    uint64_t each = gather ? tide_layout_shard_bytes(set->layout)
                           : 4 * tide_layout_out_elems(set->layout);
    uint64_t want = (c->topology.nodes - 1) * set->ranks * each, sum = 0;
    for (uint32_t r = 0; r < set->ranks; r++) {
        tide_plan_get_stats(set->plans[r], &stats);
        sum += stats.rail_bytes;
    }
    if (sum != want)
        fail_case(c, "%" PRIu64 " bytes on the rails, not %" PRIu64, sum, want);
}

/* Printing must cope with every op. */
static void print_nowhere(const tide_plan *plan)
{
    FILE *to = fopen("/dev/null", "w");
    if (!to)
        return;
    tide_plan_print(plan, to);
    fclose(to);
}

/* Both collectives as they follow one another. Two kinds of one group share
 * memory: the gradients come to lie where the parameters were. */
static void verify_calls(const fuzz_case *c, const plan_set *sets)
{
    const fuzz_coll *a = &c->colls[0], *b = &c->colls[1];
    bool share = a->group == b->group && a->options.coll != b->options.coll;
    if (verify_sets(sets, FUZZ_COLLS, c->calls, c->call_count, share))
        fail_case(c, "%s", tide_last_error());
}

static void run_calls(const fuzz_case *c, const plan_set *sets)
{
    interp_call calls[FUZZ_CALLS];
    interp_how how = c->how;
    uint64_t ops = 0;
    for (uint32_t i = 0; i < c->call_count; i++) {
        const plan_set *set = &sets[c->calls[i]];
        calls[i] = (interp_call){set->layout, all_plans(set)};
        ops += set->ops;
    }
    uint32_t runs = ops < 400 ? 4 : ops < 4000 ? 2 : 1;
    for (uint32_t i = 0; i < runs; i++, how.seed++) {
        char *fault = interp_run(calls, c->call_count, &how);
        if (fault)
            fail_case(c, "interpreter, seed %" PRIu64 ": %s", how.seed, fault);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_case c;
    plan_set sets[FUZZ_COLLS];
    fuzz_decode(data, bytes, &c);
    for (size_t i = 0; i < FUZZ_COLLS; i++) {
        sets[i] = make_set(&c, &c.colls[i]);
        check_traffic(&c, &sets[i]);
        if (sets[i].plans[0]->op_count < 200)
            print_nowhere(sets[i].plans[0]);
    }
    verify_calls(&c, sets);
    if (!c.huge)
        run_calls(&c, sets);
    for (size_t i = 0; i < FUZZ_COLLS; i++)
        free_set(&sets[i]);
    return 0;
}
