"""tide with a model of torchtitan's, sharded by torchtitan.

torchrun --nproc-per-node 2 examples/with_torchtitan.py

needs `pip install torchtitan`. In a script around torchtitan's Trainer the
line is `tide.fsdp.enable(part)` for each of `trainer.model_parts`, before
`trainer.train()`.
"""

import os

import tide.fsdp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from demo_data import Batches
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry

SEQUENCE = 128


def start() -> str:
    """Joins the other ranks; the type of the device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return "cpu"
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group("nccl")
    return "cuda"


def make_model(device: str) -> nn.Module:
    torch.manual_seed(1)
    config = model_registry("debugmodel").model
    for layer in config.layers:  # without the compiler that flex needs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    model = config.build()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        pp_enabled=False,
    )
    return model.to(device)


def main() -> None:
    device = start()
    model = make_model(device)
    model.init_states(buffer_device=torch.device(device))

    tide.fsdp.enable(model)  # the one line that changes

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Batches(dist.get_rank(), 4, SEQUENCE, seed=1)
    for step in range(20):
        inputs, targets = (t.to(device) for t in batches.next())
        logits = model(inputs).float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4 and dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        print(tide.fsdp.report(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
