/*
 * Reduce-scatter, level 1: a worker reads its sub-slices from the G gradients
 * of its node, adds them in fp32 in rank order and puts the sums on the rail.
 *
 * A unit is one sub-slice position [g][t] for all destination nodes of a step.
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
    tdi_span span;   /* of each destination rank's output */
    tdi_nodes nodes; /* destination nodes */
    uint32_t g;      /* destination local rank */
    uint32_t half;
    uint32_t step;
    uint32_t t;
    bool first; /* of its step */
    uint32_t k;
} unit;

static tide_lane reader(const tdi_builder *b)
{
    return b->options->staged ? TIDE_LANE_COPY : TIDE_LANE_SUM;
}

static unsigned source_flags(const tdi_builder *b)
{
    return b->options->grad_dtype == TIDE_BF16 ? TIDE_SRC_BF16 : 0;
}

/* --- Staging ------------------------------------------------------------ */

/* Elements of a gradient between what it has for one node and for the next. */
static uint64_t node_pitch(const tdi_builder *b, const tide_param_layout *p)
{
    return b->topology.local_size * p->shard_elems / p->param.outer;
}

/* Does my own source of a piece stay where it is? If the piece is all of its
 * span, or long, so that a sum of its own costs less than the copy; not if it
 * lies otherwise against 16 bytes than those of the peers in RSTAGE, which
 * would make all loads narrow. The same for all nodes of a run. */
static bool own_stays(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                      const tdi_piece *piece)
{
    enum { VECTOR = 16, LONG = 16 << 20 /* bytes that the sum reads */ };
    uint64_t read = piece->elems * rs->grad_size * b->topology.local_size;
    if (!piece->real ||
        (read < LONG && piece->elems < u->span.last - u->span.first))
        return false;
    uint64_t pitch = node_pitch(b, tide_layout_param(b->layout, piece->param));
    uint64_t in = piece->out_offset - u->span.first;
    return pitch * rs->grad_size % VECTOR == 0 &&
           (in - piece->grad_offset) * rs->grad_size % VECTOR == 0;
}

/* Do the spans of destination nodes m and m + 1 have the same pieces? Then one
 * 2-D copy serves both. */
static bool same_pieces(const tdi_builder *b, const unit *u, uint32_t m)
{
    tdi_piece_iter i, j;
    tdi_piece p, q;
    tdi_pieces_begin(&i, b->layout, tdi_topo_rank(b->topology, m, u->g),
                     u->span.first, u->span.last);
    tdi_pieces_begin(&j, b->layout, tdi_topo_rank(b->topology, m + 1, u->g),
                     u->span.first, u->span.last);
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

static uint64_t stage_at(const tdi_builder *b, const tdi_rs *rs, const unit *u,
                         uint32_t local, uint32_t node)
{
    uint64_t row = (uint64_t)u->half * b->topology.local_size + local;
    uint64_t column = row * rs->targets + (node - u->nodes.first);
    return column * rs->piece * rs->grad_size;
}

/* Copies the pieces of nodes [m, m + count) from one local gradient. */
static void stage_run(tdi_builder *b, const tdi_rs *rs, const unit *u,
                      uint32_t local, uint32_t m, uint32_t count)
{
    tdi_piece_iter iter;
    tdi_piece piece;
    uint32_t owner = tdi_topo_rank(b->topology, b->node, local);
    tdi_pieces_begin(&iter, b->layout, tdi_topo_rank(b->topology, m, u->g),
                     u->span.first, u->span.last);
    while (tdi_pieces_next(&iter, &piece)) {
        if (!piece.real || (owner == b->rank && own_stays(b, rs, u, &piece)))
            continue;
        const tide_param_layout *p = tide_layout_param(b->layout, piece.param);
        uint64_t in = (piece.out_offset - u->span.first) * rs->grad_size;
        tdi_copy copy = {
            .dst = tide_at(TIDE_BUF_RSTAGE, 0, (int32_t)b->rank,
                           stage_at(b, rs, u, local, m) + in),
            .src = tide_at(TIDE_BUF_GRAD, (uint32_t)piece.param, (int32_t)owner,
                           piece.grad_offset * rs->grad_size),
            .width = piece.elems * rs->grad_size,
            .height = count,
            .dst_pitch = rs->piece * rs->grad_size,
            .src_pitch = node_pitch(b, p) * rs->grad_size,
        };
        tdi_add_copy(b, TIDE_LANE_COPY, &copy);
    }
}

static void stage_unit(tdi_builder *b, const tdi_rs *rs, const unit *u)
{
    uint32_t end = u->nodes.first + u->nodes.count;
    tdi_add_after(b, TIDE_LANE_COPY, rs->unit_sum[u->half]);
    for (uint32_t i = 0; i < b->topology.local_size; i++) {
        uint32_t local = (b->local + i) % b->topology.local_size;
        for (uint32_t m = u->nodes.first, run; m < end; m += run) {
            run = 1;
            while (m + run < end && same_pieces(b, u, m + run - 1))
                run++;
            stage_run(b, rs, u, local, m, run);
        }
    }
    tdi_add_after(b, TIDE_LANE_SUM, b->last[TIDE_LANE_COPY]);
}

/* --- Sums --------------------------------------------------------------- */

/* Where the sums for destination node m go, for element span.first. */
static tide_operand sum_at(const tdi_builder *b, const tdi_rs *rs,
                           const unit *u, uint32_t m)
{
    int32_t me = (int32_t)b->rank;
    if (b->topology.nodes == 1)
        return tide_at(TIDE_BUF_OUT, 0, me,
                       u->span.first * tide_dtype_size(b->options->out_dtype));
    if (m == b->node)
        return tide_at(TIDE_BUF_RECV, 0, me,
                       tdi_rs_recv_at(b, rs, u->step, u->g, u->t));
    uint64_t column = (uint64_t)u->half * rs->targets + (m - u->nodes.first);
    return tide_at(TIDE_BUF_PARTIAL, 0, me, column * rs->piece * sizeof(float));
}

/* `own`: my source is read where it lies. */
static void sum_piece(tdi_builder *b, tdi_rs *rs, const unit *u, uint32_t m,
                      const tdi_piece *piece, bool own)
{
    bool last = b->topology.nodes == 1;
    bool narrow = last && b->options->out_dtype == TIDE_BF16;
    uint64_t in = piece->out_offset - u->span.first;
    uint32_t sources = piece->real ? b->topology.local_size : 0;
    unsigned flags =
        (last && sources ? TIDE_SCALE : 0u) | (narrow ? TIDE_DST_BF16 : 0u);
    tide_operand dst = sum_at(b, rs, u, m);
    tide_operand src = {0};
    uint64_t pitch = 0;
    dst.offset += in * (narrow ? 2 : sizeof(float));
    if (sources && b->options->staged) {
        flags |= source_flags(b);
        src = tide_at(TIDE_BUF_RSTAGE, 0, (int32_t)b->rank,
                      stage_at(b, rs, u, 0, m) + in * rs->grad_size);
        pitch = rs->targets * rs->piece * rs->grad_size;
    } else if (sources) {
        flags |= source_flags(b) | TIDE_ACROSS;
        src = tide_at(TIDE_BUF_GRAD, (uint32_t)piece->param,
                      (int32_t)tdi_topo_rank(b->topology, b->node, 0),
                      piece->grad_offset * rs->grad_size);
    }
    tdi_add_reduce(b, TIDE_LANE_SUM, flags, dst, src, sources, pitch,
                   piece->elems);
    if (own) {
        tdi_reduce_own(b, (uint32_t)piece->param,
                       piece->grad_offset * rs->grad_size);
        rs->own_read = b->last[TIDE_LANE_SUM];
    }
}

/* Staged pieces lie side by side, so neighbours of one kind are one sum. */
static bool join_pieces(const tdi_builder *b, tdi_piece *a, const tdi_piece *p)
{
    bool join = a->real == p->real && (b->options->staged || !a->real) &&
                a->out_offset + a->elems == p->out_offset;
    if (join)
        a->elems += p->elems;
    return join;
}

static void sum_node(tdi_builder *b, tdi_rs *rs, const unit *u, uint32_t m)
{
    bool staged = b->options->staged;
    tdi_piece_iter iter;
    tdi_piece held, piece;
    tdi_pieces_begin(&iter, b->layout, tdi_topo_rank(b->topology, m, u->g),
                     u->span.first, u->span.last);
    if (!tdi_pieces_next(&iter, &held))
        return;
    bool own = staged && own_stays(b, rs, u, &held);
    while (tdi_pieces_next(&iter, &piece)) {
        bool next = staged && own_stays(b, rs, u, &piece);
        if (!own && !next && join_pieces(b, &held, &piece))
            continue;
        sum_piece(b, rs, u, m, &held, own);
        held = piece;
        own = next;
    }
    sum_piece(b, rs, u, m, &held, own);
}

static void put_node(tdi_builder *b, const tdi_rs *rs, const unit *u,
                     uint32_t m)
{
    uint32_t peer = tdi_topo_rank(b->topology, m, b->local);
    if (u->first)
        tdi_add_wait(b, TIDE_LANE_SEND, peer, TIDE_CH_CREDIT,
                     (int64_t)u->k + 1);
    tdi_add_after(b, TIDE_LANE_SEND, b->last[TIDE_LANE_SUM]);
    tdi_add_put(b, TIDE_LANE_SEND,
                tide_at(TIDE_BUF_RECV, 0, (int32_t)peer,
                        tdi_rs_recv_at(b, rs, u->step, u->g, u->t)),
                sum_at(b, rs, u, m),
                (u->span.last - u->span.first) * sizeof(float));
}

static void add_unit(tdi_builder *b, tdi_rs *rs, const unit *u)
{
    bool sent = false;
    if (b->options->staged)
        stage_unit(b, rs, u);
    tdi_add_after(b, TIDE_LANE_SUM, rs->unit_sent[u->half]);
    for (uint32_t i = 0; i < u->nodes.count; i++) {
        /* Start at another node than my neighbours do: no one is flooded. */
        uint32_t m = u->nodes.first + (b->node + i) % u->nodes.count;
        bool own = m == b->node && b->topology.nodes > 1;
        if (own)
            tdi_add_after(b, TIDE_LANE_SUM,
                          rs->slot_open[u->step % b->options->recv_slots]);
        sum_node(b, rs, u, m);
        if (own) {
            rs->own_sum = b->last[TIDE_LANE_SUM];
        } else if (b->topology.nodes > 1) {
            put_node(b, rs, u, m);
            sent = true;
        }
    }
    rs->unit_sum[u->half] = b->last[TIDE_LANE_SUM];
    if (sent)
        rs->unit_sent[u->half] = b->last[TIDE_LANE_SEND];
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
    uint32_t local_size = b->topology.local_size;
    uint32_t layer = (rs->layer + rs->layers - turn) % rs->layers;
    unit u = {.nodes = tdi_rs_layer(b, rs, layer),
              .step = k * rs->layers + turn,
              .first = true,
              .k = k};
    for (uint32_t g = 0; g < local_size; g++) {
        u.g = g;
        u.t =
            (b->local + 2 * local_size - g - b->node % local_size) % local_size;
        if (b->topology.nodes == 1) {
            u.g = b->local;
            u.span.first = k * rs->block;
            u.span.last = tdi_min(u.span.first + rs->block,
                                  tide_layout_out_elems(b->layout));
        } else {
            u.span = tdi_rs_span(b, rs, k, u.t);
        }
        if (u.span.first >= u.span.last)
            continue;
        u.half = rs->units++ % 2;
        add_unit(b, rs, &u);
        u.first = false;
        if (b->topology.nodes == 1)
            break;
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
