/*
 * Sums are repeatable: on gradients whose sum depends on the order of adding,
 * 20 reduce-scatters over 3 communicators give the same bits, and these are
 * the bits of the order that docs/algorithms.md states: ranks of a node in
 * order, then the nodes of a layer in order, layers from the destination's own
 * on. (cases: sums that change with the history of
 * allocations; bf16 rounding at each hop.)
 */
#include "support/check.h"

#include <tide/tide.h>

enum { ROWS = 37, INNER = 101, ELEMS = ROWS * INNER, COMMS = 3, CALLS = 7 };

/* Neither bf16 nor a nice exponent: rank, element -> an fp32 gradient. */
static float grad_of(uint32_t rank, uint64_t i)
{
    uint64_t state = (rank + 1) * 1000003u + i * 7919u + 1;
    uint64_t bits = check_random(&state);
    float magnitude = (float)(1u << (bits >> 60));
    return magnitude * ((float)(bits & 0xffffff) / 16777216.0f - 0.5f);
}

static float node_sum(tide_topology topology, uint32_t node, uint64_t i)
{
    float part = 0;
    for (uint32_t l = 0; l < topology.local_size; l++) {
        float next = grad_of(node * topology.local_size + l, i);
        part = l ? part + next : next;
    }
    return part;
}

/* The k-th node in the order in which node `to` adds. */
static uint32_t nth_node(tide_topology topology, uint32_t to, uint32_t k)
{
    uint32_t nodes = topology.nodes;
    uint32_t layers = (nodes + topology.local_size - 1) / topology.local_size;
    uint32_t own = 0;
    while ((own + 1) * nodes / layers <= to)
        own++;
    return (own * nodes / layers + k) % nodes;
}

/* The stated order, in fp32. */
static float sum_of(tide_topology topology, uint32_t to, uint64_t i)
{
    float total = 0;
    for (uint32_t k = 0; k < topology.nodes; k++) {
        float next = node_sum(topology, nth_node(topology, to, k), i);
        total = k ? total + next : next;
    }
    return total;
}

static void reduce_once(tide_group *group, const float *grad, float *out)
{
    uint64_t elems = tide_layout_out_elems(tide_group_layout(group));
    const void *grads[] = {grad};
    tide_reduce_args args = {.grad = grads,
                             .grad_dtype = TIDE_F32,
                             .out = out,
                             .out_dtype = TIDE_F32,
                             .scale = 1.0f};
    memset(out, 0xff, elems * sizeof(float));
    CHECK_OK(tide_reduce_scatter(group, &args));
}

static void check_bits(const tide_layout *layout, tide_topology topology,
                       uint32_t rank, const float *out)
{
    const tide_param_layout *param = tide_layout_param(layout, 0);
    uint64_t first;
    uint64_t real = tide_layout_rows(layout, 0, rank, &first) * INNER;
    uint32_t node = rank / topology.local_size;
    for (uint64_t i = 0; i < param->shard_elems; i++) {
        float want =
            i < real ? sum_of(topology, node, first * INNER + i) : 0.0f;
        if (memcmp(&want, &out[i], sizeof(want)))
            CHECK_FAIL("rank %u element %" PRIu64 " is %a, not %a", rank, i,
                       (double)out[i], (double)want);
    }
}

static int rank_body(const tide_bootstrap *bootstrap, void *context)
{
    tide_comm_config config = {.local_size = *(const uint32_t *)context,
                               .timeout_ms = 60000};
    tide_topology topology = {bootstrap->ranks / config.local_size,
                              config.local_size};
    tide_param param = {1, ROWS, INNER, TIDE_F32};
    static float grad[ELEMS], out[ELEMS];
    for (uint64_t i = 0; i < ELEMS; i++)
        grad[i] = grad_of(bootstrap->rank, i);
    for (int c = 0; c < COMMS; c++) {
        tide_comm *comm;
        tide_group *group;
        CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
        CHECK_OK(tide_group_create(comm, &param, 1, "repeat", &group));
        for (int call = 0; call < CALLS; call++) {
            reduce_once(group, grad, out);
            check_bits(tide_group_layout(group), topology, bootstrap->rank,
                       out);
        }
        tide_group_free(group);
        tide_comm_destroy(comm);
    }
    return 0;
}

/* The stated order is one of several: with another, some bits would differ,
 * or this test could not fail. */
static void check_order_matters(uint32_t ranks)
{
    uint64_t differ = 0;
    tide_topology flat = {1, ranks}, paired = {ranks / 2, 2};
    for (uint64_t i = 0; i < ELEMS; i++)
        differ += sum_of(flat, 0, i) != sum_of(paired, 0, i);
    CHECK_INT(differ, >, ELEMS / 20);
}

int main(void)
{
    static const uint32_t worlds[][2] = {{2, 2}, {4, 4}, {4, 2},
                                         {6, 2}, {8, 4}, {3, 1}};
    check_order_matters(8);
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        uint32_t local = worlds[i][1];
        int code = tide_launch(worlds[i][0], 60000, rank_body, &local, NULL);
        if (code)
            CHECK_FAIL("%u ranks in nodes of %u: exit code %d", worlds[i][0],
                       local, code);
    }
    return 0;
}
