/* A heap of what happens when; equal times come in the order of pushing. */
#ifndef TIDE_SIM_HEAP_H
#define TIDE_SIM_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tdi_entry {
    double at;
    uint64_t order; /* set by push */
    uint64_t value;
    uint32_t task; /* UINT32_MAX: a message */
    uint32_t stamp;
} tdi_entry;

typedef struct tdi_heap {
    tdi_entry *entries;
    uint32_t count;
    uint32_t capacity;
    uint64_t pushed;
} tdi_heap;

/* False when memory is out. */
bool tdi_heap_push(tdi_heap *heap, tdi_entry entry);
/* False when it is empty. */
bool tdi_heap_pop(tdi_heap *heap, tdi_entry *entry);
void tdi_heap_free(tdi_heap *heap);

#endif
