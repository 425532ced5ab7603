"""Every shape and dtype lands where it should, byte for byte."""

import pytest
import tide.fsdp
import torch
import torch.distributed as dist
from probes import Sum, full_grad, numbered, shard, world_mesh
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

MODES = ["in_place", "slot_reuse"]


class Bag(nn.Module):
    """Parameters of any shape and dtype."""

    def __init__(self, tensors: list[torch.Tensor], frozen=()) -> None:
        super().__init__()
        self.bag = nn.ParameterList(
            nn.Parameter(
                t, requires_grad=t.is_floating_point() and i not in frozen
            )
            for i, t in enumerate(tensors)
        )

    def forward(self):
        """Gives each parameter `numbered` plus this rank as its gradient."""
        rank = dist.get_rank()
        return sum(
            (p.float() * (numbered(*p.shape) + rank)).sum() for p in self.bag
        )


def check_unsharded(model: Bag, tensors: list[torch.Tensor]) -> None:
    model.unshard()
    for p, want in zip(model.bag, tensors, strict=True):
        want = want.to(p.dtype)
        assert torch.equal(as_bytes(p), as_bytes(want)), (p, want)
    model.reshard()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten().view(torch.uint8)


def check_gradients(model: Bag) -> None:
    model().backward()
    model.reshard()
    for p in model.bag:
        if p.requires_grad:
            mean = numbered(*p.shape) + (dist.get_world_size() - 1) / 2
            want = my_chunk(mean, p.placements[0].dim).to(p.dtype)
            want = want.view_as(p.to_local())  # FSDP2 may call [1, 0] [0, 0]
            torch.testing.assert_close(
                p.grad.to_local(), want, rtol=1e-6, atol=1e-4
            )


def my_chunk(whole: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's piece, as torch.chunk cuts it; maybe of no rows."""
    chunks = torch.chunk(whole, dist.get_world_size(), dim)
    rank = dist.get_rank()
    return chunks[rank] if rank < len(chunks) else whole.narrow(dim, 0, 0)


def run_bag(shapes, mode, bf16, **options):
    tensors = [numbered(*shape) + i for i, shape in enumerate(shapes)]
    model = shard(Bag([t.clone() for t in tensors]), bf16=bf16, **options)
    tide.fsdp.enable(model, mode)
    for _ in range(2):
        check_unsharded(model, tensors)
        check_gradients(model)
        model.zero_grad()
    group = tide.fsdp.report(model).groups[0]
    assert group.all_gather.path == group.reduce_scatter.path == "tide"
    assert group.all_gather.stock_calls == group.reduce_scatter.stock_calls == 0


# Fewer rows than ranks, uneven ones, none at all; one row; vectors (A2).
SHAPES = [
    (1, 3),
    (2, 5),
    (7, 2),
    (4096, 2),
    (1,),
    (2,),
    (7,),
    (13,),
    (0, 5),
    (3, 0),
]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, local", [(2, 0), (3, 0), (8, 4)])
def test_uneven_and_empty_shards(pools, ranks, local, mode, bf16):
    pool = pools(ranks, TIDE_LOCAL_SIZE=str(local))
    pool.run(run_bag, SHAPES, mode, bf16)


@pytest.mark.parametrize("mode", MODES)
def test_hundreds_of_tiny_parameters(pools, mode):
    pools(3).run(
        run_bag, [(i % 5 + 1, i % 3 + 1) for i in range(400)], mode, False
    )


def test_only_empty_parameters(pools):
    pools(2).run(run_bag, [(0, 4)], "slot_reuse", False)


# --- Other dimensions (A5) --------------------------------------------------


def run_other_dim(shapes, dim, mode):
    run_bag(shapes, mode, False, shard_placement_fn=lambda p: Shard(dim))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "ranks, shapes, dim",
    [
        (2, [(6, 8), (3, 2)], 1),
        (4, [(6, 8), (1, 4)], 1),
        (2, [(4, 6, 10), (2, 3, 2)], 2),
    ],
)
def test_sharded_on_another_dimension(pools, ranks, shapes, dim, mode):
    pools(ranks).run(run_other_dim, shapes, dim, mode)


def run_uneven_other_dim():
    try:
        shard(Bag([numbered(6, 7)]), shard_placement_fn=lambda p: Shard(1))
    except NotImplementedError as error:
        return str(error)
    return "nothing was raised"


def test_uneven_on_another_dimension_is_refused(pools):
    for text in pools(2).run(run_uneven_other_dim):
        assert "uneven sharding on dim 1" in text


# --- Dtypes (A12) -----------------------------------------------------------


# FSDP2 of torch 2.11 makes every parameter require a gradient.
SHARDS_INTEGERS = not torch.__version__.startswith("2.11.")


def run_mixed(mode):
    """bf16 weights that train beside a frozen fp32 router and a byte table."""
    tensors = [
        numbered(7, 3).bfloat16(),
        numbered(5, 2) / 3,
        (numbered(9, 2) + 130).to(torch.uint8),
        torch.tensor([[True, False], [False, True], [True, True]]),
        numbered(3, 5).to(torch.int64) << 40,
        numbered(3, 3).bfloat16(),
        (numbered(3, 4) / 4).to(torch.float8_e4m3fn),
    ]
    frozen = [tensors[1], tensors[6]]
    if not SHARDS_INTEGERS:
        tensors = [t for t in tensors if t.is_floating_point()]
    frozen = [i for i, t in enumerate(tensors) if any(t is f for f in frozen)]
    model = shard(Bag([t.clone() for t in tensors], frozen=frozen))
    tide.fsdp.enable(model, mode)
    check_unsharded(model, tensors)
    check_gradients(model)
    group = tide.fsdp.report(model).groups[0]
    assert group.all_gather.calls > 0 and group.reduce_scatter.calls > 0
    names = [p.dtype for p in group.params]
    assert names == [str(t.dtype).removeprefix("torch.") for t in tensors]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_mixed_dtypes(pools, ranks, mode):
    pools(ranks).run(run_mixed, mode)


def run_late_dtype(mode):
    """.to(dtype) and load_state_dict between enable and the first step."""
    tensors = [numbered(7, 3), numbered(5)]
    model = shard(Bag([torch.zeros(t.shape) for t in tensors]))
    tide.fsdp.enable(model, mode)
    model.to(torch.bfloat16)
    whole = [t.bfloat16() for t in tensors]
    state = model.state_dict()
    for name, t in zip(list(state), whole, strict=True):
        with torch.no_grad():
            state[name] = local_shard(state[name], t)
    model.load_state_dict(state)
    kept = [id(p) for p in model.parameters()]
    check_unsharded(model, whole)
    check_gradients(model)
    model.reshard()
    assert [id(p) for p in model.parameters()] == kept
    assert tide.fsdp.report(model).groups[0].all_gather.calls > 0


def local_shard(like, whole: torch.Tensor):
    part = like.clone()
    part.to_local().copy_(my_chunk(whole, 0))
    return part


@pytest.mark.parametrize("mode", MODES)
def test_dtype_and_values_change_before_the_first_step(pools, mode):
    pools(2).run(run_late_dtype, mode)


# --- Hooks of tensor subclasses (A3) ----------------------------------------


class Hooked(torch.Tensor):
    """A shard with all-gather hooks; one rank may return a short one."""

    short_rank = -1

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=data.dtype, device=data.device
        )

    def __init__(self, data) -> None:
        self.data_inside = data

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(t):
            return t.data_inside if isinstance(t, Hooked) else t

        def wrap(t):
            return Hooked(t) if isinstance(t, torch.Tensor) else t

        args, kwargs = torch.utils._pytree.tree_map(
            unwrap, (args, kwargs or {})
        )
        return torch.utils._pytree.tree_map(wrap, func(*args, **kwargs))

    def fsdp_pre_all_gather(self, mesh):
        data = self.data_inside.reshape(-1)
        if dist.get_rank() == Hooked.short_rank:
            data = data[:-1]
        return (data,), None

    def fsdp_post_all_gather(self, outputs, metadata, dtype, *, out=None):
        if out is not None:
            return None
        return outputs[0].view(-1, 2)[:10], ()


class HookedSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Hooked(numbered(10, 2)))

    def forward(self, x):
        return (self.weight * x).sum()


def run_hooked(short_rank, mode):
    Hooked.short_rank = short_rank
    model = shard(HookedSum())
    tide.fsdp.enable(model, mode)
    try:
        loss = model(torch.ones(10, 2))
    except tide.Error as error:
        return error.status, str(error)
    report = tide.fsdp.report(model).groups[0].all_gather
    return report.path, report.reason, float(loss.detach())


def test_hooks_go_stock(pools):
    want = (
        "stock",
        "weight has an fsdp_pre_all_gather",
        float(numbered(10, 2).sum()),
    )
    assert pools(5).run(run_hooked, -1, "slot_reuse") == [want] * 5


def test_hook_of_one_rank_returns_too_little(pools):
    """Every rank raises at once, where stock would leave four waiting."""
    for status, text in pools(5).run(run_hooked, 4, "in_place", timeout=20):
        assert status == "TIDE_ERR_MISMATCH"
        assert "fsdp_pre_all_gather differs" in text and "rank 4" in text


# --- Other meshes -----------------------------------------------------------


def run_two_models(mode):
    """Groups of other ranks beside groups of all: each has its own comm."""
    pair = world_mesh(2, 2)["shard"]
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    fully_shard(model[0], mesh=pair)
    fully_shard(model[1], mesh=world_mesh())
    tide.fsdp.enable(model, mode)
    for _ in range(2):
        out = model(torch.ones(1, 4))
        out.sum().backward()
    assert torch.equal(out, torch.full((1, 3), 8.0))
    assert len(tide.fsdp.report(model).comms) == 2
    assert torch.equal(full_grad(model[0].bias), torch.full((6,), 3.0))
    assert torch.equal(full_grad(model[1].weight), torch.full((3, 6), 5.0))


@pytest.mark.parametrize("mode", MODES)
def test_meshes_of_different_ranks(pools, mode):
    pools(4).run(run_two_models, mode)


def run_grouped_modules(mode):
    model = nn.Sequential(Sum(3, 2, value=1.0), Sum(5, 3, value=2.0))
    fully_shard([model[0], model[1]], mesh=world_mesh())
    fully_shard(model, mesh=world_mesh())
    model.forward = lambda a, b: model[0](a) + model[1](b)
    tide.fsdp.enable(model, mode)
    for _ in range(2):
        loss = model(numbered(3, 2), numbered(5, 3))
        loss.backward()
    assert loss.item() == float(numbered(3, 2).sum() + 2 * numbered(5, 3).sum())
    assert torch.equal(full_grad(model[0].weight), 2 * numbered(3, 2))
    assert torch.equal(full_grad(model[1].weight), 2 * numbered(5, 3))
    assert [len(g.params) for g in tide.fsdp.report(model).groups] == [2]


@pytest.mark.parametrize("mode", MODES)
def test_one_group_of_several_modules(pools, mode):
    pools(2).run(run_grouped_modules, mode)
