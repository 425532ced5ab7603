"""What collectives cost a GEMM that runs beside them, with real peers.

Two ranks or more, one GPU each, under torchrun. Every rank keeps a collective
running on a side stream and times bf16 GEMMs of one wave on its own stream:
alone, beside tide's all-gather and reduce-scatter, and beside NCCL's, in turns.
The medians of the slowest rank are printed, and written as JSON.

    python3 -m torch.distributed.run --nproc-per-node 2 bench/gemm_beside.py \
        --json out.json
"""

import argparse
import datetime
import faulthandler
import json
import os
import statistics
import threading

import torch
import torch.distributed as dist
from tide import _tide

M, N, K = 1536, 2816, 8192  # 132 tiles of 128 x 256: one wave on 132 SMs
ROWS = 8192
WATCHDOG_S = 300
GEMM_MS = 0.13  # about, to know how many collectives outlast how many GEMMs


def start(watchdog_s: int) -> None:
    """This rank's GPU, and the group to meet in. After so many seconds the
    process ends."""
    faulthandler.dump_traceback_later(watchdog_s, exit=True)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))


def use_stream(stream: torch.cuda.Stream):
    """CuPy's kernels in a `with` of it go to this stream."""
    import cupy  # those who have no kernels of their own do without

    if hasattr(cupy.cuda.Stream, "from_external"):
        try:
            return cupy.cuda.Stream.from_external(stream)
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            pass  # a torch whose streams have no __cuda_stream__
    return cupy.cuda.ExternalStream(stream.cuda_stream)


def gather(data: bytes) -> list[bytes]:
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, data)
    return parts


class Tide:
    """One group of a few matrices, `bytes` of a bf16 shard a rank."""

    def __init__(self, nbytes: int) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        self.comm = _tide.Comm(
            rank, ranks, gather, backend="cuda", arena_bytes=8 * nbytes * ranks
        )
        width = nbytes * ranks // (4 * 2 * ROWS)
        self.group = self.comm.group(
            [(1, ROWS, width, "bf16") for _ in range(4)], "bench"
        )
        numel = ROWS * width
        self.storages = [
            torch.empty(numel, dtype=torch.bfloat16, device="cuda")
            for _ in range(4)
        ]
        self.grads = [self.comm.memory_take(2 * numel) for _ in range(4)]
        self.out = torch.empty(self.group.out_elems, device="cuda")
        self.scale = 1.0 / ranks

    def all_gather(self, stream: torch.cuda.Stream) -> None:
        request = self.group.all_gather_begin()
        request.stream_wait("free", stream.cuda_stream)
        request.start([t.data_ptr() for t in self.storages], stream.cuda_stream)
        request.stream_wait("done", stream.cuda_stream)
        request.close()

    def reduce_scatter(self, stream: torch.cuda.Stream) -> None:
        request = self.group.reduce_scatter(
            self.grads, "bf16", self.out.data_ptr(), "f32", self.scale,
            stream.cuda_stream,
        )  # fmt: skip
        request.stream_wait("done", stream.cuda_stream)
        request.stream_wait("reads", stream.cuda_stream)
        request.close()


class Nccl:
    def __init__(self, nbytes: int) -> None:
        ranks = dist.get_world_size()
        self.group = dist.new_group(backend="nccl")
        self.shard = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        self.full = torch.empty(
            nbytes * ranks, dtype=torch.uint8, device="cuda"
        )
        self.packed = torch.zeros(nbytes // 2 * ranks, device="cuda")
        self.out = torch.empty(nbytes // 2, device="cuda")

    def all_gather(self, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            dist.all_gather_into_tensor(self.full, self.shard, self.group)

    def reduce_scatter(self, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            dist.reduce_scatter_tensor(self.out, self.packed, group=self.group)


def time_gemms(count: int, beside=None, calls: int = 0) -> list[float]:
    """Milliseconds of each GEMM, in `calls` collectives' company, and how long
    one collective took, last."""
    side = torch.cuda.Stream(priority=-1)
    a = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(K, N, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(5):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize()
    dist.barrier()

    def keep_busy() -> None:
        # A thread of its own: a stream holds so many commands and no more,
        # and whoever queues the next waits.
        torch.cuda.set_device(a.device)
        ends[0].record(side)
        for _ in range(calls):
            beside(side)
        ends[1].record(side)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    for mark in marks[:-1]:
        mark.record()
        torch.mm(a, b, out=c)
    marks[-1].record()
    thread.join()
    torch.cuda.synchronize()
    times = [x.elapsed_time(y) for x, y in zip(marks, marks[1:], strict=False)]
    return [*times, ends[0].elapsed_time(ends[1]) / max(calls, 1)]


def calls_for(count: int, beside) -> int:
    """As many collectives as outlast the GEMMs; alike on every rank."""
    for _ in range(3):
        alone = time_gemms(0, beside, 10)[-1]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, int(count * GEMM_MS / alone) + 4)
    return max(everyone)


def measure(variants: dict, count: int, turns: int) -> list[dict]:
    """GEMMs in the company of each variant, which take turns: the clocks of a
    GPU change while it works. Medians of all turns."""
    calls = {
        name: calls_for(count, beside) if beside else 0
        for name, beside in variants.items()
    }
    gemms: dict = {name: [] for name in variants}
    collectives: dict = {name: [] for name in variants}
    for _ in range(turns):
        for name, beside in variants.items():
            times = time_gemms(count, beside, calls[name])
            gemms[name] += times[:-1]
            collectives[name].append(times[-1])
    return [
        {
            "variant": name,
            "calls": calls[name],
            "gemm_ms": statistics.median(gemms[name]),
            "mean_ms": statistics.fmean(gemms[name]),
            "collective_ms": statistics.median(collectives[name]),
        }
        for name in variants
    ]


def compare(rows: list[dict]) -> list[dict]:
    """Of each row the slowest rank's figures; each rank's slowdown is against
    its own GEMMs alone, the first row."""
    for row in rows:
        row["slowdown_percent"] = 100 * (
            row["gemm_ms"] / rows[0]["gemm_ms"] - 1
        )
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, rows)
    return [
        {
            key: max(row[key] for row in same) if key != "variant" else value
            for key, value in same[0].items()
        }
        for same in zip(*everyone, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=32 << 20)
    parser.add_argument("--gemms", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    start(WATCHDOG_S)
    variants: dict = {"alone": None}
    tide, nccl = Tide(arguments.bytes), Nccl(arguments.bytes)
    for name, kind in (("tide", tide), ("nccl", nccl)):
        for op in ("all_gather", "reduce_scatter"):
            variants[f"{name} {op}"] = getattr(kind, op)
    rows = compare(measure(variants, arguments.gemms, arguments.turns))
    if dist.get_rank() == 0:
        for row in rows:
            print(
                f"{row['variant']:22s} gemm {row['gemm_ms']:.4f} ms "
                f"(mean {row['mean_ms']:.4f}), {row['slowdown_percent']:+.1f}%"
                f", collective {row['collective_ms']:.3f} ms"
            )
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump({"gemm": [M, N, K], "rows": rows}, file, indent=1)
    torch.cuda.synchronize()
    tide.comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
