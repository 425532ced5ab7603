/*
 * Memory, requests and streams of the cuda backend's callers: what is taken
 * from the arena, by hand or by an allocator's functions, and what is refused.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/scenes.h"

#include <pthread.h>

enum { ARENA = 1 << 20 };

static tide_comm *make_comm(const tide_bootstrap *bootstrap)
{
    tide_comm *comm;
    tide_comm_config config = {.backend = "cuda",
                               .timeout_ms = RANKS_FOREVER_MS,
                               .arena_bytes = ARENA};
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    return comm;
}

static tide_comm_info info_of(const tide_comm *comm)
{
    tide_comm_info info;
    CHECK_OK(tide_comm_get_info(comm, &info));
    return info;
}

/* --- Memory --------------------------------------------------------------- */

static int take_and_give(const tide_bootstrap *bootstrap, void *context)
{
    void *a, *b;
    (void)context;
    device_open((int)bootstrap->rank);
    tide_comm *comm = make_comm(bootstrap);
    CHECK_OK(tide_memory_take(comm, 1, &a));
    CHECK_OK(tide_memory_take(comm, ARENA / 2, &b));
    CHECK_INT((uintptr_t)a % 256, ==, 0);
    CHECK_INT((uintptr_t)b % 256, ==, 0);
    CHECK_INT(tide_memory_owns(comm, b, ARENA / 2), ==, 1);
    CHECK_INT(tide_memory_owns(comm, b, ARENA), ==, 0);
    CHECK_INT(tide_memory_owns(comm, NULL, 1), ==, 0);
    CHECK_INT(info_of(comm).memory_bytes, >=, ARENA / 2 + 1);
    CHECK_OK(tide_memory_give(comm, a));
    CHECK_STATUS(tide_memory_give(comm, a), TIDE_ERR_INVALID);
    CHECK_OK(tide_memory_give(comm, b));
    CHECK_INT(info_of(comm).memory_bytes, ==, 0);
    tide_comm_destroy(comm);
    device_close();
    return 0;
}

/* --- The pool ------------------------------------------------------------- */

/* Two allocators at once, as one per device would be. */
static void *use_pool(void *context)
{
    uint64_t seed = *(uint64_t *)context;
    void *taken[16] = {NULL};
    cu_context current;
    CHECK_INT(device_api()->primary_retain(&current, 0), ==, 0);
    CHECK_INT(device_api()->context_set(current), ==, 0);
    for (int i = 0; i < 2000; i++) {
        void **one = &taken[check_between(&seed, 0, TDI_COUNT(taken) - 1)];
        int64_t bytes = (int64_t)check_between(&seed, 1, ARENA / 8);
        if (*one)
            tide_pool_free(*one, bytes, 0, NULL);
        *one = *one ? NULL : tide_pool_malloc(bytes, 0, NULL);
    }
    for (size_t i = 0; i < TDI_COUNT(taken); i++)
        tide_pool_free(taken[i], 0, 0, NULL);
    CHECK_INT(device_api()->primary_release(0), ==, 0);
    return NULL;
}

static void use_pools(void)
{
    pthread_t threads[2];
    uint64_t seeds[2] = {1, 2};
    for (size_t i = 0; i < TDI_COUNT(threads); i++)
        CHECK_INT(pthread_create(&threads[i], NULL, use_pool, &seeds[i]), ==,
                  0);
    for (size_t i = 0; i < TDI_COUNT(threads); i++)
        CHECK_INT(pthread_join(threads[i], NULL), ==, 0);
}

static int fill_pool(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    device_open(0);
    CHECK(!tide_pool_malloc(64, 0, NULL)); /* none is selected */
    tide_comm *comm = make_comm(bootstrap), *other = make_comm(bootstrap);
    CHECK_OK(tide_pool_select(other));
    CHECK_OK(tide_pool_select(comm));
    CHECK(!tide_pool_malloc(0, 0, NULL));
    CHECK(!tide_pool_malloc(-1, 0, NULL));
    CHECK(!tide_pool_malloc(INT64_MAX, 0, NULL));
    void *inside = tide_pool_malloc(ARENA / 2, 0, NULL);
    CHECK_INT(tide_memory_owns(comm, inside, ARENA / 2), ==, 1);
    void *outside = tide_pool_malloc(ARENA, 0, NULL);
    CHECK(outside != NULL);
    CHECK_INT(tide_memory_owns(comm, outside, 1), ==, 0);
    CHECK_INT(info_of(comm).memory_bytes, ==, ARENA / 2);
    CHECK_INT(info_of(other).memory_bytes, ==, 0);
    tide_pool_free(inside, ARENA / 2, 0, NULL);
    tide_pool_free(outside, ARENA, 0, NULL);
    tide_pool_free(outside, ARENA, 0, NULL); /* no longer known */
    CHECK_INT(info_of(comm).memory_bytes, ==, 0);
    use_pools();
    CHECK_INT(info_of(comm).memory_bytes, ==, 0);
    inside = tide_pool_malloc(1, 0, NULL);
    tide_comm_destroy(comm);
    tide_pool_free(inside, 1, 0, NULL); /* forgotten */
    CHECK(!tide_pool_malloc(64, 0, NULL));
    tide_comm_destroy(other);
    device_close();
    return 0;
}

/* Gradients in its memory are read where they lie. */
static int reduce_there(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    call_reduction made;
    static atomic_uint turn;
    (void)context;
    device_open((int)rank);
    tide_comm *comm = make_comm(bootstrap);
    tide_group *group = call_group(comm, 100, "layer");
    while (turn != rank) /* one pool, for both ranks */
        ranks_nap(1);
    CHECK_OK(tide_pool_select(comm));
    void *memory =
        tide_pool_malloc((int64_t)call_grad_bytes(group), (int)rank, NULL);
    CHECK_INT(tide_memory_owns(comm, memory, call_grad_bytes(group)), ==, 1);
    turn++;
    for (uint32_t call = 0; call < 3; call++) {
        CHECK_OK(call_reduce_start(group, rank, call, memory, &made));
        CHECK_OK(tide_wait(made.request, TIDE_PHASE_READS));
        CHECK_OK(call_reduce_end(&made));
    }
    CHECK_INT(info_of(comm).copied_bytes, ==, 0);
    tide_pool_free(memory, 0, 0, NULL);
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_close();
    return 0;
}

/* --- Requests ------------------------------------------------------------- */

static int misuse_requests(const tide_bootstrap *bootstrap, void *context)
{
    tide_request *request, *second = (tide_request *)&request;
    void *shard, *storage[1];
    cu_stream stream;
    (void)context;
    device_open((int)bootstrap->rank);
    stream = device_stream();
    tide_comm *comm = make_comm(bootstrap);
    tide_group *group = call_group(comm, 64, "layer");
    storage[0] = device_place.take(64 * 16);
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    CHECK_STATUS(tide_all_gather_begin(group, &shard, &second),
                 TIDE_ERR_INVALID);
    CHECK(!second);
    CHECK_STATUS(tide_stream_wait(NULL, TIDE_PHASE_DONE, stream),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_stream_wait(request, TIDE_PHASE_COUNT, stream),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_stream_wait(request, TIDE_PHASE_DONE, stream),
                 TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "not started");
    CHECK_STATUS(tide_wait(request, TIDE_PHASE_FREE), TIDE_ERR_INVALID);
    CHECK_OK(tide_stream_wait(request, TIDE_PHASE_FREE, stream));
    CHECK_STATUS(tide_all_gather_start(request, NULL, stream),
                 TIDE_ERR_INVALID);
    CHECK_OK(tide_all_gather_start(request, storage, stream));
    CHECK_STATUS(tide_all_gather_start(request, storage, stream),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_group_set_options(group, &(tide_plan_options){0}),
                 TIDE_ERR_INVALID);
    for (tide_phase phase = 0; phase < TIDE_PHASE_COUNT; phase++)
        CHECK_OK(tide_stream_wait(request, phase, stream));
    CHECK_OK(tide_request_free(request));
    /* Its work may be queued yet: the plan must outlive it. */
    CHECK_OK(tide_group_set_options(group, &(tide_plan_options){0}));
    CHECK_OK(call_gather(group, bootstrap->rank, 1));
    device_place.sync();
    device_place.give(storage[0]);
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_close();
    return 0;
}

static atomic_uint begun;

/* Peers count on what was begun: to free it is the end. */
static int free_what_is_begun(const tide_bootstrap *bootstrap, void *context)
{
    tide_request *request;
    void *shard;
    (void)context;
    device_open((int)bootstrap->rank);
    tide_comm *comm = make_comm(bootstrap);
    tide_group *group = call_group(comm, 64, "layer");
    CHECK_OK(call_gather(group, bootstrap->rank, 0));
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    ranks_arrive(&begun, bootstrap->ranks);
    if (bootstrap->rank == 1)
        CHECK_STATUS(tide_request_free(request), TIDE_ERR_INVALID);
    else
        while (tide_stream_wait(request, TIDE_PHASE_FREE, device_stream()) !=
               TIDE_ERR_ABORTED)
            ranks_nap(1);
    if (bootstrap->rank != 1)
        CHECK_STATUS(tide_request_free(request), TIDE_ERR_ABORTED);
    CHECK_STATUS(call_gather(group, bootstrap->rank, 1), TIDE_ERR_ABORTED);
    device_settle();
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* The caller's context is his own, before, between and after. */
static int keep_context(const tide_bootstrap *bootstrap, void *context)
{
    cu_context current, mine;
    (void)context;
    device_open((int)bootstrap->rank);
    CHECK_INT(device_api()->context_set(NULL), ==, 0);
    tide_comm *comm = make_comm(bootstrap);
    CHECK_INT(device_api()->context_get(&current), ==, 0);
    CHECK(!current);
    CHECK_INT(device_api()->primary_retain(&mine, (int)bootstrap->rank + 2), ==,
              0);
    CHECK_INT(device_api()->context_set(mine), ==, 0);
    tide_group *group = call_group(comm, 0, "nothing");
    CHECK_OK(tide_all_gather(group, NULL, NULL));
    tide_group_free(group);
    tide_comm_destroy(comm);
    CHECK_INT(device_api()->context_get(&current), ==, 0);
    CHECK(current == mine);
    return 0;
}

/* With push landing a storage that peers cannot write is a local error, and
 * nothing has happened. */
static int push_outside(const tide_bootstrap *bootstrap, void *context)
{
    tide_plan_options push = {.coll = TIDE_ALL_GATHER, .push = 1};
    tide_request *request;
    void *shard, *inside;
    (void)context;
    device_open((int)bootstrap->rank);
    tide_comm *comm = make_comm(bootstrap);
    tide_group *group = call_group(comm, 64, "layer");
    CHECK_OK(tide_group_set_options(group, &push));
    void *outside = device_place.take(64 * 16);
    CHECK_OK(tide_memory_take(comm, 64 * 16, &inside));
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    CHECK_STATUS(tide_all_gather_start(request, &outside, device_stream()),
                 TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "parameter 0");
    CHECK_TEXT(tide_last_error(), "tide_memory_take");
    CHECK_OK(tide_all_gather_start(request, &inside, device_stream()));
    CHECK_OK(tide_wait(request, TIDE_PHASE_DONE));
    CHECK_OK(tide_request_free(request));
    CHECK_OK(tide_memory_give(comm, inside));
    tide_group_free(group);
    tide_comm_destroy(comm);
    device_place.sync();
    device_place.give(outside);
    device_close();
    return 0;
}

/* Gradients that do not fit: a status on every rank, and smaller calls go on
 * or say that they cannot. */
static int fill_the_arena(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    void *memory;
    (void)context;
    device_open((int)rank);
    tide_comm *comm = make_comm(bootstrap);
    tide_group *small = call_group(comm, 256, "small");
    CHECK_OK(call_reduce(small, rank, 0));
    CHECK_STATUS(tide_memory_take(comm, 64 << 20, &memory), TIDE_ERR_MEMORY);
    tide_group *large = call_group(comm, 1 << 20, "large");
    CHECK_STATUS(call_reduce(large, rank, 1), TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "arena");
    tide_group_free(large);
    tide_group_free(small);
    tide_comm_destroy(comm);
    return 0;
}

static const scene scenes[] = {
    {.name = "take and give", .ranks = 2, .body = take_and_give},
    {.name = "the pool", .ranks = 1, .body = fill_pool},
    {.name = "gradients of the pool", .ranks = 2, .body = reduce_there},
    {.name = "misused requests", .ranks = 2, .body = misuse_requests},
    {.name = "freed before the start", .ranks = 3, .body = free_what_is_begun},
    {.name = "push into memory out of reach", .ranks = 3, .body = push_outside},
    {.name = "the arena is full", .ranks = 2, .body = fill_the_arena},
    {.name = "the caller's context", .ranks = 2, .body = keep_context},
};

int main(void)
{
    device_use_fakes(TIDE_FAKE_FOLDER);
    scenes_play(scenes, TDI_COUNT(scenes));
    return 0;
}
