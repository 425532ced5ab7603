"""What every GPU check starts with: ranks, their device, and a verdict.

Ranks may share a GPU: a rank takes the GPU of its local number, modulo the
GPUs there are. Results of a check are one JSON object, written by rank 0.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(TESTS.parent.parent / "examples"))


def start(timeout_s: int = 60) -> torch.device:
    """Joins the ranks that torchrun started; this rank's device."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backends = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backends, timeout=timedelta(seconds=timeout_s))
    return device


def finish(out: str | None, results: dict) -> None:
    """Writes rank 0's results; ends every rank alike."""
    good = everyone(not results.get("failures"))
    results["good"] = good
    if dist.get_rank() == 0:
        write(out, results)
    sys.stdout.flush()
    # Without tearing NCCL down, which waits for a rank that has failed.
    os._exit(0 if good else 1)


def write(out: str | None, results: dict) -> None:
    results["torch"] = torch.__version__
    if torch.cuda.is_available():
        results["gpu"] = torch.cuda.get_device_name()
    if out:
        Path(out).write_text(json.dumps(results, indent=1) + "\n")


def everyone(mine: bool) -> bool:
    """Whether it is true on all ranks."""
    verdict = torch.tensor([int(mine)])
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict)


def attempt(name: str, results: dict, check: Callable[[], dict]) -> None:
    """Runs a check on all ranks; notes how it went under `name`."""
    started, found, error = time.perf_counter(), None, ""
    try:
        found = check()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:  # the next check still runs
        error = traceback.format_exc()
        print(f"rank {dist.get_rank()}: {name}: {error}", flush=True)
    good = everyone(not error)
    seconds = time.perf_counter() - started
    results["checks"][name] = {
        "good": good,
        "seconds": round(seconds, 2),
        **(found or {}),
    }
    if not good:
        results["failures"].append(f"{name}: {error[-2000:]}")
        import tide.comm

        tide.comm.close_all()  # after an error it is of no use
    if dist.get_rank() == 0:
        print(f"{'ok' if good else 'FAILED':6} {name} {seconds:.1f} s")
        sys.stdout.flush()
