/* The interpreter's buffers. */
#include "interp_world.h"

#include "base/util.h"
#include "check.h"

/* A buffer of exactly this size, so that sanitizers see its end. */
static uint8_t *allocate(uint64_t bytes, int fill)
{
    uint8_t *memory = malloc(tdi_max(bytes, 1));
    CHECK(memory);
    memset(memory, fill, bytes);
    return memory;
}

static uint64_t scratch_bytes(const world *w, tide_buffer buffer)
{
    uint64_t most = 0;
    for (uint32_t c = 0; c < w->call_count; c++)
        for (uint32_t r = 0; r < w->ranks; r++)
            most = tdi_max(most, w->calls[c].plans[r]->buffer_bytes[buffer]);
    return most;
}

uint64_t interp_tensor_bytes(const interp_call *call, size_t p)
{
    const tide_plan *plan = call->plans[0];
    const tide_param_layout *entry = tide_layout_param(call->layout, p);
    if (plan->options.coll == TIDE_ALL_GATHER)
        return entry->storage_bytes;
    return entry->grad_elems * tide_dtype_size(plan->options.grad_dtype);
}

uint64_t interp_out_bytes(const interp_call *call)
{
    if (call->plans[0]->options.coll == TIDE_ALL_GATHER)
        return 0;
    return tide_layout_out_elems(call->layout) *
           tide_dtype_size(call->plans[0]->options.out_dtype);
}

static void allocate_binding(const interp_call *call, call_memory *binding)
{
    size_t count = tide_layout_count(call->layout);
    binding->tensors = calloc(count + 1, sizeof(*binding->tensors));
    CHECK(binding->tensors);
    for (size_t p = 0; p < count; p++)
        binding->tensors[p] = allocate(interp_tensor_bytes(call, p), 0xff);
    binding->out = allocate(interp_out_bytes(call), POISON);
}

void interp_allocate(world *w)
{
    uint64_t stage = scratch_bytes(w, TIDE_BUF_STAGE);
    w->memory = calloc(w->ranks, sizeof(*w->memory));
    w->bindings =
        calloc((size_t)w->call_count * w->ranks + 1, sizeof(*w->bindings));
    CHECK(w->memory && w->bindings);
    for (uint32_t r = 0; r < w->ranks; r++) {
        for (uint32_t set = 0; set < TIDE_STAGE_SETS; set++)
            w->memory[r].stage[set] = allocate(stage, 0xff);
        for (int b = TIDE_BUF_RSTAGE; b <= TIDE_BUF_RECV; b++)
            w->memory[r].scratch[b] =
                allocate(scratch_bytes(w, (tide_buffer)b), 0xff);
        for (uint32_t c = 0; c < w->call_count; c++)
            allocate_binding(&w->calls[c], interp_binding(w, c, r));
    }
}

void interp_release(world *w)
{
    for (uint32_t r = 0; r < w->ranks; r++) {
        for (uint32_t set = 0; set < TIDE_STAGE_SETS; set++)
            free(w->memory[r].stage[set]);
        for (int b = 0; b < TIDE_BUF_COUNT; b++)
            free(w->memory[r].scratch[b]);
        for (uint32_t c = 0; c < w->call_count; c++) {
            call_memory *binding = interp_binding(w, c, r);
            for (size_t p = 0; p < tide_layout_count(w->calls[c].layout); p++)
                free(binding->tensors[p]);
            free(binding->tensors);
            free(binding->out);
        }
    }
    free(w->memory);
    free(w->bindings);
}

/* The buffer and its size; NULL if this call has none such. */
static uint8_t *find_buffer(const world *w, uint32_t call, uint32_t rank,
                            tide_operand at, uint64_t *bytes)
{
    const interp_call *c = &w->calls[call];
    tide_coll coll = c->plans[rank]->options.coll;
    uint8_t *stage = w->memory[rank].stage[w->turn[call] % TIDE_STAGE_SETS];
    tide_buffer buffer = tide_operand_buffer(at);
    *bytes = 0;
    switch (buffer) {
    case TIDE_BUF_PARAM:
    case TIDE_BUF_GRAD:
        if ((buffer == TIDE_BUF_PARAM) != (coll == TIDE_ALL_GATHER) ||
            at.index >= tide_layout_count(c->layout))
            return NULL;
        *bytes = interp_tensor_bytes(c, at.index);
        return interp_binding(w, call, rank)->tensors[at.index];
    case TIDE_BUF_OUT:
        *bytes = interp_out_bytes(c);
        return interp_binding(w, call, rank)->out;
    default:
        if (buffer >= TIDE_BUF_COUNT)
            return NULL;
        *bytes = c->plans[rank]->buffer_bytes[buffer];
        return buffer == TIDE_BUF_STAGE ? stage
                                        : w->memory[rank].scratch[buffer];
    }
}

bool interp_locate(world *w, flow_state *flow, uint32_t index, tide_operand at,
                   uint64_t bytes, uint8_t **memory)
{
    char name[80];
    int32_t rank = tide_operand_rank(at);
    uint64_t size = 0;
    *memory = NULL;
    if (rank >= 0 && (uint32_t)rank < w->ranks)
        *memory =
            find_buffer(w, interp_call_of(flow), (uint32_t)rank, at, &size);
    if (*memory && bytes <= size && at.offset <= size - bytes) {
        *memory += at.offset;
        return true;
    }
    interp_name_op(w, flow, index, name, sizeof(name));
    return interp_fault(w,
                        "%s: bytes [%" PRIu64 ", %" PRIu64 ") of buffer %d[%u]"
                        " of rank %d, which has %" PRIu64,
                        name, at.offset, at.offset + bytes,
                        (int)tide_operand_buffer(at), at.index, (int)rank,
                        size);
}
