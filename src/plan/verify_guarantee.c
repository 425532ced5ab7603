/*
 * How many signals of a counter one must await to know that a certain one has
 * come: one more than can come without it, which are those that the sender's
 * lanes and AFTERs do not put behind it.
 */
#include "plan/verify_order.h"

#include <stdlib.h>

/* known[op][lane]: ops of each lane before this index are complete when the
 * op is; the op itself included. */
typedef uint32_t lane_clock[TIDE_LANE_COUNT];

static void read_edges(const tide_plan *plan, lane_clock *known)
{
    lane_clock lanes[TIDE_LANE_COUNT] = {0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        uint32_t *mine = lanes[op->lane];
        for (int l = 0; op->kind == TIDE_OP_AFTER && l < TIDE_LANE_COUNT; l++)
            if (known[op->index][l] > mine[l])
                mine[l] = known[op->index][l];
        mine[op->lane] = i + 1;
        for (int l = 0; l < TIDE_LANE_COUNT; l++)
            known[i][l] = mine[l];
    }
}

/* Does signal s always come before t, both of one counter? A put's signal
 * travels with its data, which only another put is sure to follow. */
static bool comes_before(const tide_plan *plan, const lane_clock *known,
                         uint32_t s, uint32_t t)
{
    if (plan->ops[s].kind == TIDE_OP_PUT && plan->ops[t].kind != TIDE_OP_PUT)
        return false;
    return s != t && known[t][plan->ops[s].lane] > s;
}

typedef struct signal {
    uint32_t counter;
    uint32_t op;
} signal;

static int compare_signals(const void *a, const void *b)
{
    const signal *x = a, *y = b;
    if (x->counter != y->counter)
        return x->counter < y->counter ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

/* The signals of one counter, in the order of the array. */
static void rate_group(const tide_plan *plan, const lane_clock *known,
                       const signal *group, uint32_t count, uint32_t *needed)
{
    bool alike = true;
    for (uint32_t i = 1; i < count && alike; i++)
        alike = comes_before(plan, known, group[i - 1].op, group[i].op);
    for (uint32_t i = 0; i < count; i++) {
        needed[group[i].op] = i + 1;
        if (alike)
            continue;
        uint32_t others = 0;
        for (uint32_t j = 0; j < count; j++)
            others +=
                j != i && !comes_before(plan, known, group[i].op, group[j].op);
        needed[group[i].op] = others + 1;
    }
}

static uint32_t gather_signals(const tdi_code *code, signal *signals)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < code->plan->op_count; i++)
        if (code->counter[i] != TDI_NO_COUNTER &&
            code->plan->ops[i].kind != TIDE_OP_WAIT)
            signals[count++] = (signal){code->counter[i], i};
    qsort(signals, count, sizeof(*signals), compare_signals);
    return count;
}

uint32_t *tdi_guarantees(const tdi_code *code)
{
    const tide_plan *plan = code->plan;
    size_t ops = (size_t)plan->op_count + 1;
    lane_clock *known = calloc(ops, sizeof(*known));
    signal *signals = calloc(ops, sizeof(*signals));
    uint32_t *needed = calloc(ops, sizeof(*needed));
    if (known && signals && needed) {
        read_edges(plan, known);
        uint32_t count = gather_signals(code, signals);
        for (uint32_t first = 0, end; first < count; first = end) {
            end = first + 1;
            while (end < count &&
                   signals[end].counter == signals[first].counter)
                end++;
            rate_group(plan, (const lane_clock *)known, &signals[first],
                       end - first, needed);
        }
    } else {
        free(needed);
        needed = NULL;
    }
    free(known);
    free(signals);
    return needed;
}
