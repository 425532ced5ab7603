/*
 * Memory for allocators that know no communicator. An allocator calls from any
 * thread, under locks of its own, also while another thread is in a collective
 * or after the communicator has gone: nothing here waits for anything.
 */
#include "base/fail.h"
#include "exec/comm.h"

#include <stdlib.h>

/* Who gave an address out. */
typedef struct given {
    struct given *next;
    void *memory;
    tide_comm *comm; /* NULL: plain memory */
    void (*plain_give)(void *memory);
} given;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tide_comm *selected;
static given *all;

tide_status tide_pool_select(tide_comm *comm)
{
    if (!comm || !comm->backend->queue)
        return tdi_fail(TIDE_ERR_INVALID,
                        "comm is NULL, or its backend has no device memory");
    pthread_mutex_lock(&lock);
    selected = comm;
    pthread_mutex_unlock(&lock);
    return TIDE_OK;
}

void tdi_pool_forget(tide_comm *comm)
{
    pthread_mutex_lock(&lock);
    if (selected == comm)
        selected = NULL;
    for (given **at = &all; *at;) {
        given *entry = *at;
        if (entry->comm != comm) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        free(entry);
    }
    pthread_mutex_unlock(&lock);
}

/* From the arena, else from the device. */
static void *take(tide_comm *comm, uint64_t bytes, given *entry)
{
    if (!tide_memory_take(comm, bytes, &entry->memory)) {
        entry->comm = comm;
        return entry->memory;
    }
    entry->memory = comm->backend->queue->plain_take(comm, bytes);
    entry->plain_give = comm->backend->queue->plain_give;
    return entry->memory;
}

void *tide_pool_malloc(int64_t bytes, int device, tide_stream stream)
{
    (void)device;
    (void)stream;
    given *entry = bytes > 0 ? calloc(1, sizeof(*entry)) : NULL;
    void *memory = NULL;
    if (!entry)
        return NULL;
    pthread_mutex_lock(&lock);
    if (selected)
        memory = take(selected, (uint64_t)bytes, entry);
    if (memory) {
        entry->next = all;
        all = entry;
    }
    pthread_mutex_unlock(&lock);
    if (!memory)
        free(entry);
    return memory;
}

void tide_pool_free(void *memory, int64_t bytes, int device, tide_stream stream)
{
    (void)bytes;
    (void)device;
    (void)stream;
    given *entry = NULL;
    pthread_mutex_lock(&lock);
    for (given **at = &all; *at && !entry;) {
        if ((*at)->memory == memory) {
            entry = *at;
            *at = entry->next;
        } else {
            at = &(*at)->next;
        }
    }
    if (entry && entry->comm)
        tide_memory_give(entry->comm, memory);
    pthread_mutex_unlock(&lock);
    if (entry && !entry->comm)
        entry->plain_give(memory);
    free(entry);
}
