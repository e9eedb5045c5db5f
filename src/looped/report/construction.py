"""A theorem's weights at work: a page that shows, loop by loop, the function that a constructed model computes."""

import inspect
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import looped
from looped.constructions.ready import READY, Construction
from looped.prompt import Prompt
from looped.report.page import environment, write_page
from looped.tasks.regression import LinearRegression
from looped.tasks.vector_generation import VectorGeneration

ANGLES = 73
"""Queries around the circle, 5 degrees apart."""


def write_picture(out: str | Path, *, name: str, examples: int, loops: int) -> Path:
    """Write the page of a construction to the file `out`, with x of two dimensions, so that it can be drawn."""
    construction = READY[name](2, examples, loops)
    page = (
        environment()
        .get_template("construction/construction.html")
        .render(
            name=name,
            statement=(inspect.getdoc(READY[name]) or "").splitlines()[0],
            algorithm=construction.algorithm,
            num_parameters=f"{construction.model.num_parameters:,}",
            data=picture_data(construction),
            version=looped.__version__,
        )
    )
    return write_page(Path(out), page)


def picture_data(construction: Construction) -> dict[str, Any]:
    """What the page draws: numbers for every loop, beginning with the first."""
    answers, expected = construction.answers(), construction.expected
    data: dict[str, Any] = {
        "pairs": [_plain(answers.flatten(1)), _plain(expected.flatten(1))],
        "errors": _plain(construction.errors(answers)),
    }
    prompt, task = construction.prompt, construction.task
    if not isinstance(prompt, Prompt) or task is None:
        return data
    xs, ys = prompt.xs[0, :-1], prompt.ys[0, :-1]
    if isinstance(task, VectorGeneration):  # its answer is the vector itself, times the label of the last pair
        return data | _weights(xs, ys, answers[:, 0] / prompt.ys[0, -1])
    turns = torch.linspace(0, 2 * math.pi, ANGLES, dtype=torch.float64)
    queries = torch.stack([turns.cos(), turns.sin()], 1)
    asked = Prompt(
        torch.cat([xs.expand(ANGLES, -1, -1), queries[:, None]], 1),
        torch.cat([ys.expand(ANGLES, -1), torch.zeros(ANGLES, 1, dtype=torch.float64)], 1),
    )
    with torch.no_grad():
        curves = construction.model(asked, loops=len(expected), keep=len(expected))[..., -1]
    size, query = xs.norm(dim=1), prompt.xs[0, -1]
    data |= {
        "curves": _plain(curves),
        "points": {"turn": _plain(_turn(xs)), "y": _plain(ys / size)},
        "query": {"turn": _plain(_turn(query)), "y": _plain(expected[:, 0, -1] / query.norm())},
    }
    # a linear function is what it says at (1, 0) and at (0, 1)
    quarter = (ANGLES - 1) // 4
    return data | (_weights(xs, ys, curves[:, [0, quarter]]) if isinstance(task, LinearRegression) else {})


def _weights(xs: Tensor, ys: Tensor, path: Tensor) -> dict[str, Any]:
    """The path of w over the loss |X w - y|^2, as the numbers that its ellipses are drawn from."""
    best = torch.linalg.lstsq(xs, ys[:, None]).solution[:, 0]
    return {"weights": {"path": _plain(path), "best": _plain(best), "gram": _plain(xs.mT @ xs)}}


def _turn(vectors: Tensor) -> Tensor:
    """Angles in [0, 2 pi)."""
    return torch.atan2(vectors[..., 1], vectors[..., 0]) % (2 * math.pi)


def _plain(values: Tensor) -> Any:
    """Lists of numbers; what is not finite becomes null."""
    if values.ndim:
        return [_plain(value) for value in values]
    return float(values) if math.isfinite(values) else None
