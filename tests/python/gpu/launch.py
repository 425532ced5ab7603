"""Runs a script on ranks that may share one GPU.

Usage: launch.py RANKS SCRIPT [ARGUMENT...]. The environment that several
ranks on one GPU need is set unless the caller has set it: NCCL must be new
enough for that (2.30), which LD_PRELOAD can see to.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "NCCL_MAX_CTAS": "8",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "TIDE_TIMEOUT_MS": "20000",
}


def command(ranks: int, script: str, *arguments: str) -> list[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*run, "--nproc-per-node", str(ranks), script, *arguments]


def run(
    ranks: int,
    script: str,
    arguments: Sequence[str] = (),
    timeout_s: float | None = None,
    extra: dict[str, str] | None = None,
) -> int:
    """The exit code; 124 when time ran out, and no rank is left behind."""
    environment = {**SHARED_GPU, **os.environ, **(extra or {})}
    process = subprocess.Popen(
        command(ranks, script, *arguments),
        env=environment,
        start_new_session=True,
    )
    note = os.environ.get("TIDE_SESSION_FILE")  # who may have to end it
    if note:
        Path(f"{note}.{process.pid}").write_text(f"{process.pid}\n")
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
