"""tide in an FSDP2 script of your own. On CPU, from the root of the tree:

PYTHONPATH=build/python build/venv/bin/torchrun --nproc-per-node 4 \\
    examples/minimal.py
"""

import tide.fsdp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    tide.fsdp.enable(model)  # the one line that changes

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(32, 64)
    for _ in range(10):
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
        print(tide.fsdp.report(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
