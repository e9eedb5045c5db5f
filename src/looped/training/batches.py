"""The prompts of every training step, and the step's schedules: how many loops, dimensions and pairs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from looped.experiment import Experiment
from looped.functional.streams import stream
from looped.prompt import AnyPrompt, join
from looped.tasks.task import SequenceTask


@dataclass(frozen=True)
class Now:
    """What changes from step to step: numbers, or tensors on the device that a captured step reads."""

    step: int | Tensor
    rate: float | Tensor
    """Factor on the learning rates."""
    dims: int | Tensor | None
    """Active dimensions; None: all."""
    points: int | Tensor
    """Scored pairs."""
    decay: float | Tensor
    """Of the running average of the weights."""


class Batches:
    """Draws a stack's prompts, one model's after the other: each model has a random stream of its own."""

    def __init__(
        self, experiment: Experiment, seeds: Sequence[int], *,
        device: torch.device, dtype: torch.dtype, causal: bool,
    ):  # fmt: skip
        self.experiment, self.config, self.task = experiment, experiment.train, experiment.task
        self.device, self.dtype, self.causal = device, dtype, causal
        self.generators = [torch.Generator(device).manual_seed(stream(seed, "prompts")) for seed in seeds]
        self.pool = self._draw_pool(seeds)

    def now(self, step: int) -> Now:
        """What changes from step to step."""
        config = self.config
        return Now(
            step=step,
            rate=config.value(config.optimizer.schedule, step),
            dims=None if config.dims is None else int(config.value(config.dims, step)),
            points=self._points(step),
            # a young average must forget its first weights soon
            decay=min(config.average or 0.0, (step + 1) / (step + 10)),
        )

    def loops(self, step: int) -> tuple[int, dict[str, Any]]:
        """The loops of a step, and how many of them carry gradient and enter the loss."""
        loops = self.experiment.loops_at(step)
        return loops, self.config.windows(loops)

    def draw(self, now: Now, num_pairs: int | None = None) -> AnyPrompt:
        """Prompts, fresh or out of the pool, with the weights of their pairs; each model has its own.

        Pairs behind the first `num_pairs` are dropped.
        """
        prompt = self._weigh(join([self._sample(now, index) for index in range(len(self.generators))]), now)
        return prompt if num_pairs is None else prompt.head(num_pairs)

    def _weigh(self, prompt: AnyPrompt, now: Now) -> AnyPrompt:
        config = self.config
        if config.active_points is None and not config.emphasis:
            return prompt
        # a point of a sequence may be several tokens: a chain of thought is one for every step
        tokens_per_point = prompt.num_positions // config.points
        places = torch.arange(prompt.num_positions, device=self.device)
        weights = (places < tokens_per_point * now.points).to(self.dtype)
        if config.emphasis:
            weights = weights * ((places + 1).to(self.dtype) / config.points) ** config.emphasis
        weights = weights.expand(prompt.places)
        return replace(prompt, weights=weights if prompt.weights is None else weights * prompt.weights)

    def weigh_loops(self, error: Tensor) -> Tensor:
        """Errors after the loops of the window, each times its weight; a step of fewer loops has the last weights."""
        if self.config.loop_weights is None:
            return error
        weights = error.new_tensor(self.config.loop_weights[-len(error) :])
        return error * (weights / weights.mean()).view(-1, *[1] * (error.ndim - 1))

    def num_pairs(self, step: int) -> int | None:
        """The pairs that a step's prompts are cut to: the scored ones, rounded up to a quarter of all; None: all.

        A model that answers every pair from those before it gives the same answers in less time. With `lengths` the
        number is one of those; the step alone decides which, as in every schedule.
        """
        points = self.config.points
        if self.config.lengths:
            return random.Random(f"lengths of step {step}").choice(self.config.lengths)
        if self.config.active_points is None or isinstance(self.task, SequenceTask) or not self.causal:
            return None
        quarter = -(-points // 4)
        return min(points, -(-self._points(step) // quarter) * quarter)

    def _sample(self, now: Now, index: int) -> AnyPrompt:
        config, generator = self.config, self.generators[index]
        if self.pool is not None:
            rows = torch.randint(config.pool or 0, (config.batch,), generator=generator, device=self.device)
            return self.pool[index].rows(rows)
        prompt = self.task.draw(batch=config.batch, n=config.points, generator=generator, dims=now.dims)
        return prompt.to(self.dtype)

    def _draw_pool(self, seeds: Sequence[int]) -> list[AnyPrompt] | None:
        if self.config.pool is None:
            return None
        generators = [torch.Generator(self.device).manual_seed(stream(seed, "pool")) for seed in seeds]
        size = {"batch": self.config.pool, "n": self.config.points}
        return [self.task.draw(**size, generator=generator).to(self.dtype) for generator in generators]

    def _points(self, step: int) -> int:
        schedule, points = self.config.active_points, self.config.points
        return points if schedule is None else min(points, int(self.config.value(schedule, step)))


def at_points(errors: Tensor, points: int | Tensor) -> Tensor:
    """The last scored position of (..., positions); a model that reads the last pair as its query has only one."""
    if isinstance(points, int):
        return errors[..., :points][..., -1:]
    return errors.index_select(-1, (points.long().clamp(max=errors.shape[-1]) - 1).view(1))


def share_of(mean: Tensor, prompt: AnyPrompt, whole: AnyPrompt) -> Tensor:
    """The share of this rank in the global mean: all of it in a process on its own."""
    rows, all_rows = prompt.places[-2], whole.places[-2]
    return mean if rows == all_rows else mean * (rows / all_rows)
