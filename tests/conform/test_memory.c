/*
 * Memory of the arena that callers take, on the host backend: who owns what,
 * what is refused, and gradients there are read where they lie. What only
 * devices have says so.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

static tide_comm_info info_of(const tide_comm *comm)
{
    tide_comm_info info;
    CHECK_OK(tide_comm_get_info(comm, &info));
    return info;
}

static void misuse(tide_comm *comm)
{
    void *memory = &memory, *more = &more;
    CHECK_STATUS(tide_memory_take(NULL, 1, &memory), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_memory_take(comm, 1, NULL), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_memory_take(comm, 0, &memory), TIDE_ERR_INVALID);
    CHECK(!memory);
    CHECK_STATUS(tide_memory_take(comm, UINT64_MAX, &more), TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "TIDE_ARENA_MIB");
    CHECK(!more);
    CHECK_OK(tide_memory_take(comm, 1000, &memory));
    CHECK_STATUS(tide_memory_give(NULL, memory), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_memory_give(comm, (char *)memory + 1), TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "tide_memory_take");
    CHECK_STATUS(tide_memory_give(comm, &memory), TIDE_ERR_INVALID);
    CHECK_OK(tide_memory_give(comm, NULL));
    CHECK_OK(tide_memory_give(comm, memory));
    CHECK_STATUS(tide_memory_give(comm, memory), TIDE_ERR_INVALID);
}

/* The arena's bounds, by the ends of all that it can give. */
static void own(tide_comm *comm, uint64_t whole)
{
    void *taken;
    CHECK_OK(tide_memory_take(comm, whole, &taken));
    char *memory = taken;
    CHECK_INT((uintptr_t)memory % 256, ==, 0);
    CHECK_INT(info_of(comm).memory_bytes, ==, whole);
    CHECK_INT(tide_memory_owns(comm, memory, whole), ==, 1);
    CHECK_INT(tide_memory_owns(comm, memory, 0), ==, 1);
    CHECK_INT(tide_memory_owns(comm, memory + whole - 1, 1), ==, 1);
    CHECK_INT(tide_memory_owns(comm, memory - 1, 1), ==, 0);
    CHECK_INT(tide_memory_owns(comm, memory, whole + 1), ==, 0);
    CHECK_INT(tide_memory_owns(comm, memory + whole - 1, 2), ==, 0);
    CHECK_INT(tide_memory_owns(comm, memory + 1, UINT64_MAX), ==, 0);
    CHECK_INT(tide_memory_owns(comm, NULL, 1), ==, 0);
    CHECK_INT(tide_memory_owns(comm, &taken, 1), ==, 0);
    CHECK_INT(tide_memory_owns(NULL, memory, 1), ==, 0);
    memset(memory, 0x55, whole);
    CHECK_STATUS(tide_memory_take(comm, 1, &taken), TIDE_ERR_MEMORY);
    CHECK_OK(tide_memory_give(comm, memory));
    CHECK_INT(info_of(comm).memory_bytes, ==, 0);
}

static int take_and_give(const tide_bootstrap *bootstrap, void *context)
{
    const uint64_t whole = 1 << 20;
    void *memory;
    tide_comm *comm;
    tide_comm_config config = {.backend = "host", .arena_bytes = whole};
    (void)context;
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    misuse(comm);
    own(comm, whole);
    CHECK_OK(tide_memory_take(comm, 5, &memory)); /* goes with it */
    tide_comm_destroy(comm);
    return 0;
}

/* Small gradients elsewhere are copied, those there are not. */
static int reduce_there(const tide_bootstrap *bootstrap, void *context)
{
    uint32_t rank = bootstrap->rank;
    void *memory;
    call_reduction made;
    tide_comm *comm = ranks_comm(bootstrap, 0, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 100, "layer");
    (void)context;
    CHECK_OK(tide_memory_take(comm, call_grad_bytes(group), &memory));
    for (uint32_t call = 0; call < 3; call++) {
        CHECK_OK(call_reduce_start(group, rank, call, memory, &made));
        CHECK_OK(call_reduce_end(&made));
    }
    CHECK_INT(info_of(comm).copied_bytes, ==, 0);
    CHECK_OK(call_reduce(group, rank, 3));
    CHECK_INT(info_of(comm).copied_bytes, ==, call_grad_bytes(group));
    CHECK_OK(tide_memory_give(comm, memory));
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

static int ask_for_devices(const tide_bootstrap *bootstrap, void *context)
{
    tide_request *request;
    void *shard, *storage[1];
    tide_comm *comm = ranks_comm(bootstrap, 0, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 8, "layer");
    float memory[64];
    (void)context;
    storage[0] = memory;
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    CHECK_STATUS(tide_stream_wait(request, TIDE_PHASE_FREE, NULL),
                 TIDE_ERR_UNSUPPORTED);
    CHECK_TEXT(tide_last_error(), "host backend has no streams");
    CHECK_STATUS(tide_stream_wait(NULL, TIDE_PHASE_FREE, NULL),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_stream_wait(request, TIDE_PHASE_COUNT, NULL),
                 TIDE_ERR_INVALID);
    CHECK_OK(tide_all_gather_start(request, storage, NULL));
    CHECK_STATUS(tide_stream_wait(request, TIDE_PHASE_DONE, NULL),
                 TIDE_ERR_UNSUPPORTED);
    CHECK_OK(tide_request_free(request));
    CHECK_STATUS(tide_pool_select(comm), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_pool_select(NULL), TIDE_ERR_INVALID);
    CHECK(!tide_pool_malloc(64, 0, NULL)); /* none is selected */
    tide_pool_free(memory, 64, 0, NULL);
    tide_pool_free(NULL, 0, 0, NULL);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

int main(void)
{
    ranks_run(1, take_and_give, NULL);
    ranks_run(2, reduce_there, NULL);
    ranks_run(2, ask_for_devices, NULL);
    return 0;
}
