/* Graphs of the fake driver: straight lines of kernels. */
#include "open.h"

#include "backend/cuda/kernels/params.h"

enum { NODES = 3 };

typedef struct doubling {
    cu_module module;
    cu_graph graph;
    cu_graph_exec exec;
    cu_node node[NODES];
    cu_kernel_node kernel;
    cu_pointer memory; /* node i writes word i + 1: word i, times its scale */
} doubling;

/* Adds the node to the graph, or gives it other parameters in the exec. */
static cu_result set_scale(doubling *d, unsigned i, float scale, bool add)
{
    tdi_sum_params p = {.dst = d->memory + 4 * i + 4,
                        .count = 1,
                        .sources = 1,
                        .tile = 1,
                        .scale = scale};
    tdi_sum_few sources = {.src = {d->memory + 4 * i}};
    void *params[] = {&p, &sources};
    d->kernel.params = params;
    return add ? cuda.graph_add_kernel(&d->node[i], d->graph,
                                       i ? &d->node[i - 1] : NULL, i > 0,
                                       &d->kernel)
               : cuda.graph_set_kernel(d->exec, d->node[i], &d->kernel);
}

static doubling make_doubling(void)
{
    doubling d = {.kernel = {.grid = {1, 1, 1}, .block = {32, 1, 1}}};
    use_device(0);
    d.memory = alloc_device(4 * (NODES + 1));
    CHECK_CALL(cuda.module_load(&d.module, "any"));
    CHECK_CALL(
        cuda.module_function(&d.kernel.function, d.module, "tide_sum_loads"));
    CHECK_CALL(cuda.graph_create(&d.graph, 0));
    for (unsigned i = 0; i < NODES; i++)
        CHECK_CALL(set_scale(&d, i, 2, true));
    CHECK_CALL(cuda.graph_instantiate(&d.exec, d.graph, 0));
    return d;
}

static float last_word(const doubling *d, cu_stream stream)
{
    float words[NODES + 1];
    read_device(stream, words, d->memory, sizeof(words));
    return words[NODES];
}

/* In a line; launches on two streams one after the other; parameters are those
 * of the time of the launch. */
static void graphs(void)
{
    doubling d = make_doubling();
    cu_stream a = make_stream(), b = make_stream(), c = make_stream();
    cu_pointer cell = make_cell(a);
    CHECK_CALL(cuda.fill_32_async(d.memory, 0x3f800000, 1, a)); /* 1.0f */
    wait_value(a, cell, 1);
    CHECK_CALL(cuda.graph_launch(d.exec, a));
    cu_pointer copy = alloc_device(4);
    CHECK_CALL(cuda.copy_async(copy, d.memory + 4 * NODES, 4, a));
    cu_event copied = make_event(0);
    CHECK_CALL(cuda.event_record(copied, a));
    CHECK_CALL(set_scale(&d, 1, 5, false));
    CHECK_CALL(cuda.stream_wait_event(b, copied, 0));
    CHECK_CALL(cuda.graph_launch(d.exec, b));
    CHECK_INT(cuda.stream_query(b), ==, CU_ERROR_NOT_READY);
    write_value(c, cell, 1);
    CHECK_INT(last_word(&d, b), ==, 20);
    float first;
    read_device(a, &first, copy, sizeof(first));
    CHECK_INT(first, ==, 8);
    CHECK_CALL(cuda.graph_exec_destroy(d.exec));
    CHECK_CALL(cuda.graph_destroy(d.graph));
    CHECK_CALL(cuda.module_unload(d.module));
}

static void destroyed_graph(void)
{
    doubling d = make_doubling();
    cu_stream stream = make_stream();
    CHECK_CALL(cuda.graph_exec_destroy(d.exec));
    cuda.graph_launch(d.exec, stream);
}

static void another_graph(void)
{
    doubling d = make_doubling(), other = make_doubling();
    CHECK_INT(cuda.graph_set_kernel(d.exec, other.node[0], &d.kernel), ==,
              FAKE_INVALID_VALUE);
    CHECK_INT(cuda.graph_add_kernel(&d.node[0], d.graph, NULL, 0, &d.kernel),
              ==, FAKE_INVALID_VALUE);
}

int main(void)
{
    must_pass(NULL, NULL, graphs);
    must_pass("FAKE_DELAY_US", "0", graphs);
    must_pass(NULL, NULL, another_graph);
    must_fail(NULL, NULL, destroyed_graph, "no graph that can run");
    return 0;
}
