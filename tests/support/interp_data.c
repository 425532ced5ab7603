/* What the interpreter's callers put in, and what must come out. */
#include "interp.h"

#include "base/util.h"

#include <string.h>

static uint64_t mix(uint32_t call, size_t p, uint32_t rank, uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u + rank * 0xc2b2ae3d27d4eb4fu +
                 p * 0x165667b19e3779f9u + call * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

/* Splits an element of a padded shard, [outer, shard_rows, inner], into the
 * element of the whole tensor; false if its row does not exist. */
static bool find_element(const tide_layout *layout, size_t p, uint32_t rank,
                         uint64_t at, uint64_t *element)
{
    const tide_param_layout *entry = tide_layout_param(layout, p);
    uint64_t inner = entry->param.inner;
    uint64_t first, rows = tide_layout_rows(layout, p, rank, &first);
    uint64_t line = at / inner;
    uint64_t row = line % entry->shard_rows;
    uint64_t outer = line / entry->shard_rows;
    *element = (outer * entry->param.rows + first + row) * inner + at % inner;
    return row < rows;
}

uint8_t interp_shard_byte(uint32_t call, const tide_layout *layout, size_t p,
                          uint32_t rank, uint64_t at)
{
    uint64_t element;
    size_t size = tide_dtype_size(tide_layout_param(layout, p)->param.dtype);
    if (!find_element(layout, p, rank, at / size, &element))
        return 0;
    /* Never zero, so that padding is not mistaken for data. */
    return (uint8_t)(1 + mix(call, p, rank, at) % 255);
}

float interp_grad(uint32_t call, size_t p, uint32_t rank, uint64_t at)
{
    return (float)(int)(mix(call + 7, p, rank, at) % 255) - 127.0f;
}

uint8_t interp_storage_byte(uint32_t call, const tide_layout *layout, size_t p,
                            uint64_t at)
{
    const tide_param_layout *entry = tide_layout_param(layout, p);
    uint64_t piece = entry->shard_bytes / entry->param.outer;
    uint64_t outer = at / (piece * tide_layout_ranks(layout));
    uint64_t rank = at / piece % tide_layout_ranks(layout);
    return interp_shard_byte(call, layout, p, (uint32_t)rank,
                             outer * piece + at % piece);
}

float interp_sum(uint32_t call, const tide_layout *layout, size_t p,
                 uint32_t rank, uint64_t at)
{
    uint64_t element;
    if (!find_element(layout, p, rank, at, &element))
        return 0;
    float sum = 0;
    for (uint32_t r = 0; r < tide_layout_ranks(layout); r++)
        sum += interp_grad(call, p, r, element);
    return sum;
}

uint16_t interp_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float interp_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}
