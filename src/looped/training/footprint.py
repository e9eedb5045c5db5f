"""What a training takes at least of the CPU's memory, measured on one prompt before it is begun."""

import contextlib
import copy
from collections.abc import Callable

import torch
from torch import Tensor

from looped.experiment import Experiment
from looped.functional.memory import check_memory
from looped.functional.streams import seeded
from looped.models.base import LoopedModel, ModelConfig
from looped.training.joining import few_prompts

IN_TRAINING = 4
"""A weight in training is four numbers: itself, its gradient, and two running means of the optimiser."""
MEASURED = 1000
"""Pairs of a prompt that are measured at most."""


def check_weights_fit(config: ModelConfig, *, copies: int = 1) -> None:
    """Refuse a model whose weights alone, this many times, exceed the memory; nothing is allocated to find out."""
    ours = type(config).__module__.startswith("looped.")
    weights: list[Tensor] = []
    # a model of the user's own may need numbers to be built: what it takes shows then
    with contextlib.suppress(*(() if ours else (Exception,))), seeded(0, "weights"), torch.device("meta"):
        weights = [*config.build().parameters()]
    count = sum(weight.numel() for weight in weights)
    check_memory(4 * copies * count, f"{count:,} weights", "Make the model narrower or shallower.")


def check_step_fits(model: LoopedModel, experiment: Experiment, num_models: int) -> None:
    """Refuse a training whose step keeps more activations for the backward pass than the memory holds.

    bytes = models * batch * (first + (loops with gradient - 1) * one more),  both measured on one prompt

    Of a long prompt only the first pairs are measured: what a step keeps grows at least as fast as its prompts.
    """
    train, loops = experiment.train, experiment.model.loops
    whole = few_prompts(model, experiment, 0).rows(slice(1))
    prompt = whole.head(MEASURED)
    first = _saved_bytes(lambda copied: copied(prompt, loops=1), model)
    back = 1 if train.gradient is not None else min(train.grad or loops, loops)
    more = _saved_bytes(lambda copied: copied(prompt, loops=2), model) - first if back > 1 else 0
    longer = whole.num_positions / prompt.num_positions
    needed = num_models * train.batch * longer * (first + (back - 1) * more)
    size = f"{train.batch:,} prompts of {train.points:,} pairs" + (f" for {num_models} models" * (num_models > 1))
    check_memory(needed, f"a step of {size}", "Lower `train.batch`, `train.points`, or `train.grad`.")


def _saved_bytes(run: Callable[[LoopedModel], Tensor], model: LoopedModel) -> int:
    """Bytes of all that a pass saves for its backward pass, but for the weights."""
    copied = copy.deepcopy(model)
    weights = {weight.untyped_storage().data_ptr() for weight in copied.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor  # kept, so that its address stays its own

    with seeded(0, "draws"), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = run(copied)
    del outputs
    return sum(size for address, size in saved.items() if address not in weights)
