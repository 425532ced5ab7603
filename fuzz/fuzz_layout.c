/*
 * Fuzzes the layout: small groups against torch.chunk done row by row, and
 * groups of any 64-bit sizes, which must be refused or right.
 */
#include "fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "layout/layout.h"

enum { MAX_PARAMS = 6, MAX_RANKS = 20 };

typedef unsigned __int128 wide;

#define EXPECT(condition)                                                      \
    do {                                                                       \
        if (!(condition))                                                      \
            fail(#condition, __LINE__);                                        \
    } while (0)

static tide_param params[MAX_PARAMS];
static size_t count;
static uint32_t ranks;

__attribute__((noreturn)) static void fail(const char *what, int line)
{
    fprintf(stderr, "fuzz_layout.c:%d: %s is false: ranks %u", line, what,
            ranks);
    for (size_t p = 0; p < count; p++)
        fprintf(stderr, ", {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %s}",
                params[p].outer, params[p].rows, params[p].inner,
                tide_dtype_name(params[p].dtype));
    fputc('\n', stderr);
    abort();
}

/* --- The model: which element of the tensor lies where in a shard --------- */

/* The padded shards of one parameter: element[rank][at], -1 for padding. */
typedef struct model {
    uint64_t shard_rows;
    uint64_t shard_elems;
    uint64_t rows[MAX_RANKS];
    uint64_t first[MAX_RANKS];
    int64_t *element;
} model;

/* torch.chunk hands out ceil(rows / ranks) rows at a time while there are any;
 * ranks that get none have an empty shard, which begins at the end. */
static void deal_rows(model *m, const tide_param *param)
{
    uint64_t next = 0;
    m->shard_rows = (param->rows + ranks - 1) / ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        m->first[r] = next;
        m->rows[r] = 0;
        while (m->rows[r] < m->shard_rows && next < param->rows) {
            m->rows[r]++;
            next++;
        }
    }
    EXPECT(next == param->rows);
}

static int64_t find_element(const model *m, const tide_param *param, uint32_t r,
                            uint64_t at)
{
    uint64_t column = at % param->inner;
    uint64_t row = at / param->inner % m->shard_rows;
    uint64_t outer = at / param->inner / m->shard_rows;
    if (row >= m->rows[r])
        return -1;
    row += m->first[r];
    return (int64_t)((outer * param->rows + row) * param->inner + column);
}

static model make_model(const tide_param *param)
{
    model m;
    deal_rows(&m, param);
    m.shard_elems = param->outer * m.shard_rows * param->inner;
    m.element = malloc((ranks * m.shard_elems + 1) * sizeof(int64_t));
    EXPECT(m.element);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint64_t at = 0; at < m.shard_elems; at++)
            m.element[r * m.shard_elems + at] = find_element(&m, param, r, at);
    return m;
}

/* --- Small groups ------------------------------------------------------- */

static void check_param(const tide_layout *layout, size_t p, const model *m)
{
    const tide_param_layout *entry = tide_layout_param(layout, p);
    size_t size = tide_dtype_size(params[p].dtype);
    EXPECT(entry->shard_rows == m->shard_rows);
    EXPECT(entry->shard_elems == m->shard_elems);
    EXPECT(entry->shard_bytes == m->shard_elems * size);
    EXPECT(entry->storage_bytes == ranks * entry->shard_bytes);
    EXPECT(entry->grad_elems ==
           params[p].outer * params[p].rows * params[p].inner);
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t first;
        EXPECT(tide_layout_rows(layout, p, r, &first) == m->rows[r]);
        EXPECT(first == m->first[r]);
    }
}

static void check_offsets(const tide_layout *layout)
{
    uint64_t bytes = 0, elems = 0;
    for (size_t p = 0; p < count; p++) {
        const tide_param_layout *entry = tide_layout_param(layout, p);
        EXPECT(entry->shard_offset == (bytes + 15) / 16 * 16);
        EXPECT(entry->out_offset == elems);
        bytes = entry->shard_offset + entry->shard_bytes;
        elems += entry->shard_elems;
    }
    EXPECT(tide_layout_shard_bytes(layout) == (bytes + 15) / 16 * 16);
    EXPECT(tide_layout_out_elems(layout) == elems);
}

/* One piece covers the elements that the model has there, and the next one
 * could not have been part of it. */
static void check_piece(const tide_layout *layout, const model *models,
                        uint32_t rank, const tdi_piece *piece,
                        const tdi_piece *before)
{
    const tide_param_layout *entry = tide_layout_param(layout, piece->param);
    const model *m = &models[piece->param];
    uint64_t at = piece->out_offset - entry->out_offset;
    EXPECT(piece->elems > 0 && at + piece->elems <= m->shard_elems);
    for (uint64_t i = 0; i < piece->elems; i++) {
        int64_t element = m->element[rank * m->shard_elems + at + i];
        EXPECT(piece->real ? element == (int64_t)(piece->grad_offset + i)
                           : element < 0);
    }
    if (before->elems && before->param == piece->param &&
        before->real == piece->real)
        EXPECT(piece->real &&
               before->grad_offset + before->elems != piece->grad_offset);
}

static void check_pieces(const tide_layout *layout, const model *models,
                         uint32_t rank, uint64_t first, uint64_t last)
{
    tdi_piece_iter iter;
    tdi_piece piece, before = {0};
    uint64_t at = first, end = tdi_min(last, tide_layout_out_elems(layout));
    tdi_pieces_begin(&iter, layout, rank, first, last);
    for (; tdi_pieces_next(&iter, &piece); before = piece) {
        EXPECT(piece.out_offset == at);
        check_piece(layout, models, rank, &piece, &before);
        at += piece.elems;
    }
    EXPECT(at == tdi_max(first, end));
}

/* The hash knows of every field. */
static void check_hash(const tide_layout *layout, fuzz_bytes *in)
{
    tide_layout *other;
    tide_param changed[MAX_PARAMS];
    uint64_t hash = tide_layout_hash(layout);
    EXPECT(tide_layout_create(params, count, ranks, &other) == TIDE_OK);
    EXPECT(tide_layout_hash(other) == hash);
    tide_layout_free(other);
    for (size_t p = 0; p < count; p++)
        changed[p] = params[p];
    if (!count)
        return;
    tide_param *param = &changed[fuzz_pick(in, 0, (uint32_t)count - 1)];
    switch (fuzz_pick(in, 0, 2)) {
    case 0:
        param->rows += ranks;
        break;
    case 1:
        param->inner++;
        break;
    default:
        param->dtype = (param->dtype + 1) % TIDE_DTYPE_COUNT;
    }
    EXPECT(tide_layout_create(changed, count, ranks, &other) == TIDE_OK);
    EXPECT(tide_layout_hash(other) != hash);
    tide_layout_free(other);
}

static void decode_small(fuzz_bytes *in)
{
    for (size_t p = 0; p < count; p++) {
        uint32_t kind = fuzz_take(in);
        uint32_t rows = fuzz_pick(in, 0, 63);
        bool even = kind & 8; /* Shard(d > 0) */
        params[p] = (tide_param){
            .outer = even ? 1 + kind / 16 % 4 : 1,
            .rows = even ? rows % 4 * ranks : rows,
            .inner = fuzz_pick(in, 0, 9),
            .dtype = kind % TIDE_DTYPE_COUNT,
        };
    }
}

static void try_small(fuzz_bytes *in)
{
    tide_layout *layout;
    model models[MAX_PARAMS];
    decode_small(in);
    EXPECT(tide_layout_create(params, count, ranks, &layout) == TIDE_OK);
    for (size_t p = 0; p < count; p++) {
        models[p] = make_model(&params[p]);
        check_param(layout, p, &models[p]);
    }
    check_offsets(layout);
    uint64_t elems = tide_layout_out_elems(layout);
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t first = elems * fuzz_take(in) / 256;
        check_pieces(layout, models, r, 0, elems);
        check_pieces(layout, models, r, first, first + fuzz_take(in));
    }
    check_hash(layout, in);
    for (size_t p = 0; p < count; p++)
        free(models[p].element);
    tide_layout_free(layout);
}

/* --- Groups of any size ------------------------------------------------- */

static uint64_t take_wide(fuzz_bytes *in)
{
    uint64_t value = 0;
    uint32_t bytes = fuzz_pick(in, 0, 8);
    for (uint32_t i = 0; i < bytes; i++)
        value = value << 8 | fuzz_take(in);
    return value;
}

/* a * b, or a number past all limits. */
static wide multiply(wide a, wide b)
{
    wide limit = (wide)1 << 100;
    return a && b > limit / a ? limit : a * b;
}

/* Only what is illegal, or comes near 2^62 bytes with every element as wide as
 * any and every 0 as a 1, may be refused. */
static bool may_refuse(void)
{
    wide most = 0;
    for (size_t p = 0; p < count; p++) {
        const tide_param *param = &params[p];
        if (!param->outer || !tide_dtype_size(param->dtype) ||
            (param->outer > 1 && param->rows % ranks))
            return true;
        wide elems =
            multiply((wide)param->rows + ranks, param->inner + (wide)1);
        most += multiply(multiply(elems, param->outer), 8) + 16 * ranks;
    }
    return most >> 61 != 0;
}

static void check_wide(const tide_layout *layout)
{
    wide shard = 0;
    for (size_t p = 0; p < count; p++) {
        const tide_param_layout *entry = tide_layout_param(layout, p);
        wide rows = ((wide)params[p].rows + ranks - 1) / ranks;
        wide elems = multiply(multiply(rows, params[p].inner), params[p].outer);
        wide bytes = multiply(elems, tide_dtype_size(params[p].dtype));
        EXPECT(entry->shard_rows == rows);
        EXPECT(entry->shard_elems == elems);
        EXPECT(entry->shard_bytes == bytes);
        EXPECT(entry->storage_bytes == bytes * ranks);
        EXPECT(entry->shard_offset == shard);
        shard += (bytes + 15) / 16 * 16;
    }
    EXPECT(tide_layout_shard_bytes(layout) == shard);
    EXPECT(shard * ranks >> 62 == 0);
}

static void try_wide(fuzz_bytes *in)
{
    tide_layout *layout;
    ranks = (uint32_t)take_wide(in) % (TIDE_MAX_RANKS + 2);
    for (size_t p = 0; p < count; p++) {
        params[p].outer = take_wide(in);
        params[p].rows = take_wide(in);
        params[p].inner = take_wide(in);
        params[p].dtype = fuzz_pick(in, 0, TIDE_DTYPE_COUNT + 1);
    }
    tide_status status = tide_layout_create(params, count, ranks, &layout);
    if (!ranks || ranks > TIDE_MAX_RANKS) {
        EXPECT(status == TIDE_ERR_INVALID);
        return;
    }
    EXPECT(status == TIDE_OK || status == TIDE_ERR_INVALID);
    EXPECT(status == TIDE_OK || may_refuse());
    if (status)
        return;
    check_wide(layout);
    tide_layout_free(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_bytes in = {data, bytes};
    uint32_t kind = fuzz_take(&in);
    ranks = fuzz_pick(&in, 1, MAX_RANKS);
    count = kind / 2 % (MAX_PARAMS + 1);
    if (kind % 2)
        try_wide(&in);
    else
        try_small(&in);
    return 0;
}
