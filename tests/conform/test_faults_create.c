/*
 * Creation: bad arguments, ranks that differ, ranks that die or never come at
 * any step of it. All ranks get the status, and nothing is left behind.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

/* --- Arguments ---------------------------------------------------------- */

static int must_not_be_called(void *context, const void *send, void *recv,
                              size_t bytes)
{
    (void)context;
    (void)send;
    (void)recv;
    CHECK_FAIL("an exchange of %zu bytes with bad arguments", bytes);
}

static void refuse_bad_ranks(void)
{
    static const uint32_t bad[][2] = {{0, 0},
                                      {1, 1},
                                      {5, 4},
                                      {UINT32_MAX, 2},
                                      {0, TIDE_MAX_RANKS + 1},
                                      {0, UINT32_MAX}};
    for (size_t i = 0; i < TDI_COUNT(bad); i++) {
        char text[64];
        tide_comm *comm = (tide_comm *)&comm;
        tide_bootstrap boot = {.rank = bad[i][0],
                               .ranks = bad[i][1],
                               .allgather = must_not_be_called};
        CHECK_STATUS(tide_comm_create(&boot, NULL, &comm), TIDE_ERR_INVALID);
        snprintf(text, sizeof(text), "rank %u of %u", bad[i][0], bad[i][1]);
        CHECK_TEXT(tide_last_error(), text);
        CHECK(!comm);
    }
}

/* --- Settings ----------------------------------------------------------- */

/* Rank 0 uses `first`, the others `rest`; all get `status` and `text`. */
typedef struct setting {
    tide_comm_config first;
    tide_comm_config rest;
    const char *variable; /* set on rank 0 only */
    const char *value;
    tide_status status;
    const char *text[3];
} setting;

static const setting settings[] = {
    {.first = {.local_size = 3},
     .rest = {.local_size = 3},
     .status = TIDE_ERR_INVALID,
     .text = {"nodes of 3 ranks", "4 ranks", "TIDE_LOCAL_SIZE"}},
    {.first = {.local_size = 8},
     .rest = {.local_size = 8},
     .status = TIDE_ERR_INVALID,
     .text = {"nodes of 8 ranks", "4 ranks"}},
    {.first = {.local_size = UINT32_MAX},
     .rest = {.local_size = UINT32_MAX},
     .status = TIDE_ERR_INVALID,
     .text = {"nodes of 4294967295 ranks"}},
    {.first = {.local_size = 1},
     .rest = {.local_size = 2},
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0 has", "rank 1 has", "local size 2"}},
    {.rest = {.local_size = 2},
     .variable = "TIDE_LOCAL_SIZE",
     .value = "4",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0 has", "rank 1 has", "local size 4"}},
    {.first = {.arena_bytes = 1 << 20},
     .rest = {.arena_bytes = 2 << 20},
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "arena"}},
    {.variable = "TIDE_ARENA_MIB",
     .value = "64",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "arena"}},
    {.variable = "TIDE_CHUNK_KIB",
     .value = "64",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "TIDE_CHUNK_KIB"}},
    {.variable = "TIDE_STAGED",
     .value = "1",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "TIDE_STAGED"}},
    {.variable = "TIDE_DIRECT_RAILS",
     .value = "1",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "TIDE_DIRECT_RAILS"}},
    {.variable = "TIDE_BLOCK_KIB",
     .value = "512",
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "TIDE_BLOCK_KIB"}},
    {.first = {.backend = "host"},
     .rest = {.backend = "nonsense"},
     .status = TIDE_ERR_MISMATCH,
     .text = {"rank 0", "rank 1", "backend"}},
    {.first = {.backend = "nonsense"},
     .rest = {.backend = "nonsense"},
     .status = TIDE_ERR_UNSUPPORTED,
     .text = {"no backend can serve", "nonsense"}},
    {.first = {.arena_bytes = UINT64_MAX},
     .rest = {.arena_bytes = UINT64_MAX},
     .status = TIDE_ERR_INVALID,
     .text = {"arena of 18446744073709551615 bytes"}},
    /* More than any address space has. */
    {.first = {.arena_bytes = (uint64_t)1 << 60},
     .rest = {.arena_bytes = (uint64_t)1 << 60},
     .status = TIDE_ERR_SYSTEM,
     .text = {"TIDE_ARENA_MIB"}},
};

static int try_setting(const tide_bootstrap *bootstrap, void *context)
{
    const setting *s = context;
    tide_comm *comm = (tide_comm *)&comm;
    bool first = bootstrap->rank == 0;
    if (first && s->variable)
        setenv(s->variable, s->value, 1);
    CHECK_STATUS(
        tide_comm_create(bootstrap, first ? &s->first : &s->rest, &comm),
        s->status);
    CHECK(!comm);
    for (size_t i = 0; i < TDI_COUNT(s->text) && s->text[i]; i++)
        CHECK_TEXT(tide_last_error(), s->text[i]);
    return 0;
}

/* In-Place goes off on all ranks when one cannot read its peers. */
static int forbid_reads(const tide_bootstrap *bootstrap, void *context)
{
    tide_comm_info info;
    const uint32_t *who = context;
    if (bootstrap->rank == *who || *who == UINT32_MAX)
        setenv("TIDE_READV", "0", 1);
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 1001, "layer");
    CHECK_OK(tide_comm_get_info(comm, &info));
    CHECK_INT(info.reads_private, ==, 0);
    for (uint32_t call = 0; call < 6; call++) {
        CHECK_OK(call_gather(group, bootstrap->rank, call));
        CHECK_OK(call_reduce(group, bootstrap->rank, call));
        CHECK_OK(call_reduce_slot(comm, group, bootstrap->rank, call));
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Ranks that do not come --------------------------------------------- */

enum { HURT = 1, EXCHANGES = 10 };

typedef enum fate { KILLED, EXITED, ABSENT } fate;

/* Rank HURT meets its fate before or after its n-th exchange. */
typedef struct trap {
    const tide_bootstrap *inner;
    fate fate;
    uint32_t at;
    bool after;
    uint32_t count;
    atomic_uint *over;
} trap;

static void spring(trap *t, bool after)
{
    if (t->inner->rank != HURT || t->after != after || t->count != t->at)
        return;
    if (t->fate == KILLED)
        raise(SIGKILL);
    if (t->fate == ABSENT)
        while (*t->over < t->inner->ranks - 1)
            ranks_nap(1);
    _exit(7);
}

static int exchange_in_trap(void *context, const void *send, void *recv,
                            size_t bytes)
{
    trap *t = context;
    spring(t, false);
    int failed = t->inner->allgather(t->inner->context, send, recv, bytes);
    spring(t, true);
    t->count++;
    return failed;
}

static int create_in_trap(const tide_bootstrap *bootstrap, void *context)
{
    trap t = *(trap *)context;
    tide_bootstrap outer = *bootstrap;
    tide_comm *comm;
    tide_comm_config config = {.local_size = 1,
                               .timeout_ms = RANKS_DEADLINE_MS};
    outer.allgather = exchange_in_trap;
    outer.context = &t;
    t.inner = bootstrap;
    uint64_t start = tdi_now_ms();
    CHECK_STATUS(tide_comm_create(&outer, &config, &comm), TIDE_ERR_PEER);
    CHECK_INT(tdi_now_ms() - start, <, 2 * RANKS_DEADLINE_MS + RANKS_SLACK_MS);
    CHECK_TEXT(tide_last_error(), "rank 1 ");
    CHECK(!comm);
    ++*t.over;
    return 0;
}

/* After the last exchange there is a communicator: other tests have that. */
static void play(fate what, uint32_t at, bool after)
{
    trap t = {.fate = what, .at = at, .after = after};
    t.over = ranks_share(sizeof(*t.over));
    ranks run = ranks_start(4, RANKS_DEADLINE_MS, create_in_trap, &t);
    ranks_join(&run, RANKS_FOREVER_MS);
    ranks_check_codes(&run, HURT, what == KILLED ? 128 + SIGKILL : 7);
    ranks_unshare(t.over, sizeof(*t.over));
}

static int fail_exchange(void *context, const void *send, void *recv,
                         size_t bytes)
{
    (void)send;
    memset(recv, 0, bytes);
    ++*(int *)context;
    return 42;
}

static void report_failed_bootstrap(void)
{
    int calls = 0;
    tide_comm *comm;
    tide_bootstrap boot = {
        .ranks = 1, .allgather = fail_exchange, .context = &calls};
    CHECK_STATUS(tide_comm_create(&boot, NULL, &comm), TIDE_ERR_PEER);
    CHECK_TEXT(tide_last_error(), "returned 42");
    CHECK_INT(calls, ==, 1);
}

/* --- Interrupted system calls ------------------------------------------- */

static void on_alarm(int number)
{
    (void)number;
}

/* Rank 1 is late after every exchange, so the others sleep in every system
 * call there is. */
static int exchange_late(void *context, const void *send, void *recv,
                         size_t bytes)
{
    const tide_bootstrap *inner = context;
    int failed = inner->allgather(inner->context, send, recv, bytes);
    if (inner->rank == 1)
        ranks_nap(3);
    return failed;
}

/* Signals without SA_RESTART, as profilers and timers send them. */
static int create_under_signals(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    tide_bootstrap late = *bootstrap;
    late.allgather = exchange_late;
    late.context = (void *)bootstrap;
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    CHECK_INT(sigaction(SIGALRM, &action, NULL), ==, 0);
    CHECK_INT(setitimer(ITIMER_REAL, &often, NULL), ==, 0);
    for (uint32_t round = 0; round < 5; round++) {
        tide_comm *comm = ranks_comm(&late, 2, RANKS_FOREVER_MS);
        tide_group *group = call_group(comm, 64, "layer");
        CHECK_OK(call_gather(group, bootstrap->rank, round));
        CHECK_OK(call_reduce(group, bootstrap->rank, round));
        tide_group_free(group);
        tide_comm_destroy(comm);
    }
    CHECK_INT(setitimer(ITIMER_REAL, &never, NULL), ==, 0);
    return 0;
}

int main(void)
{
    refuse_bad_ranks();
    report_failed_bootstrap();
    for (size_t i = 0; i < TDI_COUNT(settings); i++)
        ranks_run(4, try_setting, (void *)&settings[i]);
    for (uint32_t who = 0; who < 4; who += 3)
        ranks_run(4, forbid_reads, &who);
    ranks_run(4, forbid_reads, &(uint32_t){UINT32_MAX});
    for (uint32_t at = 0; at < EXCHANGES; at++) {
        play(KILLED, at, false);
        play(EXITED, at, at + 1 < EXCHANGES);
        play(KILLED, at, at + 1 < EXCHANGES);
        if (at % 3 == 0)
            play(ABSENT, at, at % 2 && at + 1 < EXCHANGES);
    }
    ranks_run(4, create_under_signals, NULL);
    return 0;
}
