/*
 * Fuzzes tide_plan_create with options, topologies and ranks that nobody
 * checked: each is refused as invalid or yields plans that the verifiers
 * accept.
 */
#include "fuzz.h"
#include "sets.h"

#include <inttypes.h>

/* Any number, small ones and powers of two often. */
static uint64_t take_number(fuzz_bytes *in)
{
    uint32_t kind = fuzz_take(in);
    if (kind < 64)
        return kind;
    if (kind < 128)
        return ((uint64_t)1 << kind % 64) - fuzz_pick(in, 0, 1);
    uint64_t value = 0;
    for (uint32_t i = 0; i < kind % 8 + 1; i++)
        value = value << 8 | fuzz_take(in);
    return value;
}

static void spoil(fuzz_bytes *in, fuzz_case *c, uint32_t *rank)
{
    tide_plan_options *o = &c->colls[0].options;
    uint32_t field = fuzz_pick(in, 0, 11);
    uint64_t value = take_number(in);
    switch (field) {
    case 0:
        o->coll = (tide_coll)value;
        break;
    case 1:
        o->push = (int)value;
        break;
    case 2:
        o->window = (uint32_t)value;
        break;
    case 3:
        o->grad_dtype = (tide_dtype)value;
        break;
    case 4:
        o->out_dtype = (tide_dtype)value;
        break;
    case 5:
        o->staged = (int)value;
        break;
    case 6:
        o->switch_reduce = (int)value;
        break;
    case 7:
        o->recv_slots = (uint32_t)value;
        break;
    case 8:
        c->topology.nodes = (uint32_t)value;
        break;
    case 9:
        c->topology.local_size = (uint32_t)value;
        break;
    case 10:
        *rank = (uint32_t)value;
        break;
    default:
        if (!c->huge) /* else it may make gigabytes of ops */
            o->chunk_bytes = o->block_bytes = o->unit_bytes = value;
    }
}

static void verify_all(const fuzz_case *c)
{
    plan_set set = make_set(c, &c->colls[0]);
    if (tide_verify_bounds(set.layout, all_plans(&set)) ||
        tide_verify_sync(all_plans(&set)))
        fail_case(c, "%s", tide_last_error());
    free_set(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_bytes in = {data, bytes < 16 ? bytes : 16};
    fuzz_case c;
    tide_layout *layout;
    tide_plan *plan = NULL;
    fuzz_decode(data + in.left, bytes - in.left, &c);
    uint32_t ranks = c.topology.nodes * c.topology.local_size;
    if (tide_layout_create(c.groups[0].params, c.groups[0].count, ranks,
                           &layout))
        fail_case(&c, "no layout: %s", tide_last_error());
    uint32_t rank = fuzz_take(&in) % ranks;
    for (uint32_t times = fuzz_pick(&in, 1, 3); times; times--)
        spoil(&in, &c, &rank);
    tide_status status =
        tide_plan_create(layout, c.topology, rank, &c.colls[0].options, &plan);
    if (status && status != TIDE_ERR_INVALID)
        fail_case(&c, "rank %u: %s", rank, tide_last_error());
    if (!status != (plan != NULL))
        fail_case(&c, "rank %u: status %d and a plan: %d", rank, status,
                  plan != NULL);
    for (int b = 0; b < TIDE_BUF_COUNT && !status; b++)
        if (plan->buffer_bytes[b] >> 62)
            fail_case(&c, "rank %u: buffer %d: %" PRIu64 " bytes", rank, b,
                      plan->buffer_bytes[b]);
    if (!status && plan->op_count < 3000)
        verify_all(&c);
    tide_plan_free(plan);
    tide_layout_free(layout);
    return 0;
}
