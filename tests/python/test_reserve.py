"""How gradients that miss the arena are cut up, and what their parts hold."""

import pytest
import standin
import torch
from tide._fsdp.reserve import Part, Reserve


def flat(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def test_parts_depend_on_sizes_alone():
    reserve = Reserve(0, 1024)
    sizes = [(100, 256, 257), (1024,), (1, 1024, 1), (0, 0), (512, 512, 512)]
    want = [
        [slice(0, 3)],
        [slice(0, 1)],
        [slice(0, 1), slice(1, 2), slice(2, 3)],
        [slice(0, 2)],
        [slice(0, 2), slice(2, 3)],
    ]
    for counts, slices in zip(sizes, want, strict=True):
        parts = reserve.parts([flat(n) for n in counts], list(counts), 1)
        assert list(parts) == [Part(s) for s in slices]


def test_a_gradient_that_is_too_wide_is_cut():
    """Into elements of each shard, a multiple of the alignment of them."""
    reserve = Reserve(0, 1024)
    grads = [flat(100), flat(4000), flat(0), flat(100)]
    parts = list(reserve.parts(grads, [34, 1334, 0, 34], 3))
    cut = slice(1, 2)
    assert parts == [
        Part(slice(0, 1)),
        *(Part(cut, slice(at, at + 256)) for at in range(0, 1280, 256)),
        Part(cut, slice(1280, 1334)),
        Part(slice(2, 4)),
    ]
    tight = list(Reserve(0, 100).parts([flat(301)], [101], 3))
    assert [part.elems.stop for part in tight] == [33, 66, 99, 101]


@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_have_what_whole_gradients_have(rows, ranks):
    """Padding is zero, whatever the memory had before."""
    inner, shard = 5, -(-rows // ranks) * 5
    grad = torch.arange(1.0, rows * inner + 1).view(rows, inner)
    padded = torch.zeros(ranks * shard)
    padded[: grad.numel()] = grad.flatten()
    found = torch.full((ranks, shard), torch.nan)
    device, memory = standin.StandIn(), torch.full((64,), torch.nan)
    reserve = Reserve(memory.data_ptr(), 4 * ranks * 2)
    total = 0
    for part in reserve.parts([torch.zeros(99)], [shard], ranks):
        addresses, spans, copied = reserve.bring_part(
            device, grad, part.elems, shard, ranks, device.current()
        )
        count = part.elems.stop - part.elems.start
        (at,) = addresses
        assert spans == device.entered == [(at, at + 4 * ranks * count)]
        rows_of_part = memory[: ranks * count].view(ranks, count)
        found[:, part.elems] = rows_of_part
        total += copied
    assert torch.equal(found.flatten(), padded)
    assert total == grad.nbytes and memory[2 * ranks :].isnan().all()
