/* Which device a rank uses, and whether it will do. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER_NEEDED = 12080 };

static tide_status check_driver(const tdi_cuda_api *cuda)
{
    int version = 0, count = 0;
    cu_result result = cuda->init(0);
    if (!result)
        result = cuda->driver_version(&version);
    if (!result)
        result = cuda->device_count(&count);
    if (result || !count)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "no CUDA device can be seen (CUDA error %d); is there "
                        "one, and does CUDA_VISIBLE_DEVICES name it?",
                        result);
    if (version < DRIVER_NEEDED)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "the CUDA driver supports CUDA %d.%d, and %d.%d is "
                        "needed; install driver 570 or newer",
                        version / 1000, version / 10 % 100,
                        DRIVER_NEEDED / 1000, DRIVER_NEEDED / 10 % 100);
    return TIDE_OK;
}

static tide_status check_device(const tdi_cuda_api *cuda, cu_device device)
{
    char name[128] = "?";
    int major = 0, mem_ops = 0;
    cuda->device_name(name, sizeof(name), device);
    if (cuda->device_attribute(&major, CU_ATTRIBUTE_MAJOR, device) ||
        cuda->device_attribute(&mem_ops, CU_ATTRIBUTE_MEM_OPS_64, device))
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "device %d (%s) does not answer",
                        device, name);
    if (major < 9)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "device %d (%s) has compute capability %d.x, and 9.0 "
                        "(Hopper) or newer is needed",
                        device, name, major);
    if (!mem_ops)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "device %d (%s) has no 64-bit stream memory operations",
                        device, name);
    return TIDE_OK;
}

/* The calling thread's, if it has chosen one; else that of the rank's place on
 * its machine. */
static tide_status choose_device(const tdi_cuda_api *cuda, uint32_t place,
                                 cu_device *device)
{
    cu_context current = NULL;
    int count = 1;
    if (!cuda->context_get(&current) && current &&
        !cuda->context_device(device))
        return TIDE_OK;
    cuda->device_count(&count);
    if (cuda->device_get(device, (int)(place % (uint32_t)count)))
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "CUDA device %d does not answer",
                        (int)(place % (uint32_t)count));
    return TIDE_OK;
}

tide_status tdi_cuda_probe(const uint64_t *machines, uint32_t ranks)
{
    const tdi_cuda_api *cuda;
    const tdi_nccl_api *nccl;
    cu_device device;
    (void)machines;
    (void)ranks;
    if (!tdi_cuda_kernels_built())
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "built without kernels: no nvcc was found; install "
                        "CUDA 12.8 or newer and build again");
    TDI_TRY(tdi_cuda_load(&cuda));
    TDI_TRY(check_driver(cuda));
    TDI_TRY(choose_device(cuda, 0, &device));
    TDI_TRY(check_device(cuda, device));
    return tdi_nccl_load(&nccl);
}

static tdi_cuda_bounds read_bounds(tdi_env ctas)
{
    return (tdi_cuda_bounds){
        .ctas = (uint32_t)tdi_env_number(ctas),
        .chunk = (uint64_t)tdi_env_number(TDI_ENV_SUM_CHUNK_KIB) << 10};
}

static tide_status retain_context(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    int least = 0;
    TDI_TRY(tdi_cuda_check(
        cuda->cuda, cuda->cuda->primary_retain(&cuda->context, cuda->device),
        comm->rank, "cuDevicePrimaryCtxRetain"));
    TDI_TRY(tdi_cuda_enter(comm));
    cuda->cuda->priority_range(&least, &cuda->priority);
    tide_status status = tdi_cuda_kernels_load(cuda->cuda, &cuda->kernels);
    tdi_cuda_leave(comm);
    return status;
}

tide_status tdi_cuda_open_device(tide_comm *comm, const uint64_t *machines)
{
    cuda_state *cuda = cuda_of(comm);
    uint32_t place = 0;
    for (uint32_t r = 0; r < comm->rank; r++)
        place += machines[r] == machines[comm->rank];
    TDI_TRY(tdi_cuda_load(&cuda->cuda));
    TDI_TRY(tdi_nccl_load(&cuda->nccl));
    TDI_TRY(check_driver(cuda->cuda));
    TDI_TRY(choose_device(cuda->cuda, place, &cuda->device));
    TDI_TRY(check_device(cuda->cuda, cuda->device));
    cuda->sum_bounds = read_bounds(TDI_ENV_SUM_CTAS);
    cuda->land_bounds = read_bounds(TDI_ENV_LAND_CTAS);
    comm->together = (int)tdi_env_number(TDI_ENV_PULL_STREAMS);
    cuda->sum_graphs = tdi_env_number(TDI_ENV_SUM_GRAPHS);
    cuda->own_kernel = tdi_env_number(TDI_ENV_LOCAL_COPIES);
    cuda->beside_bytes = (uint64_t)tdi_env_number(TDI_ENV_BESIDE_KIB) << 10;
    cuda->direct_rails = tdi_env_number(TDI_ENV_DIRECT_RAILS);
    return retain_context(comm);
}

/* Gradients on the reader's own device are read by loads at no cost: then there
 * is nothing to stage. The same on all ranks, so of all nodes. */
static bool needs_staging(const tide_comm *comm, const cu_uuid *all)
{
    uint32_t size = comm->topology.local_size;
    for (uint32_t r = 0; r < cuda_ranks(comm); r++)
        if (memcmp(&all[r], &all[r - r % size], sizeof(*all)))
            return true;
    return false;
}

/* --- Hardware queues ---------------------------------------------------- */

/* As the driver has it: streams of a process and device share so many. */
static uint32_t count_connections(void)
{
    enum { USUAL = 8, MOST = 32 };
    const char *asked = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long count = asked ? strtol(asked, NULL, 10) : 0;
    return count > 0 ? (uint32_t)tdi_min((uint64_t)count, MOST) : USUAL;
}

/* That may wait, the caller's among them. */
static uint32_t count_streams(const tide_comm *comm)
{
    uint32_t count = 1;
    for (tdi_flow_id flow = 0; flow < TDI_FLOWS; flow++) {
        unsigned queues = 0;
        for (tide_lane lane = 0; lane < TIDE_LANE_COUNT; lane++)
            queues |= 1u << tdi_cuda_queue_of(comm, flow, lane);
        count += (uint32_t)__builtin_popcount(queues);
        count += tdi_cuda_copies_beside(comm);
    }
    return count;
}

static bool is_my_process(const tide_comm *comm, uint32_t rank)
{
    const node_peer *peers = node_of(comm)->peers;
    return node_has(comm, rank) && peers[rank].pid == peers[comm->rank].pid;
}

/* The most ranks of my process, so threads, that share one device. */
static uint32_t count_sharers(const tide_comm *comm, const cu_uuid *all)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < cuda_ranks(comm); r++) {
        uint32_t count = 0;
        for (uint32_t s = 0; is_my_process(comm, r) && s <= r; s++)
            count += is_my_process(comm, s) &&
                     !memcmp(&all[r], &all[s], sizeof(*all));
        most = (uint32_t)tdi_max(most, count);
    }
    return most;
}

/* Ranks that share a device may not stand behind one another: fewer streams. */
static void fit_queues(tide_comm *comm, const cu_uuid *all)
{
    uint32_t sharers = count_sharers(comm, all);
    cuda_of(comm)->folded =
        sharers > 1 && sharers * count_streams(comm) > count_connections();
}

/* Neither is an error, and neither shows but by its harm. */
static void warn_of_queues(const tide_comm *comm, const cu_uuid *all)
{
    if (comm->rank)
        return;
    uint32_t connections = count_connections();
    uint32_t sharers = count_sharers(comm, all);
    uint32_t streams = sharers * count_streams(comm);
    if (connections == 1)
        fprintf(stderr,
                "tide: WARNING: CUDA_DEVICE_MAX_CONNECTIONS=1: all streams "
                "share one hardware queue, so collectives and computation run "
                "one after the other; unset it\n");
    if (sharers > 1 && streams > connections)
        fprintf(stderr,
                "tide: WARNING: %u ranks of this process share a GPU, and "
                "their %u streams, the callers' among them, its %u hardware "
                "queues: a rank may stand behind what waits for it, until the "
                "deadline; set "
                "CUDA_DEVICE_MAX_CONNECTIONS=32 (the most), or let fewer "
                "ranks share it\n",
                sharers, streams, connections);
}

/* On another machine a device of the same number has another identity. */
tide_status tdi_cuda_share_device(tide_comm *comm,
                                  const tide_bootstrap *bootstrap)
{
    cuda_state *cuda = cuda_of(comm);
    cu_uuid mine = {{0}};
    cu_uuid *all = malloc(bootstrap->ranks * sizeof(*all));
    tide_status status = TIDE_OK;
    if (!all)
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks",
                          bootstrap->ranks);
    if (!status)
        status = tdi_cuda_check(cuda->cuda,
                                cuda->cuda->device_uuid(&mine, cuda->device),
                                comm->rank, "cuDeviceGetUuid");
    status = tdi_meet_agree(bootstrap, status);
    if (!status)
        status = tdi_meet_exchange(bootstrap, &mine, all, sizeof(mine));
    for (uint32_t r = 0; !status && r < bootstrap->ranks; r++)
        cuda->is_here[r] = !memcmp(&all[r], &mine, sizeof(mine));
    comm->staged = tdi_comm_staged(!status && needs_staging(comm, all));
    if (!status) {
        fit_queues(comm, all);
        warn_of_queues(comm, all);
    }
    free(all);
    return status;
}

void tdi_cuda_close_device(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    if (!cuda->context)
        return;
    if (!tdi_cuda_enter(comm)) {
        tdi_cuda_kernels_free(cuda->kernels);
        tdi_cuda_leave(comm);
    }
    cuda->kernels = NULL;
    cuda->cuda->primary_release(cuda->device);
    cuda->context = NULL;
}

void *tdi_cuda_plain_take(tide_comm *comm, uint64_t bytes)
{
    cu_pointer memory = 0;
    if (cuda_of(comm)->cuda->mem_alloc(&memory, bytes))
        return NULL;
    return (void *)(uintptr_t)memory;
}

void tdi_cuda_plain_give(void *memory)
{
    const tdi_cuda_api *cuda;
    /* At the end of a process the driver may have gone: no matter. */
    if (!tdi_cuda_load(&cuda))
        cuda->mem_free((cu_pointer)(uintptr_t)memory);
}

/* What the calling thread had before. */
static _Thread_local cu_context outer;

tide_status tdi_cuda_enter(tide_comm *comm)
{
    const cuda_state *cuda = cuda_of(comm);
    cu_context current = NULL;
    TDI_TRY(tdi_cuda_check(cuda->cuda, cuda->cuda->context_get(&current),
                           comm->rank, "cuCtxGetCurrent"));
    outer = current;
    if (current == cuda->context)
        return TIDE_OK;
    return tdi_cuda_check(cuda->cuda, cuda->cuda->context_set(cuda->context),
                          comm->rank, "cuCtxSetCurrent");
}

void tdi_cuda_leave(tide_comm *comm)
{
    if (outer != cuda_of(comm)->context)
        cuda_of(comm)->cuda->context_set(outer);
}
