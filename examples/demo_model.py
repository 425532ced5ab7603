"""A small Llama-style language model over bytes, about 25M parameters."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    vocabulary: int = 256
    dim: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 1536
    sequence: int = 128
    qk_norm: bool = False  # as in Qwen3: queries and keys are normalised

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def rotary_table(config: ModelConfig) -> Tensor:
    """Cosine and sine of every position: [2, sequence, head_dim / 2]."""
    half = config.head_dim // 2
    frequencies = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(config.sequence), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding of x: [batch, heads, sequence, head_dim]."""
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with fewer key/value heads than query heads."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_dim
        kv_dim = config.kv_heads * config.head_dim
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, kv_dim, bias=False)
        self.value = nn.Linear(config.dim, kv_dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        norm = nn.RMSNorm if config.qk_norm else nn.Identity
        self.query_norm = norm(config.head_dim)
        self.key_norm = norm(config.head_dim)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        query = self.query_norm(self.split_heads(self.query(x)))
        key = self.key_norm(self.split_heads(self.key(x)))
        query, key = rotate(query, table), rotate(key, table)
        value = self.split_heads(self.value(x))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """Bytes [batch, sequence] to logits [batch, sequence, vocabulary]."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)
        self.register_buffer("table", rotary_table(config), persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.table)
        return self.head(self.norm(x))
