/* Forks, hurts and joins the ranks of a fault test. */
#include "ranks.h"

#include "base/util.h"
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void ranks_nap(uint32_t ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
}

void ranks_arrive(atomic_uint *arrived, uint32_t count)
{
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < count)
        ranks_nap(1);
}

void *ranks_share(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

void ranks_unshare(void *memory, size_t bytes)
{
    if (memory)
        CHECK_INT(munmap(memory, bytes), ==, 0);
}

/* --- Traces ------------------------------------------------------------- */

static int count_entries(const char *path, const char *part)
{
    int count = 0;
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += strstr(entry->d_name, part) != NULL;
    closedir(folder);
    return count;
}

ranks_traces ranks_count_traces(void)
{
    char line[512];
    ranks_traces traces = {.descriptors = count_entries("/proc/self/fd", "")};
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps)) {
        traces.maps++;
        traces.segments += strstr(line, "memfd:tide") != NULL;
    }
    fclose(maps);
    return traces;
}

/* Maps may come and go with malloc, segments and descriptors may not. */
static void check_traces(uint32_t rank, ranks_traces before)
{
    ranks_traces after = ranks_count_traces();
    if (after.descriptors != before.descriptors || after.segments)
        CHECK_FAIL("rank %u: %d descriptors before, %d after, %d segments",
                   rank, before.descriptors, after.descriptors, after.segments);
}

/* Ranks end by _exit, so the leak sanitizer, where built in, is asked here. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static void check_heap(uint32_t rank)
{
    if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
        CHECK_FAIL("rank %u: memory is lost", rank);
}

/* --- Life --------------------------------------------------------------- */

static void run_rank(const ranks *run, uint32_t rank, uint32_t bootstrap_ms,
                     ranks_body *body, void *context)
{
    tdi_exchange_end end = {
        .exchange = run->exchange, .rank = rank, .timeout_ms = bootstrap_ms};
    tide_bootstrap bootstrap = {.rank = rank,
                                .ranks = run->count,
                                .allgather = tdi_exchange_allgather,
                                .context = &end};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ranks_traces before = ranks_count_traces();
    int code = body(&bootstrap, context);
    if (!code) {
        check_traces(rank, before);
        check_heap(rank);
    }
    fflush(NULL);
    _exit(code);
}

ranks ranks_start(uint32_t count, uint32_t bootstrap_ms, ranks_body *body,
                  void *context)
{
    ranks run = {.count = count};
    CHECK_INT(count, <=, RANKS_MAX);
    CHECK_OK(tdi_exchange_create(count, &run.exchange));
    fflush(NULL);
    for (uint32_t r = 0; r < count; r++) {
        run.pid[r] = fork();
        CHECK_INT(run.pid[r], >=, 0);
        if (!run.pid[r])
            run_rank(&run, r, bootstrap_ms, body, context);
    }
    return run;
}

void ranks_signal(const ranks *run, uint32_t rank, int signal)
{
    CHECK_INT(kill(run->pid[rank], signal), ==, 0);
}

/* Reaps those that have ended; returns how many still run. */
static uint32_t reap(ranks *run)
{
    uint32_t running = 0;
    for (uint32_t r = 0; r < run->count; r++) {
        int state;
        if (!run->pid[r])
            continue;
        if (waitpid(run->pid[r], &state, WNOHANG) != run->pid[r]) {
            running++;
            continue;
        }
        run->pid[r] = 0;
        run->code[r] =
            WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
        tdi_exchange_end_rank(run->exchange, r);
    }
    return running;
}

static void kill_all(ranks *run)
{
    for (uint32_t r = 0; r < run->count; r++) {
        if (!run->pid[r])
            continue;
        fprintf(stderr, "rank %u has not ended\n", r);
        kill(run->pid[r], SIGKILL);
        waitpid(run->pid[r], NULL, 0);
    }
}

void ranks_join(ranks *run, uint64_t bound_ms)
{
    uint64_t deadline = tdi_now_ms() + bound_ms;
    while (reap(run)) {
        if (tdi_now_ms() >= deadline) {
            kill_all(run);
            CHECK_FAIL("ranks still ran after %" PRIu64 " ms", bound_ms);
        }
        ranks_nap(1);
    }
    tdi_exchange_free(run->exchange);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), ==, -1);
    CHECK_INT(errno, ==, ECHILD);
    CHECK_INT(count_entries("/dev/shm", "tide"), ==, 0);
    CHECK_INT(ranks_count_traces().segments, ==, 0);
}

void ranks_check_codes(const ranks *run, uint32_t hurt, int code)
{
    for (uint32_t r = 0; r < run->count; r++)
        if (run->code[r] != (r == hurt ? code : 0))
            CHECK_FAIL("rank %u ended with %d, not %d", r, run->code[r],
                       r == hurt ? code : 0);
}

void ranks_run(uint32_t count, ranks_body *body, void *context)
{
    ranks run = ranks_start(count, RANKS_FOREVER_MS, body, context);
    ranks_join(&run, RANKS_FOREVER_MS);
    ranks_check_codes(&run, 0, 0);
}

tide_comm *ranks_comm(const tide_bootstrap *bootstrap, uint32_t local_size,
                      uint32_t timeout_ms)
{
    tide_comm *comm;
    tide_comm_config config = {.local_size = local_size,
                               .timeout_ms = timeout_ms};
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    return comm;
}
