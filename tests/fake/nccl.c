/* NCCL's communicators: how they begin and end, and the order of their work. */
#include "nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_NCCL
#define FAKE_NCCL 23203 /* major * 10000 + minor * 100 + patch */
#endif

static _Thread_local char last_error[256];

nccl_result set_error(nccl_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return result;
}

nccl_result ncclGetVersion(int *version)
{
    *version = (int)fake_setting("FAKE_NCCL_VERSION", FAKE_NCCL);
    return NCCL_OK;
}

const char *ncclGetErrorString(nccl_result result)
{
    static const char *const texts[] = {
        "no error",       "unhandled cuda error", "unhandled system error",
        "internal error", "invalid argument",     "invalid usage",
        "remote error",   "in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result]
                                                     : "unknown result code";
}

const char *ncclGetLastError(nccl_comm comm)
{
    (void)comm;
    return last_error;
}

nccl_result ncclGetUniqueId(nccl_id *id)
{
    fake_world *world = fake_get_world();
    pthread_mutex_lock(&world->lock);
    memset(id, 0, sizeof(*id));
    snprintf(id->bytes, sizeof(id->bytes), "fake-%llu",
             (unsigned long long)++world->ids);
    pthread_mutex_unlock(&world->lock);
    return NCCL_OK;
}

/* --- Meeting -------------------------------------------------------------- */

static void init_meeting(meeting *at, uint32_t ranks)
{
    fake_lock_init(&at->lock, &at->changed);
    at->ranks = ranks;
}

nccl_result meet(nccl_comm comm, meeting *at)
{
    uint64_t since = 0;
    pthread_mutex_lock(&at->lock);
    uint64_t round = at->round;
    if (++at->arrived == at->ranks) {
        at->arrived = 0;
        at->round++;
        pthread_cond_broadcast(&at->changed);
    }
    while (at->round == round && !at->broken)
        fake_wait(&at->changed, &at->lock, &since,
                  "the other ranks of a communicator", comm->device);
    bool met = at->round != round;
    pthread_mutex_unlock(&at->lock);
    return met ? NCCL_OK
               : set_error(FAKE_NCCL_REMOTE, "rank %d: a rank has aborted",
                           comm->rank);
}

void break_meeting(meeting *at)
{
    pthread_mutex_lock(&at->lock);
    at->broken = true;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
}

/* --- Calls that meet ------------------------------------------------------ */

typedef struct job {
    nccl_comm comm;
    nccl_result (*call)(void *);
    _Alignas(16) char context[];
} job;

static void *run_job(void *context)
{
    job *one = context;
    nccl_result result = one->call(one->context);
    one->comm->async = result;
    free(one);
    return NULL;
}

nccl_result run_call(nccl_comm comm, nccl_result (*call)(void *), void *context,
                     size_t bytes)
{
    pthread_t thread;
    if (comm->blocking)
        return call(context);
    job *one = calloc(1, sizeof(*one) + bytes);
    one->comm = comm;
    one->call = call;
    memcpy(one->context, context, bytes);
    comm->async = NCCL_IN_PROGRESS;
    if (pthread_create(&thread, NULL, run_job, one))
        fake_fail("no thread for a call of NCCL");
    pthread_detach(thread);
    return NCCL_IN_PROGRESS;
}

/* A handle that is no communicator, or that still has something going on. */
nccl_result check_comm(nccl_comm comm, const char *call)
{
    if (!comm || comm->state != ALIVE)
        fake_fail("%s on %p, which is %s", call, (void *)comm,
                  comm && comm->state == GONE ? "a destroyed communicator"
                                              : "no communicator");
    if (comm->async == NCCL_IN_PROGRESS)
        return set_error(FAKE_NCCL_ARGUMENT,
                         "%s before the call before it is complete", call);
    if (comm->async)
        return set_error(comm->async, "%s after an error", call);
    return NCCL_OK;
}

/* --- Creation ------------------------------------------------------------- */

static shared *make_shared(const nccl_id *id, int ranks)
{
    shared *made = fake_shared_alloc(sizeof(*made));
    made->id = *id;
    made->ranks = (uint32_t)ranks;
    init_meeting(&made->host, made->ranks);
    init_meeting(&made->streams, made->ranks);
    for (int r = 0; r < ranks; r++)
        fake_lock_init(&made->members[r].lock, &made->members[r].changed);
    made->next = fake_get_world()->comms;
    fake_get_world()->comms = made;
    return made;
}

static shared *join(const nccl_id *id, int ranks)
{
    fake_world *world = fake_get_world();
    pthread_mutex_lock(&world->lock);
    shared *one = world->comms;
    while (one && memcmp(id, &one->id, sizeof(*id)))
        one = one->next;
    if (!one)
        one = make_shared(id, ranks);
    if (one->ranks != (uint32_t)ranks || ++one->joined > one->ranks)
        fake_fail("ncclCommInitRankConfig: %d ranks, and %u have come of %u",
                  ranks, one->joined, one->ranks);
    pthread_mutex_unlock(&world->lock);
    return one;
}

static void init_teams(nccl_comm comm)
{
    int64_t size = fake_setting("FAKE_LSA_SIZE", comm->ranks);
    if (size < 1 || comm->ranks % size)
        size = comm->ranks;
    comm->lsa_size = (int)size;
    comm->has_multicast = size > 1 && fake_setting("FAKE_MULTICAST", 1);
    if (comm->rank % comm->lsa_size == 0)
        init_meeting(&comm->all->team[comm->rank], (uint32_t)size);
}

/* Ranks that share a device are refused unless they are told to, and have no
 * multicast then. */
static nccl_result check_devices(nccl_comm comm)
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (int r = 0; r < comm->ranks; r++) {
        for (int s = 0; s < r; s++) {
            if (comm->all->members[r].device != comm->all->members[s].device)
                continue;
            comm->has_multicast = false;
            if (!allowed || strcmp(allowed, "1"))
                return set_error(FAKE_NCCL_USAGE,
                                 "Duplicate GPU detected : rank %d and rank %d "
                                 "both on CUDA device %d",
                                 r, s, comm->all->members[r].device);
        }
    }
    return NCCL_OK;
}

static nccl_result init_now(void *context)
{
    nccl_comm comm = *(nccl_comm *)context;
    member *me = &comm->all->members[comm->rank];
    if (fake_fault("init_hangs", comm->rank))
        while (!comm->all->host.broken)
            fake_sleep_us(1000);
    if (fake_fault("init_late", comm->rank))
        fake_sleep_us((uint64_t)fake_setting("FAKE_LATE_MS", 1500) * 1000);
    if (fake_fault("init_fails", comm->rank))
        return set_error(FAKE_NCCL_SYSTEM, "rank %d: the fake fails",
                         comm->rank);
    me->here = true;
    me->device = comm->device;
    nccl_result result = meet(comm, &comm->all->host);
    return result ? result : check_devices(comm);
}

/* The config is one of api.h's: a newer library takes it by its version. */
static void check_config(const nccl_config *config)
{
    if (config->size != sizeof(*config) || config->magic != 0xcafebeef ||
        config->version > FAKE_NCCL)
        fake_fail("ncclConfig_t of %zu bytes, magic %x, version %u",
                  config->size, config->magic, config->version);
}

static nccl_comm make_comm(void)
{
    static nccl_comm all; /* keeps them reachable */
    nccl_comm made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    pthread_mutex_lock(&fake_get_world()->lock);
    made->next = all;
    all = made;
    pthread_mutex_unlock(&fake_get_world()->lock);
    return made;
}

nccl_result ncclCommInitRankConfig(nccl_comm *comm, int ranks, nccl_id id,
                                   int rank, nccl_config *config)
{
    cu_device device = 0;
    *comm = NULL;
    if (ranks < 1 || ranks > FAKE_TEAM || rank < 0 || rank >= ranks)
        return set_error(FAKE_NCCL_ARGUMENT, "rank %d of %d", rank, ranks);
    if (in_group())
        fake_fail("ncclCommInitRankConfig in a group: not in the fake");
    if (cuCtxGetDevice(&device))
        device = 0; /* as the CUDA runtime does */
    nccl_comm made = make_comm();
    made->rank = rank;
    made->ranks = ranks;
    made->device = device;
    made->blocking = true;
    made->has_rma = !fake_fault("no_host_rma", rank);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    if (config) {
        check_config(config);
        made->blocking = config->blocking != 0;
    }
    made->all = join(&id, ranks);
    init_teams(made);
    *comm = made;
    nccl_result result = run_call(made, init_now, &made, sizeof(made));
    if (result && result != NCCL_IN_PROGRESS) {
        made->state = GONE;
        *comm = NULL;
    }
    return result;
}

nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result)
{
    if (!comm || comm->state != ALIVE)
        check_comm(comm, "ncclCommGetAsyncError");
    *result = comm->async;
    return NCCL_OK;
}

/* --- The end -------------------------------------------------------------- */

static bool is_finished(nccl_comm comm)
{
    pthread_mutex_lock(&comm->lock);
    bool finished = comm->finished == comm->issued;
    pthread_mutex_unlock(&comm->lock);
    return finished;
}

/*
 * NCCL waits here for its streams, which wait for the caller's: what hangs
 * there hangs here. An abort ends kernels and proxies, but no stream that
 * waits for a value.
 */
static void finish_work(nccl_comm comm, const char *call)
{
    int64_t limit = fake_setting("FAKE_ABORT_MS", 3000);
    for (int64_t ms = 0; !is_finished(comm); ms++) {
        if (ms >= limit)
            fake_fail("%s of rank %d hangs: %llu of its calls never end", call,
                      comm->rank,
                      (unsigned long long)(comm->issued - comm->finished));
        fake_sleep_us(1000);
    }
}

static void check_leftover(nccl_comm comm)
{
    member *me = &comm->all->members[comm->rank];
    pthread_mutex_lock(&me->lock);
    for (int r = 0; r < comm->ranks; r++)
        if (me->arrived[r] != comm->taken[r])
            fake_fail("rank %d ends with %llu signals of rank %d, and waited "
                      "for %llu",
                      comm->rank, (unsigned long long)me->arrived[r], r,
                      (unsigned long long)comm->taken[r]);
    pthread_mutex_unlock(&me->lock);
}

/* The shared part stays for the peers; it is small. */
static nccl_result end_comm(nccl_comm comm)
{
    drop_windows(comm);
    comm->all->members[comm->rank].here = false;
    comm->state = GONE;
    return NCCL_OK;
}

nccl_result ncclCommDestroy(nccl_comm comm)
{
    if (!comm)
        return NCCL_OK;
    if (comm->state != ALIVE)
        check_comm(comm, "ncclCommDestroy");
    finish_work(comm, "ncclCommDestroy");
    if (fake_setting("FAKE_CHECK_LEFTOVER", 0))
        check_leftover(comm);
    return end_comm(comm);
}

nccl_result ncclCommAbort(nccl_comm comm)
{
    if (!comm)
        return NCCL_OK;
    if (comm->state != ALIVE)
        check_comm(comm, "ncclCommAbort");
    comm->aborted = true;
    break_meeting(&comm->all->host);
    break_meeting(&comm->all->team[comm->rank - comm->rank % comm->lsa_size]);
    break_meeting(&comm->all->streams);
    while (comm->async == NCCL_IN_PROGRESS)
        fake_sleep_us(1000);
    if (fake_setting("FAKE_ABORT_RELEASES", 0)) {
        member *me = &comm->all->members[comm->rank];
        pthread_mutex_lock(&me->lock);
        pthread_cond_broadcast(&me->changed);
        pthread_mutex_unlock(&me->lock);
    }
    finish_work(comm, "ncclCommAbort");
    return end_comm(comm);
}

/* --- The order of work ---------------------------------------------------- */

static _Thread_local struct {
    int depth;
    comm_work *first;
    comm_work *last;
} group;

bool in_group(void)
{
    return group.depth > 0;
}

static void run_in_order(fake_work *work)
{
    comm_work *one = (comm_work *)work;
    nccl_comm comm = one->comm;
    uint64_t since = 0;
    pthread_mutex_lock(&comm->lock);
    while (comm->finished != one->ticket)
        fake_wait(&comm->changed, &comm->lock, &since,
                  "the calls before on its communicator", comm->device);
    pthread_mutex_unlock(&comm->lock);
    one->run(one);
    pthread_mutex_lock(&comm->lock);
    comm->finished++;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void issue(comm_work *work)
{
    nccl_comm comm = work->comm;
    pthread_mutex_lock(&comm->lock);
    work->ticket = comm->issued++;
    fake_queue_work(work->work.stream, &work->work);
    pthread_mutex_unlock(&comm->lock);
}

void queue_comm_work(nccl_comm comm, comm_work *work, cu_stream stream)
{
    work->comm = comm;
    work->work.run = run_in_order;
    work->work.stream = fake_stream(stream, comm->device, "a call of NCCL");
    if (fake_device_of(work->work.stream) != comm->device)
        fake_fail("a call of NCCL on device %d with a stream of device %d",
                  comm->device, fake_device_of(work->work.stream));
    if (!group.depth) {
        issue(work);
        return;
    }
    *(group.first ? (comm_work **)&group.last->work.next : &group.first) = work;
    group.last = work;
}

nccl_result ncclGroupStart(void)
{
    group.depth++;
    return NCCL_OK;
}

nccl_result ncclGroupEnd(void)
{
    if (!group.depth)
        return set_error(FAKE_NCCL_USAGE, "ncclGroupEnd without a start");
    if (--group.depth)
        return NCCL_OK;
    for (comm_work *work = group.first; work;) {
        comm_work *next = (comm_work *)work->work.next;
        work->work.next = NULL;
        issue(work);
        work = next;
    }
    group.first = group.last = NULL;
    return NCCL_OK;
}
