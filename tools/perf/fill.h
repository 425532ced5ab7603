/*
 * Test data: what ranks put in, and how many elements came out wrong. A fill
 * depends on the seed (parameter, run) and the index, and for gradients on the
 * rank, so that data of another place or of an earlier run never passes.
 */
#ifndef TIDE_TOOLS_FILL_H
#define TIDE_TOOLS_FILL_H

#include <stdint.h>

/* Bytes [first, first + count) of the endless byte string `seed`. */
void tdi_fill_bytes(void *to, uint64_t seed, uint64_t first, uint64_t count);
/* Elements of `size` bytes that differ from the string's first `count`. */
uint64_t tdi_wrong_bytes(const void *got, uint64_t seed, uint64_t count,
                         uint64_t size);

/*
 * Elements [0, count) of rank's gradient in bf16: whole numbers from -8 to 7,
 * so that their sums over any 2^20 ranks are exact in fp32 in every order.
 */
void tdi_fill_grad(uint16_t *to, uint64_t seed, uint32_t rank, uint64_t count);
/* The same in bf16 of many magnitudes, finite: sums of three or more depend on
 * their order. */
void tdi_fill_noise(uint16_t *to, uint64_t seed, uint32_t rank, uint64_t count);
/* Of sums over ranks times scale, how many of elements [first, first + count)
 * of the gradient are wrong. */
typedef uint64_t tdi_count_wrong(const float *got, uint64_t seed,
                                 uint32_t ranks, float scale, uint64_t first,
                                 uint64_t count);
tdi_count_wrong tdi_wrong_sums;
/* The same of noise: wrong is what no order of fp32 additions can give, being
 * further from the fp64 sum than ranks * 2^-24 of the sum of magnitudes. */
tdi_count_wrong tdi_wrong_noise;
/* Folds bytes into a hash. */
uint64_t tdi_hash_bytes(const void *bytes, uint64_t count, uint64_t hash);
/* Elements that are not +0 or -0. */
uint64_t tdi_wrong_zeros(const float *got, uint64_t count);

#endif
