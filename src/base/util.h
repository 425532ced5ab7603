/* Small arithmetic that every folder uses. */
#ifndef TIDE_BASE_UTIL_H
#define TIDE_BASE_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TDI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline uint64_t tdi_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tdi_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t tdi_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Rounds up to a multiple of `to`, a power of two. */
static inline uint64_t tdi_round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) & ~(to - 1);
}

/* *out = a * b, or false if it does not fit below 2^62. */
static inline bool tdi_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out) && *out < (uint64_t)1 << 62;
}

/* Folds a value into a 64-bit hash (splitmix64 finaliser over both). */
static inline uint64_t tdi_hash(uint64_t hash, uint64_t value)
{
    uint64_t x = hash ^ (value + 0x9e3779b97f4a7c15u + (hash << 6));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Milliseconds of a clock that never goes back. */
uint64_t tdi_now_ms(void);

#endif
