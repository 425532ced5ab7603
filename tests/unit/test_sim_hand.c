/* Simulated plans of a few ops, whose times a pencil gives. */
#include "support/sim.h"

#define BYTES 1000000u

/* Simulates plans of given ops; returns when the last rank marked DONE. */
static double run_by_hand(tide_topology topology, const tide_op *const *ops,
                          const uint32_t *counts, const tide_machine *machine)
{
    tide_plan plans[4];
    const tide_plan *all[4];
    tide_sim_result result;
    for (uint32_t r = 0; r < topology.nodes * topology.local_size; r++) {
        plans[r] = (tide_plan){.topology = topology,
                               .rank = r,
                               .op_count = counts[r],
                               .ops = ops[r]};
        all[r] = &plans[r];
    }
    CHECK_OK(tide_simulate(all, machine, NULL, &result));
    return result.phase_us[TIDE_PHASE_DONE];
}

static tide_op put_to(int32_t rank, int32_t me)
{
    return (tide_op){.kind = TIDE_OP_PUT,
                     .lane = TIDE_LANE_SEND,
                     .channel = TIDE_CH_RAIL,
                     .height = 1,
                     .width = BYTES,
                     .dst = tide_at(TIDE_BUF_STAGE, 0, rank, 0),
                     .src = tide_at(TIDE_BUF_STAGE, 0, me, 0)};
}

static tide_op pull_from(int32_t rank, int32_t me)
{
    return (tide_op){.kind = TIDE_OP_COPY,
                     .lane = TIDE_LANE_LAND,
                     .height = 1,
                     .width = BYTES,
                     .dst = tide_at(TIDE_BUF_PARAM, 0, me, 0),
                     .src = tide_at(TIDE_BUF_STAGE, 0, rank, 0)};
}

static tide_op after(tide_lane lane, uint64_t index)
{
    return (tide_op){
        .kind = TIDE_OP_AFTER, .lane = (uint8_t)lane, .index = index};
}

static tide_op done(tide_lane lane)
{
    return (tide_op){.kind = TIDE_OP_MARK,
                     .lane = (uint8_t)lane,
                     .channel = TIDE_PHASE_DONE};
}

/* A lane goes on beside its put, but an AFTER waits for the put's end; two
 * puts to one rank follow one another, to different ranks they share. */
static void test_puts(void)
{
    tide_machine m = bare_machine();
    tide_op one_put[] = {put_to(1, 0), done(TIDE_LANE_SEND)};
    tide_op edge[] = {put_to(1, 0), after(TIDE_LANE_LAND, 0),
                      done(TIDE_LANE_LAND)};
    tide_op same[] = {put_to(1, 0), put_to(1, 0), done(TIDE_LANE_SEND)};
    tide_op other[] = {put_to(1, 0), put_to(2, 0), done(TIDE_LANE_SEND)};
    tide_op join[] = {put_to(1, 0), put_to(2, 0), after(TIDE_LANE_LAND, 1),
                      done(TIDE_LANE_LAND)};
    const tide_op *ops[] = {one_put, NULL, NULL};
    uint32_t counts[] = {2, 0, 0};
    tide_topology three = {3, 1};
    double put = BYTES / 10e3;
    m.puts = 4;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), 0, 0);
    ops[0] = edge;
    counts[0] = 3;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), put, 1e-9);
    ops[0] = same;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), put, 1e-9);
    ops[0] = other;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), 0, 0);
    m.puts = 1;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), put, 1e-9);
    ops[0] = join;
    counts[0] = 4;
    m.puts = 4;
    CHECK_NEAR(run_by_hand(three, ops, counts, &m), 2 * put, 1e-9);
}

/* Two ranks that read one, or put to one, share its link or its rail. */
static void test_crowds(void)
{
    tide_machine m = bare_machine();
    tide_op pulls[2][2] = {{pull_from(0, 1), done(TIDE_LANE_LAND)},
                           {pull_from(0, 2), done(TIDE_LANE_LAND)}};
    tide_op puts[2][3] = {
        {put_to(0, 1), after(TIDE_LANE_LAND, 0), done(TIDE_LANE_LAND)},
        {put_to(0, 2), after(TIDE_LANE_LAND, 0), done(TIDE_LANE_LAND)}};
    const tide_op *pulling[] = {NULL, pulls[0], pulls[1]};
    const tide_op *putting[] = {NULL, puts[0], puts[1]};
    CHECK_NEAR(
        run_by_hand((tide_topology){1, 3}, pulling, (uint32_t[]){0, 2, 2}, &m),
        2 * BYTES / 100e3, 1e-9);
    CHECK_NEAR(
        run_by_hand((tide_topology){3, 1}, putting, (uint32_t[]){0, 3, 3}, &m),
        2 * BYTES / 10e3, 1e-9);
    /* The host hands over op i after i + 1 times what that costs. */
    m.enqueue_us = 300;
    CHECK_NEAR(
        run_by_hand((tide_topology){1, 3}, pulling, (uint32_t[]){0, 2, 2}, &m),
        600, 1e-9);
}

/* One copy engine takes the copies of two lanes in turn. */
static void test_engines(void)
{
    tide_machine m = bare_machine();
    tide_op copies[] = {pull_from(1, 0), pull_from(1, 0),
                        after(TIDE_LANE_LAND, 1), done(TIDE_LANE_LAND)};
    const tide_op *ops[] = {copies, NULL};
    uint32_t counts[] = {4, 0};
    copies[1].lane = TIDE_LANE_COPY;
    m.link_gbps = 0;
    m.copy_engines = 2;
    CHECK_NEAR(run_by_hand((tide_topology){1, 2}, ops, counts, &m),
               BYTES / 100e3, 1e-9);
    m.copy_engines = 1;
    CHECK_NEAR(run_by_hand((tide_topology){1, 2}, ops, counts, &m),
               2 * BYTES / 100e3, 1e-9);
}

/* Two copies of one lane, of this rank's memory and of its peer's. */
static double own_and_peer(uint64_t width, tide_lane peer_lane,
                           const tide_machine *m)
{
    tide_op copies[] = {pull_from(0, 0), pull_from(1, 0),
                        after(TIDE_LANE_LAND, 1), done(TIDE_LANE_LAND)};
    const tide_op *ops[] = {copies, NULL};
    uint32_t counts[] = {4, 0};
    copies[0].width = copies[1].width = width;
    copies[1].lane = (uint8_t)peer_lane;
    return run_by_hand((tide_topology){1, 2}, ops, counts, m);
}

/* What a batch copies inside a GPU is hidden behind its other copies, if it is
 * not short; only what takes longer shows, and the memory that it takes. */
static void test_beside(void)
{
    enum { SHORT = 1000000, LONG = 2000000 };
    tide_machine m = bare_machine();
    m.copy_engines = 2;
    m.kernel_gbps = 400; /* 200 GB/s there, 100 between GPUs */
    double us = LONG / 100e3;
    CHECK_NEAR(own_and_peer(SHORT, TIDE_LANE_LAND, &m), 15, 1e-9);
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_LAND, &m), us, 1e-9);
    /* Another lane, so another batch: at the same time, too. */
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_COPY, &m), us, 1e-9);
    m.kernel_gbps = 100;
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_LAND, &m), 2 * us, 1e-9);
    /* The rank reads and writes its own, and writes what it brings. */
    m.kernel_gbps = 400;
    m.memory_gbps = 150;
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_LAND, &m), 2 * us, 1e-9);
    /* No engines that could work beside the SMs; and a host. */
    m.memory_gbps = 0;
    m.copy_engines = 0;
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_LAND, &m), 1.5 * us, 1e-9);
    m.copy_engines = 2;
    m.cores = 2;
    CHECK_NEAR(own_and_peer(LONG, TIDE_LANE_LAND, &m), 2 * us, 1e-9);
}

int main(void)
{
    test_puts();
    test_crowds();
    test_engines();
    test_beside();
    return 0;
}
