/* Shuffles of two vectors of KERNEL_BYTES / 4 lanes, as lists of lanes. */
#ifndef TIDE_BACKEND_HOST_KERNELS_LANES_H
#define TIDE_BACKEND_HOST_KERNELS_LANES_H

#if defined(__clang__)
#define LANES_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define LANES_SHUFFLE(x, y, ...)                                               \
    __builtin_shuffle(x, y, (vec_bits){__VA_ARGS__})
#endif

/* i, i + 2, ...: as many as a vector has. */
#define LANES_EVEN4(i)  (i), (i) + 2, (i) + 4, (i) + 6
#define LANES_EVEN8(i)  LANES_EVEN4(i), LANES_EVEN4((i) + 8)
#define LANES_EVEN16(i) LANES_EVEN8(i), LANES_EVEN8((i) + 16)

/* Lane i of x, lane i of y, lane i + 1 of x, ... */
#define LANES_ZIP4(i)  (i), (i) + LANES, (i) + 1, (i) + 1 + LANES
#define LANES_ZIP8(i)  LANES_ZIP4(i), LANES_ZIP4((i) + 2)
#define LANES_ZIP16(i) LANES_ZIP8(i), LANES_ZIP8((i) + 4)

#if KERNEL_BYTES == 64
#define LANES_EVEN LANES_EVEN16
#define LANES_ZIP  LANES_ZIP16
#elif KERNEL_BYTES == 32
#define LANES_EVEN LANES_EVEN8
#define LANES_ZIP  LANES_ZIP8
#else
#define LANES_EVEN LANES_EVEN4
#define LANES_ZIP  LANES_ZIP4
#endif

#endif
