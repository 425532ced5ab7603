/*
 * The builder: how planners write plans. It appends ops, keeps the array in an
 * order that is legal within the rank, leaves out edges that hold anyway, and
 * counts the signals to expect. After a failed allocation it drops what it is
 * given, and tdi_build_finish says so.
 */
#ifndef TIDE_PLAN_BUILD_H
#define TIDE_PLAN_BUILD_H

#include <stdbool.h>
#include <tide/plan.h>

/* No op; an edge from it holds from the start. */
#define TDI_NO_OP UINT32_MAX

typedef struct tdi_builder {
    const tide_layout *layout;
    const tide_plan_options *options;
    tide_topology topology;
    uint32_t rank;
    uint32_t node;
    uint32_t local;
    uint64_t buffer_bytes[TIDE_BUF_COUNT]; /* set by the planner */

    tide_op *ops;
    uint32_t count;
    uint32_t capacity;
    bool failed;
    uint32_t last[TIDE_LANE_COUNT]; /* newest op of each lane */
    /* waited[a][b]: newest op of lane b that lane a is already ordered after */
    uint32_t waited[TIDE_LANE_COUNT][TIDE_LANE_COUNT];
    uint64_t *expects; /* [channel][local peers, then nodes] */
} tdi_builder;

tide_status tdi_build_begin(tdi_builder *b, const tide_layout *layout,
                            tide_topology topology, uint32_t rank,
                            const tide_plan_options *options);
/* Makes the plan, or fails; frees what the builder holds either way. */
tide_status tdi_build_finish(tdi_builder *b, tide_plan **plan);

typedef struct tdi_copy {
    tide_operand dst;
    tide_operand src;
    uint64_t width;
    uint64_t height;
    uint64_t dst_pitch;
    uint64_t src_pitch;
} tdi_copy;

/* Each returns the index of the op it appended. */
uint32_t tdi_add_copy(tdi_builder *b, tide_lane lane, const tdi_copy *copy);
uint32_t tdi_add_put(tdi_builder *b, tide_lane lane, tide_operand dst,
                     tide_operand src, uint64_t bytes);
uint32_t tdi_add_signal(tdi_builder *b, tide_lane lane, uint32_t to,
                        tide_channel channel);
uint32_t tdi_add_wait(tdi_builder *b, tide_lane lane, uint32_t from,
                      tide_channel channel, int64_t count);
uint32_t tdi_add_reduce(tdi_builder *b, tide_lane lane, unsigned flags,
                        tide_operand dst, tide_operand src, uint32_t sources,
                        uint64_t src_pitch, uint64_t elems);
/* The REDUCE just added reads this rank's own source in its gradient. */
void tdi_reduce_own(tdi_builder *b, uint32_t param, uint64_t offset);
uint32_t tdi_add_mark(tdi_builder *b, tide_lane lane, tide_phase phase);
/* Orders lane after op; appends nothing if it is so already. */
void tdi_add_after(tdi_builder *b, tide_lane lane, uint32_t op);
/* Orders lane after the newest op of every other lane. */
void tdi_add_join(tdi_builder *b, tide_lane lane);

/* This plan will receive n more signals from `from` on `channel`. */
void tdi_expect(tdi_builder *b, uint32_t from, tide_channel channel,
                uint64_t n);

/* The i-th local peer after me, 0 < i < G, in ring order: every rank visits its
 * peers in an order of its own, so no rank is everyone's first. */
static inline uint32_t tdi_peer(const tdi_builder *b, uint32_t i)
{
    return b->node * b->topology.local_size +
           (b->local + i) % b->topology.local_size;
}

void tdi_signal_peers(tdi_builder *b, tide_lane lane, tide_channel channel);
void tdi_wait_peers(tdi_builder *b, tide_lane lane, tide_channel channel,
                    int64_t count);
void tdi_expect_peers(tdi_builder *b, tide_channel channel, uint64_t n);

#endif
