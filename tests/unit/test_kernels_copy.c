/*
 * The host backend's copies, cached and streamed: every byte of the rows, and
 * none between, before or behind them.
 */
#include "support/check.h"

#include "backend/host/kernels_isa.h"

#define GUARD     64 /* bytes before and after what may be written */
#define MAX_LEVEL 2

static uint64_t seed = 20;

static void check_rows(const char *dst, uint64_t dst_pitch, const char *src,
                       uint64_t src_pitch, uint64_t width, uint64_t height)
{
    for (uint64_t row = 0; row < height; row++) {
        const char *to = dst + row * dst_pitch;
        if (width && memcmp(to, src + row * src_pitch, width))
            CHECK_FAIL("row %" PRIu64 " of width %" PRIu64 " differs", row,
                       width);
        for (uint64_t i = width; i < dst_pitch; i++)
            if (to[i] != 0x5a)
                CHECK_FAIL("gap after row %" PRIu64 " was written", row);
    }
}

static void check_copy(uint64_t width, uint64_t height, uint64_t gap)
{
    uint64_t dst_pitch = width + gap, src_pitch = width + gap / 2;
    uint64_t off = check_between(&seed, 0, 63);
    char *dst = malloc(dst_pitch * height + GUARD + off);
    char *src = malloc(src_pitch * height + GUARD);

    CHECK(dst && src);
    for (uint64_t i = 0; i < src_pitch * height; i++)
        src[i] = (char)check_random(&seed);
    for (int stream = 0; stream <= 1; stream++) {
        memset(dst, 0x5a, dst_pitch * height + GUARD + off);
        tdi_host_copy(dst + off, dst_pitch, src, src_pitch, width, height,
                      stream);
        check_rows(dst + off, dst_pitch, src, src_pitch, width, height);
        check_rows(dst + off + dst_pitch * height, GUARD, src, 0, 0, 1);
        check_rows(dst, off, src, 0, 0, off != 0);
    }
    free(dst);
    free(src);
}

static void test_copies(void)
{
    for (uint64_t width = 0; width <= 130; width++)
        check_copy(width, 3, width % 7);
    check_copy(5000, 0, 0);
    check_copy(4097, 5, 130);
    check_copy(40961, 1, 0);
    check_copy(40961, 7, 0);
    check_copy(1000, 4500, 9); /* in all, enough to stream */
    check_copy((3 << 20) + 3, 2, 77);
}

/* Rows of a streamed copy, as each level does them. */
static void test_rows_at_levels(void)
{
    char src[400], dst[400];

    for (int i = 0; i < 400; i++)
        src[i] = (char)check_random(&seed);
    for (int level = 0; level <= MAX_LEVEL; level++)
        for (uint64_t bytes = 0; bytes <= 260; bytes++) {
            uint64_t off = bytes % 67;
            memset(dst, 0x5a, sizeof(dst));
            tdi_host_kernels_at(level)->copy(dst + off, src + off / 2, bytes);
            check_rows(dst, off, src, 0, 0, off != 0);
            check_rows(dst + off, bytes + GUARD, src + off / 2, 0, bytes, 1);
        }
}

int main(void)
{
    test_copies();
    test_rows_at_levels();
    return 0;
}
