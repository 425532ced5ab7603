/* Layouts against a direct model of torch.chunk, and the walk over outputs. */
#include "base/util.h"
#include "layout/layout.h"
#include "support/check.h"

static tide_layout *make(const tide_param *params, size_t count, uint32_t ranks)
{
    tide_layout *layout = NULL;
    CHECK_OK(tide_layout_create(params, count, ranks, &layout));
    return layout;
}

/* torch.chunk: chunks of ceil(size / n); the last is short, others missing. */
static void model_chunk(uint64_t size, uint64_t n, uint64_t chunk,
                        uint64_t *begin, uint64_t *end)
{
    uint64_t step = n ? (size + n - 1) / n : 0;
    *begin = *end = 0;
    for (uint64_t c = 0; c <= chunk; c++) {
        *begin = *end;
        *end = *begin + step < size ? *begin + step : size;
    }
}

static void check_rows(const tide_layout *layout, size_t p)
{
    uint32_t ranks = tide_layout_ranks(layout);
    uint64_t size = tide_layout_param(layout, p)->param.rows;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t begin, end, first;
        model_chunk(size, ranks, rank, &begin, &end);
        uint64_t rows = tide_layout_rows(layout, p, rank, &first);
        CHECK_INT(rows, ==, end - begin);
        CHECK_INT(first, ==, begin);
    }
}

static void test_every_small_size(void)
{
    for (uint32_t ranks = 1; ranks <= 16; ranks++)
        for (uint64_t size = 0; size <= 64; size++) {
            tide_param param = {1, size, 3, TIDE_F32};
            tide_layout *layout = make(&param, 1, ranks);
            check_rows(layout, 0);
            tide_layout_free(layout);
        }
}

static void test_seven_over_three(void)
{
    const uint64_t rows[] = {3, 3, 1}, starts[] = {0, 3, 6};
    tide_param param = {1, 7, 1, TIDE_BF16};
    tide_layout *layout = make(&param, 1, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        uint64_t first;
        CHECK_INT(tide_layout_rows(layout, 0, rank, &first), ==, rows[rank]);
        CHECK_INT(first, ==, starts[rank]);
    }
    CHECK_INT(tide_layout_param(layout, 0)->shard_bytes, ==, 6);
    CHECK_INT(tide_layout_param(layout, 0)->storage_bytes, ==, 18);
    CHECK_INT(tide_layout_shard_bytes(layout), ==, 16);
    CHECK_INT(tide_layout_out_elems(layout), ==, 3);
    tide_layout_free(layout);
}

/* No parameter, shapes (0,) and (0, 5), and rows without elements. */
static void test_nothing(void)
{
    const tide_param params[] = {
        {1, 0, 1, TIDE_F32}, {1, 0, 5, TIDE_BF16}, {1, 9, 0, TIDE_F64}};
    for (size_t count = 0; count <= TDI_COUNT(params); count++) {
        tide_layout *layout = make(count ? params : NULL, count, 4);
        tdi_piece_iter iter;
        tdi_piece piece;
        CHECK_INT(tide_layout_count(layout), ==, count);
        CHECK_INT(tide_layout_shard_bytes(layout), ==, 0);
        CHECK_INT(tide_layout_out_elems(layout), ==, 0);
        tdi_pieces_begin(&iter, layout, 3, 0, UINT64_MAX);
        CHECK(!tdi_pieces_next(&iter, &piece));
        tide_layout_free(layout);
    }
}

/* Four experts over eight ranks: half of the ranks own nothing. */
static void test_fewer_experts_than_ranks(void)
{
    tide_param param = {1, 4, 512 * 256, TIDE_BF16};
    tide_layout *layout = make(&param, 1, 8);
    const tide_param_layout *entry = tide_layout_param(layout, 0);
    CHECK_INT(entry->shard_rows, ==, 1);
    CHECK_INT(entry->shard_bytes, ==, 512 * 256 * 2);
    CHECK_INT(entry->storage_bytes, ==, 8 * 512 * 256 * 2);
    CHECK_INT(entry->grad_elems, ==, 4 * 512 * 256);
    check_rows(layout, 0);
    tide_layout_free(layout);
}

static void check_inner_shard(tide_param param, uint32_t ranks, uint64_t rows)
{
    tide_layout *layout = make(&param, 1, ranks);
    const tide_param_layout *entry = tide_layout_param(layout, 0);
    CHECK_INT(entry->shard_rows, ==, rows);
    CHECK_INT(entry->shard_elems, ==, param.outer * rows * param.inner);
    CHECK_INT(entry->storage_bytes, ==, 4 * entry->grad_elems);
    CHECK_INT(entry->grad_elems, ==, param.outer * param.rows * param.inner);
    check_rows(layout, 0);
    tide_layout_free(layout);
}

static void test_inner_shards(void)
{
    check_inner_shard((tide_param){6, 8, 1, TIDE_F32}, 2, 4);
    check_inner_shard((tide_param){6, 8, 1, TIDE_F32}, 4, 2);
    check_inner_shard((tide_param){24, 10, 1, TIDE_F32}, 2, 5);
    check_inner_shard((tide_param){4, 6, 10, TIDE_F32}, 3, 2);
}

static void refuse(const tide_param *params, size_t count, uint32_t ranks,
                   const char *part)
{
    tide_layout *layout = (tide_layout *)&layout;
    CHECK_STATUS(tide_layout_create(params, count, ranks, &layout),
                 TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), part);
    CHECK(layout == (tide_layout *)&layout);
}

static void test_refusals(void)
{
    const tide_param good = {1, 8, 2, TIDE_F32};
    const tide_param uneven[] = {good, {6, 7, 1, TIDE_F32}};
    refuse(uneven, 2, 2, "parameter 1");
    refuse(uneven, 2, 2, "size 7");
    refuse(uneven, 2, 2, "2 ranks");
    refuse(&(tide_param){0, 8, 1, TIDE_F32}, 1, 2, "outer is 0");
    refuse(&(tide_param){1, 8, 1, TIDE_DTYPE_COUNT}, 1, 2, "no dtype");
    refuse(&(tide_param){1, 8, 1, (tide_dtype)-1}, 1, 2, "no dtype");
    refuse(&good, 1, 0, "0 ranks");
    refuse(&good, 1, TIDE_MAX_RANKS + 1, "1048577 ranks");
    refuse(NULL, 1, 2, "NULL");
    CHECK_STATUS(tide_layout_create(&good, 1, 2, NULL), TIDE_ERR_INVALID);
    tide_layout_free(NULL);
}

static void test_overflows(void)
{
    const uint64_t huge = UINT64_MAX, half = (uint64_t)1 << 32;
    const tide_param params[] = {
        {1, huge, 1, TIDE_U8},          {1, 1, huge, TIDE_U8},
        {huge - 1, 2, 1, TIDE_U8},      {1, half, half, TIDE_U8},
        {half, half, 1, TIDE_U8},       {1, huge, 0, TIDE_U8},
        {1, half, half / 4, TIDE_F64},  {1, half / 2, half / 2, TIDE_U8},
        {half / 8, half, 8, TIDE_BF16},
    };
    for (size_t p = 0; p < TDI_COUNT(params); p++)
        refuse(&params[p], 1, 2, "2^62");
    const tide_param two[] = {{1, half / 16, half / 2, TIDE_U8},
                              {1, half / 16, half / 2, TIDE_U8}};
    refuse(two, 2, 2, "parameter 1");
}

/* Empty tensors may have other dimensions of any size. */
static void test_huge_but_empty(void)
{
    const tide_param params[] = {{UINT64_MAX - 1, 0, UINT64_MAX, TIDE_F64},
                                 {UINT64_MAX - 1, 8, 0, TIDE_F64}};
    tide_layout *layout = make(params, 2, 2);
    CHECK_INT(tide_layout_out_elems(layout), ==, 0);
    tide_layout_free(layout);
}

static void test_hash(void)
{
    const tide_param base[] = {{1, 8, 3, TIDE_F32}, {2, 8, 5, TIDE_BF16}};
    tide_layout *layouts[12];
    for (size_t i = 0; i < TDI_COUNT(layouts); i++) {
        tide_param changed[] = {base[0], base[1]};
        tide_param *param = &changed[i / 4 % 2];
        param->outer += i % 4 == 0;
        param->rows += i % 4 == 1 ? 4 : 0;
        param->inner += i % 4 == 2;
        param->dtype = i % 4 == 3 ? TIDE_I64 : param->dtype;
        if (i >= 8)
            memcpy(changed, base, sizeof(base));
        layouts[i] = make(changed, i == 8 ? 1 : 2, i == 9 ? 2 : 4);
    }
    for (size_t i = 0; i < 11; i++)
        for (size_t j = i + 1; j < 11; j++)
            CHECK(tide_layout_hash(layouts[i]) != tide_layout_hash(layouts[j]));
    CHECK(tide_layout_hash(layouts[10]) == tide_layout_hash(layouts[11]));
    for (size_t i = 0; i < TDI_COUNT(layouts); i++)
        tide_layout_free(layouts[i]);
}

static tide_param random_param(uint64_t *seed, uint32_t ranks)
{
    tide_param param = {1, check_between(seed, 0, 40),
                        check_between(seed, 0, 6),
                        (tide_dtype)check_between(seed, 0, TIDE_F64)};
    if (check_between(seed, 0, 3) == 0) {
        param.outer = check_between(seed, 2, 5);
        param.rows = ranks * check_between(seed, 0, 4);
    }
    return param;
}

static void check_offsets(const tide_layout *layout)
{
    uint64_t bytes = 0, elems = 0;
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *entry = tide_layout_param(layout, p);
        CHECK_INT(entry->shard_offset % 16, ==, 0);
        CHECK_INT(entry->shard_offset, ==, bytes);
        CHECK_INT(entry->out_offset, ==, elems);
        CHECK_INT(entry->storage_bytes, ==,
                  tide_layout_ranks(layout) * entry->shard_bytes);
        bytes += (entry->shard_bytes + 15) / 16 * 16;
        elems += entry->shard_elems;
        check_rows(layout, p);
    }
    CHECK_INT(tide_layout_shard_bytes(layout), ==, bytes);
    CHECK_INT(tide_layout_out_elems(layout), ==, elems);
}

/*
 * What the output element at `out` is: its parameter, and where it comes from
 * in the gradient (-1: padding), found by counting through the definition.
 */
static int64_t model_source(const tide_layout *layout, uint32_t rank,
                            uint64_t out, size_t *p)
{
    const tide_param_layout *entry = tide_layout_param(layout, 0);
    for (*p = 0; out >= entry->out_offset + entry->shard_elems;)
        entry = tide_layout_param(layout, ++*p);
    uint64_t inside = out - entry->out_offset, begin, end;
    uint64_t column = inside % entry->param.inner;
    uint64_t line = inside / entry->param.inner;
    uint64_t row = line % entry->shard_rows, o = line / entry->shard_rows;
    model_chunk(entry->param.rows, tide_layout_ranks(layout), rank, &begin,
                &end);
    if (begin + row >= end)
        return -1;
    return (int64_t)((o * entry->param.rows + begin + row) *
                         entry->param.inner +
                     column);
}

static void check_piece(const tide_layout *layout, uint32_t rank,
                        const tdi_piece *piece)
{
    CHECK_INT(piece->elems, >, 0);
    for (uint64_t i = 0; i < piece->elems; i++) {
        size_t p;
        int64_t source = model_source(layout, rank, piece->out_offset + i, &p);
        CHECK_INT(piece->param, ==, p);
        CHECK_INT(piece->real, ==, source >= 0);
        if (piece->real)
            CHECK_INT(piece->grad_offset + i, ==, source);
    }
}

/* Pieces tile the range, and none could be joined with the one before. */
static void check_range(const tide_layout *layout, uint32_t rank,
                        uint64_t first, uint64_t last)
{
    tdi_piece_iter iter;
    tdi_piece piece, before = {.param = SIZE_MAX};
    uint64_t position = first;
    tdi_pieces_begin(&iter, layout, rank, first, last);
    while (tdi_pieces_next(&iter, &piece)) {
        CHECK_INT(piece.out_offset, ==, position);
        check_piece(layout, rank, &piece);
        if (piece.param == before.param && piece.real == before.real)
            CHECK(piece.real &&
                  piece.grad_offset != before.grad_offset + before.elems);
        position += piece.elems;
        before = piece;
    }
    CHECK_INT(position, ==, last);
}

static void test_random_groups(void)
{
    uint64_t seed = 20240731;
    for (int round = 0; round < 300; round++) {
        tide_param params[12];
        uint32_t ranks = (uint32_t)check_between(&seed, 1, 9);
        size_t count = check_between(&seed, 1, TDI_COUNT(params));
        for (size_t p = 0; p < count; p++)
            params[p] = random_param(&seed, ranks);
        tide_layout *layout = make(params, count, ranks);
        check_offsets(layout);
        uint64_t elems = tide_layout_out_elems(layout);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint64_t first = check_between(&seed, 0, elems);
            check_range(layout, rank, 0, elems);
            check_range(layout, rank, first,
                        check_between(&seed, first, elems));
        }
        tide_layout_free(layout);
    }
}

static void test_piece_counts(void)
{
    tide_param params[] = {{6, 8, 2, TIDE_F32}, {1, 7, 2, TIDE_F32}};
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        tide_layout *layout = make(params, 2, ranks);
        tdi_piece_iter iter;
        tdi_piece piece;
        int count[2][2] = {{0}};
        tdi_pieces_begin(&iter, layout, ranks - 1, 0, UINT64_MAX);
        while (tdi_pieces_next(&iter, &piece))
            count[piece.param][piece.real]++;
        CHECK_INT(count[0][1], ==, ranks == 1 ? 1 : 6);
        CHECK_INT(count[0][0], ==, 0);
        CHECK_INT(count[1][1], ==, 1);
        CHECK_INT(count[1][0], ==, ranks == 1 ? 0 : 1);
        tide_layout_free(layout);
    }
}

/* Every range of one element begun anew: a linear search would take 8e10
 * steps, over half a minute. */
static void test_many_params(void)
{
    enum { COUNT = 400000 };
    tide_param *params = malloc(COUNT * sizeof(*params));
    CHECK(params != NULL);
    for (size_t p = 0; p < COUNT; p++)
        params[p] = (tide_param){1, p % 5, p % 3, TIDE_BF16};
    tide_layout *layout = make(params, COUNT, 3);
    check_offsets(layout);
    uint64_t elems = tide_layout_out_elems(layout), start = tdi_now_ms();
    for (uint64_t first = 0; first < elems; first++) {
        tdi_piece_iter iter;
        tdi_piece piece;
        tdi_pieces_begin(&iter, layout, 1, first, first + 1);
        CHECK(tdi_pieces_next(&iter, &piece));
        CHECK_INT(piece.out_offset, ==, first);
        CHECK_INT(piece.elems, ==, 1);
        CHECK(!tdi_pieces_next(&iter, &piece));
    }
    CHECK_INT(tdi_now_ms() - start, <, 5000);
    tide_layout_free(layout);
    free(params);
}

static void test_dtypes(void)
{
    CHECK_INT(tide_dtype_size(TIDE_BF16), ==, 2);
    CHECK_INT(tide_dtype_size(TIDE_DTYPE_COUNT), ==, 0);
    CHECK(!strcmp(tide_dtype_name(TIDE_BF16), "bf16"));
    CHECK(!strcmp(tide_dtype_name((tide_dtype)-1), "?"));
    for (int dtype = 0; dtype < TIDE_DTYPE_COUNT; dtype++)
        CHECK(tide_dtype_name((tide_dtype)dtype) != NULL);
}

int main(void)
{
    test_every_small_size();
    test_seven_over_three();
    test_nothing();
    test_fewer_experts_than_ranks();
    test_inner_shards();
    test_refusals();
    test_overflows();
    test_huge_but_empty();
    test_hash();
    test_random_groups();
    test_piece_counts();
    test_many_params();
    test_dtypes();
    return 0;
}
