/* Sync: signals sent equal signals expected on every counter, every wait is
 * met, phases are marked, nothing deadlocks. */
#include "plan/names.h"
#include "plan/verify.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdlib.h>

/* Calls in a row that must run: STAGE is shared by every second one. */
static const uint32_t three_calls[] = {0, 0, 0};

static const tide_expect *find_expect(const tide_plan *plan, int32_t source,
                                      uint32_t channel)
{
    for (uint32_t i = 0; i < plan->expect_count; i++)
        if (plan->expects[i].source == source &&
            plan->expects[i].channel == channel)
            return &plan->expects[i];
    return NULL;
}

static tide_status check_expects(const tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->expect_count; i++) {
        const tide_expect *expect = &plan->expects[i];
        bool known =
            expect->source >= 0 &&
            (uint32_t)expect->source < tdi_topo_ranks(plan->topology) &&
            expect->channel < TIDE_CH_COUNT;
        if (!known ||
            find_expect(plan, expect->source, expect->channel) != expect)
            return tdi_fail(TIDE_ERR_PLAN,
                            "rank %u: expect %u (`%s` from rank %d) is %s",
                            plan->rank, i, tdi_channel_name(expect->channel),
                            expect->source, known ? "there twice" : "invalid");
    }
    return TIDE_OK;
}

/* --- Waits ---------------------------------------------------------------- */

static tide_status check_wait(const tide_plan *plan, uint32_t index)
{
    const tide_op *op = &plan->ops[index];
    const tide_expect *expect =
        find_expect(plan, tide_operand_rank(op->src), op->channel);
    uint64_t total = expect ? expect->total : 0;
    if (op->count > 0 && (uint64_t)op->count > total)
        return tdi_fail_op(
            plan, index, "this call receives only %" PRIu64 " of them", total);
    /* Groups differ in how much they signal; only FREE comes once a call. */
    if (op->count < 0 && op->channel != TIDE_CH_FREE)
        return tdi_fail_op(plan, index,
                           "only `%s` counts calls, so that a wait can leave "
                           "out the last of them",
                           tdi_channel_name(TIDE_CH_FREE));
    return TIDE_OK;
}

static tide_status check_waits(const tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_WAIT)
            TDI_TRY(check_wait(plan, i));
    return TIDE_OK;
}

/* --- Pace ----------------------------------------------------------------- */

/* Puts that left for a rank, and credits that had to come from it first. */
typedef struct rail {
    uint64_t puts;
    int64_t credits;
} rail;

static tide_status pace_op(const tide_plan *plan, uint32_t index, rail *rails)
{
    const tide_op *op = &plan->ops[index];
    if (op->kind == TIDE_OP_WAIT && op->channel == TIDE_CH_CREDIT) {
        rail *from = &rails[tide_operand_rank(op->src)];
        if (op->count > from->credits)
            from->credits = op->count;
    }
    if (op->kind != TIDE_OP_PUT)
        return TIDE_OK;
    rail *to = &rails[tide_operand_rank(op->dst)];
    if (++to->puts > plan->options.window + (uint64_t)to->credits)
        return tdi_fail_op(plan, index,
                           "put %" PRIu64 " to this rank leaves after %" PRId64
                           " credits; the window is %u",
                           to->puts, to->credits, plan->options.window);
    return TIDE_OK;
}

/* A paced all-gather keeps at most `window` puts to a rank on their way. */
static tide_status check_pace(const tide_plan *plan)
{
    tide_status status = TIDE_OK;
    if (plan->options.coll != TIDE_ALL_GATHER || !plan->options.window)
        return TIDE_OK;
    rail *rails = calloc(tdi_topo_ranks(plan->topology), sizeof(*rails));
    if (!rails)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to check rank %u",
                        plan->rank);
    for (uint32_t i = 0; i < plan->op_count && !status; i++)
        status = pace_op(plan, i, rails);
    free(rails);
    return status;
}

/* --- Marks and FREE ------------------------------------------------------- */

static tide_status check_marks(const tide_plan *plan)
{
    uint32_t marks[TIDE_PHASE_COUNT] = {0};
    bool gather = plan->options.coll == TIDE_ALL_GATHER;
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_MARK)
            marks[plan->ops[i].channel]++;
    uint32_t want[TIDE_PHASE_COUNT] = {[TIDE_PHASE_FREE] = gather,
                                       [TIDE_PHASE_READS] = !gather,
                                       [TIDE_PHASE_DONE] = 1};
    for (uint32_t phase = 0; phase < TIDE_PHASE_COUNT; phase++)
        if (marks[phase] != want[phase])
            return tdi_fail(TIDE_ERR_PLAN,
                            "rank %u marks `%s` %u times, not %u", plan->rank,
                            tdi_phase_name(phase), marks[phase], want[phase]);
    return TIDE_OK;
}

static tide_status check_free(const tide_plan *plan)
{
    bool gather = plan->options.coll == TIDE_ALL_GATHER;
    uint32_t size = plan->topology.local_size;
    uint32_t first = plan->rank - plan->rank % size;
    for (uint32_t peer = first; gather && peer < first + size; peer++) {
        const tide_expect *expect =
            find_expect(plan, (int32_t)peer, TIDE_CH_FREE);
        uint64_t total = expect ? expect->total : 0;
        if (peer != plan->rank && total != 1)
            return tdi_fail(TIDE_ERR_PLAN,
                            "rank %u expects %" PRIu64 " `%s` from rank %u; "
                            "an all-gather sends exactly 1",
                            plan->rank, total, tdi_channel_name(TIDE_CH_FREE),
                            peer);
    }
    return TIDE_OK;
}

/* --- Totals --------------------------------------------------------------- */

static void count_sent(const tdi_program *program, uint64_t *sent)
{
    for (uint32_t r = 0; r < program->ranks; r++) {
        const tdi_code *code = tdi_code_of(program, 0, r);
        for (uint32_t i = 0; i < code->plan->op_count; i++)
            if (code->counter[i] != TDI_NO_COUNTER &&
                code->plan->ops[i].kind != TIDE_OP_WAIT)
                sent[code->counter[i]]++;
    }
}

static tide_status check_totals(const tdi_program *program)
{
    tide_status status = TIDE_OK;
    uint64_t *sent = calloc(program->counter_count + 1, sizeof(*sent));
    if (!sent)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %u counters",
                        program->counter_count);
    count_sent(program, sent);
    for (uint32_t c = 0; c < program->counter_count && !status; c++) {
        uint64_t key = program->counters[c];
        uint32_t to = (uint32_t)(key >> 28), channel = key & 0xff;
        int32_t from = (int32_t)(key >> 8 & 0xfffff);
        const tide_expect *expect =
            find_expect(tdi_code_of(program, 0, to)->plan, from, channel);
        uint64_t total = expect ? expect->total : 0;
        if (sent[c] != total)
            status =
                tdi_fail(TIDE_ERR_PLAN,
                         "rank %d sends %" PRIu64 " `%s` to rank %u, "
                         "which expects %" PRIu64,
                         from, sent[c], tdi_channel_name(channel), to, total);
    }
    free(sent);
    return status;
}

tide_status tide_verify_sync(const tide_plan *const *plans)
{
    tdi_set set = {.plans = plans};
    tdi_program program;
    TDI_TRY(tdi_check_set(&set));
    for (uint32_t r = 0; r < tdi_set_ranks(&set); r++) {
        TDI_TRY(check_expects(plans[r]));
        TDI_TRY(check_waits(plans[r]));
        TDI_TRY(check_pace(plans[r]));
        TDI_TRY(check_marks(plans[r]));
        TDI_TRY(check_free(plans[r]));
    }
    TDI_TRY(tdi_program_load(&program, &set, 1, three_calls, 3));
    tide_status status = check_totals(&program);
    if (!status)
        status = tdi_trace(&program, NULL);
    tdi_program_unload(&program);
    return status;
}
