/* Ranks that are processes: windows, puts, signals, values in each other's
 * memory, and a rank that is killed. */
#include "open.h"

#include <signal.h>
#include <sys/mman.h>

enum { BYTES = 1 << 16, ROUNDS = 40 };

static void set_values(rank_thread *me, nccl_window window, uint64_t value)
{
    for (int r = 0; r < me->ranks; r++) {
        void *theirs;
        CHECK_CALL(nccl.lsa_pointer(window, 8 * (size_t)me->rank, r, &theirs));
        cu_mem_op op = {.operation = CU_OP_WRITE_64,
                        .address = (cu_pointer)(uintptr_t)theirs,
                        .value = value};
        CHECK_CALL(cuda.mem_ops(me->stream, 1, &op, 0));
    }
}

static void wait_values(rank_thread *me, cu_pointer cells, uint64_t value)
{
    for (int r = 0; r < me->ranks; r++) {
        cu_mem_op op = {.operation = CU_OP_WAIT_64,
                        .address = cells + 8 * (unsigned)r,
                        .value = value};
        CHECK_CALL(cuda.mem_ops(me->stream, 1, &op, 0));
    }
}

/* A ring of stamped puts; cells say that all have read. */
static void ring(rank_thread *me)
{
    int next = (me->rank + 1) % me->ranks;
    int last = (me->rank + me->ranks - 1) % me->ranks;
    nccl_wait wait = {.count = 1, .peer = last};
    nccl_window window;
    void *memory;
    uint8_t got[4096];
    join_comm(me);
    CHECK_CALL(nccl.memory_alloc(&memory, BYTES));
    cu_pointer at = (cu_pointer)(uintptr_t)memory;
    CHECK_CALL(cuda.fill_8_async(at, 0, 4096, me->stream));
    CHECK_CALL(cuda.stream_sync(me->stream));
    CHECK_CALL(
        nccl.window_register(me->comm, memory, BYTES, &window, NCCL_SYMMETRIC));
    for (int round = 1; round <= ROUNDS; round++) {
        unsigned char stamp = (unsigned char)(round * 3 + me->rank);
        CHECK_CALL(cuda.fill_8_async(at + 4096, stamp, 4096, me->stream));
        CHECK_CALL(nccl.put_signal((void *)(uintptr_t)(at + 4096), 4096,
                                   NCCL_INT8, next, window, 8192, 0, 0, 0,
                                   me->comm, me->stream));
        CHECK_CALL(nccl.wait_signal(1, &wait, me->comm, me->stream));
        read_device(me->stream, got, at + 8192, sizeof(got));
        for (size_t i = 0; i < sizeof(got); i++)
            CHECK_INT(got[i], ==, (uint8_t)(round * 3 + last));
        set_values(me, window, (uint64_t)round);
        wait_values(me, at, (uint64_t)round);
    }
    CHECK_CALL(cuda.stream_sync(me->stream));
    CHECK_CALL(nccl.window_deregister(me->comm, window));
    CHECK_CALL(nccl.memory_free(memory));
    CHECK_CALL(nccl.destroy(me->comm));
}

/* The others see that its signal does not come, and can look after
 * themselves. */
static void killed(rank_thread *me)
{
    nccl_wait wait = {.count = 1, .peer = 1};
    join_comm(me);
    CHECK_CALL(nccl.signal(me->rank, 0, 0, 0, me->comm, me->stream));
    if (me->rank == 1)
        raise(SIGKILL);
    CHECK_CALL(nccl.wait_signal(1, &wait, me->comm, me->stream));
    fake_sleep_us(50000);
    CHECK_INT(cuda.stream_query(me->stream), ==, CU_ERROR_NOT_READY);
    _exit(0);
}

static void share(void)
{
    char number[16];
    int file = memfd_create("world", 0);
    CHECK_CALL(ftruncate(file, 64 << 20));
    snprintf(number, sizeof(number), "%d", file);
    setenv("FAKE_SHARED", number, 1);
}

static void run_processes(int ranks, void (*body)(rank_thread *), int dies)
{
    pid_t child[8];
    rank_thread me = {.ranks = ranks, .body = body};
    share();
    CHECK_CALL(nccl.unique_id(&me.id));
    for (int r = 0; r < ranks; r++) {
        child[r] = fork();
        CHECK(child[r] >= 0);
        me.rank = r;
        if (!child[r]) {
            start_rank(&me);
            _exit(0);
        }
    }
    for (int r = 0; r < ranks; r++) {
        int state;
        CHECK_INT(waitpid(child[r], &state, 0), ==, child[r]);
        CHECK_INT(state, ==, r == dies ? SIGKILL : 0);
    }
}

static void ring_of_processes(void)
{
    run_processes(3, ring, -1);
}

static void killed_process(void)
{
    run_processes(3, killed, 1);
}

int main(void)
{
    must_pass(NULL, NULL, ring_of_processes);
    must_pass("FAKE_LSA_SIZE", "3", ring_of_processes);
    must_pass(NULL, NULL, killed_process);
    return 0;
}
