/* What the kernels' tests share: a device, or the reason to skip. They run on
 * whatever driver is opened, the tests' own (tests/fake) too. */
#ifndef TIDE_TESTS_CUDA_DEVICE_H
#define TIDE_TESTS_CUDA_DEVICE_H

#include "support/check.h"

#include <stdbool.h>

#include "backend/cuda/kernels.h"
#include "backend/cuda/load.h"

enum { GUARD = 256, POISON = 0xa5 }; /* bytes around what may be written */

typedef struct device {
    const tdi_cuda_api *cuda;
    tdi_cuda_kernels *kernels;
    cu_device device;
    cu_stream stream;
    bool small; /* few cases: for memory and race checkers */
} device;

#define CHECK_CUDA(call)                                                       \
    do {                                                                       \
        cu_result check_result = (call);                                       \
        if (check_result)                                                      \
            CHECK_FAIL("%s returns %d", #call, check_result);                  \
    } while (0)

static inline device open_device(int argc, char **argv)
{
    device d = {.small = argc > 1 && !strcmp(argv[1], "--small")};
    cu_context context;
    int count = 0;

    if (!tdi_cuda_kernels_built())
        CHECK_SKIP("built without kernels");
    if (tdi_cuda_load(&d.cuda))
        CHECK_SKIP("%s", tide_last_error());
    if (d.cuda->init(0) || d.cuda->device_count(&count) || !count)
        CHECK_SKIP("no CUDA device");
    CHECK_CUDA(d.cuda->device_get(&d.device, 0));
    CHECK_CUDA(d.cuda->primary_retain(&context, d.device));
    CHECK_CUDA(d.cuda->context_set(context));
    CHECK_OK(tdi_cuda_kernels_load(d.cuda, &d.kernels));
    CHECK_CUDA(
        d.cuda->stream_create(&d.stream, CU_STREAM_NON_BLOCKING_FLAG, 0));
    return d;
}

static inline void close_device(device *d)
{
    tdi_cuda_kernels_free(d->kernels);
    CHECK_CUDA(d->cuda->stream_destroy(d->stream));
    CHECK_CUDA(d->cuda->primary_release(d->device));
}

/* Memory in three copies: what the device has, what it should have, and room
 * to read it back. */
typedef struct mirror {
    cu_pointer device;
    unsigned char *want;
    unsigned char *got;
    uint64_t bytes;
} mirror;

static inline mirror take_mirror(const device *d, uint64_t bytes)
{
    mirror m = {.bytes = bytes};
    CHECK_CUDA(d->cuda->mem_alloc(&m.device, bytes));
    m.want = malloc(bytes);
    m.got = malloc(bytes);
    CHECK(m.want && m.got);
    return m;
}

static inline void free_mirror(const device *d, mirror *m)
{
    CHECK_CUDA(d->cuda->mem_free(m->device));
    free(m->want);
    free(m->got);
}

/* To the device, as far as `bytes`. */
static inline void push_mirror(const device *d, const mirror *m, uint64_t bytes)
{
    CHECK_CUDA(d->cuda->copy_async(m->device, (cu_pointer)(uintptr_t)m->want,
                                   bytes, d->stream));
    CHECK_CUDA(d->cuda->stream_sync(d->stream));
}

static inline void pull_mirror(const device *d, const mirror *m, uint64_t bytes)
{
    CHECK_CUDA(d->cuda->copy_async((cu_pointer)(uintptr_t)m->got, m->device,
                                   bytes, d->stream));
    CHECK_CUDA(d->cuda->stream_sync(d->stream));
}

static inline float bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float get_element(const unsigned char *from, uint64_t i,
                                bool bf16)
{
    uint16_t half;
    float x;

    if (!bf16) {
        memcpy(&x, from + 4 * i, 4);
        return x;
    }
    memcpy(&half, from + 2 * i, 2);
    return bits_float((uint32_t)half << 16);
}

/* Words that are tame as bf16, and in pairs as fp32: magnitudes far enough
 * apart that another order of a sum rounds otherwise. */
static inline void fill_numbers(uint64_t *seed, unsigned char *to,
                                uint64_t bytes)
{
    for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
        uint64_t r = check_random(seed);
        uint16_t word = (uint16_t)((r >> 40 & 0x807f) | (115 + r % 24) << 7);
        memcpy(to + i, &word, 2);
    }
}

#endif
