/* A bf16 GEMM of cuBLAS, opened by name. */
#ifndef TIDE_TOOLS_PROBE_BLAS_H
#define TIDE_TOOLS_PROBE_BLAS_H

#include "probe/gpu.h"

typedef struct blas blas;

/* For GEMMs up to m x n x k. `path` is a library, a folder that has one, or
 * NULL. Errors: TIDE_ERR_UNSUPPORTED with where it was looked for. */
tide_status blas_open(const gpu *g, const char *path, uint32_t m, uint32_t n,
                      uint32_t k, blas **made);
void blas_close(blas *b); /* NULL is fine */

/* C [m, n] = A [m, k] B [n, k]^T on g->stream. */
tide_status blas_queue(const blas *b, uint32_t m, uint32_t n, uint32_t k);

/* Times `runs` of them back to back: median and mean of one. */
tide_status blas_time(const blas *b, uint32_t m, uint32_t n, uint32_t k,
                      uint32_t runs, double *median, double *mean);

#endif
