/* The CUDA backend's table, opening and closing. */
#include "backend/cuda/cuda.h"

#include "base/fail.h"
#include "exec/meet.h"

#include <stdlib.h>

/* Tables of gradients, two a group: sparse, so only what is used is memory. */
static const uint64_t table_bytes = (uint64_t)256 << 20;
enum { TABLE_PAGE = 4096 };

static tide_status open_state(tide_comm *comm)
{
    size_t ranks = cuda_ranks(comm);
    cuda_state *cuda = calloc(1, sizeof(*cuda));
    if (!cuda)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the cuda backend");
    comm->state = cuda;
    pthread_mutex_init(&cuda->rail_lock, NULL);
    cuda->base = calloc(ranks, sizeof(*cuda->base));
    cuda->is_here = calloc(ranks, sizeof(bool));
    cuda->is_mapped = calloc(ranks, sizeof(bool));
    bool ok = cuda->base && cuda->is_here && cuda->is_mapped;
    for (int f = 0; f < TDI_FLOWS; f++) {
        cuda_flow *flow = &cuda->flows[f];
        flow->sent = calloc(TIDE_CH_COUNT * ranks, sizeof(uint64_t));
        flow->data.waited = calloc(ranks, sizeof(uint64_t));
        flow->control.waited = calloc(ranks, sizeof(uint64_t));
        ok = ok && flow->sent && flow->data.waited && flow->control.waited;
    }
    return ok ? TIDE_OK
              : tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu peers", ranks);
}

static tide_status open_local(tide_comm *comm, const uint64_t *machines)
{
    const tdi_node *node = node_of(comm);
    TDI_TRY(open_state(comm));
    TDI_TRY(tdi_arena_init(&cuda_of(comm)->tables, node->control_bytes,
                           node->segment_bytes, TABLE_PAGE));
    comm->tables = &cuda_of(comm)->tables;
    comm->private_min = UINT64_MAX;
    return tdi_cuda_open_device(comm, machines);
}

static tide_status open_cuda(tide_comm *comm, const tide_bootstrap *bootstrap,
                             const uint64_t *machines)
{
    TDI_TRY(tdi_node_open(comm, bootstrap, machines, table_bytes));
    TDI_TRY(tdi_meet_agree(bootstrap, open_local(comm, machines)));
    TDI_TRY(tdi_cuda_share_device(comm, bootstrap));
    TDI_TRY(tdi_meet_agree(bootstrap, tdi_cuda_make_streams(comm)));
    return tdi_cuda_open_window(comm, bootstrap);
}

static void free_state(cuda_state *cuda)
{
    for (int f = 0; f < TDI_FLOWS; f++) {
        free(cuda->flows[f].sent);
        free(cuda->flows[f].note);
        free(cuda->flows[f].data.waited);
        free(cuda->flows[f].control.waited);
    }
    free(cuda->base);
    free(cuda->is_here);
    free(cuda->is_mapped);
    pthread_mutex_destroy(&cuda->rail_lock);
    free(cuda);
}

static void close_cuda(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    if (cuda) {
        bool entered = cuda->context && !tdi_cuda_enter(comm);
        if (entered) {
            tdi_cuda_close_window(comm);
            tdi_cuda_unmap_cells(comm);
            tdi_cuda_leave(comm);
        }
        comm->tables = NULL;
        tdi_arena_destroy(&cuda->tables);
    }
    /* A step of the set-up that comes back late still looks at all of it. */
    if (cuda && !comm->is_stuck) {
        tdi_cuda_close_device(comm);
        free_state(cuda);
        comm->state = NULL;
    }
    tdi_node_close(comm);
}

static const tdi_queue_ops queue_ops = {
    .queue_of = tdi_cuda_queue_of,
    .enter = tdi_cuda_enter,
    .leave = tdi_cuda_leave,
    .meet = tdi_cuda_meet,
    .follow = tdi_cuda_follow,
    .finish = tdi_cuda_finish,
    .copy = tdi_cuda_copy,
    .zero = tdi_cuda_zero,
    .put = tdi_cuda_put,
    .sum = tdi_cuda_sum_op,
    .signal = tdi_cuda_signal,
    .wait = tdi_cuda_wait,
    .note = tdi_cuda_note,
    .after = tdi_cuda_after,
    .compare = tdi_cuda_compare,
    .multicast = tdi_cuda_multicast,
    .mark = tdi_cuda_mark,
    .mark_wait = tdi_cuda_mark_wait,
    .mark_reached = tdi_cuda_mark_reached,
    .mark_drop = tdi_cuda_mark_drop,
    .plain_take = tdi_cuda_plain_take,
    .plain_give = tdi_cuda_plain_give,
    .let_go = tdi_cuda_let_go,
};

const tdi_backend tdi_cuda_backend = {
    .name = "cuda",
    .queue = &queue_ops,
    .probe = tdi_cuda_probe,
    .open = open_cuda,
    .close = close_cuda,
    .abort = tdi_node_abort,
    .check = tdi_node_check,
    .publish = tdi_node_publish,
    .vote = tdi_node_vote,
    .peer = tdi_cuda_peer,
    .poll = tdi_cuda_poll,
    .watch = tdi_node_watch,
    .arena = tdi_cuda_arena,
    .table = tdi_cuda_table,
};
