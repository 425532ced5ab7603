/*
 * Memory: an arena that is too small, scratch that grows and shrinks, slots
 * that are misused or recycled, and ranks that run far ahead of the readers of
 * their memory. Data is checked all the way.
 */
#include "base/util.h"
#include "support/calls.h"
#include "support/check.h"
#include "support/ranks.h"

static uint64_t scratch_of(const tide_comm *comm)
{
    tide_comm_info info;
    CHECK_OK(tide_comm_get_info(comm, &info));
    return info.buffer_bytes;
}

static tide_comm *small_comm(const tide_bootstrap *bootstrap, uint64_t arena)
{
    tide_comm *comm;
    tide_comm_config config = {
        .local_size = 1, .timeout_ms = RANKS_FOREVER_MS, .arena_bytes = arena};
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    return comm;
}

/* --- Exhaustion --------------------------------------------------------- */

/* All ranks get TIDE_ERR_MEMORY, and the communicator serves smaller groups
 * as before. */
static int exhaust_arena(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    uint32_t rank = bootstrap->rank;
    setenv("TIDE_ARENA_MIB", "1", 1);
    tide_comm *comm = small_comm(bootstrap, 0);
    tide_group *small = call_group(comm, 256, "small");
    tide_group *large = call_group(comm, 1 << 20, "large");
    for (uint32_t call = 0; call < 6; call += 2) {
        CHECK_OK(call_gather(small, rank, call));
        CHECK_OK(call_reduce(small, rank, call));
        uint64_t used = scratch_of(comm);
        CHECK_STATUS(call_gather(large, rank, call + 1), TIDE_ERR_MEMORY);
        CHECK_TEXT(tide_last_error(), "arena of 1 MiB");
        CHECK_TEXT(tide_last_error(), "raise TIDE_ARENA_MIB");
        CHECK_INT(scratch_of(comm), <=, used);
    }
    CHECK_OK(call_gather(small, rank, 7));
    CHECK_OK(call_reduce(small, rank, 8));
    tide_group_free(large);
    tide_group_free(small);
    tide_comm_destroy(comm);
    return 0;
}

/* Slots take the arena; a call gets its scratch once they are vacated. */
static int exhaust_by_slots(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    enum { SLOTS = 8 };
    const uint64_t bytes = 128 << 10;
    tide_slot *slots[SLOTS], *whole;
    tide_comm *comm = small_comm(bootstrap, SLOTS * bytes);
    tide_group *group = call_group(comm, 256, "layer");
    CHECK_STATUS(tide_slot_create(comm, SLOTS * bytes + 1, &whole),
                 TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "larger than the arena");
    CHECK_OK(tide_slot_create(comm, SLOTS * bytes, &whole));
    for (int i = 0; i < SLOTS; i++) {
        CHECK_OK(tide_slot_create(comm, bytes, &slots[i]));
        CHECK_OK(tide_slot_occupy(slots[i]));
        memset(tide_slot_address(slots[i]), i + 1, bytes);
    }
    CHECK_STATUS(tide_slot_occupy(whole), TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "1048576 bytes");
    CHECK_STATUS(call_gather(group, bootstrap->rank, 0), TIDE_ERR_MEMORY);
    CHECK_OK(tide_slot_vacate(slots[3]));
    CHECK_OK(call_gather(group, bootstrap->rank, 1));
    CHECK_OK(call_reduce(group, bootstrap->rank, 2));
    CHECK_STATUS(tide_slot_occupy(slots[3]), TIDE_ERR_MEMORY);
    for (int i = 0; i < SLOTS; i++) {
        const unsigned char *at = tide_slot_address(slots[i]);
        for (uint64_t b = 0; i != 3 && b < bytes; b++)
            CHECK_INT(at[b], ==, i + 1);
        tide_slot_free(slots[i]);
    }
    CHECK_STATUS(tide_slot_occupy(whole), TIDE_ERR_MEMORY);
    tide_slot_free(whole);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Growing scratch ---------------------------------------------------- */

static int grow_and_shrink(const tide_bootstrap *bootstrap, void *context)
{
    const uint32_t *local_size = context;
    static const uint64_t rows[] = {64, 5000, 64, 9, 20000, 64, 20001, 1};
    tide_group *groups[TDI_COUNT(rows)];
    uint32_t rank = bootstrap->rank, call = 0;
    uint64_t largest = 0;
    tide_comm *comm = ranks_comm(bootstrap, *local_size, RANKS_FOREVER_MS);
    for (size_t g = 0; g < TDI_COUNT(rows); g++)
        groups[g] = call_group(comm, rows[g], "layer");
    for (int pass = 0; pass < 2; pass++) {
        for (size_t g = 0; g < TDI_COUNT(rows); g++) {
            call_reduction open;
            CHECK_OK(call_gather(groups[g], rank, call++));
            CHECK_OK(call_reduce_start(groups[g], rank, call++, NULL, &open));
            CHECK_OK(
                call_gather(groups[(g + 3) % TDI_COUNT(rows)], rank, call++));
            CHECK_OK(call_reduce_slot(comm, groups[(g + 1) % TDI_COUNT(rows)],
                                      rank, call++));
            CHECK_OK(call_reduce_end(&open));
            CHECK_INT(scratch_of(comm), >=, largest);
            largest = scratch_of(comm);
        }
    }
    for (size_t g = 0; g < TDI_COUNT(rows); g++)
        tide_group_free(groups[g]);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Slots -------------------------------------------------------------- */

/* Peers read the gradients after the slot was vacated, given other contents
 * and even freed: rank 0 is late on purpose. */
static int reuse_while_read(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    uint32_t rank = bootstrap->rank;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 4096, "layer");
    uint64_t bytes = call_grad_bytes(group);
    for (uint32_t call = 0; call < 12; call++) {
        tide_slot *slot, *other;
        call_reduction reduction;
        CHECK_OK(tide_slot_create(comm, bytes, &slot));
        CHECK_OK(tide_slot_create(comm, bytes, &other));
        CHECK_OK(tide_slot_occupy(slot));
        if (rank == call % 4)
            ranks_nap(5);
        CHECK_OK(call_reduce_start(group, rank, call, tide_slot_address(slot),
                                   &reduction));
        CHECK_OK(tide_slot_vacate(slot));
        if (call % 2)
            CHECK_OK(tide_slot_occupy(slot));
        CHECK_OK(tide_slot_occupy(other));
        memset(tide_slot_address(call % 2 ? slot : other), 0xff, bytes);
        memset(tide_slot_address(other), 0xff, bytes);
        tide_slot_free(slot);
        tide_slot_free(other);
        CHECK_OK(call_reduce_end(&reduction));
    }
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

static int misuse_slots(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    tide_slot *slot;
    tide_comm_info info;
    call_reduction reduction;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *group = call_group(comm, 64, "layer");
    CHECK_OK(tide_slot_create(comm, call_grad_bytes(group), &slot));
    /* The gradient's values are not looked at before the slot's state. */
    tide_reduce_args args = {.grad_dtype = TIDE_BF16, .out_dtype = TIDE_F32};
    const void *grad[1] = {tide_slot_address(slot)};
    float out[512];
    args.grad = grad;
    args.out = out;
    CHECK_STATUS(tide_reduce_scatter(group, &args), TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "vacated slot");
    CHECK_OK(tide_slot_vacate(slot)); /* nothing to do */
    CHECK_OK(tide_slot_occupy(slot));
    CHECK_OK(tide_slot_occupy(slot));
    CHECK_OK(tide_comm_get_info(comm, &info));
    CHECK_INT(info.slot_bytes, ==, 4096);
    CHECK_OK(call_reduce_start(group, bootstrap->rank, 0,
                               tide_slot_address(slot), &reduction));
    CHECK_OK(call_reduce_end(&reduction));
    tide_slot_free(slot);
    CHECK_OK(tide_comm_get_info(comm, &info));
    CHECK_INT(info.slot_bytes, ==, 0);
    tide_group_free(group);
    tide_comm_destroy(comm);
    return 0;
}

/* The address stays, and other slots keep their contents. */
static int recycle_slots(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    tide_slot *slots[3];
    tide_comm *comm = ranks_comm(bootstrap, 1, RANKS_FOREVER_MS);
    void *address[3];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tide_slot_create(comm, 8192, &slots[i]));
        address[i] = tide_slot_address(slots[i]);
    }
    CHECK_OK(tide_slot_occupy(slots[2]));
    memset(address[2], 0x5a, 8192);
    ranks_traces before = ranks_count_traces();
    for (uint32_t i = 0; i < 10000; i++) {
        uint32_t *word = address[i % 2];
        CHECK_OK(tide_slot_occupy(slots[i % 2]));
        *word = i;
        CHECK_INT(*word, ==, i);
        if (i % 3 == 0)
            CHECK_OK(tide_slot_vacate(slots[i % 2]));
        CHECK(tide_slot_address(slots[i % 2]) == address[i % 2]);
    }
    ranks_traces after = ranks_count_traces();
    CHECK_INT(after.maps, <=, before.maps + 4);
    for (int i = 0; i < 8192; i++)
        CHECK_INT(((unsigned char *)address[2])[i], ==, 0x5a);
    for (int i = 0; i < 3; i++)
        tide_slot_free(slots[i]);
    tide_comm_destroy(comm);
    return 0;
}

/* --- Far ahead ---------------------------------------------------------- */

/*
 * A reduce-scatter of very many steps stays under way while far more small
 * all-gathers than a rank keeps records of come and go.
 */
static int run_far_ahead(const tide_bootstrap *bootstrap, void *context)
{
    (void)context;
    uint32_t rank = bootstrap->rank;
    tide_comm *comm = ranks_comm(bootstrap, 2, RANKS_FOREVER_MS);
    tide_group *slow = call_group(comm, 1 << 16, "slow");
    tide_group *quick = call_group(comm, 8, "quick");
    tide_plan_options options = {
        .coll = TIDE_REDUCE_SCATTER, .recv_slots = 1, .block_bytes = 128};
    call_reduction reduction;
    CHECK_OK(tide_group_set_options(slow, &options));
    CHECK_OK(call_reduce_start(slow, rank, 0, NULL, &reduction));
    int reached = 1;
    for (uint32_t call = 1; call < 300; call++) {
        CHECK_OK(call_gather(quick, rank, call));
        if (call == 70)
            CHECK_OK(tide_test(reduction.request, TIDE_PHASE_DONE, &reached));
    }
    CHECK_INT(reached, ==, 0); /* else this test shows nothing */
    CHECK_OK(call_reduce_end(&reduction));
    tide_group_free(slow);
    tide_group_free(quick);
    tide_comm_destroy(comm);
    return 0;
}

int main(void)
{
    ranks_run(3, exhaust_arena, NULL);
    ranks_run(2, exhaust_by_slots, NULL);
    for (uint32_t local_size = 1; local_size <= 4; local_size *= 2)
        ranks_run(4, grow_and_shrink, &local_size);
    ranks_run(4, reuse_while_read, NULL);
    ranks_run(2, misuse_slots, NULL);
    ranks_run(1, recycle_slots, NULL);
    ranks_run(4, run_far_ahead, NULL);
    return 0;
}
