/* Collective calls with checked data. */
#include "calls.h"

#include "base/util.h"
#include "check.h"
#include "interp.h"

#include <sched.h>

const matrix_place *call_place = &matrix_host;
_Atomic int call_polls;

static bool is_queued(void)
{
    return call_place != &matrix_host;
}

/* After a fault a device may still use it: then it stays. */
static void give(void *memory, tide_status status)
{
    if (memory && (!status || !is_queued()))
        call_place->give(memory);
}

static void give_source(void *source, tide_status status)
{
    if (source && (!status || !is_queued()))
        call_place->give_source(source);
}

static tide_status await_done(tide_request *request)
{
    if (!call_polls)
        return tide_wait(request, TIDE_PHASE_DONE);
    for (int reached = 0;;) {
        tide_status status = tide_test(request, TIDE_PHASE_DONE, &reached);
        if (status || reached)
            return status;
        sched_yield();
    }
}

tide_group *call_group(tide_comm *comm, uint64_t rows, const char *name)
{
    tide_group *group;
    tide_param param = {1, rows, 8, TIDE_BF16};
    CHECK_OK(tide_group_create(comm, &param, 1, name, &group));
    return group;
}

/* --- All-gather --------------------------------------------------------- */

static void fill_shard(const tide_layout *layout, uint32_t rank, uint32_t call,
                       uint8_t *shard)
{
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *param = tide_layout_param(layout, p);
        for (uint64_t i = 0; i < param->shard_bytes; i++)
            shard[param->shard_offset + i] =
                interp_shard_byte(call, layout, p, rank, i);
    }
}

static tide_status gather_into(tide_group *group, uint32_t rank, uint32_t call,
                               void **storage)
{
    void *shard;
    tide_request *request;
    tide_status status = tide_all_gather_begin(group, &shard, &request);
    if (status) {
        CHECK(!request);
        return status;
    }
    const tide_layout *layout = tide_group_layout(group);
    uint64_t bytes = tide_layout_shard_bytes(layout);
    uint8_t *source = call_place->take_source(bytes + 1);
    fill_shard(layout, rank, call, source);
    if (is_queued())
        status =
            tide_stream_wait(request, TIDE_PHASE_FREE, call_place->stream());
    if (!status && bytes)
        call_place->write(shard, source, bytes);
    if (!status)
        status = tide_all_gather_start(request, storage, call_place->stream());
    if (!status)
        status = await_done(request);
    tide_status freed = tide_request_free(request);
    give_source(source, status);
    return status ? status : freed;
}

static void check_storage(const tide_layout *layout, size_t p, uint32_t call,
                          const void *memory)
{
    uint64_t bytes = tide_layout_param(layout, p)->storage_bytes;
    uint8_t *storage = malloc(bytes + 1);
    call_place->read(storage, memory, bytes + 1);
    for (uint64_t i = 0; i < bytes; i++)
        if (storage[i] != interp_storage_byte(call, layout, p, i))
            CHECK_FAIL("call %u, parameter %zu: byte %" PRIu64 " is %u, not %u",
                       call, p, i, storage[i],
                       interp_storage_byte(call, layout, p, i));
    CHECK_INT(storage[bytes], ==, MATRIX_POISON);
    free(storage);
}

tide_status call_gather(tide_group *group, uint32_t rank, uint32_t call)
{
    const tide_layout *layout = tide_group_layout(group);
    size_t count = tide_layout_count(layout);
    void **storage = calloc(count + 1, sizeof(void *));
    for (size_t p = 0; p < count; p++)
        storage[p] =
            call_place->take(tide_layout_param(layout, p)->storage_bytes + 1);
    tide_status status = gather_into(group, rank, call, storage);
    for (size_t p = 0; p < count; p++) {
        if (!status)
            check_storage(layout, p, call, storage[p]);
        give(storage[p], status);
    }
    free(storage);
    return status;
}

/* --- Reduce-scatter ----------------------------------------------------- */

uint64_t call_grad_bytes(const tide_group *group)
{
    const tide_layout *layout = tide_group_layout(group);
    uint64_t elems = 0;
    for (size_t p = 0; p < tide_layout_count(layout); p++)
        elems += tide_layout_param(layout, p)->grad_elems;
    return tdi_max(elems, 1) * sizeof(uint16_t);
}

tide_status call_reduce_start(tide_group *group, uint32_t rank, uint32_t call,
                              void *in, call_reduction *made)
{
    const tide_layout *layout = tide_group_layout(group);
    size_t count = tide_layout_count(layout);
    uint64_t out_bytes = tide_layout_out_elems(layout) * sizeof(float);
    uint64_t bytes = call_grad_bytes(group);
    *made = (call_reduction){.group = group, .rank = rank, .call = call};
    made->grad = calloc(count + 1, sizeof(void *));
    made->memory = in ? NULL : call_place->take(bytes);
    made->source = call_place->take_source(bytes);
    made->out = call_place->take(out_bytes + 1);
    uint16_t *to = in ? in : made->memory, *at = made->source;
    for (size_t p = 0; p < count; p++) {
        uint64_t elems = tide_layout_param(layout, p)->grad_elems;
        made->grad[p] = to + (at - made->source);
        for (uint64_t i = 0; i < elems; i++)
            *at++ = interp_to_bf16(interp_grad(call, p, rank, i));
    }
    call_place->write(to, made->source, bytes);
    tide_reduce_args args = {.grad = (const void *const *)made->grad,
                             .grad_dtype = TIDE_BF16,
                             .out = made->out,
                             .out_dtype = TIDE_F32,
                             .scale = 0.5f,
                             .stream = call_place->stream()};
    return tide_reduce_scatter_start(group, &args, &made->request);
}

static void check_output(const call_reduction *made)
{
    const tide_layout *layout = tide_group_layout(made->group);
    uint64_t bytes = tide_layout_out_elems(layout) * sizeof(float);
    float *out = malloc(bytes + sizeof(float));
    call_place->read(out, made->out, bytes);
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *param = tide_layout_param(layout, p);
        for (uint64_t i = 0; i < param->shard_elems; i++) {
            float got = out[param->out_offset + i];
            float want =
                0.5f * interp_sum(made->call, layout, p, made->rank, i);
            if (!(got == want))
                CHECK_FAIL("call %u, parameter %zu: element %" PRIu64
                           " is %g, not %g",
                           made->call, p, i, (double)got, (double)want);
        }
    }
    free(out);
}

tide_status call_reduce_end(call_reduction *made)
{
    tide_status status = TIDE_OK;
    bool started = made->request != NULL;
    if (started)
        status = await_done(made->request);
    if (started && !status)
        check_output(made);
    tide_status freed = tide_request_free(made->request);
    status = status ? status : freed;
    tide_status use = started ? status : TIDE_ERR_ABORTED;
    free(made->grad);
    give(made->memory, use);
    give(made->out, use);
    give_source(made->source, use);
    return status;
}

tide_status call_reduce(tide_group *group, uint32_t rank, uint32_t call)
{
    call_reduction made;
    tide_status status = call_reduce_start(group, rank, call, NULL, &made);
    tide_status ended = call_reduce_end(&made);
    return status ? status : ended;
}

tide_status call_reduce_slot(tide_comm *comm, tide_group *group, uint32_t rank,
                             uint32_t call)
{
    tide_slot *slot;
    call_reduction made;
    CHECK_OK(tide_slot_create(comm, call_grad_bytes(group), &slot));
    CHECK_OK(tide_slot_occupy(slot));
    tide_status status =
        call_reduce_start(group, rank, call, tide_slot_address(slot), &made);
    CHECK_OK(tide_slot_vacate(slot));
    tide_status ended = call_reduce_end(&made);
    tide_slot_free(slot);
    return status ? status : ended;
}
