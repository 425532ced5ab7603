/*
 * Mutations: every op of a set of plans is broken in every way listed here,
 * one at a time, and the verifiers must reject it. What they keep has to have
 * a reason, and the interpreter has to agree that nothing went wrong:
 *
 *   implied  an edge that other edges make superfluous: fewer interleavings are
 *            ruled out, but none in which accesses that conflict change places.
 *            FREE is implied wherever STAGED or DEST of the call between say
 *            that the peer is through with the call before; an AFTER in front
 *            of DONE where it waits for what is no output; a signal where a
 *            later one of its lane can stand in for it.
 *   padding  zeros, or bytes that nobody reads: other bytes move, or zeros are
 *            scaled or added. A group without padding must keep none of these.
 *
 * How many are made and kept of each kind stands in tests/golden, so that a
 * verifier that grows lenient shows.
 */
#include "support/check.h"
#include "support/golden.h"
#include "support/interp.h"
#include "support/mutate.h"
#include "support/planset.h"

#include "base/util.h"
#include "plan/names.h"
#include "plan/verify.h"

/* --- Are they found?
 * ----------------------------------------------------------- */

typedef struct mutation_case {
    const char *name;
    const test_group *group;
    tide_topology topology;
    tide_plan_options options;
    bool padded;
} mutation_case;

/* Plans under test, and those of a group of nothing: between two calls of the
 * one, a call of the other passes without a byte that would order them. */
typedef struct subject {
    const mutation_case *c;
    planset set, idle;
    const tide_plan **plans; /* of set, some of them broken */
} subject;

static tide_status verify(const subject *s)
{
    static const uint32_t calls[] = {0, 1, 0, 0};
    const tide_layout *layout = s->set.layout;
    tdi_set sets[] = {{.layout = layout, .plans = s->plans},
                      {.layout = s->idle.layout,
                       .plans = (const tide_plan *const *)s->idle.plans}};
    TDI_TRY(tide_verify_bounds(layout, s->plans));
    TDI_TRY(tide_verify_sync(s->plans));
    TDI_TRY(tdi_verify_order(sets, 2, calls, 4));
    return tide_verify_result(layout, s->plans);
}

static void interpret(const subject *s, const char *text)
{
    interp_call calls[] = {
        {s->set.layout, s->plans},
        {s->idle.layout, (const tide_plan *const *)s->idle.plans},
        {s->set.layout, s->plans},
        {s->set.layout, s->plans}};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        interp_how how = {seed, seed == 3, 0.5f};
        char *fault = interp_run(calls, TDI_COUNT(calls), &how);
        if (fault)
            CHECK_FAIL("%s: the verifiers keep %s, but: %s", s->c->name, text,
                       fault);
    }
}

/* --- Counts
 * ----------------------------------------------------------------------- */

enum { KINDS = TIDE_OP_COUNT, CHANNELS = TIDE_CH_COUNT };

typedef struct tally {
    uint32_t made;
    uint32_t kept;
} tally;

/* [mutation][kind of op][channel, of signals and waits] */
typedef tally tallies[MUTATION_COUNT][KINDS][CHANNELS];

static bool is_edge(const tide_op *op)
{
    return op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_WAIT ||
           op->kind == TIDE_OP_AFTER;
}

static tally *find_tally(tallies counts, const tide_op *op, mutation how)
{
    bool named = op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_WAIT;
    return &counts[how][op->kind][named ? op->channel : 0];
}

/* A kept mutant must be of a kind that can be harmless. */
static void check_reason(const subject *s, const tide_plan *plan,
                         uint32_t index, mutation how)
{
    const tide_op *op = &plan->ops[index];
    char op_text[200], text[300];
    snprintf(text, sizeof(text), "\"%s\" of rank %u op %u (%s)",
             mutation_names[how], plan->rank, index,
             tdi_op_text(op, op_text, sizeof(op_text)));
    if (op->kind == TIDE_OP_MARK)
        CHECK_FAIL("%s: %s is kept", s->c->name, text);
    if (!is_edge(op) && !s->c->padded)
        CHECK_FAIL("%s: %s is kept, though there is no padding", s->c->name,
                   text);
    interpret(s, text);
}

static void try_mutant(subject *s, uint32_t rank, uint32_t index, mutation how,
                       tallies counts)
{
    const tide_plan *right = s->set.plans[rank];
    const tide_op *op = &right->ops[index];
    uint32_t peer = (uint32_t)tide_operand_rank(op->dst);
    tide_plan *broken = clone_plan(right), *other = NULL;
    break_op(broken, index, how);
    s->plans[rank] = broken;
    if (how == DROP_PAIR) {
        other = clone_plan(s->set.plans[peer]);
        expect_less(other, rank, op->channel);
        s->plans[peer] = other;
    }
    tally *count = find_tally(counts, op, how);
    count->made++;
    if (!verify(s)) {
        count->kept++;
        check_reason(s, right, index, how);
    }
    s->plans[rank] = right;
    if (other)
        s->plans[peer] = s->set.plans[peer];
    free(broken);
    free(other);
}

static void try_plans(const mutation_case *c, tallies counts)
{
    subject s = {.c = c};
    s.set = make_plans(c->group, c->topology, &c->options);
    s.idle = make_plans(find_group("nothing"), c->topology, &c->options);
    s.plans = calloc(s.set.ranks, sizeof(*s.plans));
    CHECK(s.plans);
    for (uint32_t r = 0; r < s.set.ranks; r++)
        s.plans[r] = s.set.plans[r];
    CHECK_OK(verify(&s));
    for (uint32_t r = 0; r < s.set.ranks; r++)
        for (uint32_t i = 0; i < s.set.plans[r]->op_count; i++)
            for (int how = 0; how < MUTATION_COUNT; how++)
                if (mutation_applies(&s.set.plans[r]->ops[i], (mutation)how))
                    try_mutant(&s, r, i, (mutation)how, counts);
    free(s.plans);
    free_plans(&s.set);
    free_plans(&s.idle);
}

/* --- The table
 * ---------------------------------------------------------------------- */

static void write_line(FILE *to, const tally *count, int how, uint32_t kind,
                       uint32_t channel)
{
    bool named = kind == TIDE_OP_SIGNAL || kind == TIDE_OP_WAIT;
    tide_op op = {.kind = (uint8_t)kind};
    if (!count->made)
        return;
    fprintf(to, "  %-30s %-7s%-9s %5u made %4u kept%s\n", mutation_names[how],
            tdi_op_name(kind), named ? tdi_channel_name(channel) : "",
            count->made, count->kept,
            !count->kept ? "" : (is_edge(&op) ? ": implied" : ": padding"));
}

static void write_counts(FILE *to, tallies counts)
{
    for (int how = 0; how < MUTATION_COUNT; how++)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            for (uint32_t channel = 0; channel < CHANNELS; channel++)
                write_line(to, &counts[how][kind][channel], how, kind, channel);
}

static void add_up(tallies counts, tally *all)
{
    for (int how = 0; how < MUTATION_COUNT; how++)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            for (uint32_t channel = 0; channel < CHANNELS; channel++) {
                all->made += counts[how][kind][channel].made;
                all->kept += counts[how][kind][channel].kept;
            }
}

/* Shards of 96 and 64 elements, whole in every unit that planners cut. */
static const tide_param even_params[] = {{1, 24, 16, TIDE_BF16},
                                         {1, 12, 32, TIDE_BF16}};
static const test_group even = {"even", even_params, TDI_COUNT(even_params)};

static const struct {
    const char *name;
    tide_plan_options options;
} kinds[] = {
    {"all-gather, pull", {.coll = TIDE_ALL_GATHER, .chunk_bytes = 64}},
    {"all-gather, two lanes",
     {.coll = TIDE_ALL_GATHER, .chunk_bytes = 64, .together = 2}},
    {"all-gather, push",
     {.coll = TIDE_ALL_GATHER, .push = 1, .chunk_bytes = 64, .window = 1}},
    {"reduce-scatter, direct",
     {.coll = TIDE_REDUCE_SCATTER,
      .block_bytes = 128,
      .recv_slots = 1,
      .unit_bytes = 1}},
    {"reduce-scatter, staged",
     {.coll = TIDE_REDUCE_SCATTER,
      .staged = 1,
      .switch_reduce = 1,
      .out_dtype = TIDE_BF16,
      .block_bytes = 256,
      .unit_bytes = 1}},
    {"reduce-scatter, long units",
     {.coll = TIDE_REDUCE_SCATTER,
      .staged = 1,
      .block_bytes = 128,
      .recv_slots = 1}},
};

static void write_table(FILE *to, const void *context)
{
    static const tide_topology topologies[] = {{1, 3}, {2, 2}, {3, 2}};
    (void)context;
    for (size_t k = 0; k < TDI_COUNT(kinds); k++)
        for (int padded = 0; padded < 2; padded++) {
            tallies counts = {0};
            tally all = {0, 0};
            mutation_case c = {kinds[k].name,
                               padded ? find_group("uneven") : &even,
                               {0, 0},
                               kinds[k].options,
                               padded};
            for (size_t t = 0; t < TDI_COUNT(topologies); t++) {
                c.topology = topologies[t];
                try_plans(&c, counts);
            }
            add_up(counts, &all);
            fprintf(to, "%s, group %s: %u made, %u kept\n", c.name,
                    c.group->name, all.made, all.kept);
            write_counts(to, counts);
        }
}

int main(void)
{
    check_golden("mutations.txt", write_table, NULL);
    return 0;
}
