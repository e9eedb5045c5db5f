"""Adam for a family of models that can blow up: a model whose loss jumps goes back and takes smaller steps.

Exponential attention turns covariates that grow a little in every layer into an infinite loss, and one rare prompt is
enough. A model whose loss jumps returns to where it stood well; no other model notices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.models.loop import leaves, tree_map

JUMP, NOISE = 3.0, 1e-2
"""A loss above this many times its running mean, and more by `NOISE`, sends a model back."""
MEMORY = 0.9
"""Decay of that running mean."""
CALM = 20
"""Steps without a jump after which the place where a model stands is one to go back to."""
SLOWER, FASTER = 0.5, 1.005
"""What multiplies a model's step size when it goes back, and when it goes on, up to 1."""
EPSILON = 1e-8
WARM_STEPS = 3
"""Plain steps before a step is captured as a CUDA graph."""


class Careful(NamedTuple):
    """A family after training."""

    losses: Float[Tensor, "kept models"]
    """Training loss at the kept steps."""
    watched: Tensor
    """What `watch` gave at the kept steps and after the last one."""
    returns: Float[Tensor, " models"]
    """How often each model went back."""


def train_carefully(
    family: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    *,
    steps: int,
    draw: Callable[[int], Any],
    every: int,
    keep_every: int,
    optimizer: Mapping[str, Any],
    watch: Callable[[Any], Tensor],
) -> Careful:
    """Train every model of a family, in place, as if each were alone.

        m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - rate s m / sqrt(v),  g clipped layer by layer

    `optimizer` has `rate`, `betas`, `decay` (the share of the run in which the rate falls to 0, linearly) and `clip`,
    None or the largest norm of the last of nine layers' gradients: `clip` / (9 - i)^2 in layer i.
    """
    step, losses, watched = _Step(family, loss, optimizer), [], []
    for now in range(steps):
        if now % every == 0:
            step.put(draw(now))
        if now % keep_every == 0:
            watched.append(_read(watch, family))
        if now == WARM_STEPS:
            step.capture()
        left = min(1.0, (steps - now) / max(1.0, optimizer["decay"] * steps))
        out = step(optimizer["rate"] * left)
        if now % keep_every == 0:
            losses.append(out.clone())
    step.settle()
    watched.append(_read(watch, family))
    return Careful(torch.stack(losses), torch.stack(watched), step.returns)


class _Step:
    """One step, plain or replayed from a CUDA graph; nothing in it waits for the device."""

    def __init__(self, family: nn.Module, loss: Callable[[Any, Any], Tensor], optimizer: Mapping[str, Any]):
        self.family, self.loss = family, loss
        self.weights = list(family.parameters())
        first = self.weights[0]
        self.betas = tuple(optimizer["betas"])
        self.before = [weight.detach().clone() for weight in self.weights]
        self.mean = [torch.zeros_like(weight) for weight in self.weights]
        self.square = [torch.zeros_like(weight) for weight in self.weights]
        zeros = first.new_zeros(len(first))
        self.usual, self.pace, self.count, self.returns = zeros + torch.inf, zeros + 1, zeros.clone(), zeros.clone()
        self.rate = first.new_zeros(())
        self.output, self.batch, self.graph = zeros.clone(), None, None
        layers = torch.arange(first.shape[1], device=first.device)
        self.largest = None if optimizer["clip"] is None else optimizer["clip"] / (9.0 - layers) ** 2

    def put(self, batch: Any) -> None:
        """Read this batch from now on; a captured step reads where the first one lay, so it is copied there."""
        if self.graph is None:
            self.batch = batch
        else:
            for old, new in zip(leaves(self.batch), leaves(batch), strict=True):
                old.copy_(new)

    def __call__(self, rate: float) -> Tensor:
        self.rate.fill_(rate)
        if self.graph is None:
            self._plain()
        else:
            self.graph.replay()
        return self.output

    def capture(self) -> None:
        """Record the step on a GPU; where that fails, plain steps go on."""
        if not self.rate.is_cuda:
            return
        self.batch = tree_map(torch.clone, self.batch)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._plain()
        except RuntimeError as error:
            warnings.warn(f"the step could not be captured as a CUDA graph and runs plainly: {error}", stacklevel=3)
            torch.cuda.synchronize()
        else:
            self.graph = graph

    def settle(self) -> None:
        """After the last step: a model whose last update was a jump goes back."""
        with torch.no_grad():
            bad = self._bad(self.loss(self.family, self.batch), [])
            self._choose(bad, self.weights, self.before)

    def _plain(self) -> None:
        losses = self.loss(self.family, self.batch)
        slopes = torch.autograd.grad(losses.sum(), self.weights, allow_unused=True)
        gradients = [torch.zeros_like(w) if g is None else g for w, g in zip(self.weights, slopes, strict=True)]
        with torch.no_grad():
            bad = self._bad(losses, gradients)
            self._clip(gradients)
            self._choose(bad, self.weights, self.before)
            self.returns += bad
            self.count.copy_(torch.where(bad, 0, self.count + 1))
            self._choose(self.count % CALM == CALM - 1, self.before, self.weights)
            self.pace.copy_(torch.where(bad, SLOWER * self.pace, (FASTER * self.pace).clamp(max=1.0)))
            moved = torch.where(self.usual.isfinite(), MEMORY * self.usual + (1 - MEMORY) * losses, losses)
            # back there another loss is usual; what it is shows the next step
            self.usual.copy_(torch.where(bad, torch.inf, moved))
            one, two = self.betas
            for weight, gradient, mean, square in zip(self.weights, gradients, self.mean, self.square, strict=True):
                went = _along(bad, weight)
                # after going back there is no gradient at this place yet: start anew from standing still
                mean.copy_(torch.where(went, 0.0, one * mean + (1 - one) * gradient))
                square.copy_(torch.where(went, 0.0, two * square + (1 - two) * gradient.square()))
                count = _along(self.count.clamp(min=1), weight)
                size = (square / (1 - two**count)).sqrt() + EPSILON
                move = _along(self.rate * self.pace, weight) * (mean / (1 - one**count)) / size
                weight.sub_(move)
            self.output.copy_(losses)

    def _bad(self, losses: Tensor, gradients: list[Tensor]) -> Tensor:
        fine = losses.isfinite() & (losses <= JUMP * self.usual + NOISE)
        for gradient in gradients:
            fine = fine & gradient.flatten(1).isfinite().all(1)
        return ~fine

    def _choose(self, where: Tensor, into: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        for one, two in zip(into, other, strict=True):
            one.copy_(torch.where(_along(where, one), two, one))

    def _clip(self, gradients: list[Tensor]) -> None:
        """Scale each layer's gradient, all matrices of it together, down to its largest norm."""
        if self.largest is None:
            return
        flat = [gradient.flatten(2) if gradient.ndim > 2 else gradient[..., None] for gradient in gradients]
        # in units of the largest entry: squares of an exploding gradient overflow
        unit = torch.stack([one.abs().amax(2) for one in flat]).amax(0).clamp_min(1e-30)
        size = torch.stack([(one / unit[..., None]).square().sum(2) for one in flat]).sum(0).sqrt()
        scale = (self.largest / unit / size.clamp_min(1e-30)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.view(*scale.shape, *[1] * (gradient.ndim - 2)))


def _along(values: Tensor, weight: Tensor) -> Tensor:
    """One number a model, shaped to go with a weight."""
    return values.view(-1, *[1] * (weight.ndim - 1))


def _read(watch: Callable[[Any], Tensor], family: nn.Module) -> Tensor:
    with torch.no_grad():
        return watch(family).detach().clone()
