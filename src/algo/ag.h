/* All-gather: what its two halves share. Slots are nodes: slot m of STAGE
 * holds the packed shard of rank (m, g). */
#ifndef TIDE_ALGO_AG_H
#define TIDE_ALGO_AG_H

#include "plan/build.h"

/* A piece of STAGE that travels in one put and lands in one go: `slots` whole
 * slots from `slot` on, or `bytes` of one slot from `offset` on. */
typedef struct tdi_run {
    uint32_t slot;
    uint32_t slots;
    uint64_t offset; /* in the slot */
    uint64_t bytes;  /* of each slot */
} tdi_run;

/* Lands one run that lies in rank `owner`'s STAGE, where owner is on my node:
 * into my storages, or into those of every local rank (`where` = my rank or
 * TIDE_ALL_LOCAL). */
void tdi_land_run(tdi_builder *b, uint32_t owner, const tdi_run *run,
                  int32_t where, tide_lane lane);

/* The rails: recursive doubling over nodes. */
typedef struct tdi_rails {
    uint64_t slot_bytes; /* B */
    uint64_t part_bytes; /* a slot travels in parts of this size ... */
    uint32_t parts;      /* ... so many of them, or, when this is 1, ... */
    uint32_t slots_max;  /* ... up to so many whole slots in one put */
    uint32_t *arrival;   /* [slot][part]: the op after which it is here */
} tdi_rails;

/* What happens to a run that has arrived; `round_left` counts the runs of the
 * same round still to come. */
typedef void tdi_on_arrival(tdi_builder *b, const tdi_run *run, uint32_t source,
                            uint32_t round_left, void *context);

tide_status tdi_rails_begin(tdi_builder *b, tdi_rails *rails, uint32_t filled);
/* Appends OPEN signals for everyone who will put to me. */
void tdi_rails_open(tdi_builder *b);
/* Appends all rounds: puts on SEND, arrivals on RECV, then `arrived`. */
void tdi_rails_run(tdi_builder *b, tdi_rails *rails, tdi_on_arrival *arrived,
                   void *context);
void tdi_rails_end(tdi_rails *rails);

#endif
