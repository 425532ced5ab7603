/* Carries out one op of a plan, at once or piece by piece. */
#include "interp_world.h"

#include "base/util.h"
#include "check.h"

/* How many units of the op happen now: all, or some of those left. */
static uint64_t choose_piece(world *w, uint64_t left)
{
    if (!w->how->split || left < 2)
        return left;
    return check_between(&w->random, 1, left);
}

/* Writes one row to the destination, or to its image on every local rank. */
static bool write_row(world *w, flow_state *flow, uint32_t index,
                      tide_operand dst, const uint8_t *from, uint64_t bytes)
{
    uint32_t size = interp_plan_of(w, flow)->topology.local_size;
    uint32_t first = flow->rank - flow->rank % size;
    bool all = tide_operand_rank(dst) == TIDE_ALL_LOCAL;
    for (uint32_t i = 0; i < (all ? size : 1); i++) {
        tide_operand to = dst;
        if (all)
            to = tide_at(tide_operand_buffer(dst), dst.index,
                         (int32_t)(first + i), dst.offset);
        uint8_t *memory;
        if (!interp_locate(w, flow, index, to, bytes, &memory))
            return false;
        memmove(memory, from, bytes);
    }
    return true;
}

static bool copy_row(world *w, flow_state *flow, uint32_t index, uint64_t row,
                     uint64_t from, uint64_t to)
{
    const tide_op *op = &interp_plan_of(w, flow)->ops[index];
    tide_operand src = op->src, dst = op->dst;
    src.offset += row * op->src_pitch + from;
    dst.offset += row * op->dst_pitch + from;
    uint8_t *memory;
    return interp_locate(w, flow, index, src, to - from, &memory) &&
           write_row(w, flow, index, dst, memory, to - from);
}

/* Bytes [from, to) of the copy, counted over its rows. */
static bool copy_part(world *w, flow_state *flow, uint32_t index, uint64_t from,
                      uint64_t to)
{
    uint64_t width = interp_plan_of(w, flow)->ops[index].width;
    while (from < to) {
        uint64_t end = tdi_min(to, from - from % width + width);
        uint64_t row = from / width;
        if (!copy_row(w, flow, index, row, from - row * width,
                      end - row * width))
            return false;
        from = end;
    }
    return true;
}

static bool load(world *w, flow_state *flow, uint32_t index, tide_operand at,
                 bool bf16, float *value)
{
    uint8_t *memory;
    uint16_t bits;
    if (!interp_locate(w, flow, index, at, bf16 ? 2 : 4, &memory))
        return false;
    if (bf16) {
        memcpy(&bits, memory, sizeof(bits));
        *value = interp_from_bf16(bits);
    } else {
        memcpy(value, memory, sizeof(*value));
    }
    return true;
}

static bool store(world *w, flow_state *flow, uint32_t index, tide_operand at,
                  bool bf16, float value)
{
    uint16_t bits = interp_to_bf16(value);
    return write_row(w, flow, index, at,
                     bf16 ? (const uint8_t *)&bits : (const uint8_t *)&value,
                     bf16 ? sizeof(bits) : sizeof(value));
}

/* Where source i of a REDUCE begins. */
static tide_operand find_source(const tide_plan *plan, const tide_op *op,
                                uint32_t i)
{
    tide_operand at = op->src;
    if (op->flags & TIDE_OWN) {
        if (i == plan->rank % plan->topology.local_size)
            return tide_at(TIDE_BUF_GRAD, op->src.index, (int32_t)plan->rank,
                           op->dst_pitch);
        at.index = 0;
    }
    if (!(op->flags & TIDE_ACROSS)) {
        at.offset += i * op->src_pitch;
        return at;
    }
    uint32_t size = plan->topology.local_size;
    uint32_t rank = (uint32_t)tide_operand_rank(at);
    uint32_t peer = rank - rank % size + (rank % size + i) % size;
    return tide_at(tide_operand_buffer(at), at.index, (int32_t)peer, at.offset);
}

static bool reduce_element(world *w, flow_state *flow, uint32_t index,
                           uint64_t e)
{
    const tide_plan *plan = interp_plan_of(w, flow);
    const tide_op *op = &plan->ops[index];
    bool src_bf16 = op->flags & TIDE_SRC_BF16;
    bool dst_bf16 = op->flags & TIDE_DST_BF16;
    tide_operand dst = op->dst;
    dst.offset += e * (dst_bf16 ? 2 : 4);
    float sum = 0, value;
    if (op->flags & TIDE_ADD && !load(w, flow, index, dst, dst_bf16, &sum))
        return false;
    for (uint32_t i = 0; i < op->height; i++) {
        tide_operand src = find_source(plan, op, i);
        src.offset += e * (src_bf16 ? 2 : 4);
        if (!load(w, flow, index, src, src_bf16, &value))
            return false;
        sum += value;
    }
    if (op->flags & TIDE_SCALE)
        sum *= w->how->scale;
    return store(w, flow, index, dst, dst_bf16, sum);
}

static bool reduce_part(world *w, flow_state *flow, uint32_t index,
                        uint64_t from, uint64_t to)
{
    for (uint64_t e = from; e < to; e++)
        if (!reduce_element(w, flow, index, e))
            return false;
    return true;
}

/* Reads the bytes of a put piece by piece into a parcel, which goes onto the
 * wire with the last piece. */
static bool put_part(world *w, flow_state *flow, lane_state *lane,
                     uint32_t index, uint64_t from, uint64_t to)
{
    const tide_op *op = &interp_plan_of(w, flow)->ops[index];
    tide_operand src = op->src;
    uint8_t *source, *target;
    src.offset += from;
    if (!interp_locate(w, flow, index, src, to - from, &source) ||
        !interp_locate(w, flow, index, op->dst, op->width, &target))
        return false;
    if (!lane->open) {
        lane->open = calloc(1, sizeof(parcel) + op->width);
        CHECK(lane->open);
    }
    parcel *item = lane->open;
    memcpy(item->data + from, source, to - from);
    if (to < op->width)
        return true;
    item->target = target;
    item->bytes = op->width;
    item->counter =
        interp_counter(w, flow->coll, (uint32_t)tide_operand_rank(op->dst),
                       flow->rank, op->channel);
    *flow->wire_end = item;
    flow->wire_end = &item->next;
    lane->open = NULL;
    return true;
}

static uint64_t count_units(const tide_op *op)
{
    switch (op->kind) {
    case TIDE_OP_COPY:
        return op->width * op->height;
    case TIDE_OP_PUT:
    case TIDE_OP_REDUCE:
        return op->width;
    default:
        return 0;
    }
}

bool interp_step(world *w, flow_state *flow, lane_state *lane, bool *over)
{
    uint32_t index = lane->ops[lane->at];
    const tide_op *op = &interp_plan_of(w, flow)->ops[index];
    uint64_t units = count_units(op);
    uint64_t from = lane->done;
    uint64_t to = from + choose_piece(w, units - from);
    lane->done = to;
    *over = to == units;
    switch (op->kind) {
    case TIDE_OP_COPY:
        return copy_part(w, flow, index, from, to);
    case TIDE_OP_PUT:
        return put_part(w, flow, lane, index, from, to);
    case TIDE_OP_REDUCE:
        return reduce_part(w, flow, index, from, to);
    case TIDE_OP_SIGNAL:
        ++*interp_counter(w, flow->coll, (uint32_t)tide_operand_rank(op->dst),
                          flow->rank, op->channel);
        return true;
    case TIDE_OP_MARK:
        return interp_mark(w, flow, op->channel);
    default:
        return true; /* WAIT and AFTER have been met */
    }
}
