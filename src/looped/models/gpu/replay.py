"""A trained decoder's answers after every loop: one loop captured as a CUDA graph and replayed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.decoder import LoopedDecoder
from looped.models.gpu.decoder_loops import one_loop, weights_of
from looped.prompt import AnyPrompt


@torch.no_grad()
def answers_by_loop(model: LoopedDecoder, prompt: AnyPrompt, *, loops: int) -> Float[Tensor, "loops batch n"]:
    """The answers after each of `loops` loops; memory grows with the answers, not with the states."""
    context = model.embed(prompt)
    tokens = context.tokens.contiguous()
    batch, seq, _ = tokens.shape
    weights, heads = weights_of(model, model), model.config.heads
    answers = tokens.new_empty(1, batch * seq // 2, dtype=torch.float32)
    state = torch.zeros_like(tokens)
    stream = torch.cuda.Stream(tokens.device)
    stream.wait_stream(torch.cuda.current_stream(tokens.device))
    with torch.cuda.stream(stream):  # compile the kernels before the capture
        one_loop(state.clone(), tokens, *weights, heads=heads, answers=answers)
    torch.cuda.current_stream(tokens.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        one_loop(state, tokens, *weights, heads=heads, answers=answers)
    by_loop = answers.new_empty(loops, batch, seq // 2)
    for t in range(loops):
        graph.replay()
        by_loop[t].copy_(answers.view(batch, -1))
    return by_loop.to(tokens.dtype)
