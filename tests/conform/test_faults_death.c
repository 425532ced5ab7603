/*
 * Ranks that die, stop, leave or never come: every other rank must name them
 * in time, and be able to destroy its communicator.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

#include <signal.h>
#include <unistd.h>

typedef enum fate {
    KILLED,   /* SIGKILL to itself */
    SURVIVED, /* the same, but a child of its holds all its descriptors */
    EXITED,   /* ends in order, without destroying */
    LEFT,     /* destroys its communicator early, and lives on */
    STOPPED,  /* SIGSTOP to itself */
    ABSENT,   /* lives, and never starts the call */
} fate;

typedef struct scene {
    fate fate;
    uint32_t ranks;
    uint32_t local_size;
    uint32_t hurt;
    uint32_t timeout_ms;
    uint32_t calls;    /* before it happens */
    int polls;         /* ranks poll with tide_test */
    pid_t child;       /* of the hurt rank */
    atomic_uint over;  /* ranks that have met the fault */
    atomic_uint ready; /* ranks that have a communicator */
} scene;

static void await_others(scene *s)
{
    while (s->over < s->ranks - 1)
        ranks_nap(1);
}

static void leave_child(scene *s)
{
    pid_t child = fork();
    CHECK_INT(child, >=, 0);
    if (!child) {
        alarm(RANKS_FOREVER_MS / 1000); /* should the test not get to it */
        pause();
        _exit(0);
    }
    s->child = child;
}

/* What the hurt rank does; returns if it has to go on as the others do. */
static void meet_fate(scene *s, tide_comm *comm)
{
    switch (s->fate) {
    case SURVIVED:
        leave_child(s);
        raise(SIGKILL);
        break;
    case KILLED:
        raise(SIGKILL);
        break;
    case EXITED:
        _exit(7);
    case LEFT:
        tide_comm_destroy(comm);
        await_others(s);
        _exit(7);
    case STOPPED:
        raise(SIGSTOP);
        break;
    case ABSENT:
        await_others(s);
        break;
    }
}

static tide_status make_call(tide_group *group, uint32_t rank, uint32_t call)
{
    return call % 2 ? call_reduce(group, rank, call)
                    : call_gather(group, rank, call);
}

static void check_message(const scene *s, uint32_t rank)
{
    char name[32];
    if (rank == s->hurt)
        return;
    snprintf(name, sizeof(name), "rank %u: rank %u ", rank, s->hurt);
    CHECK_TEXT(tide_last_error(), name);
}

static int run_scene(const tide_bootstrap *bootstrap, void *context)
{
    scene *s = context;
    uint32_t rank = bootstrap->rank, call = 0;
    tide_status status = TIDE_OK;
    tide_comm *comm = ranks_comm(bootstrap, s->local_size, s->timeout_ms);
    /* Large enough to be read where it lies: peers may die under a read. */
    tide_group *group = call_group(comm, 8192, "layer");
    s->ready++;
    uint64_t start = 0;
    call_polls = s->polls;
    for (; !status; call++) {
        if (rank == s->hurt && call == s->calls)
            meet_fate(s, comm);
        start = tdi_now_ms();
        status = make_call(group, rank, call);
    }
    s->over++;
    CHECK_STATUS(status, TIDE_ERR_PEER);
    CHECK_INT(tdi_now_ms() - start, <, RANKS_DEADLINE_MS + RANKS_SLACK_MS);
    check_message(s, rank);
    CHECK_STATUS(call_gather(group, rank, call), TIDE_ERR_ABORTED);
    CHECK_STATUS(call_reduce(group, rank, call), TIDE_ERR_ABORTED);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

static const uint32_t worlds[][2] = {{2, 2}, {2, 1}, {4, 4}, {4, 2}, {4, 1}};

static int expected_code(fate what)
{
    switch (what) {
    case KILLED:
    case SURVIVED:
        return 128 + SIGKILL;
    case EXITED:
    case LEFT:
        return 7;
    default:
        return 0;
    }
}

/* A stopped rank is woken once the others are through: it must hear of it. */
static void play(scene from)
{
    scene *s = ranks_share(sizeof(*s));
    *s = from;
    ranks run = ranks_start(s->ranks, RANKS_FOREVER_MS, run_scene, s);
    if (s->fate == STOPPED) {
        uint64_t bound = tdi_now_ms() + RANKS_FOREVER_MS;
        while (s->over < s->ranks - 1 && tdi_now_ms() < bound)
            ranks_nap(1);
        ranks_signal(&run, s->hurt, SIGCONT);
    }
    ranks_join(&run, RANKS_FOREVER_MS);
    ranks_check_codes(&run, s->hurt, expected_code(s->fate));
    if (s->fate == SURVIVED) {
        CHECK_INT(s->child, >, 1);
        CHECK_INT(kill(s->child, SIGKILL), ==, 0);
    }
    ranks_unshare(s, sizeof(*s));
}

/* In the world-th of the worlds, after that many calls. */
static void play_in(size_t world, fate what, uint32_t calls,
                    uint32_t timeout_ms)
{
    scene s = {.fate = what,
               .ranks = worlds[world][0],
               .local_size = worlds[world][1],
               .timeout_ms = timeout_ms,
               .calls = calls,
               .polls = world % 2};
    s.hurt = (uint32_t)(world + calls) % s.ranks;
    play(s);
}

/* Faults that are seen at once: the deadline is far away. */
static void play_everywhere(fate what)
{
    for (size_t w = 0; w < TDI_COUNT(worlds); w++) {
        play_in(w, what, 0, RANKS_FOREVER_MS);
        play_in(w, what, 3, RANKS_FOREVER_MS);
    }
}

/* Faults that are seen at the deadline. */
static void play_until_deadline(fate what)
{
    for (size_t w = 0; w < TDI_COUNT(worlds); w++)
        play_in(w, what, w % 2 ? 3 : 0, RANKS_DEADLINE_MS);
}

/* Killed from outside, wherever it happens to be. */
static void kill_at_random(uint32_t rounds)
{
    uint64_t state = 4242;
    for (uint32_t i = 0; i < rounds; i++) {
        scene *s = ranks_share(sizeof(*s));
        *s = (scene){.fate = KILLED,
                     .ranks = 4,
                     .local_size = i % 3 == 0 ? 4 : i % 3,
                     .timeout_ms = RANKS_FOREVER_MS,
                     .hurt = (uint32_t)check_between(&state, 0, 3),
                     .calls = UINT32_MAX};
        ranks run = ranks_start(4, RANKS_FOREVER_MS, run_scene, s);
        while (s->ready < s->ranks)
            ranks_nap(1);
        ranks_nap((uint32_t)check_between(&state, 0, 30));
        ranks_signal(&run, s->hurt, SIGKILL);
        ranks_join(&run, RANKS_FOREVER_MS);
        ranks_check_codes(&run, s->hurt, 128 + SIGKILL);
        ranks_unshare(s, sizeof(*s));
    }
}

int main(void)
{
    play_everywhere(KILLED);
    play_everywhere(SURVIVED);
    play_everywhere(EXITED);
    play_everywhere(LEFT);
    play_until_deadline(ABSENT);
    play_until_deadline(STOPPED);
    kill_at_random(30);
    /* A wait that would spin for minutes. */
    setenv("TIDE_SPIN", "100000000", 1);
    play_in(0, ABSENT, 2, RANKS_DEADLINE_MS);
    play_in(3, KILLED, 1, RANKS_FOREVER_MS);
    return 0;
}
