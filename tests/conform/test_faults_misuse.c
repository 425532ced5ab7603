/*
 * One process that holds the API wrong: NULLs everywhere, sizes that overflow,
 * requests in the wrong order. Each gets a status and changes nothing.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

#include <tide/tide.h>

/* A misused call, and what its message must say. */
#define CHECK_INVALID(expr, part)                                              \
    do {                                                                       \
        CHECK_STATUS(expr, TIDE_ERR_INVALID);                                  \
        CHECK_TEXT(tide_last_error(), part);                                   \
    } while (0)

/* --- NULL --------------------------------------------------------------- */

static void pass_null_to_layouts(void)
{
    tide_layout *layout;
    tide_param param = {1, 8, 8, TIDE_F32};
    tide_topology one = {1, 2};
    tide_plan_options options = {0};
    tide_plan *plan;
    CHECK_INVALID(tide_layout_create(NULL, 1, 2, &layout), "NULL");
    CHECK_INVALID(tide_layout_create(&param, 1, 2, NULL), "NULL");
    CHECK_OK(tide_layout_create(NULL, 0, 2, &layout));
    tide_layout_free(layout);
    tide_layout_free(NULL);
    CHECK_OK(tide_layout_create(&param, 1, 2, &layout));
    CHECK_INVALID(tide_plan_defaults(NULL, one, &options), "NULL");
    CHECK_INVALID(tide_plan_defaults(layout, one, NULL), "NULL");
    CHECK_INVALID(tide_plan_create(NULL, one, 0, &options, &plan), "NULL");
    CHECK_INVALID(tide_plan_create(layout, one, 0, NULL, &plan), "NULL");
    CHECK_INVALID(tide_plan_create(layout, one, 0, &options, NULL), "NULL");
    CHECK_INVALID(tide_plan_create(layout, one, 2, &options, &plan), "rank 2");
    CHECK(!plan);
    tide_plan_free(NULL);
    tide_layout_free(layout);
}

static void pass_null_to_comms(tide_comm *comm, const tide_bootstrap *boot)
{
    tide_comm *made = comm;
    tide_comm_info info;
    int all;
    tide_bootstrap mute = *boot;
    mute.allgather = NULL;
    CHECK_INVALID(tide_comm_create(NULL, NULL, &made), "bootstrap is NULL");
    CHECK(!made);
    CHECK_INVALID(tide_comm_create(&mute, NULL, &made), "incomplete");
    CHECK_INVALID(tide_comm_create(boot, NULL, NULL), "comm is NULL");
    CHECK_INVALID(tide_comm_get_info(NULL, &info), "NULL");
    CHECK_INVALID(tide_comm_get_info(comm, NULL), "NULL");
    CHECK_INVALID(tide_comm_vote(NULL, 1, &all), "NULL");
    CHECK_INVALID(tide_comm_vote(comm, 1, NULL), "NULL");
    tide_comm_destroy(NULL);
    tide_comm_abort(NULL);
}

static void pass_null_to_groups(tide_comm *comm)
{
    tide_param param = {1, 8, 8, TIDE_F32};
    tide_group *group;
    const tide_plan *plan;
    tide_plan_options options = {0};
    CHECK_INVALID(tide_group_create(NULL, &param, 1, "x", &group), "NULL");
    CHECK_INVALID(tide_group_create(comm, &param, 1, "x", NULL), "NULL");
    CHECK_INVALID(tide_group_create(comm, NULL, 1, "x", &group), "NULL");
    CHECK(!group);
    CHECK(!tide_group_layout(NULL));
    CHECK_INVALID(tide_group_set_options(NULL, &options), "NULL");
    CHECK_INVALID(tide_group_plan(NULL, TIDE_ALL_GATHER, 0, 0, &plan), "NULL");
    CHECK_OK(tide_group_create(comm, &param, 1, NULL, &group));
    CHECK_INVALID(tide_group_set_options(group, NULL), "NULL");
    CHECK_INVALID(tide_group_plan(group, TIDE_ALL_GATHER, 0, 0, NULL), "NULL");
    CHECK_INVALID(tide_group_plan(group, (tide_coll)9, 0, 0, &plan), "NULL");
    CHECK_INVALID(
        tide_group_plan(group, TIDE_REDUCE_SCATTER, TIDE_I32, TIDE_F32, &plan),
        "i32");
    tide_group_free(group);
    tide_group_free(NULL);
}

static void pass_null_to_gathers(tide_group *group)
{
    void *shard = NULL, *none[1] = {NULL};
    tide_request *request = NULL;
    const void *shards[1] = {none};
    int reached;
    CHECK_INVALID(tide_all_gather_begin(NULL, &shard, &request), "NULL");
    CHECK_INVALID(tide_all_gather_begin(group, NULL, &request), "NULL");
    CHECK_INVALID(tide_all_gather_begin(group, &shard, NULL), "NULL");
    CHECK_INVALID(tide_all_gather_start(NULL, none, NULL), "no all-gather");
    CHECK_INVALID(tide_all_gather(NULL, shards, none), "NULL");
    CHECK_INVALID(tide_all_gather(group, NULL, none), "shard of parameter 0");
    CHECK_INVALID(tide_all_gather(group, shards, none), "storage of param");
    CHECK_INVALID(tide_all_gather(group, shards, NULL), "storage of param");
    CHECK_INVALID(tide_wait(NULL, TIDE_PHASE_DONE), "NULL");
    CHECK_INVALID(tide_test(NULL, TIDE_PHASE_DONE, &reached), "NULL");
    CHECK_OK(tide_request_free(NULL));
}

static void pass_null_to_reductions(tide_group *group)
{
    float data[64];
    const void *grads[1] = {data}, *none[1] = {NULL};
    tide_request *request;
    tide_reduce_args good = {grads, TIDE_F32, data, TIDE_F32, 1.0f, NULL};
    tide_reduce_args bad = good;
    CHECK_INVALID(tide_reduce_scatter_start(NULL, &good, &request), "NULL");
    CHECK(!request);
    CHECK_INVALID(tide_reduce_scatter_start(group, NULL, &request), "NULL");
    CHECK_INVALID(tide_reduce_scatter_start(group, &good, NULL), "NULL");
    CHECK_INVALID(tide_reduce_scatter(group, NULL), "NULL");
    bad.grad = NULL;
    CHECK_INVALID(tide_reduce_scatter(group, &bad), "gradient of parameter 0");
    bad.grad = none;
    CHECK_INVALID(tide_reduce_scatter(group, &bad), "gradient of parameter 0");
    bad = good;
    bad.out = NULL;
    CHECK_INVALID(tide_reduce_scatter(group, &bad), "out is NULL");
    bad = good;
    bad.grad_dtype = TIDE_F64;
    CHECK_INVALID(tide_reduce_scatter(group, &bad), "f64");
    bad = good;
    bad.out_dtype = (tide_dtype)77;
    CHECK_INVALID(tide_reduce_scatter(group, &bad), "?");
}

/* Parameters without elements need no pointers at all. */
static void pass_null_where_it_is_fine(tide_comm *comm)
{
    tide_group *group;
    tide_param empty[] = {{1, 0, 8, TIDE_BF16}, {1, 8, 0, TIDE_BF16}};
    tide_reduce_args args = {NULL, TIDE_BF16, NULL, TIDE_F32, 1.0f, NULL};
    for (size_t count = 0; count <= 2; count += 2) {
        CHECK_OK(tide_group_create(comm, empty, count, NULL, &group));
        CHECK_OK(tide_all_gather(group, NULL, NULL));
        CHECK_OK(tide_reduce_scatter(group, &args));
        tide_group_free(group);
    }
}

/* --- Sizes -------------------------------------------------------------- */

static void overflow_sizes(tide_comm *comm)
{
    static const tide_param large[] = {
        {1, UINT64_MAX, 1, TIDE_U8},
        {1, (uint64_t)1 << 40, 1 << 30, TIDE_F64},
        {1u << 31, 2, (uint64_t)1 << 40, TIDE_U8},
        {UINT64_MAX, 2, UINT64_MAX, TIDE_BF16}};
    tide_group *group;
    tide_slot *slot;
    void *shard;
    tide_request *request;
    for (size_t i = 0; i < TDI_COUNT(large); i++) {
        CHECK_STATUS(tide_group_create(comm, &large[i], 1, "x", &group),
                     TIDE_ERR_INVALID);
        CHECK(!group);
    }
    tide_param petabyte = {1, (uint64_t)1 << 40, 1024, TIDE_U8};
    CHECK_OK(tide_group_create(comm, &petabyte, 1, "petabyte", &group));
    CHECK_INVALID(tide_all_gather_begin(group, &shard, &request), "parts");
    CHECK(!request);
    tide_group_free(group);
    tide_param terabyte = {1, (uint64_t)1 << 30, 1024, TIDE_U8};
    CHECK_OK(tide_group_create(comm, &terabyte, 1, "terabyte", &group));
    CHECK_STATUS(tide_all_gather_begin(group, &shard, &request),
                 TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "TIDE_ARENA_MIB");
    CHECK(!request);
    tide_group_free(group);
    CHECK_INVALID(tide_slot_create(comm, UINT64_MAX, &slot), "larger");
    CHECK_INVALID(tide_slot_create(comm, 0, &slot), "0");
    CHECK_INVALID(tide_slot_create(NULL, 4096, &slot), "NULL");
    CHECK_INVALID(tide_slot_create(comm, 4096, NULL), "NULL");
    CHECK_INVALID(tide_slot_occupy(NULL), "NULL");
    CHECK_INVALID(tide_slot_vacate(NULL), "NULL");
    CHECK(!tide_slot_address(NULL));
    tide_slot_free(NULL);
}

/* --- Requests ----------------------------------------------------------- */

static void misuse_gather(tide_group *group)
{
    float memory[64];
    void *storage[1] = {memory}, *none[1] = {NULL}, *shard;
    tide_request *request;
    int reached = 7;
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    CHECK_INVALID(tide_wait(request, TIDE_PHASE_DONE), "not started");
    CHECK_INVALID(tide_test(request, TIDE_PHASE_DONE, &reached), "not started");
    CHECK_INT(reached, ==, 7);
    CHECK_INVALID(tide_all_gather_start(request, NULL, NULL), "NULL");
    CHECK_INVALID(tide_all_gather_start(request, none, NULL), "NULL");
    memset(shard, 0x11, sizeof(memory));
    CHECK_OK(tide_all_gather_start(request, storage, NULL));
    CHECK_INVALID(tide_all_gather_start(request, storage, NULL), "not started");
    CHECK_INVALID(tide_wait(request, TIDE_PHASE_COUNT), "no phase");
    CHECK_INVALID(tide_wait(request, (tide_phase)-1), "no phase");
    CHECK_INVALID(tide_test(request, TIDE_PHASE_DONE, NULL), "NULL");
    CHECK_OK(tide_wait(request, TIDE_PHASE_DONE));
    CHECK_OK(tide_request_free(request));
    for (size_t i = 0; i < sizeof(memory); i++)
        CHECK_INT(((unsigned char *)memory)[i], ==, 0x11);
}

/* Only the first can run; the others stand behind it. */
static void begin_too_many(tide_group *group)
{
    float memory[64];
    void *storage[1] = {memory}, *shard;
    tide_request *first, *second, *third;
    int reached;
    CHECK_OK(tide_all_gather_begin(group, &shard, &first));
    CHECK_OK(tide_all_gather_begin(group, &shard, &second));
    CHECK_INVALID(tide_all_gather_begin(group, &shard, &third), "not started");
    CHECK(!third);
    CHECK_OK(tide_all_gather_start(second, storage, NULL));
    CHECK_INVALID(tide_wait(second, TIDE_PHASE_DONE), "not started");
    CHECK_OK(tide_test(second, TIDE_PHASE_DONE, &reached));
    CHECK_INT(reached, ==, 0);
    CHECK_OK(tide_all_gather_start(first, storage, NULL));
    CHECK_OK(tide_wait(second, TIDE_PHASE_DONE));
    CHECK_OK(tide_request_free(second));
    CHECK_OK(tide_request_free(first));
}

static void change_options_late(tide_group *group)
{
    float memory[64];
    void *storage[1] = {memory}, *shard;
    tide_request *request;
    tide_plan_options options = {.coll = TIDE_ALL_GATHER};
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    CHECK_INVALID(tide_group_set_options(group, &options), "1 requests");
    CHECK_OK(tide_all_gather_start(request, storage, NULL));
    CHECK_OK(tide_request_free(request));
    CHECK_OK(tide_group_set_options(group, &options));
    options.coll = (tide_coll)5;
    CHECK_INVALID(tide_group_set_options(group, &options), "no collective 5");
    options = (tide_plan_options){.push = 1};
    CHECK_STATUS(tide_group_set_options(group, &options), TIDE_ERR_UNSUPPORTED);
    CHECK_TEXT(tide_last_error(), "multicast");
}

/* Sizes of zero are the communicator's defaults, also once they are set. */
static void set_no_sizes(tide_group *group)
{
    tide_plan_options options = {.coll = TIDE_REDUCE_SCATTER};
    const tide_plan *plan;
    for (int round = 0; round < 2; round++) {
        CHECK_OK(tide_group_plan(group, TIDE_REDUCE_SCATTER, TIDE_BF16,
                                 TIDE_F32, &plan));
        CHECK_INT(plan->options.block_bytes, ==, 512 << 10);
        CHECK_OK(tide_group_set_options(group, &options));
    }
}

static int run_all(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    tide_group *group;
    tide_param param = {1, 8, 8, TIDE_F32};
    tide_comm *comm = ranks_comm(bootstrap, 1, RANKS_DEADLINE_MS);
    CHECK_OK(tide_group_create(comm, &param, 1, "layer", &group));
    pass_null_to_layouts();
    pass_null_to_comms(comm, bootstrap);
    pass_null_to_groups(comm);
    pass_null_to_gathers(group);
    pass_null_to_reductions(group);
    pass_null_where_it_is_fine(comm);
    overflow_sizes(comm);
    misuse_gather(group);
    begin_too_many(group);
    change_options_late(group);
    set_no_sizes(group);
    for (uint32_t call = 0; call < 4; call++) {
        CHECK_OK(call_gather(group, 0, call));
        CHECK_OK(call_reduce(group, 0, call));
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

int main(void)
{
    ranks_run(1, run_all, NULL);
    return 0;
}
