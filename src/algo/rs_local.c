/*
 * Reduce-scatter, level 1: a worker reads its sub-slices from the G gradients
 * of its node, adds them in fp32 in rank order and puts the sums on the rail.
 *
 * A unit is some sub-slices t, t + 1 ... of a step, each for one local rank of
 * all destination nodes: in scratch a table of columns, node by node.
 * Staged: COPY pulls a unit into one half of RSTAGE while SUM adds the other;
 * of the rank's own gradient only short pieces, the rest SUM reads where it
 * lies. Direct: SUM reads all gradients where they lie. SEND puts PARTIAL, also
 * in halves. Rows that do not exist are never read; their sums are zeros.
 */
#include "algo/rs.h"

#include "base/util.h"
#include "layout/layout.h"
#include "topo/topo.h"

typedef struct unit {
    tdi_nodes nodes; /* destination nodes */
    uint32_t t;      /* the first sub-slice */
    uint32_t count;  /* of sub-slices, none empty */
    uint32_t half;
    uint32_t step;
    uint32_t k;
    uint64_t pitch; /* of columns, in elements */
} unit;

/* A column: sub-slice i of a unit for node m. */
typedef struct column {
    tdi_span span; /* of each destination rank's output */
    uint32_t g;    /* its local rank */
    uint32_t i;
    uint32_t m;
} column;

static tide_lane reader(const tdi_builder *b)
{
    return b->options->staged ? TIDE_LANE_COPY : TIDE_LANE_SUM;
}

static unsigned source_flags(const tdi_builder *b)
{
    return b->options->grad_dtype == TIDE_BF16 ? TIDE_SRC_BF16 : 0;
}

static column column_of(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                        uint32_t i, uint32_t m)
{
    column c = {.g = b->local, .i = i, .m = m};
    if (b->topology.nodes == 1) {
        c.span.first = u->k * rs->block;
        c.span.last =
            tdi_min(c.span.first + rs->block, tide_layout_out_elems(b->layout));
    } else {
        c.g = tdi_rs_owner(b, u->t + i);
        c.span = tdi_rs_span(b, rs, u->k, u->t + i);
    }
    return c;
}

/* Elements before a column in a row of scratch. */
static uint64_t column_at(const unit *u, uint32_t i, uint32_t m)
{
    return ((uint64_t)(m - u->nodes.first) * u->count + i) * u->pitch;
}

/* Elements of a row: of a half of PARTIAL, of a local rank in RSTAGE. */
static uint64_t row_elems(const tdi_rs *rs)
{
    return (uint64_t)rs->targets * rs->width * rs->piece;
}

static void begin_pieces(const tdi_builder *b, const column *c,
                         tdi_piece_iter *iter)
{
    tdi_pieces_begin(iter, b->layout, tdi_topo_rank(b->topology, c->m, c->g),
                     c->span.first, c->span.last);
}

/* --- Staging ------------------------------------------------------------ */

/* Elements of a gradient between what it has for one node and for the next. */
static uint64_t node_pitch(const tdi_builder *b, const tide_param_layout *p)
{
    return b->topology.local_size * p->shard_elems / p->param.outer;
}

/* Would a sum of the whole column stand alone anyway? With other columns beside
 * it one sum may do for all, so it has to be worth a sum of its own. */
static uint64_t least_read(const tdi_builder *b, const unit *u, const column *c,
                           const tdi_piece *piece)
{
    enum { LONG = 16 << 20, COLUMN = 2 << 20 };
    if (piece->elems < c->span.last - c->span.first)
        return LONG;
    uint32_t columns =
        u->count * (u->nodes.count - tdi_nodes_have(u->nodes, b->node));
    bool alone = b->topology.nodes == 1 || columns <= 1;
    return alone ? 0 : COLUMN;
}

/* Does my own source of a piece stay where it is? If a sum of its own costs
 * less than the copy; not if it lies otherwise against 16 bytes than those of
 * the peers in RSTAGE, which would make all loads narrow. The same for all
 * nodes of a run. */
static bool own_stays(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                      const column *c, const tdi_piece *piece)
{
    enum { VECTOR = 16 /* bytes */ };
    uint64_t read = piece->elems * rs->grad_size * b->topology.local_size;
    if (!piece->real || read < least_read(b, u, c, piece))
        return false;
    uint64_t pitch = node_pitch(b, tide_layout_param(b->layout, piece->param));
    uint64_t in = piece->out_offset - c->span.first;
    return pitch * rs->grad_size % VECTOR == 0 &&
           (in - piece->grad_offset) * rs->grad_size % VECTOR == 0;
}

/* Do the columns of nodes m and m + 1 have the same pieces? Then one 2-D copy
 * serves both. */
static bool same_pieces(const tdi_builder *b, const column *c)
{
    tdi_piece_iter i, j;
    tdi_piece p, q;
    column next = *c;
    next.m++;
    begin_pieces(b, c, &i);
    begin_pieces(b, &next, &j);
    for (;;) {
        bool more = tdi_pieces_next(&i, &p);
        if (more != tdi_pieces_next(&j, &q))
            return false;
        if (!more)
            return true;
        if (p.real != q.real || p.out_offset != q.out_offset ||
            p.elems != q.elems)
            return false;
    }
}

/* Bytes before a column of what was pulled from a local rank. */
static uint64_t stage_at(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                         uint32_t local, uint64_t at)
{
    uint64_t row = (uint64_t)u->half * b->topology.local_size + local;
    return (row * row_elems(rs) + at) * rs->grad_size;
}

/* Copies the pieces of `count` nodes from column c on, of one local gradient.
 */
static void stage_run(tdi_builder *b, const tdi_rs *rs, const unit *u,
                      uint32_t local, const column *c, uint32_t count)
{
    tdi_piece_iter iter;
    tdi_piece piece;
    uint32_t owner = tdi_topo_rank(b->topology, b->node, local);
    uint64_t at = stage_at(b, rs, u, local, column_at(u, c->i, c->m));
    begin_pieces(b, c, &iter);
    while (tdi_pieces_next(&iter, &piece)) {
        if (!piece.real || (owner == b->rank && own_stays(b, rs, u, c, &piece)))
            continue;
        const tide_param_layout *p = tide_layout_param(b->layout, piece.param);
        uint64_t in = (piece.out_offset - c->span.first) * rs->grad_size;
        tdi_copy copy = {
            .dst = tide_at(TIDE_BUF_RSTAGE, 0, (int32_t)b->rank, at + in),
            .src = tide_at(TIDE_BUF_GRAD, (uint32_t)piece.param, (int32_t)owner,
                           piece.grad_offset * rs->grad_size),
            .width = piece.elems * rs->grad_size,
            .height = count,
            .dst_pitch = u->count * u->pitch * rs->grad_size,
            .src_pitch = node_pitch(b, p) * rs->grad_size,
        };
        tdi_add_copy(b, TIDE_LANE_COPY, &copy);
    }
}

static void stage_slice(tdi_builder *b, const tdi_rs *rs, const unit *u,
                        uint32_t local, uint32_t i)
{
    uint32_t end = u->nodes.first + u->nodes.count;
    for (uint32_t m = u->nodes.first, run; m < end; m += run) {
        column c = column_of(b, rs, u, i, m), last = c;
        for (run = 1; m + run < end && same_pieces(b, &last); run++)
            last.m++;
        stage_run(b, rs, u, local, &c, run);
    }
}

static void stage_unit(tdi_builder *b, const tdi_rs *rs, const unit *u)
{
    tdi_add_after(b, TIDE_LANE_COPY, rs->unit_sum[u->half]);
    for (uint32_t n = 0; n < b->topology.local_size; n++)
        for (uint32_t i = 0; i < u->count; i++)
            stage_slice(b, rs, u, (b->local + n) % b->topology.local_size, i);
    tdi_add_after(b, TIDE_LANE_SUM, b->last[TIDE_LANE_COPY]);
}

/* --- Sums --------------------------------------------------------------- */

/* What one sum adds: elements that lie side by side in scratch and in what they
 * go to. */
typedef struct part {
    tide_operand dst;
    uint64_t at; /* in a row of scratch, in elements */
    uint64_t elems;
    uint64_t grad_offset; /* elements; of the first piece */
    uint32_t param;
    bool real;
    bool stays; /* my source is read where it lies */
} part;

/* Where in RECV the sums of sub-slice i go, on any node. */
static uint64_t recv_at(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                        uint32_t i)
{
    uint32_t t = u->t + i;
    return tdi_rs_recv_at(b, rs, u->step, tdi_rs_owner(b, t), t);
}

/* Bytes of an element that level 1 yields. */
static uint64_t sum_size(const tdi_builder *b)
{
    bool narrow = b->topology.nodes == 1 && b->options->out_dtype == TIDE_BF16;
    return narrow ? 2 : sizeof(float);
}

/* Where the sums of a column go. */
static tide_operand sum_at(const tdi_builder *b, const tdi_rs *rs,
                           const unit *u, uint32_t i, uint32_t m)
{
    int32_t me = (int32_t)b->rank;
    if (b->topology.nodes == 1)
        return tide_at(TIDE_BUF_OUT, 0, me, u->k * rs->block * sum_size(b));
    if (m == b->node)
        return tide_at(TIDE_BUF_RECV, 0, me, recv_at(b, rs, u, i));
    uint64_t at = u->half * row_elems(rs) + column_at(u, i, m);
    return tide_at(TIDE_BUF_PARTIAL, 0, me, at * sizeof(float));
}

static part part_of(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                    const column *c, const tdi_piece *piece)
{
    uint64_t in = piece->out_offset - c->span.first;
    part p = {.dst = sum_at(b, rs, u, c->i, c->m),
              .at = column_at(u, c->i, c->m) + in,
              .elems = piece->elems,
              .grad_offset = piece->grad_offset,
              .param = (uint32_t)piece->param,
              .real = piece->real,
              .stays = b->options->staged && own_stays(b, rs, u, c, piece)};
    p.dst.offset += in * sum_size(b);
    return p;
}

/* Staged pieces lie side by side, so neighbours of one kind are one sum. */
static bool join_parts(const tdi_builder *b, part *a, const part *p)
{
    bool join = a->real == p->real && !a->stays && !p->stays &&
                (b->options->staged || !a->real) && a->elems &&
                a->at + a->elems == p->at && a->dst.where == p->dst.where &&
                a->dst.offset + a->elems * sum_size(b) == p->dst.offset;
    if (join)
        a->elems += p->elems;
    return join;
}

static void add_sum(tdi_builder *b, tdi_rs *rs, const unit *u, const part *p)
{
    bool last = b->topology.nodes == 1;
    uint32_t sources = p->real ? b->topology.local_size : 0;
    unsigned flags = (last && sources ? TIDE_SCALE : 0u) |
                     (sum_size(b) == 2 ? TIDE_DST_BF16 : 0u);
    tide_operand src = {0};
    uint64_t pitch = 0;
    if (!p->elems)
        return;
    if (sources && b->options->staged) {
        flags |= source_flags(b);
        src = tide_at(TIDE_BUF_RSTAGE, 0, (int32_t)b->rank,
                      stage_at(b, rs, u, 0, p->at));
        pitch = row_elems(rs) * rs->grad_size;
    } else if (sources) {
        flags |= source_flags(b) | TIDE_ACROSS;
        src = tide_at(TIDE_BUF_GRAD, p->param,
                      (int32_t)tdi_topo_rank(b->topology, b->node, 0),
                      p->grad_offset * rs->grad_size);
    }
    tdi_add_reduce(b, TIDE_LANE_SUM, flags, p->dst, src, sources, pitch,
                   p->elems);
    if (p->stays) {
        tdi_reduce_own(b, p->param, p->grad_offset * rs->grad_size);
        rs->own_read = b->last[TIDE_LANE_SUM];
    }
    if (tide_operand_buffer(p->dst) == TIDE_BUF_RECV)
        rs->own_sum = b->last[TIDE_LANE_SUM];
}

static void sum_column(tdi_builder *b, tdi_rs *rs, const unit *u,
                       const column *c, part *held)
{
    tdi_piece_iter iter;
    tdi_piece piece;
    begin_pieces(b, c, &iter);
    while (tdi_pieces_next(&iter, &piece)) {
        part p = part_of(b, rs, u, c, &piece);
        if (join_parts(b, held, &p))
            continue;
        add_sum(b, rs, u, held);
        *held = p;
    }
}

static void sum_unit(tdi_builder *b, tdi_rs *rs, const unit *u)
{
    part held = {0};
    tdi_add_after(b, TIDE_LANE_SUM, rs->unit_sent[u->half]);
    if (b->topology.nodes > 1 && tdi_nodes_have(u->nodes, b->node))
        tdi_add_after(b, TIDE_LANE_SUM,
                      rs->slot_open[u->step % b->options->recv_slots]);
    for (uint32_t n = 0; n < u->nodes.count; n++) {
        for (uint32_t i = 0; i < u->count; i++) {
            column c = column_of(b, rs, u, i, u->nodes.first + n);
            sum_column(b, rs, u, &c, &held);
        }
    }
    add_sum(b, rs, u, &held);
    rs->unit_sum[u->half] = b->last[TIDE_LANE_SUM];
}

/* --- Puts --------------------------------------------------------------- */

/* The sub-slices of a unit lie side by side in PARTIAL and in RECV, and only
 * the last one of a block is shorter. */
static void put_node(tdi_builder *b, const tdi_rs *rs, const unit *u,
                     uint32_t m)
{
    int32_t peer = (int32_t)tdi_topo_rank(b->topology, m, b->local);
    uint64_t first = tdi_rs_span(b, rs, u->k, u->t).first;
    uint64_t last = tdi_rs_span(b, rs, u->k, u->t + u->count - 1).last;
    tdi_add_put(b, TIDE_LANE_SEND,
                tide_at(TIDE_BUF_RECV, 0, peer, recv_at(b, rs, u, 0)),
                sum_at(b, rs, u, 0, m), (last - first) * sizeof(float));
}

/* The n-th node that is put to: each node starts at another, so that no one is
 * flooded. */
static uint32_t node_in_turn(const tdi_builder *b, const unit *u, uint32_t n)
{
    return u->nodes.first + (b->node + n) % u->nodes.count;
}

/* Puts stand side by side: a backend can queue them together. */
static void put_unit(tdi_builder *b, tdi_rs *rs, const unit *u)
{
    if (u->nodes.count == tdi_nodes_have(u->nodes, b->node))
        return;
    for (uint32_t n = 0; !u->t && n < u->nodes.count; n++) {
        uint32_t m = node_in_turn(b, u, n);
        if (m != b->node)
            tdi_add_wait(b, TIDE_LANE_SEND,
                         tdi_topo_rank(b->topology, m, b->local),
                         TIDE_CH_CREDIT, (int64_t)u->k + 1);
    }
    tdi_add_after(b, TIDE_LANE_SEND, b->last[TIDE_LANE_SUM]);
    for (uint32_t n = 0; n < u->nodes.count; n++)
        if (node_in_turn(b, u, n) != b->node)
            put_node(b, rs, u, node_in_turn(b, u, n));
    rs->unit_sent[u->half] = b->last[TIDE_LANE_SEND];
}

static void add_unit(tdi_builder *b, tdi_rs *rs, const unit *u)
{
    if (b->options->staged)
        stage_unit(b, rs, u);
    sum_unit(b, rs, u);
    if (b->topology.nodes > 1)
        put_unit(b, rs, u);
}

/* --- Steps -------------------------------------------------------------- */

void tdi_rs_local_begin(tdi_builder *b, tdi_rs *rs)
{
    rs->unit_sum[0] = rs->unit_sum[1] = TDI_NO_OP;
    rs->unit_sent[0] = rs->unit_sent[1] = TDI_NO_OP;
    rs->own_sum = rs->own_read = TDI_NO_OP;
    tdi_signal_peers(b, reader(b), TIDE_CH_GRADS);
    tdi_wait_peers(b, reader(b), TIDE_CH_GRADS, 1);
    tdi_expect_peers(b, TIDE_CH_GRADS, 1);
}

void tdi_rs_local_step(tdi_builder *b, tdi_rs *rs, uint32_t k, uint32_t turn)
{
    uint32_t layer = (rs->layer + rs->layers - turn) % rs->layers;
    bool alone = b->topology.nodes == 1;
    uint32_t slices = alone ? 1 : tdi_rs_slices(b, rs, k);
    unit u = {.nodes = tdi_rs_layer(b, rs, layer),
              .step = k * rs->layers + turn,
              .k = k,
              .pitch = tdi_rs_pitch(b, rs, k)};
    for (; u.t < slices; u.t += rs->width) {
        u.count = (uint32_t)tdi_min(rs->width, slices - u.t);
        u.half = rs->units++ % 2;
        add_unit(b, rs, &u);
    }
}

void tdi_rs_local_end(tdi_builder *b, const tdi_rs *rs)
{
    tide_lane last = b->topology.nodes == 1 ? TIDE_LANE_SUM : TIDE_LANE_LAND;
    tdi_signal_peers(b, reader(b), TIDE_CH_READ);
    tdi_expect_peers(b, TIDE_CH_READ, 1);
    /* Done also means that no peer waits for this rank any more. */
    tdi_add_join(b, last);
    tdi_add_mark(b, last, TIDE_PHASE_DONE);
    tdi_wait_peers(b, reader(b), TIDE_CH_READ, 1);
    tdi_add_after(b, reader(b), rs->own_read);
    tdi_add_mark(b, reader(b), TIDE_PHASE_READS);
}
