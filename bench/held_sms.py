"""Does an all-gather need SMs? Every SM is held by a kernel that waits for the
host; tide's collective is asked for, and the time it takes, if it ends at all
before the SMs are given back, is printed.

Under torchrun, one GPU a rank. Needs CuPy for the kernel that holds.

    python3 -m torch.distributed.run --nproc-per-node 2 bench/held_sms.py
"""

import ctypes
import json
import os
import sys
import time

import cupy
import torch
import torch.distributed as dist
from gemm_beside import Nccl, Tide

# Two blocks of 1024 threads fill an SM; they poll pinned host memory.
HOLD = r"""
extern "C" __global__ void hold(volatile int *go, int *held)
{
    if (threadIdx.x == 0)
        atomicAdd(held, 1);
    while (*go == 0)
        __nanosleep(1000);
}
"""
PATIENCE_S = 2.0


class Holder:
    def __init__(self) -> None:
        self.go = cupy.cuda.alloc_pinned_memory(4)
        self.held = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.kernel = cupy.RawKernel(HOLD, "hold")
        self.stream = torch.cuda.Stream()
        self.blocks = (
            2 * torch.cuda.get_device_properties(0).multi_processor_count
        )

    def set_go(self, value: int) -> None:
        pinned = ctypes.c_int.from_address(self.go.ptr)
        pinned.value = value

    def __enter__(self) -> "Holder":
        self.set_go(0)
        with cupy.cuda.ExternalStream(self.stream.cuda_stream):
            self.kernel(
                (self.blocks,),
                (1024,),
                (
                    cupy.uint64(self.go.ptr),
                    cupy.uint64(self.held.data_ptr()),
                ),
            )
        time.sleep(0.05)
        return self

    def __exit__(self, *_unused) -> None:
        self.set_go(1)
        self.stream.synchronize()


def try_once(queue) -> float | None:
    """Milliseconds until `queue(stream)` is through while all SMs are held;
    None if it is not before they are given back."""
    stream = torch.cuda.Stream(priority=-1)
    end = torch.cuda.Event()
    queue(stream)
    torch.cuda.synchronize()
    dist.barrier()
    taken = None
    with Holder():
        started = time.perf_counter()
        queue(stream)
        end.record(stream)
        while time.perf_counter() - started < PATIENCE_S:
            if end.query():
                taken = 1e3 * (time.perf_counter() - started)
                break
    torch.cuda.synchronize()
    dist.barrier()
    return taken


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    tide = Tide(32 << 20)
    tries = {"tide all_gather": tide.all_gather}
    if "--nccl" in sys.argv:
        tries["nccl all_gather"] = Nccl(32 << 20).all_gather
    results = {}
    for name, queue in tries.items():
        mine = try_once(queue)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        ended = all(each is not None for each in everyone)
        results[name] = max(everyone) if ended else None
        if dist.get_rank() == 0:
            text = f"{results[name]:.3f} ms" if ended else "did not end"
            local = os.environ.get("TIDE_LOCAL_COPIES", "1")
            print(f"{name}, all SMs held, TIDE_LOCAL_COPIES={local}: {text}")
    if dist.get_rank() == 0:
        print(json.dumps(results))
    tide.comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
