/* What the tests of the simulator share. */
#ifndef TIDE_TESTS_SUPPORT_SIM_H
#define TIDE_TESTS_SUPPORT_SIM_H

#include "check.h"

#include <math.h>
#include <tide/plan.h>
#include <tide/sim.h>

#define CHECK_NEAR(a, b, part)                                                 \
    do {                                                                       \
        double near_a = (a), near_b = (b);                                     \
        if (!(fabs(near_a - near_b) <= (part) * fabs(near_b)))                 \
            CHECK_FAIL("%s is %.9g, not near %s, %.9g", #a, near_a, #b,        \
                       near_b);                                                \
    } while (0)

/* Equal but for the rounding of doubles. */
#define CHECK_EQUAL(a, b) CHECK_NEAR(a, b, 1e-9)

tide_layout *layout_of(const tide_param *params, size_t count, uint32_t ranks);

/* Two bf16 parameters of 16 Ki rows of 64 elements in all; or only one. */
tide_layout *small_layout(size_t count, uint32_t ranks);

/* Simulates all ranks, or node 0's; returns the time in us. */
double simulate(const tide_layout *layout, tide_topology topology,
                const tide_plan_options *options, const tide_machine *machine,
                int mirrored);

/* A machine of 2 ranks a node whose ops cost nothing but bytes. */
tide_machine bare_machine(void);

#endif
