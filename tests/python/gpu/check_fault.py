"""A rank that goes away in the middle of training: the other one is told.

Usage, under torchrun with 2 ranks: check_fault.py MODE [JSON]. Rank 1 ends
without a word; rank 0 has to get an error, and its GPU must not be left
waiting.
"""

import os
import sys
import time

import ranks_on_gpu
import tide
import tide.fsdp
import torch
import torch.distributed as dist
import training
from training import Case

CASE = Case(bf16=True, width=256, hidden=1024)
SECONDS = 30.0


def train_on(mode: str) -> dict:
    """Rank 0's part: steps until the error, then waits for its GPU."""
    model = training.make_model(CASE)
    tide.fsdp.enable(model, mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    started = time.monotonic()
    for step in range(1000):
        if step == 3 and dist.get_rank() == 1:
            os._exit(0)
        started = time.monotonic() if step == 3 else started
        try:
            training.run_step(model, CASE, step, optimizer)
        except tide.Error as error:
            if training.DEVICE == "cuda":
                torch.cuda.synchronize()
            seconds = time.monotonic() - started
            assert seconds < SECONDS, f"{seconds:.1f} s"
            return {
                "status": error.status,
                "text": str(error),
                "seconds": seconds,
            }
    raise AssertionError("nothing was raised")


def main() -> None:
    training.DEVICE = ranks_on_gpu.start().type
    out = next(iter(sys.argv[2:]), None)
    results: dict = {"checks": {}, "failures": []}
    try:
        results["checks"][sys.argv[1]] = train_on(sys.argv[1])
    except AssertionError as error:
        results["failures"].append(f"{sys.argv[1]}: {error}")
    print("FAILED" if results["failures"] else "ok    ", results, flush=True)
    ranks_on_gpu.write(out, results)
    os._exit(1 if results["failures"] else 0)


if __name__ == "__main__":
    main()
