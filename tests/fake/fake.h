/*
 * A CUDA driver and an NCCL that run on the CPU, for tests. Ranks are threads
 * of one process, each with a device of its own, or processes.
 *
 * Device addresses are not host addresses: whoever reads one on the host
 * faults. Every allocation, window and multicast range is known by bounds and
 * by the device whose streams may touch it; memory that is freed is gone. A
 * stream is a queue with a worker thread, which dawdles at random. What a real
 * machine would answer with silence or wrong data ends the process with
 * FAKE_EXIT and a message.
 *
 * Settings, all from the environment:
 *   FAKE_DEVICES 16         devices
 *   FAKE_CONNECTIONS 0      hardware queues that the streams of a device share;
 *                           0: each has its own
 *   FAKE_DELAY_US 20        a random pause between two pieces of work
 *   FAKE_SEED 1             of all that is random
 *   FAKE_SHUFFLE 1          0: the copies of a batch run as they stand
 *   FAKE_DRIVER_VERSION     13000
 *   FAKE_NCCL_VERSION       the library's
 *   FAKE_LSA_SIZE           ranks that reach each other's memory; all
 *   FAKE_MULTICAST 1        0: no multicast
 *   FAKE_SHARED             ranks are processes: see shared.c
 *   FAKE_STUCK_MS 30000     says what a queue has waited for so long
 *   FAKE_ABORT_MS 3000      ncclCommAbort and ncclCommDestroy fail the test if
 *                           calls under way do not end
 *   FAKE_ABORT_RELEASES 0   1: ncclCommAbort lets them go, as NCCL does not
 *   FAKE_CHECK_BUSY 0       1: nobody may destroy streams and events with work
 *   FAKE_CHECK_LEFTOVER 0   1: nor communicators with signals not awaited
 *   FAKE_FAULT              faults, with commas between them:
 *       no_device, old_driver, old_device, no_mem_ops, alloc_fails, init_fails,
 *       init_hangs, init_late, no_symmetric, no_host_rma, mem_alloc_fails,
 *       register_refused, register_hangs, register_late, null_window,
 *       no_multicast, multicast_null, multicast_fails, put_lost, signal_lost,
 *       no_graph_launches, no_value_waits, no_event_waits, no_signal_waits,
 * write_late FAKE_FAULT_RANK         the rank (of a device: its number); all
 *   FAKE_FAULT_AFTER 0      calls before put_lost, signal_lost and
 *                           no_graph_launches
 *   FAKE_LATE_MS 1500       for *_late
 */
#ifndef TIDE_TESTS_FAKE_H
#define TIDE_TESTS_FAKE_H

#include "backend/cuda/api.h"

#include <pthread.h>
#include <stdatomic.h>

#define FAKE_API __attribute__((visibility("default")))

enum { FAKE_EXIT = 99, FAKE_TEAM = 64, FAKE_MAX_DEVICES = 64 };

/* Results that api.h does not name, as the driver and NCCL number them. */
enum {
    FAKE_INVALID_VALUE = 1,
    FAKE_NOT_INITIALIZED = 3,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_ALREADY_REGISTERED = 712,
    FAKE_NOT_FOUND = 500,
    FAKE_NCCL_CUDA = 1, /* ncclUnhandledCudaError */
    FAKE_NCCL_SYSTEM = 2,
    FAKE_NCCL_ARGUMENT = 4,
    FAKE_NCCL_USAGE = 5,
    FAKE_NCCL_REMOTE = 6,
};

/* --- Settings and failures (settings.c) ---------------------------------- */

FAKE_API _Noreturn void fake_fail(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
FAKE_API int64_t fake_setting(const char *name, int64_t fallback);
/* Is `fault` asked for (FAKE_FAULT, a list with commas) and is `rank` the one
 * to have it (FAKE_FAULT_RANK; all, if not set)? */
FAKE_API bool fake_fault(const char *fault, int rank);
FAKE_API uint64_t fake_random(uint64_t *state);
FAKE_API void fake_sleep_us(uint64_t us);
FAKE_API uint64_t fake_now_us(void);
/* Says once on stderr if a wait takes suspiciously long (FAKE_STUCK_MS):
 * *since is 0 before the first look. */
FAKE_API void fake_note_wait(uint64_t *since, const char *what, int device);
/* Waits for `changed`, or a second, and notes it. */
FAKE_API void fake_wait(pthread_cond_t *changed, pthread_mutex_t *lock,
                        uint64_t *since, const char *what, int device);

/* --- Ranks that are processes (shared.c) ---------------------------------- */

typedef struct fake_world {
    atomic_uint state;
    pthread_mutex_t lock;
    atomic_ulong next; /* free from here on */
    uint64_t bytes;
    void *comms;
    uint64_t ids;
} fake_world;

FAKE_API fake_world *fake_get_world(void);
FAKE_API bool fake_has_processes(void);
/* Zeroed, at the same address in all processes; never freed. */
FAKE_API void *fake_shared_alloc(size_t bytes);
FAKE_API void fake_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed);
FAKE_API int fake_open_file(int pid, int file);

/* --- Memory (memory.c) ---------------------------------------------------- */

typedef struct fake_block fake_block; /* host memory, counted references */

/* Memory as a stream's work finds it: more than one place for a multicast
 * address. */
typedef struct fake_view {
    uint32_t members;
    char *at[FAKE_TEAM];
    uint64_t start;  /* of the range; 0: host memory that nobody allocated */
    uint64_t offset; /* in the range */
    bool is_host;
} fake_view;

enum { FAKE_READ = 1, FAKE_WRITE = 2, FAKE_SWITCH = 4 };

FAKE_API uint64_t fake_alloc(int device, uint64_t bytes, uint64_t align);
/* Device memory at exactly this address; ends every use of it. */
FAKE_API void fake_free(uint64_t address, const char *call);
FAKE_API void *fake_host_alloc(uint64_t bytes);
FAKE_API void fake_host_free(void *memory);
/* The caller's own memory; false if part of it is known already. */
FAKE_API bool fake_host_register(void *memory, uint64_t bytes);
FAKE_API void fake_host_unregister(void *memory);
FAKE_API bool fake_is_host(uint64_t address); /* pageable: not allocated here */

/* The block behind a device address, with a reference; NULL if there is none
 * or the allocation ends before address + bytes. */
FAKE_API fake_block *fake_block_of(uint64_t address, uint64_t bytes,
                                   uint64_t *offset);
FAKE_API fake_block *fake_block_hold(fake_block *block);
FAKE_API void fake_block_drop(fake_block *block);
FAKE_API char *fake_block_at(fake_block *block, uint64_t offset);
/* The file behind a block where ranks are processes, and a block of such a
 * file of another one. */
FAKE_API int fake_block_file(const fake_block *block, uint64_t *bytes);
FAKE_API fake_block *fake_block_open(int pid, int file, uint64_t bytes);

/* An address range of `device` that shows parts of blocks: of one, or of all
 * (multicast). It takes references of its own. */
FAKE_API uint64_t fake_map(int device, fake_block *const *blocks,
                           const uint64_t *offsets, uint32_t members,
                           uint64_t bytes);
FAKE_API void fake_unmap(uint64_t address);

/* Checks that `device` may do that to [address, address + bytes) and pins it
 * until fake_unpin; ends the process if not. */
FAKE_API fake_view fake_pin(int device, uint64_t address, uint64_t bytes,
                            int access, const char *what);
FAKE_API void fake_unpin(const fake_view *view);

/* --- Values (values.c) ---------------------------------------------------- */

FAKE_API void fake_wait_value(int device, const fake_view *view,
                              uint64_t value);
FAKE_API void fake_write_value(const fake_view *view, uint64_t value);
/* `bytes` from the beginning of the view have new contents: wakes who waits for
 * a value there. */
FAKE_API void fake_written(const fake_view *view, uint64_t bytes);

/* --- Streams (stream.c) --------------------------------------------------- */

typedef struct fake_work fake_work;
typedef struct fake_queue fake_queue;

/* A closure; the head of a larger struct that fake_work_new allocates. */
struct fake_work {
    fake_work *next;
    cu_stream stream;
    uint64_t *random; /* while it runs: the worker's generator */
    void (*run)(fake_work *work);
    void *extra; /* freed with it */
};

FAKE_API void *fake_work_new(size_t bytes, void (*run)(fake_work *));
FAKE_API void fake_queue_work(cu_stream stream, fake_work *work);
FAKE_API int fake_device_of(cu_stream stream);
/* Is it a stream that lives? NULL is `device`'s default stream. */
FAKE_API cu_stream fake_stream(cu_stream stream, int device, const char *call);
FAKE_API void fake_stream_finish(cu_stream stream);
FAKE_API bool fake_stream_idle(cu_stream stream);
FAKE_API cu_stream fake_stream_create(int device, bool non_blocking);
FAKE_API void fake_stream_destroy(cu_stream stream);
/* Gives other work a chance, and may dawdle. */
FAKE_API void fake_dawdle(uint64_t *random);
/* A strided copy in pieces, to every member of `to`. */
FAKE_API void fake_move(const fake_view *to, uint64_t to_pitch,
                        const fake_view *from, uint64_t from_pitch,
                        uint64_t width, uint64_t height, uint64_t *random);

/* --- Kernels (kernels.c) -------------------------------------------------- */

/* A kernel's twin on the host. `sizes` ends with 0: its parameters. */
typedef struct fake_kernel {
    const char *name;
    void (*run)(int device, void **params, uint64_t *random);
    size_t sizes[8];
} fake_kernel;

extern const fake_kernel fake_kernels[]; /* ends with a NULL name */

/* --- Launches (cuda_launch.c) --------------------------------------------- */

struct CUfunc_st {
    const fake_kernel *kernel;
    cu_module module;
    int shared_bytes;
};

/* A kernel's parameters, copied to `memory`, which who has it frees. */
typedef struct fake_params {
    void *memory;
    void *at[8];
} fake_params;

/* Ends the process if its module is not loaded. */
void fake_check_function(cu_function function, const char *call);
fake_params fake_copy_params(const fake_kernel *kernel, void **params);
void fake_launch(const fake_kernel *kernel, void **params, cu_stream stream);
/* Would the driver of this device take it? */
bool fake_is_launch(const cu_kernel_node *node, int device);

/* --- What the two libraries export ---------------------------------------- */

#define X(field, symbol, args) FAKE_API cu_result symbol args;
TDI_CUDA_FUNCTIONS(X)
TDI_CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
#define X(field, symbol, result, args) FAKE_API result symbol args;
TDI_NCCL_FUNCTIONS(X)
#undef X

#endif
