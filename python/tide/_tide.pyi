"""Types of the C extension; its docstrings say what the calls do."""

from collections.abc import Callable, Sequence
from typing import Any

class Error(RuntimeError):
    status: str

class Comm:
    def __new__(
        cls,
        rank: int,
        ranks: int,
        allgather: Callable[[bytes], bytes | Sequence[bytes]],
        *,
        backend: str | None = None,
        local_size: int = 0,
        timeout_ms: int = 0,
        arena_bytes: int = 0,
    ) -> Comm: ...
    def info(self) -> dict[str, Any]: ...
    def group(
        self,
        params: Sequence[tuple[int, int, int, str]],
        name: str | None = None,
    ) -> Group: ...
    def slot(self, nbytes: int, /) -> Slot: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def leave(self) -> None: ...

class Group:
    shard_bytes: int
    out_elems: int
    def layout(self) -> list[dict[str, Any]]: ...
    def stats(
        self, coll: str, grad_dtype: str = "bf16", out_dtype: str = "f32"
    ) -> dict[str, Any]: ...
    def all_gather_begin(self) -> Request: ...
    def reduce_scatter(
        self,
        grad_addresses: Sequence[int],
        grad_dtype: str,
        out_address: int,
        out_dtype: str,
        scale: float,
        /,
    ) -> Request: ...

class Request:
    buffer: memoryview | None
    def start(self, addresses: Sequence[int], /) -> None: ...
    def wait(self, phase: str = "done", /) -> None: ...
    def test(self, phase: str = "done", /) -> bool: ...
    def close(self) -> None: ...

class Slot:
    address: int
    nbytes: int
    buffer: memoryview
    def occupy(self) -> None: ...
    def vacate(self) -> None: ...
    def close(self) -> None: ...

def version() -> str: ...
