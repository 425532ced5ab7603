/* Bulk copies between global and shared memory, and the barriers that they
 * complete on. */
#ifndef TIDE_BACKEND_CUDA_KERNELS_BULK_CUH
#define TIDE_BACKEND_CUDA_KERNELS_BULK_CUH

#include "device.cuh"

namespace bulk
{

DEVICE u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

DEVICE void init_barrier(u64 *barrier, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

DEVICE void arrive(u64 *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

DEVICE void arrive_expecting(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

DEVICE void wait(u64 *barrier, u32 phase)
{
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

DEVICE void load(char *to, u64 from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* What is said of new barriers before bulk copies may complete on them. */
DEVICE void show_barriers()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A store belongs to the group that this thread commits next. */
DEVICE void store(u64 to, const char *from, u32 bytes)
{
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}

DEVICE void commit_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until all but the last LEFT groups have read shared memory. */
template <int LEFT> DEVICE void wait_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

DEVICE void wait_stores()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Which stage is next, and how often the ring has gone round. */
struct cursor {
    u32 stage;
    u32 phase;

    DEVICE void step(u32 stages)
    {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

} // namespace bulk

#endif
