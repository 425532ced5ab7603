/*
 * Single collective calls whose data is checked against the definition, for
 * tests that care how a call ends: the status comes back, and a call that says
 * TIDE_OK with a wrong byte fails the test.
 */
#ifndef TIDE_TESTS_CALLS_H
#define TIDE_TESTS_CALLS_H

#include "matrix.h"

#include <stdint.h>
#include <tide/coll.h>

/* Where the data of all calls of this process lies; host memory at first. */
extern const matrix_place *call_place;
/* How the next calls of this process wait: 1 polls with tide_test. */
extern _Atomic int call_polls;

/* `call` picks the data; all ranks must give the same. */
tide_status call_gather(tide_group *group, uint32_t rank, uint32_t call);
tide_status call_reduce(tide_group *group, uint32_t rank, uint32_t call);
/* As call_reduce, with gradients in a slot that is vacated at once. */
tide_status call_reduce_slot(tide_comm *comm, tide_group *group, uint32_t rank,
                             uint32_t call);

/* The same in two parts. */
typedef struct call_reduction {
    tide_group *group;
    uint32_t rank;
    uint32_t call;
    void **grad;
    uint16_t *source; /* of the gradients: host memory */
    uint16_t *memory; /* of the gradients; NULL if they lie in a slot */
    float *out;
    tide_request *request;
} call_reduction;
/* in: where the gradients go, call_grad_bytes long, or NULL: memory. */
tide_status call_reduce_start(tide_group *group, uint32_t rank, uint32_t call,
                              void *in, call_reduction *made);
tide_status call_reduce_end(call_reduction *made);
uint64_t call_grad_bytes(const tide_group *group);

/* A group of one bf16 matrix of rows x 8, called `name`. */
tide_group *call_group(tide_comm *comm, uint64_t rows, const char *name);

#endif
