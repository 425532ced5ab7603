/* NCCL's collectives that tide-perf compares with, and the sizes of types. */
#include "nccl.h"

#include <stdlib.h>
#include <string.h>

uint64_t type_size(int type)
{
    switch (type) {
    case NCCL_INT8:
        return 1;
    case NCCL_FLOAT32:
        return 4;
    case NCCL_BFLOAT16:
        return 2;
    }
    fake_fail("a type of number %d: not one that api.h lists", type);
}

typedef struct coll_work {
    comm_work work;
    uint64_t from;
    uint64_t to;
    uint64_t bytes; /* of one rank's part */
} coll_work;

static void run_all_gather(comm_work *work)
{
    coll_work *coll = (coll_work *)work;
    nccl_comm comm = work->comm;
    uint64_t all = coll->bytes * (uint64_t)comm->ranks;
    fake_view from = fake_pin(comm->device, coll->from, coll->bytes, FAKE_READ,
                              "ncclAllGather");
    fake_view to =
        fake_pin(comm->device, coll->to, all, FAKE_WRITE, "ncclAllGather");
    comm->all->members[comm->rank].from = from.at[0];
    meet(comm, &comm->all->streams);
    for (int r = 0; r < comm->ranks && !comm->aborted; r++) {
        memmove(to.at[0] + (uint64_t)r * coll->bytes,
                comm->all->members[r].from, coll->bytes);
        fake_dawdle(work->work.random);
    }
    meet(comm, &comm->all->streams);
    fake_written(&to, all);
    fake_unpin(&from);
    fake_unpin(&to);
}

/* In place is possible only after all have read. */
static void run_reduce_scatter(comm_work *work)
{
    coll_work *coll = (coll_work *)work;
    nccl_comm comm = work->comm;
    uint64_t all = coll->bytes * (uint64_t)comm->ranks;
    uint64_t count = coll->bytes / sizeof(float);
    fake_view from =
        fake_pin(comm->device, coll->from, all, FAKE_READ, "ncclReduceScatter");
    fake_view to = fake_pin(comm->device, coll->to, coll->bytes, FAKE_WRITE,
                            "ncclReduceScatter");
    float *sum = work->work.extra;
    comm->all->members[comm->rank].from = from.at[0];
    meet(comm, &comm->all->streams);
    for (int r = 0; r < comm->ranks && !comm->aborted; r++) {
        const char *theirs = comm->all->members[r].from;
        const float *part =
            (const float *)(theirs + (uint64_t)comm->rank * coll->bytes);
        for (uint64_t i = 0; i < count; i++)
            sum[i] = r ? sum[i] + part[i] : part[i];
        fake_dawdle(work->work.random);
    }
    meet(comm, &comm->all->streams);
    memcpy(to.at[0], sum, coll->bytes);
    fake_written(&to, coll->bytes);
    fake_unpin(&from);
    fake_unpin(&to);
}

static nccl_result queue_coll(nccl_comm comm, coll_work coll,
                              void (*run)(comm_work *), uint64_t scratch,
                              cu_stream stream)
{
    coll_work *work;
    if (!coll.bytes)
        return NCCL_OK;
    if (fake_has_processes())
        fake_fail("collectives between processes: not in the fake");
    work = fake_work_new(sizeof(*work), NULL);
    *work = coll;
    work->work.run = run;
    if (scratch)
        work->work.work.extra = malloc(scratch);
    queue_comm_work(comm, &work->work, stream);
    return NCCL_OK;
}

nccl_result ncclAllGather(const void *from, void *to, size_t count, int type,
                          nccl_comm comm, cu_stream stream)
{
    nccl_result result = check_comm(comm, "ncclAllGather");
    coll_work coll = {.from = (uint64_t)(uintptr_t)from,
                      .to = (uint64_t)(uintptr_t)to,
                      .bytes = count * type_size(type)};
    return result ? result : queue_coll(comm, coll, run_all_gather, 0, stream);
}

nccl_result ncclReduceScatter(const void *from, void *to, size_t count,
                              int type, int op, nccl_comm comm,
                              cu_stream stream)
{
    nccl_result result = check_comm(comm, "ncclReduceScatter");
    coll_work coll = {.from = (uint64_t)(uintptr_t)from,
                      .to = (uint64_t)(uintptr_t)to,
                      .bytes = count * type_size(type)};
    if (result)
        return result;
    if (type != NCCL_FLOAT32 || op != NCCL_SUM)
        fake_fail("ncclReduceScatter of type %d, op %d: not in the fake", type,
                  op);
    return queue_coll(comm, coll, run_reduce_scatter, coll.bytes, stream);
}
