/* Element types, ranks and the topology that plans are made for. */
#ifndef TIDE_TYPES_H
#define TIDE_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <tide/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes of one element. An all-gather moves any of them; a
 * reduce-scatter sums BF16 and F32. */
#define TIDE_DTYPE_LIST(X)                                                     \
    X(U8, 1)                                                                   \
    X(I16, 2)                                                                  \
    X(I32, 4)                                                                  \
    X(I64, 8)                                                                  \
    X(BF16, 2)                                                                 \
    X(F16, 2)                                                                  \
    X(F32, 4)                                                                  \
    X(F64, 8)

typedef enum tide_dtype {
#define X(name, bytes) TIDE_##name,
    TIDE_DTYPE_LIST(X)
#undef X
        TIDE_DTYPE_COUNT
} tide_dtype;

/* Bytes of one element; 0 if the value is no dtype. */
TIDE_API size_t tide_dtype_size(tide_dtype dtype);
/* "bf16" and so on; "?" if the value is no dtype. */
TIDE_API const char *tide_dtype_name(tide_dtype dtype);

/*
 * N nodes of G ranks each, node-major: rank r = node * local_size + local.
 * A node is an NVSwitch domain (or a shared-memory machine, or a virtual node
 * of one); a rail is the set of ranks with equal local index. Up to 2^20
 * ranks; local_size up to 1024.
 */
typedef struct tide_topology {
    uint32_t nodes;
    uint32_t local_size;
} tide_topology;

/* Where a backend queues work on a device: a CUstream (a cudaStream_t); NULL is
 * the default stream. Backends without streams ignore it. */
typedef void *tide_stream;

#define TIDE_MAX_RANKS (1u << 20)
#define TIDE_MAX_LOCAL 1024u

#ifdef __cplusplus
}
#endif
#endif
