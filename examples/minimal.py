"""tide in an FSDP2 script of your own. On the CPU or on GPUs, from the root of
the tree:

PYTHONPATH=build/python build/venv/bin/torchrun --nproc-per-node 4 \\
    examples/minimal.py
"""

import os

import tide.fsdp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def start() -> str:
    """Joins the other ranks; the type of the device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return "cpu"
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group("nccl")
    return "cuda"


def main() -> None:
    device = start()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    model.to(device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    tide.fsdp.enable(model)  # the one line that changes

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(32, 64, device=device)
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
