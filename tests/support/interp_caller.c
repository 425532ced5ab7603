/* What the interpreter's callers do: they hand over, check and poison. */
#include "interp_world.h"

#include "check.h"

static void fill_grad(const interp_call *call, uint32_t c, size_t p,
                      uint32_t rank, uint8_t *memory)
{
    uint64_t count = tide_layout_param(call->layout, p)->grad_elems;
    bool bf16 = call->plans[rank]->options.grad_dtype == TIDE_BF16;
    for (uint64_t e = 0; e < count; e++) {
        float value = interp_grad(c, p, rank, e);
        uint16_t bits = interp_to_bf16(value);
        if (bf16)
            memcpy(memory + 2 * e, &bits, sizeof(bits));
        else
            memcpy(memory + 4 * e, &value, sizeof(value));
    }
}

void interp_start(world *w, flow_state *flow)
{
    uint32_t c = interp_call_of(flow);
    const interp_call *call = &w->calls[c];
    call_memory *binding = interp_binding(w, c, flow->rank);
    if (flow->coll == TIDE_ALL_GATHER)
        return;
    for (size_t p = 0; p < tide_layout_count(call->layout); p++)
        fill_grad(call, c, p, flow->rank, binding->tensors[p]);
    memset(binding->out, POISON, interp_out_bytes(call));
}

/* The caller writes its shard to its slot and hands over its storages. */
static void fill_shard(world *w, uint32_t c, uint32_t rank)
{
    const tide_layout *layout = w->calls[c].layout;
    uint32_t size = w->calls[c].plans[rank]->topology.local_size;
    uint8_t *shard = w->memory[rank].stage[w->turn[c] % TIDE_STAGE_SETS] +
                     rank / size * tide_layout_shard_bytes(layout);
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *entry = tide_layout_param(layout, p);
        for (uint64_t i = 0; i < entry->shard_bytes; i++)
            shard[entry->shard_offset + i] =
                interp_shard_byte(c, layout, p, rank, i);
        memset(interp_binding(w, c, rank)->tensors[p], POISON,
               entry->storage_bytes);
    }
}

static bool check_storages(world *w, uint32_t c, uint32_t rank)
{
    const tide_layout *layout = w->calls[c].layout;
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        uint64_t bytes = tide_layout_param(layout, p)->storage_bytes;
        uint8_t *got = interp_binding(w, c, rank)->tensors[p];
        for (uint64_t i = 0; i < bytes; i++) {
            uint8_t want = interp_storage_byte(c, layout, p, i);
            if (got[i] != want)
                return interp_fault(w,
                                    "call %u rank %u: parameter %zu byte "
                                    "%" PRIu64 " of %" PRIu64 " is %#x, not "
                                    "%#x",
                                    c, rank, p, i, bytes, got[i], want);
        }
    }
    return true;
}

static float read_out(const interp_call *call, const uint8_t *out, uint64_t at)
{
    float value;
    uint16_t bits;
    if (call->plans[0]->options.out_dtype == TIDE_BF16) {
        memcpy(&bits, out + 2 * at, sizeof(bits));
        return interp_from_bf16(bits);
    }
    memcpy(&value, out + 4 * at, sizeof(value));
    return value;
}

static bool check_sums(world *w, uint32_t c, uint32_t rank, size_t p)
{
    const interp_call *call = &w->calls[c];
    const tide_param_layout *entry = tide_layout_param(call->layout, p);
    const uint8_t *out = interp_binding(w, c, rank)->out;
    for (uint64_t i = 0; i < entry->shard_elems; i++) {
        float want = interp_sum(c, call->layout, p, rank, i) * w->how->scale;
        if (call->plans[rank]->options.out_dtype == TIDE_BF16)
            want = interp_from_bf16(interp_to_bf16(want));
        float got = read_out(call, out, entry->out_offset + i);
        if (got != want)
            return interp_fault(
                w,
                "call %u rank %u: output of parameter %zu, "
                "element %" PRIu64 " of %" PRIu64 " is %g, not %g",
                c, rank, p, i, entry->shard_elems, (double)got, (double)want);
    }
    return true;
}

static bool finish_outputs(world *w, uint32_t c, uint32_t rank)
{
    const interp_call *call = &w->calls[c];
    call_memory *binding = interp_binding(w, c, rank);
    size_t count = tide_layout_count(call->layout);
    binding->done = true;
    if (call->plans[rank]->options.coll == TIDE_ALL_GATHER) {
        if (!check_storages(w, c, rank))
            return false;
        for (size_t p = 0; p < count; p++)
            memset(binding->tensors[p], POISON, interp_tensor_bytes(call, p));
        return true;
    }
    for (size_t p = 0; p < count; p++)
        if (!check_sums(w, c, rank, p))
            return false;
    memset(binding->out, POISON, interp_out_bytes(call));
    return true;
}

bool interp_mark(world *w, flow_state *flow, uint32_t phase)
{
    uint32_t c = interp_call_of(flow);
    const interp_call *call = &w->calls[c];
    call_memory *binding = interp_binding(w, c, flow->rank);
    if (phase == TIDE_PHASE_FREE && flow->coll == TIDE_ALL_GATHER)
        fill_shard(w, c, flow->rank);
    else if (phase == TIDE_PHASE_READS && flow->coll == TIDE_REDUCE_SCATTER)
        for (size_t p = 0; p < tide_layout_count(call->layout); p++)
            memset(binding->tensors[p], 0xff, interp_tensor_bytes(call, p));
    else if (phase == TIDE_PHASE_DONE)
        return finish_outputs(w, c, flow->rank);
    return true;
}

static bool all_poison(const uint8_t *memory, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (memory[i] != POISON)
            return false;
    return true;
}

bool interp_check_late_writes(world *w)
{
    for (uint32_t c = 0; c < w->call_count; c++)
        for (uint32_t r = 0; r < w->ranks; r++) {
            const interp_call *call = &w->calls[c];
            call_memory *binding = interp_binding(w, c, r);
            if (!binding->done)
                return interp_fault(w, "call %u rank %u: no MARK DONE", c, r);
            if (!all_poison(binding->out, interp_out_bytes(call)))
                return interp_fault(w,
                                    "call %u rank %u: OUT is written after "
                                    "DONE",
                                    c, r);
            bool gather = call->plans[r]->options.coll == TIDE_ALL_GATHER;
            size_t count = gather ? tide_layout_count(call->layout) : 0;
            for (size_t p = 0; p < count; p++)
                if (!all_poison(binding->tensors[p],
                                interp_tensor_bytes(call, p)))
                    return interp_fault(w,
                                        "call %u rank %u: parameter %zu is "
                                        "written after DONE",
                                        c, r, p);
        }
    return true;
}
