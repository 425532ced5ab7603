/* Shard arithmetic: from a list of parameters to sizes, offsets and a hash. */
#include "layout/layout.h"

#include "base/fail.h"
#include "base/util.h"

#include <inttypes.h>
#include <stdlib.h>

#define SHARD_ALIGNMENT 16u

static tide_status check_param(const tide_param *param, size_t p,
                               uint32_t ranks)
{
    if (!tide_dtype_size(param->dtype))
        return tdi_fail(TIDE_ERR_INVALID, "parameter %zu: %d is no dtype", p,
                        (int)param->dtype);
    if (!param->outer)
        return tdi_fail(TIDE_ERR_INVALID,
                        "parameter %zu: outer is 0; it is 1 for Shard(0)", p);
    if (param->outer > 1 && param->rows % ranks)
        return tdi_fail(TIDE_ERR_INVALID,
                        "parameter %zu: its sharded dimension of size %" PRIu64
                        " is not the first and does not divide by %" PRIu32
                        " ranks",
                        p, param->rows, ranks);
    return TIDE_OK;
}

/* A factor of 0 makes a product 0 before the next factor can overflow it. */
static bool size_param(tide_param_layout *entry, uint32_t ranks)
{
    const tide_param *param = &entry->param;
    uint64_t padded_rows;
    entry->shard_rows = tdi_ceil_div(param->rows, ranks);
    return tdi_mul(entry->shard_rows, ranks, &padded_rows) &&
           tdi_mul(entry->shard_rows, param->inner, &entry->shard_elems) &&
           tdi_mul(entry->shard_elems, param->outer, &entry->shard_elems) &&
           tdi_mul(entry->shard_elems, tide_dtype_size(param->dtype),
                   &entry->shard_bytes) &&
           tdi_mul(entry->shard_bytes, ranks, &entry->storage_bytes) &&
           tdi_mul(param->rows, param->inner, &entry->grad_elems) &&
           tdi_mul(entry->grad_elems, param->outer, &entry->grad_elems);
}

/* The whole group must fit too: its storages, and its gradients in fp32. */
static bool place_param(tide_layout *layout, tide_param_layout *entry)
{
    uint64_t ignored;
    entry->shard_offset = layout->shard_bytes;
    entry->out_offset = layout->out_elems;
    layout->shard_bytes += tdi_round_up(entry->shard_bytes, SHARD_ALIGNMENT);
    layout->out_elems += entry->shard_elems;
    return tdi_mul(layout->shard_bytes, layout->ranks, &ignored) &&
           tdi_mul(layout->out_elems, layout->ranks * (uint64_t)sizeof(float),
                   &ignored);
}

static void hash_param(tide_layout *layout, const tide_param *param)
{
    layout->hash = tdi_hash(layout->hash, param->outer);
    layout->hash = tdi_hash(layout->hash, param->rows);
    layout->hash = tdi_hash(layout->hash, param->inner);
    layout->hash = tdi_hash(layout->hash, (uint64_t)param->dtype);
}

static tide_status add_param(tide_layout *layout, const tide_param *param,
                             size_t p)
{
    tide_param_layout *entry = &layout->params[p];
    TDI_TRY(check_param(param, p, layout->ranks));
    entry->param = *param;
    if (!size_param(entry, layout->ranks) || !place_param(layout, entry))
        return tdi_fail(TIDE_ERR_INVALID,
                        "parameter %zu: %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        " %s over %" PRIu32
                        " ranks takes the group past 2^62 bytes",
                        p, param->outer, param->rows, param->inner,
                        tide_dtype_name(param->dtype), layout->ranks);
    hash_param(layout, param);
    return TIDE_OK;
}

static tide_status allocate_layout(size_t count, uint32_t ranks,
                                   tide_layout **layout)
{
    uint64_t bytes;
    if (!tdi_mul(count, sizeof((*layout)->params[0]), &bytes) ||
        !(*layout = calloc(1, sizeof(**layout) + bytes)))
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu parameters", count);
    (*layout)->ranks = ranks;
    (*layout)->count = count;
    (*layout)->hash = tdi_hash(ranks, count);
    return TIDE_OK;
}

tide_status tide_layout_create(const tide_param *params, size_t count,
                               uint32_t ranks, tide_layout **layout)
{
    tide_layout *made;
    if (!layout || (!params && count))
        return tdi_fail(TIDE_ERR_INVALID, "a layout needs %s, not NULL",
                        layout ? "params" : "a place to go");
    if (!ranks || ranks > TIDE_MAX_RANKS)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%" PRIu32 " ranks; a layout is over 1 to %u", ranks,
                        TIDE_MAX_RANKS);
    TDI_TRY(allocate_layout(count, ranks, &made));
    for (size_t p = 0; p < count; p++) {
        tide_status status = add_param(made, &params[p], p);
        if (status) {
            tide_layout_free(made);
            return status;
        }
    }
    *layout = made;
    return TIDE_OK;
}

void tide_layout_free(tide_layout *layout)
{
    free(layout);
}

size_t tide_layout_count(const tide_layout *layout)
{
    return layout->count;
}

uint32_t tide_layout_ranks(const tide_layout *layout)
{
    return layout->ranks;
}

const tide_param_layout *tide_layout_param(const tide_layout *layout, size_t p)
{
    return &layout->params[p];
}

uint64_t tide_layout_shard_bytes(const tide_layout *layout)
{
    return layout->shard_bytes;
}

uint64_t tide_layout_out_elems(const tide_layout *layout)
{
    return layout->out_elems;
}

uint64_t tide_layout_rows(const tide_layout *layout, size_t p, uint32_t rank,
                          uint64_t *first)
{
    const tide_param_layout *entry = &layout->params[p];
    uint64_t rows = entry->param.rows;
    uint64_t begin = tdi_min(rank * entry->shard_rows, rows);
    *first = begin;
    return tdi_min(entry->shard_rows, rows - begin);
}

uint64_t tide_layout_hash(const tide_layout *layout)
{
    return layout->hash;
}
