/*
 * The fake driver itself: the order of streams, events, values, copies; and
 * that every check of it fires.
 */
#include "open.h"

#include "backend/cuda/kernels/params.h"

#include <sys/mman.h>

enum { WORDS = 1 << 14 };

/* Long enough for work that may run to have run. */
static void nap(void)
{
    fake_sleep_us(30000);
}

/* --- Contexts ------------------------------------------------------------- */

static void contexts(void)
{
    cu_context context, again;
    cu_stream stream;
    int value;
    CHECK_CALL(cuda.context_get(&context));
    CHECK(!context);
    CHECK_INT(cuda.stream_create(&stream, 0, 0), ==, FAKE_INVALID_CONTEXT);
    CHECK_CALL(cuda.primary_retain(&context, 3));
    CHECK_CALL(cuda.primary_retain(&again, 3));
    CHECK(context == again);
    CHECK_CALL(cuda.context_set(context));
    CHECK_CALL(cuda.context_device(&value));
    CHECK_INT(value, ==, 3);
    CHECK_CALL(cuda.device_attribute(&value, CU_ATTRIBUTE_MEM_OPS_64, 3));
    CHECK_INT(value, ==, 1);
    CHECK_INT(cuda.primary_retain(&context, 16), ==, FAKE_INVALID_DEVICE);
}

/* Every kernel of the library has a twin. */
static void kernels(void)
{
    static const char *const names[] = {
#define X(name, params) #name,
        TDI_KERNEL_LIST(X)
#undef X
    };
    cu_module module;
    cu_function function;
    use_device(0);
    CHECK_CALL(cuda.module_load(&module, "any"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (cuda.module_function(&function, module, names[i]))
            CHECK_FAIL("the fake has no twin of %s", names[i]);
    CHECK_INT(cuda.module_function(&function, module, "none"), ==,
              FAKE_NOT_FOUND);
    CHECK_CALL(cuda.module_unload(module));
}

/* --- Order ---------------------------------------------------------------- */

/* Each fill must be complete before the next one of its stream. */
static void one_stream_in_order(void)
{
    use_device(0);
    cu_stream stream = make_stream();
    cu_pointer memory = alloc_device(4 * WORDS);
    uint32_t *host = malloc(4 * WORDS);
    for (uint32_t round = 0; round < 200; round++)
        CHECK_CALL(cuda.fill_32_async(memory, round, WORDS, stream));
    read_device(stream, host, memory, 4 * WORDS);
    for (size_t i = 0; i < WORDS; i++)
        CHECK_INT(host[i], ==, 199);
    free(host);
}

/* Two streams without an event between them do overlap. */
static void two_streams_side_by_side(void)
{
    use_device(0);
    cu_stream a = make_stream(), b = make_stream();
    cu_pointer cell = make_cell(a);
    wait_value(a, cell, 1);
    CHECK_INT(cuda.stream_query(a), ==, CU_ERROR_NOT_READY);
    write_value(b, cell, 1);
    CHECK_CALL(cuda.stream_sync(a));
    CHECK_CALL(cuda.stream_query(a));
}

/* A wait takes the latest recording there is when it is called. */
static void event_reuse(void)
{
    use_device(0);
    cu_stream a = make_stream(), b = make_stream(), c = make_stream();
    cu_pointer one = make_cell(a), two = make_cell(a);
    cu_event event = make_event(CU_EVENT_NO_TIMING);
    CHECK_CALL(cuda.stream_wait_event(b, event, 0)); /* never recorded */
    CHECK_CALL(cuda.stream_sync(b));
    CHECK_CALL(cuda.event_query(event));
    wait_value(a, one, 1);
    CHECK_CALL(cuda.event_record(event, a));
    CHECK_CALL(cuda.stream_wait_event(b, event, 0));
    wait_value(a, two, 1);
    CHECK_CALL(cuda.event_record(event, a));
    CHECK_CALL(cuda.stream_wait_event(c, event, 0));
    nap();
    CHECK_INT(cuda.stream_query(b), ==, CU_ERROR_NOT_READY);
    cu_stream d = make_stream();
    write_value(d, one, 1);
    CHECK_CALL(cuda.stream_sync(b)); /* the first recording is enough */
    CHECK_INT(cuda.stream_query(c), ==, CU_ERROR_NOT_READY);
    CHECK_INT(cuda.event_query(event), ==, CU_ERROR_NOT_READY);
    write_value(d, two, 1);
    CHECK_CALL(cuda.event_sync(event));
    CHECK_CALL(cuda.stream_sync(c));
    CHECK_CALL(cuda.event_destroy(event));
}

static void event_times(void)
{
    float ms = -1;
    use_device(0);
    cu_stream stream = make_stream();
    cu_event start = make_event(0), end = make_event(0);
    cu_event plain = make_event(CU_EVENT_NO_TIMING);
    CHECK_CALL(cuda.event_record(start, stream));
    CHECK_CALL(cuda.event_sync(start));
    nap();
    CHECK_CALL(cuda.event_record(end, stream));
    CHECK_CALL(cuda.event_record(plain, stream));
    CHECK_CALL(cuda.event_sync(plain));
    CHECK_CALL(cuda.event_elapsed(&ms, start, end));
    CHECK(ms >= 29 && ms < 5000);
    CHECK_INT(cuda.event_elapsed(&ms, start, plain), ==, FAKE_INVALID_HANDLE);
}

/* Values are compared by the sign of the difference. */
static void values(void)
{
    use_device(0);
    cu_stream a = make_stream(), b = make_stream();
    cu_pointer cell = make_cell(a);
    wait_value(a, cell, 0);
    wait_value(a, cell, (uint64_t)-5); /* 0 is past -5 */
    CHECK_CALL(cuda.stream_sync(a));
    wait_value(a, cell, 7);
    write_value(b, cell, 6);
    CHECK_CALL(cuda.stream_sync(b));
    nap();
    CHECK_INT(cuda.stream_query(a), ==, CU_ERROR_NOT_READY);
    uint64_t large = 1ull << 40; /* a copy wakes it as well */
    write_device(b, cell, &large, sizeof(large));
    CHECK_CALL(cuda.stream_sync(a));
}

/* The host's own stores, and writes through another mapping of the memory, end
 * a wait in host memory. */
static void host_values(void)
{
    int file = memfd_create("cells", MFD_CLOEXEC);
    use_device(0);
    cu_stream a = make_stream(), b = make_stream();
    CHECK_CALL(ftruncate(file, 4096));
    uint64_t *one =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint64_t *two =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK_CALL(cuda.host_register(one, 4096, 1));
    CHECK_INT(cuda.host_register(one + 4, 8, 1), ==, FAKE_ALREADY_REGISTERED);
    CHECK_CALL(cuda.host_register(two, 4096, 1));
    wait_value(a, (cu_pointer)(uintptr_t)(one + 1), 3);
    nap();
    CHECK_INT(cuda.stream_query(a), ==, CU_ERROR_NOT_READY);
    write_value(b, (cu_pointer)(uintptr_t)(two + 1), 3);
    CHECK_CALL(cuda.stream_sync(a));
    wait_value(a, (cu_pointer)(uintptr_t)(one + 1), 4);
    __atomic_store_n(two + 1, 5, __ATOMIC_RELEASE);
    CHECK_CALL(cuda.stream_sync(a));
    CHECK_CALL(cuda.stream_sync(b));
    CHECK_CALL(cuda.host_unregister(one));
    CHECK_CALL(cuda.host_unregister(two));
}

/* --- Copies --------------------------------------------------------------- */

enum { ROWS = 37, WIDTH = 101, FROM = 160, TO = 128 };

static void check_rows(const uint8_t *from, const uint8_t *to)
{
    for (size_t y = 0; y < ROWS; y++)
        for (size_t x = 0; x < TO && y * TO + x < (ROWS - 1) * TO + WIDTH; x++)
            CHECK_INT(to[y * TO + x], ==,
                      x < WIDTH ? from[y * FROM + x] : 0xfb);
}

static void strided_copies(void)
{
    uint8_t from[ROWS * FROM], to[ROWS * TO];
    use_device(2);
    cu_stream stream = make_stream();
    cu_pointer a = alloc_device(sizeof(from)), b = alloc_device(sizeof(to));
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 7 + i / 251);
    write_device(stream, a, from, sizeof(from));
    cu_copy_2d flat = {.src_type = CU_MEMORY_DEVICE,
                       .src = a,
                       .src_pitch = FROM,
                       .dst_type = CU_MEMORY_DEVICE,
                       .dst = b,
                       .dst_pitch = TO,
                       .width = WIDTH,
                       .height = ROWS};
    CHECK_CALL(cuda.copy_2d_async(&flat, stream));
    read_device(stream, to, b, sizeof(to));
    check_rows(from, to);
    cu_pointer c = alloc_device(sizeof(to));
    cu_batch_copy batch[2] = {
        {.src = {CU_OPERAND_POINTER, {{.pointer = a, .row_length = FROM}}},
         .dst = {CU_OPERAND_POINTER, {{.pointer = c, .row_length = TO}}},
         .width = WIDTH,
         .height = 20,
         .depth = 1,
         .src_order = CU_ORDER_STREAM,
         .flags = CU_PREFER_COPY_ENGINE}};
    batch[1] = batch[0];
    batch[1].src.pointer += 20 * FROM;
    batch[1].dst.pointer += 20 * TO;
    batch[1].height = ROWS - 20;
    CHECK_CALL(cuda.copy_batch(2, batch, 0, stream));
    read_device(stream, to, c, sizeof(to));
    check_rows(from, to);
    CHECK_INT(cuda.copy_batch(2, batch, 0, NULL), ==, FAKE_INVALID_HANDLE);
    flat.dst_pitch = WIDTH - 1;
    CHECK_INT(cuda.copy_2d_async(&flat, stream), ==, FAKE_INVALID_VALUE);
}

static void many_copies(void)
{
    enum { COPIES = 100, EACH = 33 };
    uint8_t from[COPIES * EACH], to[COPIES * EACH];
    cu_pointer srcs[COPIES], dsts[COPIES];
    size_t sizes[COPIES], first = 0;
    cu_copy_attributes how = {.src_order = CU_ORDER_STREAM};
    use_device(0);
    cu_stream stream = make_stream();
    cu_pointer a = alloc_device(sizeof(from)), b = alloc_device(sizeof(to));
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 5 + i / 97);
    write_device(stream, a, from, sizeof(from));
    for (size_t i = 0; i < COPIES; i++) {
        srcs[i] = a + i * EACH;
        dsts[i] = b + (COPIES - 1 - i) * EACH;
        sizes[i] = EACH - i % 2;
    }
    CHECK_CALL(
        cuda.copy_batch_1d(dsts, srcs, sizes, COPIES, &how, &first, 1, stream));
    read_device(stream, to, b, sizeof(to));
    for (size_t i = 0; i < sizeof(to); i++) {
        size_t copy = COPIES - 1 - i / EACH;
        CHECK_INT(to[i], ==,
                  i % EACH < sizes[copy] ? from[copy * EACH + i % EACH] : 0xfb);
    }
    CHECK_INT(
        cuda.copy_batch_1d(dsts, srcs, sizes, COPIES, &how, &first, 0, stream),
        ==, FAKE_INVALID_VALUE);
}

/* --- Shared queues -------------------------------------------------------- */

/* With one queue a stream stands behind the wait of another one; streams of
 * another device do not. */
static void false_dependencies(void)
{
    use_device(0);
    cu_stream a = make_stream(), b = make_stream();
    cu_pointer cell = make_cell(a), other = alloc_device(8);
    wait_value(a, cell, 1);
    CHECK_CALL(cuda.fill_8_async(other, 1, 8, b));
    nap();
    CHECK_INT(cuda.stream_query(b), ==, CU_ERROR_NOT_READY);
    use_device(1);
    cu_stream c = make_stream();
    CHECK_CALL(cuda.fill_8_async(alloc_device(8), 1, 8, c));
    CHECK_CALL(cuda.stream_sync(c));
}

static void no_false_dependencies(void)
{
    use_device(0);
    cu_stream a = make_stream(), b = make_stream();
    cu_pointer cell = make_cell(a);
    wait_value(a, cell, 1);
    CHECK_CALL(cuda.fill_8_async(alloc_device(8), 1, 8, b));
    CHECK_CALL(cuda.stream_sync(b));
}

/* --- Checks --------------------------------------------------------------- */

static cu_stream fresh(cu_pointer *memory)
{
    use_device(0);
    cu_stream stream = make_stream();
    *memory = alloc_device(1000);
    return stream;
}

static void past_the_end(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    CHECK_CALL(cuda.fill_8_async(memory + 1, 0, 1000, stream));
    CHECK_CALL(cuda.stream_sync(stream));
}

static void after_free(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    CHECK_CALL(cuda.mem_free(memory));
    CHECK_CALL(cuda.fill_8_async(memory, 0, 8, stream));
    CHECK_CALL(cuda.stream_sync(stream));
}

static void free_twice(void)
{
    cu_pointer memory;
    fresh(&memory);
    CHECK_CALL(cuda.mem_free(memory));
    CHECK_CALL(cuda.mem_free(memory));
}

static void free_in_use(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    CHECK_CALL(cuda.fill_8_async(memory, 0, 1000, stream));
    CHECK_CALL(cuda.stream_sync(stream));
    wait_value(stream, memory, 1);
    nap();
    CHECK_CALL(cuda.mem_free(memory));
}

static void another_device(void)
{
    cu_pointer memory;
    fresh(&memory);
    use_device(1);
    cu_stream stream = make_stream();
    CHECK_CALL(cuda.fill_8_async(memory, 0, 8, stream));
    CHECK_CALL(cuda.stream_sync(stream));
}

static void unaligned_value(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    wait_value(stream, memory + 4, 1);
}

static void destroyed_stream(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    CHECK_CALL(cuda.stream_destroy(stream));
    cuda.stream_query(stream);
}

static void destroyed_event(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    cu_event event = make_event(0);
    CHECK_CALL(cuda.event_destroy(event));
    cuda.event_record(event, stream);
}

static void busy_stream(void)
{
    cu_pointer memory;
    cu_stream stream = fresh(&memory);
    CHECK_CALL(cuda.fill_8_async(memory, 0, 8, stream));
    wait_value(stream, memory, 1);
    CHECK_CALL(cuda.stream_destroy(stream));
}

static void read_on_host(void)
{
    cu_pointer memory;
    fresh(&memory);
    fprintf(stderr, "%d\n", *(volatile char *)(uintptr_t)memory);
}

static void check_checks(void)
{
    char text[256];
    must_fail(NULL, NULL, past_the_end, "1000 bytes at");
    must_fail(NULL, NULL, after_free, "was freed");
    must_fail(NULL, NULL, free_twice, "gone already");
    must_fail(NULL, NULL, free_in_use, "while work uses it");
    must_fail(NULL, NULL, another_device, "of device 1 touches");
    must_fail(NULL, NULL, unaligned_value, "not aligned");
    must_fail(NULL, NULL, destroyed_stream, "a destroyed stream");
    must_fail(NULL, NULL, destroyed_event, "a destroyed event");
    must_fail("FAKE_CHECK_BUSY", "1", busy_stream, "while it has work");
    CHECK_INT(play(NULL, NULL, read_on_host, text, sizeof(text)), >, 0);
}

/* --- Faults --------------------------------------------------------------- */

static void faulty_device(void)
{
    int value;
    cu_pointer memory;
    CHECK_CALL(cuda.driver_version(&value));
    CHECK_INT(value, ==, 12040);
    CHECK_CALL(cuda.device_attribute(&value, CU_ATTRIBUTE_MAJOR, 0));
    CHECK_INT(value, ==, 8);
    CHECK_CALL(cuda.device_attribute(&value, CU_ATTRIBUTE_MEM_OPS_64, 0));
    CHECK_INT(value, ==, 0);
    use_device(0);
    CHECK_INT(cuda.mem_alloc(&memory, 8), ==, CU_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    must_pass(NULL, NULL, contexts);
    must_pass(NULL, NULL, kernels);
    must_pass(NULL, NULL, one_stream_in_order);
    must_pass(NULL, NULL, two_streams_side_by_side);
    must_pass(NULL, NULL, event_reuse);
    must_pass(NULL, NULL, event_times);
    must_pass(NULL, NULL, values);
    must_pass(NULL, NULL, host_values);
    must_pass(NULL, NULL, strided_copies);
    must_pass(NULL, NULL, many_copies);
    must_pass("FAKE_DELAY_US", "0", strided_copies);
    must_pass(NULL, NULL, no_false_dependencies);
    must_pass("FAKE_CONNECTIONS", "1", false_dependencies);
    must_pass("FAKE_CONNECTIONS", "2", no_false_dependencies);
    must_pass("FAKE_FAULT", "old_driver,old_device,no_mem_ops,alloc_fails",
              faulty_device);
    check_checks();
    return 0;
}
