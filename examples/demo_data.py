"""Text that every machine has: the sources of Python's standard library."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

TOTAL_BYTES = 4 << 20
FILE_BYTES = 32 << 10


def read_text() -> Tensor:
    """The first TOTAL_BYTES of the library's modules in alphabetical order,
    at most FILE_BYTES of each, as one tensor of bytes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()[:FILE_BYTES]
    return torch.frombuffer(text[:TOTAL_BYTES], dtype=torch.uint8)


class Batches:
    """Random windows of the text. Rank and seed alone decide which."""

    def __init__(self, rank: int, batch: int, sequence: int, seed: int):
        self.text = read_text()
        self.batch = batch
        self.sequence = sequence
        self.random = torch.Generator().manual_seed(seed * 1000 + rank)

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and the bytes that follow them: [batch, sequence] each."""
        last = len(self.text) - self.sequence - 1
        starts = torch.randint(last, (self.batch,), generator=self.random)
        windows = torch.stack(
            [self.text[s : s + self.sequence + 1] for s in starts.tolist()]
        ).long()
        return windows[:, :-1], windows[:, 1:]
