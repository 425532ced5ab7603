"""How many SMs does a collective take? A probe is launched over and over: one
block for each SM, so large that nothing else fits beside it. A block that
cannot start with the others shows an SM that something else holds; so does an
SM without a block, whose block ran later where another had been. Meanwhile a
collective keeps running on a side stream of high priority.

Under torchrun, one GPU a rank, with real peers. Needs CuPy for the probe. It
ends within a minute: blocks end by the clock, and a watchdog ends the process.

    python3 -m torch.distributed.run --nproc-per-node 2 bench/sm_ids.py \
        --json sm_ids.json
"""

import argparse
import json
import threading

import cupy
import numpy
import torch
import torch.distributed as dist
from gemm_beside import Nccl, Tide, start, use_stream

CODE = r"""
__device__ unsigned long long read_timer()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void __launch_bounds__(1024, 1)
probe(unsigned long long *records, unsigned long long spin_ns)
{
    if (threadIdx.x == 0) {
        unsigned long long *mine = records + 3 * blockIdx.x;
        unsigned long long start = read_timer();
        unsigned sm;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        while (read_timer() - start < spin_ns)
            ;
        mine[0] = sm;
        mine[1] = start;
        mine[2] = read_timer();
    }
    __syncthreads();
}

extern "C" __global__ void stamp(unsigned long long *to)
{
    *to = read_timer();
}
"""
SPIN_NS = 50_000
PROBE_MS = 0.06  # about, to know how many collectives outlast the probes
LATE_NS = 5_000
WATCHDOG_S = 50  # for all of it


class Probe:
    def __init__(self, launches: int) -> None:
        module = cupy.RawModule(code=CODE)
        self.kernel = module.get_function("probe")
        self.stamp_kernel = module.get_function("stamp")
        limits = cupy.cuda.Device().attributes
        self.shared = limits["MaxSharedMemoryPerBlockOptin"]
        self.kernel.max_dynamic_shared_size_bytes = self.shared
        self.sms = limits["MultiProcessorCount"]
        self.records = torch.zeros(
            (launches, self.sms, 3), dtype=torch.int64, device="cuda"
        )
        self.stamps = torch.zeros(2, dtype=torch.int64, device="cuda")
        self.stream = torch.cuda.Stream()

    def launch_all(self) -> None:
        with use_stream(self.stream):
            for records in self.records:
                self.kernel(
                    (self.sms,),
                    (1024,),
                    (cupy.uint64(records.data_ptr()), cupy.uint64(SPIN_NS)),
                    shared_mem=self.shared,
                )

    def stamp(self, index: int, stream: torch.cuda.Stream) -> None:
        """Notes when the stream gets there."""
        with use_stream(stream):
            to = cupy.uint64(self.stamps.data_ptr() + 8 * index)
            self.stamp_kernel((1,), (1,), (to,))


def count_taken(records: numpy.ndarray, first: int, last: int) -> dict:
    """Of launches between two times, [launch][block](SM, start, end): how many
    blocks started late, and how many SMs had no block at all."""
    sms = records.shape[1]
    starts = records[:, :, 1]
    begins = starts.min(axis=1)
    inside = (begins > first) & (begins < last)
    if not inside.any():
        return {"launches": 0}
    late = (starts - begins[:, None] > LATE_NS).sum(axis=1)[inside]
    absent = [sms - len(set(launch[:, 0])) for launch in records[inside]]
    return {
        "launches": int(inside.sum()),
        "taken_mean": float(late.mean()),
        "taken_max": int(late.max()),
        "absent_mean": float(numpy.mean(absent)),
        "absent_max": max(absent),
    }


def time_calls(queue, calls: int, stream: torch.cuda.Stream) -> float:
    """Milliseconds of one."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    first.record(stream)
    for _ in range(calls):
        queue(stream)
    last.record(stream)
    last.synchronize()
    return first.elapsed_time(last) / calls


def gather(value) -> list:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def watch(probe: Probe, queue) -> dict:
    """Probes while the collective is asked for again and again, as often on
    every rank as outlasts the probes."""
    side = torch.cuda.Stream(priority=-1)
    calls = 0
    if queue:
        alone = min(time_calls(queue, 10, side) for _ in range(3))
        calls = len(probe.records) * PROBE_MS * 1.3 / alone + 4
        calls = max(gather(int(calls)))
    device = torch.cuda.current_device()

    def keep_busy() -> None:
        # A thread of its own: a stream holds so many commands and no more.
        torch.cuda.set_device(device)
        cupy.cuda.Device(device).use()
        probe.stamp(0, side)
        for _ in range(calls):
            queue(side)
        probe.stamp(1, side)

    torch.cuda.synchronize()
    dist.barrier()
    thread = threading.Thread(target=keep_busy, daemon=True)
    if queue:
        thread.start()
    probe.launch_all()
    if queue:
        thread.join()
    torch.cuda.synchronize()
    first, last = probe.stamps.tolist() if queue else (0, 2**62)
    counted = count_taken(probe.records.cpu().numpy(), first, last)
    return {"calls": calls, **counted}


def combine(name: str, mine: dict) -> dict:
    """Means and maxima over ranks, and a line of rank 0."""
    ranks = gather(mine)
    row = {"variant": name, "ranks": ranks}
    seen = [each for each in ranks if each["launches"]]
    text = "no probe ran beside it"
    if seen:
        for key in ("taken", "absent"):
            means = [each[f"{key}_mean"] for each in seen]
            row[f"{key}_mean"] = sum(means) / len(means)
            row[f"{key}_max"] = max(each[f"{key}_max"] for each in seen)
        text = (
            f"{min(each['launches'] for each in seen):9d}"
            f"{row['taken_mean']:9.2f}{row['taken_max']:6d}"
            f"{row['absent_mean']:12.2f}{row['absent_max']:6d}"
        )
    if dist.get_rank() == 0:
        print(f"{name:22s}{text}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=32 << 20)
    parser.add_argument("--launches", type=int, default=400)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    start(WATCHDOG_S)
    cupy.cuda.Device(torch.cuda.current_device()).use()
    tide, nccl = Tide(arguments.bytes), Nccl(arguments.bytes)
    probe = Probe(arguments.launches)
    probe.launch_all()  # loads it
    probe.stamp(0, probe.stream)
    if dist.get_rank() == 0:
        print(f"SMs taken of {probe.sms}: blocks that started late, no block")
        print(f"{'':22s}{'launches':>9}{'mean':>9}{'max':>6}", end="")
        print(f"{'mean':>12}{'max':>6}", flush=True)
    cases = {
        "nothing": None,
        "tide all_gather": tide.all_gather,
        "tide reduce_scatter": tide.reduce_scatter,
        "nccl all_gather": nccl.all_gather,
        "nccl reduce_scatter": nccl.reduce_scatter,
    }
    rows = []
    for name, queue in cases.items():
        rows.append(combine(name, watch(probe, queue)))
        if arguments.json and dist.get_rank() == 0:
            with open(arguments.json, "w") as file:
                json.dump({"sms": probe.sms, "rows": rows}, file, indent=1)
    torch.cuda.synchronize()
    tide.comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
