/* The conformance matrix of one rank. */
#include "matrix.h"

#include "check.h"
#include "interp.h"
#include "planset.h"

#include <stdbool.h>

typedef struct run {
    const matrix_world *world;
    const matrix_place *place;
    tide_comm *comm;
    tide_group *group;
    const tide_layout *layout;
    size_t count; /* of parameters */
    uint32_t rank;
    bool queued;
    const char *name;
    void *poison;
} run;

/* --- Host memory ---------------------------------------------------------- */

static void *take_host(size_t bytes)
{
    void *memory = malloc(bytes);
    CHECK(memory != NULL);
    return memset(memory, MATRIX_POISON, bytes);
}

static void copy_host(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static tide_stream no_stream(void)
{
    return NULL;
}

static void use_none(int which)
{
    (void)which;
}

static void no_sync(void)
{
}

const matrix_place matrix_host = {.take = take_host,
                                  .give = free,
                                  .take_source = take_host,
                                  .give_source = free,
                                  .write = copy_host,
                                  .read = copy_host,
                                  .stream = no_stream,
                                  .use = use_none,
                                  .sync = no_sync};

enum { POISON_BYTES = 1 << 16 };

/* Memory of the arena, poisoned in the stream's order. */
static void *take_arena(const run *r, size_t bytes)
{
    void *memory;
    CHECK_INT(bytes, <=, POISON_BYTES);
    CHECK_OK(tide_memory_take(r->comm, bytes, &memory));
    r->place->write(memory, r->poison, bytes);
    return memory;
}

/* --- All-gather ----------------------------------------------------------- */

typedef struct gathering {
    uint32_t call;
    void **storage;
    uint8_t *shard; /* what was written to STAGE */
    tide_request *request;
} gathering;

static void fill_shard(const run *r, uint32_t call, uint8_t *shard)
{
    for (size_t p = 0; p < r->count; p++) {
        const tide_param_layout *param = tide_layout_param(r->layout, p);
        for (uint64_t i = 0; i < param->shard_bytes; i++)
            shard[param->shard_offset + i] =
                interp_shard_byte(call, r->layout, p, r->rank, i);
    }
}

static gathering start_gather(const run *r, uint32_t call)
{
    gathering g = {.call = call};
    uint64_t bytes = tide_layout_shard_bytes(r->layout);
    void *stage;
    g.storage = calloc(r->count + 1, sizeof(void *));
    g.shard = r->place->take_source(bytes + 1);
    fill_shard(r, call, g.shard);
    for (size_t p = 0; p < r->count; p++) {
        uint64_t size = tide_layout_param(r->layout, p)->storage_bytes + 1;
        g.storage[p] =
            r->world->push ? take_arena(r, size) : r->place->take(size);
    }
    CHECK_OK(tide_all_gather_begin(r->group, &stage, &g.request));
    if (r->queued)
        CHECK_OK(
            tide_stream_wait(g.request, TIDE_PHASE_FREE, r->place->stream()));
    if (bytes)
        r->place->write(stage, g.shard, bytes);
    CHECK_OK(tide_all_gather_start(g.request, g.storage, r->place->stream()));
    return g;
}

static void check_storage(const run *r, const gathering *g, size_t p)
{
    uint64_t bytes = tide_layout_param(r->layout, p)->storage_bytes;
    uint8_t *got = malloc(bytes + 1);
    r->place->read(got, g->storage[p], bytes + 1);
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != interp_storage_byte(g->call, r->layout, p, i))
            CHECK_FAIL("rank %u, %s: call %u, parameter %zu, byte %" PRIu64
                       " is %u, not %u",
                       r->rank, r->name, g->call, p, i, got[i],
                       interp_storage_byte(g->call, r->layout, p, i));
    CHECK_INT(got[bytes], ==, MATRIX_POISON);
    free(got);
}

/* The request is freed already if calls follow one another. */
static void finish_gather(const run *r, gathering *g)
{
    if (g->request)
        CHECK_OK(tide_wait(g->request, TIDE_PHASE_DONE));
    for (size_t p = 0; p < r->count; p++)
        check_storage(r, g, p);
    CHECK_OK(tide_request_free(g->request));
    for (size_t p = 0; p < r->count; p++) {
        if (r->world->push)
            CHECK_OK(tide_memory_give(r->comm, g->storage[p]));
        else
            r->place->give(g->storage[p]);
    }
    free(g->storage);
    r->place->give_source(g->shard);
}

/* --- Reduce-scatter ------------------------------------------------------- */

typedef enum location { OUTSIDE, IN_SLOT, IN_ARENA, LOCATIONS } location;

typedef struct reduction {
    uint32_t call;
    location where;
    tide_dtype in;
    tide_dtype out;
    tide_slot *slot;
    uint8_t *source;
    uint8_t *memory; /* of all gradients; none if in a slot */
    uint64_t bytes;
    void **grad;
    void *result;
    tide_request *request;
} reduction;

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

static uint64_t align_up(uint64_t value)
{
    return (value + 255) & ~(uint64_t)255;
}

static uint64_t grad_bytes(const run *r, size_t p, tide_dtype dtype)
{
    return tide_layout_param(r->layout, p)->grad_elems * tide_dtype_size(dtype);
}

/* All gradients in one piece of memory, where the case wants it. */
static void make_grads(const run *r, reduction *made)
{
    uint64_t total = 1;
    uint8_t *at;
    for (size_t p = 0; p < r->count; p++)
        total += align_up(grad_bytes(r, p, made->in));
    made->bytes = total;
    made->grad = calloc(r->count + 1, sizeof(void *));
    made->source = r->place->take_source(total);
    memset(made->source, MATRIX_POISON, total);
    if (made->where == IN_SLOT) {
        CHECK_OK(tide_slot_create(r->comm, total, &made->slot));
        CHECK_OK(tide_slot_occupy(made->slot));
        at = tide_slot_address(made->slot);
    } else {
        at = made->memory = made->where == IN_ARENA ? take_arena(r, total)
                                                    : r->place->take(total);
    }
    uint8_t *from = made->source;
    for (size_t p = 0; p < r->count; p++) {
        uint64_t elems = tide_layout_param(r->layout, p)->grad_elems;
        made->grad[p] = at + (from - made->source);
        for (uint64_t i = 0; i < elems; i++)
            put_float(from, made->in, i,
                      interp_grad(made->call, p, r->rank, i));
        from += align_up(grad_bytes(r, p, made->in));
    }
    r->place->write(at, made->source, total);
}

static reduction start_reduce(const run *r, uint32_t call, location where,
                              tide_dtype in, tide_dtype out)
{
    reduction made = {.call = call, .where = where, .in = in, .out = out};
    make_grads(r, &made);
    made.result = r->place->take(
        tide_layout_out_elems(r->layout) * tide_dtype_size(out) + 1);
    tide_reduce_args args = {.grad = (const void *const *)made.grad,
                             .grad_dtype = in,
                             .out = made.result,
                             .out_dtype = out,
                             .scale = 0.5f,
                             .stream = r->place->stream()};
    CHECK_OK(tide_reduce_scatter_start(r->group, &args, &made.request));
    if (made.slot)
        CHECK_OK(tide_slot_vacate(made.slot)); /* peers go on reading */
    return made;
}

static void check_output(const run *r, const reduction *made)
{
    uint64_t bytes =
        tide_layout_out_elems(r->layout) * tide_dtype_size(made->out);
    uint8_t *result = malloc(bytes + 1);
    r->place->read(result, made->result, bytes + 1);
    for (size_t p = 0; p < r->count; p++) {
        const tide_param_layout *param = tide_layout_param(r->layout, p);
        for (uint64_t i = 0; i < param->shard_elems; i++) {
            float want =
                0.5f * interp_sum(made->call, r->layout, p, r->rank, i);
            float got = get_float(result, made->out, param->out_offset + i);
            if (made->out == TIDE_BF16)
                want = interp_from_bf16(interp_to_bf16(want));
            if (!(got == want))
                CHECK_FAIL("rank %u, %s: call %u, output of parameter %zu, "
                           "element %" PRIu64 " is %g, not %g",
                           r->rank, r->name, made->call, p, i, (double)got,
                           (double)want);
        }
    }
    CHECK_INT(result[bytes], ==, MATRIX_POISON);
    free(result);
}

/* They have been read: what is written there now is in no sum. */
static void spoil_grads(const run *r, const reduction *made)
{
    CHECK_INT(made->bytes, <=, POISON_BYTES);
    if (made->memory)
        r->place->write(made->memory, r->poison, made->bytes);
}

static void finish_reduce(const run *r, reduction *made)
{
    if (made->request) {
        CHECK_OK(tide_wait(made->request, TIDE_PHASE_READS));
        spoil_grads(r, made);
        CHECK_OK(tide_wait(made->request, TIDE_PHASE_DONE));
    }
    check_output(r, made);
    CHECK_OK(tide_request_free(made->request));
    if (made->where == OUTSIDE)
        r->place->give(made->memory);
    if (made->where == IN_ARENA)
        CHECK_OK(tide_memory_give(r->comm, made->memory));
    tide_slot_free(made->slot);
    r->place->give(made->result);
    r->place->give_source(made->source);
    free(made->grad);
}

/* --- A group -------------------------------------------------------------- */

static void set_options(const run *r)
{
    const matrix_world *w = r->world;
    tide_plan_options ag = {.coll = TIDE_ALL_GATHER,
                            .push = w->push,
                            .chunk_bytes = w->chunk_bytes};
    tide_plan_options rs = {.coll = TIDE_REDUCE_SCATTER,
                            .switch_reduce = w->push,
                            .block_bytes = w->block_bytes,
                            .unit_bytes =
                                w->staged ? w->block_bytes * w->local_size : 1,
                            .staged = w->staged};
    CHECK_OK(tide_group_set_options(r->group, &ag));
    CHECK_OK(tide_group_set_options(r->group, &rs));
}

static const tide_dtype types[] = {TIDE_BF16, TIDE_F32};

/* What the n-th reduction of a group is like. */
static reduction start_nth(const run *r, uint32_t call, int n)
{
    return start_reduce(r, call, (location)(n % LOCATIONS), types[n % 2],
                        types[n / 2 % 2]);
}

static uint32_t run_one_by_one(const run *r, uint32_t call)
{
    for (int round = 0; round < r->world->rounds; round++) {
        gathering g = start_gather(r, call++);
        finish_gather(r, &g);
        reduction made = start_nth(r, call++, round);
        finish_reduce(r, &made);
    }
    return call;
}

/* The stream waits, then the request may go; the host has not waited. */
static void leave(const run *r, tide_request **request)
{
    CHECK_OK(tide_stream_wait(*request, TIDE_PHASE_DONE, r->place->stream()));
    CHECK_OK(tide_request_free(*request));
    *request = NULL;
}

static void leave_reduce(const run *r, reduction *made)
{
    CHECK_OK(
        tide_stream_wait(made->request, TIDE_PHASE_READS, r->place->stream()));
    spoil_grads(r, made);
    leave(r, &made->request);
}

/* Gathers on one stream, reductions on another: the flows overlap. */
static uint32_t run_back_to_back(const run *r, uint32_t call)
{
    enum { MOST = 16 };
    gathering g[MOST];
    reduction made[MOST];
    int rounds = r->world->rounds;
    bool at_once = r->world->back_to_back == 1;
    CHECK_INT(rounds, <=, MOST);
    for (int n = 0; n < rounds; n++) {
        r->place->use(0);
        g[n] = start_gather(r, call++);
        if (at_once)
            leave(r, &g[n].request);
        r->place->use(1);
        made[n] = start_nth(r, call++, n);
        if (at_once)
            leave_reduce(r, &made[n]);
    }
    for (int n = 0; n < rounds && !at_once; n++) {
        r->place->use(0);
        leave(r, &g[n].request);
        r->place->use(1);
        leave_reduce(r, &made[n]);
    }
    r->place->use(0);
    r->place->sync();
    for (int n = 0; n < rounds; n++) {
        finish_gather(r, &g[n]);
        finish_reduce(r, &made[n]);
    }
    return call;
}

int matrix_rank(const tide_bootstrap *bootstrap, void *context)
{
    const matrix_world *w = context;
    tide_comm_config config = {.backend = w->backend,
                               .local_size = w->local_size,
                               .arena_bytes = w->arena_bytes,
                               .timeout_ms = 60000};
    run r = {.world = w, .place = w->place, .rank = bootstrap->rank};
    tide_comm_info info;
    uint32_t call = 0;
    CHECK_OK(tide_comm_create(bootstrap, &config, &r.comm));
    CHECK_OK(tide_comm_get_info(r.comm, &info));
    r.queued = info.queued;
    r.poison = memset(w->place->take_source(POISON_BYTES), MATRIX_POISON,
                      POISON_BYTES);
    for (size_t g = 0; g < test_group_count; g++) {
        const test_group *from = &test_groups[g];
        if (!group_fits(from, w->ranks))
            continue;
        r.name = from->name;
        CHECK_OK(tide_group_create(r.comm, from->params, from->count,
                                   from->name, &r.group));
        r.layout = tide_group_layout(r.group);
        r.count = tide_layout_count(r.layout);
        set_options(&r);
        call = w->back_to_back ? run_back_to_back(&r, call)
                               : run_one_by_one(&r, call);
        tide_group_free(r.group);
    }
    w->place->sync();
    w->place->give_source(r.poison);
    tide_comm_destroy(r.comm);
    return 0;
}
