"""The best predictors on gao24's tasks: with examples, knowing the representation or the network's form; and without.

A model that is no better than the second has not learned from its examples.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from looped.baselines.linear import least_squares, ridge
from looped.prompt import Prompt, Sequence
from looped.tasks.regression import LinearRegression
from looped.tasks.sequences import AutoRegression, ChainOfThought, RepresentationRegression
from looped.tasks.task import Task

KNOWN = "best known predictor"


def known_representation(task: Task) -> Mapping[str, Any]:
    """A predictor that knows Phi, or on chains of thought the activation, and fits the rest to the examples."""
    if isinstance(task, LinearRegression):
        return {KNOWN: lambda prompt: _fit(prompt.xs, prompt.ys, task.noise)}
    if isinstance(task, RepresentationRegression):
        return {KNOWN: lambda prompt: _fit(task.phi(prompt.xs), prompt.ys, task.noise)}
    if isinstance(task, AutoRegression):
        return {KNOWN: lambda prompt: _next_states(task, prompt)}
    if isinstance(task, ChainOfThought):
        return {KNOWN: lambda prompt: _next_layers(task, prompt)}
    return {}


def without_examples(task: Task) -> Callable[[Any], Tensor]:
    """The best answers of somebody who reads the query alone.

        E[s^l | s^(l-1)] = (1 - slope) std |s^(l-1)| / sqrt(2 pi), W_ij ~ N(0, std^2), on chains of thought

    On the other tasks it is 0: A and -A are equally likely.
    """
    if not isinstance(task, ChainOfThought):
        return lambda prompt: torch.zeros_like(prompt.targets if isinstance(prompt, Sequence) else prompt.ys)
    std = math.sqrt(2 / ((1 + task.slope**2) * task.d))
    factor = (1 - task.slope) * std / math.sqrt(2 * math.pi)
    return lambda prompt: (factor * prompt.tokens.norm(dim=-1, keepdim=True)).expand_as(prompt.tokens)


def _fit(features: Tensor, labels: Tensor, noise: float) -> Tensor:
    """Answers (batch, n) by ridge with the noise's variance, the Bayes estimator; by least squares without noise."""
    prompt = Prompt(features, labels)
    return ridge(prompt, penalty=noise**2) if noise else least_squares(prompt)


def _next_states(task: AutoRegression, prompt: Sequence) -> Tensor:
    """Every coordinate of the next state by regression on Phi of the last states; not a number before there are any."""
    tokens, first = prompt.tokens, task.order - 1
    windows = torch.cat([tokens[:, lag : tokens.shape[1] - first + lag] for lag in range(task.order)], -1)
    answers = _by_coordinate(task.represent(windows), prompt.targets[:, first:], task.noise)
    missing = torch.full_like(prompt.targets[:, :first], torch.nan)
    return torch.cat([missing, answers], 1)


def _next_layers(task: ChainOfThought, prompt: Sequence) -> Tensor:
    """Every layer by least squares on the labels before their activation; not a number where a fresh x comes next."""
    batch, _, d = prompt.tokens.shape
    states = prompt.tokens.view(batch, -1, task.layers + 1, d)
    answers = torch.full_like(states, torch.nan)
    for layer in range(task.layers):
        after = states[:, :, layer + 1]
        before_activation = torch.where(after < 0, after / task.slope, after)
        guess = _by_coordinate(states[:, :, layer], before_activation, 0.0)
        answers[:, :, layer] = torch.nn.functional.leaky_relu(guess, task.slope)
    return answers.flatten(1, 2)


def _by_coordinate(features: Tensor, targets: Tensor, noise: float) -> Tensor:
    """A regression of its own for every coordinate of the targets (batch, n, outputs)."""
    return torch.stack([_fit(features, target.contiguous(), noise) for target in targets.unbind(-1)], -1)
