"""Many queries in one pass: a second stream of tokens that reads the first one and is read by nobody."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from looped.models.algoformer import AlgoFormer
from looped.models.base import LoopedModel
from looped.models.blocks import Attention
from looped.models.decoder import Context, LoopedDecoder
from looped.models.loop import unroll
from looped.prompt import Prompt


def can_ask(model: object) -> bool:
    """Whether `asking` is exact for a model: causal softmax attention is all that lets its tokens meet."""
    if isinstance(model, AlgoFormer):
        return model.config.causal and model.config.query == "every" and model.config.tokens != "given"
    return isinstance(model, LoopedDecoder)


@contextlib.contextmanager
def asking(model: LoopedModel, batch: int) -> Iterator[None]:
    """Inside, prompts come as 2 x `batch`, and row batch + b asks row b: it reads that row's earlier tokens.

        token t of row batch + b reads tokens 0 .. t-1 of row b, and itself

    With the examples in row b and any queries in row batch + b, the answer at x_i is the one that a prompt of the first
    i examples and query i alone would get: n prompts for the price of two.
    """
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    for layer in layers:
        layer.mix = functools.partial(_two_streams, batch)
    try:
        yield
    finally:
        for layer in layers:
            del layer.mix


def _two_streams(batch: int, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Causal attention in the first rows; in the others, keys and values are those rows' and one's own."""
    assert is_causal
    halves = (one.unflatten(0, (-1, 2, batch)).transpose(0, 1).flatten(1, 2) for one in (q, k, v))
    (q, asking_q), (k, own_k), (v, own_v) = halves
    seq = q.shape[-2]
    before = torch.ones(seq, seq, dtype=torch.bool, device=q.device).tril(-1)
    itself = torch.eye(seq, dtype=torch.bool, device=q.device)
    keys, values = torch.cat((k, own_k), -2), torch.cat((v, own_v), -2)
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    asked = F.scaled_dot_product_attention(asking_q, keys, values, attn_mask=torch.cat((before, itself), 1))
    return torch.stack((plain, asked)).unflatten(1, (-1, batch)).transpose(0, 1).flatten(0, 2)


def can_share(model: object) -> TypeGuard[LoopedDecoder]:
    """Whether `answer_all` is exact for a model: a decoder that gets its positions with the prompt, not by counting."""
    if type(model) is not LoopedDecoder or model.positions.ndim != 2:  # a subclass may read its states otherwise
        return False
    return model.config.inject == "add" or not model.config.inside


def answer_all(
    model: LoopedDecoder,
    xs: Float[Tensor, "n d"],
    ys: Float[Tensor, " n"],
    queries: Float[Tensor, "batch d"],
    *,
    loops: int | None = None,
) -> Float[Tensor, " batch"]:
    """The answer to each query after the same n examples, all in one sequence.

        x_1, y_1, ..., x_n, y_n, q_1, ..., q_batch: a query reads the examples and itself, at position 2n

    Examples never read a query, so that they are the same for all: 2n + batch tokens instead of 2 (n + 1) batch.
    """
    n, count = len(xs), len(queries)
    # one prompt for the examples, with the positions of 2n; each query as the n + 1st x
    last = torch.cat([xs.new_zeros(count, n, xs.shape[-1]), queries[:, None]], 1)
    shown = model.embed(Prompt(xs[None], ys[None])).tokens
    asked = model.embed(Prompt(last, xs.new_zeros(count, n + 1))).tokens[:, 2 * n]
    context = Context(torch.cat([shown, asked[None]], 1))

    reads = torch.eye(2 * n + count, dtype=torch.bool, device=xs.device)
    reads[:, : 2 * n] = True
    reads[: 2 * n, : 2 * n] = reads[: 2 * n, : 2 * n].tril()

    def mix(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=reads)

    def read(state: Tensor, context: Context) -> Tensor:
        return own.readout(state[0, 2 * n :, None], context)[:, 0]

    # a copy that shares the weights: another thread may use the model meanwhile
    own = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    for part in own.modules():
        if isinstance(part, Attention):
            part.mix = mix
    loops = model.config.loops if loops is None else loops
    return unroll(own.step, own.start(context), context, loops=loops, collect=read)[-1]
