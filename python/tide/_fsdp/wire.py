"""Parameters as tide sees them: (outer, rows, inner, dtype name)."""

import math

import torch

# A reduce-scatter computes with these; an all-gather only moves bytes.
REDUCIBLE = {torch.bfloat16: "bf16", torch.float32: "f32"}
_NAMED = {**REDUCIBLE, torch.float16: "f16", torch.float64: "f64"}
_BY_SIZE = {1: "u8", 2: "i16", 4: "i32", 8: "i64"}

Param = tuple[int, int, int, str]


def dtype_name(dtype: torch.dtype) -> str | None:
    """tide's name of a dtype, or of an integer of its size; None if neither."""
    return _NAMED.get(dtype) or _BY_SIZE.get(dtype.itemsize)


def sharded_param(size: torch.Size, dim: int, dtype: torch.dtype) -> Param:
    """A parameter of this size, sharded on dimension `dim`."""
    outer, inner = math.prod(size[:dim]), math.prod(size[dim + 1 :])
    return (outer, size[dim], inner, dtype_name(dtype))


def gradient(
    size: torch.Size, dim: int, ranks: int, dtype: torch.dtype
) -> Param:
    """The gradient of such a parameter as FSDP2 hands it over: pieces of
    dimension `dim` > 0 have been put one after the other, in rank order."""
    if dim == 0:
        return sharded_param(size, 0, dtype)
    return (1, ranks, math.prod(size) // ranks, dtype_name(dtype))


def shard_elems(param: Param, ranks: int) -> int:
    """Elements of a rank's shard of a gradient, padding included."""
    _outer, rows, inner, _dtype = param
    return -(-rows // ranks) * inner
