/*
 * How near the host backend's kernels come to memory speed:
 *     bench-kernels [MIB]     the largest source, 32 by default
 * GB/s counts the bytes read and written once (not the read for ownership of
 * a written line); the best of many runs. memcpy stands beside as the bar.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/host/kernels_isa.h"
#include "base/util.h"

#define MAX_SOURCES 8
#define MAX_LEVEL   2 /* of TIDE_SIMD */

static char *buffers[MAX_SOURCES];
static char *result;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *allocate(uint64_t bytes)
{
    char *p = aligned_alloc(4096, tdi_round_up(bytes, 4096));

    if (!p) {
        fprintf(stderr, "bench-kernels: no memory for %" PRIu64 " bytes\n",
                bytes);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

typedef struct work {
    tdi_host_sum_args sum;
    const tdi_host_kernels *kernel;
    uint64_t bytes; /* of one row, or of one source */
    uint64_t width; /* a copy: of one row; 0 is one row of all bytes */
    int stream;
} work;

static void run_sum(const work *w)
{
    w->kernel->sum(&w->sum, w->stream);
}

static void run_copy(const work *w)
{
    uint64_t width = w->width;

    tdi_host_copy(result, width, buffers[0], width + 64, width,
                  w->bytes / width, w->stream);
}

static void run_memcpy(const work *w)
{
    memcpy(result, buffers[0], w->bytes);
}

/* Best GB/s of about a tenth of a second. */
static double rate(void (*run)(const work *), const work *w, uint64_t moved)
{
    double best = 1e9, end = now() + 0.1;
    uint64_t repeat = tdi_max(1, (4 << 20) / moved);

    run(w);
    do {
        double start = now();
        for (uint64_t i = 0; i < repeat; i++)
            run(w);
        double took = (now() - start) / repeat;
        if (took < best)
            best = took;
    } while (now() < end);
    return moved / best / 1e9;
}

static double sum_rate(int level, uint32_t sources, uint64_t bytes, int stream)
{
    work w = {
        .stream = stream,
        .kernel = tdi_host_kernels_at(level),
        .sum = {.dst = result,
                .src = (const void *const *)buffers,
                .sources = sources,
                .in = TIDE_BF16,
                .out = TIDE_F32,
                .count = bytes / 2,
                .scale = 1},
    };

    return rate(run_sum, &w, (sources + 2) * bytes);
}

static void print_sums(uint64_t largest)
{
    printf("# sum, bf16 to fp32, GB/s; KiB of one source; stream: the best\n"
           "# set with dst written past the cache\n");
    printf("%8s %8s", "sources", "KiB");
    for (int level = 0; level <= MAX_LEVEL; level++)
        printf(" %8s", tdi_host_kernels_at(level)->name);
    printf(" %8s %8s\n", "stream", "memcpy");
    for (uint32_t sources = 2; sources <= MAX_SOURCES; sources *= 2) {
        for (uint64_t bytes = 64 << 10; bytes <= largest; bytes *= 8) {
            work copy = {.bytes = bytes};
            printf("%8u %8" PRIu64, sources, bytes >> 10);
            for (int level = 0; level <= MAX_LEVEL; level++)
                printf(" %8.1f", sum_rate(level, sources, bytes, 0));
            printf(" %8.1f", sum_rate(MAX_LEVEL, sources, bytes, 1));
            printf(" %8.1f\n", rate(run_memcpy, &copy, 2 * bytes));
        }
    }
}

static void print_copies(uint64_t bytes)
{
    printf("# copy of %" PRIu64 " KiB in rows, GB/s\n", bytes >> 10);
    printf("%8s %8s %8s\n", "row KiB", "cached", "stream");
    for (uint64_t width = 1 << 10; width <= bytes / 2; width *= 4) {
        work w = {.bytes = bytes, .width = width};
        printf("%8" PRIu64 " %8.1f", width >> 10,
               rate(run_copy, &w, 2 * bytes));
        w.stream = 1;
        printf(" %8.1f\n", rate(run_copy, &w, 2 * bytes));
    }
}

int main(int argc, char **argv)
{
    uint64_t largest = (argc > 1 ? strtoull(argv[1], NULL, 10) : 32) << 20;

    if (!largest) {
        fprintf(stderr, "usage: bench-kernels [MIB of the largest source]\n");
        return 2;
    }
    for (int i = 0; i < MAX_SOURCES; i++)
        buffers[i] = allocate(2 * largest);
    result = allocate(2 * largest);
    print_sums(largest);
    print_copies(largest);
    return 0;
}
