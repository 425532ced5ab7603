/*
 * Reduce-scatter: the shape that its three parts share.
 *
 * The output of every rank is cut in blocks of `block` elements, and each
 * block in G sub-slices. On node n the sub-slice t for local rank g of any
 * node is summed by the worker h = (g + t + n) mod G: the Latin square. Nodes
 * form L = ceil(N / G) layers of consecutive nodes, as even as can be; the
 * nodes of one layer put the sub-slice (g, t) to different ranks of a node,
 * all at the place [(g + t) mod c][t] of their RECV: what comes from one node
 * lies side by side there. c, the spread, is the smallest divisor of G that is
 * no less than a layer: G when layers are full, less when there are fewer nodes
 * than that, so that RECV has no empty places.
 *
 * A step is (block, turn): in turn i the nodes of layer q put to the nodes of
 * layer (q - i) mod L, so that every sender is busy in every step and RECV
 * holds `recv_slots` steps, whatever N is. A worker takes a step in units, of
 * one sub-slice or, where those are short, of up to `width`: few long sums and
 * puts then do for many short ones. With one node there is one step a block, no
 * RECV, and worker h = g sums straight to OUT.
 */
#ifndef TIDE_ALGO_RS_H
#define TIDE_ALGO_RS_H

#include "plan/build.h"

typedef struct tdi_span {
    uint64_t first; /* elements of a rank's output */
    uint64_t last;
} tdi_span;

typedef struct tdi_nodes { /* consecutive nodes */
    uint32_t first;
    uint32_t count;
} tdi_nodes;

static inline bool tdi_nodes_have(tdi_nodes nodes, uint32_t node)
{
    return node >= nodes.first && node - nodes.first < nodes.count;
}

typedef struct tdi_rs {
    uint64_t block;   /* E: elements, a multiple of 16 G */
    uint64_t piece;   /* Q: elements of a sub-slice, at most */
    uint32_t blocks;  /* 0 when there is nothing to reduce */
    uint32_t layers;  /* L */
    uint32_t layer;   /* mine */
    uint32_t targets; /* most nodes of a layer */
    uint32_t spread;  /* c */
    uint32_t width;   /* most sub-slices of a unit */
    uint64_t grad_size;
    uint32_t units;        /* level-1 units so far: scratch alternates */
    uint32_t unit_sum[2];  /* newest sum of the newest unit of a parity */
    uint32_t unit_sent[2]; /* newest put, likewise */
    uint32_t own_sum;      /* newest sum that went to my own RECV */
    uint32_t own_read;     /* newest sum that read my own gradient */
    uint32_t *slot_open;   /* [recv slot]: op after which it may be written */
} tdi_rs;

/* Elements from one sub-slice of block k to the next, in scratch. */
uint64_t tdi_rs_pitch(const tdi_builder *b, const tdi_rs *rs, uint32_t k);
/* Sub-slices of block k that are not empty: the first ones. */
uint32_t tdi_rs_slices(const tdi_builder *b, const tdi_rs *rs, uint32_t k);
/* The local rank g whose sub-slice t is mine to sum. */
uint32_t tdi_rs_owner(const tdi_builder *b, uint32_t t);
/* Sub-slice t of block k; empty when first = last. */
tdi_span tdi_rs_span(const tdi_builder *b, const tdi_rs *rs, uint32_t k,
                     uint32_t t);
/* The nodes of a layer. */
tdi_nodes tdi_rs_layer(const tdi_builder *b, const tdi_rs *rs, uint32_t layer);
/* The smallest divisor of local_size that is no less than a layer. */
uint32_t tdi_rs_spread(tide_topology topology);
/* Byte offset of sub-slice (g, t) of a step in RECV. */
uint64_t tdi_rs_recv_at(const tdi_builder *b, const tdi_rs *rs, uint32_t step,
                        uint32_t g, uint32_t t);

/* Level 1 of one step: pulls, sums, puts. */
void tdi_rs_local_begin(tdi_builder *b, tdi_rs *rs);
void tdi_rs_local_step(tdi_builder *b, tdi_rs *rs, uint32_t k, uint32_t turn);
/* The marks of both phases. */
void tdi_rs_local_end(tdi_builder *b, const tdi_rs *rs);
/* Level 2: arrivals, credits, the sum over nodes. */
void tdi_rs_final_begin(tdi_builder *b, tdi_rs *rs);
void tdi_rs_final_step(tdi_builder *b, tdi_rs *rs, uint32_t k, uint32_t turn);
/* Counts what level 2 receives, once all steps are there. */
void tdi_rs_final_expect(tdi_builder *b, tdi_rs *rs);

#endif
