/*
 * Order: runs the plans once, and carries along with every lane what it knows
 * to have happened: a vector clock over all lines. Edges are the lanes, AFTER,
 * signals and, within a rank, the end of one call before the next.
 *
 * A wait for n signals of a counter proves that one signal has come only if no
 * n others can come without it; the lanes that raise a counter need not be
 * ordered. See verify_guarantee.c.
 */
#include "plan/verify_order.h"

#include "base/util.h"

#include <stdlib.h>
#include <string.h>

/* What a lane knew at some time; shared by the signals it sent then. */
typedef struct knowledge {
    struct knowledge *next;
    uint32_t clock[];
} knowledge;

typedef struct moment {
    const knowledge *known;
    uint32_t line; /* itself is known too, up to this time */
    uint32_t time;
    uint32_t wire_time; /* of a put; else 0 */
    uint64_t count;     /* a wait for so many signals proves it */
} moment;

/* The signals of one counter so far. */
typedef struct signal_log {
    moment *moments;
    uint32_t count;
    uint32_t capacity;
    uint32_t call;   /* the sender's newest */
    uint32_t before; /* signals of its earlier calls */
    bool scattered;  /* moment i is not proved by a wait for i + 1 */
} signal_log;

typedef struct order {
    const tdi_program *program;
    tdi_races races;
    uint32_t lines;
    uint32_t *clocks;        /* [lane][line] */
    const knowledge **fresh; /* [lane]: a copy of its clock, or NULL */
    knowledge *all;
    signal_log *logs;      /* [counter] */
    moment **ends;         /* [rank][op]: of ops that an AFTER names */
    uint32_t **guarantees; /* [set][rank][op]: see tdi_guarantees */
} order;

static uint32_t *clock_of(const order *o, uint32_t line)
{
    return &o->clocks[(size_t)line * o->lines];
}

/* --- Knowledge ------------------------------------------------------------ */

static const knowledge *remember(order *o, uint32_t line)
{
    if (o->fresh[line])
        return o->fresh[line];
    size_t bytes = o->lines * sizeof(uint32_t);
    knowledge *known = malloc(sizeof(*known) + bytes);
    if (!known)
        return NULL;
    memcpy(known->clock, clock_of(o, line), bytes);
    known->next = o->all;
    o->all = known;
    o->fresh[line] = known;
    return known;
}

static bool knows(const uint32_t *clock, const moment *m)
{
    uint32_t wire = m->line - m->line % TDI_LINES + TDI_WIRE;
    return clock[m->line] >= m->time && clock[wire] >= m->wire_time;
}

static void learn(order *o, uint32_t line, const moment *m)
{
    uint32_t *clock = clock_of(o, line);
    uint32_t wire = m->line - m->line % TDI_LINES + TDI_WIRE;
    if (knows(clock, m))
        return;
    for (uint32_t i = 0; i < o->lines; i++)
        clock[i] =
            clock[i] > m->known->clock[i] ? clock[i] : m->known->clock[i];
    clock[m->line] = (uint32_t)tdi_max(clock[m->line], m->time);
    clock[wire] = (uint32_t)tdi_max(clock[wire], m->wire_time);
    o->fresh[line] = NULL;
}

/* --- Signals -------------------------------------------------------------- */

static tide_status log_signal(order *o, const tdi_step *step, const moment *m)
{
    signal_log *log = &o->logs[step->code->counter[step->index]];
    if (log->count == log->capacity) {
        uint32_t capacity = log->capacity ? 2 * log->capacity : 4;
        moment *grown = realloc(log->moments, capacity * sizeof(*grown));
        if (!grown)
            return tdi_fail(TIDE_ERR_MEMORY, "no memory for %u signals",
                            capacity);
        log->moments = grown;
        log->capacity = capacity;
    }
    if (log->call != step->call) {
        log->call = step->call;
        log->before = log->count;
    }
    moment *at = &log->moments[log->count++];
    *at = *m;
    at->count = log->before + m->count;
    log->scattered |= at->count != log->count;
    return TIDE_OK;
}

static void learn_signals(order *o, uint32_t line, const signal_log *log,
                          uint64_t needed)
{
    if (!log->scattered) {
        if (needed && needed <= log->count)
            learn(o, line, &log->moments[needed - 1]);
        return;
    }
    for (uint32_t i = log->count; i-- > 0;)
        if (log->moments[i].count <= needed)
            learn(o, line, &log->moments[i]);
}

/* --- Accesses ------------------------------------------------------------- */

static tide_status access_by_caller(order *o, const tdi_step *step,
                                    tdi_event event)
{
    const tdi_set *set = &o->program->sets[o->program->calls[step->call]];
    tdi_access access;
    for (uint32_t i = 0; tdi_caller_access(set->layout, step->code->plan,
                                           event.phase, i, &access);
         i++)
        TDI_TRY(
            tdi_races_add(&o->races, &access, &event, clock_of(o, event.line)));
    return TIDE_OK;
}

/* A put writes on the wire, at a time of its own. */
static tide_status access_by_op(order *o, const tdi_step *step, tdi_event event,
                                uint32_t wire_time)
{
    tdi_access access;
    const uint32_t *clock = clock_of(o, event.line);
    for (uint32_t i = 0; tdi_op_access(step->code->plan, step->op, i, &access);
         i++) {
        tdi_event at = event;
        if (access.write && wire_time) {
            at.line = step->rank * TDI_LINES + TDI_WIRE;
            at.time = wire_time;
        }
        TDI_TRY(tdi_races_add(&o->races, &access, &at, clock));
    }
    return TIDE_OK;
}

/* --- The visits ----------------------------------------------------------- */

/* A call starts when all lanes of its rank are through with the former. */
static tide_status visit_start(void *context, const tdi_step *step)
{
    order *o = context;
    uint32_t first = step->rank * TDI_LINES;
    uint32_t *clock = clock_of(o, first);
    for (uint32_t lane = 1; lane < TIDE_LANE_COUNT; lane++) {
        const uint32_t *other = clock_of(o, first + lane);
        for (uint32_t i = 0; i < o->lines; i++)
            clock[i] = clock[i] > other[i] ? clock[i] : other[i];
    }
    clock[first + TIDE_LANE_COPY]++;
    for (uint32_t lane = 0; lane < TIDE_LANE_COUNT; lane++) {
        o->fresh[first + lane] = NULL;
        if (lane)
            memcpy(clock_of(o, first + lane), clock, o->lines * sizeof(*clock));
    }
    tdi_event event = {first + TIDE_LANE_COPY, clock[first + TIDE_LANE_COPY],
                       step->call, 0, TDI_CALL_START};
    return access_by_caller(o, step, event);
}

static tide_status visit_op(void *context, const tdi_step *step)
{
    order *o = context;
    const tide_op *op = step->op;
    uint32_t first = step->rank * TDI_LINES, line = first + op->lane;
    uint32_t *clock = clock_of(o, line);
    uint32_t *puts = &clock_of(o, first + TDI_WIRE)[first + TDI_WIRE];
    if (op->kind == TIDE_OP_AFTER)
        learn(o, line, &o->ends[step->rank][op->index]);
    if (op->kind == TIDE_OP_WAIT)
        learn_signals(o, line, &o->logs[step->code->counter[step->index]],
                      step->needed);

    tdi_event event = {line, ++clock[line], step->call, step->index,
                       op->kind == TIDE_OP_MARK ? op->channel : TDI_NO_PHASE};
    uint32_t wire_time = op->kind == TIDE_OP_PUT ? ++*puts : 0;
    TDI_TRY(op->kind == TIDE_OP_MARK ? access_by_caller(o, step, event)
                                     : access_by_op(o, step, event, wire_time));

    moment m = {remember(o, line), line, event.time, 0, 0};
    if (!m.known)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to check the order");
    o->ends[step->rank][step->index] = m;
    if (op->kind != TIDE_OP_SIGNAL && op->kind != TIDE_OP_PUT)
        return TIDE_OK;
    size_t code = (size_t)(step->code - o->program->codes);
    m.wire_time = wire_time;
    m.count = o->guarantees[code][step->index];
    return log_signal(o, step, &m);
}

/* --- All of it ------------------------------------------------------------ */

static uint32_t most_ops(const tdi_program *program, uint32_t rank)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < program->set_count; s++)
        most = (uint32_t)tdi_max(most, program->sets[s].plans[rank]->op_count);
    return most;
}

static tide_status open_order(order *o)
{
    const tdi_program *program = o->program;
    size_t codes = (size_t)program->set_count * program->ranks;
    bool made = true;
    o->lines = program->ranks * TDI_LINES;
    o->clocks = calloc((size_t)o->lines * o->lines, sizeof(*o->clocks));
    o->fresh = calloc(o->lines, sizeof(*o->fresh));
    o->logs = calloc(program->counter_count + 1, sizeof(*o->logs));
    o->ends = calloc(program->ranks, sizeof(*o->ends));
    o->guarantees = calloc(codes, sizeof(*o->guarantees));
    made = o->clocks && o->fresh && o->logs && o->ends && o->guarantees;
    for (uint32_t r = 0; made && r < program->ranks; r++)
        made = (o->ends[r] =
                    calloc(most_ops(program, r) + 1, sizeof(moment))) != NULL;
    for (size_t i = 0; made && i < codes; i++)
        made = (o->guarantees[i] = tdi_guarantees(&program->codes[i])) != NULL;
    return made ? TIDE_OK
                : tdi_fail(TIDE_ERR_MEMORY,
                           "no memory to check the order of %u ranks",
                           program->ranks);
}

static void close_order(order *o)
{
    const tdi_program *program = o->program;
    size_t codes = (size_t)program->set_count * program->ranks;
    for (uint32_t c = 0; o->logs && c < program->counter_count; c++)
        free(o->logs[c].moments);
    for (uint32_t r = 0; o->ends && r < program->ranks; r++)
        free(o->ends[r]);
    for (size_t i = 0; o->guarantees && i < codes; i++)
        free(o->guarantees[i]);
    while (o->all) {
        knowledge *next = o->all->next;
        free(o->all);
        o->all = next;
    }
    free(o->clocks);
    free(o->fresh);
    free(o->logs);
    free(o->ends);
    free(o->guarantees);
}

static tide_status check_program(const tdi_program *program)
{
    order o = {.program = program};
    tdi_visitor visitor = {visit_start, visit_op, &o};
    TDI_TRY(tdi_races_open(&o.races, program));
    tide_status status = open_order(&o);
    if (!status)
        status = tdi_trace(program, &visitor);
    close_order(&o);
    tdi_races_close(&o.races);
    return status;
}

tide_status tdi_verify_order(const tdi_set *sets, uint32_t set_count,
                             const uint32_t *calls, uint32_t call_count)
{
    tdi_program program;
    for (uint32_t s = 0; s < set_count; s++)
        TDI_TRY(tide_verify_bounds(sets[s].layout, sets[s].plans));
    TDI_TRY(tdi_program_load(&program, sets, set_count, calls, call_count));
    tide_status status = check_program(&program);
    tdi_program_unload(&program);
    return status;
}

tide_status tide_verify_order(const tide_layout *layout,
                              const tide_plan *const *plans)
{
    static const uint32_t three_calls[] = {0, 0, 0};
    tdi_set set = {.layout = layout, .plans = plans};
    return tdi_verify_order(&set, 1, three_calls, 3);
}
