/*
 * Calls on the cuda backend when a rank or a rail fails, ranks disagree, or the
 * caller goes while work is queued: every rank gets a status in time that names
 * the rank and what it waited for, and every communicator can be destroyed.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/scenes.h"

/* A rank that fails, and how. */
typedef struct failing {
    uint32_t local_size;
    uint32_t hurt;  /* the rank */
    uint32_t calls; /* that go well before; not known if UINT32_MAX */
    bool away;      /* it stops calling until the others are through */
    bool leaves;    /* it destroys its communicator instead */
    bool at_once;   /* seen before the deadline */
    bool either;    /* of a rail is to blame: nobody can tell which end it is */
} failing;

static atomic_uint over;

static tide_comm *make_comm(const tide_bootstrap *bootstrap,
                            uint32_t local_size, uint32_t timeout_ms)
{
    tide_comm *comm;
    tide_comm_config config = {.backend = "cuda",
                               .local_size = local_size,
                               .timeout_ms = timeout_ms,
                               .arena_bytes = 8 << 20};
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    return comm;
}

static int leave(tide_comm *comm, tide_group *group)
{
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_close();
    return 0;
}

static tide_status make_call(tide_group *group, uint32_t rank, uint32_t call)
{
    return call % 2 ? call_reduce(group, rank, call)
                    : call_gather(group, rank, call);
}

/* Now and then a rank, in turn, says no, or none does. */
static void check_vote(tide_comm *comm, const tide_bootstrap *bootstrap,
                       uint32_t call)
{
    uint32_t against = call % (bootstrap->ranks + 1);
    int all = -1;
    CHECK_OK(tide_comm_vote(comm, bootstrap->rank != against, &all));
    CHECK_INT(all, ==, against == bootstrap->ranks);
}

/* Waits until the others have met the fault. */
static void stay_away(const tide_bootstrap *bootstrap)
{
    while (over < bootstrap->ranks - 1)
        ranks_nap(1);
}

static atomic_uint named;

static void somebody_named_it(void *context)
{
    (void)context;
    CHECK_INT(named, >=, 1);
}

/* Does the last message say who has given up on this rank? */
static bool is_told(uint32_t rank, uint32_t count)
{
    char name[64];
    bool told = false;
    for (uint32_t r = 0; r < count; r++) {
        snprintf(name, sizeof(name),
                 "rank %u: rank %u has waited for this rank in vain", rank, r);
        told |= r != rank && strstr(tide_last_error(), name);
    }
    return told;
}

/* Does it blame that rank? */
static bool blames(uint32_t rank, uint32_t culprit, uint32_t count)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %u: rank %u ", rank, culprit);
    return rank == culprit ? is_told(rank, count)
                           : strstr(tide_last_error(), name) != NULL;
}

static void check_message(const failing *f, uint32_t rank, uint32_t count)
{
    uint32_t other = (f->hurt + f->local_size) % count;
    bool right = blames(rank, f->hurt, count) ||
                 (f->either && blames(rank, other, count));
    named += right && strstr(tide_last_error(), "waits for");
    if (!right && (rank != f->hurt || f->away))
        CHECK_FAIL("rank %u: \"%s\" does not blame rank %u", rank,
                   tide_last_error(), f->hurt);
}

static int call_until_it_fails(const tide_bootstrap *bootstrap, void *context)
{
    const failing *f = context;
    uint32_t rank = bootstrap->rank, call = 0;
    tide_status status = TIDE_OK;
    uint64_t start = 0, took;
    device_open((int)rank);
    tide_comm *comm =
        make_comm(bootstrap, f->local_size,
                  f->at_once ? RANKS_FOREVER_MS : RANKS_DEADLINE_MS);
    tide_group *group = call_group(comm, 8192, "layer");
    for (; !status; call++) {
        if (rank == f->hurt && call == f->calls && f->leaves) {
            tide_group_free(group);
            tide_comm_destroy(comm);
            stay_away(bootstrap);
            return 0;
        }
        if (rank == f->hurt && call == f->calls && f->away)
            stay_away(bootstrap);
        start = tdi_now_ms();
        status = make_call(group, rank, call);
        CHECK_INT(call, <, 1000);
    }
    took = tdi_now_ms() - start;
    over++;
    CHECK_STATUS(status, TIDE_ERR_PEER);
    CHECK_INT(took, <, RANKS_DEADLINE_MS + RANKS_SLACK_MS);
    if (f->calls != UINT32_MAX)
        CHECK_INT(call, ==, f->calls + 1);
    check_message(f, rank, bootstrap->ranks);
    CHECK_STATUS(call_gather(group, rank, call), TIDE_ERR_ABORTED);
    CHECK_STATUS(call_reduce(group, rank, call), TIDE_ERR_ABORTED);
    device_settle();
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* Late, but in time. */
static int call_late(const tide_bootstrap *bootstrap, void *context)
{
    device_open((int)bootstrap->rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, 8 * RANKS_DEADLINE_MS);
    tide_group *group = call_group(comm, 100, "layer");
    for (uint32_t call = 0; call < 6; call++) {
        if (call % bootstrap->ranks == bootstrap->rank)
            ranks_nap(100);
        CHECK_OK(make_call(group, bootstrap->rank, call));
        check_vote(comm, bootstrap, call);
    }
    return leave(comm, group);
}

/* --- Ranks that disagree -------------------------------------------------- */

typedef struct quarrel {
    uint32_t local_size;
    enum { ANOTHER_GROUP, ANOTHER_KIND, A_VOTE } odd; /* the last rank's call */
    const char *says; /* the message, of that call */
} quarrel;

#define QUARREL(...) ((void *)&(const quarrel){__VA_ARGS__})

static atomic_uint ready;

static int disagree(const tide_bootstrap *bootstrap, void *context)
{
    const quarrel *q = context;
    uint32_t rank = bootstrap->rank;
    bool odd = rank == bootstrap->ranks - 1;
    char name[32];
    device_open((int)rank);
    tide_comm *comm = make_comm(bootstrap, q->local_size, RANKS_FOREVER_MS);
    tide_group *a = call_group(comm, 256, "first");
    tide_group *b = call_group(comm, 260, "second");
    CHECK_OK(call_gather(a, rank, 0));
    ranks_arrive(&ready, bootstrap->ranks); /* or it may be in that call yet */
    uint64_t start = tdi_now_ms();
    int all;
    tide_status status =
        !odd || q->odd == ANOTHER_GROUP ? call_gather(odd ? b : a, rank, 1)
        : q->odd == ANOTHER_KIND        ? call_reduce(a, rank, 1)
                                        : tide_comm_vote(comm, 1, &all);
    CHECK_STATUS(status, TIDE_ERR_MISMATCH);
    CHECK_INT(tdi_now_ms() - start, <, RANKS_SLACK_MS);
    snprintf(name, sizeof(name), "rank %u ", bootstrap->ranks - 1);
    named += strstr(tide_last_error(), name) &&
             strstr(tide_last_error(), "first") &&
             strstr(tide_last_error(), q->says);
    CHECK_STATUS(call_gather(a, rank, 2), TIDE_ERR_ABORTED);
    device_settle();
    tide_group_free(a);
    tide_group_free(b);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Aborts --------------------------------------------------------------- */

static int abort_others(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    device_open((int)rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 256, "layer");
    CHECK_OK(call_gather(group, rank, 0));
    CHECK_OK(call_reduce(group, rank, 1));
    uint64_t start = tdi_now_ms();
    if (rank == 1) {
        ranks_nap(200); /* the others wait by now */
        tide_comm_abort(comm);
    }
    CHECK_STATUS(call_gather(group, rank, 2), TIDE_ERR_ABORTED);
    CHECK_INT(tdi_now_ms() - start, <, RANKS_SLACK_MS);
    CHECK_STATUS(call_reduce(group, rank, 3), TIDE_ERR_ABORTED);
    device_settle();
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* A call that all have started, then an abort with its work still queued. */
static int abort_under_way(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    call_reduction made[4];
    device_open((int)rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 8192, "layer");
    for (uint32_t call = 0; call < TDI_COUNT(made); call++)
        CHECK_OK(call_reduce_start(group, rank, call, NULL, &made[call]));
    tide_comm_abort(comm);
    for (uint32_t call = 0; call < TDI_COUNT(made); call++)
        CHECK_STATUS(call_reduce_end(&made[call]), TIDE_ERR_ABORTED);
    device_settle();
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* --- The end -------------------------------------------------------------- */

/* Requests are freed, the group and the communicator go, and only then does
 * the host look: the results are right all the same. */
static int go_with_work_queued(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    call_reduction made[3];
    device_open((int)rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 4096, "layer");
    for (uint32_t call = 0; call < TDI_COUNT(made); call++) {
        CHECK_OK(call_reduce_start(group, rank, call, NULL, &made[call]));
        CHECK_OK(tide_stream_wait(made[call].request, TIDE_PHASE_DONE,
                                  device_stream()));
        CHECK_OK(tide_stream_wait(made[call].request, TIDE_PHASE_READS,
                                  device_stream()));
        CHECK_OK(tide_request_free(made[call].request));
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_place.sync();
    device_close();
    return 0;
}

/* The process ends with everything still there. */
static int exit_with_work_queued(const tide_bootstrap *bootstrap, void *context)
{
    call_reduction made;
    device_open((int)bootstrap->rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 4096, "layer");
    CHECK_OK(call_reduce_start(group, bootstrap->rank, 0, NULL, &made));
    return 0;
}

/* Each call's data has its own stamp: what a signal lets through too early is
 * the last call's. */
static int call_often(const tide_bootstrap *bootstrap, void *context)
{
    device_open((int)bootstrap->rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 41, "layer");
    for (uint32_t call = 0; call < 300; call++) {
        CHECK_OK(make_call(group, bootstrap->rank, call));
        if (call % 2)
            check_vote(comm, bootstrap, call);
    }
    return leave(comm, group);
}

/* Sums that are cut in many launches are graphs; nothing else is. */
static int refuse_graphs(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    device_open((int)bootstrap->rank);
    tide_comm *comm = make_comm(bootstrap, 1, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 8192, "layer");
    CHECK_OK(call_gather(group, bootstrap->rank, 0));
    CHECK_STATUS(call_reduce(group, bootstrap->rank, 1), TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "cuGraphLaunch");
    device_settle();
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Streams -------------------------------------------------------------- */

static int call_default_stream(const tide_bootstrap *bootstrap, void *context)
{
    device_open_default((int)bootstrap->rank);
    tide_comm *comm =
        make_comm(bootstrap, *(uint32_t *)context, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 333, "layer");
    call_polls = 1; /* the same for all ranks of this process */
    for (uint32_t call = 0; call < 8; call++)
        CHECK_OK(make_call(group, bootstrap->rank, call));
    return leave(comm, group);
}

#define FAILING(...)                                                           \
    (void *)&(const failing)                                                   \
    {                                                                          \
        __VA_ARGS__                                                            \
    }
#define NODES(size)                                                            \
    (void *)&(const uint32_t)                                                  \
    {                                                                          \
        size                                                                   \
    }

static const scene scenes[] = {
    {.name = "a put never arrives",
     .ranks = 2,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 1, .hurt = 0, .calls = 0, .either = true),
     .after = somebody_named_it,
     .settings = {"FAKE_FAULT", "put_lost", "FAKE_FAULT_RANK", "0"}},
    {.name = "a later put never arrives",
     .ranks = 4,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 2, .hurt = 3, .calls = UINT32_MAX,
                        .either = true),
     .after = somebody_named_it,
     .settings = {"FAKE_FAULT", "put_lost", "FAKE_FAULT_RANK", "3",
                  "FAKE_FAULT_AFTER", "3"}},
    {.name = "a signal of a put is lost",
     .ranks = 2,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 1, .hurt = 1, .calls = UINT32_MAX,
                        .either = true),
     .after = somebody_named_it,
     .settings = {"FAKE_FAULT", "signal_lost", "FAKE_FAULT_RANK", "1",
                  "FAKE_FAULT_AFTER", "3"}},
    {.name = "a rank stays away at first",
     .ranks = 3,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 3, .hurt = 1, .calls = 0, .away = true)},
    {.name = "a rank stays away later",
     .ranks = 4,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 4, .hurt = 2, .calls = 5, .away = true)},
    {.name = "a rank of another node stays away",
     .ranks = 4,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 2, .hurt = 3, .calls = 2, .away = true)},
    {.name = "a rank leaves early",
     .ranks = 3,
     .body = call_until_it_fails,
     .context = FAILING(.local_size = 3, .hurt = 0, .calls = 3, .leaves = true,
                        .at_once = true)},
    {.name = "ranks are late",
     .ranks = 3,
     .body = call_late,
     .context = NODES(3)},
    {.name = "ranks of other nodes are late",
     .ranks = 4,
     .body = call_late,
     .context = NODES(2)},
    {.name = "another group",
     .ranks = 3,
     .body = disagree,
     .after = somebody_named_it,
     .context = QUARREL(3, ANOTHER_GROUP, "second")},
    {.name = "another group on another node",
     .ranks = 4,
     .body = disagree,
     .after = somebody_named_it,
     .context = QUARREL(2, ANOTHER_GROUP, "second")},
    {.name = "another kind of call",
     .ranks = 2,
     .body = disagree,
     .after = somebody_named_it,
     .context = QUARREL(2, ANOTHER_KIND, "reduce-scatter of first")},
    {.name = "a vote against a call",
     .ranks = 3,
     .body = disagree,
     .after = somebody_named_it,
     .context = QUARREL(3, A_VOTE, "a vote of all ranks")},
    {.name = "abort while others wait",
     .ranks = 3,
     .body = abort_others,
     .context = NODES(3)},
    {.name = "abort while other nodes wait",
     .ranks = 4,
     .body = abort_others,
     .context = NODES(2)},
    {.name = "abort with work queued",
     .ranks = 3,
     .body = abort_under_way,
     .context = NODES(3)},
    {.name = "abort with work queued over rails",
     .ranks = 4,
     .body = abort_under_way,
     .context = NODES(2)},
    {.name = "go with work queued",
     .ranks = 3,
     .body = go_with_work_queued,
     .context = NODES(3)},
    {.name = "go with work queued over rails",
     .ranks = 4,
     .body = go_with_work_queued,
     .context = NODES(2)},
    {.name = "exit with work queued",
     .ranks = 4,
     .body = exit_with_work_queued,
     .context = NODES(2)},
    {.name = "300 calls", .ranks = 3, .body = call_often, .context = NODES(3)},
    {.name = "300 calls over rails",
     .ranks = 4,
     .body = call_often,
     .context = NODES(2),
     .settings = {"FAKE_LSA_SIZE", "2"}},
    {.name = "graphs are refused",
     .ranks = 1,
     .body = refuse_graphs,
     .settings = {"FAKE_FAULT", "no_graph_launches", "FAKE_FAULT_AFTER", "15",
                  "TIDE_SUM_GRAPHS", "1", "TIDE_SUM_CHUNK_KIB", "1"}},
    {.name = "the default stream",
     .ranks = 4,
     .body = call_default_stream,
     .context = NODES(4)},
    {.name = "the default stream over rails",
     .ranks = 4,
     .body = call_default_stream,
     .context = NODES(2)},
};

int main(void)
{
    device_use_fakes(TIDE_FAKE_FOLDER);
    scenes_play(scenes, TDI_COUNT(scenes));
    return 0;
}
