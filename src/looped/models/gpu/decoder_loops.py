"""The loops of a one-block decoder with our own kernels and a backward pass written by hand.

    h0 = state + P;  a = norm_1(h0);  q, k, v = a Wqkv';  o = attention(q, k, v);  h1 = h0 + o Wo'
    c = norm_2(h1);  u = c Wfc';  g = gelu(u);  h2 = h1 + g Wp';  state = norm(h2)

A weight's gradient is one product over the tokens of all loops, where autograd would take one per loop. Weights and
streams are bfloat16 or float32; norms, softmax and all sums are float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from looped.models.blocks import Block
from looped.models.decoder import LoopedDecoder
from looped.models.gpu import norms
from looped.models.gpu.activation import gelu, gelu_backward, parts_of
from looped.models.gpu.causal_attention import attention, attention_backward
from looped.models.gpu.norms import SLOTS, Vectors
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

BLOCK = "blocks.0."
NAMES = (
    *(f"{BLOCK}{name}.{part}" for name in ("norm_1", "attention.qkv", "attention.proj", "norm_2", "mlp.fc", "mlp.proj")
      for part in ("weight", "bias")),
    "norm.weight", "norm.bias", "read_out.weight", "read_out.bias",
)  # fmt: skip
"""The weights that the loops read, in the order of `Loops`'s gradients."""


class SavedActivations(NamedTuple):
    """What the backward pass reads of every loop: (loops, models, rows, ...)."""

    h0: Tensor
    a: Tensor
    qkv: Tensor
    o: Tensor
    lse: Tensor
    h1: Tensor
    c: Tensor
    u: Tensor
    g: Tensor
    h2: Tensor


def weights_of(model: LoopedDecoder, low: LoopedDecoder) -> tuple[Matrices, Vectors]:
    """Matrices from the copy in low precision, vectors from the model; all with an axis of models in front."""
    block, copy = cast(Block, model.blocks[0]), cast(Block, low.blocks[0])

    def pair(norm: Any) -> tuple[Tensor, Tensor]:
        return stacked(norm.weight, 1), stacked(norm.bias, 1)

    shift = stacked(block.attention.proj.bias, 1)
    vectors = Vectors(
        norm_1=pair(block.norm_1),
        norm_2=pair(block.norm_2),
        norm=pair(model.norm),
        shift_1=shift,
        shift_2=shift + stacked(block.mlp.proj.bias, 1),
        read=stacked(model.read_out.weight, 2).flatten(1),
        read_bias=stacked(model.read_out.bias, 1).flatten(),
    )
    return matrices_of(copy), vectors


@torch.no_grad()
def one_loop(
    state: Tensor, prompt: Tensor, matrices: Matrices, vectors: Vectors, *, heads: int, answers: Tensor | None = None
) -> Tensor:
    """The next state, without gradient, written over the old one; the answers too, where a tensor is given for them."""
    models, rows = len(matrices.qkv), prompt.shape[-3]
    old, prompt = flat(state, models), flat(prompt, models)
    h0, h1, h2, a, c = (torch.empty_like(old) for _ in range(5))
    norms.norm_inject_norm1(old, prompt, vectors, first=True, out=(h0, h1, a))
    qkv = affine(a, matrices.qkv, matrices.qkv_bias)
    o, _ = attention(qkv.view(models * rows, -1, qkv.shape[-1]), heads)
    add(h1, o.view_as(h0), matrices.proj)
    norms.norm2(h1, vectors, out=(h2, c))
    g = gelu_affine(c, matrices.fc, matrices.fc_bias)
    add(h2, g, matrices.out)
    norms.norm_inject_norm1(h2, prompt, vectors, first=False, answers=answers, state=old)
    return state


class Loops(torch.autograd.Function):
    """(P, state, ahead, loops, keep, heads, matrices, vectors, *weights) -> answers (keep, models, batch, pairs).

    It runs `ahead` loops without gradient, then `loops` with it; the first state receives none. `weights` are those of
    `NAMES`. They are not read: they receive the gradients, in float32.
    """

    @staticmethod
    def forward(ctx, prompt, state, ahead, loops, keep, heads, matrices, vectors, *weights) -> Tensor:
        """Run every loop and save what the backward pass reads."""
        models, (*_, rows, seq, width) = len(matrices.qkv), prompt.shape
        x, p = flat(state, models), flat(prompt, models)
        tokens = rows * seq
        exact = torch.float64 if p.dtype is torch.float64 else torch.float32

        def empty(size: int) -> Tensor:
            return p.new_empty(loops, models, tokens, size)

        hidden, inner = matrices.fc.shape[1], matrices.proj.shape[2]
        saved = SavedActivations(
            h0=empty(width), a=empty(width), qkv=empty(3 * inner), o=empty(inner),
            lse=p.new_empty(loops, models * rows, heads, seq, dtype=exact),
            h1=empty(width), c=empty(width), u=empty(hidden), g=empty(hidden), h2=empty(width),
        )  # fmt: skip
        answers = p.new_empty(keep, models, tokens // 2, dtype=exact)
        for time in range(-ahead, loops):
            t = max(time, 0)  # loops ahead write to the first slot, which the first loop with gradient overwrites
            previous = time - 1 - (loops - keep)
            into = answers[previous] if previous >= 0 else None
            norms.norm_inject_norm1(
                x, p, vectors, first=time == -ahead, answers=into, out=(saved.h0[t], saved.h1[t], saved.a[t])
            )
            affine(saved.a[t], matrices.qkv, matrices.qkv_bias, out=saved.qkv[t])
            attention(sequences(saved.qkv[t], seq), heads, out=sequences(saved.o[t], seq), lse=saved.lse[t])
            add(saved.h1[t], saved.o[t], matrices.proj)
            norms.norm2(saved.h1[t], vectors, out=(saved.h2[t], saved.c[t]))
            if time < 0:
                gelu_affine(saved.c[t], matrices.fc, matrices.fc_bias, out=saved.g[t])
            else:
                gelu(affine(saved.c[t], matrices.fc, matrices.fc_bias, out=saved.u[t]), out=saved.g[t])
            add(saved.h2[t], saved.g[t], matrices.out)
            x = saved.h2[t]
        norms.norm_inject_norm1(x, p, vectors, first=False, answers=answers[-1])
        ctx.saved, ctx.matrices, ctx.vectors, ctx.heads, ctx.keep = saved, matrices, vectors, heads, keep
        ctx.prompt_shape, ctx.shapes = prompt.shape, [weight.shape for weight in weights]
        return answers.view(keep, *prompt.shape[:-2], seq // 2)

    @staticmethod
    def backward(ctx, *ups):
        """Go backwards along the stream, loop by loop; the weights' gradients come last, over all loops at once."""
        saved, matrices, vectors = ctx.saved, ctx.matrices, ctx.vectors
        loops, models, tokens, width = saved.h0.shape
        seq = ctx.prompt_shape[-2]
        dy = ups[0].reshape(ctx.keep, models, tokens // 2).contiguous()
        dqkv, du = torch.empty_like(saved.qkv), torch.empty_like(saved.u)
        da, dc, dh0, dh1, dh2 = (torch.empty_like(saved.h0) for _ in range(5))
        stats = dy.new_empty(3, loops, models, tokens, 2)
        fc_bias_parts = dy.new_empty(loops, models, parts_of(du[0]), du.shape[-1])
        q_bias_parts = dy.new_empty(loops, models * tokens // seq, saved.o.shape[-1])
        loop = None
        for t in reversed(range(loops)):
            answer = t - (loops - ctx.keep)
            previous = (saved.h2[t], dy[answer] if answer >= 0 else None, dh2[t], stats[2, t])
            norms.norm_inject_norm1_backward(vectors, loop=loop, previous=previous)
            times(dh2[t], matrices.out, out=du[t])
            gelu_backward(du[t], saved.u[t], sums=fc_bias_parts[t])
            times(du[t], matrices.fc, out=dc[t])
            norms.norm2_backward(dc[t], saved.h1[t], dh2[t], vectors, out=dh1[t], stats=stats[1, t])
            do = times(dh1[t], matrices.proj, out=da[t] if matrices.proj.shape[2] == width else None)
            attention_backward(
                sequences(do, seq), sequences(saved.qkv[t], seq), sequences(saved.o[t], seq), saved.lse[t], ctx.heads,
                dqkv=sequences(dqkv[t], seq), sums=q_bias_parts[t],
            )  # fmt: skip
            times(dqkv[t], matrices.qkv, out=da[t])
            loop = (da[t], saved.h0[t], dh1[t], dh0[t], stats[0, t])
        norms.norm_inject_norm1_backward(vectors, loop=loop, previous=None)
        streams, stream_gradients = (saved.h0, saved.h1, saved.h2), (da, dc, dh0, dh1, dh2)
        # sums wait for memory and products for the matrix units, so they run side by side
        second = torch.cuda.Stream(dy.device) if dy.is_cuda else None
        if second is not None:
            second.wait_stream(torch.cuda.current_stream(dy.device))
        with torch.cuda.stream(second):
            sums = norms.vector_gradients(streams, stream_gradients, stats, dy, vectors)
            sums = dict(zip(SLOTS, sums, strict=True))
            # a key's bias moves all scores of a query alike, so its gradient is 0; a value's bias passes by attention
            of_q = by_model(q_bias_parts, models)
            of_v = torch.bmm(sums["attention.proj.bias"][:, None], matrices.proj.to(dy.dtype))[:, 0]
            gradients = {
                **{name if name.startswith(("norm.", "read_out")) else BLOCK + name: sums[name] for name in SLOTS},
                "read_out.bias": dy.sum((0, 2)),
                f"{BLOCK}attention.qkv.bias": torch.cat([of_q, torch.zeros_like(of_q), of_v], -1),
                f"{BLOCK}mlp.fc.bias": by_model(fc_bias_parts, models),
            }
            dprompt = dh0.sum(0).view(ctx.prompt_shape)
        pairs = {"attention.qkv": (dqkv, saved.a), "attention.proj": (dh1, saved.o), "mlp.fc": (du, saved.c),
                 "mlp.proj": (dh2, saved.g)}  # fmt: skip
        gradients |= {f"{BLOCK}{name}.weight": over_tokens(up, x) for name, (up, x) in pairs.items()}
        if second is not None:
            torch.cuda.current_stream(dy.device).wait_stream(second)
        ordered = [gradients[name].reshape(shape) for name, shape in zip(NAMES, ctx.shapes, strict=True)]
        return dprompt, *[None] * 7, *ordered
