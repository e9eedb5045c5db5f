"""Whole families of small models (seeds x settings), trained as one batch of models.

A family is a module, or a dict of tensors, in which every weight has the models as its first axis. A loss gives one
number a model and mixes nothing between models; its sum is differentiated, so that each model is trained as if alone.

    family = build_family(restricted(d=10, loops=4), seeds=range(8))
    trained = train_family(family, loss, steps=1000, draw=draw, every=100, optimizer=AdamW())
    trained.losses[-1]          # one number a model
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.experiment import OptimizerConfig
from looped.models.base import LoopedModel, ModelConfig
from looped.models.blocks import stack
from looped.models.loop import leaves, tree_map
from looped.training.optim import Optimizers
from looped.training.trainer import stream

Family = nn.Module | Mapping[str, Tensor]
"""Models of one shape side by side: every weight has them as its first axis."""
Loss = Callable[[Any, Any], Tensor]
"""(family, batch) -> (models,): one loss a model."""
Draw = Callable[[int], Any]
"""step -> batch: a tensor or nested tuple of tensors whose shapes never change."""
WARM_STEPS = 3
"""Plain steps before a step is captured as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Gradients scaled down to a largest norm, each model by itself.

        g <- g min(1, norm / |g|)

    Ref: cheng24's program: `over="layer"`, `norm` = 1e-8/(9-i)^2, so far below Adam's eps that Adam's step becomes
    rate / eps times the momentum of normalised gradients; gatmiry24's: `over="matrix"`, `norm` = 0.01.
    """

    norm: float | tuple[float, ...]
    """The largest norm; several are one for each layer, first layer first."""
    over: Literal["model", "layer", "matrix"] = "model"
    """What the norm is of: all weights of a model, all of one layer (second axis), or one weight's part in a layer."""

    def __post_init__(self) -> None:
        if self.over == "model" and isinstance(self.norm, tuple):
            raise ValueError("`norm` is one number when it is over the whole model; got several. Set `over` to layer.")

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Scale the gradients, each `(models, layers, ...)`, in place."""
        axes = 1 if self.over == "model" else 2
        squares = [gradient.square().reshape(*gradient.shape[:axes], -1).sum(-1) for gradient in gradients]
        if self.over != "matrix":
            squares = [torch.stack(squares).sum(0)] * len(squares)
        for gradient, square in zip(gradients, squares, strict=True):
            largest = self.norm if isinstance(self.norm, float) else _on(self.norm, square.device).to(square.dtype)
            scale = (largest / square.sqrt().clamp_min(torch.finfo(square.dtype).tiny)).clamp(max=1.0)
            gradient.mul_(scale.view(*scale.shape, *[1] * (gradient.ndim - axes)))


class Trained(NamedTuple):
    """A family after training."""

    family: Any
    """The family itself, trained in place."""
    steps: list[int]
    """The steps before which the next two were read, from 0."""
    losses: Float[Tensor, "kept models"]
    """The loss at each of these steps, before the step's update; not finite where a model diverged."""
    watched: Tensor | None
    """What `watch` gave at each of these steps and after the last one, `(kept + 1, ...)`."""


def build_family(
    config: ModelConfig, seeds: Sequence[int], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> LoopedModel:
    """One model for each seed, each with the weights it would have alone, as one stack."""
    models = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "weights"))
            models.append(config.build())
    return stack(models).to(device, dtype)


def train_family(
    family: Family,
    loss: Loss,
    *,
    steps: int,
    optimizer: OptimizerConfig,
    clip: Clip | None = None,
    draw: Draw | None = None,
    every: int = 1,
    log_every: int = 1,
    watch: Callable[[Any], Tensor] | None = None,
    progress: Callable[[int], None] | None = None,
    graph: bool = False,
) -> Trained:
    """Train every model of a family as if each were alone; nothing in a step waits for the device.

        weights <- optimizer(clip(gradient of the sum over models of loss(family, batch)))

    A module is trained in place; a dict is copied first. `draw` gives the batch, anew every `every` steps; without it
    the batch is None. Losses, and what `watch` gives, are kept every `log_every` steps. `optimizer.clip` clips each
    model as a whole; `clip` can do more. With `graph`, on a GPU, the step is captured once and replayed.
    """
    for name, value in {"steps": steps, "every": every, "log_every": log_every}.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; got {value}.")
    if optimizer.clip is not None and clip is not None:
        raise ValueError("gradients are clipped once; got `optimizer.clip` and `clip`. Set one of them to None.")
    clip = Clip(norm=optimizer.clip) if optimizer.clip is not None else clip
    held = family if isinstance(family, nn.Module) else nn.ParameterDict({k: v.clone() for k, v in family.items()})
    step = _Step(held, loss, optimizer, clip)
    losses: list[Tensor] = []
    watched: list[Tensor] = []
    for now in range(steps):
        if draw is not None and now % every == 0:
            step.put(draw(now))
        logged = now % log_every == 0
        if logged and watch is not None:
            watched.append(_read(watch, held))
        if graph and now == WARM_STEPS:
            step.capture()
        out = step(optimizer.schedule(now, steps))
        if logged:
            losses.append(out.clone())
        if logged and progress is not None:
            progress(now + 1)
    if watch is not None:
        watched.append(_read(watch, held))
    result = held if held is family else {name: weight.detach() for name, weight in held.named_parameters()}
    return Trained(
        result, list(range(0, steps, log_every)), torch.stack(losses), torch.stack(watched) if watched else None
    )


class _Step:
    """One training step, plain or replayed from a CUDA graph."""

    def __init__(self, family: nn.Module, loss: Loss, config: OptimizerConfig, clip: Clip | None):
        self.family, self.loss, self.clip = family, loss, clip
        self.weights = [weight for weight in family.parameters() if weight.requires_grad]
        self.on_gpu = self.weights[0].device.type == "cuda"
        self.optimizers = Optimizers(family, config, captured=self.on_gpu)
        self.batch: Any = None
        self.graph: Any = None
        self.output: Tensor | None = None
        self.factor = 1.0
        # a captured step reads the factor where it lies
        self.on_device = torch.ones((), device=self.weights[0].device)

    def put(self, batch: Any) -> None:
        """Read this batch from now on; a captured step reads where the first one lay, so it is copied there."""
        if self.graph is None:
            self.batch = batch
        else:
            for old, new in zip(leaves(self.batch), leaves(batch), strict=True):
                old.copy_(new)

    def __call__(self, factor: float) -> Tensor:
        if factor != self.factor:
            self.on_device.fill_(factor)
        self.factor = factor
        if self.graph is None:
            return self._plain()
        assert self.output is not None
        self.graph.replay()
        return self.output

    def capture(self) -> None:
        """Record the step; where that fails, plain steps go on."""
        if not self.on_gpu:
            return
        self.batch = tree_map(torch.clone, self.batch)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.output = self._plain()
        except RuntimeError as error:
            warnings.warn(f"the step could not be captured as a CUDA graph and runs plainly: {error}", stacklevel=3)
            torch.cuda.synchronize()
        else:
            self.graph = graph

    def _plain(self) -> Tensor:
        out = self.loss(self.family, self.batch)
        # not backward(): it would bind the weights to the stream they were first used on
        gradients = torch.autograd.grad(out.sum(), self.weights, allow_unused=True)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        if self.clip is not None:
            self.clip([gradient for gradient in gradients if gradient is not None])
        self.optimizers.step(self.on_device if self.on_gpu else self.factor)
        return out.detach()


@cache
def _on(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a device, made once: a captured step may not copy from the host."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def _read(watch: Callable[[Any], Tensor], family: nn.Module) -> Tensor:
    with torch.no_grad():
        return watch(family).detach().clone()
