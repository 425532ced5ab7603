/* What the tests of the simulator share. */
#include "sim.h"

#include <stdlib.h>

tide_layout *layout_of(const tide_param *params, size_t count, uint32_t ranks)
{
    tide_layout *layout;
    CHECK_OK(tide_layout_create(params, count, ranks, &layout));
    return layout;
}

tide_layout *small_layout(size_t count, uint32_t ranks)
{
    static const tide_param one[] = {{1, 16 << 10, 1 << 6, TIDE_BF16}};
    static const tide_param two[] = {{1, 12 << 10, 1 << 6, TIDE_BF16},
                                     {1, 4 << 10, 1 << 6, TIDE_BF16}};
    return layout_of(count == 1 ? one : two, count, ranks);
}

double simulate(const tide_layout *layout, tide_topology topology,
                const tide_plan_options *options, const tide_machine *machine,
                int mirrored)
{
    tide_sim_options how = {.mirrored = mirrored};
    tide_sim_result result;
    uint32_t count =
        mirrored ? topology.local_size : topology.nodes * topology.local_size;
    tide_plan **plans = calloc(count, sizeof(*plans));
    CHECK(plans);
    for (uint32_t r = 0; r < count; r++)
        CHECK_OK(tide_plan_create(layout, topology, r, options, &plans[r]));
    CHECK_OK(
        tide_simulate((const tide_plan *const *)plans, machine, &how, &result));
    for (uint32_t r = 0; r < count; r++)
        tide_plan_free(plans[r]);
    free(plans);
    return result.time_us;
}

tide_machine bare_machine(void)
{
    return (tide_machine){.local_size = 2,
                          .copy_gbps = 100,
                          .link_gbps = 100,
                          .multicast_gbps = 50,
                          .switch_gbps = 100,
                          .rail_gbps = 10,
                          .kernel_gbps = 1e9,
                          .block_gbps = 10,
                          .sum_blocks = 10,
                          .land_blocks = 10};
}
