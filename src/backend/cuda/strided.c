/* Strided copies within one GPU: as many as fit to a launch. */
#include "backend/cuda/image.h"
#include "base/fail.h"
#include "base/util.h"

enum { LEAST_TILE = 2048, LOADS_BLOCKS = 4 /* of a SM */ };

/* Copies of one kind that the next launch does. */
typedef struct batch {
    tdi_strided_many copies; /* few are its beginning */
    uint32_t count;
    uint64_t bytes;
} batch;

typedef struct queue {
    const tdi_cuda_kernels *kernels;
    uint32_t ctas;
    cu_stream stream;
    batch bulk;
    batch loads;
} queue;

/* Small batches get small tiles, so that every block has some. */
static uint32_t cut_tiles(batch *b, uint32_t blocks, tdi_strided_params *p)
{
    uint64_t share = tdi_round_up(tdi_ceil_div(b->bytes, 2 * blocks), 256);
    uint64_t tiles = 0;
    p->count = b->count;
    p->tile = (uint32_t)tdi_min(tdi_max(share, LEAST_TILE), TDI_STRIDED_TILE);
    for (uint32_t i = 0; i < b->count; i++) {
        tdi_strided_part *part = &b->copies.part[i];
        part->first = (uint32_t)tiles;
        part->rows = (uint32_t)tdi_max(p->tile / part->width, 1);
        part->columns = (uint32_t)tdi_ceil_div(part->width, p->tile);
        tiles +=
            tdi_ceil_div(part->height, part->rows) * (uint64_t)part->columns;
    }
    p->tiles = (uint32_t)tdi_min(tiles, UINT32_MAX);
    return (uint32_t)tdi_min(tiles, blocks);
}

static tide_status launch(const queue *q, batch *b, bool bulk)
{
    bool few = b->count <= TDI_STRIDED_FEW;
    uint32_t most = q->kernels->sms * (bulk ? 1 : LOADS_BLOCKS);
    tdi_strided_params p = {.counter = q->kernels->counter};
    void *params[] = {&p, &b->copies};
    tdi_kernel_id id = bulk ? (few ? TDI_KERNEL_tide_copy_bulk
                                   : TDI_KERNEL_tide_copy_bulk_many)
                            : (few ? TDI_KERNEL_tide_copy_loads
                                   : TDI_KERNEL_tide_copy_loads_many);
    if (!b->count)
        return TIDE_OK;
    uint32_t blocks = cut_tiles(b, q->ctas ? q->ctas : most, &p);
    if (p.tiles > INT32_MAX)
        return tdi_fail(TIDE_ERR_INVALID,
                        "copies of %llu bytes have too many rows",
                        (unsigned long long)b->bytes);
    b->count = 0;
    b->bytes = 0;
    return tdi_cuda_launch(q->kernels, id, blocks, params, q->stream);
}

static tide_status add_copy(queue *q, const tdi_cuda_strided *copy)
{
    tdi_strided_part part = {.dst = copy->dst,
                             .src = copy->src,
                             .width = copy->width,
                             .dst_pitch = copy->dst_pitch,
                             .src_pitch = copy->src_pitch,
                             .height = (uint32_t)copy->height};
    uint64_t bits = copy->dst | copy->src | copy->width;
    if (!copy->width || !copy->height)
        return TIDE_OK;
    if (copy->height > INT32_MAX)
        return tdi_fail(TIDE_ERR_INVALID, "a copy of %llu rows",
                        (unsigned long long)copy->height);
    if (copy->height > 1)
        bits |= copy->dst_pitch | copy->src_pitch;
    if (copy->dst_pitch == copy->width && copy->src_pitch == copy->width) {
        part.width *= copy->height;
        part.height = 1;
    }
    bool bulk = bits % 16 == 0;
    batch *b = bulk ? &q->bulk : &q->loads;
    b->copies.part[b->count++] = part;
    b->bytes += copy->width * copy->height;
    return b->count == TDI_STRIDED_MANY ? launch(q, b, bulk) : TIDE_OK;
}

tide_status tdi_cuda_strided_queue(const tdi_cuda_kernels *kernels,
                                   const tdi_cuda_strided *copies,
                                   uint32_t count, uint32_t ctas,
                                   cu_stream stream)
{
    queue q; /* large, so its copies are not cleared */
    q.kernels = kernels;
    q.ctas = ctas;
    q.stream = stream;
    q.bulk.count = q.loads.count = 0;
    q.bulk.bytes = q.loads.bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        TDI_TRY(add_copy(&q, &copies[i]));
    TDI_TRY(launch(&q, &q.bulk, true));
    return launch(&q, &q.loads, false);
}
