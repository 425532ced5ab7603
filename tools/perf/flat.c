/* FSDP2's layout copies around a flat collective. */
#include "perf/flat.h"

#include <string.h>

#include "backend/host/kernels.h"
#include "layout/layout.h"

static void unpack_param(const tide_param_layout *entry, uint32_t ranks,
                         uint64_t pitch, const unsigned char *from,
                         unsigned char *to)
{
    uint64_t outer = entry->param.outer;
    uint64_t width = entry->shard_bytes / outer;
    if (outer == 1)
        tdi_host_copy(to, width, from, pitch, width, ranks, 1);
    else
        for (uint32_t rank = 0; rank < ranks; rank++)
            tdi_host_copy(to + rank * width, ranks * width, from + rank * pitch,
                          width, width, outer, 1);
}

void tdi_flat_unpack(const tide_layout *layout, const void *flat,
                     void *const *storage)
{
    uint64_t pitch = tide_layout_shard_bytes(layout);
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        const tide_param_layout *entry = tide_layout_param(layout, p);
        if (entry->shard_bytes)
            unpack_param(entry, tide_layout_ranks(layout), pitch,
                         (const unsigned char *)flat + entry->shard_offset,
                         storage[p]);
    }
}

static void pack_piece(const tdi_piece *piece, const uint16_t *grad, float *to)
{
    const void *from = grad + piece->grad_offset;
    tdi_host_sum_args cast = {.dst = to,
                              .src = &from,
                              .sources = 1,
                              .in = TIDE_BF16,
                              .out = TIDE_F32,
                              .count = piece->elems,
                              .scale = 1};
    if (piece->real)
        tdi_host_sum(&cast);
    else
        memset(to, 0, piece->elems * sizeof(*to));
}

void tdi_flat_pack(const tide_layout *layout, const uint16_t *const *grad,
                   float *flat)
{
    uint64_t elems = tide_layout_out_elems(layout);
    for (uint32_t rank = 0; rank < tide_layout_ranks(layout); rank++) {
        tdi_piece_iter iter;
        tdi_piece piece;
        tdi_pieces_begin(&iter, layout, rank, 0, elems);
        while (tdi_pieces_next(&iter, &piece))
            pack_piece(&piece, grad[piece.param],
                       flat + rank * elems + piece.out_offset);
    }
}
