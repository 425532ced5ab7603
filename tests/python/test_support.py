"""The checks of PyTorch, and the pieces that need no ranks."""

import pytest
import torch
from tide._fsdp import patch, support, wire
from tide.fsdp import _choose_mode


def test_this_torch_is_supported():
    assert support.environment_problem(patch.originals()) is None
    assert patch.foreign_patch() is None


@pytest.mark.parametrize(
    "version, good",
    [
        ("2.10.1", False),
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.15.0a0+gitabc", True),
        ("2.16.0", False),
        ("3.0.0", False),
        ("unknown", False),
    ],
)
def test_versions(version, good):
    problem = support._version_problem(version)
    assert (problem is None) == good
    assert good or version in problem


def test_signatures():
    whole = patch.originals()
    short = {k: v for k, v in whole.items() if k != "foreach_reduce"}
    assert support.environment_problem(short) == "torch has no foreach_reduce"

    def other(unsharded_grads, world_size):
        pass

    problem = support.environment_problem(
        {**whole, "foreach_reduce_scatter_copy_in": other}
    )
    assert "other parameters: unsharded_grads, world_size" in problem


def test_lookups(monkeypatch):
    monkeypatch.setattr(support, "LOOKUPS", ((other_caller, "foreach_reduce"),))
    problem = support.environment_problem(patch.originals())
    assert problem == "torch's other_caller does not call foreach_reduce"


def other_caller():
    return print


def test_classes(monkeypatch):
    monkeypatch.setattr(support, "PARAM_METHODS", ("no_such_method",))
    problem = support.environment_problem(patch.originals())
    assert problem == "torch's FSDPParam lacks no_such_method"


@pytest.mark.parametrize(
    "backend, expandable, variable, problem",
    [
        ("native", False, "", None),
        ("native", False, "0", None),
        ("cudaMallocAsync", False, "", "torch's CUDA allocator is cudaMalloc"),
        ("native", False, "1", "PYTORCH_NO_CUDA_MEMORY_CACHING is set"),
        ("native", True, "", "torch's MemPool does not work with expandable"),
    ],
)
def test_allocators(monkeypatch, backend, expandable, variable, problem):
    settings = {"allocator_settings": {"expandable_segments": expandable}}
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: settings)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", variable)
    found = support.allocator_problem("cuda")
    assert found == problem or found.startswith(problem)
    assert support.allocator_problem("cpu") is None


@pytest.mark.parametrize(
    "dtype, name",
    [
        (torch.bfloat16, "bf16"),
        (torch.float16, "f16"),
        (torch.float32, "f32"),
        (torch.float64, "f64"),
        (torch.float8_e4m3fn, "u8"),
        (torch.bool, "u8"),
        (torch.int16, "i16"),
        (torch.int32, "i32"),
        (torch.complex64, "i64"),
        (torch.complex128, None),
    ],
)
def test_dtype_names(dtype, name):
    assert wire.dtype_name(dtype) == name


def test_params():
    size = torch.Size((4, 6, 10))
    assert wire.sharded_param(size, 0, torch.float32) == (1, 4, 60, "f32")
    assert wire.sharded_param(size, 1, torch.bfloat16) == (4, 6, 10, "bf16")
    assert wire.sharded_param(torch.Size((7,)), 0, torch.int8) == (
        1,
        7,
        1,
        "u8",
    )
    assert wire.gradient(size, 0, 2, torch.float32) == (1, 4, 60, "f32")
    assert wire.gradient(size, 2, 2, torch.float32) == (1, 2, 120, "f32")


@pytest.mark.parametrize(
    "mode, readable, chosen",
    [
        ("auto", True, "in_place"),
        ("auto", False, "slot_reuse"),
        ("slot_reuse", True, "slot_reuse"),
        ("in_place", True, "in_place"),
    ],
)
def test_choice_of_mode(mode, readable, chosen):
    assert _choose_mode(mode, readable)[0] == chosen


def test_in_place_without_readable_memory_warns():
    with pytest.warns(UserWarning, match="gradients are copied"):
        assert _choose_mode("in_place", False)[0] == "in_place"


def test_install_is_undone():
    before = patch.originals()
    state = type("State", (), {})()
    patch.install(state)
    assert patch.originals() == before and patch.foreign_patch() is None
    patch.remove(state)
    for name, module in patch.TARGETS.items():
        assert getattr(module, name) is before[name]
