/* The heap of events. */
#include "sim/heap.h"

#include <stdlib.h>

static bool before(const tdi_entry *a, const tdi_entry *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

bool tdi_heap_push(tdi_heap *heap, tdi_entry entry)
{
    if (heap->count == heap->capacity) {
        uint32_t capacity = heap->capacity ? 2 * heap->capacity : 256;
        tdi_entry *entries =
            realloc(heap->entries, (size_t)capacity * sizeof(*entries));
        if (!entries)
            return false;
        heap->entries = entries;
        heap->capacity = capacity;
    }
    entry.order = heap->pushed++;
    uint32_t at = heap->count++;
    while (at && before(&entry, &heap->entries[(at - 1) / 2])) {
        heap->entries[at] = heap->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->entries[at] = entry;
    return true;
}

bool tdi_heap_pop(tdi_heap *heap, tdi_entry *entry)
{
    if (!heap->count)
        return false;
    *entry = heap->entries[0];
    tdi_entry last = heap->entries[--heap->count];
    uint32_t at = 0, child;
    while ((child = 2 * at + 1) < heap->count) {
        if (child + 1 < heap->count &&
            before(&heap->entries[child + 1], &heap->entries[child]))
            child++;
        if (!before(&heap->entries[child], &last))
            break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    heap->entries[at] = last;
    return true;
}

void tdi_heap_free(tdi_heap *heap)
{
    free(heap->entries);
    *heap = (tdi_heap){0};
}
