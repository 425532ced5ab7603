"""The checks behind tide-perf's #wrong column: they find what is wrong."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 5000
RANKS = 3


@pytest.fixture(scope="module")
def fill(tmp_path_factory):
    """tools/perf/fill.c as a library of its own."""
    path = tmp_path_factory.mktemp("fill") / "libfill.so"
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            *["-std=gnu11", "-O1", "-fPIC", "-shared"],
            *[f"-I{ROOT / folder}" for folder in ("src", "include", "tools")],
            *[str(ROOT / "tools/perf/fill.c"), "-o", str(path)],
        ],
        check=True,
    )
    library = ctypes.CDLL(str(path))
    word = ctypes.c_uint64
    library.tdi_fill_bytes.argtypes = [ctypes.c_void_p, word, word, word]
    library.tdi_wrong_bytes.argtypes = [ctypes.c_void_p, word, word, word]
    library.tdi_wrong_bytes.restype = word
    library.tdi_fill_grad.argtypes = [
        ctypes.c_void_p,
        word,
        ctypes.c_uint32,
        word,
    ]
    library.tdi_fill_noise.argtypes = library.tdi_fill_grad.argtypes
    library.tdi_hash_bytes.argtypes = [ctypes.c_void_p, word, word]
    library.tdi_hash_bytes.restype = word
    library.tdi_wrong_sums.argtypes = [
        *[ctypes.c_void_p, word, ctypes.c_uint32],
        *[ctypes.c_float, word, word],
    ]
    library.tdi_wrong_sums.restype = word
    library.tdi_wrong_noise.argtypes = library.tdi_wrong_sums.argtypes
    library.tdi_wrong_noise.restype = word
    library.tdi_wrong_zeros.argtypes = [ctypes.c_void_p, word]
    library.tdi_wrong_zeros.restype = word
    return library


def filled(fill, seed, first, count):
    data = (ctypes.c_ubyte * count)()
    fill.tdi_fill_bytes(data, seed, first, count)
    return data


def test_bytes_are_found_right_piece_by_piece(fill):
    whole = filled(fill, 7, 0, COUNT)
    assert fill.tdi_wrong_bytes(whole, 7, COUNT, 1) == 0
    for first, count in ((0, 3), (5, 1), (3, 64), (13, 1999)):
        part = filled(fill, 7, first, count)
        assert bytes(part) == bytes(whole)[first : first + count]


def test_wrong_bytes_are_counted_by_element(fill):
    data = filled(fill, 7, 0, COUNT)
    for at in (0, 1, 1023, 1024, COUNT - 1):
        data[at] ^= 1
    assert fill.tdi_wrong_bytes(data, 7, COUNT, 1) == 5
    assert fill.tdi_wrong_bytes(data, 7, COUNT, 4) == 4
    assert fill.tdi_wrong_bytes(data, 7, COUNT, 8) == 4


def test_shifted_or_old_bytes_are_wrong(fill):
    for seed, first in ((8, 0), (7, 8), (7, 1), (7, 1024)):
        data = filled(fill, seed, first, COUNT)
        assert fill.tdi_wrong_bytes(data, 7, COUNT, 1) > COUNT * 0.9


def gradient(fill, rank, seed=7, make="tdi_fill_grad"):
    """The fill of one rank as numbers: bf16 is the upper half of fp32."""
    bits = (ctypes.c_uint16 * COUNT)()
    getattr(fill, make)(bits, seed, rank, COUNT)
    return [
        ctypes.c_float.from_buffer(ctypes.c_uint32(b << 16)).value for b in bits
    ]


def wrong_sums(fill, values, first=0):
    data = (ctypes.c_float * len(values))(*values)
    return fill.tdi_wrong_sums(data, 7, RANKS, 0.5, first, len(values))


def half_sums(fill, ranks=range(RANKS), seed=7):
    columns = zip(*(gradient(fill, r, seed) for r in ranks), strict=True)
    return [0.5 * sum(column) for column in columns]


def test_gradients_are_small_whole_numbers_of_every_kind(fill):
    assert set(gradient(fill, 0)) == set(range(-8, 8))
    assert gradient(fill, 0) != gradient(fill, 1)


def fp32_sums(columns):
    """Sums in fp32, in the order of the columns."""
    total = [0.0] * COUNT
    for column in columns:
        total = [
            ctypes.c_float(a + b).value
            for a, b in zip(total, column, strict=True)
        ]
    return total


def test_noise_tells_the_order_of_sums(fill):
    columns = [gradient(fill, rank, make="tdi_fill_noise") for rank in range(3)]
    values = [abs(value) for column in columns for value in column]
    assert 0 < min(values) < 2**-20
    assert 1 < max(values) < 64
    forth, back = fp32_sums(columns), fp32_sums(columns[::-1])
    differ = sum(a != b for a, b in zip(forth, back, strict=True))
    assert differ > COUNT * 0.05


def wrong_noise(fill, values, seed=7):
    data = (ctypes.c_float * len(values))(*values)
    return fill.tdi_wrong_noise(data, seed, RANKS, 0.5, 0, len(values))


def test_sums_of_noise_are_right_in_any_order(fill):
    columns = [gradient(fill, r, make="tdi_fill_noise") for r in range(RANKS)]
    for order in (columns, columns[::-1]):
        assert wrong_noise(fill, [0.5 * x for x in fp32_sums(order)]) == 0


def test_wrong_sums_of_noise_are_counted(fill):
    columns = [gradient(fill, r, make="tdi_fill_noise") for r in range(RANKS)]
    sums = [0.5 * x for x in fp32_sums(columns)]
    cut = [x * (1 - 2**-20) for x in sums]
    assert wrong_noise(fill, cut) > COUNT * 0.5
    assert wrong_noise(fill, [2 * x for x in sums]) > COUNT * 0.9
    assert wrong_noise(fill, sums, seed=8) > COUNT * 0.9
    lost = [0.5 * x for x in fp32_sums(columns[1:])]
    assert wrong_noise(fill, lost) > COUNT * 0.9
    sums[17] = float("nan")
    assert wrong_noise(fill, sums) == 1


def test_hash_tells_every_byte(fill):
    data = filled(fill, 7, 0, COUNT - 3)
    first = fill.tdi_hash_bytes(data, len(data), 0)
    assert fill.tdi_hash_bytes(data, len(data), 0) == first
    for at in (0, 7, 8, len(data) - 1):
        data[at] ^= 1
        assert fill.tdi_hash_bytes(data, len(data), 0) != first
        data[at] ^= 1
    assert fill.tdi_hash_bytes(data, len(data) - 1, 0) != first


def test_right_sums(fill):
    sums = half_sums(fill)
    assert wrong_sums(fill, sums) == 0
    assert wrong_sums(fill, sums[1500:1600], first=1500) == 0


def test_wrong_sums_are_counted(fill):
    sums = half_sums(fill)
    sums[0] += 0.5
    sums[1024] = float("nan")
    sums[COUNT - 1] *= 1 + 2**-20
    assert wrong_sums(fill, sums) in (2, 3)  # the last one may be 0
    assert wrong_sums(fill, half_sums(fill, seed=8)) > COUNT * 0.8
    assert wrong_sums(fill, half_sums(fill, ranks=(0, 1, 1))) > COUNT * 0.8
    assert wrong_sums(fill, half_sums(fill)[1:]) > COUNT * 0.8
    assert wrong_sums(fill, [2 * s for s in half_sums(fill)]) > COUNT * 0.8


def test_padding(fill):
    data = (ctypes.c_float * 4)(0.0, -0.0, float("nan"), 1e-30)
    assert fill.tdi_wrong_zeros(data, 4) == 2
