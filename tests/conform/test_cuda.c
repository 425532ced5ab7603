/*
 * The conformance matrix on the cuda backend, over a driver and an NCCL that
 * run on the CPU (tests/fake): ranks x virtual nodes x groups.
 */
#include "base/util.h"
#include "support/check.h"
#include "support/device.h"
#include "support/scenes.h"

static int run_rank(const tide_bootstrap *bootstrap, void *context)
{
    matrix_world w = *(const matrix_world *)context;
    device_open((int)bootstrap->rank);
    w.backend = "cuda";
    w.place = &device_place;
    w.arena_bytes = 16 << 20;
    int code = matrix_rank(bootstrap, &w);
    device_close();
    return code;
}

/* ranks, ranks a node, block, chunk, staged, push, rounds, back to back */
#define WORLD(r, l, block, chunk, stages, pushes, n, queued)                   \
    .name = #r "/" #l " " #block " " #chunk " " #stages #pushes #queued,       \
    .ranks = r, .body = run_rank, .context = (void *)&(const matrix_world)     \
    {                                                                          \
        .ranks = r, .local_size = l, .block_bytes = block,                     \
        .chunk_bytes = chunk, .staged = stages, .push = pushes, .rounds = n,   \
        .back_to_back = queued                                                 \
    }

static const scene scenes[] = {
    {WORLD(1, 1, 0, 0, 1, 0, 3, 0)},
    {WORLD(2, 2, 0, 0, 1, 0, 3, 0)},
    {WORLD(2, 1, 0, 0, 1, 0, 3, 0)},
    {WORLD(3, 3, 0, 0, 1, 0, 6, 1)},
    {WORLD(3, 3, 0, 0, 0, 0, 6, 2)},
    {WORLD(4, 4, 0, 0, 0, 0, 6, 1)},
    {WORLD(4, 2, 0, 0, 1, 0, 6, 2)},
    {WORLD(4, 1, 256, 64, 0, 0, 6, 2)},
    {WORLD(5, 5, 0, 0, 1, 0, 3, 0)},
    {WORLD(5, 1, 256, 64, 1, 0, 3, 0)},
    {WORLD(8, 4, 0, 0, 1, 0, 3, 1)},
    {WORLD(8, 2, 512, 128, 0, 0, 3, 1)},
    {WORLD(8, 1, 512, 128, 1, 0, 2, 1)},
    {WORLD(16, 4, 4096, 256, 1, 0, 2, 1)},
    {WORLD(16, 16, 0, 0, 1, 0, 2, 1)},
    /* Few hardware queues: nothing may stand behind what it waits for. */
    {WORLD(4, 4, 0, 0, 1, 0, 6, 1), .settings = {"FAKE_CONNECTIONS", "1"}},
    {WORLD(4, 2, 256, 64, 1, 0, 6, 2), .settings = {"FAKE_CONNECTIONS", "1"}},
    {WORLD(6, 2, 1024, 96, 0, 0, 3, 1), .settings = {"FAKE_CONNECTIONS", "2"}},
    {WORLD(8, 4, 0, 0, 1, 0, 3, 2), .settings = {"FAKE_CONNECTIONS", "2"}},
    /* Nodes out of each other's reach; push landing and switch sums. */
    {WORLD(4, 2, 256, 64, 1, 0, 6, 1), .settings = {"FAKE_LSA_SIZE", "2"}},
    {WORLD(4, 4, 0, 0, 1, 1, 6, 2)},
    {WORLD(4, 2, 256, 64, 1, 1, 6, 2), .settings = {"FAKE_LSA_SIZE", "2"}},
    {WORLD(8, 4, 512, 128, 0, 1, 3, 1),
     .settings = {"FAKE_LSA_SIZE", "4", "FAKE_CONNECTIONS", "1"}},
    /* Long delays, none, and other seeds. */
    {WORLD(4, 2, 256, 64, 1, 0, 3, 1), .settings = {"FAKE_DELAY_US", "300"}},
    {WORLD(4, 2, 256, 64, 0, 0, 6, 1), .settings = {"FAKE_DELAY_US", "0"}},
    {WORLD(4, 4, 0, 0, 1, 1, 3, 1), .settings = {"FAKE_SEED", "7"}},
    /* Ranks that share a device; rails without NCCL; no batch copies. */
    {WORLD(4, 4, 0, 0, 1, 0, 3, 1),
     .settings = {"FAKE_DEVICES", "1", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "32"}},
    {WORLD(4, 2, 256, 64, 1, 0, 3, 1), .settings = {"TIDE_DIRECT_RAILS", "1"}},
    /* More streams than hardware queues, unless lanes share one. */
    {WORLD(8, 4, 512, 128, 0, 0, 3, 1),
     .settings = {"FAKE_DEVICES", "1", "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "32", "FAKE_CONNECTIONS",
                  "32"}},
    /* Copies within a device beside those from peers, however short. */
    {WORLD(4, 4, 0, 0, 1, 0, 6, 2), .settings = {"TIDE_BESIDE_KIB", "0"}},
    {WORLD(4, 2, 256, 64, 1, 0, 6, 2),
     .settings = {"TIDE_BESIDE_KIB", "0", "FAKE_CONNECTIONS", "1"}},
    {WORLD(8, 4, 512, 128, 1, 0, 3, 1),
     .settings = {"TIDE_BESIDE_KIB", "0", "FAKE_DEVICES", "4",
                  "NCCL_MULTI_RANK_GPU_ENABLE", "1",
                  "CUDA_DEVICE_MAX_CONNECTIONS", "32"}},
    /* Sums in many launches, one by one and as graphs. */
    {WORLD(3, 3, 0, 0, 0, 0, 3, 1), .settings = {"TIDE_SUM_CHUNK_KIB", "1"}},
    {WORLD(4, 4, 0, 0, 1, 0, 6, 2),
     .settings = {"TIDE_SUM_CHUNK_KIB", "1", "TIDE_SUM_GRAPHS", "1"}},
    {WORLD(4, 2, 16384, 64, 1, 0, 3, 1),
     .settings = {"TIDE_SUM_CHUNK_KIB", "1", "TIDE_SUM_GRAPHS", "1",
                  "FAKE_CONNECTIONS", "1"}},
    /* Landing on two streams; copies within a device by the driver. */
    {WORLD(4, 4, 0, 0, 1, 0, 6, 2), .settings = {"TIDE_PULL_STREAMS", "2"}},
    {WORLD(4, 2, 256, 64, 1, 0, 6, 1),
     .settings = {"TIDE_PULL_STREAMS", "2", "FAKE_CONNECTIONS", "1"}},
    {WORLD(4, 2, 256, 64, 1, 0, 6, 2), .settings = {"TIDE_LOCAL_COPIES", "0"}},
    {WORLD(4, 2, 256, 64, 1, 0, 3, 1),
     .settings = {"TIDE_CUDA_LIBRARY", TIDE_FAKE_FOLDER "/12/libcuda.so.1",
                  "FAKE_DRIVER_VERSION", "12080"}},
    /* Streams that do not wait: the matrix must see each. */
    {WORLD(4, 4, 0, 0, 1, 0, 6, 2),
     .settings = {"FAKE_FAULT", "no_value_waits"}, .must_fail = 1},
    {WORLD(4, 2, 0, 0, 1, 0, 6, 2),
     .settings = {"FAKE_FAULT", "no_event_waits"}, .must_fail = 1},
    {WORLD(4, 2, 256, 64, 1, 0, 6, 2),
     .settings = {"FAKE_FAULT", "no_signal_waits", "FAKE_LSA_SIZE", "2"},
     .must_fail = 1},
};

int main(void)
{
    device_use_fakes(TIDE_FAKE_FOLDER);
    /* In good order nothing is left: no signal, and no work at the end. */
    setenv("FAKE_CHECK_LEFTOVER", "1", 1);
    setenv("FAKE_CHECK_BUSY", "1", 1);
    scenes_play(scenes, TDI_COUNT(scenes));
    return 0;
}
