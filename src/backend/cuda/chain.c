/* Launches in a row as graphs: a straight line of kernels for each length. */
#include "backend/cuda/image.h"
#include "base/fail.h"

#include <stdlib.h>

typedef struct line {
    cu_graph graph;
    cu_graph_exec exec;
    cu_node node[TDI_CUDA_CHAIN];
} line;

struct tdi_cuda_chain {
    const tdi_cuda_kernels *kernels;
    line lines[TDI_CUDA_CHAIN + 1]; /* [length]; none of 0 and 1 */
};

#define TRY_CUDA(chain, call, what)                                            \
    TDI_TRY(tdi_cuda_kernels_check((chain)->kernels->cuda,                     \
                                   (chain)->kernels->cuda->call, what))

/* A sum that adds nothing, until it is told what to add. */
static const tdi_sum_params nothing = {.sources = 1, .tile = 1, .scale = 1};

static tide_status add_node(tdi_cuda_chain *chain, line *l, uint32_t i)
{
    tdi_sum_params params = nothing;
    tdi_sum_few sources = {{0}};
    void *both[] = {&params, &sources};
    cu_kernel_node node =
        tdi_cuda_node(chain->kernels, TDI_KERNEL_tide_sum_loads, 1, both);
    TRY_CUDA(chain,
             graph_add_kernel(&l->node[i], l->graph, i ? &l->node[i - 1] : NULL,
                              i ? 1 : 0, &node),
             "cuGraphAddKernelNode");
    return TIDE_OK;
}

static tide_status make_line(tdi_cuda_chain *chain, uint32_t length)
{
    line *l = &chain->lines[length];
    TRY_CUDA(chain, graph_create(&l->graph, 0), "cuGraphCreate");
    for (uint32_t i = 0; i < length; i++)
        TDI_TRY(add_node(chain, l, i));
    TRY_CUDA(chain, graph_instantiate(&l->exec, l->graph, 0),
             "cuGraphInstantiate");
    return TIDE_OK;
}

/* As it is used: other parameters, a launch. */
static tide_status try_line(tdi_cuda_chain *chain, uint32_t length,
                            cu_stream stream)
{
    tdi_sum_launch launches[TDI_CUDA_CHAIN];
    tdi_sum_few sources = {{0}};
    for (uint32_t i = 0; i < length; i++)
        launches[i] = (tdi_sum_launch){.params = nothing, .blocks = 2};
    return tdi_cuda_chain_queue(chain, TDI_KERNEL_tide_sum_loads, launches,
                                length, &sources, stream);
}

static tide_status make_lines(tdi_cuda_chain *chain, cu_stream stream)
{
    for (uint32_t length = 2; length <= TDI_CUDA_CHAIN; length++)
        TDI_TRY(make_line(chain, length));
    for (uint32_t length = 2; length <= TDI_CUDA_CHAIN; length++)
        TDI_TRY(try_line(chain, length, stream));
    TRY_CUDA(chain, stream_sync(stream), "trying graphs of sums");
    return TIDE_OK;
}

tide_status tdi_cuda_chain_create(const tdi_cuda_kernels *kernels,
                                  cu_stream stream, tdi_cuda_chain **made)
{
    tdi_cuda_chain *chain = calloc(1, sizeof(*chain));
    *made = NULL;
    if (!chain)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for graphs of sums");
    chain->kernels = kernels;
    tide_status status = make_lines(chain, stream);
    if (status) {
        tdi_cuda_chain_free(chain);
        return status;
    }
    *made = chain;
    return TIDE_OK;
}

void tdi_cuda_chain_free(tdi_cuda_chain *chain)
{
    if (!chain)
        return;
    const tdi_cuda_api *cuda = chain->kernels->cuda;
    for (uint32_t length = 2; length <= TDI_CUDA_CHAIN; length++) {
        line *l = &chain->lines[length];
        if (l->exec)
            cuda->graph_exec_destroy(l->exec);
        if (l->graph)
            cuda->graph_destroy(l->graph);
    }
    free(chain);
}

/* The driver copies what nodes get, and launches under way keep theirs. */
tide_status tdi_cuda_chain_queue(tdi_cuda_chain *chain, tdi_kernel_id id,
                                 tdi_sum_launch *launches, uint32_t count,
                                 tdi_sum_few *sources, cu_stream stream)
{
    const line *l = &chain->lines[count];
    for (uint32_t i = 0; i < count; i++) {
        void *params[] = {&launches[i].params, sources};
        cu_kernel_node node =
            tdi_cuda_node(chain->kernels, id, launches[i].blocks, params);
        TRY_CUDA(chain, graph_set_kernel(l->exec, l->node[i], &node),
                 "cuGraphExecKernelNodeSetParams");
    }
    TRY_CUDA(chain, graph_launch(l->exec, stream), "cuGraphLaunch");
    return TIDE_OK;
}
