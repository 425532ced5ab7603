/* The launcher's all-gather: rounds through slots that every rank maps. */
#include "exec/exchange.h"

#include "base/fail.h"
#include "base/util.h"

#include <inttypes.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOT_BYTES 8192u
/* A waiter looks this often whether its peer has ended. */
#define NAP_MS 10u

typedef struct slot {
    uint64_t bytes; /* of the whole call: ranks must agree */
    unsigned char data[SLOT_BYTES];
} slot;

/*
 * A rank fills slot k mod 2 in round k and then counts itself in. It can be in
 * round k + 2 only after all have counted themselves into k + 1, and they do
 * that after they have read round k: so two slots suffice.
 */
typedef struct seat {
    _Alignas(64) _Atomic uint32_t arrived; /* rounds; a futex word */
    atomic_bool gone;                      /* has ended or given up */
    slot slots[2];
} seat;

struct tdi_exchange {
    uint32_t ranks;
    seat seats[];
};

static size_t area_bytes(uint32_t ranks)
{
    return sizeof(tdi_exchange) + ranks * sizeof(seat);
}

tide_status tdi_exchange_create(uint32_t ranks, tdi_exchange **exchange)
{
    void *area = mmap(NULL, area_bytes(ranks), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return tdi_fail_errno(
            "no memory for the bootstrap of %" PRIu32 " ranks", ranks);
    *exchange = area;
    (*exchange)->ranks = ranks;
    return TIDE_OK;
}

void tdi_exchange_free(tdi_exchange *exchange)
{
    if (exchange)
        munmap(exchange, area_bytes(exchange->ranks));
}

void tdi_exchange_end_rank(tdi_exchange *exchange, uint32_t rank)
{
    atomic_store(&exchange->seats[rank].gone, true);
}

static void arrive(tdi_exchange_end *end)
{
    _Atomic uint32_t *arrived = &end->exchange->seats[end->rank].arrived;
    atomic_store(arrived, ++end->round);
    syscall(SYS_futex, arrived, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Waits until `peer` is in this round or later. */
static tide_status await(const tdi_exchange_end *end, uint32_t peer,
                         uint64_t deadline)
{
    seat *from = &end->exchange->seats[peer];
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
    for (;;) {
        /* `gone` first: a rank may count itself in and end right away. */
        bool gone = atomic_load(&from->gone);
        uint32_t arrived = atomic_load(&from->arrived);
        if ((int32_t)(arrived - end->round) >= 0)
            return TIDE_OK;
        if (gone)
            return tdi_fail(TIDE_ERR_PEER,
                            "rank %" PRIu32 ": rank %" PRIu32
                            " ended or gave up before the bootstrap was done",
                            end->rank, peer);
        if (tdi_now_ms() >= deadline)
            return tdi_fail(TIDE_ERR_PEER,
                            "rank %" PRIu32 ": rank %" PRIu32
                            " did not come to the bootstrap within %" PRIu32
                            " ms",
                            end->rank, peer, end->timeout_ms);
        syscall(SYS_futex, &from->arrived, FUTEX_WAIT, arrived, &nap, NULL, 0);
    }
}

/* One round: part bytes of the `bytes` that each rank gives. */
static tide_status run_round(tdi_exchange_end *end, const unsigned char *send,
                             unsigned char *recv, size_t part, size_t bytes)
{
    tdi_exchange *exchange = end->exchange;
    uint64_t deadline = tdi_now_ms() + end->timeout_ms;
    slot *mine = &exchange->seats[end->rank].slots[end->round % 2];
    uint32_t turn = end->round % 2;
    mine->bytes = bytes;
    if (part)
        memcpy(mine->data, send, part);
    arrive(end);
    for (uint32_t peer = 0; peer < exchange->ranks; peer++) {
        const slot *theirs = &exchange->seats[peer].slots[turn];
        TDI_TRY(await(end, peer, deadline));
        if (theirs->bytes != bytes)
            return tdi_fail(TIDE_ERR_MISMATCH,
                            "rank %" PRIu32 " gives %zu bytes to the "
                            "bootstrap, rank %" PRIu32 " %" PRIu64,
                            end->rank, bytes, peer, theirs->bytes);
        if (part)
            memcpy(recv + peer * bytes, theirs->data, part);
    }
    return TIDE_OK;
}

int tdi_exchange_allgather(void *context, const void *send, void *recv,
                           size_t bytes)
{
    tdi_exchange_end *end = context;
    size_t done = 0;
    do {
        size_t part = tdi_min(bytes - done, SLOT_BYTES);
        const unsigned char *from = send;
        unsigned char *to = recv;
        if (end->broken || run_round(end, part ? from + done : NULL,
                                     part ? to + done : NULL, part, bytes)) {
            end->broken = true;
            tdi_exchange_end_rank(end->exchange, end->rank);
            return 1;
        }
        done += part;
    } while (done < bytes);
    return 0;
}
