/* Slots: fixed address ranges, backed by arena memory while occupied. */
#include "base/fail.h"
#include "base/util.h"
#include "exec/queue.h"

#include <stdlib.h>

tide_slot *tdi_find_slot(const tide_comm *comm, const void *address,
                         uint64_t bytes)
{
    uintptr_t at = (uintptr_t)address;
    for (tide_slot *slot = comm->slots; slot; slot = slot->next) {
        uintptr_t start = (uintptr_t)slot->address;
        if (at >= start && bytes <= slot->bytes &&
            at - start <= slot->bytes - bytes)
            return slot;
    }
    return NULL;
}

/* A range of addresses; where those cannot be mapped anew, memory for life. */
static tide_status give_address(tide_slot *slot)
{
    tide_comm *comm = slot->comm;
    if (comm->backend->reserve)
        return comm->backend->reserve(comm, slot->bytes, &slot->address);
    TDI_TRY(tdi_arena_take(&comm->arena, slot->bytes, &slot->range));
    slot->address = comm->backend->arena(comm, slot->range->offset);
    comm->slot_bytes += slot->bytes;
    return TIDE_OK;
}

tide_status tide_slot_create(tide_comm *comm, uint64_t bytes, tide_slot **slot)
{
    if (!comm || !slot || !bytes || bytes > comm->arena_bytes)
        return tdi_fail(TIDE_ERR_INVALID,
                        "slot of %llu bytes: comm or slot is NULL, or the size "
                        "is 0 or larger than the arena",
                        (unsigned long long)bytes);
    *slot = NULL;
    tide_slot *made = calloc(1, sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a slot");
    made->comm = comm;
    made->bytes = tdi_round_up(bytes, comm->arena.page);
    tide_status status = give_address(made);
    if (status) {
        free(made);
        return status;
    }
    made->next = comm->slots;
    comm->slots = made;
    *slot = made;
    return TIDE_OK;
}

void *tide_slot_address(const tide_slot *slot)
{
    return slot ? slot->address : NULL;
}

tide_status tide_slot_occupy(tide_slot *slot)
{
    tdi_range *range;
    if (!slot)
        return tdi_fail(TIDE_ERR_INVALID, "slot is NULL");
    if (slot->range)
        return TIDE_OK;
    tide_comm *comm = slot->comm;
    TDI_TRY(tdi_arena_take(&comm->arena, slot->bytes, &range));
    tide_status status =
        comm->backend->map(comm, slot->address, range->offset, slot->bytes);
    if (status) {
        tdi_arena_drop(comm, range);
        return status;
    }
    slot->range = range;
    comm->slot_bytes += slot->bytes;
    return TIDE_OK;
}

tide_status tide_slot_vacate(tide_slot *slot)
{
    if (!slot)
        return tdi_fail(TIDE_ERR_INVALID, "slot is NULL");
    if (!slot->range || !slot->comm->backend->unmap)
        return TIDE_OK;
    tide_comm *comm = slot->comm;
    TDI_TRY(comm->backend->unmap(comm, slot->address, slot->bytes));
    tdi_arena_drop(comm, slot->range);
    slot->range = NULL;
    comm->slot_bytes -= slot->bytes;
    return TIDE_OK;
}

void tide_slot_free(tide_slot *slot)
{
    if (!slot)
        return;
    tide_comm *comm = slot->comm;
    /* The same calls must leave the same arena on all ranks, whenever the
     * device comes to the end of them. */
    if (comm->backend->queue)
        tdi_queue_settle(comm, TDI_FLOW_REDUCE);
    if (slot->range) {
        tdi_arena_drop(comm, slot->range);
        comm->slot_bytes -= slot->bytes;
    }
    if (comm->backend->release)
        comm->backend->release(comm, slot->address, slot->bytes);
    for (tide_slot **at = &comm->slots; *at; at = &(*at)->next) {
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    }
    free(slot);
}
