/* tide_comm_abort, from another thread and from the same one. */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

#include <pthread.h>

typedef struct scene {
    uint32_t aborter;
    bool by_thread;
    bool reduce;
    atomic_uint blocked; /* ranks about to wait */
    atomic_uint over;
    _Atomic uint64_t when_ms;
} scene;

typedef struct bomb {
    scene *scene;
    tide_comm *comm;
} bomb;

/* Gives every rank time to be asleep on its doorbell. */
static void *abort_later(void *context)
{
    bomb *b = context;
    while (b->scene->blocked < 3)
        ranks_nap(1);
    ranks_nap(100);
    b->scene->when_ms = tdi_now_ms();
    tide_comm_abort(b->comm);
    return NULL;
}

static tide_status block(scene *s, tide_group *group, uint32_t rank)
{
    s->blocked++;
    return s->reduce ? call_reduce(group, rank, 0)
                     : call_gather(group, rank, 0);
}

/* Rank 3 never calls, so all others wait for it, and far from the deadline. */
static void run_rank(scene *s, tide_comm *comm, tide_group *group,
                     uint32_t rank)
{
    pthread_t thread;
    bomb b = {s, comm};
    bool mine = rank == s->aborter;
    if (mine && s->by_thread)
        CHECK_INT(pthread_create(&thread, NULL, abort_later, &b), ==, 0);
    else if (mine)
        abort_later(&b);
    if (rank != 3) {
        CHECK_STATUS(block(s, group, rank), TIDE_ERR_ABORTED);
        CHECK_INT(tdi_now_ms() - s->when_ms, <, RANKS_SLACK_MS);
    }
    if (mine && s->by_thread)
        CHECK_INT(pthread_join(thread, NULL), ==, 0);
    ranks_arrive(&s->over, 4);
}

static void check_later_calls(tide_comm *comm, tide_group *group, uint32_t rank)
{
    void *shard;
    tide_request *request;
    tide_slot *slot;
    CHECK_STATUS(call_gather(group, rank, 1), TIDE_ERR_ABORTED);
    CHECK_STATUS(call_reduce(group, rank, 1), TIDE_ERR_ABORTED);
    CHECK_STATUS(tide_all_gather_begin(group, &shard, &request),
                 TIDE_ERR_ABORTED);
    CHECK_TEXT(tide_last_error(), "abort");
    /* What is local goes on: a training script must be able to clean up. */
    CHECK_OK(tide_slot_create(comm, 4096, &slot));
    CHECK_OK(tide_slot_occupy(slot));
    CHECK_OK(tide_slot_vacate(slot));
    tide_slot_free(slot);
    tide_comm_abort(comm); /* once more changes nothing */
    tide_comm_abort(NULL);
}

static int run_scene(const tide_bootstrap *bootstrap, void *context)
{
    scene *s = context;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 512, "layer");
    run_rank(s, comm, group, bootstrap->rank);
    check_later_calls(comm, group, bootstrap->rank);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

static void play(scene from)
{
    scene *s = ranks_share(sizeof(*s));
    *s = from;
    ranks_run(4, run_scene, s);
    ranks_unshare(s, sizeof(*s));
}

/* Every state of a request when the communicator is aborted. */
static int abort_requests(const tide_bootstrap *bootstrap, void *context)
{
    atomic_uint *arrived = context;
    void *shard, *storage[1];
    tide_request *begun;
    call_reduction reduction;
    int reached;
    tide_comm *comm = ranks_comm(bootstrap, 1, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 64, "layer");
    storage[0] =
        malloc(tide_layout_param(tide_group_layout(group), 0)->storage_bytes);
    CHECK_OK(call_gather(group, bootstrap->rank, 0));
    CHECK_OK(tide_all_gather_begin(group, &shard, &begun));
    CHECK_OK(call_reduce_start(group, bootstrap->rank, 1, NULL, &reduction));
    ranks_arrive(arrived, 2);
    tide_comm_abort(comm);
    CHECK_STATUS(tide_all_gather_start(begun, storage, NULL), TIDE_ERR_ABORTED);
    CHECK_STATUS(tide_wait(begun, TIDE_PHASE_DONE), TIDE_ERR_ABORTED);
    CHECK_STATUS(tide_test(begun, TIDE_PHASE_DONE, &reached), TIDE_ERR_ABORTED);
    CHECK_STATUS(tide_request_free(begun), TIDE_ERR_ABORTED);
    call_reduce_end(&reduction); /* done already, or aborted */
    CHECK_STATUS(call_gather(group, bootstrap->rank, 2), TIDE_ERR_ABORTED);
    free(storage[0]);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

int main(void)
{
    for (uint32_t aborter = 0; aborter < 4; aborter += 1)
        for (int reduce = 0; reduce < 2; reduce++)
            play((scene){.aborter = aborter,
                         .by_thread = aborter != 3,
                         .reduce = reduce});
    atomic_uint *arrived = ranks_share(sizeof(*arrived));
    ranks_run(2, abort_requests, arrived);
    ranks_unshare(arrived, sizeof(*arrived));
    return 0;
}
