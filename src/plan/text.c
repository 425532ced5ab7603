/* Plans as text: one op a line, "rank.lane index: ..."; see plan_format.md. */
#include "plan/names.h"

#include "base/util.h"

#include <inttypes.h>

#define X(name, text, ...) text,
static const char *const op_names[] = {TIDE_OP_LIST(X)};
static const char *const lane_names[] = {TIDE_LANE_LIST(X)};
static const char *const buffer_names[] = {TIDE_BUFFER_LIST(X)};
static const char *const channel_names[] = {TIDE_CHANNEL_LIST(X)};
static const char *const phase_names[] = {TIDE_PHASE_LIST(X)};
#undef X

static const char *pick(const char *const *names, size_t count, unsigned i)
{
    return i < count ? names[i] : "?";
}

const char *tdi_op_name(unsigned kind)
{
    return pick(op_names, TDI_COUNT(op_names), kind);
}

const char *tdi_lane_name(unsigned lane)
{
    return pick(lane_names, TDI_COUNT(lane_names), lane);
}

const char *tdi_buffer_name(unsigned buffer)
{
    return pick(buffer_names, TDI_COUNT(buffer_names), buffer);
}

const char *tdi_channel_name(unsigned channel)
{
    return pick(channel_names, TDI_COUNT(channel_names), channel);
}

const char *tdi_phase_name(unsigned phase)
{
    return pick(phase_names, TDI_COUNT(phase_names), phase);
}

const char *tdi_coll_name(tide_coll coll)
{
    return coll == TIDE_ALL_GATHER ? "all-gather" : "reduce-scatter";
}

typedef struct operand_text {
    char s[64];
} operand_text;

/* "param[3]@5+4096"; "@*" is every local rank. */
static operand_text show(tide_operand at)
{
    operand_text text;
    tide_buffer buffer = tide_operand_buffer(at);
    int32_t rank = tide_operand_rank(at);
    char index[16] = "", where[16] = "*";
    if (buffer == TIDE_BUF_PARAM || buffer == TIDE_BUF_GRAD)
        snprintf(index, sizeof(index), "[%" PRIu32 "]", at.index);
    if (rank != TIDE_ALL_LOCAL)
        snprintf(where, sizeof(where), "%" PRId32, rank);
    snprintf(text.s, sizeof(text.s), "%s%s@%s+%" PRIu64,
             tdi_buffer_name(buffer), index, where, at.offset);
    return text;
}

static void show_reduce(const tide_op *op, char *text, size_t size)
{
    unsigned f = op->flags;
    char own[48] = "";
    if (f & TIDE_OWN)
        snprintf(own, sizeof(own), " own=grad[%" PRIu32 "]+%" PRIu64,
                 op->src.index, op->dst_pitch);
    snprintf(text, size,
             "reduce %s <- %s x%" PRIu32 " elems=%" PRIu64 " pitch=%" PRIu64
             " %s->%s%s%s%s%s%s",
             show(op->dst).s, op->height ? show(op->src).s : "zero", op->height,
             op->width, op->src_pitch, f & TIDE_SRC_BF16 ? "bf16" : "f32",
             f & TIDE_DST_BF16 ? "bf16" : "f32", f & TIDE_ADD ? " add" : "",
             f & TIDE_SCALE ? " scale" : "", f & TIDE_ACROSS ? " across" : "",
             f & TIDE_SWITCH ? " switch" : "", own);
}

const char *tdi_op_text(const tide_op *op, char *text, size_t size)
{
    switch (op->kind) {
    case TIDE_OP_COPY:
        snprintf(text, size,
                 "copy %s <- %s width=%" PRIu64 " height=%" PRIu32
                 " pitch=%" PRIu64 "/%" PRIu64,
                 show(op->dst).s, show(op->src).s, op->width, op->height,
                 op->dst_pitch, op->src_pitch);
        break;
    case TIDE_OP_PUT:
        snprintf(text, size, "put %s <- %s bytes=%" PRIu64 " signal=%s",
                 show(op->dst).s, show(op->src).s, op->width,
                 tdi_channel_name(op->channel));
        break;
    case TIDE_OP_SIGNAL:
        snprintf(text, size, "signal %s to=%" PRId32,
                 tdi_channel_name(op->channel), tide_operand_rank(op->dst));
        break;
    case TIDE_OP_WAIT:
        snprintf(text, size, "wait %s from=%" PRId32 " count=%" PRId64,
                 tdi_channel_name(op->channel), tide_operand_rank(op->src),
                 op->count);
        break;
    case TIDE_OP_REDUCE:
        show_reduce(op, text, size);
        break;
    case TIDE_OP_AFTER:
        snprintf(text, size, "after %" PRIu64, op->index);
        break;
    case TIDE_OP_MARK:
        snprintf(text, size, "mark %s", tdi_phase_name(op->channel));
        break;
    default:
        snprintf(text, size, "?");
    }
    return text;
}

void tide_plan_print(const tide_plan *plan, FILE *to)
{
    char text[256];
    fprintf(to,
            "# %s rank %" PRIu32 " of %" PRIu32 " x %" PRIu32 ", %" PRIu32
            " ops, key %016" PRIx64 "\n",
            tdi_coll_name(plan->options.coll), plan->rank, plan->topology.nodes,
            plan->topology.local_size, plan->op_count, plan->key);
    for (int i = 0; i < TIDE_BUF_COUNT; i++)
        if (plan->buffer_bytes[i])
            fprintf(to, "# buffer %s %" PRIu64 "\n", tdi_buffer_name(i),
                    plan->buffer_bytes[i]);
    for (uint32_t i = 0; i < plan->expect_count; i++)
        fprintf(to, "# expect %s from=%" PRId32 " total=%" PRIu64 "\n",
                tdi_channel_name(plan->expects[i].channel),
                plan->expects[i].source, plan->expects[i].total);
    for (uint32_t i = 0; i < plan->op_count; i++)
        fprintf(to, "%" PRIu32 ".%s %" PRIu32 ": %s\n", plan->rank,
                tdi_lane_name(plan->ops[i].lane), i,
                tdi_op_text(&plan->ops[i], text, sizeof(text)));
}
