/* The arena against a plain map of its pages, over random histories. */
#include "exec/arena.h"

#include "base/util.h"
#include "support/check.h"

enum { PAGE = 4096, PAGES = 64, FIRST = 3, TAKEN_MAX = 80 };

typedef struct model {
    tdi_arena arena;
    uint32_t owner[PAGES]; /* of each page; 0: free */
    tdi_range *range[TAKEN_MAX];
    uint32_t kept[TAKEN_MAX]; /* references */
} model;

static void check_holes(const model *m)
{
    size_t hole = 0;
    for (uint32_t page = FIRST; page < PAGES;) {
        uint32_t end = page;
        while (end < PAGES && !m->owner[end])
            end++;
        if (end == page) {
            page++;
            continue;
        }
        CHECK_INT(hole, <, m->arena.count);
        CHECK_INT(m->arena.holes[hole].offset, ==, (uint64_t)page * PAGE);
        CHECK_INT(m->arena.holes[hole].bytes, ==, (end - page) * PAGE);
        hole++;
        page = end;
    }
    CHECK_INT(m->arena.count, ==, hole);
    CHECK_INT(m->arena.count, <=, m->arena.capacity);
}

/* The last run of `pages` free pages, or PAGES. */
static uint32_t find_last(const model *m, uint32_t pages)
{
    uint32_t run = 0;
    for (uint32_t page = PAGES; page-- > FIRST;) {
        run = m->owner[page] ? 0 : run + 1;
        if (run == pages)
            return page;
    }
    return PAGES;
}

/* The first run of `pages` free pages, or PAGES. */
static uint32_t find_first(const model *m, uint32_t pages)
{
    uint32_t run = 0;
    for (uint32_t page = FIRST; page < PAGES; page++) {
        run = m->owner[page] ? 0 : run + 1;
        if (run == pages)
            return page + 1 - pages;
    }
    return PAGES;
}

static void take(model *m, uint32_t i, uint64_t bytes, bool top)
{
    uint32_t pages = (uint32_t)tdi_ceil_div(tdi_max(bytes, 1), PAGE);
    uint32_t want = top ? find_last(m, pages) : find_first(m, pages);
    tdi_range *range;
    tide_status status = top ? tdi_arena_take_top(&m->arena, bytes, &range)
                             : tdi_arena_take(&m->arena, bytes, &range);
    CHECK_STATUS(status, want == PAGES ? TIDE_ERR_MEMORY : TIDE_OK);
    if (status)
        return;
    CHECK_INT(range->offset, ==, (uint64_t)want * PAGE);
    CHECK_INT(range->bytes, ==, (uint64_t)pages * PAGE);
    CHECK_INT(range->references, ==, 1);
    for (uint32_t page = want; page < want + pages; page++)
        m->owner[page] = i + 1;
    m->range[i] = range;
    m->kept[i] = 1;
}

static void drop(model *m, uint32_t i)
{
    int last = m->kept[i] == 1;
    m->kept[i]--;
    CHECK_INT(tdi_range_drop(&m->arena, m->range[i]), ==, last);
    for (uint32_t page = 0; last && page < PAGES; page++)
        if (m->owner[page] == i + 1)
            m->owner[page] = 0;
    if (last)
        m->range[i] = NULL;
}

static void live_at_random(uint64_t seed)
{
    model m = {0};
    CHECK_OK(tdi_arena_init(&m.arena, FIRST * PAGE, PAGES * PAGE, PAGE));
    for (int step = 0; step < 3000; step++) {
        uint32_t i = (uint32_t)check_between(&seed, 0, TAKEN_MAX - 1);
        /* Mostly small at odd seeds, so that the list of holes grows. */
        uint64_t most = step % 1000 < 500 ? 2 * PAGE : 20 * PAGE;
        if (!m.range[i]) {
            take(&m, i, check_between(&seed, 0, most), i % 3 == 0);
        } else if (check_between(&seed, 0, 3) == 0) {
            tdi_range_keep(&m.arena, m.range[i]);
            m.kept[i]++;
        } else {
            drop(&m, i);
        }
        check_holes(&m);
    }
    for (uint32_t i = 0; i < TAKEN_MAX; i++)
        while (m.range[i])
            drop(&m, i);
    CHECK_INT(m.arena.live, ==, 0);
    CHECK_INT(m.arena.count, ==, 1);
    check_holes(&m);
    tdi_arena_destroy(&m.arena);
}

/* Every other range given back: the longest list there can be. */
static void make_many_holes(void)
{
    enum { COUNT = 1000 };
    static tdi_range *range[COUNT];
    tdi_arena arena;
    CHECK_OK(tdi_arena_init(&arena, 0, COUNT * PAGE, PAGE));
    for (int i = 0; i < COUNT; i++)
        CHECK_OK(tdi_arena_take(&arena, 1, &range[i]));
    CHECK_INT(arena.count, ==, 0);
    for (int i = 0; i < COUNT; i += 2)
        CHECK_INT(tdi_range_drop(&arena, range[i]), ==, 1);
    CHECK_INT(arena.count, ==, COUNT / 2);
    for (int i = 1; i < COUNT; i += 2)
        CHECK_INT(tdi_range_drop(&arena, range[i]), ==, 1);
    CHECK_INT(arena.count, ==, 1);
    CHECK_INT(arena.holes[0].bytes, ==, COUNT * PAGE);
    tdi_arena_destroy(&arena);
}

/* Sizes that no rounding may wrap into something that fits. */
static void take_too_much(void)
{
    static const uint64_t sizes[] = {PAGE * 8 + 1,
                                     PAGE * 9,
                                     UINT64_MAX,
                                     UINT64_MAX - PAGE + 2,
                                     UINT64_MAX - PAGE + 1,
                                     (uint64_t)1 << 63};
    tdi_arena arena;
    tdi_range *range, *all;
    CHECK_OK(tdi_arena_init(&arena, 0, PAGE * 8, PAGE));
    for (size_t i = 0; i < TDI_COUNT(sizes); i++) {
        CHECK_STATUS(tdi_arena_take_top(&arena, sizes[i], &range),
                     TIDE_ERR_MEMORY);
        CHECK_STATUS(tdi_arena_take(&arena, sizes[i], &range), TIDE_ERR_MEMORY);
        CHECK_TEXT(tide_last_error(), "largest hole: 32768");
        CHECK_TEXT(tide_last_error(), "raise TIDE_ARENA_MIB");
    }
    CHECK_OK(tdi_arena_take(&arena, PAGE * 8, &all));
    CHECK_STATUS(tdi_arena_take(&arena, 0, &range), TIDE_ERR_MEMORY);
    CHECK_TEXT(tide_last_error(), "largest hole: 0");
    tdi_range_keep(&arena, all);
    CHECK_INT(tdi_range_drop(&arena, all), ==, 0);
    CHECK_STATUS(tdi_arena_take(&arena, 1, &range), TIDE_ERR_MEMORY);
    CHECK_INT(tdi_range_drop(&arena, all), ==, 1);
    CHECK_OK(tdi_arena_take(&arena, 0, &range));
    CHECK_INT(range->bytes, ==, PAGE);
    CHECK_INT(tdi_range_drop(&arena, range), ==, 1);
    tdi_arena_destroy(&arena);
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 8; seed++)
        live_at_random(seed * 77);
    make_many_holes();
    take_too_much();
    return 0;
}
