"""The parts of a transformer block. Every part also runs with a leading axis of models in its weights.

A module whose weight is (models, out, in) reads (models, ..., in): `stack` makes many models of one shape into one,
which equals each of them alone up to rounding.
"""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return F.gelu(x, approximate="tanh")


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return F.relu(x)


def unchanged(x: Tensor) -> Tensor:
    """x itself."""
    return x


class Linear(nn.Linear):
    """y = W x + b, with W of shape (out, in) or (models, out, in)."""

    def forward(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply to the last axis; `bias`, where given, replaces the module's."""
        bias = self.bias if bias is None else bias
        if self.weight.ndim == 2:
            return F.linear(input, self.weight, bias)
        flat = input.flatten(1, -2)
        weight = self.weight.mT
        out = torch.bmm(flat, weight) if bias is None else torch.baddbmm(bias[:, None], flat, weight)
        return out.unflatten(1, input.shape[1:-1])


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the last axis, with scale and shift of shape (width) or (models, width)."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply to the last axis."""
        if self.weight.ndim == 1:
            return super().forward(input)
        shape = (self.weight.shape[0], *[1] * (input.ndim - 2), self.weight.shape[1])
        normal = F.layer_norm(input, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias.view(shape), self.weight.view(shape), normal)


class Attention(nn.Module):
    """Multi-head softmax attention of free head width: softmax(q k' / sqrt(head_width)) v, then a projection.

    A key's bias moves all scores of a query alike, and softmax does not see it, so it is left out. Its gradient would
    be rounding error, which Adam turns into whole steps. Our GPU kernels add the bias and set its gradient to 0.
    """

    mix: Callable[..., Tensor] = staticmethod(F.scaled_dot_product_attention)
    """(q, k, v, is_causal) -> mixed values; `models/query_stream.py` replaces it while other masks are needed."""

    def __init__(self, width: int, *, heads: int, head_width: int | None = None, causal: bool = True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.head_width = width // heads if head_width is None else head_width
        inner = self.heads * self.head_width
        self.qkv = Linear(width, 3 * inner)
        self.proj = Linear(inner, width)

    def forward(self, x: Tensor, num_keys: int | None = None) -> Tensor:
        """Mix the tokens of (..., seq, width); with `causal`, a token reads itself and those before it.

        With `num_keys`, every token reads that many tokens, the first ones.
        """
        *lead, seq, _ = x.shape
        q, k, v = self.project(x)
        if num_keys is not None:
            k, v = k[..., :num_keys, :], v[..., :num_keys, :]
        mixed = self.mix(q, k, v, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).reshape(*lead, seq, -1))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (rows, heads, seq, head_width)."""
        q_bias, _, v_bias = self.qkv.bias.chunk(3, -1)
        qkv = self.qkv(x, torch.cat([q_bias, torch.zeros_like(q_bias), v_bias], -1))
        q, k, v = qkv.view(-1, x.shape[-2], 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        return q, k, v


class MLP(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2 for each token."""

    def __init__(self, width: int, *, hidden: int | None = None, activation: Activation = gelu):
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        self.fc = Linear(width, hidden)
        self.proj = Linear(hidden, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        return self.proj(self.activation(self.fc(x)))


class Block(nn.Module):
    """One transformer layer, pre-norm: x <- x + attention(norm(x)); x <- x + mlp(norm(x)).

    With `norm=False` there is no LayerNorm, as the exact constructions need it.
    """

    drop: Callable[[Tensor], Tensor] = staticmethod(unchanged)
    """What becomes of the two sums' second terms; `training/dropout.py` replaces it."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int | None = None,
        hidden: int | None = None,
        activation: Activation = gelu,
        norm: bool = True,
        causal: bool = True,
    ):
        super().__init__()
        self.norm_1: nn.Module = LayerNorm(width) if norm else nn.Identity()
        self.attention = Attention(width, heads=heads, head_width=head_width, causal=causal)
        self.norm_2: nn.Module = LayerNorm(width) if norm else nn.Identity()
        self.mlp = MLP(width, hidden=hidden, activation=activation)

    def forward(self, x: Tensor, num_keys: int | None = None) -> Tensor:
        """Apply to (..., seq, width); with `num_keys`, every token reads the first `num_keys` alone."""
        x = x + self.drop(self.attention(self.norm_1(x), num_keys))
        return x + self.drop(self.mlp(self.norm_2(x)))

    def initialize(self, *, num_layers: int) -> None:
        """GPT-2's initial weights: N(0, 0.02), residual projections divided by sqrt(2 num_layers), biases zero."""
        for name, layer in self.named_modules():
            if isinstance(layer, Linear):
                residual = name.endswith("proj")
                nn.init.normal_(layer.weight, std=0.02 / (2 * num_layers) ** 0.5 if residual else 0.02)
                nn.init.zeros_(layer.bias)


M = TypeVar("M", bound=nn.Module)


def stack(models: Sequence[M]) -> M:
    """Make models of one shape into one model: every parameter and buffer gets a leading axis of models."""
    stacked = copy.deepcopy(models[0])
    stacked_tensors: dict[Tensor, Tensor] = {}  # a weight that two layers share stays shared
    for kind in ("named_parameters", "named_buffers"):
        parts = [dict(getattr(model, kind)(remove_duplicate=False)) for model in models]
        for name, first in parts[0].items():
            if first not in stacked_tensors:
                values = torch.stack([tensors[name].detach() for tensors in parts])
                is_weight = isinstance(first, nn.Parameter)
                stacked_tensors[first] = (
                    nn.Parameter(values, requires_grad=first.requires_grad) if is_weight else values
                )
            owner, _, leaf = name.rpartition(".")
            setattr(stacked.get_submodule(owner), leaf, stacked_tensors[first])
    return stacked
