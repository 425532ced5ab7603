/*
 * The conformance matrix that every backend passes: groups that are awkward in
 * one way each, all-gather and reduce-scatter from every kind of memory, every
 * byte against the definition, several calls in a row.
 */
#ifndef TIDE_TESTS_MATRIX_H
#define TIDE_TESTS_MATRIX_H

#include <tide/tide.h>

/* Where the caller's data lies: host memory, or a device's. */
typedef struct matrix_place {
    void *(*take)(size_t bytes); /* poisoned */
    void (*give)(void *memory);
    /* Host memory that writes may come from. */
    void *(*take_source)(size_t bytes);
    void (*give_source)(void *source);
    /* In the order of stream(); `from` must stay until sync(). */
    void (*write)(void *to, const void *from, size_t bytes);
    /* Into any host memory, at once. */
    void (*read)(void *to, const void *from, size_t bytes);
    tide_stream (*stream)(void);
    void (*use)(int which); /* stream 0, the first, or 1 from now on */
    void (*sync)(void);     /* both streams */
} matrix_place;

extern const matrix_place matrix_host;

typedef struct matrix_world {
    uint32_t ranks;
    uint32_t local_size;
    uint64_t block_bytes; /* 0: the default */
    uint64_t chunk_bytes;
    int staged;
    int push; /* all-gathers land by multicast, sums use the switch */
    int rounds;
    /* 1: all calls of a group are started before the host waits for any; 2: nor
     * do streams wait for one before the next. */
    int back_to_back;
    const char *backend;
    uint64_t arena_bytes;
    const matrix_place *place;
} matrix_world;

/* One rank's part; `world` is a matrix_world. Returns 0, or the test fails. */
int matrix_rank(const tide_bootstrap *bootstrap, void *world);

/* Mixed into every memory a test allocates: bytes that no result has. */
enum { MATRIX_POISON = 0xfb };

#endif
