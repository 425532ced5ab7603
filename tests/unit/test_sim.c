/* Simulated collectives: exact times, one node for all, faults. */
#include "support/planset.h"
#include "support/sim.h"

#include "base/util.h"

#include <stdlib.h>
#include <time.h>

/* --- Times ---------------------------------------------------------------- */

/* Times that a pencil gives. */
static void test_exact(void)
{
    tide_machine m = bare_machine();
    tide_plan_options gather = {.coll = TIDE_ALL_GATHER};
    tide_topology pair = {1, 2}, apart = {2, 1};
    tide_layout *layout = small_layout(1, 2);
    double shard = (double)tide_layout_shard_bytes(layout);
    /* Each pulls the other's shard; the own copy is free. */
    CHECK_NEAR(simulate(layout, pair, &gather, &m, 0), shard / 100e3, 1e-3);
    /* Two multicasts arrive at each rank, at 50 GB/s together. */
    gather.push = 1;
    CHECK_NEAR(simulate(layout, pair, &gather, &m, 0), 2 * shard / 50e3, 1e-3);
    /* OPEN arrives, then the put; its landing is free without peers. */
    gather.push = 0;
    m.rail_us = 7;
    CHECK_NEAR(simulate(layout, apart, &gather, &m, 0), 14 + shard / 10e3,
               1e-3);
    m.put_us = 5;
    m.call_us = 11;
    CHECK_NEAR(simulate(layout, apart, &gather, &m, 0), 30 + shard / 10e3,
               1e-3);
    tide_layout_free(layout);
}

/* On a host machine ranks share cores: twice the work on one core. */
static void test_cores(void)
{
    tide_machine m = bare_machine();
    tide_plan_options gather = {.coll = TIDE_ALL_GATHER};
    tide_layout *layout = small_layout(1, 2);
    m.link_gbps = 0;
    m.cores = 2;
    double two_cores = simulate(layout, (tide_topology){1, 2}, &gather, &m, 0);
    m.cores = 1;
    double one_core = simulate(layout, (tide_topology){1, 2}, &gather, &m, 0);
    CHECK_NEAR(two_cores, tide_layout_shard_bytes(layout) * 2 / 100e3, 1e-3);
    CHECK_NEAR(one_core, 2 * two_cores, 1e-3);
    tide_layout_free(layout);
}

static void test_repeats(void)
{
    tide_machine m;
    tide_plan_options options = {.coll = TIDE_REDUCE_SCATTER, .staged = 1};
    tide_topology topology = {3, 4};
    tide_layout *layout = small_layout(2, 12);
    CHECK_OK(tide_machine_load("b200-8x400g", &m));
    double first = simulate(layout, topology, &options, &m, 0);
    CHECK(first == simulate(layout, topology, &options, &m, 0));
    m.rail_gbps /= 2;
    CHECK(first < simulate(layout, topology, &options, &m, 0));
    tide_layout_free(layout);
}

/* --- One node for all ----------------------------------------------------- */

/* Node 0 has a sum a unit less than nodes between others have. */
static void compare_mirrored(tide_coll coll, tide_topology topology, int push)
{
    tide_machine m;
    tide_plan_options options = {.coll = coll,
                                 .push = push,
                                 .switch_reduce = push,
                                 .staged = 1,
                                 .block_bytes = 64 << 10,
                                 .chunk_bytes = 16 << 10};
    uint32_t ranks = topology.nodes * topology.local_size;
    tide_param even[] = {{1, 48 * ranks, 1 << 10, TIDE_BF16},
                         {1, 16 * ranks, 1 << 10, TIDE_BF16}};
    tide_layout *layout = layout_of(even, 2, ranks);
    CHECK_OK(tide_machine_load("b200-8x400g", &m));
    double all = simulate(layout, topology, &options, &m, 0);
    double node = simulate(layout, topology, &options, &m, 1);
    if (!(fabs(all - node) <= .04 * all))
        CHECK_FAIL("%ux%u, collective %d: %g us of all ranks, %g us of one "
                   "node",
                   topology.nodes, topology.local_size, coll, all, node);
    tide_layout_free(layout);
}

static void test_mirrored(void)
{
    static const tide_topology topologies[] = {{2, 2},  {3, 2}, {4, 4}, {5, 3},
                                               {6, 4},  {7, 1}, {8, 4}, {3, 4},
                                               {12, 3}, {4, 1}};
    for (size_t i = 0; i < TDI_COUNT(topologies); i++)
        for (int push = 0; push < 2; push++)
            for (int coll = 0; coll < 2; coll++)
                if (tide_sim_mirrors((tide_coll)coll, topologies[i]))
                    compare_mirrored((tide_coll)coll, topologies[i], push);
    CHECK(!tide_sim_mirrors(TIDE_REDUCE_SCATTER, (tide_topology){5, 3}));
    CHECK(tide_sim_mirrors(TIDE_REDUCE_SCATTER, (tide_topology){12, 3}));
    CHECK(tide_sim_mirrors(TIDE_REDUCE_SCATTER, (tide_topology){10, 8}));
}

/* 8192 ranks, both collectives, within seconds. */
static void test_large(void)
{
    tide_machine m;
    tide_prediction p;
    tide_topology topology = {1024, 8};
    tide_param params[] = {{1, 8192 << 10, 4, TIDE_BF16},
                           {1, 8192, 1 << 10, TIDE_BF16}};
    tide_layout *layout = layout_of(params, 2, 8192);
    time_t start = time(NULL);
    CHECK_OK(tide_machine_load("b200-8x400g", &m));
    for (int coll = 0; coll < 2; coll++) {
        tide_plan_options options = {.coll = (tide_coll)coll, .staged = 1};
        CHECK_OK(tide_predict(layout, topology, &options, TIDE_VARIANT_TIDE, &m,
                              &p));
        CHECK(p.mirrored);
        /* No schedule moves fewer bytes over a rail. */
        double bytes = coll ? 4.0 * (double)tide_layout_out_elems(layout)
                            : (double)tide_layout_shard_bytes(layout);
        CHECK(p.result.time_us > 1023 * bytes / (m.rail_gbps * 1e3));
    }
    CHECK_INT(time(NULL) - start, <, 60);
    tide_layout_free(layout);
}

/* --- Faults --------------------------------------------------------------- */

static void test_standstill(void)
{
    tide_machine m;
    tide_sim_result result;
    tide_plan_options options = {.coll = TIDE_ALL_GATHER};
    planset set =
        make_plans(find_group("plain"), (tide_topology){2, 2}, &options);
    tide_plan *broken = clone_plan(set.plans[1]);
    tide_plan *plans[] = {set.plans[0], broken, set.plans[2], set.plans[3]};
    const tide_plan *const *all = (const tide_plan *const *)plans;
    CHECK_OK(tide_machine_load("b200-8x400g", &m));
    CHECK_OK(tide_simulate(all, &m, NULL, &result));
    for (uint32_t i = 0; i < broken->op_count; i++)
        if (plan_ops(broken)[i].kind == TIDE_OP_SIGNAL) {
            plan_ops(broken)[i].dst = tide_at(0, 0, 1, 0); /* to itself */
        }
    CHECK_STATUS(tide_simulate(all, &m, NULL, &result), TIDE_ERR_PLAN);
    CHECK_TEXT(tide_last_error(), "wait");
    CHECK_TEXT(tide_last_error(), "from=1");
    CHECK_STATUS(tide_simulate(NULL, &m, NULL, &result), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_simulate(all, NULL, NULL, &result), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_simulate(all, &m, NULL, NULL), TIDE_ERR_INVALID);
    plans[1] = set.plans[2];
    CHECK_STATUS(tide_simulate(all, &m, NULL, &result), TIDE_ERR_INVALID);
    free(broken);
    free_plans(&set);
}

static void test_predict_faults(void)
{
    tide_machine m;
    tide_prediction p;
    tide_plan_options options = {.coll = TIDE_ALL_GATHER};
    tide_topology topology = {2, 1};
    tide_layout *layout = small_layout(1, 2);
    CHECK_OK(tide_machine_load("b200-8x400g", &m));
    CHECK_STATUS(
        tide_predict(layout, topology, &options, TIDE_VARIANT_STOCK, &m, &p),
        TIDE_ERR_INVALID);
    CHECK_STATUS(
        tide_predict(NULL, topology, &options, TIDE_VARIANT_TIDE, &m, &p),
        TIDE_ERR_INVALID);
    CHECK_STATUS(tide_predict(layout, (tide_topology){3, 1}, &options,
                              TIDE_VARIANT_TIDE, &m, &p),
                 TIDE_ERR_INVALID);
    tide_layout_free(layout);
}

/* Every variant runs on every built-in machine, slower than its rails are. */
static void test_variants(void)
{
    for (size_t i = 0; tide_machine_name(i); i++) {
        tide_machine m;
        tide_prediction p;
        CHECK_OK(tide_machine_load(tide_machine_name(i), &m));
        tide_topology topology = {2, 4};
        tide_layout *layout = small_layout(2, 8);
        for (int v = 0; v < TIDE_VARIANT_COUNT; v++) {
            for (int coll = 0; coll < 2; coll++) {
                tide_plan_options options = {.coll = (tide_coll)coll};
                if (!tide_variant_does((tide_variant)v, (tide_coll)coll))
                    continue;
                CHECK_OK(tide_predict(layout, topology, &options,
                                      (tide_variant)v, &m, &p));
                double bytes = coll
                                   ? 4.0 * (double)tide_layout_out_elems(layout)
                                   : (double)tide_layout_shard_bytes(layout);
                CHECK(p.result.time_us > bytes / (m.rail_gbps * 1e3));
                CHECK(p.buffer_bytes > 0);
            }
        }
        tide_layout_free(layout);
    }
    CHECK(!strcmp(tide_variant_name(TIDE_VARIANT_COUNT), "?"));
}

int main(void)
{
    test_exact();
    test_cores();
    test_repeats();
    test_mirrored();
    test_large();
    test_standstill();
    test_predict_faults();
    test_variants();
    return 0;
}
