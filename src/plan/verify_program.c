/* Plans sorted for running: ops lane by lane, counters numbered. */
#include "plan/verify.h"

#include <stdlib.h>
#include <string.h>

/* Destination and source take 20 bits each: TIDE_MAX_RANKS is 2^20. */
static uint64_t counter_key(uint32_t to, uint32_t from, uint32_t channel)
{
    return (uint64_t)to << 28 | (uint64_t)from << 8 | channel;
}

/* The key of the counter that an op raises or waits for; false: none. */
static bool op_counter(const tide_plan *plan, const tide_op *op, uint64_t *key)
{
    uint32_t to = (uint32_t)tide_operand_rank(op->dst);
    uint32_t from = (uint32_t)tide_operand_rank(op->src);
    if (op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_PUT)
        *key = counter_key(to, plan->rank, op->channel);
    else if (op->kind == TIDE_OP_WAIT)
        *key = counter_key(plan->rank, from, op->channel);
    else
        return false;
    return true;
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t drop_doubles(uint64_t *keys, size_t count)
{
    size_t kept = 0;
    qsort(keys, count, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < count; i++)
        if (!kept || keys[kept - 1] != keys[i])
            keys[kept++] = keys[i];
    return (uint32_t)kept;
}

static size_t count_keys(const tide_plan *plan)
{
    uint64_t key;
    size_t count = plan->expect_count;
    for (uint32_t i = 0; i < plan->op_count; i++)
        count += op_counter(plan, &plan->ops[i], &key);
    return count;
}

static uint64_t *gather_keys(const tide_plan *plan, uint64_t *at)
{
    for (uint32_t i = 0; i < plan->expect_count; i++)
        *at++ = counter_key(plan->rank, (uint32_t)plan->expects[i].source,
                            plan->expects[i].channel);
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (op_counter(plan, &plan->ops[i], at))
            at++;
    return at;
}

/* Every counter that a plan raises, waits for or expects gets a number. */
static tide_status number_counters(tdi_program *program)
{
    size_t count = 0;
    for (uint32_t s = 0; s < program->set_count; s++)
        for (uint32_t r = 0; r < program->ranks; r++)
            count += count_keys(program->sets[s].plans[r]);
    program->counters = malloc((count + 1) * sizeof(*program->counters));
    if (!program->counters)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu counters", count);
    uint64_t *at = program->counters;
    for (uint32_t s = 0; s < program->set_count; s++)
        for (uint32_t r = 0; r < program->ranks; r++)
            at = gather_keys(program->sets[s].plans[r], at);
    program->counter_count = drop_doubles(program->counters, count);
    return TIDE_OK;
}

static uint32_t find_key(const tdi_program *program, uint64_t key)
{
    uint32_t low = 0, high = program->counter_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (program->counters[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < program->counter_count && program->counters[low] == key
               ? low
               : TDI_NO_COUNTER;
}

uint32_t tdi_find_counter(const tdi_program *program, uint32_t to,
                          uint32_t from, uint32_t channel)
{
    return find_key(program, counter_key(to, from, channel));
}

static tide_status load_code(const tdi_program *program, tdi_code *code,
                             const tide_plan *plan)
{
    uint32_t count = plan->op_count;
    uint64_t key;
    code->plan = plan;
    code->order = malloc((count + 1) * sizeof(*code->order));
    code->counter = malloc((count + 1) * sizeof(*code->counter));
    if (!code->order || !code->counter)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to check rank %u",
                        plan->rank);
    uint32_t at = 0;
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++) {
        code->first[lane] = at;
        for (uint32_t i = 0; i < count; i++)
            if (plan->ops[i].lane == lane)
                code->order[at++] = i;
    }
    code->first[TIDE_LANE_COUNT] = at;
    for (uint32_t i = 0; i < count; i++)
        code->counter[i] = op_counter(plan, &plan->ops[i], &key)
                               ? find_key(program, key)
                               : TDI_NO_COUNTER;
    return TIDE_OK;
}

static tide_status load_codes(tdi_program *program)
{
    size_t count = (size_t)program->set_count * program->ranks;
    program->codes = calloc(count + 1, sizeof(*program->codes));
    if (!program->codes)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to check %zu plans", count);
    for (uint32_t s = 0; s < program->set_count; s++)
        for (uint32_t r = 0; r < program->ranks; r++)
            TDI_TRY(load_code(program,
                              &program->codes[(size_t)s * program->ranks + r],
                              program->sets[s].plans[r]));
    return TIDE_OK;
}

tide_status tdi_program_load(tdi_program *program, const tdi_set *sets,
                             uint32_t set_count, const uint32_t *calls,
                             uint32_t call_count)
{
    *program = (tdi_program){.sets = sets,
                             .set_count = set_count,
                             .calls = calls,
                             .call_count = call_count,
                             .ranks = tdi_set_ranks(&sets[0])};
    tide_status status = number_counters(program);
    if (!status)
        status = load_codes(program);
    if (status)
        tdi_program_unload(program);
    return status;
}

void tdi_program_unload(tdi_program *program)
{
    size_t count = (size_t)program->set_count * program->ranks;
    for (size_t i = 0; program->codes && i < count; i++) {
        free(program->codes[i].order);
        free(program->codes[i].counter);
    }
    free(program->codes);
    free(program->counters);
    memset(program, 0, sizeof(*program));
}
