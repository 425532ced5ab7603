/*
 * Ranks that disagree: in shapes, dtypes, options, order or kind of calls.
 * Every rank gets TIDE_ERR_MISMATCH long before the deadline, and someone
 * names both ranks and both groups.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

typedef enum quarrel {
    SHAPES,
    ORDER,
    KINDS,
    DTYPES,
    OPTIONS,
    SKIPPED,
    COUNTS,
    QUARRELS
} quarrel;

typedef struct scene {
    quarrel quarrel;
    uint32_t ranks;
    uint32_t local_size;
    uint32_t odd;  /* the rank that differs */
    uint32_t good; /* calls on which all agree, before */
    atomic_uint ready;
    atomic_uint named;
} scene;

typedef struct actor {
    const scene *scene;
    tide_group *a, *b;
    uint32_t rank;
    bool odd;
} actor;

static tide_status reduce_f32(tide_group *group)
{
    const tide_layout *layout = tide_group_layout(group);
    float *grad = calloc(tide_layout_param(layout, 0)->grad_elems, 4);
    float *out = calloc(tide_layout_out_elems(layout), 4);
    const void *grads[] = {grad};
    tide_reduce_args args = {grads, TIDE_F32, out, TIDE_F32, 1.0f, NULL};
    tide_status status = tide_reduce_scatter(group, &args);
    free(grad);
    free(out);
    return status;
}

/* The call in which ranks differ, and what comes after it. */
static tide_status quarrel_call(const actor *me, uint32_t turn)
{
    uint32_t rank = me->rank;
    switch (me->scene->quarrel) {
    case ORDER:
        return call_gather((turn % 2 != 0) == me->odd ? me->a : me->b, rank,
                           turn);
    case KINDS:
        return me->odd ? call_reduce(me->a, rank, turn)
                       : call_gather(me->a, rank, turn);
    case DTYPES:
        return me->odd ? reduce_f32(me->a) : call_reduce(me->a, rank, turn);
    case SKIPPED:
        return (turn % 2 != 0) == me->odd ? call_gather(me->a, rank, turn)
                                          : call_reduce(me->a, rank, turn);
    default:
        return call_gather(me->a, rank, turn);
    }
}

static void make_groups(actor *me, tide_comm *comm)
{
    quarrel about = me->scene->quarrel;
    tide_param two[] = {{1, 256, 8, TIDE_BF16}, {1, 256, 8, TIDE_BF16}};
    if (about == COUNTS && me->odd)
        CHECK_OK(tide_group_create(comm, two, 2, "first", &me->a));
    else
        me->a = call_group(comm, about == SHAPES && me->odd ? 260 : 256,
                           about == SHAPES && me->odd ? "strange" : "first");
    me->b = call_group(comm, 1000, "second");
    tide_plan_options options = {.coll = TIDE_ALL_GATHER,
                                 .chunk_bytes = me->odd ? 512 : 1024};
    if (about == OPTIONS)
        CHECK_OK(tide_group_set_options(me->a, &options));
}

/* Does the last message name both ranks and both groups? */
static bool names_both(const scene *s)
{
    char odd[32];
    const char *text = tide_last_error();
    const char *other = s->quarrel == SHAPES  ? "strange"
                        : s->quarrel == ORDER ? "second"
                                              : "first";
    snprintf(odd, sizeof(odd), "rank %u ", s->odd);
    return strstr(text, odd) && strstr(text, "started") &&
           strstr(text, "first") && strstr(text, other) && strstr(text, "call");
}

static int run_scene(const tide_bootstrap *bootstrap, void *context)
{
    scene *s = context;
    actor me = {.scene = s, .rank = bootstrap->rank};
    tide_status status = TIDE_OK;
    tide_comm *comm = ranks_comm(bootstrap, s->local_size, RANKS_FOREVER_MS);
    tide_group *agreed = call_group(comm, 64, "agreed");
    me.odd = me.rank == s->odd;
    make_groups(&me, comm);
    for (uint32_t call = 0; call < s->good; call++)
        CHECK_OK(call_gather(agreed, me.rank, call));
    ranks_arrive(&s->ready, s->ranks);
    uint64_t start = tdi_now_ms();
    for (uint32_t turn = 0; !status; turn++)
        status = quarrel_call(&me, turn);
    CHECK_STATUS(status, TIDE_ERR_MISMATCH);
    CHECK_INT(tdi_now_ms() - start, <, RANKS_SLACK_MS);
    if (names_both(s))
        s->named++;
    else
        CHECK_TEXT(tide_last_error(), "met an error");
    CHECK_STATUS(call_gather(agreed, me.rank, 0), TIDE_ERR_ABORTED);
    tide_group_free(agreed);
    tide_group_free(me.a);
    tide_group_free(me.b);
    tide_comm_destroy(comm);
    return 0;
}

static void play(scene from)
{
    scene *s = ranks_share(sizeof(*s));
    *s = from;
    ranks_run(s->ranks, run_scene, s);
    CHECK_INT(s->named, >=, 1);
    ranks_unshare(s, sizeof(*s));
}

int main(void)
{
    static const uint32_t worlds[][2] = {{2, 2}, {3, 3}, {4, 2}, {4, 1}};
    for (int about = 0; about < QUARRELS; about++) {
        for (size_t w = 0; w < TDI_COUNT(worlds); w++) {
            scene s = {.quarrel = (quarrel)about,
                       .ranks = worlds[w][0],
                       .local_size = worlds[w][1],
                       .good = (uint32_t)(w + (size_t)about) % 3};
            /* One node needs no chunks, but the options are compared. */
            for (s.odd = 0; s.odd < s.ranks; s.odd += s.ranks - 1)
                play(s);
        }
    }
    return 0;
}
