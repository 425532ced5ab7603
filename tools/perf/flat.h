/*
 * The layout copies of FSDP2's flat path, which tide does without: from a
 * rank-major gathered buffer to the parameters, and from the gradients to a
 * rank-major fp32 buffer. They use the same kernels as the host backend, so
 * that what is compared is the copies, not their code.
 */
#ifndef TIDE_TOOLS_FLAT_H
#define TIDE_TOOLS_FLAT_H

#include <tide/layout.h>

/* `flat` holds the packed shard of every rank, one after the other;
 * storage[p] receives parameter p as tide_all_gather would leave it. */
void tdi_flat_unpack(const tide_layout *layout, const void *flat,
                     void *const *storage);

/* `flat` receives every rank's reduce-scatter input in fp32, one after the
 * other, padding zero; grad[p] is parameter p's unpadded bf16 gradient. */
void tdi_flat_pack(const tide_layout *layout, const uint16_t *const *grad,
                   float *flat);

#endif
