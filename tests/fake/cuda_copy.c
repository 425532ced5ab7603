/* The driver's copies, fills and memory operations of streams. */
#include "fake.h"

#include <limits.h>
#include <string.h>

/* The stream, if the calling thread has a context. */
static cu_result enter(cu_stream *stream, const char *call)
{
    cu_device device;
    cu_result result = cuCtxGetDevice(&device);
    if (!result)
        *stream = fake_stream(*stream, device, call);
    return result;
}

/* --- Copies --------------------------------------------------------------- */

typedef struct strided {
    uint64_t dst;
    uint64_t src;
    uint64_t width;
    uint64_t height;
    uint64_t dst_pitch;
    uint64_t src_pitch;
} strided;

static void copy_now(int device, const strided *copy, uint64_t *random)
{
    if (!copy->width || !copy->height)
        return;
    uint64_t rows = copy->height - 1;
    fake_view to =
        fake_pin(device, copy->dst, rows * copy->dst_pitch + copy->width,
                 FAKE_WRITE, "the destination of a copy");
    fake_view from =
        fake_pin(device, copy->src, rows * copy->src_pitch + copy->width,
                 FAKE_READ, "the source of a copy");
    fake_move(&to, copy->dst_pitch, &from, copy->src_pitch, copy->width,
              copy->height, random);
    fake_unpin(&to);
    fake_unpin(&from);
}

enum { MOST_COPIES = 1024 };

static void check_count(size_t count)
{
    if (count > MOST_COPIES)
        fake_fail("a batch of %zu copies: more than the fake takes", count);
}

typedef struct copy_work {
    fake_work work;
    size_t count;
    strided copies[];
} copy_work;

/* The copies of one batch run in any order (FAKE_SHUFFLE=0: as they stand). */
static void run_copies(fake_work *work)
{
    copy_work *batch = (copy_work *)work;
    bool shuffle = fake_setting("FAKE_SHUFFLE", 1) != 0;
    for (size_t i = 0; i < batch->count; i++) {
        size_t left = batch->count - i;
        size_t pick = i + (shuffle ? fake_random(work->random) % left : 0);
        strided copy = batch->copies[pick];
        batch->copies[pick] = batch->copies[i];
        copy_now(fake_device_of(work->stream), &copy, work->random);
        if (left > 1)
            fake_dawdle(work->random);
    }
}

/* A pageable source is read before the call returns, and a pageable
 * destination written, as the driver does through buffers of its own. */
static void queue_copies(cu_stream stream, const strided *copies, size_t count)
{
    bool wait = false;
    copy_work *batch =
        fake_work_new(sizeof(*batch) + count * sizeof(strided), run_copies);
    batch->count = count;
    memcpy(batch->copies, copies, count * sizeof(strided));
    for (size_t i = 0; i < count; i++)
        wait |= fake_is_host(copies[i].dst) || fake_is_host(copies[i].src);
    fake_queue_work(stream, &batch->work);
    if (wait)
        fake_stream_finish(stream);
}

cu_result cuMemcpyAsync(cu_pointer dst, cu_pointer src, size_t bytes,
                        cu_stream stream)
{
    strided copy = {dst, src, bytes, 1, bytes, bytes};
    cu_result result = enter(&stream, "cuMemcpyAsync");
    if (result)
        return result;
    queue_copies(stream, &copy, 1);
    return CU_OK;
}

static bool known_place(unsigned int type)
{
    return type == CU_MEMORY_HOST || type == CU_MEMORY_DEVICE ||
           type == CU_MEMORY_UNIFIED;
}

static uint64_t place_of(unsigned int type, const void *host, cu_pointer device)
{
    return type == CU_MEMORY_HOST ? (uint64_t)(uintptr_t)host : device;
}

cu_result cuMemcpy2DAsync_v2(const cu_copy_2d *copy, cu_stream stream)
{
    cu_result result = enter(&stream, "cuMemcpy2DAsync");
    if (result)
        return result;
    if (!known_place(copy->src_type) || !known_place(copy->dst_type) ||
        copy->src_pitch > INT_MAX || copy->dst_pitch > INT_MAX ||
        (copy->src_pitch && copy->src_pitch < copy->src_x + copy->width) ||
        (copy->dst_pitch && copy->dst_pitch < copy->dst_x + copy->width))
        return FAKE_INVALID_VALUE;
    strided one = {
        .dst = place_of(copy->dst_type, copy->dst_host, copy->dst) +
               copy->dst_y * copy->dst_pitch + copy->dst_x,
        .src = place_of(copy->src_type, copy->src_host, copy->src) +
               copy->src_y * copy->src_pitch + copy->src_x,
        .width = copy->width,
        .height = copy->height,
        .dst_pitch = copy->dst_pitch ? copy->dst_pitch : copy->width,
        .src_pitch = copy->src_pitch ? copy->src_pitch : copy->width,
    };
    queue_copies(stream, &one, 1);
    return CU_OK;
}

static cu_result read_batch_copy(const cu_batch_copy *from, strided *to)
{
    if (from->src.type != CU_OPERAND_POINTER ||
        from->dst.type != CU_OPERAND_POINTER ||
        from->src_order != CU_ORDER_STREAM ||
        (from->flags & ~(unsigned)CU_PREFER_COPY_ENGINE) || from->depth > 1 ||
        !from->width || !from->height || !from->depth)
        return FAKE_INVALID_VALUE;
    if ((from->src.row_length && from->src.row_length < from->width) ||
        (from->dst.row_length && from->dst.row_length < from->width) ||
        (from->src.layer_height && from->src.layer_height < from->height) ||
        (from->dst.layer_height && from->dst.layer_height < from->height))
        return FAKE_INVALID_VALUE;
    *to = (strided){
        .dst = from->dst.pointer,
        .src = from->src.pointer,
        .width = from->width,
        .height = from->height,
        .dst_pitch = from->dst.row_length ? from->dst.row_length : from->width,
        .src_pitch = from->src.row_length ? from->src.row_length : from->width,
    };
    return CU_OK;
}

/* The legacy default stream is refused. */
cu_result cuMemcpy3DBatchAsync_v2(size_t count, cu_batch_copy *copies,
                                  unsigned long long flags, cu_stream stream)
{
    strided batch[MOST_COPIES];
    bool is_default = !stream;
    cu_result result = enter(&stream, "cuMemcpy3DBatchAsync");
    if (result)
        return result;
    if (is_default)
        return FAKE_INVALID_HANDLE;
    if (!count || flags)
        return FAKE_INVALID_VALUE;
    check_count(count);
    for (size_t i = 0; i < count && !result; i++)
        result = read_batch_copy(&copies[i], &batch[i]);
    if (!result)
        queue_copies(stream, batch, count);
    return result;
}

/* One attribute for each run of copies, from first[k] on. */
static bool check_attributes(const cu_copy_attributes *attributes,
                             const size_t *first, size_t kinds, size_t count)
{
    if (!kinds || kinds > count || first[0])
        return false;
    for (size_t k = 0; k < kinds; k++)
        if (attributes[k].src_order != CU_ORDER_STREAM ||
            (attributes[k].flags & ~(unsigned)CU_PREFER_COPY_ENGINE) ||
            (k && first[k] <= first[k - 1]) || first[k] >= count)
            return false;
    return true;
}

cu_result cuMemcpyBatchAsync_v2(cu_pointer *dsts, cu_pointer *srcs,
                                size_t *sizes, size_t count,
                                cu_copy_attributes *attributes, size_t *first,
                                size_t kinds, cu_stream stream)
{
    strided batch[MOST_COPIES];
    bool is_default = !stream;
    cu_result result = enter(&stream, "cuMemcpyBatchAsync");
    if (result)
        return result;
    if (is_default)
        return FAKE_INVALID_HANDLE;
    if (!count || !check_attributes(attributes, first, kinds, count))
        return FAKE_INVALID_VALUE;
    check_count(count);
    for (size_t i = 0; i < count; i++) {
        if (!sizes[i])
            return FAKE_INVALID_VALUE;
        batch[i] = (strided){.dst = dsts[i],
                             .src = srcs[i],
                             .width = sizes[i],
                             .height = 1,
                             .dst_pitch = sizes[i],
                             .src_pitch = sizes[i]};
    }
    queue_copies(stream, batch, count);
    return CU_OK;
}

/* --- Fills ---------------------------------------------------------------- */

typedef struct fill_work {
    fake_work work;
    uint64_t at;
    uint64_t count;
    unsigned int value;
    unsigned int size;
} fill_work;

static void run_fill(fake_work *work)
{
    fill_work *fill = (fill_work *)work;
    uint64_t bytes = fill->count * fill->size;
    if (!bytes)
        return;
    fake_view view = fake_pin(fake_device_of(work->stream), fill->at, bytes,
                              FAKE_WRITE, "a fill");
    for (uint32_t m = 0; m < view.members; m++) {
        for (uint64_t i = 0; i < fill->count; i++)
            memcpy(view.at[m] + i * fill->size, &fill->value, fill->size);
        fake_dawdle(work->random);
    }
    fake_written(&view, bytes);
    fake_unpin(&view);
}

static cu_result queue_fill(cu_pointer at, unsigned int value,
                            unsigned int size, size_t count, cu_stream stream)
{
    cu_result result = enter(&stream, "cuMemsetAsync");
    if (result)
        return result;
    if (at % size)
        return FAKE_INVALID_VALUE;
    fill_work *fill = fake_work_new(sizeof(*fill), run_fill);
    fill->at = at;
    fill->count = count;
    fill->value = value;
    fill->size = size;
    fake_queue_work(stream, &fill->work);
    return CU_OK;
}

cu_result cuMemsetD8Async(cu_pointer memory, unsigned char value, size_t count,
                          cu_stream stream)
{
    return queue_fill(memory, value, 1, count, stream);
}

cu_result cuMemsetD32Async(cu_pointer memory, unsigned int value, size_t count,
                           cu_stream stream)
{
    return queue_fill(memory, value, 4, count, stream);
}

/* --- Memory operations ---------------------------------------------------- */

typedef struct mem_work {
    fake_work work;
    unsigned int count;
    cu_mem_op ops[];
} mem_work;

static void run_mem_ops(fake_work *work)
{
    mem_work *mem = (mem_work *)work;
    int device = fake_device_of(work->stream);
    for (unsigned int i = 0; i < mem->count; i++) {
        const cu_mem_op *op = &mem->ops[i];
        bool is_wait = op->operation == CU_OP_WAIT_64;
        fake_view view = fake_pin(device, op->address, sizeof(uint64_t),
                                  is_wait ? FAKE_READ : FAKE_WRITE,
                                  is_wait ? "a stream's wait for a value"
                                          : "a stream's write of a value");
        if (!is_wait && fake_fault("write_late", device))
            fake_sleep_us((uint64_t)fake_setting("FAKE_LATE_MS", 1500) * 1000);
        if (!is_wait)
            fake_write_value(&view, op->value);
        else if (!fake_fault("no_value_waits", device))
            fake_wait_value(device, &view, op->value);
        fake_unpin(&view);
    }
}

cu_result cuStreamBatchMemOp_v2(cu_stream stream, unsigned int count,
                                cu_mem_op *ops, unsigned int flags)
{
    cu_result result = enter(&stream, "cuStreamBatchMemOp");
    if (result)
        return result;
    if (!count || count > 256 || flags)
        return FAKE_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        bool known = ops[i].operation == CU_OP_WAIT_64 ||
                     ops[i].operation == CU_OP_WRITE_64;
        if (!known || ops[i].flags)
            fake_fail("memory operation %u with flags %u: not one that api.h "
                      "lists",
                      ops[i].operation, ops[i].flags);
        if (ops[i].address % sizeof(uint64_t))
            fake_fail("a memory operation at %#llx, which is not aligned",
                      ops[i].address);
    }
    mem_work *work =
        fake_work_new(sizeof(*work) + count * sizeof(*ops), run_mem_ops);
    work->count = count;
    memcpy(work->ops, ops, count * sizeof(*ops));
    fake_queue_work(stream, &work->work);
    return CU_OK;
}
