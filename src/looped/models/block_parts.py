"""Other parts for a block than GPT-2's: RMSNorm, SwiGLU, rotary positions, grouped and linear attention."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looped.functional.attention import feature_attention, rotate
from looped.models.blocks import MLP, Attention, Block, Linear


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """What a block is made of; the defaults are GPT-2's."""

    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm: without mean and shift."""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """4 width hidden units with GELU, or 8/3 width gated ones: as many weights."""
    attention: Literal["softmax", "linear"] = "softmax"
    """Scores by softmax, or by positive features, whose cost need not grow with the square of the prompt."""
    rotary: bool = False
    """Whether positions turn queries and keys; then tokens get a vector for x and one for y, not one a position."""
    kv_heads: int | None = None
    """Heads of keys and values, each shared by as many heads of queries; None: as many as those."""

    def check(self, width: int, heads: int) -> None:
        """Refuse parts that do not fit the width."""
        if self.kv_heads is not None and (self.kv_heads < 1 or heads % self.kv_heads):
            raise ValueError(f"`kv_heads` must divide heads={heads}; got {self.kv_heads}.")
        if self.rotary and width // heads % 2:
            raise ValueError(f"`rotary` turns pairs of numbers: heads must have an even width; got {width // heads}.")

    def block(self, width: int, heads: int) -> Block:
        """A block of these parts."""
        block = Block(width, heads=heads)
        if self.norm == "rms":
            block.norm_1, block.norm_2 = RMSNorm(width), RMSNorm(width)
        if self.attention == "linear" or self.rotary or self.kv_heads is not None:
            kind = LinearAttention if self.attention == "linear" else GroupedAttention
            block.attention = kind(width, heads=heads, kv_heads=self.kv_heads or heads, rotary=self.rotary)
        if self.mlp == "swiglu":
            block.mlp = SwiGLU(width)
        return block


class RMSNorm(nn.RMSNorm):
    """scale x / sqrt(mean x^2 + eps) over the last axis, with a scale of shape (width) or (models, width)."""

    def __init__(self, width: int):
        super().__init__(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        return per_model(self.weight, x) * F.rms_norm(x, self.normalized_shape, eps=self.eps)


class SwiGLU(MLP):
    """W_2 (silu(W_g x + b_g) * (W_1 x + b_1)) + b_2 for each token. Ref: Shazeer 2020."""

    def __init__(self, width: int):
        super().__init__(width, hidden=8 * width // 3, activation=F.silu)
        self.fc = Linear(width, 2 * self.fc.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        gate, values = self.fc(x).chunk(2, -1)
        return self.proj(self.activation(gate) * values)


class GroupedAttention(Attention):
    """Attention whose heads share keys and values in groups, with rotary positions or without.

    As in `Attention`, keys have no bias. Ref: Ainslie et al. 2023.
    """

    def __init__(self, width: int, *, heads: int, kv_heads: int, rotary: bool):
        super().__init__(width, heads=heads)
        self.kv_heads, self.rotary = kv_heads, rotary
        del self.qkv
        self.q = Linear(width, heads * self.head_width)
        self.kv = Linear(width, 2 * kv_heads * self.head_width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (rows, heads, seq, head_width)."""
        seq = x.shape[-2]
        k_bias, v_bias = self.kv.bias.chunk(2, -1)
        kv = self.kv(x, torch.cat([torch.zeros_like(k_bias), v_bias], -1))
        q = self.q(x).view(-1, seq, self.heads, self.head_width).transpose(1, 2)
        k, v = kv.view(-1, seq, 2, self.kv_heads, self.head_width).permute(2, 0, 3, 1, 4)
        q, k = (rotate(q), rotate(k)) if self.rotary else (q, k)
        group = self.heads // self.kv_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


class LinearAttention(GroupedAttention):
    """Attention by positive features in place of softmax, otherwise the same."""

    mix = staticmethod(feature_attention)


def per_model(weight: Tensor, x: Tensor) -> Tensor:
    """A vector's weights (width) or (models, width), to be multiplied with (models, ..., width)."""
    return weight if weight.ndim == 1 else weight.view(len(weight), *[1] * (x.ndim - 2), -1)
