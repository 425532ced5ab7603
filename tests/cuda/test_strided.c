/* Strided copies within a device against plain loops, at every alignment.
 * --small: few copies, and two megabytes of them. */
#include "device.h"

#include "base/util.h"

enum { MEMORY = 8 << 20, COPIES = 150 };

static uint64_t seed = 23;
static device d;
static mirror from;
static mirror to;

static uint64_t pick(uint64_t high)
{
    return check_between(&seed, 0, high);
}

/* A copy to `*at` or a little behind it; *at goes on behind its last row. */
static tdi_cuda_strided any_copy(uint64_t *at, uint64_t unit, uint64_t most)
{
    tdi_cuda_strided c = {.height = 1 + (pick(2) ? pick(20) : 0)};
    uint64_t room = most / c.height / unit;

    c.width = unit * (pick(3) ? pick(tdi_min(room, 64)) : pick(room));
    c.dst_pitch = c.width + (pick(1) ? unit * pick(9) : 0);
    c.src_pitch = c.width + (pick(1) ? unit * pick(9) : 0);
    *at = tdi_round_up(*at + pick(40), unit);
    c.dst = to.device + *at;
    *at += c.dst_pitch * c.height;
    CHECK(c.src_pitch * c.height < MEMORY - 16);
    c.src =
        from.device + pick((MEMORY - c.src_pitch * c.height) / unit - 1) * unit;
    if (!pick(20))
        c.height = 0;
    return c;
}

static void expect(const tdi_cuda_strided *c)
{
    for (uint64_t r = 0; r < c->height; r++)
        memcpy(to.want + (c->dst - to.device) + r * c->dst_pitch,
               from.want + (c->src - from.device) + r * c->src_pitch, c->width);
}

/* `unit` 16 takes bulk copies, 0 mixes alignments. */
static void check_copies(uint32_t count, uint64_t unit, uint32_t ctas,
                         uint64_t most)
{
    static const uint64_t units[] = {1, 2, 4, 8, 16, 16, 16};
    tdi_cuda_strided copies[COPIES];
    uint64_t end = GUARD;

    for (uint32_t i = 0; i < count; i++)
        copies[i] = any_copy(
            &end, unit ? unit : units[pick(TDI_COUNT(units) - 1)], most);
    end += GUARD;
    CHECK(end <= MEMORY);
    memset(to.want, POISON, end);
    push_mirror(&d, &to, end);
    CHECK_OK(tdi_cuda_strided_queue(d.kernels, copies, count, ctas, d.stream));
    for (uint32_t i = 0; i < count; i++)
        expect(&copies[i]);
    pull_mirror(&d, &to, end);
    for (uint64_t i = 0; i < end; i++)
        if (to.got[i] != to.want[i])
            CHECK_FAIL("%u copies, unit %" PRIu64 ", %u blocks: byte %" PRIu64
                       " is %#x, not %#x",
                       count, unit, ctas, i, to.got[i], to.want[i]);
}

/* Row widths on both sides of a tile, and rows that make up more than one. */
static void test_widths(void)
{
    static const uint64_t widths[] = {16,    2032,  2048,  2064, 4096,
                                      16368, 16384, 16400, 70000};

    for (unsigned w = 0; w < TDI_COUNT(widths); w++)
        for (unsigned shift = 0; shift < 17; shift += 4) {
            uint64_t few = widths[w] > 4096 ? 2 : 5;
            tdi_cuda_strided c = {.dst = to.device + GUARD + shift,
                                  .src = from.device,
                                  .width = widths[w],
                                  .height = d.small ? few : 37,
                                  .dst_pitch = widths[w] + 32,
                                  .src_pitch = widths[w] + 16};
            uint64_t end = 2 * GUARD + c.dst_pitch * c.height;
            memset(to.want, POISON, end);
            push_mirror(&d, &to, end);
            CHECK_OK(tdi_cuda_strided_queue(d.kernels, &c, 1, 0, d.stream));
            expect(&c);
            pull_mirror(&d, &to, end);
            if (memcmp(to.got, to.want, end))
                CHECK_FAIL("rows of %" PRIu64 " bytes, shifted %u, are wrong",
                           widths[w], shift);
        }
}

static void test_random(void)
{
    static const uint32_t ctas[] = {0, 1, 3, 16};

    for (int n = 0; n < 300; n++) {
        uint32_t count = 1 + (uint32_t)pick(n % 4 ? 9 : COPIES - 1);
        check_copies(count, n % 3 ? 16 : 0, ctas[pick(3)],
                     count > 10 ? 20000 : 300000);
    }
}

/* Every kernel with every bound; 70 copies are two launches, and wrap the ring
 * of a single block. */
static void test_few(void)
{
    static const uint32_t ctas[] = {0, 1, 3, 16};

    for (unsigned i = 0; i < TDI_COUNT(ctas); i++)
        for (uint64_t unit = 0; unit <= 16; unit += 16) {
            check_copies(70, unit, ctas[i], 1000);
            check_copies(5, unit, ctas[i], 20000);
        }
}

int main(int argc, char **argv)
{
    d = open_device(argc, argv);
    from = take_mirror(&d, MEMORY);
    to = take_mirror(&d, MEMORY);
    fill_numbers(&seed, from.want, MEMORY);
    push_mirror(&d, &from, MEMORY);
    test_widths();
    if (d.small)
        test_few();
    else
        test_random();
    check_copies(0, 16, 0, 1000);
    free_mirror(&d, &from);
    free_mirror(&d, &to);
    close_device(&d);
    return 0;
}
