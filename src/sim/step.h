/*
 * A coarse model of one FSDP2 training step: equal layers, forward and then
 * backward, three streams (compute, all-gather, reduce-scatter).
 *
 * Layer i's gather may start once the layer `prefetch` before it has begun to
 * compute, and the gather before it is done. Its parameters are freed when it
 * has computed, gathered again for backward, and its reduce-scatter follows.
 * Gathers and reduce-scatters that run together share the rail. As in FSDP2, a
 * reduce-scatter waits for the one before, and the next layer for that.
 */
#ifndef TIDE_SIM_STEP_H
#define TIDE_SIM_STEP_H

#include <tide/sim.h>

typedef struct tdi_step_layer {
    double forward_us; /* compute, with what slows it and layout copies */
    double backward_us;
    double gather_us; /* alone */
    double gather_rail_us;
    double reduce_us; /* alone */
    double reduce_rail_us;
    double reads_us;     /* of a reduce-scatter: until gradients are read */
    double param_bytes;  /* of the group, unsharded */
    double grad_bytes;   /* likewise */
    double flat_bytes;   /* all-gather output, until the layer computes */
    double packed_bytes; /* reduce-scatter input, until it is done */
    int grads_wait;      /* In-Place: gradients live until they are read */
    int params_wait;     /* Slot-Reuse: so does the slot they lie in */
} tdi_step_layer;

typedef struct tdi_step_result {
    double step_us;
    double waiting_us; /* compute waits for communication */
    double peak_bytes; /* parameters, gradients, flat and packed buffers */
} tdi_step_result;

/* Errors: TIDE_ERR_MEMORY. */
tide_status tdi_step_run(const tdi_step_layer *layer, uint32_t layers,
                         uint32_t prefetch, tdi_step_result *result);

#endif
