/* An all-gather over TCP: every rank's bytes to rank 0, and all of them back.
 */
#include "common/store.h"

#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/util.h"

#define RETRY_MS 20

struct tdi_store {
    const tdi_started *started;
    uint32_t timeout_ms;
    int *peers; /* rank 0: a socket a rank; else one, to rank 0; -1: none */
    uint32_t peer_count;
};

/* --- Environment ---------------------------------------------------------- */

static bool read_number(const char *name, uint32_t *number)
{
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return !*end && value <= INT32_MAX;
}

bool tdi_started_read(tdi_started *started)
{
    static const char *const names[][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    };
    *started = (tdi_started){.host = getenv("MASTER_ADDR")};
    if (!started->host || !read_number("MASTER_PORT", &started->port))
        return false;
    started->port++;
    for (size_t i = 0; i < TDI_COUNT(names); i++)
        if (read_number(names[i][0], &started->rank) &&
            read_number(names[i][1], &started->ranks) &&
            read_number(names[i][2], &started->local_rank) &&
            read_number(names[i][3], &started->local_ranks))
            return started->rank < started->ranks;
    return false;
}

/* --- Sockets -------------------------------------------------------------- */

static tide_status fail_peer(const tdi_store *store, uint32_t peer)
{
    return tdi_fail(TIDE_ERR_PEER,
                    "rank %" PRIu32 ": lost rank %" PRIu32
                    ", or it did not come within %" PRIu32 " ms",
                    store->started->rank, peer, store->timeout_ms);
}

static bool send_all(int peer, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count) {
        ssize_t sent = send(peer, at, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool recv_all(int peer, void *bytes, size_t count)
{
    char *at = bytes;
    while (count) {
        ssize_t got = recv(peer, at, count, 0);
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

static void set_options(int peer, uint32_t timeout_ms)
{
    const int on = 1;
    const struct timeval limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000L};
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static tide_status accept_one(tdi_store *store, int door, uint64_t deadline)
{
    struct pollfd wait = {.fd = door, .events = POLLIN};
    uint64_t now = tdi_now_ms();
    uint32_t rank;
    if (now >= deadline || poll(&wait, 1, (int)(deadline - now)) <= 0)
        return tdi_fail(TIDE_ERR_PEER,
                        "rank 0: not all ranks came within %" PRIu32 " ms",
                        store->timeout_ms);
    int peer = accept(door, NULL, NULL);
    if (peer < 0)
        return tdi_fail_errno("rank 0 cannot accept a connection");
    set_options(peer, store->timeout_ms);
    if (!recv_all(peer, &rank, sizeof(rank)) || rank >= store->peer_count ||
        !rank || store->peers[rank] >= 0) {
        close(peer); /* a stranger */
        return TIDE_OK;
    }
    store->peers[rank] = peer;
    return TIDE_OK;
}

static bool has_all(const tdi_store *store)
{
    for (uint32_t rank = 1; rank < store->peer_count; rank++)
        if (store->peers[rank] < 0)
            return false;
    return true;
}

static tide_status accept_all(tdi_store *store, uint64_t deadline)
{
    const int on = 1;
    struct sockaddr_in6 here = {.sin6_family = AF_INET6,
                                .sin6_port =
                                    htons((uint16_t)store->started->port),
                                .sin6_addr = IN6ADDR_ANY_INIT};
    tide_status status = TIDE_OK;
    int door = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (door < 0)
        return tdi_fail_errno("rank 0 has no socket");
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(door, (struct sockaddr *)&here, sizeof(here)) ||
        listen(door, SOMAXCONN))
        status = tdi_fail_errno("rank 0 cannot listen on port %" PRIu32,
                                store->started->port);
    while (!status && !has_all(store))
        status = accept_one(store, door, deadline);
    close(door);
    return status;
}

static int connect_once(const struct addrinfo *list)
{
    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        int peer = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
        if (peer >= 0 && !connect(peer, at->ai_addr, at->ai_addrlen))
            return peer;
        if (peer >= 0)
            close(peer);
    }
    return -1;
}

/* Rank 0 may be late: it is asked until the deadline. */
static tide_status connect_to_first(tdi_store *store, uint64_t deadline)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    const struct timespec nap = {.tv_nsec = RETRY_MS * 1000000L};
    char port[16];
    struct addrinfo *list;
    uint32_t rank = store->started->rank;
    snprintf(port, sizeof(port), "%" PRIu32, store->started->port);
    if (getaddrinfo(store->started->host, port, &want, &list))
        return tdi_fail(TIDE_ERR_SYSTEM, "rank %" PRIu32 ": no host %s", rank,
                        store->started->host);
    while ((store->peers[0] = connect_once(list)) < 0 &&
           tdi_now_ms() < deadline)
        nanosleep(&nap, NULL);
    freeaddrinfo(list);
    if (store->peers[0] < 0)
        return fail_peer(store, 0);
    set_options(store->peers[0], store->timeout_ms);
    return send_all(store->peers[0], &rank, sizeof(rank)) ? TIDE_OK
                                                          : fail_peer(store, 0);
}

/* --- The all-gather ------------------------------------------------------- */

static tide_status serve(const tdi_store *store, char *recv, uint64_t bytes)
{
    for (uint32_t rank = 1; rank < store->peer_count; rank++) {
        uint64_t theirs;
        if (!recv_all(store->peers[rank], &theirs, sizeof(theirs)))
            return fail_peer(store, rank);
        if (theirs != bytes)
            return tdi_fail(TIDE_ERR_MISMATCH,
                            "rank 0 gives %" PRIu64
                            " bytes to the bootstrap, rank %" PRIu32
                            " %" PRIu64,
                            bytes, rank, theirs);
        if (!recv_all(store->peers[rank], recv + rank * bytes, bytes))
            return fail_peer(store, rank);
    }
    for (uint32_t rank = 1; rank < store->peer_count; rank++)
        if (!send_all(store->peers[rank], &bytes, sizeof(bytes)) ||
            !send_all(store->peers[rank], recv, store->peer_count * bytes))
            return fail_peer(store, rank);
    return TIDE_OK;
}

static tide_status ask(const tdi_store *store, const void *send, char *recv,
                       uint64_t bytes)
{
    uint64_t echo;
    bool good = send_all(store->peers[0], &bytes, sizeof(bytes)) &&
                send_all(store->peers[0], send, bytes) &&
                recv_all(store->peers[0], &echo, sizeof(echo)) &&
                echo == bytes &&
                recv_all(store->peers[0], recv, store->started->ranks * bytes);
    return good ? TIDE_OK : fail_peer(store, 0);
}

static int allgather(void *context, const void *send, void *recv, size_t bytes)
{
    const tdi_store *store = context;
    if (store->started->rank)
        return ask(store, send, recv, bytes) != TIDE_OK;
    if (bytes)
        memcpy(recv, send, bytes);
    return serve(store, recv, bytes) != TIDE_OK;
}

tide_status tdi_store_open(const tdi_started *started, uint32_t timeout_ms,
                           tdi_store **store, tide_bootstrap *boot)
{
    uint64_t deadline = tdi_now_ms() + timeout_ms;
    tdi_store *made = *store = calloc(1, sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the bootstrap");
    made->started = started;
    made->timeout_ms = timeout_ms;
    made->peer_count = started->rank ? 1 : started->ranks;
    made->peers = malloc(made->peer_count * sizeof(*made->peers));
    if (!made->peers)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the bootstrap");
    for (uint32_t i = 0; i < made->peer_count; i++)
        made->peers[i] = -1;
    *boot = (tide_bootstrap){started->rank, started->ranks, allgather, made};
    return started->rank ? connect_to_first(made, deadline)
                         : accept_all(made, deadline);
}

void tdi_store_close(tdi_store *store)
{
    if (!store)
        return;
    for (uint32_t i = 0; store->peers && i < store->peer_count; i++)
        if (store->peers[i] >= 0)
            close(store->peers[i]);
    free(store->peers);
    free(store);
}
