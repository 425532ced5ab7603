/*
 * Nothing is left: a thousand communicators in a row, two at once, groups and
 * requests given up in any state, ranks that leave right after their last
 * call.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

enum { CYCLES = 1000 };

/* Descriptors and segments must be those of the first cycle, maps nearly so
 * (malloc has some); a tenth of the cycles work, a tenth abort. */
static int create_often(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    ranks_traces first = {0};
    uint32_t rank = bootstrap->rank;
    for (uint32_t cycle = 0; cycle < CYCLES; cycle++) {
        tide_comm *comm = ranks_comm(bootstrap, 1, RANKS_FOREVER_MS);
        if (cycle % 10 == 0) {
            tide_group *group = call_group(comm, 99, "layer");
            CHECK_OK(call_gather(group, rank, cycle));
            CHECK_OK(call_reduce_slot(comm, group, rank, cycle));
            tide_group_free(group);
        }
        if (cycle % 10 == 5)
            tide_comm_abort(comm);
        tide_comm_destroy(comm);
        ranks_traces now = ranks_count_traces();
        if (cycle == 20)
            first = now;
        if (cycle <= 20)
            continue;
        CHECK_INT(now.descriptors, ==, first.descriptors);
        CHECK_INT(now.segments, ==, 0);
        CHECK_INT(now.maps, <=, first.maps + 8);
    }
    return 0;
}

/* Independent: other topologies, other orders, and one may be aborted. */
static int use_two(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    tide_comm *a = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_comm *b = ranks_comm(bootstrap, 1, RANKS_FOREVER_MS);
    tide_group *of_a = call_group(a, 777, "of a");
    tide_group *of_b = call_group(b, 2000, "of b");
    for (uint32_t call = 0; call < 20; call += 4) {
        call_reduction open;
        CHECK_OK(call_reduce_start(of_a, rank, call, NULL, &open));
        CHECK_OK(call_gather(of_b, rank, call + 1));
        CHECK_OK(call_reduce(of_b, rank, call + 2));
        CHECK_OK(call_gather(of_a, rank, call + 3));
        CHECK_OK(call_reduce_end(&open));
    }
    ranks_arrive(context, bootstrap->ranks);
    tide_comm_abort(a);
    for (uint32_t call = 0; call < 4; call++)
        CHECK_OK(call_gather(of_b, rank, call));
    CHECK_STATUS(call_gather(of_a, rank, 0), TIDE_ERR_ABORTED);
    tide_group_free(of_a);
    tide_comm_destroy(a);
    CHECK_OK(call_reduce(of_b, rank, 9));
    tide_group_free(of_b);
    tide_comm_destroy(b);
    return 0;
}

/* Begun, and freed before it was started: INVALID here, ABORTED elsewhere. */
static int free_unstarted(const tide_bootstrap *bootstrap, void *context)
{
    void *shard;
    tide_request *request;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 64, "layer");
    CHECK_OK(call_gather(group, bootstrap->rank, 0));
    ranks_arrive(context, bootstrap->ranks);
    if (bootstrap->rank == 2) {
        CHECK_OK(tide_all_gather_begin(group, &shard, &request));
        CHECK_STATUS(tide_request_free(request), TIDE_ERR_INVALID);
        CHECK_TEXT(tide_last_error(), "begun and freed");
        CHECK_TEXT(tide_last_error(), "layer");
    } else {
        tide_status status = TIDE_OK;
        for (uint32_t call = 1; !status; call++)
            status = call_gather(group, bootstrap->rank, call);
        CHECK_STATUS(status, TIDE_ERR_ABORTED);
        CHECK_TEXT(tide_last_error(), "rank 2 ");
    }
    CHECK_STATUS(call_reduce(group, bootstrap->rank, 9), TIDE_ERR_ABORTED);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/*
 * Whoever is through goes at once; the others, who have waited for long, still
 * finish: to leave is no fault for those who have all they need.
 */
static int leave_at_once(const tide_bootstrap *bootstrap, void *context)
{
    const uint32_t *late = context;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 2048, "layer");
    if (bootstrap->rank == *late)
        ranks_nap(45);
    CHECK_OK(*late % 2 ? call_gather(group, bootstrap->rank, 0)
                       : call_reduce(group, bootstrap->rank, 0));
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* The body's context counts the ranks that have arrived at its barrier. */
static void run_with_barrier(ranks_body *body)
{
    atomic_uint *arrived = ranks_share(sizeof(*arrived));
    ranks_run(4, body, arrived);
    ranks_unshare(arrived, sizeof(*arrived));
}

int main(void)
{
    ranks_run(2, create_often, NULL);
    run_with_barrier(use_two);
    run_with_barrier(free_unstarted);
    for (uint32_t round = 0; round < 24; round++)
        ranks_run(4, leave_at_once, &(uint32_t){round % 4});
    return 0;
}
