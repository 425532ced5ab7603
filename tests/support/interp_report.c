/* What the interpreter says when something is wrong. */
#include "interp_world.h"

#include "check.h"

#include "plan/names.h"

#include <stdarg.h>

bool interp_fault(world *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!w->fault && vasprintf(&w->fault, format, args) < 0)
        w->fault = NULL;
    va_end(args);
    return false;
}

void interp_name_op(const world *w, const flow_state *flow, uint32_t index,
                    char *text, size_t bytes)
{
    const tide_op *op = &interp_plan_of(w, flow)->ops[index];
    snprintf(text, bytes, "call %u rank %u %s op %u (%s)", interp_call_of(flow),
             flow->rank, tdi_lane_name(op->lane), index, tdi_op_name(op->kind));
}

static void print_lane(world *w, flow_state *flow, const lane_state *lane,
                       FILE *to)
{
    const tide_op *op = &interp_plan_of(w, flow)->ops[lane->ops[lane->at]];
    char name[80];
    interp_name_op(w, flow, lane->ops[lane->at], name, sizeof(name));
    if (op->kind == TIDE_OP_AFTER) {
        fprintf(to, "\n  %s waits for op %" PRIu64, name, op->index);
        return;
    }
    uint32_t source = (uint32_t)tide_operand_rank(op->src);
    fprintf(to,
            "\n  %s waits for signal %" PRIu64 " of `%s` from rank %u, has "
            "%" PRIu64,
            name, interp_needed(flow, op), tdi_channel_name(op->channel),
            source,
            *interp_counter(w, flow->coll, flow->rank, source, op->channel));
}

void interp_report_deadlock(world *w)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    CHECK(to);
    fprintf(to, "deadlock; lanes that are not through stand here:");
    for (size_t f = 0; f < (size_t)FLOWS * w->ranks; f++) {
        flow_state *flow = &w->flows[f];
        if (flow->call_at == flow->call_count)
            continue;
        for (int l = 0; l < TIDE_LANE_COUNT; l++)
            if (flow->lanes[l].at < flow->lanes[l].count)
                print_lane(w, flow, &flow->lanes[l], to);
    }
    fclose(to);
    interp_fault(w, "%s", text);
    free(text);
}

/* Every signal must have been expected, or the next call would miscount. */
void interp_check_counters(world *w)
{
    for (size_t f = 0; f < (size_t)FLOWS * w->ranks && !w->fault; f++) {
        flow_state *flow = &w->flows[f];
        for (uint32_t s = 0; s < w->ranks; s++)
            for (uint32_t ch = 0; ch < TIDE_CH_COUNT; ch++) {
                uint64_t got =
                    *interp_counter(w, flow->coll, flow->rank, s, ch);
                uint64_t want = flow->base[(size_t)s * TIDE_CH_COUNT + ch];
                if (got != want)
                    interp_fault(w,
                                 "rank %u got %" PRIu64 " signals of `%s` from "
                                 "rank %u and expected %" PRIu64,
                                 flow->rank, got, tdi_channel_name(ch), s,
                                 want);
            }
    }
}
