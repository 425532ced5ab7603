/*
 * The reference interpreter: runs the plans of all ranks in one process over
 * byte arrays, under a random interleaving, and compares the results with the
 * definition of the collective. It is the oracle for planners and backends.
 *
 * It plays the callers too: at MARK FREE the shard is filled and the storages
 * are handed over, from MARK READS on gradients are NaN, at MARK DONE outputs
 * are compared and poisoned. Scratch starts as 0xff bytes (NaN in every float
 * type) and then keeps what the calls leave there. A put arrives some time
 * after its op is over; its signal comes with the data.
 */
#ifndef TIDE_TESTS_INTERP_H
#define TIDE_TESTS_INTERP_H

#include <tide/plan.h>

/* One collective of all ranks; plans[r] is rank r's. */
typedef struct interp_call {
    const tide_layout *layout;
    const tide_plan *const *plans;
} interp_call;

typedef struct interp_how {
    uint64_t seed; /* of the interleaving; odd and even seeds differ in kind */
    int split;     /* copies, puts and sums happen piece by piece */
    float scale;   /* of reduce-scatters */
} interp_how;

/*
 * Runs calls[0..count) on one communicator: those of one kind in order, the
 * two kinds side by side. Returns NULL if every result is right, else what is
 * wrong, to be freed: a wrong byte, an access out of bounds, or, in a
 * deadlock, where every lane stands.
 */
char *interp_run(const interp_call *calls, size_t count, const interp_how *how);

/* --- The data, for tests of backends -------------------------------------- */

/* Byte `at` of rank's shard of parameter p in call `call`, as the caller pads
 * it: rows that do not exist are zero. */
uint8_t interp_shard_byte(uint32_t call, const tide_layout *layout, size_t p,
                          uint32_t rank, uint64_t at);
/* Element `at` of rank's gradient of parameter p: an integer that bf16 holds,
 * small enough that sums over 2^16 ranks are exact in fp32. */
float interp_grad(uint32_t call, size_t p, uint32_t rank, uint64_t at);
/* Byte `at` of parameter p's storage after the all-gather. */
uint8_t interp_storage_byte(uint32_t call, const tide_layout *layout, size_t p,
                            uint64_t at);
/* Element `at` of parameter p's padded shard in rank's output before scaling:
 * the exact sum over all ranks. */
float interp_sum(uint32_t call, const tide_layout *layout, size_t p,
                 uint32_t rank, uint64_t at);

uint16_t interp_to_bf16(float value); /* to nearest, ties to even */
float interp_from_bf16(uint16_t bits);

#endif
