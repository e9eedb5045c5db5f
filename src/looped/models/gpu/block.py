"""One application of a transformer block with our own kernels; its weights' gradients come later, from a tape.

    a = norm_1(x);  q, k, v = a Wqkv';  o = attention(q, k, v);  h1 = x + o Wo'
    c = norm_2(h1);  u = c Wfc';  g = gelu(u);  y = h1 + g Wp'

Autograd receives the gradient along x. What the weights' gradients read stays on the block's tape, so that a block
applied in many loops takes one product over the tokens of all of them. Weights and streams are bfloat16 or float32;
norms, softmax and all sums are float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from looped.models.blocks import Block, LayerNorm
from looped.models.gpu.activation import gelu, gelu_backward, parts_of
from looped.models.gpu.block_norms import Norm, norm, norm_backward, sums_like
from looped.models.gpu.causal_attention import attention, attention_backward
from looped.models.gpu.products import (
    Matrices,
    add,
    affine,
    by_model,
    flat,
    gelu_affine,
    matrices_of,
    over_tokens,
    sequences,
    stacked,
    times,
)


class Weights(NamedTuple):
    """A block's matrices in the precision of the passes, and its vectors in float32, (models, width)."""

    matrices: Matrices
    norm_1: Norm
    norm_2: Norm
    shift_1: Tensor
    """The attention's output bias."""
    shift_2: Tensor
    """The MLP's output bias."""
    heads: int


class Applications:
    """A part of a tape: what the weights' gradients read of up to `count` applications, (count, models, tokens, ...).

    The forward pass writes a, o, c and g, the backward pass the gradients and the parts of the vectors' sums.
    """

    def __init__(self, count: int, x: Tensor, seq: int, weights: Weights):
        matrices = weights.matrices
        models, tokens, width = x.shape
        hidden, inner = matrices.fc.shape[1], matrices.proj.shape[2]

        def empty(size: int) -> Tensor:
            return x.new_empty(count, models, tokens, size)

        self.a, self.o, self.c, self.g = empty(width), empty(inner), empty(width), empty(hidden)
        self.dqkv, self.dh1, self.du, self.dy = empty(3 * inner), empty(width), empty(hidden), empty(width)
        self.of_norms = sums_like(x, count, 2)
        self.of_queries = x.new_empty(count, models * tokens // seq, inner, dtype=torch.float32)
        self.of_hidden = x.new_empty(count, models, parts_of(self.g[0]), hidden, dtype=torch.float32)
        self.seq, self.num_forward, self.num_backward = seq, 0, 0

    def fits(self, x: Tensor, seq: int) -> bool:
        """Whether there is room for an application to this stream."""
        return self.num_forward < len(self.a) and self.a.shape[1:] == x.shape and self.seq == seq

    def of_matrices(self) -> dict[str, Tensor]:
        """Gradients by the names of the block's matrices, with an axis of models in front, in float32."""
        if self.num_backward != self.num_forward:
            raise RuntimeError(f"{self.num_backward} of {self.num_forward} applications of a block received gradients.")
        pairs = {"attention.qkv": (self.dqkv, self.a), "attention.proj": (self.dh1, self.o),
                 "mlp.fc": (self.du, self.c), "mlp.proj": (self.dy, self.g)}  # fmt: skip
        n = self.num_forward
        return {f"{name}.weight": over_tokens(up[:n], x[:n]) for name, (up, x) in pairs.items()}

    def of_vectors(self, proj: Tensor) -> dict[str, Tensor]:
        """Gradients of the norms and biases, likewise; `proj` is the matrix of the attention's output."""
        n, models = self.num_forward, self.a.shape[1]
        of_norms = self.of_norms[:n].sum(4).sum(0)
        names = [
            ("norm_1.weight", "norm_1.bias", "attention.proj.bias"),
            ("norm_2.weight", "norm_2.bias", "mlp.proj.bias"),
        ]
        gradients = {name: of_norms[i, j] for i in range(2) for j, name in enumerate(names[i])}
        # a key's bias moves all scores of a query alike, so its gradient is 0; a value's bias passes by attention
        of_q = by_model(self.of_queries[:n], models)
        of_v = torch.bmm(gradients["attention.proj.bias"][:, None], proj.to(of_q.dtype))[:, 0]
        gradients["attention.qkv.bias"] = torch.cat([of_q, torch.zeros_like(of_q), of_v], -1)
        gradients["mlp.fc.bias"] = by_model(self.of_hidden[:n], models)
        return gradients


class FusedBlock:
    """Applies a block by kernels: to be set as the `forward` of `low`, a block in the precision of the passes."""

    def __init__(self, block: Block, low: Block, anchor: Tensor):
        self.block, self.low = block, low
        self.anchor = anchor
        """Requires grad and is not read: autograd then comes back to applications whose input requires none."""
        self.count = 1
        """How many applications with gradient the next part of the tape has room for; one more begins a new part."""
        self.tape: list[Applications] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to (..., seq, width)."""
        if torch.is_grad_enabled():
            return BlockPass.apply(x, self.anchor, self)
        weights = self.weights()
        return _forward(_tokens(x, weights), x.shape[-2], weights)[0].view(x.shape)

    def weights(self) -> Weights:
        """The weights as they are now."""
        block = self.block
        return Weights(
            matrices_of(self.low), _scales(block.norm_1), _scales(block.norm_2), stacked(block.attention.proj.bias, 1),
            stacked(block.mlp.proj.bias, 1), block.attention.heads,
        )  # fmt: skip

    def room(self, x: Tensor, seq: int, weights: Weights) -> Applications:
        """The part of the tape for an application to x (models, tokens, width)."""
        if not self.tape or not self.tape[-1].fits(x, seq):
            self.tape.append(Applications(self.count, x, seq, weights))
        return self.tape[-1]

    def gradients(self, second: Any = None) -> dict[str, Tensor]:
        """The gradient of every weight by its name in the block, from the tape; empty where the loss reads none.

        Sums wait for memory and products for the matrix units: with a `second` stream they run side by side.
        """
        total: dict[str, Tensor] = {}
        proj = self.weights().matrices.proj
        for part in self.tape:
            if part.num_backward:
                with torch.cuda.stream(second):
                    _increase(total, part.of_vectors(proj))
                _increase(total, part.of_matrices())
        return {name: total[name].view(weight.shape) for name, weight in self.block.named_parameters() if total}


class BlockPass(torch.autograd.Function):
    """(x, anchor, block) -> y; the gradient along x, and the rest on the block's tape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, block: FusedBlock) -> Tensor:
        """Apply the block, and write on its tape."""
        weights = block.weights()
        tokens, seq = _tokens(x, weights), x.shape[-2]
        ctx.part = block.room(tokens, seq, weights)
        ctx.place, ctx.weights, ctx.shape = ctx.part.num_forward, weights, x.shape
        ctx.part.num_forward += 1
        y, ctx.saved = _forward(tokens, seq, weights, ctx.part, ctx.place)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor) -> Any:
        """Go back along the stream, and write the gradients before every product on the tape."""
        part, t, (matrices, norm_1, norm_2, _, _, heads) = ctx.part, ctx.place, ctx.weights
        x, qkv, lse, h1, u = ctx.saved
        seq = ctx.shape[-2]
        part.num_backward += 1
        dy, du, dh1, dqkv = part.dy[t], part.du[t], part.dh1[t], part.dqkv[t]
        dy.copy_(ups[0].reshape(dy.shape))
        times(dy, matrices.out, out=du)
        gelu_backward(du, u, sums=part.of_hidden[t])
        norm_backward(times(du, matrices.fc), h1, dy, norm_2, out=dh1, sums=part.of_norms[t, 1])
        do = times(dh1, matrices.proj)
        attention_backward(
            sequences(do, seq), sequences(qkv, seq), sequences(part.o[t], seq), lse, heads, dqkv=sequences(dqkv, seq),
            sums=part.of_queries[t],
        )  # fmt: skip
        dx = torch.empty_like(x)
        norm_backward(times(dqkv, matrices.qkv), x, dh1, norm_1, out=dx, sums=part.of_norms[t, 0])
        ctx.saved = ctx.part = None  # the loss, and with it this node, outlives the backward pass
        return dx.view(ctx.shape), None, None


def _forward(
    x: Tensor, seq: int, weights: Weights, part: Applications | None = None, place: int = 0
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """y (models, tokens, width), and what the backward pass reads beside the tape; u only where there is a tape."""
    matrices, norm_1, norm_2, shift_1, shift_2, heads = weights
    h1, y = torch.empty_like(x), torch.empty_like(x)
    a, c = (torch.empty_like(x), torch.empty_like(x)) if part is None else (part.a[place], part.c[place])
    norm(x, norm_1, shift_1, out=(h1, a))
    qkv = affine(a, matrices.qkv, matrices.qkv_bias)
    o, lse = attention(sequences(qkv, seq), heads, out=None if part is None else sequences(part.o[place], seq))
    add(h1, o.view(*x.shape[:2], -1), matrices.proj)
    norm(h1, norm_2, shift_2, out=(y, c))
    if part is None:
        u, g = x, gelu_affine(c, matrices.fc, matrices.fc_bias)
    else:
        u = affine(c, matrices.fc, matrices.fc_bias)
        g = gelu(u, out=part.g[place])
    add(y, g, matrices.out)
    return y, (x, qkv, lse, h1, u)


def _tokens(x: Tensor, weights: Weights) -> Tensor:
    """The stream as the kernels read it: (models, tokens, width), contiguous."""
    return flat(x, len(weights.matrices.qkv)).contiguous()


def _scales(module: nn.Module) -> Norm:
    """Scale and bias of a norm; None where there is none."""
    return (stacked(module.weight, 1), stacked(module.bias, 1)) if isinstance(module, LayerNorm) else None


def _increase(total: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
    """Add the gradients to their totals."""
    for name, slope in gradients.items():
        total[name] = total[name] + slope if name in total else slope
