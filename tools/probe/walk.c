/* Walks a plan's copies and sums. */
#include "probe/walk.h"

#include <stdlib.h>

#include "base/fail.h"
#include "base/util.h"

enum { AT_ONCE = 8 /* copies or sums that walk_some queues */ };

#define HOST_BYTES ((uint64_t)256 << 20) /* stands in for peers' gradients */

struct walk {
    const gpu *g;
    tide_plan *plan;
    uint32_t local_size;
    cu_pointer base[TIDE_BUF_COUNT];
    cu_pointer own; /* gradients of this rank */
    char *host;     /* and of the others */
    cu_event *note; /* [op]: made for ops that the other stream waits for */
    cu_event turn;
    uint32_t next;
    walk_mode mode;
};

/* Copies go to one stream, everything else to the other. */
static cu_stream stream_of(const walk *w, const tide_op *op)
{
    return op->lane == TIDE_LANE_COPY ? w->g->copies : w->g->beside;
}

static tide_status make_notes(walk *w)
{
    const gpu *g = w->g;
    w->note = calloc(tdi_max(w->plan->op_count, 1), sizeof(*w->note));
    if (!w->note)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan's events");
    TRY_CUDA(g, event_create(&w->turn, CU_EVENT_NO_TIMING));
    for (uint32_t i = 0; i < w->plan->op_count; i++) {
        const tide_op *op = &w->plan->ops[i];
        if (op->kind != TIDE_OP_AFTER || w->note[op->index] ||
            stream_of(w, op) == stream_of(w, &w->plan->ops[op->index]))
            continue;
        TRY_CUDA(g, event_create(&w->note[op->index], CU_EVENT_NO_TIMING));
    }
    return TIDE_OK;
}

static tide_status take_memory(walk *w, const tide_layout *layout)
{
    const gpu *g = w->g;
    void *host;
    for (int i = 0; i < TIDE_BUF_COUNT; i++) {
        uint64_t bytes = w->plan->buffer_bytes[i];
        if (i == TIDE_BUF_OUT)
            bytes = 4 * tide_layout_out_elems(layout);
        if (i == TIDE_BUF_RECV) /* those of all local ranks */
            bytes *= w->local_size;
        if (bytes)
            TDI_TRY(gpu_take(g, bytes, true, &w->base[i]));
    }
    TDI_TRY(gpu_take(g, HOST_BYTES, true, &w->own));
    TRY_CUDA(g, host_alloc(&host, HOST_BYTES));
    w->host = host;
    TRY_CUDA(g, copy_async((cu_pointer)(uintptr_t)host, w->own, HOST_BYTES,
                           g->stream));
    TRY_CUDA(g, stream_sync(g->stream));
    return TIDE_OK;
}

static tide_status set_up(walk *w, const tide_layout *layout,
                          tide_topology topology)
{
    tide_plan_options options = {.coll = TIDE_REDUCE_SCATTER,
                                 .grad_dtype = TIDE_BF16,
                                 .out_dtype = TIDE_F32,
                                 .staged = 1};
    TDI_TRY(tide_plan_create(layout, topology, 0, &options, &w->plan));
    w->local_size = topology.local_size;
    TDI_TRY(take_memory(w, layout));
    return make_notes(w);
}

tide_status walk_open(const gpu *g, const tide_layout *layout,
                      tide_topology topology, walk **made)
{
    walk *w = calloc(1, sizeof(*w));
    *made = NULL;
    if (!w)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan's walk");
    w->g = g;
    tide_status status = set_up(w, layout, topology);
    if (status) {
        walk_close(w);
        return status;
    }
    *made = w;
    return TIDE_OK;
}

void walk_close(walk *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; w->note && i < w->plan->op_count; i++)
        if (w->note[i])
            w->g->cuda->event_destroy(w->note[i]);
    if (w->turn)
        w->g->cuda->event_destroy(w->turn);
    for (int i = 0; i < TIDE_BUF_COUNT; i++)
        gpu_give(w->g, w->base[i]);
    gpu_give(w->g, w->own);
    if (w->host)
        w->g->cuda->host_free(w->host);
    free(w->note);
    tide_plan_free(w->plan);
    free(w);
}

void walk_set_mode(walk *w, const walk_mode *mode)
{
    w->mode = *mode;
}

cu_stream walk_end(const walk *w)
{
    return w->mode.sums ? w->g->beside : w->g->copies;
}

static cu_pointer address(const walk *w, tide_operand at)
{
    return w->base[tide_operand_buffer(at)] + at.offset;
}

/* Rows lie side by side in the stand-ins, whatever their pitch. */
static uint64_t place(uint64_t offset, uint64_t bytes)
{
    return offset % (HOST_BYTES - bytes + 1) / 16 * 16;
}

static tide_status copy_own(walk *w, const tide_op *op, uint64_t from)
{
    tdi_cuda_strided copy = {.dst = address(w, op->dst),
                             .src = w->own + from,
                             .width = op->width,
                             .height = op->height,
                             .dst_pitch =
                                 op->height > 1 ? op->dst_pitch : op->width,
                             .src_pitch = op->width};
    return tdi_cuda_strided_queue(w->g->kernels, &copy, 1, 0, w->g->copies);
}

static tide_status copy_peer(walk *w, const tide_op *op, uint64_t from)
{
    const gpu *g = w->g;
    char *src = w->host + from;
    cu_copy_2d copy = {
        .src_type = CU_MEMORY_HOST,
        .src_host = src,
        .src_pitch = op->width,
        .dst_type = CU_MEMORY_DEVICE,
        .dst = address(w, op->dst),
        .dst_pitch = op->dst_pitch,
        .width = op->width,
        .height = op->height,
    };
    if (op->height > 1)
        TRY_CUDA(g, copy_2d_async(&copy, g->copies));
    else
        TRY_CUDA(g, copy_async(copy.dst, (cu_pointer)(uintptr_t)src, op->width,
                               g->copies));
    return TIDE_OK;
}

static tide_status do_copy(walk *w, const tide_op *op)
{
    uint64_t bytes = op->width * op->height;
    if (bytes > HOST_BYTES)
        return tdi_fail(TIDE_ERR_INVALID, "a copy of %llu bytes is too large",
                        (unsigned long long)bytes);
    uint64_t from = place(op->src.offset, bytes);
    return tide_operand_rank(op->src) == (int32_t)w->plan->rank
               ? copy_own(w, op, from)
               : copy_peer(w, op, from);
}

static tide_status do_sum(walk *w, const tide_op *op)
{
    cu_pointer src[TDI_CUDA_SOURCES];
    uint64_t pitch = op->flags & TIDE_ACROSS
                         ? w->plan->buffer_bytes[TIDE_BUF_RECV]
                         : op->src_pitch;
    tdi_cuda_sum sum = {
        .dst = address(w, op->dst),
        .src = src,
        .sources = op->height,
        .flags = op->flags & ~(TIDE_ACROSS | TIDE_SWITCH | TIDE_OWN),
        .elems = op->width,
        .scale = 0.125f,
    };
    uint64_t bytes = op->width * (op->flags & TIDE_SRC_BF16 ? 2 : 4);
    if (op->height > TDI_CUDA_SOURCES)
        return tdi_fail(TIDE_ERR_INVALID, "a sum of %u sources", op->height);
    if (bytes > HOST_BYTES)
        return tdi_fail(TIDE_ERR_INVALID, "a sum of %llu bytes is too large",
                        (unsigned long long)bytes);
    for (uint32_t i = 0; i < op->height; i++) {
        bool own = op->flags & TIDE_OWN && i == w->plan->rank % w->local_size;
        src[i] = own ? w->own + place(op->dst_pitch, bytes)
                     : address(w, op->src) + i * pitch;
    }
    return tdi_cuda_sum_queue(w->g->kernels, w->g->chain, &sum, &w->mode.bounds,
                              w->g->beside);
}

static uint64_t sum_bytes(const tide_op *op)
{
    uint64_t in = op->flags & TIDE_SRC_BF16 ? 2 : 4;
    return op->width * (op->height * in + 4);
}

static tide_status do_op(walk *w, const tide_op *op, uint64_t *bytes,
                         uint32_t *done)
{
    const gpu *g = w->g;
    if (op->kind == TIDE_OP_COPY && w->mode.copies) {
        TDI_TRY(do_copy(w, op));
        *bytes += w->mode.sums ? 0 : op->width * op->height;
        ++*done;
    } else if (op->kind == TIDE_OP_REDUCE && w->mode.sums) {
        TDI_TRY(do_sum(w, op));
        *bytes += sum_bytes(op);
        ++*done;
    } else if (op->kind == TIDE_OP_AFTER && w->note[op->index] &&
               w->mode.copies && w->mode.sums) {
        TRY_CUDA(g, stream_wait_event(stream_of(w, op), w->note[op->index], 0));
    }
    cu_event note = w->note[op - w->plan->ops];
    if (note)
        TRY_CUDA(g, event_record(note, stream_of(w, op)));
    return TIDE_OK;
}

/* The next walk's copies follow this one's sums. */
static tide_status turn_round(walk *w)
{
    const gpu *g = w->g;
    w->next = 0;
    TRY_CUDA(g, event_record(w->turn, g->beside));
    TRY_CUDA(g, stream_wait_event(g->copies, w->turn, 0));
    return TIDE_OK;
}

tide_status walk_some(walk *w, uint64_t *bytes)
{
    uint32_t done = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < w->plan->op_count && done < AT_ONCE; i++) {
        TDI_TRY(do_op(w, &w->plan->ops[w->next], bytes, &done));
        if (++w->next == w->plan->op_count)
            TDI_TRY(turn_round(w));
    }
    return TIDE_OK;
}
