"""How large a GPU's arena is made, and which mode it has room for."""

from types import SimpleNamespace

import pytest
import torch
from tide._fsdp import arena
from tide._fsdp.arena import MIB, Demand

BLOCKS = [(100 * MIB, False)] * 8
ROOT = (300 * MIB, True)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("TIDE_ARENA_MIB", "TIDE_LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_in_place_holds_two_groups_and_half_as_much():
    assert Demand([*BLOCKS, ROOT], 4, MIB).in_place == 600 * MIB
    assert Demand([(MIB, False)], 4, MIB).in_place == 65 * MIB


def test_slots_hold_three_groups_and_what_stays():
    assert Demand([*BLOCKS, ROOT], 4, MIB).slots == 600 * MIB
    assert Demand([ROOT], 4, MIB).slots == 300 * MIB
    assert Demand([], 4, 0).slots == 0


@pytest.mark.parametrize("largest, room", [(20, 20), (64, 64), (100, 64)])
def test_the_reserve_holds_a_small_group(largest, room):
    for parameter in (10, 500):
        demand = Demand([(largest * MIB, False)], 4, parameter * MIB)
        assert demand.reserve == room * MIB + 64 * arena.KIB


@pytest.mark.parametrize(
    "largest, parameter, room",
    [(100, 10, 64), (100, 80, 80), (20, 10, 20), (20, 40, 40)],
)
def test_on_several_machines_the_reserve_holds_any_gradient(
    largest, parameter, room
):
    demand = Demand([(largest * MIB, False)], 4, parameter * MIB, False)
    assert demand.reserve == room * MIB + 64 * arena.KIB


def test_the_widest_gradient_may_be_accumulated():
    def param(*size):
        policy = SimpleNamespace(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
        sharded = SimpleNamespace(dtype=torch.bfloat16)
        return SimpleNamespace(
            mp_policy=policy, sharded_param=sharded, _orig_size=torch.Size(size)
        )

    group = SimpleNamespace(fsdp_params=[param(3), param(5, 7)])
    assert arena.widest_gradient(group) == 5 * 7 * 4
    assert arena.widest_gradient(SimpleNamespace(fsdp_params=[])) == 0


def test_llama_blocks_keep_no_room_for_the_embedding():
    block, root = 416 * MIB, 2 * 250 * MIB
    demand = Demand([*[(block, False)] * 8, (root, True)], 4, 500 * MIB)
    assert demand.reserve == 64 * MIB + 64 * arena.KIB
    assert demand.in_place == block + root + (block + root) // 2


def test_total_holds_all_of_it():
    demand = Demand([*BLOCKS, ROOT], 4, 2 * MIB)
    for mode in ("in_place", "slot_reuse", "auto"):
        total = demand.total(mode)
        assert total >= 600 * MIB + demand.reserve + demand.scratch
        assert total % (2 * MIB) == 0


def test_scratch_depends_on_nodes(monkeypatch):
    demand = Demand(BLOCKS, 4, MIB)
    one_node = demand.scratch
    assert one_node == 2 * 25 * MIB + arena.SCRATCH
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert demand.scratch == 2 * 50 * MIB + arena.SCRATCH_OF_NODES
    monkeypatch.setenv("TIDE_LOCAL_SIZE", "4")
    assert demand.scratch == one_node


def test_the_user_decides(monkeypatch):
    monkeypatch.setenv("TIDE_ARENA_MIB", "512")
    demand = Demand(BLOCKS, 4, MIB)
    assert demand.total("in_place") == demand.total("auto") == 512 * MIB


@pytest.mark.parametrize("size, mode", [(100, "in_place"), (250, "slot_reuse")])
def test_auto_takes_in_place_where_it_fits_twice(size, mode):
    demand = Demand([(size * MIB, False)], 4, MIB)
    room = 400 * MIB + demand.scratch + demand.reserve
    chosen, reason = demand.choose("auto", size * MIB, room)
    assert chosen == mode and f"{2 * size} of 400 MiB" in reason
    for asked in ("in_place", "slot_reuse"):
        assert demand.choose(asked, size * MIB, 0) == (asked, "as asked")
