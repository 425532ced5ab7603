/*
 * Ops on streams. Neighbours of one kind and queue are handed over as one
 * batch: copies, memory operations, and what NCCL carries (rails.c). A batch
 * never crosses an op of another queue or kind, so that what is queued stays in
 * the plan's order (exec/queue.h says why that matters). The copies of a batch
 * run in any order; no plan minds (tests/unit/test_folded.c).
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"
#include "base/util.h"

/* Strided copies of so many rows are cheaper row by row. */
enum { FEW_ROWS = 2 };

#define CHECK(comm, call, what)                                                \
    TDI_TRY(tdi_cuda_check(cuda_of(comm)->cuda, call, (comm)->rank, what))

/* --- Batches ------------------------------------------------------------ */

static tide_status copy_strided(tide_comm *comm, const cu_batch_copy *copy,
                                cu_stream stream)
{
    cu_copy_2d plain = {.src_type = CU_MEMORY_UNIFIED,
                        .src = copy->src.pointer,
                        .src_pitch = copy->src.row_length,
                        .dst_type = CU_MEMORY_UNIFIED,
                        .dst = copy->dst.pointer,
                        .dst_pitch = copy->dst.row_length,
                        .width = copy->width,
                        .height = copy->height};
    CHECK(comm, cuda_of(comm)->cuda->copy_2d_async(&plain, stream),
          "cuMemcpy2DAsync");
    return TIDE_OK;
}

static tide_status flush_strided(tide_comm *comm, cuda_batch *batch,
                                 cu_stream stream)
{
    const tdi_cuda_api *cuda = cuda_of(comm)->cuda;
    uint32_t count = batch->strided;
    batch->strided = 0;
    if (count > 1 && cuda->copy_batch) {
        CHECK(comm, cuda->copy_batch(count, batch->copy, 0, stream),
              "cuMemcpy3DBatchAsync");
        return TIDE_OK;
    }
    for (uint32_t i = 0; i < count; i++)
        TDI_TRY(copy_strided(comm, &batch->copy[i], stream));
    return TIDE_OK;
}

static tide_status flush_rows(tide_comm *comm, cuda_batch *batch,
                              cu_stream stream)
{
    const tdi_cuda_api *cuda = cuda_of(comm)->cuda;
    cu_copy_attributes kind = {.src_order = CU_ORDER_STREAM,
                               .flags = CU_PREFER_COPY_ENGINE};
    size_t first = 0, count = batch->rows;
    batch->rows = 0;
    if (count > 1 && cuda->copy_batch_1d) {
        CHECK(comm,
              cuda->copy_batch_1d(batch->row_dst, batch->row_src,
                                  batch->row_bytes, count, &kind, &first, 1,
                                  stream),
              "cuMemcpyBatchAsync");
        return TIDE_OK;
    }
    for (size_t i = 0; i < count; i++)
        CHECK(comm,
              cuda->copy_async(batch->row_dst[i], batch->row_src[i],
                               batch->row_bytes[i], stream),
              "cuMemcpyAsync");
    return TIDE_OK;
}

static tide_status flush_locals(tide_comm *comm, cuda_batch *batch,
                                cu_stream stream)
{
    uint32_t count = batch->locals;
    batch->locals = 0;
    return count ? tdi_cuda_strided_queue(cuda_of(comm)->kernels, batch->local,
                                          count, 0, stream)
                 : TIDE_OK;
}

/* Not worth a second stream's begin and end if they are short. */
static bool runs_beside(const tide_comm *comm, const cuda_flow *flow)
{
    const cuda_batch *batch = &flow->batch;
    uint64_t bytes = 0;
    if (!flow->beside || !batch->locals || !(batch->strided || batch->rows))
        return false;
    for (uint32_t i = 0; i < batch->locals; i++)
        bytes += batch->local[i].width * batch->local[i].height;
    return bytes >= cuda_of(comm)->beside_bytes;
}

/* SMs copy what stays on the device while copy engines bring the rest. */
static tide_status flush_copies(tide_comm *comm, cuda_flow *flow,
                                cu_stream stream)
{
    bool beside = runs_beside(comm, flow);
    cu_stream other = beside ? flow->beside : stream;
    if (beside)
        TDI_TRY(tdi_cuda_order(comm, &flow->fork, stream, other));
    TDI_TRY(flush_rows(comm, &flow->batch, stream));
    TDI_TRY(flush_strided(comm, &flow->batch, stream));
    TDI_TRY(flush_locals(comm, &flow->batch, other));
    return beside ? tdi_cuda_order(comm, &flow->join, other, stream) : TIDE_OK;
}

static tide_status flush_mem_ops(tide_comm *comm, cuda_batch *batch,
                                 cu_stream stream)
{
    uint32_t count = batch->ops;
    batch->ops = 0;
    CHECK(comm, cuda_of(comm)->cuda->mem_ops(stream, count, batch->op, 0),
          "cuStreamBatchMemOp");
    return TIDE_OK;
}

static bool is_empty(const cuda_batch *batch)
{
    return !batch->locals && !batch->strided && !batch->rows && !batch->ops &&
           !batch->sends;
}

static bool is_full(const cuda_batch *batch)
{
    return batch->locals == CUDA_BATCH || batch->strided == CUDA_BATCH ||
           batch->rows + FEW_ROWS > CUDA_BATCH || batch->ops == CUDA_BATCH ||
           batch->sends == CUDA_BATCH;
}

tide_status tdi_cuda_flush(tide_comm *comm, tdi_flow_id flow)
{
    cuda_flow *of = &cuda_of(comm)->flows[flow];
    cuda_batch *batch = &of->batch;
    cu_stream stream;
    if (is_empty(batch))
        return TIDE_OK;
    TDI_TRY(tdi_cuda_stream(comm, flow, batch->queue, &stream));
    switch (batch->work) {
    case CUDA_COPIES:
        return flush_copies(comm, of, stream);
    case CUDA_MEM_OPS:
        return flush_mem_ops(comm, batch, stream);
    case CUDA_SENDS:
        return tdi_cuda_flush_sends(comm, batch, stream);
    }
    return TIDE_OK;
}

tide_status tdi_cuda_open_batch(tide_comm *comm, tdi_flow_id flow,
                                uint8_t queue, cuda_work work, cuda_rail *rail,
                                cuda_batch **opened)
{
    cuda_batch *batch = &cuda_of(comm)->flows[flow].batch;
    if (batch->queue != queue || batch->work != work || batch->rail != rail ||
        is_full(batch))
        TDI_TRY(tdi_cuda_flush(comm, flow));
    batch->queue = queue;
    batch->work = work;
    batch->rail = rail;
    *opened = batch;
    return TIDE_OK;
}

static tide_status add_mem_op(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                              unsigned operation, cu_pointer address,
                              uint64_t value)
{
    cuda_batch *batch;
    TDI_TRY(tdi_cuda_open_batch(comm, flow, queue, CUDA_MEM_OPS, NULL, &batch));
    batch->op[batch->ops++] = (cu_mem_op){.operation = operation,
                                          .address = address,
                                          .value = value,
                                          .flags = CU_WAIT_GEQ};
    return TIDE_OK;
}

/* --- Copies and sums ---------------------------------------------------- */

static cu_pointer device(const char *pointer)
{
    return (cu_pointer)(uintptr_t)pointer;
}

static cu_operand operand(const char *pointer, uint64_t pitch, uint64_t height)
{
    return (cu_operand){.type = CU_OPERAND_POINTER,
                        .pointer = device(pointer),
                        .row_length = pitch,
                        .layer_height = height};
}

static bool is_here(const tide_comm *comm, const tdi_address *address)
{
    return address->rank != TIDE_ALL_LOCAL &&
           cuda_of(comm)->is_here[address->rank];
}

static void add_local(cuda_batch *batch, const tdi_move *move)
{
    batch->local[batch->locals++] =
        (tdi_cuda_strided){.dst = device(move->dst.pointer),
                           .src = device(move->src.pointer),
                           .width = move->width,
                           .height = move->height,
                           .dst_pitch = move->dst_pitch,
                           .src_pitch = move->src_pitch};
}

static void add_rows(cuda_batch *batch, const tdi_move *move)
{
    for (uint64_t row = 0; row < move->height; row++) {
        size_t at = batch->rows++;
        batch->row_dst[at] = device(move->dst.pointer + row * move->dst_pitch);
        batch->row_src[at] = device(move->src.pointer + row * move->src_pitch);
        batch->row_bytes[at] = move->width;
    }
}

static void add_strided(cuda_batch *batch, const tdi_move *move)
{
    batch->copy[batch->strided++] = (cu_batch_copy){
        .src = operand(move->src.pointer, move->src_pitch, move->height),
        .dst = operand(move->dst.pointer, move->dst_pitch, move->height),
        .width = move->width,
        .height = move->height,
        .depth = 1,
        .src_order = CU_ORDER_STREAM,
        .flags = CU_PREFER_COPY_ENGINE,
    };
}

/* Within a device the driver copies by a kernel for each copy, at 4.4 us of the
 * host's time: one of ours does them all. To a peer a row costs 1.1 us in a
 * batch, a strided copy 2.5 us. (One H200, and two; docs/performance.md.) */
tide_status tdi_cuda_copy(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          const tdi_move *move)
{
    cuda_batch *batch;
    if (!move->width || !move->height)
        return TIDE_OK;
    if (!move->src.pointer || !move->dst.pointer)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a copy between rank %d and rank %d, which is "
                        "out of reach",
                        comm->rank, move->src.rank, move->dst.rank);
    TDI_TRY(tdi_cuda_open_batch(comm, flow, queue, CUDA_COPIES, NULL, &batch));
    bool inside = is_here(comm, &move->src) && is_here(comm, &move->dst);
    if (inside && cuda_of(comm)->own_kernel)
        add_local(batch, move);
    else if (move->height <= FEW_ROWS)
        add_rows(batch, move);
    else
        add_strided(batch, move);
    return TIDE_OK;
}

tide_status tdi_cuda_zero(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          char *memory, uint64_t bytes)
{
    cu_stream stream;
    TDI_TRY(tdi_cuda_flush(comm, flow));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    CHECK(comm,
          cuda_of(comm)->cuda->fill_8_async(device(memory), 0, bytes, stream),
          "cuMemsetD8Async");
    return TIDE_OK;
}

tide_status tdi_cuda_sum_op(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            const tdi_sum *sum)
{
    const cuda_state *cuda = cuda_of(comm);
    cu_pointer src[TDI_CUDA_SOURCES];
    cu_stream stream;
    /* Sums over nodes have bounds of their own. */
    bool lands = sum->lane == TIDE_LANE_LAND;
    tdi_cuda_sum call = {.dst = device(sum->dst.pointer),
                         .src = src,
                         .sources = sum->sources,
                         .flags = sum->flags,
                         .elems = sum->elems,
                         .scale = sum->scale};
    if (sum->sources > TDI_CUDA_SOURCES)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "rank %u: a sum of %u sources; the cuda backend adds "
                        "up to %d",
                        comm->rank, sum->sources, TDI_CUDA_SOURCES);
    for (uint32_t i = 0; i < sum->sources; i++) {
        if (!sum->src[i].pointer)
            return tdi_fail(TIDE_ERR_PLAN,
                            "rank %u: a sum reads rank %d, which is out of "
                            "reach",
                            comm->rank, sum->src[i].rank);
        src[i] = device(sum->src[i].pointer);
    }
    TDI_TRY(tdi_cuda_flush(comm, flow));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    return tdi_cuda_sum_queue(
        cuda->kernels, cuda->flows[flow].chain[queue], &call,
        lands ? &cuda->land_bounds : &cuda->sum_bounds, stream);
}

/* --- Signals and waits -------------------------------------------------- */

static cu_pointer cell_address(const tide_comm *comm, uint32_t at,
                               tdi_flow_id flow, tide_channel channel,
                               uint32_t source)
{
    return (cu_pointer)(uintptr_t)tdi_node_cell(comm, at, flow, channel,
                                                source);
}

/* A write follows all earlier work of its stream, and what that has written. */
static tide_status signal_cell(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                               uint32_t to, tide_channel channel)
{
    cuda_state *cuda = cuda_of(comm);
    uint64_t *sent = &cuda->flows[flow].sent[channel * cuda_ranks(comm) + to];
    return add_mem_op(comm, flow, queue, CU_OP_WRITE_64,
                      cell_address(comm, to, flow, channel, comm->rank),
                      ++*sent);
}

tide_status tdi_cuda_signal(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            uint32_t to, tide_channel channel)
{
    if (cuda_over_rail(comm, to))
        return tdi_cuda_rail_signal(comm, flow, queue, to);
    return signal_cell(comm, flow, queue, to, channel);
}

tide_status tdi_cuda_put(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                         const tdi_move *move, tide_channel channel)
{
    uint32_t to = (uint32_t)move->dst.rank;
    if (cuda_over_rail(comm, to))
        return tdi_cuda_rail_put(comm, flow, queue, move);
    TDI_TRY(tdi_cuda_copy(comm, flow, queue, move));
    return signal_cell(comm, flow, queue, to, channel);
}

tide_status tdi_cuda_wait(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          const tide_request *request, const tdi_block *wait,
                          int64_t target)
{
    if (target <= 0)
        return TIDE_OK;
    if (cuda_over_rail(comm, wait->from))
        return tdi_cuda_rail_wait(comm, flow, queue, request, wait, target);
    return add_mem_op(
        comm, flow, queue, CU_OP_WAIT_64,
        cell_address(comm, comm->rank, flow, wait->channel, wait->from),
        (uint64_t)target);
}
