/*
 * Making plans: the same input gives the same plan, what ranks must agree on
 * is in the key, bad input is refused. Texts of four plans are kept in
 * tests/golden.
 */
#include "support/check.h"
#include "support/golden.h"
#include "support/planset.h"

#include "base/util.h"

/* --- Repeatable plans ------------------------------------------------------
 */

static void test_same_plans_twice(void)
{
    tide_topology topology = {3, 2};
    for (int coll = 0; coll < 2; coll++) {
        tide_plan_options options = {.coll = (tide_coll)coll};
        planset a = make_plans(find_group("mixed"), topology, &options);
        planset b = make_plans(find_group("mixed"), topology, &options);
        for (uint32_t r = 0; r < a.ranks; r++) {
            CHECK(tide_plan_hash(a.plans[r]) == tide_plan_hash(b.plans[r]));
            CHECK(a.plans[r]->key == a.plans[0]->key);
            for (uint32_t s = 0; s < r; s++)
                CHECK(tide_plan_hash(a.plans[r]) != tide_plan_hash(a.plans[s]));
        }
        free_plans(&a);
        free_plans(&b);
    }
}

/* The key is what ranks compare: each thing they must agree on changes it. */
static void test_key_tells_options_apart(void)
{
    static const tide_plan_options gathers[] = {
        {.coll = TIDE_ALL_GATHER},
        {.coll = TIDE_ALL_GATHER, .push = 1},
        {.coll = TIDE_ALL_GATHER, .chunk_bytes = 4096},
        {.coll = TIDE_ALL_GATHER, .window = 2},
        {.coll = TIDE_REDUCE_SCATTER},
        {.coll = TIDE_REDUCE_SCATTER, .grad_dtype = TIDE_F32},
        {.coll = TIDE_REDUCE_SCATTER, .out_dtype = TIDE_BF16},
        {.coll = TIDE_REDUCE_SCATTER, .staged = 1},
        {.coll = TIDE_REDUCE_SCATTER, .switch_reduce = 1},
        {.coll = TIDE_REDUCE_SCATTER, .block_bytes = 4096},
        {.coll = TIDE_REDUCE_SCATTER, .recv_slots = 3},
        {.coll = TIDE_REDUCE_SCATTER, .unit_bytes = 1}};
    uint64_t keys[2 * TDI_COUNT(gathers)];
    for (size_t i = 0; i < TDI_COUNT(keys); i++) {
        size_t at = i % TDI_COUNT(gathers);
        const char *group = i == at ? "plain" : "uneven";
        planset set =
            make_plans(find_group(group), (tide_topology){2, 2}, &gathers[at]);
        keys[i] = set.plans[0]->key;
        for (size_t j = 0; j < i; j++)
            CHECK(keys[i] != keys[j]);
        free_plans(&set);
    }
}

/* --- Bad input --------------------------------------------------------------
 */

static void test_bad_input(void)
{
    tide_param param = {1, 8, 2, TIDE_BF16};
    tide_layout *layout;
    tide_plan *plan = NULL;
    tide_topology good = {2, 2};
    tide_plan_options options = {.coll = TIDE_ALL_GATHER};
    CHECK_OK(tide_layout_create(&param, 1, 4, &layout));
    CHECK_STATUS(tide_plan_create(layout, good, 0, &options, NULL),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_plan_create(NULL, good, 0, &options, &plan),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_plan_create(layout, good, 0, NULL, &plan),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_plan_create(layout, good, 4, &options, &plan),
                 TIDE_ERR_INVALID);
    static const tide_topology wrong[] = {{2, 1},        {0, 4},
                                          {4, 0},        {1u << 30, 4},
                                          {4, 1u << 30}, {1u << 31, 1u << 31}};
    for (size_t i = 0; i < TDI_COUNT(wrong); i++)
        CHECK_STATUS(tide_plan_create(layout, wrong[i], 0, &options, &plan),
                     TIDE_ERR_INVALID);
    options.coll = (tide_coll)2;
    CHECK_STATUS(tide_plan_create(layout, good, 0, &options, &plan),
                 TIDE_ERR_INVALID);
    options = (tide_plan_options){.coll = TIDE_REDUCE_SCATTER,
                                  .grad_dtype = TIDE_F16};
    CHECK_STATUS(tide_plan_create(layout, good, 0, &options, &plan),
                 TIDE_ERR_INVALID);
    options =
        (tide_plan_options){.coll = TIDE_REDUCE_SCATTER, .out_dtype = TIDE_I32};
    CHECK_STATUS(tide_plan_create(layout, good, 0, &options, &plan),
                 TIDE_ERR_INVALID);
    CHECK(!plan);
    tide_plan_free(NULL);
    tide_layout_free(layout);
}

/* --- Texts -------------------------------------------------------------------
 */

/* Rank 1's plan. */
static void write_plan(FILE *to, const void *context)
{
    planset set =
        make_plans(find_group("plain"), (tide_topology){2, 2}, context);
    tide_plan_print(set.plans[1], to);
    free_plans(&set);
}

static void test_golden_texts(void)
{
    static const struct {
        const char *name;
        tide_plan_options options;
    } texts[] = {
        {"ag_pull.txt", {.coll = TIDE_ALL_GATHER, .chunk_bytes = 4096}},
        {"ag_push.txt",
         {.coll = TIDE_ALL_GATHER, .push = 1, .chunk_bytes = 48, .window = 1}},
        {"rs_direct.txt", {.coll = TIDE_REDUCE_SCATTER, .block_bytes = 4096}},
        {"rs_staged.txt",
         {.coll = TIDE_REDUCE_SCATTER,
          .staged = 1,
          .switch_reduce = 1,
          .block_bytes = 128,
          .out_dtype = TIDE_BF16,
          .unit_bytes = 1}},
        {"rs_units.txt",
         {.coll = TIDE_REDUCE_SCATTER, .staged = 1, .block_bytes = 128}}};
    for (size_t i = 0; i < TDI_COUNT(texts); i++)
        check_golden(texts[i].name, write_plan, &texts[i].options);
}

int main(void)
{
    test_same_plans_twice();
    test_key_tells_options_apart();
    test_bad_input();
    test_golden_texts();
    return 0;
}
