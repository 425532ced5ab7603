"""Does an all-gather need SMs? Every SM is held by a kernel that waits for the
host. Then the all-gather is asked for, and two things are watched until the SMs
are given back: have the other ranks' bytes arrived in my memory, and has the
whole collective ended? A rank's own shard may need a kernel, the peers' not.

What is seen is read by copy engines into pinned memory. Under torchrun, one GPU
a rank; ranks that share a GPU take turns on it, which shows nothing. Needs CuPy
for the kernel that holds. It ends within a minute: the kernel lets go by
itself, and a watchdog ends the process.

    python3 -m torch.distributed.run --nproc-per-node 2 bench/held_sms.py \
        --nccl --json held.json
"""

import argparse
import json
import os
import time

import cupy
import torch
import torch.distributed as dist
from gemm_beside import Nccl, Tide, start, use_stream

# Two blocks of 1024 threads fill an SM. held[block] is 1 while it is there.
HOLD = r"""
extern "C" __global__ void __launch_bounds__(1024, 2)
hold(volatile int *go, volatile int *held, unsigned long long limit_ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    if (threadIdx.x == 0) {
        held[blockIdx.x] = 1;
        do {
            __nanosleep(1000);
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        } while (*go == 0 && now - start < limit_ns);
        held[blockIdx.x] = 0;
    }
    __syncthreads();
}
"""
SHARD_BYTES = 4 << 20
PATIENCE_S = 2.0  # for the collective
HOLD_S = 5.0  # for the host: then the kernel lets go
WATCHDOG_S = 50  # for all of it
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind


def pinned(nbytes: int) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)


def value_of(rank: int, turn: int) -> int:
    """The byte that a rank's shard is full of."""
    return 16 * turn + rank % 16


def upload(to: int, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
    cupy.cuda.runtime.memcpyAsync(
        to, source.data_ptr(), source.numel(), TO_DEVICE, stream.cuda_stream
    )


def download(to: torch.Tensor, source: int, stream: torch.cuda.Stream) -> None:
    cupy.cuda.runtime.memcpyAsync(
        to.data_ptr(), source, to.numel(), TO_HOST, stream.cuda_stream
    )


class Holder:
    """Holds all SMs inside a `with`."""

    def __init__(self) -> None:
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.blocks = 2 * device.multi_processor_count
        self.flags = pinned(4 * (1 + self.blocks)).view(torch.int32)
        self.seen = self.flags.numpy()  # go, then a flag of each block
        self.kernel = cupy.RawKernel(HOLD, "hold")
        self.stream = torch.cuda.Stream()
        with self:  # compiled and loaded now
            pass

    def count(self) -> int:
        return int(self.seen[1:].sum())

    def __enter__(self) -> "Holder":
        self.seen[:] = 0
        flags = self.flags.data_ptr()
        with use_stream(self.stream):
            self.kernel(
                (self.blocks,),
                (1024,),
                (
                    cupy.uint64(flags),
                    cupy.uint64(flags + 4),
                    cupy.uint64(HOLD_S * 1e9),
                ),
            )
        deadline = time.perf_counter() + 1
        while self.count() < self.blocks and time.perf_counter() < deadline:
            pass
        return self

    def __exit__(self, *_unused) -> None:
        self.seen[0] = 1
        self.stream.synchronize()


class TideGather:
    name = "tide all_gather"

    def __init__(self) -> None:
        self.tide = Tide(SHARD_BYTES)
        ranks = dist.get_world_size()
        share = 2 * self.tide.storages[0].numel() // ranks
        self.shard = pinned(share * len(self.tide.storages))
        self.pieces = [
            (storage.data_ptr() + rank * share, share, rank)
            for storage in self.tide.storages
            for rank in range(ranks)
        ]

    def queue(self, stream: torch.cuda.Stream, value: int) -> None:
        self.shard.fill_(value)
        request = self.tide.group.all_gather_begin()
        request.stream_wait("free", stream.cuda_stream)
        upload(request.stage, self.shard, stream)
        request.start(
            [t.data_ptr() for t in self.tide.storages], stream.cuda_stream
        )
        request.stream_wait("done", stream.cuda_stream)
        request.close()


class NcclGather:
    name = "nccl all_gather"

    def __init__(self) -> None:
        self.nccl = Nccl(SHARD_BYTES)
        self.shard = pinned(SHARD_BYTES)
        full = self.nccl.full.data_ptr()
        self.pieces = [
            (full + rank * SHARD_BYTES, SHARD_BYTES, rank)
            for rank in range(dist.get_world_size())
        ]

    def queue(self, stream: torch.cuda.Stream, value: int) -> None:
        self.shard.fill_(value)
        upload(self.nccl.shard.data_ptr(), self.shard, stream)
        self.nccl.all_gather(stream)


class Look:
    """Sees whether the peers' pieces have become what they should."""

    def __init__(self, pieces: list, turn: int) -> None:
        peers = [piece for piece in pieces if piece[2] != dist.get_rank()]
        self.pieces = [
            (address, pinned(nbytes), value_of(rank, turn))
            for address, nbytes, rank in peers
        ]
        self.stream = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        self.begun = False

    def arrived(self) -> bool:
        """What the last look saw, once it is through; begins the next."""
        if self.begun and not self.event.query():
            return False
        good = self.begun and all(
            bool((seen == value).all()) for _, seen, value in self.pieces
        )
        for address, seen, _ in self.pieces:
            download(seen, address, self.stream)
        self.event.record(self.stream)
        self.begun = True
        return good


def try_once(holder: Holder, gather) -> dict:
    """Milliseconds until the peers' bytes were seen, and until the collective
    was through, while all SMs were held; None: not while they were."""
    stream = torch.cuda.Stream(priority=-1)
    end = torch.cuda.Event()
    look = Look(gather.pieces, turn=2)
    gather.queue(stream, value_of(dist.get_rank(), 1))
    torch.cuda.synchronize()
    dist.barrier()
    seen = {"peers_ms": None, "whole_ms": None}
    with holder:
        dist.barrier()
        started = time.perf_counter()
        gather.queue(stream, value_of(dist.get_rank(), 2))
        end.record(stream)
        now = 0.0
        while now < 1e3 * PATIENCE_S and None in seen.values():
            now = 1e3 * (time.perf_counter() - started)
            if seen["whole_ms"] is None and end.query():
                seen["whole_ms"] = now
            if seen["peers_ms"] is None and look.arrived():
                seen["peers_ms"] = now
        seen["held"] = holder.count()
    torch.cuda.synchronize()
    dist.barrier()
    return seen


def combine(name: str, blocks: int, mine: dict) -> dict:
    """The slowest rank's, and a line of rank 0."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    row = {"variant": name, "held": min(each["held"] for each in everyone)}
    for key in ("peers_ms", "whole_ms"):
        times = [each[key] for each in everyone]
        row[key] = None if None in times else max(times)
    peers, whole = row["peers_ms"], row["whole_ms"]
    if dist.get_rank() == 0:
        local = os.environ.get("TIDE_LOCAL_COPIES", "1")
        print(
            f"{name}, {row['held']} of {blocks} blocks held,"
            f" TIDE_LOCAL_COPIES={local}: peers' bytes arrived:",
            "no;" if peers is None else f"yes, after {peers:.1f} ms;",
            "whole collective:",
            "did not end" if whole is None else f"ended, {whole:.1f} ms",
            flush=True,
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    start(WATCHDOG_S)
    cupy.cuda.Device(torch.cuda.current_device()).use()
    holder = Holder()
    rows = []
    for kind in (TideGather, NcclGather) if arguments.nccl else (TideGather,):
        gather = kind()
        mine = try_once(holder, gather)
        rows.append(combine(gather.name, holder.blocks, mine))
        if arguments.json and dist.get_rank() == 0:
            with open(arguments.json, "w") as file:
                json.dump({"blocks": holder.blocks, "rows": rows}, file)
        if isinstance(gather, TideGather):
            gather.tide.comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
