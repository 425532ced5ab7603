/* The driver's graphs: straight lines of kernels. Nothing else is needed, so
 * nothing else is let through. */
#include "fake.h"

#include <stdlib.h>

enum { ALIVE = 0x67726170, DESTROYED = 0x64656164, MOST = 64 };

typedef struct fake_node {
    cu_function function;
    fake_params params;
} fake_node;

struct CUgraphNode_st {
    cu_graph graph;
    unsigned index;
};

/* Neither is ever freed, so that use of a destroyed one is seen. */
struct CUgraph_st {
    struct CUgraph_st *next;
    unsigned state;
    unsigned count;
    struct CUgraphNode_st handles[MOST];
    fake_node nodes[MOST];
};

struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    unsigned state;
    cu_graph graph;
    fake_node nodes[MOST];
    cu_stream stream; /* of the last launch, which ends with the event */
    cu_event ended;
};

static struct { /* keeps them reachable */
    pthread_mutex_t lock;
    cu_graph first;
    cu_graph_exec first_exec;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void check_graph(cu_graph graph, const char *call)
{
    if (!graph || graph->state != ALIVE)
        fake_fail("%s of %p, which is no graph", call, (void *)graph);
}

static void check_exec(cu_graph_exec exec, const char *call)
{
    if (!exec || exec->state != ALIVE)
        fake_fail("%s of %p, which is no graph that can run", call,
                  (void *)exec);
}

static cu_result set_node(fake_node *node, const cu_kernel_node *params)
{
    cu_device device;
    cu_result result = cuCtxGetDevice(&device);
    if (result)
        return result;
    if (!fake_is_launch(params, device))
        return FAKE_INVALID_VALUE;
    free(node->params.memory);
    node->function = params->function;
    node->params = fake_copy_params(node->function->kernel, params->params);
    return CU_OK;
}

cu_result cuGraphCreate(cu_graph *graph, unsigned int flags)
{
    if (flags)
        return FAKE_INVALID_VALUE;
    cu_graph made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    pthread_mutex_lock(&all.lock);
    made->next = all.first;
    all.first = made;
    pthread_mutex_unlock(&all.lock);
    *graph = made;
    return CU_OK;
}

cu_result cuGraphAddKernelNode_v2(cu_node *node, cu_graph graph,
                                  const cu_node *after, size_t count,
                                  const cu_kernel_node *params)
{
    check_graph(graph, "cuGraphAddKernelNode");
    unsigned index = graph->count;
    bool in_line =
        index ? count == 1 && *after == &graph->handles[index - 1] : !count;
    if (!in_line || index == MOST)
        return FAKE_INVALID_VALUE;
    cu_result result = set_node(&graph->nodes[index], params);
    if (result)
        return result;
    graph->handles[index] = (struct CUgraphNode_st){graph, index};
    graph->count++;
    *node = &graph->handles[index];
    return CU_OK;
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph,
                                      unsigned long long flags)
{
    check_graph(graph, "cuGraphInstantiate");
    if (flags)
        return FAKE_INVALID_VALUE;
    cu_graph_exec made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    made->graph = graph;
    for (unsigned i = 0; i < graph->count; i++) {
        fake_node *node = &made->nodes[i];
        node->function = graph->nodes[i].function;
        node->params =
            fake_copy_params(node->function->kernel, graph->nodes[i].params.at);
    }
    pthread_mutex_lock(&all.lock);
    made->next = all.first_exec;
    all.first_exec = made;
    pthread_mutex_unlock(&all.lock);
    *exec = made;
    return cuEventCreate(&made->ended, CU_EVENT_NO_TIMING);
}

cu_result cuGraphExecKernelNodeSetParams_v2(cu_graph_exec exec, cu_node node,
                                            const cu_kernel_node *params)
{
    check_exec(exec, "cuGraphExecKernelNodeSetParams");
    check_graph(exec->graph, "cuGraphExecKernelNodeSetParams");
    if (node->graph != exec->graph)
        return FAKE_INVALID_VALUE;
    return set_node(&exec->nodes[node->index], params);
}

/* After so many launches on a device, if that fault is asked for. */
static bool is_refused(int device)
{
    static atomic_int launches[FAKE_MAX_DEVICES];
    return fake_fault("no_graph_launches", device) &&
           launches[device]++ >= fake_setting("FAKE_FAULT_AFTER", 0);
}

/* Launches of one graph never overlap: a later one waits for the last. */
cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    cu_device device;
    cu_result result = cuCtxGetDevice(&device);
    if (result)
        return result;
    check_exec(exec, "cuGraphLaunch");
    stream = fake_stream(stream, device, "cuGraphLaunch");
    if (fake_device_of(stream) != device)
        return FAKE_INVALID_HANDLE;
    if (is_refused(device))
        return CU_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < exec->graph->count; i++)
        fake_check_function(exec->nodes[i].function, "cuGraphLaunch");
    if (exec->stream && exec->stream != stream)
        result = cuStreamWaitEvent(stream, exec->ended, 0);
    for (unsigned i = 0; !result && i < exec->graph->count; i++)
        fake_launch(exec->nodes[i].function->kernel, exec->nodes[i].params.at,
                    stream);
    exec->stream = stream;
    return result ? result : cuEventRecord(exec->ended, stream);
}

cu_result cuGraphDestroy(cu_graph graph)
{
    check_graph(graph, "cuGraphDestroy");
    graph->state = DESTROYED;
    for (unsigned i = 0; i < graph->count; i++)
        free(graph->nodes[i].params.memory);
    return CU_OK;
}

cu_result cuGraphExecDestroy(cu_graph_exec exec)
{
    check_exec(exec, "cuGraphExecDestroy");
    exec->state = DESTROYED;
    for (unsigned i = 0; i < exec->graph->count; i++)
        free(exec->nodes[i].params.memory);
    return CU_OK; /* the event stays: launches may be under way */
}
