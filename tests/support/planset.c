/* Makes the plans of all ranks; holds the awkward groups. */
#include "planset.h"

#include "check.h"

#include "base/util.h"

/* As FSDP2 shards an ordinary block: a few matrices and norms. */
static const tide_param plain[] = {
    {1, 48, 4, TIDE_BF16}, {1, 16, 1, TIDE_BF16}, {1, 32, 3, TIDE_BF16}};
/* No dimension is a multiple of the ranks; odd row lengths. */
static const tide_param uneven[] = {{1, 7, 3, TIDE_BF16},
                                    {1, 10, 5, TIDE_BF16},
                                    {1, 13, 1, TIDE_BF16},
                                    {1, 3, 11, TIDE_BF16}};
/* Fewer rows than ranks, no rows, rows of nothing: shards without rows. */
static const tide_param empty[] = {{1, 2, 9, TIDE_F32},
                                   {1, 0, 5, TIDE_F32},
                                   {1, 1, 1, TIDE_F32},
                                   {1, 6, 0, TIDE_F32},
                                   {1, 5, 3, TIDE_F32}};
/* Shard(d > 0), beside ordinary parameters; 24 columns divide often. */
static const tide_param columns[] = {
    {4, 24, 1, TIDE_BF16}, {1, 9, 2, TIDE_BF16}, {3, 48, 5, TIDE_BF16}};
/* Every size of element; the all-gather must not care. */
static const tide_param mixed[] = {{1, 5, 3, TIDE_U8},   {1, 9, 1, TIDE_I64},
                                   {1, 11, 2, TIDE_F32}, {1, 17, 1, TIDE_I16},
                                   {1, 4, 7, TIDE_BF16}, {1, 3, 5, TIDE_F64}};
static const tide_param single[] = {{1, 1, 1, TIDE_BF16}};
static const tide_param huge[] = {{1, 96, 67, TIDE_BF16}};
#define FOUR(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
static const tide_param tiny[] = {FOUR(
    FOUR({1, 3, 1, TIDE_BF16}, {1, 1, 2, TIDE_BF16}, {1, 2, 1, TIDE_BF16}))};

#define GROUP(name) {#name, name, TDI_COUNT(name)}
const test_group test_groups[] = {
    GROUP(plain),           GROUP(uneven), GROUP(empty),
    GROUP(columns),         GROUP(mixed),  GROUP(single),
    {"nothing", single, 0}, GROUP(huge),   GROUP(tiny)};
const size_t test_group_count = TDI_COUNT(test_groups);

const test_group *find_group(const char *name)
{
    for (size_t i = 0; i < test_group_count; i++)
        if (!strcmp(test_groups[i].name, name))
            return &test_groups[i];
    CHECK_FAIL("no group is called %s", name);
}

int group_fits(const test_group *group, uint32_t ranks)
{
    for (size_t p = 0; p < group->count; p++)
        if (group->params[p].outer > 1 && group->params[p].rows % ranks)
            return 0;
    return 1;
}

planset make_plans(const test_group *group, tide_topology topology,
                   const tide_plan_options *options)
{
    planset set = {.ranks = topology.nodes * topology.local_size};
    CHECK_OK(tide_layout_create(group->params, group->count, set.ranks,
                                &set.layout));
    set.plans = calloc(set.ranks, sizeof(*set.plans));
    CHECK(set.plans);
    for (uint32_t r = 0; r < set.ranks; r++)
        CHECK_OK(
            tide_plan_create(set.layout, topology, r, options, &set.plans[r]));
    return set;
}

void free_plans(planset *set)
{
    for (uint32_t r = 0; r < set->ranks; r++)
        tide_plan_free(set->plans[r]);
    free(set->plans);
    tide_layout_free(set->layout);
    *set = (planset){0};
}

tide_plan *clone_plan(const tide_plan *plan)
{
    size_t ops = plan->op_count * sizeof(tide_op);
    size_t expects = plan->expect_count * sizeof(tide_expect);
    size_t head = tdi_round_up(sizeof(*plan), 64);
    char *memory = aligned_alloc(64, tdi_round_up(head + ops + expects, 64));
    CHECK(memory);
    tide_plan *clone = (tide_plan *)memory;
    *clone = *plan;
    if (ops)
        memcpy(memory + head, plan->ops, ops);
    if (expects)
        memcpy(memory + head + ops, plan->expects, expects);
    clone->ops = (const tide_op *)(memory + head);
    clone->expects = (const tide_expect *)(memory + head + ops);
    return clone;
}

uint32_t find_op(const tide_plan *plan, tide_op_kind kind, int channel, int n)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == kind &&
            (channel < 0 || plan->ops[i].channel == channel) && n-- == 0)
            return i;
    CHECK_FAIL("rank %u has no such op", plan->rank);
}

void drop_op(tide_plan *plan, uint32_t index)
{
    tide_operand nowhere = tide_at(TIDE_BUF_OUT, 0, (int32_t)plan->rank, 0);
    tide_op *op = &plan_ops(plan)[index];
    *op = (tide_op){
        .kind = TIDE_OP_COPY, .lane = op->lane, .dst = nowhere, .src = nowhere};
}

void describe_case(const char *group, tide_topology topology,
                   const tide_plan_options *options, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "group %s, %ux%u, ", group, topology.nodes,
                        topology.local_size);
    if (options->coll == TIDE_ALL_GATHER)
        snprintf(text + used, bytes - (size_t)used,
                 "all-gather push=%d chunk=%" PRIu64 " window=%u",
                 options->push, options->chunk_bytes, options->window);
    else
        snprintf(text + used, bytes - (size_t)used,
                 "reduce-scatter %s->%s staged=%d switch=%d block=%" PRIu64
                 " slots=%u unit=%" PRIu64,
                 tide_dtype_name(options->grad_dtype),
                 tide_dtype_name(options->out_dtype), options->staged,
                 options->switch_reduce, options->block_bytes,
                 options->recv_slots, options->unit_bytes);
}
