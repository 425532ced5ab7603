/* Fills inputs and checks outputs of the collectives. */
#include "perf/fill.h"

#include "base/util.h"

#include <math.h>
#include <string.h>

#define BLOCK 1024u

/* One word at a time, so that checks cost little beside the collective. */
static uint64_t make_word(uint64_t seed, uint64_t index)
{
    uint64_t x = (index ^ seed) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

void tdi_fill_bytes(void *to, uint64_t seed, uint64_t first, uint64_t count)
{
    unsigned char *out = to;
    while (count) {
        uint64_t word = make_word(seed, first / 8), skip = first % 8;
        uint64_t part = tdi_min(8 - skip, count);
        if (part == 8)
            memcpy(out, &word, 8);
        else
            memcpy(out, (unsigned char *)&word + skip, part);
        out += part;
        first += part;
        count -= part;
    }
}

uint64_t tdi_wrong_bytes(const void *got, uint64_t seed, uint64_t count,
                         uint64_t size)
{
    const unsigned char *at = got;
    unsigned char want[BLOCK];
    uint64_t wrong = 0;
    for (uint64_t done = 0; done < count;) {
        uint64_t part = tdi_min(count - done, BLOCK);
        tdi_fill_bytes(want, seed, done, part);
        if (memcmp(at + done, want, part))
            for (uint64_t i = 0; i < part; i += size)
                wrong += memcmp(at + done + i, want + i, size) != 0;
        done += part;
    }
    return wrong;
}

static uint32_t rank_seed(uint64_t seed, uint32_t rank)
{
    return (uint32_t)tdi_hash(seed, rank);
}

static int32_t make_value(uint32_t seed, uint64_t index)
{
    uint32_t x = ((uint32_t)index ^ seed) * 0x9e3779b1u;
    x ^= x >> 15;
    x *= 0x85ebca6bu;
    return (int32_t)(x >> 28) - 8;
}

void tdi_fill_grad(uint16_t *to, uint64_t seed, uint32_t rank, uint64_t count)
{
    uint32_t mine = rank_seed(seed, rank);
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)make_value(mine, i);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        to[i] = (uint16_t)(bits >> 16); /* exact: 4 bits of magnitude */
    }
}

/* About 1, or some 2^18 times less, so that sums of both are rounded. */
static uint16_t make_noise(uint32_t seed, uint64_t index)
{
    uint64_t word = make_word(seed, index);
    uint64_t exponent = word >> 32 & 1 ? 127 : 106 + (word >> 16) % 8;
    return (uint16_t)((word & 0x807f) | exponent << 7);
}

void tdi_fill_noise(uint16_t *to, uint64_t seed, uint32_t rank, uint64_t count)
{
    uint32_t mine = rank_seed(seed, rank);
    for (uint64_t i = 0; i < count; i++)
        to[i] = make_noise(mine, i);
}

uint64_t tdi_hash_bytes(const void *bytes, uint64_t count, uint64_t hash)
{
    const unsigned char *at = bytes;
    for (uint64_t done = 0; done < count; done += 8) {
        uint64_t word = 0;
        memcpy(&word, at + done, tdi_min(8, count - done));
        hash = tdi_hash(hash, word);
    }
    return hash;
}

static uint64_t count_wrong_sums(const float *got, const int32_t *sum,
                                 float scale, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++)
        wrong += !(got[i] == scale * (float)sum[i]); /* NaN is wrong too */
    return wrong;
}

uint64_t tdi_wrong_sums(const float *got, uint64_t seed, uint32_t ranks,
                        float scale, uint64_t first, uint64_t count)
{
    int32_t sum[BLOCK];
    uint64_t wrong = 0;
    for (uint64_t done = 0; done < count;) {
        uint64_t part = tdi_min(count - done, BLOCK);
        memset(sum, 0, sizeof(sum));
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint32_t theirs = rank_seed(seed, rank);
            for (uint64_t i = 0; i < part; i++)
                sum[i] += make_value(theirs, first + done + i);
        }
        wrong += count_wrong_sums(got + done, sum, scale, part);
        done += part;
    }
    return wrong;
}

uint64_t tdi_wrong_noise(const float *got, uint64_t seed, uint32_t ranks,
                         float scale, uint64_t first, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0, size = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint32_t bits = make_noise(rank_seed(seed, rank), first + i);
            float value;
            bits <<= 16;
            memcpy(&value, &bits, sizeof(value));
            sum += (double)value;
            size += fabs((double)value);
        }
        double off = fabs((double)got[i] - (double)scale * sum);
        wrong += !(off <= ldexp((double)scale * size * ranks, -24));
    }
    return wrong;
}

uint64_t tdi_wrong_zeros(const float *got, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++)
        wrong += !(got[i] == 0);
    return wrong;
}
