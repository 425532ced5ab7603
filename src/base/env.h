/* Environment variables: one table, for the code and for docs/environment.md
 * (tide-perf --env prints it). */
#ifndef TIDE_BASE_ENV_H
#define TIDE_BASE_ENV_H

#include <stdint.h>

/* id, variable, default, lowest, highest, text */
#define TDI_ENV_LIST(X)                                                        \
    X(LOCAL_SIZE, "TIDE_LOCAL_SIZE", 0, 0, 1024,                               \
      "ranks of a node; splits one machine into virtual nodes; 0: all ranks "  \
      "of the machine")                                                        \
    X(TIMEOUT_MS, "TIDE_TIMEOUT_MS", 120000, 1, 86400000,                      \
      "deadline of every wait, in milliseconds")                               \
    X(ARENA_MIB, "TIDE_ARENA_MIB", 0, 0, 16777216,                             \
      "size of a communicator's arena in MiB; 0: 65536 on the host backend, "  \
      "which commits memory only as it is used, and 2048 of device memory on " \
      "cuda")                                                                  \
    X(CHUNK_KIB, "TIDE_CHUNK_KIB", 0, 0, 16777216,                             \
      "all-gather: KiB of one put over a rail; 0: half a shard, 1024 to 8192") \
    X(BLOCK_KIB, "TIDE_BLOCK_KIB", 0, 0, 16777216,                             \
      "reduce-scatter: fp32 KiB of one output block; 0: the backend's "        \
      "default")                                                               \
    X(UNIT_KIB, "TIDE_UNIT_KIB", 0, 0, 16777216,                               \
      "reduce-scatter over rails: KiB that level 1 reads at a time, at "       \
      "least, "                                                                \
      "where a block has so much; 0: 8192 on cuda, a sub-slice on the host "   \
      "backend")                                                               \
    X(STAGED, "TIDE_STAGED", -1, -1, 1,                                        \
      "reduce-scatter: 1 stages gradients before the sum, 0 sums them where "  \
      "they lie, -1: the backend's choice")                                    \
    X(READV, "TIDE_READV", 1, 0, 1,                                            \
      "host backend: 0 forbids process_vm_readv, so that In-Place is off")     \
    X(SPIN, "TIDE_SPIN", -1, -1, 100000000,                                    \
      "host backend: polls before a wait sleeps; -1: 2000 where every rank "   \
      "has a core, else 0")                                                    \
    X(SIMD, "TIDE_SIMD", 2, 0, 2,                                              \
      "host backend: highest vector kernels: 0 scalar, 1 AVX2, 2 AVX-512")     \
    X(SUM_CTAS, "TIDE_SUM_CTAS", 128, 0, 1024,                                 \
      "cuda backend: blocks of a level-1 sum at a time; 0: no bound")          \
    X(LAND_CTAS, "TIDE_LAND_CTAS", 128, 0, 1024,                               \
      "cuda backend: blocks of a sum over nodes at a time; 0: no bound")       \
    X(SUM_CHUNK_KIB, "TIDE_SUM_CHUNK_KIB", 4096, 0, 1048576,                   \
      "cuda backend: KiB that one launch of a sum reads in all; 0: no bound")  \
    X(SUM_GRAPHS, "TIDE_SUM_GRAPHS", 0, 0, 1,                                  \
      "cuda backend: 1 hands the launches of a sum to the driver as graphs: "  \
      "less host time, and GEMMs beside it wait longer")                       \
    X(PULL_STREAMS, "TIDE_PULL_STREAMS", 1, 1, 2,                              \
      "cuda backend: streams that land an all-gather")                         \
    X(LOCAL_COPIES, "TIDE_LOCAL_COPIES", 1, 0, 1,                              \
      "cuda backend: 1 copies within a GPU by one kernel a batch, 0 leaves "   \
      "them to the driver, as copies between GPUs")                            \
    X(BESIDE_KIB, "TIDE_BESIDE_KIB", 1024, 0, 16777216,                        \
      "cuda backend: copies within a GPU run beside those from peers, on a "   \
      "second stream, from so many KiB on")                                    \
    X(DIRECT_RAILS, "TIDE_DIRECT_RAILS", 0, 0, 1,                              \
      "cuda backend: 1 serves rails between ranks that reach each other's "    \
      "memory without NCCL")                                                   \
    X(DEBUG_DELAY, "TIDE_DEBUG_DELAY", 0, 0, 1000000,                          \
      "FSDP2 on cuda, for tests: random delays of up to so many microseconds " \
      "on the streams; vacated memory is filled with NaN")                     \
    X(LOG, "TIDE_LOG", 0, 0, 1, "1 prints every error to stderr")

typedef enum tdi_env {
#define X(id, name, value, low, high, text) TDI_ENV_##id,
    TDI_ENV_LIST(X)
#undef X
        TDI_ENV_COUNT
} tdi_env;

typedef struct tdi_env_entry {
    const char *name;
    int64_t value; /* the default */
    int64_t low;
    int64_t high;
    const char *text;
} tdi_env_entry;

extern const tdi_env_entry tdi_env_table[TDI_ENV_COUNT];

/* The value now in the environment; the default when it is unset, no number,
 * or out of range (said once on stderr). */
int64_t tdi_env_number(tdi_env id);

#endif
