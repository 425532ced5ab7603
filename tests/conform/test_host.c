/* The conformance matrix on the host backend: ranks x virtual nodes x groups;
 * ranks are processes. */
#include "support/check.h"
#include "support/matrix.h"

#define WORLD(r, l, block, chunk, stages)                                      \
    {.ranks = r,                                                               \
     .local_size = l,                                                          \
     .block_bytes = block,                                                     \
     .chunk_bytes = chunk,                                                     \
     .staged = stages}

static const matrix_world worlds[] = {
    WORLD(1, 1, 0, 0, 0),     WORLD(2, 2, 0, 0, 0),
    WORLD(2, 1, 0, 0, 0),     WORLD(3, 3, 0, 0, 0),
    WORLD(4, 4, 0, 0, 0),     WORLD(4, 2, 0, 0, 0),
    WORLD(4, 1, 0, 0, 0),     WORLD(5, 5, 0, 0, 1),
    WORLD(5, 1, 256, 64, 1),  WORLD(6, 2, 1024, 96, 0),
    WORLD(8, 4, 0, 0, 1),     WORLD(8, 2, 512, 128, 0),
    WORLD(8, 1, 512, 128, 0), WORLD(16, 4, 4096, 256, 0),
    WORLD(16, 16, 0, 0, 0),
};

int main(void)
{
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        matrix_world w = worlds[i];
        w.backend = "host";
        w.place = &matrix_host;
        w.rounds = 4;
        int code = tide_launch(w.ranks, 60000, matrix_rank, &w, NULL);
        if (code)
            CHECK_FAIL("%u ranks in nodes of %u: exit code %d", w.ranks,
                       w.local_size, code);
    }
    return 0;
}
