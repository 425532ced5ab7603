/*
 * What every C test uses. A test is one program: it exits 0 (passed), 1 (a
 * check failed; the message has both operands) or 77 (skipped, with a reason).
 */
#ifndef TIDE_TESTS_CHECK_H
#define TIDE_TESTS_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tide/status.h>

#define CHECK_FAIL(...)                                                        \
    do {                                                                       \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                        \
        fprintf(stderr, __VA_ARGS__);                                          \
        fputc('\n', stderr);                                                   \
        exit(1);                                                               \
    } while (0)

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition))                                                      \
            CHECK_FAIL("%s is false", #condition);                             \
    } while (0)

#define CHECK_INT(a, op, b)                                                    \
    do {                                                                       \
        int64_t check_a = (int64_t)(a), check_b = (int64_t)(b);                \
        if (!(check_a op check_b))                                             \
            CHECK_FAIL("%s %s %s fails: %" PRId64 ", %" PRId64, #a, #op, #b,   \
                       check_a, check_b);                                      \
    } while (0)

#define CHECK_STATUS(expr, expected)                                           \
    do {                                                                       \
        tide_status check_got = (expr), check_want = (expected);               \
        if (check_got != check_want)                                           \
            CHECK_FAIL("%s is %s, not %s (%s)", #expr,                         \
                       tide_status_name(check_got),                            \
                       tide_status_name(check_want), tide_last_error());       \
    } while (0)

#define CHECK_OK(expr) CHECK_STATUS(expr, TIDE_OK)

#define CHECK_TEXT(text, part)                                                 \
    do {                                                                       \
        if (!strstr((text), (part)))                                           \
            CHECK_FAIL("\"%s\" lacks \"%s\"", (text), (part));                 \
    } while (0)

#define CHECK_SKIP(...)                                                        \
    do {                                                                       \
        fprintf(stderr, "skipped: ");                                          \
        fprintf(stderr, __VA_ARGS__);                                          \
        fputc('\n', stderr);                                                   \
        exit(77);                                                              \
    } while (0)

/* A small repeatable generator (xorshift64*); seed with anything but 0. */
static inline uint64_t check_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

/* A number from low to high, both included. */
static inline uint64_t check_between(uint64_t *state, uint64_t low,
                                     uint64_t high)
{
    return low + check_random(state) % (high - low + 1);
}

#endif
