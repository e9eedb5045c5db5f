"""Many queries in one pass: a second stream of tokens that reads the first one and that no token reads."""

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
from looped.models.block_parts import LinearAttention
from looped.models.blocks import Attention
from looped.models.decoder import Context, LoopedDecoder
from looped.models.loop import unroll
from looped.prompt import Prompt


def supports_query_stream(model: object) -> bool:
    """Whether `query_stream` is exact for a model: its tokens meet only in causal softmax attention."""
    if isinstance(model, AlgoFormer):
        return model.config.causal and model.config.query == "every" and model.config.tokens != "given"
    by_features = isinstance(model, LoopedDecoder) and any(
        isinstance(part, LinearAttention) for part in model.modules()
    )
    return isinstance(model, LoopedDecoder) and not by_features


@contextlib.contextmanager
def query_stream(model: LoopedModel, batch: int) -> Iterator[None]:
    """Inside this context the model reads 2 x `batch` prompts, and row batch + b holds queries after row b's examples.

        token t of row batch + b reads tokens 0 .. t-1 of row b, and itself

    With examples in row b and any queries in row batch + b, the answer at x_i is that of a prompt of the first i
    examples and query i alone: n prompts for the price of two.
    """
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    for layer in layers:
        layer.mix = functools.partial(_two_streams, batch)
    try:
        yield
    finally:
        for layer in layers:
            del layer.mix


def _two_streams(batch: int, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Causal attention in the example rows; a query reads the examples before it and itself."""
    assert is_causal
    halves = (heads.unflatten(0, (-1, 2, batch)).transpose(0, 1).flatten(1, 2) for heads in (q, k, v))
    (q, query_q), (k, query_k), (v, query_v) = halves
    seq = q.shape[-2]
    before = torch.ones(seq, seq, dtype=torch.bool, device=q.device).tril(-1)
    itself = torch.eye(seq, dtype=torch.bool, device=q.device)
    keys, values = torch.cat((k, query_k), -2), torch.cat((v, query_v), -2)
    examples = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    queries = F.scaled_dot_product_attention(query_q, keys, values, attn_mask=torch.cat((before, itself), 1))
    return torch.stack((examples, queries)).unflatten(1, (-1, batch)).transpose(0, 1).flatten(0, 2)


def can_share_examples(model: object) -> TypeGuard[LoopedDecoder]:
    """Whether `answer_all` is exact for a model: a single decoder whose positions are added to the prompt."""
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

    Examples never read a query, so all queries share them: 2n + batch tokens instead of 2 (n + 1) batch.
    """
    n, count = len(xs), len(queries)
    # embed the examples as one prompt, and each query as the (n + 1)st x of a prompt of its own
    last = torch.cat([xs.new_zeros(count, n, xs.shape[-1]), queries[:, None]], 1)
    example_tokens = model.embed(Prompt(xs[None], ys[None])).tokens
    query_tokens = model.embed(Prompt(last, xs.new_zeros(count, n + 1))).tokens[:, 2 * n]
    context = Context(torch.cat([example_tokens, query_tokens[None]], 1))

    reads = torch.eye(2 * n + count, dtype=torch.bool, device=xs.device)
    reads[:, : 2 * n] = True
    reads[: 2 * n, : 2 * n] = reads[: 2 * n, : 2 * n].tril()

    def mix(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=reads)

    def read(state: Tensor, context: Context) -> Tensor:
        return twin.readout(state[0, 2 * n :, None], context)[:, 0]

    # a copy that shares the weights: another thread may be using the model
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    for module in twin.modules():
        if isinstance(module, Attention):
            module.mix = mix
    loops = model.config.loops if loops is None else loops
    return unroll(twin.step, twin.start(context), context, loops=loops, collect=read)[-1]
