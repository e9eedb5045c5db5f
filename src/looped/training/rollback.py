"""Adam for a family of models that can blow up: a model whose loss jumps goes back and takes smaller steps.

Exponential attention turns covariates that grow a little in every layer into an infinite loss, and one rare prompt is
enough. A model whose loss jumps returns to where it stood well; no other model notices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from looped.experiment import Adam, OptimizerConfig

EPSILON = 1e-8
"""Adam's."""


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """When a model goes back, and how it goes on."""

    jump: float = 3.0
    """A loss above this many times its running mean, and more by `noise`, sends a model back."""
    noise: float = 1e-2
    """A loss this much above that bound is not a jump yet."""
    memory: float = 0.9
    """Decay of the running mean."""
    calm: int = 20
    """Steps without a jump after which the place where a model stands is one to go back to."""
    slower: float = 0.5
    """Factor on a model's step size when it goes back."""
    faster: float = 1.005
    """Factor on a model's step size when it goes on, until the step size is back at its full value."""


class RollbackAdam:
    """Adam with a count of steps for each model, since a model that goes back starts anew.

        m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - rate pace m / sqrt(v)

    torch's own Adam has one count for all models of a family; without a jump the two agree up to rounding.
    """

    def __init__(self, family: nn.Module, config: OptimizerConfig, rule: Rollback):
        if not isinstance(config, Adam):
            raise ValueError(f"`rollback` works with Adam alone; got {type(config).__name__}. Leave one of them out.")
        self.config, self.rule = config, rule
        trainable = {name: weight for name, weight in family.named_parameters() if weight.requires_grad}
        self.names, self.weights = list(trainable), list(trainable.values())
        first = self.weights[0]
        self.safe = [weight.detach().clone() for weight in self.weights]
        """Where each model goes back to."""
        self.mean = [torch.zeros_like(weight) for weight in self.weights]
        self.square = [torch.zeros_like(weight) for weight in self.weights]
        zeros = first.new_zeros(len(first))
        self.usual = zeros + torch.inf
        """Running mean of each model's loss; infinite where none is known yet."""
        self.pace = zeros + 1
        """Factor on each model's step size."""
        self.count, self.returns = zeros.clone(), zeros.clone()
        """Steps since each model last went back, and how often it did."""
        self.rate = first.new_zeros(())

    def set_rate(self, factor: float) -> None:
        """Take steps at `factor` times the configured rate; a captured step reads it on the device."""
        self.rate.fill_(self.config.learning_rate * factor)

    @torch.no_grad()
    def step(
        self,
        losses: Float[Tensor, " models"],
        gradients: Sequence[Tensor | None],
        clip: Callable[[Sequence[Tensor]], None] | None,
    ) -> None:
        """One update of every model, or its return; nothing in it waits for the device."""
        rule, (beta1, beta2) = self.rule, self.config.betas
        slopes = [torch.zeros_like(w) if g is None else g for w, g in zip(self.weights, gradients, strict=True)]
        jumped = self._jumped(losses, slopes)
        if clip is not None:
            clip(slopes)
        _copy_where(jumped, self.safe, self.weights)
        self.returns += jumped
        self.count.copy_(torch.where(jumped, 0, self.count + 1))
        _copy_where(self.count % rule.calm == rule.calm - 1, self.weights, self.safe)
        self.pace.copy_(torch.where(jumped, rule.slower * self.pace, (rule.faster * self.pace).clamp(max=1.0)))
        moved = torch.where(self.usual.isfinite(), rule.memory * self.usual + (1 - rule.memory) * losses, losses)
        # back there another loss is usual; the next step shows which
        self.usual.copy_(torch.where(jumped, torch.inf, moved))
        for weight, gradient, mean, square in zip(self.weights, slopes, self.mean, self.square, strict=True):
            anew = _along(jumped, weight)
            # after going back there is no gradient at this place yet: start anew from standing still
            mean.copy_(torch.where(anew, 0.0, beta1 * mean + (1 - beta1) * gradient))
            square.copy_(torch.where(anew, 0.0, beta2 * square + (1 - beta2) * gradient.square()))
            count = _along(self.count.clamp(min=1), weight)
            size = (square / (1 - beta2**count)).sqrt() + EPSILON
            weight.sub_(_along(self.rate * self.pace, weight) * (mean / (1 - beta1**count)) / size)

    @torch.no_grad()
    def finish(self, losses: Float[Tensor, " models"]) -> None:
        """After the last step: a model whose last update was a jump goes back."""
        _copy_where(self._jumped(losses, []), self.safe, self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """Everything it remembers, by name."""
        lists = {"safe": self.safe, "mean": self.mean, "square": self.square}
        named = {
            f"{name}/{kind}": value
            for kind, values in lists.items()
            for name, value in zip(self.names, values, strict=True)
        }
        return {**named, "usual": self.usual, "pace": self.pace, "count": self.count, "returns": self.returns}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])

    def _jumped(self, losses: Tensor, gradients: Sequence[Tensor]) -> Bool[Tensor, " models"]:
        fine = losses.isfinite() & (losses <= self.rule.jump * self.usual + self.rule.noise)
        for gradient in gradients:
            fine = fine & gradient.flatten(1).isfinite().all(1)
        return ~fine


def _copy_where(models: Bool[Tensor, " models"], source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for new, old in zip(source, target, strict=True):
        old.copy_(torch.where(_along(models, old), new, old))


def _along(values: Tensor, weight: Tensor) -> Tensor:
    """One number a model, shaped to go with a weight."""
    return values.view(-1, *[1] * (weight.ndim - 1))
