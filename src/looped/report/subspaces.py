"""A picture of what every named subspace of the residual stream holds, loop by loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.algoformer import AlgoFormer
from looped.models.base import LoopedModel
from looped.prompt import Prompt
from looped.report.drawing import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "RdBu_r"
"""Blue below 0, white at 0, red above."""


def subspaces_figure(
    model: LoopedModel,
    prompt: Prompt,
    *,
    names: Sequence[str] | None = None,
    loops: Sequence[int] = (0, 1, 2, 5, 20),
) -> Figure:
    """Draw each subspace (down) after each of `loops` (across) as a heat map, tokens across and coordinates down.

    `loops` 0 is the stream after pre; a last column shows what post makes of the last one. Colours are symmetric about
    0, with one range for a subspace. `names` are subspaces of the model's config; None takes all that change over the
    loops or differ among tokens. The prompt is the first of its batch.
    """
    streams = streams_of(model, prompt, loops)
    titles = ["before the loop" if count == 0 else f"loop {count}" for count in loops]
    titles += ["after post"] if len(streams) > len(loops) else []
    sizes = model.config.subspaces or (("stream", streams.shape[-1]),)
    ends = itertools.accumulate(size for _, size in sizes)
    spaces = {name: slice(end - size, end) for (name, size), end in zip(sizes, ends, strict=True)}
    stays = streams == streams[:1, :1]  # over the loops and among tokens
    chosen = [name for name in spaces if not stays[..., spaces[name]].all()] if names is None else list(names)
    for name in chosen:
        if name not in spaces:
            raise ValueError(f"the model has no subspace `{name}`; it has {', '.join(spaces)}. Name one of them.")
    heights = [1.0 + 0.12 * (spaces[name].stop - spaces[name].start) for name in chosen]
    with blank((1.6 + 1.7 * len(titles), 0.5 + 0.45 * sum(heights))) as figure:
        grid = figure.subplots(len(chosen), len(titles), squeeze=False, height_ratios=heights, sharex=True)
        for name, line in zip(chosen, grid, strict=True):
            contents = streams[..., spaces[name]]
            top = float(contents.abs().max()) or 1.0
            look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "cmap": COLOURS}
            look |= {"vmin": -top, "vmax": top}
            images = [ax.imshow(stream.T.numpy(), **look) for ax, stream in zip(line, contents, strict=True)]
            for ax in line:
                ax.set(yticks=[])
            line[0].set_ylabel(name, rotation=0, ha="right", va="center")
            bar = figure.colorbar(images[0], ax=list(line), ticks=[-top, 0, top], aspect=8, pad=0.01)
            bar.ax.set_yticklabels([f"{-top:.2g}", "0", f"{top:.2g}"], fontsize=7)
        for ax, title in zip(grid[0], titles, strict=True):
            ax.set_title(title)
        for ax in grid[-1]:
            ax.set_xlabel("token")
    return figure


def streams_of(model: LoopedModel, prompt: Prompt, loops: Sequence[int]) -> Float[Tensor, "stages seq width"]:
    """The residual stream of the first prompt after each of `loops` (0: before the loop), and after post, if any."""
    if not loops or min(loops) < 0:
        raise ValueError(f"`loops` must name at least one loop, 0 or later; got {list(loops)}.")
    with torch.no_grad():
        context = model.embed(prompt)
        state = model.start(context)
        by_loop = [state]
        for t in range(max(loops)):
            state = model.step(state, context, t)
            by_loop.append(state)
        states = [by_loop[loop] for loop in loops]
        if isinstance(model, AlgoFormer) and len(model.post):
            state = states[-1]
            for block in model.post:
                state = block(state)
            states.append(state)
    return torch.stack([state[0].cpu() for state in states])
