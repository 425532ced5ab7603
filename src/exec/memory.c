/*
 * Memory of the arena that callers take: peers can read it where it is. Any
 * thread may take and give, also while another is in a call on the
 * communicator.
 */
#include "base/fail.h"
#include "exec/comm.h"

#include <stdlib.h>

typedef struct tdi_memory {
    struct tdi_memory *next;
    tdi_range *range;
    void *address;
} tdi_memory;

bool tdi_find_arena(const tide_comm *comm, const void *address, uint64_t bytes,
                    uint64_t *offset)
{
    const tdi_arena *arena = &comm->arena;
    uintptr_t start = (uintptr_t)comm->backend->arena((tide_comm *)comm, 0);
    uintptr_t at = (uintptr_t)address;
    if (at < start + arena->first || bytes > arena->bytes ||
        at - start > arena->bytes - bytes)
        return false;
    *offset = at - start;
    return true;
}

void *tdi_memory_first(const tide_comm *comm)
{
    return comm->memories->address;
}

tide_status tide_memory_take(tide_comm *comm, uint64_t bytes, void **memory)
{
    if (memory)
        *memory = NULL;
    if (!comm || !memory || !bytes)
        return tdi_fail(TIDE_ERR_INVALID,
                        "comm or memory is NULL, or no bytes are asked for");
    tdi_memory *made = malloc(sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a list");
    tide_status status = tdi_arena_take(&comm->arena, bytes, &made->range);
    if (status) {
        free(made);
        return status;
    }
    made->address = comm->backend->arena(comm, made->range->offset);
    pthread_mutex_lock(&comm->memory_lock);
    made->next = comm->memories;
    comm->memories = made;
    comm->memory_bytes += made->range->bytes;
    pthread_mutex_unlock(&comm->memory_lock);
    *memory = made->address;
    return TIDE_OK;
}

static tdi_memory *unlink_memory(tide_comm *comm, const void *address)
{
    tdi_memory *found = NULL;
    pthread_mutex_lock(&comm->memory_lock);
    for (tdi_memory **at = &comm->memories; *at; at = &(*at)->next) {
        if ((*at)->address != address)
            continue;
        found = *at;
        *at = found->next;
        comm->memory_bytes -= found->range->bytes;
        break;
    }
    pthread_mutex_unlock(&comm->memory_lock);
    return found;
}

tide_status tide_memory_give(tide_comm *comm, void *memory)
{
    if (!comm)
        return tdi_fail(TIDE_ERR_INVALID, "comm is NULL");
    if (!memory)
        return TIDE_OK;
    tdi_memory *found = unlink_memory(comm, memory);
    if (!found)
        return tdi_fail(TIDE_ERR_INVALID,
                        "rank %u: %p is not what tide_memory_take gave",
                        comm->rank, memory);
    if (comm->backend->discard)
        comm->backend->discard(comm, found->range->offset, found->range->bytes);
    tdi_arena_drop(comm, found->range);
    free(found);
    return TIDE_OK;
}

int tide_memory_owns(const tide_comm *comm, const void *memory, uint64_t bytes)
{
    uint64_t offset;
    return comm && tdi_find_arena(comm, memory, bytes, &offset);
}
