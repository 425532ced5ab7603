"""tide in a training script that uses Hugging Face Accelerate.

torchrun --nproc-per-node 2 examples/with_accelerate.py

needs `pip install accelerate`. Accelerate shards the model in `prepare`; tide
is enabled right after it.
"""

import tide.fsdp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from demo_data import Batches
from demo_model import Block, LanguageModel, ModelConfig

CONFIG = ModelConfig(dim=128, layers=4, heads=4, kv_heads=2, hidden=384)


def make_accelerator() -> Accelerator:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[Block.__name__],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    if accelerator.device.type == "cpu":
        # Accelerate shards on GPUs only. PyTorch does on the CPU, too.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
        plugin.set_mixed_precision("bf16")
    return accelerator


def main() -> None:
    accelerator = make_accelerator()
    torch.manual_seed(1)
    model = LanguageModel(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)

    tide.fsdp.enable(model)  # the one line that changes

    batches = Batches(accelerator.process_index, 4, CONFIG.sequence, seed=1)
    for step in range(20):
        inputs, targets = (t.to(accelerator.device) for t in batches.next())
        logits = model(inputs).float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4 and dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        print(tide.fsdp.report(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
