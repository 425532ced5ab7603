/*
 * Segments: one memfd a rank, handed to every other rank of the machine over a
 * Unix socket in the abstract name space. Each pair of ranks keeps its
 * connection: it hangs up when either process ends.
 */
#include "node/node.h"

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Where a rank listens, and the word by which peers know each other. */
typedef struct node_card {
    struct sockaddr_un address;
    uint32_t length;
    uint64_t token;
} node_card;

typedef struct greeting {
    uint64_t token; /* of the listener */
    uint32_t rank;  /* of the sender */
} greeting;

static char *map_segment(int fd, uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Spinning pays only where every rank has a core of its own. */
static uint32_t choose_spin(uint32_t ranks)
{
    int64_t spin = tdi_env_number(TDI_ENV_SPIN);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (spin >= 0)
        return (uint32_t)spin;
    return cores >= (long)ranks ? 2000 : 0;
}

static tide_status make_node(tide_comm *comm, uint32_t ranks)
{
    tdi_node *node = calloc(1, sizeof(*node));
    if (!node)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %u peers", ranks);
    comm->node = node;
    node->memory = -1;
    node->ranks = ranks;
    node->spin = choose_spin(ranks);
    node->peers = calloc(ranks, sizeof(node_peer));
    if (!node->peers)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %u peers", ranks);
    for (uint32_t r = 0; r < ranks; r++)
        node->peers[r].socket = node->peers[r].process = -1;
    return TIDE_OK;
}

static tide_status make_segment(tide_comm *comm, uint32_t ranks, uint64_t bytes)
{
    TDI_TRY(make_node(comm, ranks));
    tdi_node *node = node_of(comm);
    size_t counters = (size_t)TDI_FLOWS * TIDE_CH_COUNT * ranks;
    node->control_bytes =
        tdi_round_up(sizeof(node_control) + counters * sizeof(uint64_t), PAGE);
    node->segment_bytes = node->control_bytes + tdi_round_up(bytes, PAGE);
    node->memory = memfd_create("tide", MFD_CLOEXEC);
    if (node->memory < 0 || ftruncate(node->memory, (off_t)node->segment_bytes))
        return tdi_fail_errno("rank %u: memfd of %llu bytes", comm->rank,
                              (unsigned long long)node->segment_bytes);
    node_peer *me = &node->peers[comm->rank];
    me->segment = map_segment(node->memory, node->segment_bytes);
    me->pid = getpid();
    if (!me->segment)
        return tdi_fail_errno("rank %u: mapping its segment of %llu bytes "
                              "(lower TIDE_ARENA_MIB?)",
                              comm->rank,
                              (unsigned long long)node->segment_bytes);
    node_control *control = node_control_of(comm, comm->rank);
    node->magic = tdi_hash((uintptr_t)node, tdi_now_ms());
    control->magic = node->magic;
    control->magic_address = (uintptr_t)&node->magic;
    atomic_store(&control->state, NODE_ALIVE);
    return TIDE_OK;
}

/* --- Handing over ------------------------------------------------------- */

static tide_status await_socket(tide_comm *comm, int fd, short events,
                                uint64_t deadline)
{
    struct pollfd poller = {.fd = fd, .events = events};
    for (uint64_t now; (now = tdi_now_ms()) < deadline;) {
        int left = (int)tdi_min(deadline - now, INT_MAX);
        int ready = poll(&poller, 1, left);
        if (ready > 0)
            return TIDE_OK;
        if (ready < 0 && errno != EINTR)
            return tdi_fail_errno("rank %u: waiting for a peer's segment",
                                  comm->rank);
    }
    return tdi_fail(TIDE_ERR_PEER,
                    "rank %u: a peer did not hand over its segment in %u ms",
                    comm->rank, comm->timeout_ms / 2);
}

/* A greeting with room for a descriptor. */
typedef struct letter {
    greeting hello;
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data;
    struct msghdr message;
} letter;

static void make_letter(letter *l)
{
    *l = (letter){.data = {&l->hello, sizeof(l->hello)},
                  .message = {.msg_iov = &l->data,
                              .msg_iovlen = 1,
                              .msg_control = l->control.space,
                              .msg_controllen = sizeof(l->control.space)}};
}

static tide_status send_segment(tide_comm *comm, int fd, uint64_t token)
{
    letter l;
    make_letter(&l);
    l.hello = (greeting){token, comm->rank};
    struct cmsghdr *header = CMSG_FIRSTHDR(&l.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &node_of(comm)->memory, sizeof(int));
    /* A peer that has gone will be missed by the next exchange of all. */
    ssize_t sent = TEMP_FAILURE_RETRY(sendmsg(fd, &l.message, MSG_NOSIGNAL));
    if (sent != sizeof(l.hello) && errno != EPIPE && errno != ECONNRESET)
        return tdi_fail_errno("rank %u: sending its segment", comm->rank);
    return TIDE_OK;
}

/* Receives a peer's segment on fd and maps it; fd becomes the peer's socket. */
static tide_status receive_segment(tide_comm *comm, int fd, uint64_t token,
                                   uint64_t deadline)
{
    tdi_node *node = node_of(comm);
    int memory = -1;
    letter l;
    make_letter(&l);
    TDI_TRY(await_socket(comm, fd, POLLIN, deadline));
    ssize_t got = TEMP_FAILURE_RETRY(recvmsg(fd, &l.message, MSG_CMSG_CLOEXEC));
    struct cmsghdr *header = CMSG_FIRSTHDR(&l.message);
    greeting hello = l.hello;
    if (got == sizeof(hello) && header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&memory, CMSG_DATA(header), sizeof(int));
    if (memory < 0 || hello.token != token || hello.rank >= node->ranks ||
        node->peers[hello.rank].segment) {
        if (memory >= 0)
            close(memory);
        return tdi_fail(TIDE_ERR_PEER,
                        "rank %u: a peer sent no valid segment (%zd bytes)",
                        comm->rank, got);
    }
    struct ucred who = {0};
    socklen_t length = sizeof(who);
    node_peer *peer = &node->peers[hello.rank];
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length);
    peer->pid = who.pid;
    if (who.pid > 0) /* 0: in another PID name space */
        peer->process = (int)syscall(SYS_pidfd_open, who.pid, 0);
    peer->segment = map_segment(memory, node->segment_bytes);
    close(memory);
    if (!peer->segment)
        return tdi_fail_errno("rank %u: mapping the segment of rank %u",
                              comm->rank, hello.rank);
    peer->socket = fd;
    return TIDE_OK;
}

static tide_status listen_for_peers(tide_comm *comm, node_card *card, int *fd)
{
    /* Binding the family alone lets the kernel pick a free abstract name. */
    socklen_t length = sizeof(card->address);
    card->address.sun_family = AF_UNIX;
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0 ||
        bind(*fd, (struct sockaddr *)&card->address, sizeof(sa_family_t)) ||
        listen(*fd, (int)node_of(comm)->ranks) ||
        getsockname(*fd, (struct sockaddr *)&card->address, &length) ||
        getrandom(&card->token, sizeof(card->token), 0) != sizeof(card->token))
        return tdi_fail_errno("rank %u: listening for its peers", comm->rank);
    card->length = length;
    return TIDE_OK;
}

/* Connects to the ranks below me and sends them my segment. */
static tide_status call_peer(tide_comm *comm, uint32_t rank,
                             const node_card *card, int *fd)
{
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return tdi_fail_errno("rank %u: a socket for rank %u", comm->rank,
                              rank);
    if (TEMP_FAILURE_RETRY(connect(*fd, (const struct sockaddr *)&card->address,
                                   card->length)))
        return tdi_fail(TIDE_ERR_PEER, "rank %u: connecting to rank %u: %s",
                        comm->rank, rank, strerror(errno));
    return send_segment(comm, *fd, card->token);
}

/* Ranks above me call; each gets my segment in return. */
static tide_status answer_peer(tide_comm *comm, int listener,
                               const node_card *cards, uint64_t deadline)
{
    TDI_TRY(await_socket(comm, listener, POLLIN, deadline));
    int fd = TEMP_FAILURE_RETRY(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    if (fd < 0)
        return tdi_fail_errno("rank %u: accepting a peer", comm->rank);
    tide_status status =
        receive_segment(comm, fd, cards[comm->rank].token, deadline);
    if (status) {
        close(fd);
        return status;
    }
    return send_segment(comm, fd, cards[comm->rank].token);
}

static tide_status meet_peers(tide_comm *comm, int listener,
                              const node_card *cards, const uint64_t *machines,
                              int *calls)
{
    uint64_t here = machines[comm->rank];
    /* Half of it: whoever has already given up waits for me in the next
     * exchange, under a deadline that may be as short. */
    uint64_t deadline = tdi_now_ms() + comm->timeout_ms / 2;
    uint32_t ranks = node_of(comm)->ranks;
    for (uint32_t r = 0; r < comm->rank; r++)
        if (machines[r] == here)
            TDI_TRY(call_peer(comm, r, &cards[r], &calls[r]));
    for (uint32_t r = comm->rank + 1; r < ranks; r++)
        if (machines[r] == here)
            TDI_TRY(answer_peer(comm, listener, cards, deadline));
    for (uint32_t r = 0; r < comm->rank; r++) {
        if (machines[r] != here)
            continue;
        TDI_TRY(receive_segment(comm, calls[r], cards[r].token, deadline));
        calls[r] = -1;
    }
    return TIDE_OK;
}

static tide_status hand_over(tide_comm *comm, const tide_bootstrap *bootstrap,
                             const uint64_t *machines)
{
    uint32_t ranks = node_of(comm)->ranks;
    int listener = -1;
    node_card mine = {0};
    node_card *cards = calloc(ranks, sizeof(node_card));
    int *calls = malloc(ranks * sizeof(int));
    tide_status status = TIDE_OK;
    if (!cards || !calls)
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory for %u peers", ranks);
    for (uint32_t r = 0; calls && r < ranks; r++)
        calls[r] = -1;
    if (!status)
        status = listen_for_peers(comm, &mine, &listener);
    status = tdi_meet_agree(bootstrap, status);
    if (!status)
        status = tdi_meet_exchange(bootstrap, &mine, cards, sizeof(mine));
    if (!status)
        status = meet_peers(comm, listener, cards, machines, calls);
    for (uint32_t r = 0; calls && r < ranks; r++)
        if (calls[r] >= 0)
            close(calls[r]);
    if (listener >= 0)
        close(listener);
    free(calls);
    free(cards);
    return status;
}

tide_status tdi_node_open(tide_comm *comm, const tide_bootstrap *bootstrap,
                          const uint64_t *machines, uint64_t bytes)
{
    TDI_TRY(
        tdi_meet_agree(bootstrap, make_segment(comm, bootstrap->ranks, bytes)));
    return tdi_meet_agree(bootstrap, hand_over(comm, bootstrap, machines));
}

/* Tells the peers that I leave in order: whoever still waits for me may know.
 */
static void say_goodbye(tide_comm *comm)
{
    tdi_node *node = node_of(comm);
    if (!node_has(comm, comm->rank))
        return;
    atomic_store(&node_control_of(comm, comm->rank)->state, NODE_LEFT);
    for (uint32_t r = 0; r < node->ranks; r++)
        if (r != comm->rank && node_has(comm, r))
            tdi_node_ring(comm, r);
}

void tdi_node_close(tide_comm *comm)
{
    tdi_node *node = node_of(comm);
    if (!node)
        return;
    if (node->memory >= 0)
        close(node->memory);
    if (node->peers)
        say_goodbye(comm);
    for (uint32_t r = 0; node->peers && r < node->ranks; r++) {
        if (node->peers[r].socket >= 0)
            close(node->peers[r].socket);
        if (node->peers[r].process >= 0)
            close(node->peers[r].process);
    }
    if (comm->is_stuck) /* a thread, or a stream, may still look at it */
        return;
    for (uint32_t r = 0; node->peers && r < node->ranks; r++)
        if (node->peers[r].segment)
            munmap(node->peers[r].segment, node->segment_bytes);
    free(node->peers);
    free(node);
    comm->node = NULL;
}
