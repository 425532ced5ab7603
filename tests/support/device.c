/* Memory, copies and a stream for a rank that is a thread. */
#include "device.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/load.h"
#include "base/util.h"
#include "check.h"
#include "ranks.h"

#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct {
    int device;
    cu_stream stream; /* in use now */
    cu_stream streams[2];
} mine;

#define CHECK_CALL(call) CHECK_INT(call, ==, 0)

void device_use_fakes(const char *folder)
{
    char path[512];
    if (!tdi_cuda_kernels_built())
        CHECK_SKIP("built without kernels: no nvcc was found");
    snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
    setenv("TIDE_CUDA_LIBRARY", path, 1);
    snprintf(path, sizeof(path), "%s/libnccl.so.2", folder);
    setenv("TIDE_NCCL_LIBRARY", path, 1);
}

void device_share_fakes(void)
{
    enum { BYTES = 64 << 20 };
    char number[16];
    int file = memfd_create("fakes", 0);
    CHECK_INT(file, >=, 0);
    CHECK_INT(ftruncate(file, BYTES), ==, 0);
    snprintf(number, sizeof(number), "%d", file);
    setenv("FAKE_SHARED", number, 1);
}

const tdi_cuda_api *device_api(void)
{
    const tdi_cuda_api *api;
    CHECK_OK(tdi_cuda_load(&api));
    return api;
}

cu_stream device_stream(void)
{
    return mine.stream;
}

void device_open_default(int device)
{
    cu_context context;
    int count;
    CHECK_CALL(device_api()->init(0));
    CHECK_CALL(device_api()->device_count(&count));
    mine.device = device % count;
    mine.stream = mine.streams[0] = mine.streams[1] = NULL;
    CHECK_CALL(device_api()->primary_retain(&context, mine.device));
    CHECK_CALL(device_api()->context_set(context));
}

void device_open(int device)
{
    device_open_default(device);
    for (int i = 0; i < 2; i++)
        CHECK_CALL(device_api()->stream_create(&mine.streams[i],
                                               CU_STREAM_NON_BLOCKING_FLAG, 0));
    mine.stream = mine.streams[0];
}

void device_close(void)
{
    for (int i = 0; mine.stream && i < 2; i++)
        CHECK_CALL(device_api()->stream_destroy(mine.streams[i]));
    CHECK_CALL(device_api()->context_set(NULL));
    CHECK_CALL(device_api()->primary_release(mine.device));
}

void device_settle(void)
{
    uint64_t until = tdi_now_ms() + 2000;
    while (device_api()->stream_query(mine.stream) == CU_ERROR_NOT_READY &&
           tdi_now_ms() < until)
        ranks_nap(1);
}

/* --- The place ------------------------------------------------------------ */

static cu_pointer at(const void *memory)
{
    return (cu_pointer)(uintptr_t)memory;
}

static void sync_stream(void)
{
    for (int i = 0; i < 2; i++)
        CHECK_CALL(device_api()->stream_sync(mine.streams[i]));
}

static void use_stream(int which)
{
    mine.stream = mine.streams[which];
}

static void *take(size_t bytes)
{
    cu_pointer memory;
    CHECK_CALL(device_api()->mem_alloc(&memory, bytes));
    CHECK_CALL(
        device_api()->fill_8_async(memory, MATRIX_POISON, bytes, mine.stream));
    return (void *)(uintptr_t)memory;
}

static void give(void *memory)
{
    CHECK_CALL(device_api()->mem_free(at(memory)));
}

static void *take_source(size_t bytes)
{
    void *memory;
    CHECK_CALL(device_api()->host_alloc(&memory, bytes));
    return memory;
}

static void give_source(void *source)
{
    CHECK_CALL(device_api()->host_free(source));
}

static void write_data(void *to, const void *from, size_t bytes)
{
    CHECK_CALL(device_api()->copy_async(at(to), at(from), bytes, mine.stream));
}

static void read_data(void *to, const void *from, size_t bytes)
{
    CHECK_CALL(device_api()->copy_async(at(to), at(from), bytes, mine.stream));
    sync_stream();
}

static tide_stream get_stream(void)
{
    return mine.stream;
}

const matrix_place device_place = {.take = take,
                                   .give = give,
                                   .take_source = take_source,
                                   .give_source = give_source,
                                   .write = write_data,
                                   .read = read_data,
                                   .stream = get_stream,
                                   .use = use_stream,
                                   .sync = sync_stream};
