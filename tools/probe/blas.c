/* cuBLAS by dlopen: four functions, declared here. */
#include "probe/blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "base/util.h"

/* cublasStatus_t, cudaDataType_t, cublasComputeType_t, cublasOperation_t and
 * cublasGemmAlgo_t, as the vendor documents them. */
enum {
    BLAS_OK = 0,
    BLAS_BF16 = 14,
    BLAS_COMPUTE_F32 = 68,
    BLAS_PLAIN = 0,
    BLAS_TRANSPOSED = 1,
    BLAS_ANY = -1,
};

enum { WARM = 20, MOST_RUNS = 1000 };

struct blas {
    const gpu *g;
    void *library;
    void *handle;
    cu_pointer a, b, c;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cu_stream stream);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k,
                const void *alpha, const void *a, int a_type, int lda,
                const void *b, int b_type, int ldb, const void *beta, void *c,
                int c_type, int ldc, int compute, int algorithm);
};

static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                    "libcublas.so"};

/* `path`, and libraries in it or in its lib/: Python's packages have one. */
static void *open_below(const char *path)
{
    static const char *const folders[] = {"",
                                          "/lib",
                                          "/cu13/lib",
                                          "/cublas/lib",
                                          "/nvidia/cu13/lib",
                                          "/nvidia/cublas/lib"};
    char full[4096];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t f = 0; f < TDI_COUNT(folders) && !library; f++)
        for (size_t i = 0; i < TDI_COUNT(names) && !library; i++) {
            snprintf(full, sizeof(full), "%s%s/%s", path, folders[f], names[i]);
            library = dlopen(full, RTLD_NOW | RTLD_LOCAL);
        }
    return library;
}

static tide_status open_library(blas *b, const char *path)
{
    const char *named = path ? path : getenv("TIDE_CUBLAS_LIBRARY");
    if (named && *named)
        b->library = open_below(named);
    for (size_t i = 0; i < TDI_COUNT(names) && !b->library && !named; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "%s: no cuBLAS there; give --cublas its file or folder",
                        named ? named : "the usual places");
    *(void **)&b->create = dlsym(b->library, "cublasCreate_v2");
    *(void **)&b->destroy = dlsym(b->library, "cublasDestroy_v2");
    *(void **)&b->set_stream = dlsym(b->library, "cublasSetStream_v2");
    *(void **)&b->gemm = dlsym(b->library, "cublasGemmEx");
    if (!b->create || !b->destroy || !b->set_stream || !b->gemm)
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "cuBLAS lacks cublasGemmEx");
    return TIDE_OK;
}

static tide_status check(int result, const char *what)
{
    return result == BLAS_OK
               ? TIDE_OK
               : tdi_fail(TIDE_ERR_SYSTEM, "%s: cuBLAS error %d", what, result);
}

static tide_status set_up(blas *b, const char *path, uint32_t m, uint32_t n,
                          uint32_t k)
{
    const gpu *g = b->g;
    TDI_TRY(open_library(b, path));
    TDI_TRY(check(b->create(&b->handle), "cublasCreate"));
    TDI_TRY(check(b->set_stream(b->handle, g->stream), "cublasSetStream"));
    TDI_TRY(gpu_take(g, 2 * (uint64_t)m * k, true, &b->a));
    TDI_TRY(gpu_take(g, 2 * (uint64_t)n * k, true, &b->b));
    return gpu_take(g, 2 * (uint64_t)m * n, false, &b->c);
}

tide_status blas_open(const gpu *g, const char *path, uint32_t m, uint32_t n,
                      uint32_t k, blas **made)
{
    blas *b = calloc(1, sizeof(*b));
    *made = NULL;
    if (!b)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a GEMM");
    b->g = g;
    tide_status status = set_up(b, path, m, n, k);
    if (status) {
        blas_close(b);
        return status;
    }
    *made = b;
    return TIDE_OK;
}

/* The library stays open: it has threads and exit handlers of its own. */
void blas_close(blas *b)
{
    if (!b)
        return;
    if (b->handle)
        b->destroy(b->handle);
    gpu_give(b->g, b->a);
    gpu_give(b->g, b->b);
    gpu_give(b->g, b->c);
    free(b);
}

static const void *memory(cu_pointer at)
{
    return (const void *)(uintptr_t)at;
}

/* Column-major, as cuBLAS sees it: C' [n, m] = B [n, k] A' [k, m]. */
tide_status blas_queue(const blas *b, uint32_t m, uint32_t n, uint32_t k)
{
    const float one = 1, zero = 0;
    return check(b->gemm(b->handle, BLAS_TRANSPOSED, BLAS_PLAIN, (int)n, (int)m,
                         (int)k, &one, memory(b->b), BLAS_BF16, (int)k,
                         memory(b->a), BLAS_BF16, (int)k, &zero,
                         (void *)(uintptr_t)b->c, BLAS_BF16, (int)n,
                         BLAS_COMPUTE_F32, BLAS_ANY),
                 "cublasGemmEx");
}

static tide_status record_runs(const blas *b, const uint32_t *mnk,
                               cu_event *events, uint32_t runs)
{
    const gpu *g = b->g;
    for (uint32_t i = 0; i < WARM; i++)
        TDI_TRY(blas_queue(b, mnk[0], mnk[1], mnk[2]));
    TRY_CUDA(g, event_record(events[0], g->stream));
    for (uint32_t i = 0; i < runs; i++) {
        TDI_TRY(blas_queue(b, mnk[0], mnk[1], mnk[2]));
        TRY_CUDA(g, event_record(events[i + 1], g->stream));
    }
    TRY_CUDA(g, event_sync(events[runs]));
    return TIDE_OK;
}

static tide_status read_times(const gpu *g, const cu_event *events,
                              uint32_t runs, double *times, double *mean)
{
    float ms;
    for (uint32_t i = 0; i < runs; i++) {
        TRY_CUDA(g, event_elapsed(&ms, events[i], events[i + 1]));
        times[i] = ms;
    }
    TRY_CUDA(g, event_elapsed(&ms, events[0], events[runs]));
    *mean = ms / runs;
    return TIDE_OK;
}

tide_status blas_time(const blas *b, uint32_t m, uint32_t n, uint32_t k,
                      uint32_t runs, double *median, double *mean)
{
    static cu_event events[MOST_RUNS + 1]; /* made once, used again */
    static double times[MOST_RUNS];
    const uint32_t mnk[] = {m, n, k};
    for (uint32_t i = 0; i <= runs; i++)
        if (!events[i])
            TRY_CUDA(b->g, event_create(&events[i], 0));
    TDI_TRY(record_runs(b, mnk, events, runs));
    TDI_TRY(read_times(b->g, events, runs, times, mean));
    *median = gpu_median(times, runs);
    return TIDE_OK;
}
