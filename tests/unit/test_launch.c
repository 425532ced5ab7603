/* The launcher: codes, the bootstrap all-gather, and that nothing is left. */
#include "base/util.h"
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tide/comm.h>
#include <time.h>
#include <unistd.h>

/* What ranks tell the test: memory that they inherit. */
typedef struct board {
    atomic_int pid[16];
    atomic_int seen[16];
} board;

static board *make_board(void)
{
    board *made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    return made;
}

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static int allgather(const tide_bootstrap *boot, const void *send, void *recv,
                     size_t bytes)
{
    return boot->allgather(boot->context, send, recv, bytes);
}

/* No child of ours is left, ended or running. */
static void check_childless(void)
{
    CHECK_INT(waitpid(-1, NULL, WNOHANG), ==, -1);
    CHECK_INT(errno, ==, ECHILD);
}

static int return_rank(const tide_bootstrap *boot, void *context)
{
    board *seen = context;
    seen->pid[boot->rank] = getpid();
    seen->seen[boot->rank] = (int)boot->ranks;
    return boot->rank >= 2 ? (int)boot->rank * 10 : 0;
}

static void test_codes(void)
{
    board *seen = make_board();
    int codes[5];
    CHECK_INT(tide_launch(5, 0, return_rank, seen, codes), ==, 20);
    for (int rank = 0; rank < 5; rank++) {
        CHECK_INT(codes[rank], ==, rank >= 2 ? rank * 10 : 0);
        CHECK_INT(seen->seen[rank], ==, 5);
        CHECK(seen->pid[rank] != getpid());
    }
    CHECK_INT(tide_launch(2, 0, return_rank, seen, NULL), ==, 0);
    check_childless();
}

static int return_code(const tide_bootstrap *boot, void *context)
{
    (void)boot;
    return *(int *)context;
}

/* 256 is 0 in the 8 bits of an exit code; it must not pass for success. */
static void test_wide_codes(void)
{
    int wide[] = {256, -1, 255, 7}, want[] = {255, 255, 255, 7};
    for (size_t i = 0; i < TDI_COUNT(wide); i++)
        CHECK_INT(tide_launch(1, 0, return_code, &wide[i], NULL), ==, want[i]);
}

static unsigned char fill(uint32_t rank, size_t i, size_t bytes)
{
    return (unsigned char)(rank * 37 + i * 11 + i / 251 + bytes);
}

static int check_allgather(const tide_bootstrap *boot, size_t bytes)
{
    unsigned char *send = malloc(bytes + 1);
    unsigned char *recv = malloc(boot->ranks * bytes + 1);
    CHECK(send && recv);
    memset(recv, 0xee, boot->ranks * bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        send[i] = fill(boot->rank, i, bytes);
    CHECK_INT(allgather(boot, send, recv, bytes), ==, 0);
    for (uint32_t rank = 0; rank < boot->ranks; rank++)
        for (size_t i = 0; i < bytes; i++)
            CHECK_INT(recv[rank * bytes + i], ==, fill(rank, i, bytes));
    CHECK_INT(recv[boot->ranks * bytes], ==, 0xee);
    free(send);
    free(recv);
    return 0;
}

/* Sizes around the exchange area's, some rounds each, ranks out of step. */
static int run_allgathers(const tide_bootstrap *boot, void *context)
{
    const size_t sizes[] = {1, 8, 8191, 8192, 8193, 40000, 0, 3};
    (void)context;
    for (int round = 0; round < 40; round++) {
        if (round % 5 == (int)boot->rank)
            nap_ms(1);
        check_allgather(boot, sizes[round % TDI_COUNT(sizes)]);
    }
    return 0;
}

static void test_allgather(void)
{
    CHECK_INT(tide_launch(1, 0, run_allgathers, NULL, NULL), ==, 0);
    CHECK_INT(tide_launch(2, 0, run_allgathers, NULL, NULL), ==, 0);
    CHECK_INT(tide_launch(5, 0, run_allgathers, NULL, NULL), ==, 0);
    CHECK_INT(tide_launch(16, 0, run_allgathers, NULL, NULL), ==, 0);
    check_childless();
}

/* Rank 1 goes before the exchange; the others must hear of it, not wait. */
static int leave_early(const tide_bootstrap *boot, void *context)
{
    char byte = 1, all[3];
    CHECK_INT(allgather(boot, &byte, all, 1), ==, 0);
    if (boot->rank == 1 && context)
        raise(*(int *)context);
    if (boot->rank == 1)
        return 0;
    CHECK_INT(allgather(boot, &byte, all, 1), !=, 0);
    CHECK_TEXT(tide_last_error(), "rank 1 ended");
    CHECK_INT(allgather(boot, &byte, all, 1), !=, 0);
    return 0;
}

static void test_early_exit(void)
{
    uint64_t start = tdi_now_ms();
    CHECK_INT(tide_launch(3, 0, leave_early, NULL, NULL), ==, 0);
    CHECK_INT(tdi_now_ms() - start, <, 20000);
}

static void test_killed_rank(void)
{
    int codes[3], killed = SIGKILL, term = SIGTERM;
    uint64_t start = tdi_now_ms();
    CHECK_INT(tide_launch(3, 0, leave_early, &killed, codes), ==, 128 + 9);
    CHECK_INT(codes[0], ==, 0);
    CHECK_INT(codes[1], ==, 128 + 9);
    CHECK_INT(codes[2], ==, 0);
    CHECK_INT(tide_launch(3, 0, leave_early, &term, NULL), ==, 128 + 15);
    CHECK_INT(tdi_now_ms() - start, <, 20000);
    check_childless();
}

/* Rank 2 lives but never comes: the deadline ends the wait, and names it. */
static int never_come(const tide_bootstrap *boot, void *context)
{
    char byte = 1, all[3];
    board *seen = context;
    if (boot->rank == 2) {
        while (seen->seen[0] + seen->seen[1] < 2)
            nap_ms(5);
        return 0;
    }
    uint64_t start = tdi_now_ms();
    CHECK_INT(allgather(boot, &byte, all, 1), !=, 0);
    CHECK_INT(tdi_now_ms() - start, >=, 200);
    CHECK_TEXT(tide_last_error(), "rank 2 did not come");
    CHECK_TEXT(tide_last_error(), "200 ms");
    seen->seen[boot->rank] = 1;
    return 0;
}

static void test_late_rank(void)
{
    setenv("TIDE_TIMEOUT_MS", "200", 1);
    CHECK_INT(tide_launch(3, 0, never_come, make_board(), NULL), ==, 0);
    unsetenv("TIDE_TIMEOUT_MS");
}

static int give_different_sizes(const tide_bootstrap *boot, void *context)
{
    char send[3] = {0}, recv[9];
    (void)context;
    CHECK_INT(allgather(boot, send, recv, boot->rank == 1 ? 3 : 2), !=, 0);
    return 0;
}

static int fail_or_hang(const tide_bootstrap *boot, void *context)
{
    board *seen = context;
    seen->pid[boot->rank] = getpid();
    while (boot->rank != 1)
        pause();
    return 5;
}

/* A failed rank leaves the others their grace, then they are killed. */
static void test_grace(void)
{
    board *seen = make_board();
    int codes[3];
    uint64_t start = tdi_now_ms();
    CHECK_INT(tide_launch(3, 150, fail_or_hang, seen, codes), ==, 137);
    uint64_t took = tdi_now_ms() - start;
    CHECK_INT(took, >=, 150);
    CHECK_INT(took, <, 20000);
    CHECK_INT(codes[0], ==, 137);
    CHECK_INT(codes[1], ==, 5);
    CHECK_INT(codes[2], ==, 137);
    check_childless();
    for (int rank = 0; rank < 3; rank++)
        CHECK_INT(kill(seen->pid[rank], 0), ==, -1);
}

static int hang(const tide_bootstrap *boot, void *context)
{
    board *seen = context;
    seen->pid[boot->rank] = getpid();
    pause();
    return 0;
}

/* A launcher that is killed takes its ranks with it. */
static void test_dead_parent(void)
{
    board *seen = make_board();
    pid_t parent = fork();
    CHECK_INT(parent, >=, 0);
    if (!parent)
        _exit(tide_launch(2, 0, hang, seen, NULL) & 1);
    while (!seen->pid[0] || !seen->pid[1])
        nap_ms(2);
    kill(parent, SIGKILL);
    CHECK_INT(waitpid(parent, NULL, 0), ==, parent);
    uint64_t deadline = tdi_now_ms() + 20000;
    for (int rank = 0; rank < 2; rank++) {
        char path[64], state = 'R';
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)seen->pid[rank]);
        while (state != 'Z' && tdi_now_ms() < deadline) {
            FILE *stat = fopen(path, "r");
            if (!stat)
                break;
            CHECK_INT(fscanf(stat, "%*d (%*[^)]) %c", &state), ==, 1);
            fclose(stat);
            nap_ms(2);
        }
        CHECK_INT(tdi_now_ms(), <, deadline);
    }
}

/* The caller's own children are not the launcher's to reap. */
static void test_other_children(void)
{
    int zero = 0, state;
    pid_t mine = fork();
    CHECK_INT(mine, >=, 0);
    if (!mine)
        _exit(9);
    CHECK_INT(tide_launch(2, 0, return_code, &zero, NULL), ==, 0);
    CHECK_INT(waitpid(mine, &state, 0), ==, mine);
    CHECK_INT(WEXITSTATUS(state), ==, 9);
}

static int print_line(const tide_bootstrap *boot, void *context)
{
    fprintf(context, "rank %u\n", boot->rank);
    return 0;
}

/* What the parent had buffered comes once; what ranks print is not lost. */
static void test_buffers(void)
{
    char text[256] = "";
    FILE *file = tmpfile();
    CHECK(file != NULL);
    setvbuf(file, NULL, _IOFBF, 4096);
    CHECK_INT(fcntl(fileno(file), F_SETFL, O_APPEND), ==, 0);
    fprintf(file, "parent\n");
    CHECK_INT(tide_launch(2, 0, print_line, file, NULL), ==, 0);
    ssize_t bytes = pread(fileno(file), text, sizeof(text) - 1, 0);
    CHECK_INT(bytes, ==, 7 + 7 + 7);
    CHECK_TEXT(text, "parent\n");
    CHECK_TEXT(text, "rank 0\n");
    CHECK_TEXT(text, "rank 1\n");
    fclose(file);
}

static void test_refusals(void)
{
    int zero = 0;
    CHECK_INT(tide_launch(0, 0, return_code, &zero, NULL), ==, -1);
    CHECK_TEXT(tide_last_error(), "0 ranks");
    CHECK_INT(tide_launch(2, 0, NULL, NULL, NULL), ==, -1);
    CHECK_TEXT(tide_last_error(), "without a body");
    CHECK_INT(tide_launch(UINT32_MAX, 0, return_code, &zero, NULL), ==, -1);
}

/* --- Threads ------------------------------------------------------------ */

static int talk_in_thread(const tide_bootstrap *boot, void *context)
{
    board *seen = context;
    int mine = (int)boot->rank + 1, all[3];
    seen->pid[boot->rank] = getpid();
    CHECK_INT(allgather(boot, &mine, all, sizeof(mine)), ==, 0);
    for (int rank = 0; rank < 3; rank++)
        CHECK_INT(all[rank], ==, rank + 1);
    return boot->rank == 1 ? 1000 : (int)boot->rank;
}

/* One leaves at once: whoever waits for it hears of it. */
static int miss_one(const tide_bootstrap *boot, void *context)
{
    char byte = 1, all[3];
    (void)context;
    if (boot->rank == 2)
        return 0;
    CHECK_INT(allgather(boot, &byte, all, 1), !=, 0);
    CHECK_TEXT(tide_last_error(), "rank 2 ended");
    return 3;
}

static void test_threads(void)
{
    board *seen = make_board();
    int codes[3], zero = 0;
    CHECK_INT(tide_launch_threads(3, talk_in_thread, seen, codes), ==, 255);
    for (int rank = 0; rank < 3; rank++)
        CHECK_INT(seen->pid[rank], ==, getpid());
    CHECK_INT(codes[0], ==, 0);
    CHECK_INT(codes[1], ==, 255); /* what no exit code can be */
    CHECK_INT(codes[2], ==, 2);
    CHECK_INT(tide_launch_threads(3, miss_one, NULL, codes), ==, 3);
    CHECK_INT(codes[2], ==, 0);
    CHECK_INT(tide_launch_threads(1, return_code, &zero, NULL), ==, 0);
    CHECK_INT(tide_launch_threads(0, return_code, &zero, NULL), ==, -1);
    CHECK_TEXT(tide_last_error(), "0 threads");
    CHECK_INT(tide_launch_threads(2, NULL, NULL, NULL), ==, -1);
    CHECK_TEXT(tide_last_error(), "without a body");
    CHECK_INT(tide_launch_threads(TIDE_MAX_LOCAL + 1, return_code, &zero, NULL),
              ==, -1);
}

int main(void)
{
    test_codes();
    test_wide_codes();
    test_allgather();
    test_early_exit();
    test_killed_rank();
    test_late_rank();
    CHECK_INT(tide_launch(3, 0, give_different_sizes, NULL, NULL), ==, 0);
    test_grace();
    test_dead_parent();
    test_other_children();
    test_buffers();
    test_refusals();
    test_threads();
    return 0;
}
