/* Sets of ranks, numbered, so that contents can name who is in a sum. */
#include "plan/verify_memory.h"

#include "base/util.h"

#include <stdlib.h>
#include <string.h>

bool tdi_sets_open(tdi_rank_sets *sets, uint32_t ranks)
{
    *sets = (tdi_rank_sets){.words = (ranks + 63) / 64, .bucket_count = 64};
    sets->sum = calloc(sets->words, sizeof(*sets->sum));
    sets->buckets = malloc(sets->bucket_count * sizeof(*sets->buckets));
    if (sets->buckets)
        memset(sets->buckets, 0xff,
               sets->bucket_count * sizeof(*sets->buckets));
    return sets->sum && sets->buckets;
}

void tdi_sets_close(tdi_rank_sets *sets)
{
    free(sets->bits);
    free(sets->buckets);
    free(sets->sum);
}

static const uint64_t *bits_of(const tdi_rank_sets *sets, uint32_t number)
{
    return &sets->bits[(size_t)number * sets->words];
}

static uint32_t first_bucket(const tdi_rank_sets *sets, const uint64_t *bits)
{
    uint64_t hash = 0;
    for (uint32_t w = 0; w < sets->words; w++)
        hash = tdi_hash(hash, bits[w]);
    return (uint32_t)hash & (sets->bucket_count - 1);
}

/* The bucket of a set, or the empty one where it belongs. */
static uint32_t *find_bucket(const tdi_rank_sets *sets, const uint64_t *bits)
{
    uint32_t at = first_bucket(sets, bits);
    while (sets->buckets[at] != UINT32_MAX &&
           memcmp(bits_of(sets, sets->buckets[at]), bits,
                  sets->words * sizeof(*bits)))
        at = (at + 1) & (sets->bucket_count - 1);
    return &sets->buckets[at];
}

/* Twice the buckets, and room for sets in half of them. */
static bool grow(tdi_rank_sets *sets)
{
    uint32_t buckets = 2 * sets->bucket_count;
    uint64_t *bits =
        realloc(sets->bits, (size_t)buckets / 2 * sets->words * sizeof(*bits));
    if (!bits)
        return false;
    sets->bits = bits;
    sets->capacity = buckets / 2;
    uint32_t *table = malloc(buckets * sizeof(*table));
    if (!table)
        return false;
    memset(table, 0xff, buckets * sizeof(*table));
    free(sets->buckets);
    sets->buckets = table;
    sets->bucket_count = buckets;
    for (uint32_t i = 0; i < sets->count; i++)
        *find_bucket(sets, bits_of(sets, i)) = i;
    return true;
}

void tdi_sets_clear(tdi_rank_sets *sets)
{
    memset(sets->sum, 0, sets->words * sizeof(*sets->sum));
}

bool tdi_sets_add(tdi_rank_sets *sets, uint32_t number)
{
    const uint64_t *bits = bits_of(sets, number);
    uint64_t both = 0;
    for (uint32_t w = 0; w < sets->words; w++) {
        both |= sets->sum[w] & bits[w];
        sets->sum[w] |= bits[w];
    }
    return !both;
}

bool tdi_sets_add_rank(tdi_rank_sets *sets, uint32_t rank)
{
    uint64_t bit = (uint64_t)1 << rank % 64;
    bool there = sets->sum[rank / 64] & bit;
    sets->sum[rank / 64] |= bit;
    return !there;
}

uint32_t tdi_sets_number(tdi_rank_sets *sets)
{
    uint32_t *bucket = find_bucket(sets, sets->sum);
    if (*bucket != UINT32_MAX)
        return *bucket;
    if (sets->count == sets->capacity) {
        if (!grow(sets))
            return UINT32_MAX;
        bucket = find_bucket(sets, sets->sum);
    }
    memcpy(&sets->bits[(size_t)sets->count * sets->words], sets->sum,
           sets->words * sizeof(*sets->sum));
    return *bucket = sets->count++;
}

uint32_t tdi_sets_lacks(const tdi_rank_sets *sets, uint32_t number,
                        uint32_t ranks)
{
    const uint64_t *bits = bits_of(sets, number);
    for (uint32_t r = 0; r < ranks; r++)
        if (!(bits[r / 64] >> r % 64 & 1))
            return r;
    return UINT32_MAX;
}
