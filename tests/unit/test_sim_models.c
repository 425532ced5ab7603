/* The formulas beside the simulator: the step model, the spine, the ring. */
#include "support/sim.h"

#include "sim/baseline.h"
#include "sim/cost.h"
#include "sim/step.h"

static tdi_step_result run(const tdi_step_layer *layer, uint32_t layers,
                           uint32_t prefetch)
{
    tdi_step_result result;
    CHECK_OK(tdi_step_run(layer, layers, prefetch, &result));
    return result;
}

/* --- Steps -----------------------------------------------------------------
 */

/* Gathers of 4 us hide behind compute of 10 and 20, but for the first; only the
 * last reduce-scatter shows at the end. */
static void test_hidden(void)
{
    tdi_step_layer layer = {
        .forward_us = 10, .backward_us = 20, .gather_us = 4, .reduce_us = 6};
    tdi_step_result r = run(&layer, 3, 1);
    CHECK_EQUAL(r.step_us, 4 + 3 * 30 + 6);
    CHECK_EQUAL(r.waiting_us, 4 + 6);
    /* Without prefetch all six gathers show. */
    r = run(&layer, 3, 0);
    CHECK_EQUAL(r.step_us, 6 * 4 + 3 * 30 + 6);
}

/* Where gathers are slower than compute, they set the pace. */
static void test_gathers_bind(void)
{
    tdi_step_layer layer = {.forward_us = 1, .backward_us = 1, .gather_us = 9};
    CHECK_EQUAL(run(&layer, 2, 2).step_us, 4 * 9 + 1);
    /* Prefetch 1 begins a gather when the layer before begins. */
    CHECK_EQUAL(run(&layer, 2, 1).step_us, 4 * 9 + 1);
    CHECK_EQUAL(run(&layer, 2, 0).step_us, 4 * 10);
}

/* Slow reduce-scatters set the pace; a layer computes when the one of the layer
 * but one before has ended, so that no more than two layers' gradients live. */
static void test_reduces_bind(void)
{
    tdi_step_layer layer = {.forward_us = 1,
                            .backward_us = 2,
                            .reduce_us = 50,
                            .reads_us = 50,
                            .grad_bytes = 100,
                            .grads_wait = 1};
    tdi_step_result r = run(&layer, 6, 1);
    CHECK_EQUAL(r.step_us, 6 * 1 + 2 + 6 * 50);
    CHECK_EQUAL(r.peak_bytes, 200);
}

/* A gather and a reduce-scatter that fill the rail go at half speed. */
static void test_rail(void)
{
    tdi_step_layer layer = {.forward_us = 1,
                            .backward_us = 10,
                            .gather_us = 8,
                            .gather_rail_us = 8,
                            .reduce_us = 8,
                            .reduce_rail_us = 8};
    /* Two gathers forward, then 8 beside compute; the last gather and the
     * first reduce-scatter overlap where prefetch lets them. */
    double alone = run(&layer, 2, 0).step_us;
    layer.reduce_rail_us = 0;
    CHECK(run(&layer, 2, 0).step_us < alone);
}

static void test_memory(void)
{
    tdi_step_layer layer = {.forward_us = 10,
                            .backward_us = 20,
                            .gather_us = 1,
                            .reduce_us = 5,
                            .reads_us = 2,
                            .param_bytes = 100,
                            .grad_bytes = 100};
    /* One layer's parameters and gradients; the next gather with prefetch. */
    CHECK_EQUAL(run(&layer, 3, 0).peak_bytes, 200);
    CHECK_EQUAL(run(&layer, 3, 1).peak_bytes, 300);
    /* In-Place: the gradients of the layer before wait to be read. */
    layer.grads_wait = 1;
    CHECK_EQUAL(run(&layer, 3, 1).peak_bytes, 400);
    /* Slot-Reuse: they wait in the parameters' slot. */
    layer.grads_wait = 0;
    layer.params_wait = 1;
    CHECK_EQUAL(run(&layer, 3, 1).peak_bytes, 400);
    /* Stock: flat and packed buffers beside all that. */
    layer.params_wait = 0;
    layer.flat_bytes = 100;
    layer.packed_bytes = 200;
    CHECK_EQUAL(run(&layer, 3, 0).peak_bytes, 400);
}

/* --- The spine and the ring -------------------------------------------------
 */

static void test_spine(void)
{
    tide_machine m = {.pod_nodes = 32, .spine_taper = 4};
    CHECK_EQUAL(tdi_cost_spine(&m, 1), 1);
    CHECK_EQUAL(tdi_cost_spine(&m, 16), 2);
    CHECK_EQUAL(tdi_cost_spine(&m, 32), 4);
    CHECK_EQUAL(tdi_cost_spine(&m, 500), 4);
    m.pod_nodes = 0;
    CHECK_EQUAL(tdi_cost_spine(&m, 500), 1);
}

static void test_ring(void)
{
    tide_machine m = {.ring_gbps = 100, .rail_gbps = 10, .ring_us = 3};
    /* One node: 7 shards over links; two: 15 shards, an eighth a rail. */
    CHECK_EQUAL(tdi_ring_us(&m, (tide_topology){1, 8}, 1e6), 3 + 70);
    CHECK_EQUAL(tdi_ring_us(&m, (tide_topology){2, 8}, 1e6), 3 + 187.5);
    m.rail_us = 5;
    m.signal_us = 1;
    CHECK_EQUAL(tdi_ring_us(&m, (tide_topology){3, 8}, 1e6), 3 + 24 + 287.5);
    m.kernel_us = 2;
    m.kernel_gbps = 100;
    m.pack_gbps = 60;
    CHECK_EQUAL(tdi_copyout_us(&m, 1e6), 2 + 20);
    CHECK_EQUAL(tdi_pack_us(&m, 1e6), 2 + 100);
}

int main(void)
{
    test_hidden();
    test_gathers_bind();
    test_reduces_bind();
    test_rail();
    test_memory();
    test_spine();
    test_ring();
    return 0;
}
