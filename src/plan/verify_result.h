/* What the parts of the result check share. */
#ifndef TIDE_PLAN_VERIFY_RESULT_H
#define TIDE_PLAN_VERIFY_RESULT_H

#include "plan/verify_memory.h"

/* [from, to) of a PARAM has been written. */
typedef struct tdi_written {
    uint64_t from;
    uint64_t to;
} tdi_written;

typedef struct tdi_write_log {
    tdi_written *writes;
    size_t count;
    size_t capacity;
} tdi_write_log;

typedef struct tdi_result {
    const tdi_set *set;
    uint32_t ranks;
    size_t params;
    tdi_image *images;     /* [rank][buffer] */
    tdi_write_log *writes; /* [rank][parameter], of an all-gather */
    tdi_rank_sets sets;
    uint32_t *alone; /* [rank]: the set of it alone */
} tdi_result;

static inline tdi_image *tdi_result_image(const tdi_result *result,
                                          uint32_t rank, tide_buffer buffer)
{
    return &result->images[(size_t)rank * TIDE_BUF_COUNT + buffer];
}

/* What an access holds at its byte `from`, counted in its buffer, and up to
 * where, at most `to`, that goes on. */
tdi_content tdi_result_read(const tdi_result *result, const tdi_access *access,
                            uint64_t from, uint64_t to, uint64_t *end);
/* Carries out a REDUCE. */
tide_status tdi_result_reduce(tdi_result *result, const tdi_step *step);

/* A copy writes [from, to) of a PARAM: fails unless it is what belongs there.
 */
tide_status tdi_write_storage(tdi_result *result, const tdi_step *step,
                              const tdi_access *access, uint64_t from,
                              uint64_t to, const tdi_content *content);
/* At the end: PARAMs are whole, every byte was written once, OUTs are sums. */
tide_status tdi_check_outputs(tdi_result *result);

#endif
