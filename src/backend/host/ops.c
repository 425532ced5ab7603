/* Copies and sums over addresses, private ones through a bounce buffer. */
#include "backend/host/host.h"
#include "backend/host/kernels.h"
#include "base/fail.h"
#include "base/util.h"

tide_status tdi_host_do_copy(tide_comm *comm, const tdi_move *move)
{
    if (!move->src.is_private) {
        tdi_host_copy(move->dst.pointer, move->dst_pitch, move->src.pointer,
                      move->src_pitch, move->width, move->height, 1);
        return TIDE_OK;
    }
    for (uint64_t row = 0; row < move->height; row++)
        TDI_TRY(tdi_host_read(comm, (uint32_t)move->src.rank,
                              move->dst.pointer + row * move->dst_pitch,
                              move->src.pointer + row * move->src_pitch,
                              move->width));
    return TIDE_OK;
}

static bool any_private(const tdi_sum *sum)
{
    for (uint32_t i = 0; i < sum->sources; i++)
        if (sum->src[i].is_private)
            return true;
    return false;
}

/* Sums elements [first, first + count), reading private sources first. */
static tide_status sum_part(tide_comm *comm, const tdi_sum *sum,
                            tdi_host_sum_args *args, uint64_t first,
                            uint64_t count)
{
    uint64_t size = tide_dtype_size(args->in);
    const void *sources[TIDE_MAX_LOCAL];
    for (uint32_t i = 0; i < sum->sources; i++) {
        const tdi_address *src = &sum->src[i];
        sources[i] = src->pointer + first * size;
        if (!src->is_private)
            continue;
        char *bounce = host_of(comm)->bounce + (size_t)i * HOST_BOUNCE_BYTES;
        TDI_TRY(tdi_host_read(comm, (uint32_t)src->rank, bounce, sources[i],
                              count * size));
        sources[i] = bounce;
    }
    args->src = sources;
    args->dst = sum->dst.pointer + first * tide_dtype_size(args->out);
    args->count = count;
    tdi_host_sum(args);
    return TIDE_OK;
}

tide_status tdi_host_do_sum(tide_comm *comm, const tdi_sum *sum)
{
    tdi_host_sum_args args = {
        .sources = sum->sources,
        .in = sum->flags & TIDE_SRC_BF16 ? TIDE_BF16 : TIDE_F32,
        .out = sum->flags & TIDE_DST_BF16 ? TIDE_BF16 : TIDE_F32,
        .whole = sum->elems,
        .add = (sum->flags & TIDE_ADD) != 0,
        .scale = sum->scale,
    };
    uint64_t most = sum->elems;
    if (any_private(sum))
        most = HOST_BOUNCE_BYTES / tide_dtype_size(args.in);
    for (uint64_t first = 0; first < sum->elems; first += most)
        TDI_TRY(sum_part(comm, sum, &args, first,
                         tdi_min(most, sum->elems - first)));
    return TIDE_OK;
}
