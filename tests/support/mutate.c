/* The mutations. */
#include "mutate.h"

const char *const mutation_names[MUTATION_COUNT] = {
#define X(name, text) text,
    MUTATION_LIST(X)
#undef X
};

static uint64_t dst_size(const tide_plan *plan, const tide_op *op)
{
    if (plan->options.coll == TIDE_ALL_GATHER)
        return 2;
    if (op->kind == TIDE_OP_COPY)
        return tide_dtype_size(plan->options.grad_dtype);
    return op->flags & TIDE_DST_BF16 ? 2 : 4;
}

static uint64_t src_size(const tide_plan *plan, const tide_op *op)
{
    if (op->kind == TIDE_OP_REDUCE)
        return op->flags & TIDE_SRC_BF16 ? 2 : 4;
    return dst_size(plan, op);
}

static bool is_data(const tide_op *op)
{
    return op->kind == TIDE_OP_COPY || op->kind == TIDE_OP_PUT ||
           op->kind == TIDE_OP_REDUCE;
}

static bool reads_own(const tide_op *op)
{
    return op->kind == TIDE_OP_REDUCE && op->flags & TIDE_OWN;
}

/* The last row that a sum with its own gradient reads; 0: the first or none. */
static uint32_t last_row(const tide_op *op)
{
    uint32_t own = (uint32_t)tide_operand_rank(op->src) % op->height;
    return op->height < 2 ? 0 : op->height - 1 - (own + 1 == op->height);
}

/* Ops of rows, and sums of sources that lie apart. */
static bool has_src_pitch(const tide_op *op)
{
    if (reads_own(op))
        return last_row(op) > 0;
    return op->height > 1 &&
           (op->kind == TIDE_OP_COPY ||
            (op->kind == TIDE_OP_REDUCE && !(op->flags & TIDE_ACROSS)));
}

static bool has_source(const tide_op *op)
{
    if (reads_own(op))
        return op->height > 1;
    return is_data(op) && (op->kind != TIDE_OP_REDUCE || op->height);
}

bool mutation_applies(const tide_op *op, mutation how)
{
    switch (how) {
    case DROP:
        return true;
    case DROP_PAIR:
        return op->kind == TIDE_OP_SIGNAL;
    case LOWER:
        return op->kind == TIDE_OP_WAIT;
    case SHORTEN:
        return (op->kind == TIDE_OP_COPY || op->kind == TIDE_OP_REDUCE) &&
               op->height;
    case SRC_UP:
    case SRC_DOWN:
        return has_source(op);
    case DST_PITCH:
        return op->kind == TIDE_OP_COPY && op->height > 1;
    case SRC_PITCH:
        return has_src_pitch(op);
    case OWN_UP:
        return reads_own(op);
    case FLIP_ADD:
    case FLIP_SCALE:
        return op->kind == TIDE_OP_REDUCE;
    default:
        return is_data(op);
    }
}

void break_op(tide_plan *plan, uint32_t index, mutation how)
{
    tide_op *op = &plan_ops(plan)[index];
    uint64_t dst = dst_size(plan, op), src = src_size(plan, op);
    switch (how) {
    case DROP:
    case DROP_PAIR:
        drop_op(plan, index);
        break;
    case LOWER:
        op->count--;
        break;
    case NARROW:
        op->width -= op->kind == TIDE_OP_REDUCE ? 1 : dst;
        break;
    case SHORTEN:
        op->height--;
        break;
    case DST_UP:
        op->dst.offset += dst;
        break;
    case DST_DOWN:
        op->dst.offset -= dst;
        break;
    case SRC_UP:
        op->src.offset += src;
        break;
    case SRC_DOWN:
        op->src.offset -= src;
        break;
    case DST_PITCH:
        op->dst_pitch += dst;
        break;
    case SRC_PITCH:
        op->src_pitch += src;
        break;
    case OWN_UP:
        op->dst_pitch += src;
        break;
    case FLIP_ADD:
        op->flags ^= TIDE_ADD;
        break;
    default:
        op->flags ^= TIDE_SCALE;
    }
}

void expect_less(tide_plan *plan, uint32_t source, uint32_t channel)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < plan->expect_count; i++) {
        tide_expect *expect = &((tide_expect *)plan->expects)[i];
        if (expect->source == (int32_t)source && expect->channel == channel)
            total = (int64_t)--expect->total;
    }
    for (uint32_t i = 0; i < plan->op_count; i++) {
        tide_op *op = &plan_ops(plan)[i];
        if (op->kind == TIDE_OP_WAIT && op->channel == channel &&
            tide_operand_rank(op->src) == (int32_t)source && op->count > total)
            op->count = total;
    }
}
