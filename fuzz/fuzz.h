/* What the fuzz targets share: the entry, and a reader of input bytes that
 * yields zeros behind their end. */
#ifndef TIDE_FUZZ_FUZZ_H
#define TIDE_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* What libFuzzer and replay.c call, with any bytes. A target prints what is
 * wrong and aborts; it returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef struct fuzz_bytes {
    const uint8_t *data;
    size_t left;
} fuzz_bytes;

static inline uint32_t fuzz_take(fuzz_bytes *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->data++;
}

/* One byte's choice from low to high, both included. */
static inline uint32_t fuzz_pick(fuzz_bytes *in, uint32_t low, uint32_t high)
{
    return low + fuzz_take(in) % (high - low + 1);
}

#endif
