/* Races: overlapping accesses, one of them a write, that nothing orders. */
#include "plan/names.h"
#include "plan/verify_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* --- Where accesses meet -------------------------------------------------- */

/* Buffers that all calls share, and how many tensors a set has of its own. */
static uint32_t shared_buffers(void)
{
    return TIDE_STAGE_SETS + TIDE_BUF_COUNT;
}

static uint32_t tensor_count(const tdi_set *set)
{
    return (uint32_t)tide_layout_count(set->layout) + 1; /* and OUT */
}

static tdi_history *find_history(const tdi_races *races,
                                 const tdi_access *access, uint32_t call)
{
    const tdi_program *program = races->program;
    uint32_t set = program->calls[call];
    const tdi_set *slots = program->sets[set].slots;
    uint32_t tensors = slots ? (uint32_t)(slots - program->sets) : set;
    uint32_t at = TIDE_STAGE_SETS + access->buffer;
    if (access->buffer == TIDE_BUF_STAGE)
        at = races->turn[call] % TIDE_STAGE_SETS;
    else if (access->buffer == TIDE_BUF_OUT)
        at = races->first[set];
    else if (access->buffer == TIDE_BUF_PARAM ||
             access->buffer == TIDE_BUF_GRAD)
        at = races->first[tensors] + 1 + access->index;
    return &races->history[(size_t)access->rank * races->per_rank + at];
}

static tide_coll kind_of(const tdi_program *program, uint32_t call)
{
    return program->sets[program->calls[call]].plans[0]->options.coll;
}

static void count_turns(tdi_races *races)
{
    const tdi_program *program = races->program;
    for (uint32_t call = 0; call < program->call_count; call++)
        for (uint32_t former = 0; former < call; former++)
            races->turn[call] +=
                kind_of(program, former) == kind_of(program, call);
}

tide_status tdi_races_open(tdi_races *races, const tdi_program *program)
{
    *races = (tdi_races){.program = program, .per_rank = shared_buffers()};
    races->first = calloc(program->set_count, sizeof(*races->first));
    races->turn = calloc(program->call_count + 1, sizeof(*races->turn));
    for (uint32_t s = 0; races->first && s < program->set_count; s++) {
        races->first[s] = races->per_rank;
        races->per_rank += tensor_count(&program->sets[s]);
    }
    races->history = calloc((size_t)races->per_rank * program->ranks,
                            sizeof(*races->history));
    if (races->first && races->turn && races->history) {
        count_turns(races);
        return TIDE_OK;
    }
    tdi_races_close(races);
    return tdi_fail(TIDE_ERR_MEMORY, "no memory to check the order of %u ranks",
                    program->ranks);
}

void tdi_races_close(tdi_races *races)
{
    size_t count = (size_t)races->per_rank * races->program->ranks;
    for (size_t i = 0; races->history && i < count; i++)
        tdi_history_free(&races->history[i]);
    free(races->history);
    free(races->turn);
    free(races->first);
}

/* --- What to say ---------------------------------------------------------- */

static const char *caller_text(uint32_t phase)
{
    switch (phase) {
    case TIDE_PHASE_FREE:
        return "its caller fills its slot and hands over storages";
    case TIDE_PHASE_READS:
        return "its caller may free the gradients";
    case TIDE_PHASE_DONE:
        return "its caller reads the outputs";
    default:
        return "its caller hands over tensors";
    }
}

static void describe(const tdi_races *races, const tdi_event *event, char *text,
                     size_t size)
{
    uint32_t rank = event->line / TDI_LINES;
    if (event->phase == TDI_CALL_START) {
        snprintf(text, size, "rank %u at the start of call %u (%s)", rank,
                 event->call, caller_text(event->phase));
        return;
    }
    char op_text[128];
    const tide_plan *plan =
        tdi_code_of(races->program, event->call, rank)->plan;
    const tide_op *op = &plan->ops[event->index];
    bool caller = event->phase != TDI_NO_PHASE;
    snprintf(text, size, "rank %u %s op %u of call %u (%s%s%s)", rank,
             tdi_lane_name(op->lane), event->index, event->call,
             tdi_op_text(op, op_text, sizeof(op_text)), caller ? ": " : "",
             caller ? caller_text(event->phase) : "");
}

/* The op that is the time-th event of its line; the start of a call is one, on
 * the copy lane. */
static tdi_event find_event(const tdi_races *races, uint32_t line,
                            uint32_t time)
{
    uint32_t rank = line / TDI_LINES, lane = line % TDI_LINES;
    uint32_t left = time;
    for (uint32_t call = 0; call < races->program->call_count; call++) {
        const tdi_code *code = tdi_code_of(races->program, call, rank);
        tdi_event event = {line, time, call, 0, TDI_NO_PHASE};
        if (lane == TIDE_LANE_COPY && --left == 0) {
            event.phase = TDI_CALL_START;
            return event;
        }
        for (uint32_t i = 0; i < code->plan->op_count; i++) {
            event.index = i;
            if ((lane == TDI_WIRE ? code->plan->ops[i].kind == TIDE_OP_PUT
                                  : code->plan->ops[i].lane == lane) &&
                --left == 0)
                return event;
        }
    }
    return (tdi_event){line, time, 0, 0, TDI_CALL_START};
}

/* What the later of two accesses knows of the line of the earlier. */
static void describe_known(const tdi_races *races, const tdi_record *a,
                           uint32_t time, char *text, size_t size)
{
    bool wire = a->event.line % TDI_LINES == TDI_WIRE;
    const char *line = wire ? "puts that arrived" : "lane";
    char op[256];
    if (!time) {
        snprintf(text, size, "nothing of the former's %s", line);
        return;
    }
    tdi_event last = find_event(races, a->event.line, time);
    describe(races, &last, op, sizeof(op));
    snprintf(text, size, "of the former's %s only as far as %s", line, op);
}

static tide_status fail_race(const tdi_races *races, const tdi_access *access,
                             const tdi_record *a, const tdi_record *b,
                             uint64_t at, const uint32_t *clock)
{
    char first[256], second[256], known[320];
    describe(races, &a->event, first, sizeof(first));
    describe(races, &b->event, second, sizeof(second));
    describe_known(races, a, clock[a->event.line], known, sizeof(known));
    return tdi_fail(TIDE_ERR_PLAN,
                    "race on byte %" PRIu64 " of %s[%u] of rank %u: %s %s it, "
                    "and %s %s it; nothing orders them: the latter knows %s",
                    at, tdi_buffer_name(access->buffer), access->index,
                    access->rank, first, a->write ? "writes" : "reads", second,
                    b->write ? "writes" : "reads", known);
}

/* --- Accesses come in the order of a trace -------------------------------- */

tide_status tdi_races_add(tdi_races *races, const tdi_access *access,
                          const tdi_event *event, const uint32_t *clock)
{
    tdi_record record = {.offset = access->offset,
                         .width = access->width,
                         .height = access->height,
                         .pitch = access->pitch,
                         .event = *event,
                         .write = access->write};
    tdi_history *history = find_history(races, access, event->call);
    uint64_t at;
    if (!access->width || !access->height)
        return TIDE_OK;
    const tdi_record *past = tdi_history_race(history, &record, clock, &at);
    if (past)
        return fail_race(races, access, past, &record, at, clock);
    return tdi_history_keep(history, &record)
               ? TIDE_OK
               : tdi_fail(TIDE_ERR_MEMORY, "no memory for more accesses");
}
