/*
 * The host backend's sums at every vector level this machine has, cached and
 * streamed, against plain loops: equal bits.
 */
#include "support/check.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/host/kernels_isa.h"
#include "base/util.h"

#define GUARD       64 /* bytes before and after what may be written */
#define MAX_SOURCES 33
#define MAX_LEVEL   2

static uint64_t seed = 20;

static uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static size_t size_of(tide_dtype type)
{
    return type == TIDE_F32 ? 4 : 2;
}

static float get(const void *from, uint64_t i, tide_dtype type)
{
    uint16_t half;
    float x;

    if (type == TIDE_F32) {
        memcpy(&x, (const char *)from + 4 * i, 4);
        return x;
    }
    memcpy(&half, (const char *)from + 2 * i, 2);
    return bits_float((uint32_t)half << 16);
}

/* By its definition: the nearer neighbour, of two the one that ends in 0. */
static uint16_t expected_bf16(float x)
{
    uint32_t bits = float_bits(x), low = bits & 0xffff;
    uint16_t cut = bits >> 16;

    if (isnan(x))
        return cut | 0x40;
    if (low > 0x8000 || (low == 0x8000 && cut % 2 == 1))
        return cut + 1;
    return cut;
}

static float expected_sum(const tdi_host_sum_args *args, const void *before,
                          uint64_t i)
{
    volatile float sum = 0; /* rounds after each operation */
    uint32_t s = 0;

    if (args->add)
        sum = get(before, i, TIDE_F32);
    else if (args->sources)
        sum = get(args->src[s++], i, args->in);
    for (; s < args->sources; s++)
        sum = sum + get(args->src[s], i, args->in);
    return args->scale == 1 ? sum : args->scale * sum;
}

/* Which of several NaNs comes out is open, that it is one is not. */
static void check_element(const tdi_host_sum_args *args, uint64_t i, float want,
                          const char *level)
{
    float got = get(args->dst, i, args->out);
    float rounded = args->out == TIDE_F32
                        ? want
                        : bits_float((uint32_t)expected_bf16(want) << 16);

    if (isnan(rounded) ? isnan(got) : float_bits(got) == float_bits(rounded))
        return;
    CHECK_FAIL("%s, %u sources %s to %s, add %d, scale %g, element %" PRIu64
               " of %" PRIu64 ": %a, not %a",
               level, args->sources, tide_dtype_name(args->in),
               tide_dtype_name(args->out), args->add, args->scale, i,
               args->count, got, rounded);
}

static void check_guard(const unsigned char *guard, const char *what)
{
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0xa5)
            CHECK_FAIL("byte %d %s was written", i, what);
}

/* One sum: dst and the sources each some elements off alignment, dst
 * guarded. Place `alias` is where the source that is dst stands, or -1. */
typedef struct sum_case {
    uint32_t sources;
    tide_dtype in, out;
    uint64_t count;
    int add;
    float scale;
    int alias;
    void (*fill)(void *to, uint64_t count, tide_dtype type);
} sum_case;

static char *memory[MAX_SOURCES + 2]; /* the sources, dst, dst as it was */
static uint64_t memory_bytes;

static void reserve(uint64_t count)
{
    memory_bytes = tdi_round_up(4 * count + 4 * GUARD, 64);
    for (unsigned i = 0; i < TDI_COUNT(memory); i++) {
        free(memory[i]);
        memory[i] = aligned_alloc(64, memory_bytes);
        CHECK(memory[i]);
    }
}

static void check_sum(const sum_case *c)
{
    const void *src[MAX_SOURCES];
    uint64_t bytes = c->count * size_of(c->out);
    char *dst = memory[MAX_SOURCES] + GUARD +
                check_between(&seed, 0, 31) * size_of(c->out);
    char *before = memory[MAX_SOURCES + 1];

    for (uint32_t s = 0; s < c->sources; s++) {
        uint64_t off = check_between(&seed, 0, 31) * size_of(c->in);
        c->fill(memory[s] + off, c->count, c->in);
        src[s] = memory[s] + off;
    }
    c->fill(before, c->count, c->out);
    tdi_host_sum_args args = {.dst = dst,
                              .src = src,
                              .sources = c->sources,
                              .in = c->in,
                              .out = c->out,
                              .count = c->count,
                              .add = c->add,
                              .scale = c->scale};
    for (int run = 0; run < 2 * (MAX_LEVEL + 1); run++) {
        const tdi_host_kernels *set = tdi_host_kernels_at(run / 2);

        memset(dst - GUARD, 0xa5, bytes + 2 * GUARD);
        memcpy(dst, before, bytes);
        if (c->alias >= 0)
            src[c->alias] = dst;
        set->sum(&args, run % 2);
        if (c->alias >= 0)
            src[c->alias] = before;
        for (uint64_t i = 0; i < c->count; i++)
            check_element(&args, i, expected_sum(&args, before, i), set->name);
        check_guard((unsigned char *)dst - GUARD, "before dst");
        check_guard((unsigned char *)dst + bytes, "after dst");
    }
}

static void put(void *to, uint64_t i, tide_dtype type, uint32_t bits)
{
    uint16_t half = bits >> 16;

    if (type == TIDE_F32)
        memcpy((char *)to + 4 * i, &bits, 4);
    else
        memcpy((char *)to + 2 * i, &half, 2);
}

/* Magnitudes far apart, so that another order rounds otherwise. */
static void fill_numbers(void *to, uint64_t count, tide_dtype type)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = check_random(&seed);
        uint32_t exponent = 127 - 12 + r % 24;
        put(to, i, type, (uint32_t)(r >> 32 & 0x807fffff) | exponent << 23);
    }
}

/* Any bits: NaN, infinities and denormals in plenty. */
static void fill_any(void *to, uint64_t count, tide_dtype type)
{
    static const uint32_t special[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0xffc10000, 0x7f810000, 0x00010000,
        0x80010000, 0x007fffff, 0x00000000, 0x80000000, 0x7f7fffff, 0xff7fffff,
    };
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = check_random(&seed);
        put(to, i, type,
            r % 2 ? special[(r >> 8) % TDI_COUNT(special)]
                  : (uint32_t)(r >> 32));
    }
}

static const tide_dtype types[] = {TIDE_BF16, TIDE_F32};

/* Every pair of types, add and scale for a number of sources and a count. */
static void check_sums(uint32_t sources, uint64_t count)
{
    static const float scales[] = {1, 1.0f / 3};

    for (int v = 0; v < 16; v++) {
        sum_case c = {.sources = sources,
                      .in = types[v & 1],
                      .out = types[v >> 1 & 1],
                      .count = count,
                      .add = v >> 2 & 1,
                      .scale = scales[v >> 3],
                      .alias = -1,
                      .fill = fill_numbers};
        if (c.add && c.out == TIDE_BF16)
            continue;
        check_sum(&c);
        c.fill = fill_any;
        check_sum(&c);
        if (c.in != c.out || !sources)
            continue;
        c.alias = 0;
        check_sum(&c);
        c.alias = sources - 1;
        check_sum(&c);
    }
}

static void test_sums(void)
{
    static const uint32_t sources[] = {0, 1, 2, 3, 4, 5, 8, 9, MAX_SOURCES};

    reserve(70000);
    for (uint64_t count = 0; count <= 130; count++)
        for (unsigned s = 0; s < TDI_COUNT(sources); s++)
            check_sums(sources[s], count);
    for (unsigned s = 0; s < TDI_COUNT(sources); s++)
        check_sums(sources[s], 4099);
    check_sums(4, 69997);
}

/* The order is the contract, but it has to be a sum as well. */
static void test_near_exact_sum(void)
{
    enum { COUNT = 1000, SOURCES = 8 };
    const void *src[SOURCES];

    reserve(COUNT);
    for (int s = 0; s < SOURCES; s++) {
        fill_numbers(memory[s], COUNT, TIDE_BF16);
        src[s] = memory[s];
    }
    tdi_host_sum_args args = {.dst = memory[MAX_SOURCES],
                              .src = src,
                              .sources = SOURCES,
                              .in = TIDE_BF16,
                              .out = TIDE_F32,
                              .count = COUNT,
                              .scale = 0.125f};
    tdi_host_sum(&args);
    for (int i = 0; i < COUNT; i++) {
        double sum = 0, size = 0;
        for (int s = 0; s < SOURCES; s++) {
            sum += get(src[s], i, TIDE_BF16);
            size += fabs(get(src[s], i, TIDE_BF16));
        }
        double got = get(args.dst, i, TIDE_F32);
        if (fabs(got - sum / 8) > SOURCES * ldexp(size / 8, -24))
            CHECK_FAIL("element %d: %g, not near %g", i, got, sum / 8);
    }
}

/* One fp32 source and scale 1 is a copy, signalling NaNs and all. */
static void test_scale_one_is_exact(void)
{
    enum { COUNT = 4099 };

    reserve(COUNT);
    fill_any(memory[0], COUNT, TIDE_F32);
    put(memory[0], 0, TIDE_F32, 0x7f812345);
    put(memory[0], 1, TIDE_F32, 0x80000000);
    const void *src[] = {memory[0]};
    tdi_host_sum_args args = {.dst = memory[1],
                              .src = src,
                              .sources = 1,
                              .in = TIDE_F32,
                              .out = TIDE_F32,
                              .count = COUNT,
                              .scale = 1};
    for (int level = 0; level <= MAX_LEVEL; level++) {
        memset(memory[1], 0xa5, COUNT * 4);
        tdi_host_kernels_at(level)->sum(&args, 0);
        CHECK_INT(memcmp(memory[0], memory[1], COUNT * 4), ==, 0);
    }
}

/* Every bf16 with what may follow it in fp32, the ties among it. */
static void test_bf16_rounding(void)
{
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { COUNT = 65536 };

    reserve(COUNT);
    const void *src[] = {memory[0]};
    tdi_host_sum_args args = {.dst = memory[1],
                              .src = src,
                              .sources = 1,
                              .in = TIDE_F32,
                              .out = TIDE_BF16,
                              .count = COUNT,
                              .scale = 1};
    for (unsigned low = 0; low < TDI_COUNT(lows); low++) {
        for (uint32_t i = 0; i < COUNT; i++)
            put(memory[0], i, TIDE_F32, i << 16 | lows[low]);
        for (int level = 0; level <= MAX_LEVEL; level++) {
            memset(memory[1], 0xa5, COUNT * 2);
            tdi_host_kernels_at(level)->sum(&args, 0);
            for (uint32_t i = 0; i < COUNT; i++)
                CHECK_INT(float_bits(get(memory[1], i, TIDE_BF16)) >> 16, ==,
                          expected_bf16(get(memory[0], i, TIDE_F32)));
        }
    }
}

/* A dst so large that tdi_host_sum streams it. */
static void test_large_sum(void)
{
    enum { COUNT = (3 << 20) + 5 };

    reserve(COUNT);
    const void *src[] = {memory[0] + 2, memory[1] + 6, memory[2]};
    tdi_host_sum_args args = {.dst = memory[3] + 4,
                              .src = src,
                              .sources = 3,
                              .in = TIDE_BF16,
                              .out = TIDE_F32,
                              .count = COUNT,
                              .scale = 0.5f};
    for (int s = 0; s < 3; s++)
        fill_numbers((void *)src[s], COUNT, TIDE_BF16);
    memset(memory[3], 0xa5, memory_bytes);
    tdi_host_sum(&args);
    for (uint64_t i = 0; i < COUNT; i++)
        check_element(&args, i, expected_sum(&args, NULL, i), tdi_host_simd());
    check_guard((unsigned char *)args.dst + 4 * (uint64_t)COUNT, "after dst");
}

/* The choice is made once a process, so each cap gets a process. */
static void test_environment_caps_level(void)
{
    for (int level = 0; level <= MAX_LEVEL; level++) {
        int status;
        pid_t child = fork();

        CHECK_INT(child, >=, 0);
        if (!child) {
            char text[] = {(char)('0' + level), 0};
            setenv("TIDE_SIMD", text, 1);
            CHECK_TEXT(tdi_host_simd(), tdi_host_kernels_at(level)->name);
            if (!level)
                CHECK_TEXT(tdi_host_simd(), "scalar");
            _exit(0);
        }
        CHECK_INT(waitpid(child, &status, 0), ==, child);
        CHECK_INT(status, ==, 0);
    }
}

int main(void)
{
    test_environment_caps_level(); /* before anything chooses here */
    test_sums();
    test_near_exact_sum();
    test_scale_one_is_exact();
    test_bf16_rounding();
    test_large_sum();
    return 0;
}
