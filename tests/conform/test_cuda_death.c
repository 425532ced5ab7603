/*
 * Ranks on the cuda backend that are killed, stop, end or leave at any moment,
 * before their puts and signals or after: every other rank names them in time
 * and can destroy its communicator. Here ranks are processes.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/device.h"
#include "support/ranks.h"

#include <signal.h>
#include <unistd.h>

typedef enum fate { KILLED, EXITED, STOPPED, NEVER } fate;

typedef struct scene {
    fate fate;
    uint32_t ranks;
    uint32_t local_size;
    uint32_t hurt;
    uint32_t calls; /* before it happens */
    uint32_t timeout_ms;
    atomic_uint over;
    atomic_uint ready;
} scene;

static void meet_fate(const scene *s)
{
    if (s->fate == KILLED)
        raise(SIGKILL);
    if (s->fate == STOPPED)
        raise(SIGSTOP);
    if (s->fate == EXITED)
        _exit(7);
}

static tide_comm *make_comm(const tide_bootstrap *bootstrap, const scene *s)
{
    tide_comm *comm;
    tide_comm_config config = {.backend = "cuda",
                               .local_size = s->local_size,
                               .timeout_ms = s->timeout_ms,
                               .arena_bytes = 2 << 20};
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    return comm;
}

static int run_scene(const tide_bootstrap *bootstrap, void *context)
{
    scene *s = context;
    uint32_t rank = bootstrap->rank, call = 0;
    char name[32];
    uint64_t start = 0;
    tide_status status = TIDE_OK;
    device_open((int)rank);
    tide_comm *comm = make_comm(bootstrap, s);
    tide_group *group = call_group(comm, 1024, "layer");
    s->ready++;
    for (; !status && (s->fate != NEVER || call < s->calls); call++) {
        if (rank == s->hurt && call == s->calls)
            meet_fate(s);
        start = tdi_now_ms();
        status = call % 2 ? call_reduce(group, rank, call)
                          : call_gather(group, rank, call);
    }
    s->over++;
    if (s->fate != NEVER) {
        CHECK_STATUS(status, TIDE_ERR_PEER);
        CHECK_INT(tdi_now_ms() - start, <, RANKS_DEADLINE_MS + RANKS_SLACK_MS);
        snprintf(name, sizeof(name), "rank %u: rank %u ", rank, s->hurt);
        if (rank != s->hurt)
            CHECK_TEXT(tide_last_error(), name);
        CHECK_STATUS(call_gather(group, rank, call), TIDE_ERR_ABORTED);
        device_settle();
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    /* Not 0: memory of the device that a fault has left in use stays. */
    return s->fate == NEVER ? 0 : 3;
}

static int expected_code(const scene *s, uint32_t rank)
{
    if (s->fate == NEVER)
        return 0;
    if (rank == s->hurt && s->fate == KILLED)
        return 128 + SIGKILL;
    return rank == s->hurt && s->fate == EXITED ? 7 : 3;
}

static void join_all(ranks *run, const scene *s)
{
    ranks_join(run, RANKS_FOREVER_MS);
    for (uint32_t r = 0; r < run->count; r++)
        if (run->code[r] != expected_code(s, r))
            CHECK_FAIL("fate %d, %u ranks in nodes of %u, rank %u hurt after "
                       "%u calls: rank %u ended with %d, not %d",
                       (int)s->fate, s->ranks, s->local_size, s->hurt, s->calls,
                       r, run->code[r], expected_code(s, r));
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
    join_all(&run, s);
    ranks_unshare(s, sizeof(*s));
}

/* From outside, wherever it happens to be. */
static void kill_at_random(uint32_t rounds)
{
    uint64_t state = 4242;
    for (uint32_t i = 0; i < rounds; i++) {
        scene *s = ranks_share(sizeof(*s));
        *s = (scene){.fate = KILLED,
                     .ranks = 3 + i % 2,
                     .local_size = i % 2 ? 2 : 3,
                     .timeout_ms = RANKS_FOREVER_MS,
                     .hurt = (uint32_t)check_between(&state, 0, 2),
                     .calls = UINT32_MAX};
        ranks run = ranks_start(s->ranks, RANKS_FOREVER_MS, run_scene, s);
        while (s->ready < s->ranks)
            ranks_nap(1);
        ranks_nap((uint32_t)check_between(&state, 0, 60));
        ranks_signal(&run, s->hurt, SIGKILL);
        join_all(&run, s);
        ranks_unshare(s, sizeof(*s));
    }
}

int main(void)
{
    static const uint32_t worlds[][2] = {{2, 2}, {2, 1}, {4, 2}};
    device_use_fakes(TIDE_FAKE_FOLDER);
    device_share_fakes();
    call_place = &device_place;
    for (size_t w = 0; w < TDI_COUNT(worlds); w++) {
        scene s = {.ranks = worlds[w][0],
                   .local_size = worlds[w][1],
                   .hurt = (uint32_t)w % 2,
                   .timeout_ms = RANKS_FOREVER_MS};
        s.fate = NEVER;
        s.calls = 10;
        play(s);
        s.fate = KILLED;
        s.calls = w ? 3 : 0;
        play(s);
        s.fate = EXITED;
        play(s);
        s.fate = STOPPED;
        s.timeout_ms = RANKS_DEADLINE_MS;
        play(s);
    }
    kill_at_random(8);
    return 0;
}
