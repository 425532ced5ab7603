/*
 * The fake NCCL itself: windows and who sees what, signals and their counts,
 * the order of one communicator's calls, versions, checks and faults.
 */
#include "open.h"

enum { BYTES = 1 << 16 };

typedef struct arena {
    cu_pointer memory;
    nccl_window window;
} arena;

static arena make_arena(rank_thread *me)
{
    arena made;
    void *memory;
    CHECK_CALL(nccl.memory_alloc(&memory, BYTES));
    made.memory = (cu_pointer)(uintptr_t)memory;
    CHECK_CALL(nccl.window_register(me->comm, memory, BYTES, &made.window,
                                    NCCL_SYMMETRIC));
    CHECK(made.window != NULL);
    CHECK_CALL(cuda.fill_8_async(made.memory, (unsigned char)me->rank, BYTES,
                                 me->stream));
    CHECK_CALL(cuda.stream_sync(me->stream));
    return made;
}

static void free_arena(rank_thread *me, arena *from)
{
    CHECK_CALL(nccl.window_deregister(me->comm, from->window));
    CHECK_CALL(nccl.memory_free((void *)(uintptr_t)from->memory));
    CHECK_CALL(nccl.destroy(me->comm));
}

static void put(rank_thread *me, const arena *at, uint64_t from, uint64_t to,
                size_t bytes, int peer)
{
    CHECK_CALL(nccl.put_signal((void *)(uintptr_t)(at->memory + from), bytes,
                               NCCL_INT8, peer, at->window, to, 0, 0, 0,
                               me->comm, me->stream));
}

static void signal_peer(rank_thread *me, int peer)
{
    CHECK_CALL(nccl.signal(peer, 0, 0, 0, me->comm, me->stream));
}

static void wait_peer(rank_thread *me, int peer, int count, cu_stream stream)
{
    nccl_wait wait = {.count = count, .peer = peer};
    CHECK_CALL(nccl.wait_signal(1, &wait, me->comm, stream));
}

/* Every rank sends a signal to itself and takes it: the first call of all. */
static void meet_all(rank_thread *me)
{
    signal_peer(me, me->rank);
    wait_peer(me, me->rank, 1, me->stream);
    CHECK_CALL(cuda.stream_sync(me->stream));
}

static uint8_t byte_at(rank_thread *me, cu_pointer at)
{
    uint8_t byte;
    read_device(me->stream, &byte, at, 1);
    return byte;
}

/* --- Windows -------------------------------------------------------------- */

static void windows_of_ranks(rank_thread *me)
{
    nccl_properties properties = {
        .size = sizeof(properties), .magic = 0xcafebeef, .version = 23000};
    void *pointer;
    join_comm(me);
    arena mine = make_arena(me);
    nccl_team team = nccl.team_lsa(me->comm);
    CHECK_INT(team.ranks, ==, 2); /* FAKE_LSA_SIZE */
    CHECK_INT(team.rank, ==, me->rank % 2);
    CHECK_CALL(nccl.properties(me->comm, &properties));
    CHECK_INT(properties.rank, ==, me->rank);
    CHECK_INT(properties.lsa_teams, ==, 2);
    CHECK(properties.host_rma && properties.multimem);
    meet_all(me);
    for (int l = 0; l < 2; l++) {
        CHECK_CALL(nccl.lsa_pointer(mine.window, 100, l, &pointer));
        CHECK_INT(byte_at(me, (cu_pointer)(uintptr_t)pointer), ==,
                  me->rank / 2 * 2 + l);
    }
    CHECK_INT(nccl.lsa_pointer(mine.window, 0, 2, &pointer), ==,
              FAKE_NCCL_ARGUMENT);
    CHECK_INT(nccl.lsa_pointer(mine.window, BYTES, 0, &pointer), ==,
              FAKE_NCCL_ARGUMENT);
    for (int r = 0; r < me->ranks; r++) /* nobody leaves before all have read */
        signal_peer(me, r);
    for (int r = 0; r < me->ranks; r++)
        wait_peer(me, r, 1, me->stream);
    free_arena(me, &mine);
}

static void windows(void)
{
    run_ranks(4, windows_of_ranks, NULL);
}

/* A write to a multicast address reaches the whole team, and nobody else. */
static void multicast_of_ranks(rank_thread *me)
{
    void *pointer;
    float sum = 0, mine = (float)(me->rank + 1);
    cu_module module;
    cu_function function;
    join_comm(me);
    arena at = make_arena(me);
    CHECK_CALL(nccl.multimem_pointer(at.window, 0, &pointer));
    CHECK(pointer != NULL);
    cu_pointer all = (cu_pointer)(uintptr_t)pointer;
    write_device(me->stream, all + 64 * (unsigned)me->rank, &mine, 4);
    write_device(me->stream, at.memory + 4096, &mine, 4);
    for (int r = 0; r < me->ranks; r++)
        signal_peer(me, r);
    for (int r = 0; r < me->ranks; r++)
        wait_peer(me, r, 1, me->stream);
    for (int r = 0; r < me->ranks; r++) {
        float got;
        read_device(me->stream, &got, at.memory + 64 * (unsigned)r, 4);
        CHECK((r / 2 == me->rank / 2) == (got == (float)(r + 1)));
    }
    CHECK_CALL(cuda.module_load(&module, "kernels"));
    CHECK_CALL(cuda.module_function(&function, module, "tide_sum_switch"));
    struct {
        uint64_t dst, first, count, counter;
        uint32_t sources, flags, tile, ring;
        float scale;
    } params = {at.memory + 8192, 0, 1, 0, 1, 0, 0, 0, 2.0f};
    uint64_t sources[16] = {all + 4096};
    void *list[] = {&params, sources};
    CHECK_CALL(
        cuda.launch(function, 1, 1, 1, 32, 1, 1, 0, me->stream, list, NULL));
    memset(sources, 0, sizeof(sources)); /* they are copied at the call */
    read_device(me->stream, &sum, at.memory + 8192, 4);
    CHECK_INT((int)sum, ==, 2 * (me->rank / 2 * 4 + 3));
    for (int r = 0; r < me->ranks; r++)
        signal_peer(me, r);
    for (int r = 0; r < me->ranks; r++)
        wait_peer(me, r, 1, me->stream);
    free_arena(me, &at);
}

static void multicast(void)
{
    run_ranks(4, multicast_of_ranks, NULL);
}

/* --- Signals -------------------------------------------------------------- */

enum { ROUNDS = 60 };

/* A ring of stamped puts with credits: each wait asks for one more. */
static void ring_of_ranks(rank_thread *me)
{
    int next = (me->rank + 1) % me->ranks;
    int last = (me->rank + me->ranks - 1) % me->ranks;
    join_comm(me);
    arena at = make_arena(me);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_CALL(cuda.fill_8_async(at.memory,
                                     (unsigned char)(round * 3 + me->rank),
                                     4096, me->stream));
        put(me, &at, 0, 8192, 4096, next);
        wait_peer(me, last, 1, me->stream);
        uint8_t got[4096];
        read_device(me->stream, got, at.memory + 8192, sizeof(got));
        for (size_t i = 0; i < sizeof(got); i++)
            CHECK_INT(got[i], ==, (uint8_t)(round * 3 + last));
        signal_peer(me, last); /* may be overwritten */
        wait_peer(me, next, 1, me->stream);
    }
    free_arena(me, &at);
}

static void ring(void)
{
    run_ranks(3, ring_of_ranks, NULL);
}

/* Three signals feed a wait for one and a wait for two, not one for more. */
static void counts_of_ranks(rank_thread *me)
{
    join_comm(me);
    meet_all(me);
    if (me->rank == 0) {
        for (int i = 0; i < 3; i++)
            signal_peer(me, 1);
        wait_peer(me, 1, 1, me->stream);
    } else {
        wait_peer(me, 0, 1, me->stream);
        wait_peer(me, 0, 2, me->stream);
        CHECK_CALL(cuda.stream_sync(me->stream));
        wait_peer(me, 0, 1, me->stream);
        fake_sleep_us(30000);
        CHECK_INT(cuda.stream_query(me->stream), ==, CU_ERROR_NOT_READY);
        /* The order of one communicator holds over all streams: this signal
         * stands behind the wait. */
        cu_stream other;
        CHECK_CALL(cuda.stream_create(&other, CU_STREAM_NON_BLOCKING_FLAG, 0));
        CHECK_CALL(nccl.signal(0, 0, 0, 0, me->comm, other));
        fake_sleep_us(30000);
        CHECK_INT(cuda.stream_query(other), ==, CU_ERROR_NOT_READY);
        _exit(0); /* both ranks would wait for ever */
    }
    fake_sleep_us(20000000);
    CHECK_FAIL("rank 1 has not come through");
}

static void counts(void)
{
    run_ranks(2, counts_of_ranks, NULL);
}

/* The first one-sided call of a rank waits on the host for all others. */
static void first_of_ranks(rank_thread *me)
{
    static atomic_int through;
    join_comm(me);
    arena at = make_arena(me);
    if (me->rank) {
        fake_sleep_us(50000);
        CHECK_INT(through, ==, 0);
    }
    signal_peer(me, me->rank);
    through++;
    wait_peer(me, me->rank, 1, me->stream);
    free_arena(me, &at);
}

static void first(void)
{
    run_ranks(3, first_of_ranks, NULL);
}

static void arguments_of_ranks(rank_thread *me)
{
    nccl_wait none = {.count = 0};
    join_comm(me);
    arena at = make_arena(me);
    cu_pointer other = alloc_device(4096);
    CHECK_INT(nccl.put_signal((void *)(uintptr_t)other, 8, NCCL_INT8, 0,
                              at.window, 0, 0, 0, 0, me->comm, me->stream),
              ==, FAKE_NCCL_ARGUMENT);
    CHECK_INT(nccl.wait_signal(1, &none, me->comm, me->stream), ==,
              FAKE_NCCL_ARGUMENT);
    CHECK_INT(nccl.signal(0, 1, 0, 0, me->comm, me->stream), ==,
              FAKE_NCCL_ARGUMENT);
    CHECK_INT(nccl.signal(me->ranks, 0, 0, 0, me->comm, me->stream), ==,
              FAKE_NCCL_ARGUMENT);
    free_arena(me, &at);
}

static void arguments(void)
{
    run_ranks(2, arguments_of_ranks, NULL);
}

/* --- Collectives, groups, communicators that do not block ----------------- */

static void colls_of_ranks(rank_thread *me)
{
    float from[4], gathered[12], sum;
    join_comm(me);
    cu_pointer a = alloc_device(sizeof(from)), b = alloc_device(48);
    for (int i = 0; i < 4; i++)
        from[i] = (float)(me->rank * 10 + i);
    write_device(me->stream, a, from, sizeof(from));
    CHECK_CALL(nccl.group_start());
    CHECK_CALL(nccl.all_gather((void *)(uintptr_t)a, (void *)(uintptr_t)b, 4,
                               NCCL_FLOAT32, me->comm, me->stream));
    CHECK_CALL(nccl.group_end());
    read_device(me->stream, gathered, b, sizeof(gathered));
    for (int i = 0; i < 12; i++)
        CHECK_INT((int)gathered[i], ==, i / 4 * 10 + i % 4);
    CHECK_CALL(nccl.reduce_scatter((void *)(uintptr_t)b, (void *)(uintptr_t)a,
                                   1, NCCL_FLOAT32, NCCL_SUM, me->comm,
                                   me->stream));
    read_device(me->stream, &sum, a, sizeof(sum));
    CHECK_INT((int)sum, ==, 3 * me->rank);
    CHECK_CALL(nccl.destroy(me->comm));
}

static void colls(void)
{
    run_ranks(3, colls_of_ranks, NULL);
}

static void settle(rank_thread *me)
{
    nccl_result result = NCCL_IN_PROGRESS;
    while (result == NCCL_IN_PROGRESS)
        CHECK_CALL(nccl.async_error(me->comm, &result));
    CHECK_INT(result, ==, NCCL_OK);
}

static void unblocked_of_ranks(rank_thread *me)
{
    nccl_config config = NCCL_CONFIG_UNSET;
    void *memory;
    nccl_window window;
    config.blocking = 0;
    CHECK_INT(nccl.init_rank(&me->comm, me->ranks, me->id, me->rank, &config),
              ==, NCCL_IN_PROGRESS);
    settle(me);
    CHECK_CALL(nccl.memory_alloc(&memory, BYTES));
    CHECK_INT(
        nccl.window_register(me->comm, memory, BYTES, &window, NCCL_SYMMETRIC),
        ==, NCCL_IN_PROGRESS);
    settle(me);
    CHECK(window != NULL);
    CHECK_CALL(nccl.abort(me->comm));
    CHECK_CALL(nccl.memory_free(memory));
}

static void unblocked(void)
{
    run_ranks(2, unblocked_of_ranks, NULL);
}

/* --- Checks --------------------------------------------------------------- */

static void misuse(rank_thread *me)
{
    const char *how = me->context;
    nccl_window window;
    join_comm(me);
    arena at = make_arena(me);
    if (!strcmp(how, "twice"))
        nccl.window_register(me->comm, (void *)(uintptr_t)(at.memory + 4096),
                             4096, &window, NCCL_SYMMETRIC);
    if (!strcmp(how, "outside"))
        put(me, &at, 0, BYTES - 8, 16, 0);
    if (!strcmp(how, "leftover"))
        signal_peer(me, 1);
    if (!strcmp(how, "stuck"))
        wait_peer(me, 0, 1, me->stream);
    if (!strcmp(how, "peer")) { /* past the end of a peer's window */
        void *pointer;
        CHECK_CALL(nccl.lsa_pointer(at.window, BYTES - 1, 0, &pointer));
        CHECK_CALL(cuda.fill_8_async((cu_pointer)(uintptr_t)pointer, 0, 2,
                                     me->stream));
    }
    fake_sleep_us(50000);
    free_arena(me, &at);
}

#define MISUSE(name)                                                           \
    static void misuse_##name(void)                                            \
    {                                                                          \
        run_ranks(2, misuse, #name);                                           \
    }
MISUSE(twice)
MISUSE(outside)
MISUSE(leftover)
MISUSE(stuck)
MISUSE(peer)

static void sizes_of_ranks(rank_thread *me)
{
    void *memory;
    nccl_window window;
    join_comm(me);
    CHECK_CALL(nccl.memory_alloc(&memory, BYTES));
    nccl.window_register(me->comm, memory, BYTES >> me->rank, &window,
                         NCCL_SYMMETRIC);
}

static void sizes(void)
{
    run_ranks(2, sizes_of_ranks, NULL);
}

/* --- Faults --------------------------------------------------------------- */

static void null_window_of_ranks(rank_thread *me)
{
    void *memory;
    nccl_window window = (nccl_window)&window;
    join_comm(me);
    CHECK_CALL(nccl.memory_alloc(&memory, BYTES));
    CHECK_CALL(
        nccl.window_register(me->comm, memory, BYTES, &window, NCCL_SYMMETRIC));
    CHECK(!window);
}

static void null_window(void)
{
    run_ranks(2, null_window_of_ranks, NULL);
}

static void no_multicast_of_ranks(rank_thread *me)
{
    void *pointer = me;
    join_comm(me);
    arena at = make_arena(me);
    nccl_result result = nccl.multimem_pointer(at.window, 0, &pointer);
    CHECK_INT(result == NCCL_OK, ==, me->rank != 1);
    CHECK((pointer != NULL) == (me->rank != 1));
}

static void no_multicast(void)
{
    run_ranks(3, no_multicast_of_ranks, NULL);
}

static void lost_put_of_ranks(rank_thread *me)
{
    join_comm(me);
    arena at = make_arena(me);
    meet_all(me);
    put(me, &at, 0, 4096, 64, 1 - me->rank);
    fake_sleep_us(50000);
    CHECK_INT(cuda.stream_query(me->stream), ==,
              me->rank == 0 ? CU_ERROR_NOT_READY : CU_OK);
    CHECK_INT(byte_at(me, at.memory + 4096), ==, me->rank); /* hangs for 0 */
    if (me->rank == 1)
        _exit(0);
}

static void lost_put(void)
{
    run_ranks(2, lost_put_of_ranks, NULL);
}

static void init_fails_of_ranks(rank_thread *me)
{
    nccl_config config = NCCL_CONFIG_UNSET;
    CHECK_INT(nccl.init_rank(&me->comm, me->ranks, me->id, me->rank, &config),
              ==, FAKE_NCCL_SYSTEM);
    CHECK(!me->comm);
}

static void init_fails(void)
{
    run_ranks(2, init_fails_of_ranks, NULL);
}

/* --- Versions ------------------------------------------------------------- */

static void check_version(const char *path, int want, const char *has,
                          const char *lacks)
{
    int version = 0;
    void *library = open_library(path);
    nccl_result (*ask)(int *);
    *(void **)&ask = dlsym(library, "ncclGetVersion");
    CHECK(ask != NULL);
    CHECK_CALL(ask(&version));
    CHECK_INT(version, ==, want);
    CHECK(dlsym(library, has) != NULL);
    CHECK(dlsym(library, lacks) == NULL);
    dlclose(library);
}

static void versions(void)
{
    check_version(TIDE_FAKE_FOLDER "/27/libnccl.so.2", 22703,
                  "ncclCommWindowRegister", "ncclTeamLsa");
    check_version(TIDE_FAKE_FOLDER "/28/libnccl.so.2", 22807, "ncclTeamLsa",
                  "ncclPutSignal");
}

int main(void)
{
    must_pass("FAKE_LSA_SIZE", "2", windows);
    must_pass("FAKE_LSA_SIZE", "2", multicast);
    must_pass(NULL, NULL, ring);
    must_pass("FAKE_LSA_SIZE", "1", ring);
    must_pass("FAKE_CONNECTIONS", "1", ring);
    must_pass(NULL, NULL, counts);
    must_pass(NULL, NULL, first);
    must_pass(NULL, NULL, arguments);
    must_pass(NULL, NULL, colls);
    must_pass(NULL, NULL, unblocked);
    must_fail(NULL, NULL, misuse_twice, "twice in one communicator");
    must_fail(NULL, NULL, misuse_outside, "16 bytes at 65528 of a window");
    must_fail("FAKE_CHECK_LEFTOVER", "1", misuse_leftover, "signals of rank");
    must_fail("FAKE_ABORT_MS", "50", misuse_stuck, "hangs");
    must_fail(NULL, NULL, misuse_peer, "where 1 of 65536 are left");
    must_fail(NULL, NULL, sizes, "registers");
    must_pass("FAKE_FAULT", "null_window", null_window);
    must_pass("FAKE_FAULT", "init_fails", init_fails);
    setenv("FAKE_FAULT_RANK", "1", 1);
    must_pass("FAKE_FAULT", "multicast_fails", no_multicast);
    setenv("FAKE_FAULT_RANK", "0", 1);
    must_pass("FAKE_FAULT", "put_lost", lost_put);
    versions();
    return 0;
}
