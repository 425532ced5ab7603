/* For the tests of the fake: both libraries opened, ranks as threads, and
 * scenes in a process of their own that must end in a failure. */
#ifndef TIDE_TESTS_FAKE_OPEN_H
#define TIDE_TESTS_FAKE_OPEN_H

#include "fake.h"
#include "support/check.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

static tdi_cuda_api cuda;
static tdi_nccl_api nccl;

#define CHECK_CALL(call) CHECK_INT(call, ==, 0)

static inline void *open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        CHECK_FAIL("%s", dlerror());
    return library;
}

static inline void open_fakes(void)
{
    void *library = open_library(TIDE_FAKE_FOLDER "/libcuda.so.1");
#define X(field, symbol, args)                                                 \
    *(void **)&cuda.field = dlsym(library, #symbol);                           \
    CHECK(cuda.field != NULL);
    TDI_CUDA_FUNCTIONS(X)
    TDI_CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
    library = open_library(TIDE_FAKE_FOLDER "/libnccl.so.2");
#define X(field, symbol, result, args)                                         \
    *(void **)&nccl.field = dlsym(library, #symbol);                           \
    CHECK(nccl.field != NULL);
    TDI_NCCL_FUNCTIONS(X)
#undef X
    CHECK_CALL(cuda.init(0));
}

/* --- Ranks ---------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    int rank;
    int ranks;
    nccl_id id;
    void (*body)(struct rank_thread *me);
    void *context;
    cu_stream stream;
    nccl_comm comm;
} rank_thread;

static inline void *start_rank(void *context)
{
    rank_thread *me = context;
    cu_context device;
    CHECK_CALL(cuda.primary_retain(&device, me->rank));
    CHECK_CALL(cuda.context_set(device));
    CHECK_CALL(cuda.stream_create(&me->stream, CU_STREAM_NON_BLOCKING_FLAG, 0));
    me->body(me);
    CHECK_CALL(cuda.stream_destroy(me->stream));
    CHECK_CALL(cuda.primary_release(me->rank));
    return NULL;
}

static inline void run_ranks(int ranks, void (*body)(rank_thread *),
                             void *context)
{
    rank_thread all[16];
    nccl_id id;
    CHECK_CALL(nccl.unique_id(&id));
    for (int r = 0; r < ranks; r++) {
        all[r] = (rank_thread){.rank = r,
                               .ranks = ranks,
                               .id = id,
                               .body = body,
                               .context = context};
        CHECK_CALL(pthread_create(&all[r].thread, NULL, start_rank, &all[r]));
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
}

static inline void join_comm(rank_thread *me)
{
    nccl_config config = NCCL_CONFIG_UNSET;
    CHECK_CALL(nccl.init_rank(&me->comm, me->ranks, me->id, me->rank, &config));
}

/* --- Copies, as the host sees them ---------------------------------------- */

static inline void write_device(cu_stream stream, cu_pointer to,
                                const void *from, size_t bytes)
{
    CHECK_CALL(cuda.copy_async(to, (cu_pointer)(uintptr_t)from, bytes, stream));
    CHECK_CALL(cuda.stream_sync(stream));
}

static inline void read_device(cu_stream stream, void *to, cu_pointer from,
                               size_t bytes)
{
    CHECK_CALL(cuda.copy_async((cu_pointer)(uintptr_t)to, from, bytes, stream));
    CHECK_CALL(cuda.stream_sync(stream));
}

static inline cu_pointer alloc_device(size_t bytes)
{
    cu_pointer memory;
    CHECK_CALL(cuda.mem_alloc(&memory, bytes));
    return memory;
}

/* --- Streams -------------------------------------------------------------- */

static inline cu_stream make_stream(void)
{
    cu_stream stream;
    CHECK_CALL(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING_FLAG, 0));
    return stream;
}

static inline cu_event make_event(unsigned flags)
{
    cu_event event;
    CHECK_CALL(cuda.event_create(&event, flags));
    return event;
}

static inline void use_device(int device)
{
    cu_context context;
    CHECK_CALL(cuda.primary_retain(&context, device));
    CHECK_CALL(cuda.context_set(context));
}

static inline void wait_value(cu_stream stream, cu_pointer at, uint64_t value)
{
    cu_mem_op op = {.operation = CU_OP_WAIT_64, .address = at, .value = value};
    CHECK_CALL(cuda.mem_ops(stream, 1, &op, 0));
}

static inline void write_value(cu_stream stream, cu_pointer at, uint64_t value)
{
    cu_mem_op op = {.operation = CU_OP_WRITE_64, .address = at, .value = value};
    CHECK_CALL(cuda.mem_ops(stream, 1, &op, 0));
}

static inline cu_pointer make_cell(cu_stream stream)
{
    cu_pointer cell = alloc_device(8);
    CHECK_CALL(cuda.fill_8_async(cell, 0, 8, stream));
    CHECK_CALL(cuda.stream_sync(stream));
    return cell;
}

/* --- Scenes --------------------------------------------------------------- */

/* Runs a scene in a child with the setting; returns how it ended, and what it
 * said in `text`. */
static inline int play(const char *name, const char *value, void (*scene)(void),
                       char *text, size_t size)
{
    int ends[2], state;
    size_t got = 0;
    CHECK_CALL(pipe(ends));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        dup2(ends[1], 2);
        alarm(60);
        if (name)
            setenv(name, value, 1);
        open_fakes();
        scene();
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], text + got, size - 1 - got)) > 0;)
        got += (size_t)n;
    text[got] = 0;
    close(ends[0]);
    CHECK_INT(waitpid(child, &state, 0), ==, child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static inline void must_pass(const char *name, const char *value,
                             void (*scene)(void))
{
    char text[4096];
    int code = play(name, value, scene, text, sizeof(text));
    if (code)
        CHECK_FAIL("a scene with %s=%s ended with %d: %s", name ? name : "",
                   name ? value : "", code, text);
}

static inline void must_fail(const char *name, const char *value,
                             void (*scene)(void), const char *says)
{
    char text[4096];
    int code = play(name, value, scene, text, sizeof(text));
    if (code != FAKE_EXIT)
        CHECK_FAIL("a scene that must say \"%s\" ended with %d: %s", says, code,
                   text);
    CHECK_TEXT(text, says);
}

#endif
