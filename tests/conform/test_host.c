/*
 * The conformance matrix on the host backend: ranks x virtual nodes x groups,
 * all-gather and reduce-scatter from private memory and from slots, every
 * byte against the definition, several calls in a row.
 */
#include "support/check.h"
#include "support/interp.h"
#include "support/planset.h"

#include <tide/tide.h>

typedef struct world {
    uint32_t ranks;
    uint32_t local_size;
    uint64_t block_bytes; /* 0: the default */
    uint64_t chunk_bytes;
    int staged;
} world;

enum { ROUNDS = 3 };

/* Mixed into every memory a test allocates: bytes that no result has. */
enum { POISON = 0xfb };

static void *poisoned(uint64_t bytes)
{
    void *memory = malloc(bytes + 1);
    CHECK(memory != NULL);
    return memset(memory, POISON, bytes + 1);
}

static void fill_stage(const tide_layout *layout, uint32_t call, uint32_t rank,
                       uint8_t *shard)
{
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *param = tide_layout_param(layout, p);
        for (uint64_t i = 0; i < param->shard_bytes; i++)
            shard[param->shard_offset + i] =
                interp_shard_byte(call, layout, p, rank, i);
    }
}

static void check_storage(const tide_layout *layout, uint32_t call, size_t p,
                          const uint8_t *storage, const char *group)
{
    uint64_t bytes = tide_layout_param(layout, p)->storage_bytes;
    for (uint64_t i = 0; i < bytes; i++)
        if (storage[i] != interp_storage_byte(call, layout, p, i))
            CHECK_FAIL("%s: call %u, parameter %zu, byte %" PRIu64
                       " is %u, not %u",
                       group, call, p, i, storage[i],
                       interp_storage_byte(call, layout, p, i));
    CHECK_INT(storage[bytes], ==, POISON);
}

static void gather(tide_group *group, uint32_t call, uint32_t rank,
                   const char *name)
{
    const tide_layout *layout = tide_group_layout(group);
    size_t count = tide_layout_count(layout);
    void **storage = calloc(count + 1, sizeof(void *));
    void *shard;
    tide_request *request;
    for (size_t p = 0; p < count; p++)
        storage[p] = poisoned(tide_layout_param(layout, p)->storage_bytes);
    CHECK_OK(tide_all_gather_begin(group, &shard, &request));
    fill_stage(layout, call, rank, shard);
    CHECK_OK(tide_all_gather_start(request, storage));
    CHECK_OK(tide_wait(request, TIDE_PHASE_DONE));
    for (size_t p = 0; p < count; p++)
        check_storage(layout, call, p, storage[p], name);
    CHECK_OK(tide_request_free(request));
    for (size_t p = 0; p < count; p++)
        free(storage[p]);
    free(storage);
}

/* Element i of a gradient or an output, whatever its type. */
static void put_float(void *to, tide_dtype dtype, uint64_t i, float value)
{
    if (dtype == TIDE_BF16)
        ((uint16_t *)to)[i] = interp_to_bf16(value);
    else
        ((float *)to)[i] = value;
}

static float get_float(const void *from, tide_dtype dtype, uint64_t i)
{
    return dtype == TIDE_BF16 ? interp_from_bf16(((const uint16_t *)from)[i])
                              : ((const float *)from)[i];
}

static void check_output(const tide_layout *layout, uint32_t call,
                         uint32_t rank, const void *out, tide_dtype dtype,
                         const char *name)
{
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *param = tide_layout_param(layout, p);
        for (uint64_t i = 0; i < param->shard_elems; i++) {
            float want = 0.5f * interp_sum(call, layout, p, rank, i);
            float got = get_float(out, dtype, param->out_offset + i);
            if (dtype == TIDE_BF16)
                want = interp_from_bf16(interp_to_bf16(want));
            if (!(got == want))
                CHECK_FAIL("%s: call %u, output of parameter %zu, element "
                           "%" PRIu64 " is %g, not %g",
                           name, call, p, i, (double)got, (double)want);
        }
    }
}

static uint64_t align_up(uint64_t value)
{
    return (value + 255) & ~(uint64_t)255;
}

typedef struct grads {
    void **at;
    tide_slot *slot; /* NULL: private memory */
} grads;

static grads make_grads(tide_comm *comm, const tide_layout *layout,
                        uint32_t call, uint32_t rank, tide_dtype dtype,
                        int use_slot)
{
    size_t count = tide_layout_count(layout);
    uint64_t total = 1;
    grads made = {.at = calloc(count + 1, sizeof(void *))};
    for (size_t p = 0; p < count; p++)
        total += align_up(tide_layout_param(layout, p)->grad_elems *
                          tide_dtype_size(dtype));
    char *slot = NULL;
    if (use_slot) {
        CHECK_OK(tide_slot_create(comm, total, &made.slot));
        CHECK_OK(tide_slot_occupy(made.slot));
        slot = tide_slot_address(made.slot);
    }
    for (size_t p = 0; p < count; p++) {
        uint64_t elems = tide_layout_param(layout, p)->grad_elems;
        made.at[p] = slot ? slot : poisoned(elems * tide_dtype_size(dtype));
        for (uint64_t i = 0; i < elems; i++)
            put_float(made.at[p], dtype, i, interp_grad(call, p, rank, i));
        if (slot)
            slot += align_up(elems * tide_dtype_size(dtype));
    }
    return made;
}

static void free_grads(grads *made, size_t count)
{
    for (size_t p = 0; !made->slot && p < count; p++)
        free(made->at[p]);
    tide_slot_free(made->slot);
    free(made->at);
}

static void reduce(tide_comm *comm, tide_group *group, uint32_t call,
                   uint32_t rank, tide_dtype in, tide_dtype out,
                   const char *name)
{
    const tide_layout *layout = tide_group_layout(group);
    size_t count = tide_layout_count(layout);
    uint64_t bytes = tide_layout_out_elems(layout) * tide_dtype_size(out);
    int use_slot = call / 2 % 2;
    grads from = make_grads(comm, layout, call, rank, in, use_slot);
    uint8_t *to = poisoned(bytes);
    tide_request *request;
    tide_reduce_args args = {.grad = (const void *const *)from.at,
                             .grad_dtype = in,
                             .out = to,
                             .out_dtype = out,
                             .scale = 0.5f};
    CHECK_OK(tide_reduce_scatter_start(group, &args, &request));
    if (use_slot)
        CHECK_OK(tide_slot_vacate(from.slot)); /* peers go on reading */
    CHECK_OK(tide_wait(request, TIDE_PHASE_DONE));
    check_output(layout, call, rank, to, out, name);
    CHECK_INT(to[bytes], ==, POISON);
    CHECK_OK(tide_request_free(request));
    free_grads(&from, count);
    free(to);
}

static void set_options(tide_group *group, const world *w)
{
    tide_plan_options ag = {.coll = TIDE_ALL_GATHER,
                            .chunk_bytes = w->chunk_bytes};
    tide_plan_options rs = {.coll = TIDE_REDUCE_SCATTER,
                            .block_bytes = w->block_bytes,
                            .staged = w->staged};
    CHECK_OK(tide_group_set_options(group, &ag));
    CHECK_OK(tide_group_set_options(group, &rs));
}

static int rank_body(const tide_bootstrap *bootstrap, void *context)
{
    const world *w = context;
    static const tide_dtype types[] = {TIDE_BF16, TIDE_F32};
    tide_comm_config config = {.local_size = w->local_size,
                               .timeout_ms = 60000};
    tide_comm *comm;
    uint32_t call = 0;
    CHECK_OK(tide_comm_create(bootstrap, &config, &comm));
    for (size_t g = 0; g < test_group_count; g++) {
        const test_group *from = &test_groups[g];
        tide_group *group;
        if (!group_fits(from, w->ranks))
            continue;
        CHECK_OK(tide_group_create(comm, from->params, from->count, from->name,
                                   &group));
        set_options(group, w);
        for (int round = 0; round < ROUNDS; round++) {
            gather(group, call++, bootstrap->rank, from->name);
            reduce(comm, group, call++, bootstrap->rank, types[round % 2],
                   types[round / 2 % 2], from->name);
        }
        reduce(comm, group, call++, bootstrap->rank, TIDE_BF16, TIDE_F32,
               from->name);
        tide_group_free(group);
    }
    tide_comm_destroy(comm);
    return 0;
}

int main(void)
{
    static const world worlds[] = {
        {1, 1, 0, 0, 0},     {2, 2, 0, 0, 0},       {2, 1, 0, 0, 0},
        {3, 3, 0, 0, 0},     {4, 4, 0, 0, 0},       {4, 2, 0, 0, 0},
        {4, 1, 0, 0, 0},     {5, 5, 0, 0, 1},       {5, 1, 256, 64, 1},
        {6, 2, 1024, 96, 0}, {8, 4, 0, 0, 1},       {8, 2, 512, 128, 0},
        {8, 1, 512, 128, 0}, {16, 4, 4096, 256, 0}, {16, 16, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        world w = worlds[i];
        int code = tide_launch(w.ranks, 60000, rank_body, &w, NULL);
        if (code)
            CHECK_FAIL("%u ranks in nodes of %u: exit code %d", w.ranks,
                       w.local_size, code);
    }
    return 0;
}
