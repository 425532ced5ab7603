"""Rank processes for tests: a pool that runs a function on every rank.

A pool lives for the whole test run, so that a test costs no process start.
Every run has a hard deadline; a pool that fails one is killed and made anew.
"""

import importlib
import multiprocessing
import os
import tempfile
import time
import traceback

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.tensor"]
)


class RankDied(Exception):
    pass


class Pool:
    """`ranks` processes in one gloo group, with extra environment."""

    def __init__(self, ranks: int, **env: str) -> None:
        self.ranks = ranks
        self.folder = tempfile.TemporaryDirectory()
        store = os.path.join(self.folder.name, "store")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            mine, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_serve,
                args=(theirs, rank, ranks, store, env),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, function, *args, timeout: float = 60, allow_dead=()):
        """function(*args) on every rank; the results in rank order. Raises
        AssertionError with the traceback of the first rank that failed. A
        rank of `allow_dead` may die, and its result is then None."""
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__qualname__, args))
        deadline = time.monotonic() + timeout
        results, failures = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                good, value = self._receive(pipe, deadline)
            except RankDied as error:
                good, value = (
                    rank in allow_dead,
                    None if rank in allow_dead else error,
                )
            results.append(value)
            if not good:
                failures.append(f"rank {rank}: {value}")
        if failures or any(not p.is_alive() for p in self.processes):
            self.kill()
        assert not failures, "\n".join(failures)
        return results

    @staticmethod
    def _receive(pipe, deadline: float):
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            return False, "no answer before the test's deadline"
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RankDied("the process died") from None

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.folder.cleanup()

    def close(self) -> list[int]:
        """Lets the ranks end by themselves; their exit codes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes


def _serve(pipe, rank: int, ranks: int, store: str, env: dict) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TIDE_TIMEOUT_MS="20000")
    os.environ.update(env)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Uninitialised memory reads as NaN: a value nobody wrote is noticed.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks
    )
    while (task := pipe.recv()) is not None:
        module, name, args = task
        try:
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            pipe.send((True, function(*args)))
        except BaseException:  # whatever it is, the parent shows it
            pipe.send((False, traceback.format_exc()))
