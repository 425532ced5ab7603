/*
 * Arena: an allocator over offsets of one registered address range. Ranges are
 * counted: the slot that holds one and the reduce-scatters that peers still
 * read from it each have a reference; the last one gives it back. Any thread
 * may take and give: an allocator of the caller's runs beside collectives.
 */
#ifndef TIDE_EXEC_ARENA_H
#define TIDE_EXEC_ARENA_H

#include <tide/status.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tdi_range {
    uint64_t offset;
    uint64_t bytes; /* a multiple of the arena's page */
    uint32_t references;
} tdi_range;

typedef struct tdi_hole {
    uint64_t offset;
    uint64_t bytes;
} tdi_hole;

typedef struct tdi_arena {
    uint64_t first; /* what lies before is not its own */
    uint64_t bytes; /* its end */
    uint64_t page;
    tdi_hole *holes; /* free ranges by offset, no two of them touching */
    size_t count;
    size_t capacity;
    size_t live; /* ranges that are out */
    pthread_mutex_t lock;
} tdi_arena;

/* Manages the offsets [first, bytes), both multiples of page, a power of two.
 * TIDE_ERR_MEMORY. */
tide_status tdi_arena_init(tdi_arena *arena, uint64_t first, uint64_t bytes,
                           uint64_t page);
void tdi_arena_destroy(tdi_arena *arena);

/* The lowest free range that fits, with one reference. TIDE_ERR_MEMORY says
 * how much was asked for and how large the largest hole is. */
tide_status tdi_arena_take(tdi_arena *arena, uint64_t bytes, tdi_range **range);
/* The same, at the end of the highest free range that fits. */
tide_status tdi_arena_take_top(tdi_arena *arena, uint64_t bytes,
                               tdi_range **range);
/* One reference more. */
void tdi_range_keep(tdi_arena *arena, tdi_range *range);
/* Drops a reference; true when it was the last and the range is gone. */
int tdi_range_drop(tdi_arena *arena, tdi_range *range);

#endif
