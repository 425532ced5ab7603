/*
 * Sums on a device against plain loops: equal bits, near the exact sum, nothing
 * written beside the destination. --small: every way through the kernels once,
 * some two million summands and some hundred launches.
 */
#include "device.h"

#include <math.h>

#include "base/util.h"

enum { SOURCES = TDI_CUDA_SOURCES, POOL = 8 << 20, OUT = 4 << 20 };

static uint64_t seed = 21;
static device d;
static mirror pool; /* what sources read; they may overlap */
static mirror out;
static tdi_cuda_chain *chain;

typedef struct sum_case {
    uint32_t sources;
    uint32_t flags;
    uint64_t elems;
    float scale;
    uint64_t at[SOURCES]; /* bytes into the pool */
    uint64_t dst;         /* bytes into out, at least GUARD */
    tdi_cuda_bounds bounds;
} sum_case;

static uint64_t size_of(const sum_case *c, uint32_t flag)
{
    return c->flags & flag ? 2 : 4;
}

/* By its definition: the nearer neighbour, of two the one that ends in 0. */
static uint16_t expected_bf16(float x)
{
    uint32_t bits = float_bits(x), low = bits & 0xffff;
    uint16_t cut = bits >> 16;

    if (isnan(x))
        return cut | 0x40;
    return low > 0x8000 || (low == 0x8000 && cut % 2) ? cut + 1 : cut;
}

static bool is_bf16(const sum_case *c, uint32_t flag)
{
    return c->flags & flag;
}

/* The exact sum has to be near, too: the order is not all of the contract. */
static float expected_sum(const sum_case *c, uint64_t i)
{
    volatile float sum = -0.0f; /* rounds after each operation */
    double exact = 0, size = 0;

    for (uint32_t s = 0; s < c->sources + (c->flags & TIDE_ADD ? 1 : 0); s++) {
        bool first = c->flags & TIDE_ADD && s == 0;
        uint32_t at = s - (c->flags & TIDE_ADD ? 1 : 0);
        float x = first ? get_element(out.want + c->dst, i, false)
                        : get_element(pool.want + c->at[at], i,
                                      is_bf16(c, TIDE_SRC_BF16));
        sum = sum + x;
        exact += x;
        size += fabs(x);
    }
    if (isfinite(size) && fabs(sum - exact) > ldexp(size, -24) * c->sources)
        CHECK_FAIL("the reference is wrong: %a, not near %a", sum, exact);
    return c->sources ? (c->flags & TIDE_SCALE ? c->scale : 1) * sum : 0;
}

static void expect(const sum_case *c)
{
    for (uint64_t i = 0; i < c->elems; i++) {
        float sum = expected_sum(c, i);
        uint16_t narrow = expected_bf16(sum);
        if (is_bf16(c, TIDE_DST_BF16))
            memcpy(out.want + c->dst + 2 * i, &narrow, 2);
        else
            memcpy(out.want + c->dst + 4 * i, &sum, 4);
    }
}

static void check_output(const sum_case *c, uint64_t bytes)
{
    bool narrow = is_bf16(c, TIDE_DST_BF16);

    for (uint64_t i = 0; i < bytes; i++) {
        if (out.got[i] == out.want[i])
            continue;
        uint64_t e = i < c->dst ? 0 : (i - c->dst) / (narrow ? 2 : 4);
        if (i >= c->dst && e < c->elems &&
            isnan(get_element(out.got + c->dst, e, narrow)) &&
            isnan(get_element(out.want + c->dst, e, narrow)))
            continue; /* which NaN is open */
        CHECK_FAIL("%u sources, flags %#x, %" PRIu64 " elements, source 0 at "
                   "%" PRIu64 ", dst at %" PRIu64 ", bounds %u, %" PRIu64
                   ": byte %" PRId64 " of dst is %#x, not %#x",
                   c->sources, c->flags, c->elems, c->at[0], c->dst,
                   c->bounds.ctas, c->bounds.chunk, (int64_t)(i - c->dst),
                   out.got[i], out.want[i]);
    }
}

/* Every other sum has its launches in graphs. */
static tdi_cuda_chain *next_chain(void)
{
    static unsigned turn;
    return turn++ % 2 ? chain : NULL;
}

static void queue(const sum_case *c)
{
    cu_pointer src[SOURCES];
    tdi_cuda_sum sum = {.dst = out.device + c->dst,
                        .src = src,
                        .sources = c->sources,
                        .flags = c->flags,
                        .elems = c->elems,
                        .scale = c->scale};

    for (uint32_t s = 0; s < c->sources; s++)
        src[s] = pool.device + c->at[s];
    CHECK_OK(tdi_cuda_sum_queue(d.kernels, next_chain(), &sum, &c->bounds,
                                d.stream));
}

static void check_sum(const sum_case *c)
{
    uint64_t end = c->dst + c->elems * size_of(c, TIDE_DST_BF16) + GUARD;

    CHECK(end <= OUT);
    memset(out.want, POISON, end);
    if (c->flags & TIDE_ADD)
        fill_numbers(&seed, out.want + c->dst, 4 * c->elems);
    push_mirror(&d, &out, end);
    queue(c);
    expect(c);
    pull_mirror(&d, &out, end);
    check_output(c, end);
}

/* Sources at `phase` elements past 16 bytes, or, if it is negative, anywhere.
 */
static void place(sum_case *c, int phase, unsigned dst_phase)
{
    uint64_t size = size_of(c, TIDE_SRC_BF16);
    uint64_t room = (POOL - c->elems * size) / 16 - 2;

    for (uint32_t s = 0; s < c->sources; s++) {
        uint64_t unit = check_between(&seed, 0, room);
        uint64_t off = phase < 0 ? check_between(&seed, 0, 7) : (unsigned)phase;
        c->at[s] = 16 * unit + off * size;
    }
    c->dst = GUARD + dst_phase * size_of(c, TIDE_DST_BF16);
}

static const uint32_t all_flags[] = {
    0,
    TIDE_SRC_BF16,
    TIDE_DST_BF16,
    TIDE_SRC_BF16 | TIDE_DST_BF16,
    TIDE_ADD,
    TIDE_ADD | TIDE_SRC_BF16,
    TIDE_SCALE | TIDE_SRC_BF16,
    TIDE_SCALE | TIDE_SRC_BF16 | TIDE_DST_BF16,
    TIDE_SCALE | TIDE_ADD,
};

/* Every phase of sources and destination against 16 bytes. */
static void test_phases(void)
{
    static const uint64_t counts[] = {1, 7, 9, 130, 1003};

    for (unsigned f = 0; f < TDI_COUNT(all_flags); f++)
        for (int phase = -1; phase < 8; phase++)
            for (unsigned to = 0; to < 8; to++)
                for (unsigned n = 0; n < TDI_COUNT(counts); n++) {
                    unsigned turn = f + (unsigned)(phase + 1);
                    sum_case c = {.sources = 3,
                                  .flags = all_flags[f],
                                  .elems = counts[n],
                                  .scale = 1.0f / 3};
                    if (d.small && (to != turn % 8 || n != turn % 5))
                        continue;
                    place(&c, phase, to);
                    check_sum(&c);
                }
}

/* Every number of sources that takes another way through a kernel. The small
 * ones are bf16 and fp32 in turn; many sources wrap a ring at any length. */
static void test_sources(void)
{
    static const uint64_t counts[] = {1000, 4096, 4104, 20011};
    static const uint64_t small_counts[] = {130, 257, 384, 1003};

    for (uint32_t k = 0; k <= SOURCES; k += k < 17 ? 1 : k == 17 ? 55 : 56)
        for (unsigned f = 0; f < TDI_COUNT(all_flags); f++)
            for (int mixed = 0; mixed < 2; mixed++) {
                sum_case c = {.sources = k,
                              .flags = all_flags[f],
                              .elems = counts[(k + f) % 4],
                              .scale = 0.7f};
                if (d.small && f != k % 2 * 4 && f != 1 + k % 4 * 2)
                    continue;
                if (d.small)
                    c.elems = small_counts[k > 17 ? 0 : (k + f) % 4];
                place(&c, mixed ? -1 : (int)(k % 8), k % 3);
                check_sum(&c);
            }
}

/* Any case within bounds of every kind. */
static void test_random(void)
{
    static const uint32_t ctas[] = {0, 0, 1, 2, 3, 16, 500};
    static const uint64_t chunks[] = {0, 1, 256, 2048, 10000, 65536};

    for (int n = 0; n < (d.small ? 40 : 800); n++) {
        sum_case c = {
            .sources = (uint32_t)check_between(&seed, 0, n % 9 ? 9 : SOURCES),
            .flags =
                all_flags[check_between(&seed, 0, TDI_COUNT(all_flags) - 1)],
            .elems = check_between(&seed, 0, d.small ? 1500 : 40000),
            .scale = 0.125f,
            .bounds = {.ctas = ctas[check_between(&seed, 0, 6)],
                       .chunk = chunks[check_between(&seed, 0, 5)],
                       .share = chunks[check_between(&seed, 0, 5)]}};
        if (c.bounds.chunk && c.elems * 4 / c.bounds.chunk > 200)
            c.elems = check_between(&seed, 0, 2000);
        place(&c, (int)check_between(&seed, 0, 8) - 1,
              (unsigned)check_between(&seed, 0, 8));
        check_sum(&c);
    }
}

/* NaN, infinities and denormals; every bf16 and every tie among them. */
static void test_special(void)
{
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { COUNT = 65536 };

    for (unsigned low = 0; low < TDI_COUNT(lows); low++) {
        sum_case c = {.sources = 1,
                      .flags = TIDE_DST_BF16,
                      .elems = d.small ? 4096 : COUNT,
                      .dst = GUARD};
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = (d.small ? i * 16 : i) << 16 | lows[low];
            memcpy(pool.want + 4 * (uint64_t)i, &bits, 4);
        }
        push_mirror(&d, &pool, 4 * COUNT);
        check_sum(&c);
        c.flags = 0;
        check_sum(&c);
        c.sources = 2;
        c.at[1] = 4 * c.elems / 2;
        c.elems /= 2;
        check_sum(&c);
    }
    fill_numbers(&seed, pool.want, 4 * COUNT);
    push_mirror(&d, &pool, 4 * COUNT);
}

/* dst is one of the sources: a running sum in place. */
static void test_in_place(void)
{
    for (unsigned place_of = 0; place_of < 3; place_of++) {
        sum_case c = {.sources = 3, .elems = d.small ? 3011 : 30011};
        uint64_t end = GUARD + 4 * c.elems + GUARD;
        cu_pointer src[3];
        tdi_cuda_sum sum = {.dst = out.device + GUARD,
                            .src = src,
                            .sources = 3,
                            .elems = c.elems};
        tdi_cuda_bounds bounds = {.ctas = 5};
        place(&c, 0, 0);
        memset(out.want, POISON, end);
        memcpy(out.want + GUARD, pool.want + c.at[place_of], 4 * c.elems);
        push_mirror(&d, &out, end);
        for (unsigned s = 0; s < 3; s++)
            src[s] = s == place_of ? sum.dst : pool.device + c.at[s];
        CHECK_OK(tdi_cuda_sum_queue(d.kernels, next_chain(), &sum, &bounds,
                                    d.stream));
        expect(&c);
        pull_mirror(&d, &out, end);
        check_output(&c, end);
    }
}

/* The same bits every time, whatever the bounds. The small ones have as many
 * launches, and tiles that wrap the ring of a single block. */
static void test_repeats(void)
{
    static const tdi_cuda_bounds bounds[] = {{.ctas = 0},
                                             {.ctas = 0},
                                             {.ctas = 16, .chunk = 256 << 10},
                                             {.ctas = 1},
                                             {.ctas = 132, .chunk = 64 << 10},
                                             {.share = 16 << 10}};
    sum_case c = {.sources = 8,
                  .flags = TIDE_SRC_BF16,
                  .elems = d.small ? 12500 : 1000003};

    place(&c, 0, 0);
    check_sum(&c);
    memcpy(out.want, out.got, GUARD + 4 * c.elems);
    for (unsigned i = 0; i < 2 * TDI_COUNT(bounds); i++) {
        c.bounds = bounds[i / 2]; /* each with graphs and without */
        if (d.small) {
            c.bounds.chunk /= 16;
            c.bounds.share /= 16;
        }
        CHECK_CUDA(d.cuda->fill_8_async(out.device + GUARD, POISON, 4 * c.elems,
                                        d.stream));
        queue(&c);
        pull_mirror(&d, &out, GUARD + 4 * c.elems);
        CHECK_INT(memcmp(out.got, out.want, GUARD + 4 * c.elems), ==, 0);
    }
}

/* Blocks add up how long they lived, if that is asked for. */
static void test_counter(void)
{
    mirror counter = take_mirror(&d, 8);
    sum_case c = {.sources = 2,
                  .elems = d.small ? 3000 : 100000,
                  .bounds = {.ctas = 2, .chunk = 4096}};
    uint64_t first, later;

    memset(counter.want, 0, 8);
    push_mirror(&d, &counter, 8);
    place(&c, 0, 0);
    tdi_cuda_kernels_count_time(d.kernels, counter.device);
    queue(&c);
    pull_mirror(&d, &counter, 8);
    memcpy(&first, counter.got, 8);
    CHECK_INT(first, >, 0);
    tdi_cuda_kernels_count_time(d.kernels, 0);
    queue(&c);
    pull_mirror(&d, &counter, 8);
    memcpy(&later, counter.got, 8);
    CHECK_INT(later, ==, first);
    free_mirror(&d, &counter);
}

static void test_refusal(void)
{
    tdi_cuda_sum sum = {.sources = SOURCES + 1, .elems = 1};
    tdi_cuda_bounds bounds = {0};

    CHECK_STATUS(
        tdi_cuda_sum_queue(d.kernels, next_chain(), &sum, &bounds, d.stream),
        TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), "129");
}

int main(int argc, char **argv)
{
    d = open_device(argc, argv);
    pool = take_mirror(&d, POOL);
    out = take_mirror(&d, OUT + GUARD);
    CHECK_OK(tdi_cuda_chain_create(d.kernels, d.stream, &chain));
    fill_numbers(&seed, pool.want, POOL);
    push_mirror(&d, &pool, POOL);
    test_phases();
    test_sources();
    test_random();
    test_special();
    test_in_place();
    test_repeats();
    test_counter();
    test_refusal();
    tdi_cuda_chain_free(chain);
    free_mirror(&d, &pool);
    free_mirror(&d, &out);
    close_device(&d);
    return 0;
}
