/* First-fit over a sorted list of holes. Ranges are few and large. */
#include "exec/arena.h"

#include "base/fail.h"
#include "base/util.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

tide_status tdi_arena_init(tdi_arena *arena, uint64_t first, uint64_t bytes,
                           uint64_t page)
{
    *arena = (tdi_arena){
        .first = first, .bytes = bytes, .page = page, .capacity = 16};
    arena->holes = malloc(arena->capacity * sizeof(tdi_hole));
    if (!arena->holes)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for an arena's list");
    arena->count = 1;
    arena->holes[0] = (tdi_hole){first, bytes - first};
    pthread_mutex_init(&arena->lock, NULL);
    return TIDE_OK;
}

void tdi_arena_destroy(tdi_arena *arena)
{
    if (arena->holes)
        pthread_mutex_destroy(&arena->lock);
    free(arena->holes);
    *arena = (tdi_arena){0};
}

static void remove_hole(tdi_arena *arena, size_t i)
{
    arena->count--;
    memmove(&arena->holes[i], &arena->holes[i + 1],
            (arena->count - i) * sizeof(tdi_hole));
}

/* With n ranges out there can be n + 1 holes: make room at take, so that
 * giving back cannot fail. */
static tide_status reserve_hole(tdi_arena *arena)
{
    if (arena->live + 2 <= arena->capacity)
        return TIDE_OK;
    tdi_hole *holes =
        realloc(arena->holes, 2 * arena->capacity * sizeof(tdi_hole));
    if (!holes)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for an arena's list");
    arena->holes = holes;
    arena->capacity *= 2;
    return TIDE_OK;
}

static tdi_hole *find_hole(const tdi_arena *arena, uint64_t wanted, bool top)
{
    for (size_t i = 0; i < arena->count; i++) {
        tdi_hole *hole = &arena->holes[top ? arena->count - 1 - i : i];
        if (hole->bytes >= wanted)
            return hole;
    }
    return NULL;
}

static tide_status fail_take(const tdi_arena *arena, uint64_t bytes)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < arena->count; i++)
        largest = tdi_max(largest, arena->holes[i].bytes);
    return tdi_fail(TIDE_ERR_MEMORY,
                    "the arena of %llu MiB has no room for %llu bytes (largest "
                    "hole: %llu); raise TIDE_ARENA_MIB",
                    (unsigned long long)(arena->bytes >> 20),
                    (unsigned long long)bytes, (unsigned long long)largest);
}

static tide_status take(tdi_arena *arena, uint64_t bytes, bool top,
                        tdi_range **range)
{
    uint64_t wanted = bytes > arena->bytes
                          ? UINT64_MAX /* no rounding past the end */
                          : tdi_round_up(tdi_max(bytes, 1), arena->page);
    TDI_TRY(reserve_hole(arena));
    tdi_hole *hole = find_hole(arena, wanted, top);
    if (!hole)
        return fail_take(arena, bytes);
    tdi_range *made = malloc(sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a range");
    *made = (tdi_range){hole->offset, wanted, 1};
    if (top)
        made->offset += hole->bytes - wanted;
    else
        hole->offset += wanted;
    hole->bytes -= wanted;
    if (!hole->bytes)
        remove_hole(arena, (size_t)(hole - arena->holes));
    arena->live++;
    *range = made;
    return TIDE_OK;
}

static tide_status take_locked(tdi_arena *arena, uint64_t bytes, bool top,
                               tdi_range **range)
{
    pthread_mutex_lock(&arena->lock);
    tide_status status = take(arena, bytes, top, range);
    pthread_mutex_unlock(&arena->lock);
    return status;
}

tide_status tdi_arena_take(tdi_arena *arena, uint64_t bytes, tdi_range **range)
{
    return take_locked(arena, bytes, false, range);
}

tide_status tdi_arena_take_top(tdi_arena *arena, uint64_t bytes,
                               tdi_range **range)
{
    return take_locked(arena, bytes, true, range);
}

void tdi_range_keep(tdi_arena *arena, tdi_range *range)
{
    pthread_mutex_lock(&arena->lock);
    range->references++;
    pthread_mutex_unlock(&arena->lock);
}

static void give_back(tdi_arena *arena, uint64_t offset, uint64_t bytes)
{
    size_t i = 0;
    while (i < arena->count && arena->holes[i].offset < offset)
        i++;
    tdi_hole *before = i ? &arena->holes[i - 1] : NULL;
    tdi_hole *after = i < arena->count ? &arena->holes[i] : NULL;
    if (before && before->offset + before->bytes == offset) {
        before->bytes += bytes;
        if (after && before->offset + before->bytes == after->offset) {
            before->bytes += after->bytes;
            remove_hole(arena, i);
        }
    } else if (after && offset + bytes == after->offset) {
        after->offset = offset;
        after->bytes += bytes;
    } else {
        memmove(&arena->holes[i + 1], &arena->holes[i],
                (arena->count - i) * sizeof(tdi_hole));
        arena->holes[i] = (tdi_hole){offset, bytes};
        arena->count++;
    }
}

int tdi_range_drop(tdi_arena *arena, tdi_range *range)
{
    pthread_mutex_lock(&arena->lock);
    int last = !--range->references;
    if (last) {
        give_back(arena, range->offset, range->bytes);
        arena->live--;
    }
    pthread_mutex_unlock(&arena->lock);
    if (last)
        free(range);
    return last;
}
