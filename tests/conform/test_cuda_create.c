/*
 * Creating a communicator on the cuda backend when something is missing, too
 * old, refused, or one rank does not do its part: every rank gets a status in
 * time, somebody names the rank and what it was, and what can be done without
 * is done without on all ranks alike.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/scenes.h"

#include <sys/mman.h>
#include <unistd.h>

typedef struct refusal {
    tide_status status;
    const char *all[4];   /* every rank's message has these */
    const char *named[2]; /* at least one rank's has these */
    uint32_t local_size;
    bool late; /* seen at the deadline only */
} refusal;

static atomic_int named;

static bool has_all(const char *const *texts, size_t count)
{
    bool has = true;
    for (size_t i = 0; i < count && texts[i]; i++)
        has = has && strstr(tide_last_error(), texts[i]);
    return has;
}

static int refuse(const tide_bootstrap *bootstrap, void *context)
{
    const refusal *r = context;
    tide_comm *comm = (tide_comm *)&comm;
    tide_comm_config config = {.backend = "cuda",
                               .local_size = r->local_size,
                               .timeout_ms = RANKS_DEADLINE_MS,
                               .arena_bytes = 4 << 20};
    uint64_t start = tdi_now_ms();
    CHECK_STATUS(tide_comm_create(bootstrap, &config, &comm), r->status);
    CHECK(!comm);
    uint64_t took = tdi_now_ms() - start;
    CHECK_INT(took, <, 2 * RANKS_DEADLINE_MS + RANKS_SLACK_MS);
    CHECK(!r->late || took >= RANKS_DEADLINE_MS);
    for (size_t i = 0; i < TDI_COUNT(r->all) && r->all[i]; i++)
        CHECK_TEXT(tide_last_error(), r->all[i]);
    named += has_all(r->named, TDI_COUNT(r->named));
    return 0;
}

/* The rank comes after all, when the others have given up: what they left
 * behind goes on then. */
static int refuse_and_stay(const tide_bootstrap *bootstrap, void *context)
{
    int code = refuse(bootstrap, context);
    ranks_nap(2 * RANKS_DEADLINE_MS);
    return code;
}

static void somebody_named_it(void *context)
{
    (void)context;
    CHECK_INT(named, >=, 1);
}

/* Without multicast on one rank nobody has it, and calls are right. */
static int do_without_multicast(const tide_bootstrap *bootstrap, void *context)
{
    tide_comm_info info;
    tide_comm *comm;
    tide_comm_config config = {.backend = "cuda",
                               .timeout_ms = RANKS_FOREVER_MS,
                               .arena_bytes = 4 << 20};
    tide_plan_options push = {.coll = TIDE_ALL_GATHER, .push = 1};
    (void)context;
    device_open((int)bootstrap->rank);
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    CHECK_OK(tide_comm_get_info(comm, &info));
    CHECK_INT(info.multicast, ==, 0);
    tide_group *group = call_group(comm, 257, "layer");
    CHECK_STATUS(tide_group_set_options(group, &push), TIDE_ERR_UNSUPPORTED);
    CHECK_TEXT(tide_last_error(), "multicast");
    for (uint32_t call = 0; call < 4; call++) {
        CHECK_OK(call_gather(group, bootstrap->rank, call));
        CHECK_OK(call_reduce(group, bootstrap->rank, call));
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_close();
    return 0;
}

/* One window a communicator and allocation, all gone at the end; NCCL is used
 * for the first time by tide; arenas are rounded; the last settings work. */
static int come_and_go(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t local_size = *(uint32_t *)context;
    device_open((int)bootstrap->rank);
    for (uint32_t round = 0; round < 20; round++) {
        tide_comm *comm;
        tide_comm_config config = {.backend = "cuda",
                                   .local_size = local_size,
                                   .timeout_ms = RANKS_FOREVER_MS,
                                   .arena_bytes = (1 << 20) + round * 333};
        CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
        tide_group *group = call_group(comm, 65, "layer");
        CHECK_OK(call_gather(group, bootstrap->rank, round));
        CHECK_OK(call_reduce(group, bootstrap->rank, round));
        tide_group_free(group);
        tide_comm_destroy(comm);
    }
    device_close();
    return 0;
}

/* --- Hardware queues ------------------------------------------------------ */

typedef struct warning {
    const char *texts[3]; /* of one line on stderr; none: no line */
} warning;

/* What the process has written to the file in place of stderr. */
static void check_warning(const warning *w, int file)
{
    char text[1024] = "";
    CHECK_INT(pread(file, text, sizeof(text) - 1, 0), >=, 0);
    for (size_t i = 0; i < TDI_COUNT(w->texts) && w->texts[i]; i++)
        CHECK_TEXT(text, w->texts[i]);
    const char *line = strchr(text, '\n');
    CHECK_INT(strlen(text), ==, w->texts[0] ? line + 1 - text : 0);
}

/* Too few of them are said at creation, once. */
static int warn(const tide_bootstrap *bootstrap, void *context)
{
    int file = memfd_create("stderr", 0), kept = dup(STDERR_FILENO);
    tide_comm *comm;
    tide_comm_config config = {.backend = "cuda",
                               .timeout_ms = RANKS_FOREVER_MS,
                               .arena_bytes = 1 << 20};
    if (!bootstrap->rank)
        CHECK_INT(dup2(file, STDERR_FILENO), ==, STDERR_FILENO);
    tide_status status = tide_comm_create(bootstrap, &config, &comm);
    if (!bootstrap->rank)
        CHECK_INT(dup2(kept, STDERR_FILENO), ==, STDERR_FILENO);
    CHECK_OK(status);
    if (!bootstrap->rank)
        check_warning(context, file);
    tide_comm_destroy(comm);
    close(file);
    close(kept);
    return 0;
}

#define WARNING(...)                                                           \
    (void *)&(const warning)                                                   \
    {                                                                          \
        .texts = {__VA_ARGS__}                                                 \
    }
#define REFUSAL(...)                                                           \
    (void *)&(const refusal)                                                   \
    {                                                                          \
        __VA_ARGS__                                                            \
    }

static const scene scenes[] = {
    /* What is loaded. */
    {.name = "no NCCL",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"libnccl.so.2 is not found", "pip install"}),
     .settings = {"TIDE_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}},
    {.name = "no driver",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED, .all = {"CUDA device"}),
     .settings = {"FAKE_FAULT", "no_device"}},
    {.name = "NCCL 2.27",
     .ranks = 2,
     .body = refuse,
     .context =
         REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                 .all = {"NCCL 2.27.3", "2.30 is needed", "pip install"}),
     .settings = {"TIDE_NCCL_LIBRARY", TIDE_FAKE_FOLDER "/27/libnccl.so.2"}},
    {.name = "NCCL 2.28",
     .ranks = 2,
     .body = refuse,
     .context =
         REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                 .all = {"NCCL 2.28.7", "2.30 is needed", "pip install"}),
     .settings = {"TIDE_NCCL_LIBRARY", TIDE_FAKE_FOLDER "/28/libnccl.so.2"}},
    {.name = "NCCL 2.29",
     .ranks = 2,
     .body = refuse,
     .context =
         REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                 .all = {"NCCL 2.29.7", "2.30 is needed", "pip install"}),
     .settings = {"FAKE_NCCL_VERSION", "22907"}},
    {.name = "NCCL 2.30",
     .ranks = 2,
     .body = come_and_go,
     .context = &(uint32_t){2},
     .settings = {"FAKE_NCCL_VERSION", "23007"}},
    {.name = "functions missing",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"there is no ncclCommQueryProperties"}),
     .settings = {"TIDE_NCCL_LIBRARY", TIDE_FAKE_FOLDER "/28/libnccl.so.2",
                  "FAKE_NCCL_VERSION", "23007"}},
    {.name = "old driver",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"CUDA 12.4", "12.8 is needed", "install"}),
     .settings = {"FAKE_FAULT", "old_driver"}},
    /* The device. */
    {.name = "old device on rank 1",
     .ranks = 3,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"rank 1", "device 1", "capability 8", "9.0"}),
     .settings = {"FAKE_FAULT", "old_device", "FAKE_FAULT_RANK", "1"}},
    {.name = "no memory operations on rank 2",
     .ranks = 3,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"rank 2", "device 2", "memory operations"}),
     .settings = {"FAKE_FAULT", "no_mem_ops", "FAKE_FAULT_RANK", "2"}},
    {.name = "one device for two ranks",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_SYSTEM,
                        .all = {"rank 0", "Duplicate GPU detected"}),
     .settings = {"FAKE_DEVICES", "1"}},
    {.name = "no device memory on rank 1",
     .ranks = 3,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_MEMORY,
                        .all = {"rank 1", "arena", "TIDE_ARENA_MIB"}),
     .settings = {"FAKE_FAULT", "mem_alloc_fails", "FAKE_FAULT_RANK", "1"}},
    /* NCCL's communicators and windows. */
    {.name = "communicators fail on rank 1",
     .ranks = 3,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_SYSTEM, .all = {"rank 1"},
                        .named = {"rank 1", "ncclCommInitRankConfig"}),
     .settings = {"FAKE_FAULT", "init_fails", "FAKE_FAULT_RANK", "1"}},
    {.name = "communicators hang on rank 2",
     .ranks = 3,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .late = true,
                        .named = {"rank ", "making NCCL communicators"}),
     .settings = {"FAKE_FAULT", "init_hangs", "FAKE_FAULT_RANK", "2"}},
    {.name = "communicators late on rank 2",
     .ranks = 3,
     .body = refuse_and_stay,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .late = true,
                        .all = {"making NCCL communicators"}),
     .settings = {"FAKE_FAULT", "init_late", "FAKE_FAULT_RANK", "2"}},
    {.name = "registration late on rank 1",
     .ranks = 3,
     .body = refuse_and_stay,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .late = true,
                        .all = {"registering the arena"}),
     .settings = {"FAKE_FAULT", "register_late", "FAKE_FAULT_RANK", "1"}},
    {.name = "registration skipped by rank 1",
     .ranks = 2,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .late = true,
                        .named = {"rank ", "registering the arena"}),
     .settings = {"FAKE_FAULT", "register_hangs", "FAKE_FAULT_RANK", "1"}},
    {.name = "registration refused on rank 1",
     .ranks = 3,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_SYSTEM, .late = true,
                        .named = {"rank 1", "ncclCommWindowRegister"}),
     .settings = {"FAKE_FAULT", "register_refused", "FAKE_FAULT_RANK", "1"}},
    {.name = "graphs are refused on rank 1",
     .ranks = 3,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_MEMORY, .all = {"rank 1"},
                        .named = {"cuGraphLaunch"}),
     .settings = {"FAKE_FAULT", "no_graph_launches", "FAKE_FAULT_RANK", "1",
                  "FAKE_FAULT_AFTER", "9", "TIDE_SUM_GRAPHS", "1"}},
    {.name = "no symmetric memory",
     .ranks = 3,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"rank 0", "no symmetric memory"}),
     .settings = {"FAKE_FAULT", "no_symmetric"}},
    {.name = "null window",
     .ranks = 3,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED,
                        .all = {"rank 0", "gave no window"}),
     .settings = {"FAKE_FAULT", "null_window"}},
    {.name = "null window on rank 1",
     .ranks = 3,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED, .late = true,
                        .named = {"rank 1", "gave no window"}),
     .settings = {"FAKE_FAULT", "null_window", "FAKE_FAULT_RANK", "1"}},
    {.name = "no puts between nodes",
     .ranks = 2,
     .body = refuse,
     .context = REFUSAL(.status = TIDE_ERR_UNSUPPORTED, .local_size = 1,
                        .all = {"rank 1", "hostRmaSupport"}),
     .settings = {"FAKE_FAULT", "no_host_rma", "FAKE_FAULT_RANK", "1"}},
    {.name = "node out of reach",
     .ranks = 4,
     .body = refuse,
     .context =
         REFUSAL(.status = TIDE_ERR_UNSUPPORTED, .local_size = 4,
                 .all = {"rank 0", "not within reach", "TIDE_LOCAL_SIZE"}),
     .settings = {"FAKE_LSA_SIZE", "2"}},
    {.name = "streams late on rank 1",
     .ranks = 3,
     .body = refuse_and_stay,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .late = true,
                        .all = {"rank 1", "trying the streams"}),
     .settings = {"FAKE_FAULT", "write_late", "FAKE_FAULT_RANK", "1"}},
    {.name = "rail of rank 1 is dead",
     .ranks = 2,
     .body = refuse,
     .after = somebody_named_it,
     .context = REFUSAL(.status = TIDE_ERR_PEER, .local_size = 1, .late = true,
                        .named = {"rank ", "trying NCCL's rails"}),
     .settings = {"FAKE_FAULT", "signal_lost", "FAKE_FAULT_RANK", "1"}},
    /* What can be done without. */
    {.name = "multicast fails on rank 1",
     .ranks = 3,
     .body = do_without_multicast,
     .settings = {"FAKE_FAULT", "multicast_fails", "FAKE_FAULT_RANK", "1"}},
    {.name = "no multicast address on rank 2",
     .ranks = 3,
     .body = do_without_multicast,
     .settings = {"FAKE_FAULT", "multicast_null", "FAKE_FAULT_RANK", "2"}},
    {.name = "no multicast on rank 2",
     .ranks = 3,
     .body = do_without_multicast,
     .settings = {"FAKE_FAULT", "no_multicast", "FAKE_FAULT_RANK", "2"}},
    /* Hardware queues: three streams a rank, the caller's among them; six
     * where the ranks of a node have several devices. */
    {.name = "one hardware queue",
     .ranks = 2,
     .body = warn,
     .context = WARNING("WARNING", "CUDA_DEVICE_MAX_CONNECTIONS=1", "unset"),
     .settings = {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}},
    {.name = "few hardware queues",
     .ranks = 4,
     .body = warn,
     .context = WARNING("4 ranks of this process", "12 streams", "8 hardware"),
     .settings = {"FAKE_DEVICES", "1", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "8"}},
    {.name = "hardware queues enough",
     .ranks = 4,
     .body = warn,
     .context = WARNING(NULL),
     .settings = {"FAKE_DEVICES", "1", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "12"}},
    {.name = "hardware queues of several devices",
     .ranks = 4,
     .body = warn,
     .context = WARNING(NULL),
     .settings = {"FAKE_DEVICES", "2", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "12"}},
    {.name = "few hardware queues of several devices",
     .ranks = 4,
     .body = warn,
     .context = WARNING("2 ranks of this process", "6 streams", "5 hardware"),
     .settings = {"FAKE_DEVICES", "2", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "5"}},
    {.name = "hardware queues enough if lanes share streams",
     .ranks = 4,
     .body = warn,
     .context = WARNING(NULL),
     .settings = {"FAKE_DEVICES", "2", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "6"}},
    {.name = "come and go",
     .ranks = 3,
     .body = come_and_go,
     .context = &(uint32_t){3}},
    {.name = "come and go over rails",
     .ranks = 4,
     .body = come_and_go,
     .context = &(uint32_t){2}},
};

int main(void)
{
    device_use_fakes(TIDE_FAKE_FOLDER);
    scenes_play(scenes, TDI_COUNT(scenes));
    return 0;
}
