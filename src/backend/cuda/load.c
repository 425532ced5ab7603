/* The driver and NCCL by dlopen: one binary runs with and without them. */
#include "backend/cuda/load.h"

#include "base/fail.h"
#include "base/util.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct symbol {
    const char *name;
    size_t at; /* in the struct of functions */
    bool optional;
} symbol;

static const symbol cuda_symbols[] = {
#define X(field, name, args) {#name, offsetof(tdi_cuda_api, field), false},
    TDI_CUDA_FUNCTIONS(X)
#undef X
#define X(field, name, args) {#name, offsetof(tdi_cuda_api, field), true},
        TDI_CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
};

static const symbol nccl_symbols[] = {
#define X(field, name, result, args)                                           \
    {#name, offsetof(tdi_nccl_api, field), false},
    TDI_NCCL_FUNCTIONS(X)
#undef X
};

typedef struct library {
    const char *name;
    const char *variable; /* names another file */
    const char *fix;
    const symbol *symbols;
    size_t count;
    void *handle;
    char path[512];
    char missing[64]; /* the first symbol that is not there */
} library;

static library cuda_library = {
    .name = "libcuda.so.1",
    .variable = "TIDE_CUDA_LIBRARY",
    .fix = "install NVIDIA's driver, 570 or newer",
    .symbols = cuda_symbols,
    .count = TDI_COUNT(cuda_symbols),
};
static library nccl_library = {
    .name = "libnccl.so.2",
    .variable = "TIDE_NCCL_LIBRARY",
    .fix = "pip install 'nvidia-nccl-cu13>=2.31', and start with LD_PRELOAD "
           "naming its libnccl.so.2 where another is loaded first, as PyTorch "
           "does with its own",
    .symbols = nccl_symbols,
    .count = TDI_COUNT(nccl_symbols),
};
static tdi_cuda_api cuda_api;
static tdi_nccl_api nccl_api;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The process's own copy first: two copies of NCCL do not know each other. */
static void open_library(library *lib)
{
    const char *named = getenv(lib->variable);
    lib->handle = dlopen(lib->name, RTLD_NOW | RTLD_NOLOAD);
    if (!lib->handle)
        lib->handle =
            dlopen(named && *named ? named : lib->name, RTLD_NOW | RTLD_LOCAL);
}

static void find_symbols(library *lib, void *functions)
{
    Dl_info info;
    for (size_t i = 0; i < lib->count; i++) {
        void *found = dlsym(lib->handle, lib->symbols[i].name);
        *(void **)((char *)functions + lib->symbols[i].at) = found;
        if (found && dladdr(found, &info) && info.dli_fname)
            snprintf(lib->path, sizeof(lib->path), "%s", info.dli_fname);
        if (!found && !lib->symbols[i].optional && !*lib->missing)
            snprintf(lib->missing, sizeof(lib->missing), "%s",
                     lib->symbols[i].name);
    }
}

static tide_status load(library *lib, void *functions)
{
    pthread_mutex_lock(&lock);
    if (!lib->handle) {
        open_library(lib);
        if (lib->handle)
            find_symbols(lib, functions);
    }
    pthread_mutex_unlock(&lock);
    if (lib->handle)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_UNSUPPORTED, "%s is not found (%s); %s", lib->name,
                    dlerror(), lib->fix);
}

tide_status tdi_cuda_load(const tdi_cuda_api **api)
{
    TDI_TRY(load(&cuda_library, &cuda_api));
    *api = &cuda_api;
    if (!*cuda_library.missing)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_UNSUPPORTED,
                    "%s has no %s: the driver is too old; "
                    "%s",
                    cuda_library.path, cuda_library.missing, cuda_library.fix);
}

/* Its version, as far as it tells one. */
static tide_status fail_nccl(const char *what)
{
    int version = 0;
    if (nccl_api.version)
        nccl_api.version(&version);
    return tdi_fail(TIDE_ERR_UNSUPPORTED,
                    "NCCL %d.%d.%d is loaded from %s, and 2.30 is needed%s; %s",
                    version / 10000, version / 100 % 100, version % 100,
                    nccl_library.path, what, nccl_library.fix);
}

tide_status tdi_nccl_load(const tdi_nccl_api **api)
{
    int version = 0;
    TDI_TRY(load(&nccl_library, &nccl_api));
    *api = &nccl_api;
    if (!nccl_api.version || nccl_api.version(&version) ||
        version < NCCL_VERSION_NEEDED)
        return fail_nccl("");
    if (!*nccl_library.missing)
        return TIDE_OK;
    char what[128];
    snprintf(what, sizeof(what), " with all of its functions (there is no %s)",
             nccl_library.missing);
    return fail_nccl(what);
}

tide_status tdi_cuda_check(const tdi_cuda_api *api, cu_result result,
                           uint32_t rank, const char *what)
{
    const char *name = NULL;
    char who[24] = "";
    if (result == CU_OK)
        return TIDE_OK;
    if (api->error_name(result, &name) || !name)
        name = "unknown";
    if (rank != TDI_NO_RANK)
        snprintf(who, sizeof(who), "rank %" PRIu32 ": ", rank);
    return tdi_fail(result == CU_ERROR_OUT_OF_MEMORY ? TIDE_ERR_MEMORY
                                                     : TIDE_ERR_SYSTEM,
                    "%s%s: CUDA error %d (%s)", who, what, result, name);
}

tide_status tdi_nccl_check(const tdi_nccl_api *api, nccl_result result,
                           uint32_t rank, const char *what)
{
    if (result == NCCL_OK)
        return TIDE_OK;
    const char *more = api->last_error(NULL);
    return tdi_fail(TIDE_ERR_SYSTEM, "rank %u: %s: NCCL error %d (%s)%s%.200s",
                    rank, what, result, api->error_text(result),
                    more && *more ? ": " : "", more ? more : "");
}
