"""The loop explorer: one page in which a small decoder answers points that a person puts into a plane, loop by loop."""

import base64
import math
from pathlib import Path
from typing import Any

import torch

import looped
from looped.experiment import Experiment, Setup
from looped.models.base import LoopedModel
from looped.models.decoder import DecoderConfig, LoopedDecoder
from looped.report.page import environment, write_page
from looped.tasks.mixture import FunctionMixture

SHIPPED = "explorer.curves"
"""The kept model that the page is made for."""
MAX_BYTES = 2_900_000
"""The largest page: it should travel by mail and open on a phone."""
FIELDS = ("loops", "d", "width", "heads", "layers", "positions", "inject", "inside")
"""The fields of a decoder that the page's program knows; all others must be at their defaults."""


def write_explorer(out: str | Path, *, model: LoopedModel, setup: Setup) -> Path:
    """Write the page of a run's model to the file `out`; weights are inside, and nothing is loaded from elsewhere."""
    name, task = setup.name, setup.task
    decoder = _plain_decoder(model, name)
    uniform = isinstance(task, FunctionMixture)
    page = (
        environment()
        .get_template("explorer/explorer.html")
        .render(
            name=name,
            num_parameters=f"{decoder.num_parameters:,}",
            model=model_data(decoder),
            task={"d": task.d, "reach": math.sqrt(3) if uniform else 2.0, "varied": uniform, "noise": task.label_noise},
            loops=_trained_loops(setup),
            version=looped.__version__,
        )
    )
    size = len(page.encode())
    if size > MAX_BYTES:
        raise ValueError(
            f"the page of `{name}` would have {size / 1e6:.1f} MB, and at most {MAX_BYTES / 1e6:.1f} are allowed. "
            "Choose a smaller model, or keep it with `looped keep --rounding float16`."
        )
    return write_page(Path(out), page)


def _trained_loops(setup: Setup) -> tuple[int, int]:
    """The fewest and the most loops of a training step."""
    b = setup.model.loops
    if not isinstance(setup, Experiment) or setup.train.depth is None:
        return b, b
    low, high = setup.train.depth.bounds(setup.train.steps)
    return b + int(low), b + int(high)


def model_data(model: LoopedDecoder) -> dict[str, Any]:
    """What the page needs of a model: its config, and its weights in float16 if they survive it, else in float32."""
    config = model.config
    weights = {name: weight.detach().cpu().float() for name, weight in model.state_dict().items()}
    for name, bias in weights.items():
        if name.endswith("attention.qkv.bias"):  # the model leaves the keys' bias out
            bias = bias.clone()
            bias[config.width : 2 * config.width] = 0
            weights[name] = bias
    exact = all(torch.equal(weight.half().float(), weight) for weight in weights.values())
    flat = torch.cat([weight.flatten() for weight in weights.values()]).numpy()
    return {
        "config": {field: getattr(config, field) for field in FIELDS},
        "weights": {
            "format": "float16" if exact else "float32",
            "tensors": [[name, weight.numel()] for name, weight in weights.items()],
            "base64": base64.b64encode(flat.astype("<f2" if exact else "<f4").tobytes()).decode(),
        },
    }


def _plain_decoder(model: LoopedModel, name: str) -> LoopedDecoder:
    """The model, if the page's program computes all that it does."""
    if type(model) is LoopedDecoder and model.positions.ndim == 2:
        known = DecoderConfig(**{field: getattr(model.config, field) for field in FIELDS})
        if known == model.config:
            return model
    raise ValueError(
        f"`{name}` is a {type(model).__name__} with parts that the page cannot run; it runs the plain LoopedDecoder. "
        "Choose a run of one, such as explorer.curves."
    )
