/* The flat path's copies: a table of the group's parameters on the device. */
#include "backend/cuda/image.h"
#include "base/fail.h"
#include "base/util.h"

#include <stdlib.h>

struct tdi_cuda_flat {
    const tdi_cuda_kernels *kernels;
    tdi_kernel_id id;
    tdi_flat_params params; /* all but the buffer */
};

static tdi_flat_part part_of(const tide_param_layout *p, tide_coll coll,
                             cu_pointer address)
{
    if (coll == TIDE_ALL_GATHER)
        return (tdi_flat_part){.address = address,
                               .packed = p->shard_offset,
                               .width = p->shard_bytes / p->param.outer,
                               .outer = (uint32_t)p->param.outer};
    return (tdi_flat_part){.address = address,
                           .packed = p->out_offset,
                           .width = p->shard_elems / p->param.outer,
                           .real = p->param.rows * p->param.inner,
                           .outer = (uint32_t)p->param.outer};
}

/* Fills in the parts that are not empty, and the one behind the last. */
static tide_status fill_table(const tide_layout *layout, tide_coll coll,
                              const cu_pointer *address, tdi_flat_part *parts,
                              tdi_flat_params *params)
{
    uint64_t tiles = 0;
    for (size_t i = 0; i < tide_layout_count(layout); i++) {
        const tide_param_layout *p = tide_layout_param(layout, i);
        tdi_flat_part *part = &parts[params->part_count];
        uint64_t runs;
        if (!p->shard_elems)
            continue;
        *part = part_of(p, coll, address[i]);
        part->first = (uint32_t)tiles;
        if (!tdi_mul(params->ranks * p->param.outer,
                     tdi_ceil_div(part->width, TDI_FLAT_TILE), &runs) ||
            p->param.outer > UINT32_MAX || tiles + runs > INT32_MAX)
            return tdi_fail(TIDE_ERR_INVALID,
                            "the flat path has too many pieces at parameter "
                            "%zu: more than 2^31",
                            i);
        tiles += runs;
        params->part_count++;
    }
    parts[params->part_count].first = (uint32_t)tiles;
    params->tiles = (uint32_t)tiles;
    return TIDE_OK;
}

static tide_status upload(tdi_cuda_flat *flat, const tdi_flat_part *parts)
{
    const tdi_cuda_api *cuda = flat->kernels->cuda;
    uint64_t bytes = (flat->params.part_count + 1) * sizeof(*parts);
    cu_pointer table;
    TDI_TRY(tdi_cuda_kernels_check(cuda, cuda->mem_alloc(&table, bytes),
                                   "a table of the flat path"));
    flat->params.parts = table;
    TDI_TRY(tdi_cuda_kernels_check(
        cuda,
        cuda->copy_async(table, (cu_pointer)(uintptr_t)parts, bytes, NULL),
        "copying a table of the flat path"));
    return tdi_cuda_kernels_check(cuda, cuda->stream_sync(NULL),
                                  "copying a table of the flat path");
}

static tide_status build(tdi_cuda_flat *flat, const tide_layout *layout,
                         tide_coll coll, tide_dtype dtype,
                         const cu_pointer *address)
{
    tdi_flat_part *parts =
        calloc(tide_layout_count(layout) + 1, sizeof(*parts));
    if (!parts)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a flat path");
    bool unpacks = coll == TIDE_ALL_GATHER;
    flat->id =
        unpacks ? TDI_KERNEL_tide_flat_unpack : TDI_KERNEL_tide_flat_pack;
    flat->params.ranks = tide_layout_ranks(layout);
    flat->params.pitch = unpacks ? tide_layout_shard_bytes(layout)
                                 : tide_layout_out_elems(layout);
    flat->params.flags = dtype == TIDE_BF16 ? TDI_SUM_SRC_BF16 : 0;
    tide_status status =
        fill_table(layout, coll, address, parts, &flat->params);
    if (!status)
        status = upload(flat, parts);
    free(parts);
    return status;
}

tide_status tdi_cuda_flat_create(const tdi_cuda_kernels *kernels,
                                 const tide_layout *layout, tide_coll coll,
                                 tide_dtype dtype, const cu_pointer *address,
                                 tdi_cuda_flat **flat)
{
    *flat = NULL;
    if (coll == TIDE_REDUCE_SCATTER && dtype != TIDE_BF16 && dtype != TIDE_F32)
        return tdi_fail(TIDE_ERR_INVALID,
                        "the flat path packs bf16 and f32, not %s",
                        tide_dtype_name(dtype));
    tdi_cuda_flat *made = calloc(1, sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a flat path");
    made->kernels = kernels;
    tide_status status = build(made, layout, coll, dtype, address);
    if (status) {
        tdi_cuda_flat_free(made);
        return status;
    }
    *flat = made;
    return TIDE_OK;
}

void tdi_cuda_flat_free(tdi_cuda_flat *flat)
{
    if (!flat)
        return;
    if (flat->params.parts)
        flat->kernels->cuda->mem_free(flat->params.parts);
    free(flat);
}

tide_status tdi_cuda_flat_queue(const tdi_cuda_flat *flat, cu_pointer buffer,
                                cu_stream stream)
{
    tdi_flat_params p = flat->params;
    void *params[] = {&p};
    if (!p.tiles)
        return TIDE_OK;
    p.buffer = buffer;
    p.counter = flat->kernels->counter;
    uint32_t blocks = (uint32_t)tdi_min(p.tiles, (uint64_t)flat->kernels->sms *
                                                     TDI_FLAT_BLOCKS);
    return tdi_cuda_launch(flat->kernels, flat->id, blocks, params, stream);
}
