"""Several models of one shape as one, to be trained as a stack: what is possible is measured, not guessed.

Models made of `looped.models.blocks` read an axis of models themselves. Others are mapped over it by torch.func. What
neither can do (random numbers, shapes that depend on data, in-place changes) is trained one model after another.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.experiment import Experiment
from looped.files import one_line
from looped.functional.streams import seeded, stream
from looped.models.base import LoopedModel
from looped.models.blocks import stack
from looped.prompt import AnyPrompt, join
from looped.training.mapped import MappedStack

MAX_BATCH, MAX_LOOPS = 4, 3
"""The prompts and loops on which a stack is compared with its models alone."""
TOLERANCE = 1e-3
"""How far losses and gradients may differ, relative to the largest; rounding is 1e-6, in TF32 1e-4."""


class NotStackable(ValueError):
    """These models cannot be trained as one stack."""


def join_models(models: Sequence[LoopedModel], experiment: Experiment) -> LoopedModel:
    """The models as one that equals each of them, or `NotStackable` with the reason.

    Loss and gradients of two of the models are measured on a few prompts, together and alone.
    """
    prompts = [few_prompts(models[0], experiment, index) for index in range(2)]
    if draws_random_numbers(models[0], prompts[0]):
        raise NotStackable("they draw random numbers, and each must draw its own")
    pair = models[:2]
    alone = [_measured(copy.deepcopy(model), experiment, [prompt]) for model, prompt in zip(pair, prompts, strict=True)]
    reason = ""
    for kind in (stack, MappedStack):
        if kind is MappedStack and experiment.train.dropout:
            raise NotStackable("`train.dropout` needs blocks of looped alone")
        try:
            together = _measured(kind(pair), experiment, prompts)
        except Exception as error:  # whatever a model of the user's own does with an axis of models
            reason = one_line(error).partition(". ")[0][:120] or type(error).__name__
            continue
        if _agree(together, alone):
            return kind(models)
        reason = "as a stack they give other losses or gradients"
    raise NotStackable(reason)


def draws_random_numbers(model: LoopedModel, prompt: AnyPrompt) -> bool:
    """Whether the model draws from torch's global generators while it answers."""
    device = next(model.parameters()).device

    def state() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    with seeded(0, "draws"), torch.no_grad():
        before = state()
        copy.deepcopy(model)(prompt, loops=min(model.config.loops, MAX_LOOPS))
        return not all(map(torch.equal, before, state()))


def few_prompts(model: LoopedModel, experiment: Experiment, index: int) -> AnyPrompt:
    """Prompts of the experiment's task to measure a model on; another `index` gives others."""
    weight, config = next(model.parameters()), experiment.train
    generator = torch.Generator(weight.device).manual_seed(stream(index, "joining"))
    size = min(config.batch, MAX_BATCH)
    return experiment.task.draw(batch=size, n=config.points, generator=generator).to(weight.dtype)


def _measured(model: LoopedModel, experiment: Experiment, prompts: Sequence[AnyPrompt]) -> list[list[Tensor]]:
    """Each model's loss, then the gradients of its weights; with several prompts the model is a stack."""
    prompt: Any = join(prompts)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with seeded(0, "draws"):
        error = experiment.task.error(model(prompt, loops=min(model.config.loops, MAX_LOOPS)), prompt)
    losses = error.transpose(0, 1).flatten(1).mean(1) if len(prompts) > 1 else error.mean()[None]
    slopes = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
    together = [losses.detach(), *(slope for slope in slopes if slope is not None)]
    return [[part[i] if len(prompts) > 1 else part for part in together] for i in range(len(prompts))]


def _agree(together: Sequence[Sequence[Tensor]], alone: Sequence[Sequence[list[Tensor]]]) -> bool:
    """Whether a stack's numbers are those of its models, up to rounding of the largest."""
    for parts, (wanted,) in zip(together, alone, strict=True):
        if [part.numel() for part in parts] != [part.numel() for part in wanted]:
            return False
        left, right = (torch.cat([part.flatten() for part in tensors]) for tensors in (parts, wanted))
        if not float((left - right).abs().max()) <= TOLERANCE * float(right.abs().max()):  # false where not a number
            return False
    return True
