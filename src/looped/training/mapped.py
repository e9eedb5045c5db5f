"""A stack of models that know nothing of an axis of models: torch.func maps each of their methods over it."""

import contextlib
import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from looped.models.base import LoopedModel
from looped.models.blocks import stack
from looped.models.loop import Context, State
from looped.prompt import AnyPrompt, Prompt
from looped.prompt import Sequence as Tokens

for kind in (Prompt, Tokens):  # so that a prompt can be mapped over its models, alone or as part of a context
    pytree.register_pytree_node(
        kind,
        lambda prompt: ([*vars(prompt).values()], [*vars(prompt)]),
        lambda values, names, kind=kind: kind(**dict(zip(names, values, strict=True))),
    )


class MappedStack(LoopedModel):
    """A stack of any models: each method is the models' own, mapped over the axis of models by torch.func."""

    def __init__(self, models: Sequence[LoopedModel]):
        super().__init__(models[0].config)
        # the weights have the names that they have in each model, as the checkpoints of runs need them
        vars(self).update(vars(stack(models)))
        self.steady, self.causal, self.left_to_adam = models[0].steady, models[0].causal, models[0].left_to_adam
        single = copy.deepcopy(models[0])
        self.single = (single,)  # in a tuple, since its weights are not ours
        self.slots: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            (ours, theirs, name)
            for module, other in zip(self.modules(), single.modules(), strict=True)
            for ours, theirs in ((module._parameters, other._parameters), (module._buffers, other._buffers))
            for name, tensor in ours.items()
            if tensor is not None
        ]
        """Where a weight of all models lies, and where `single` looks for it; torch's `functional_call` is slower."""
        # where torch has no rule for an operation it loops over the models there, and says so at each call
        warnings.filterwarnings("ignore", message=".*not yet implemented the batching rule", category=UserWarning)

    def embed(self, prompt: AnyPrompt) -> Context:
        """Each model's `embed`."""
        return self._mapped("embed", prompt)

    def start(self, context: Context) -> State:
        """Each model's `start`."""
        return self._mapped("start", context)

    def step(self, state: State, context: Context, t: int) -> State:
        """Each model's `step`."""
        return self._mapped("step", state, context, t)

    def readout(self, state: State, context: Context) -> Tensor:
        """Each model's `readout`."""
        return self._mapped("readout", state, context)

    def _mapped(self, method: str, *inputs: Any) -> Any:
        leaves, form = pytree.tree_flatten(inputs)
        outputs: list[tuple[list[Any], Any]] = []

        def call(weights: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
            before = [theirs[name] for _, theirs, name in self.slots]
            try:
                self._place(weights)
                output = getattr(self.single[0], method)(*pytree.tree_unflatten(_filled(leaves, tensors), form))
            finally:
                self._place(before)
            outputs.append(pytree.tree_flatten(output))
            return _tensors(outputs[-1][0])

        weights = [ours[name] for ours, _, name in self.slots]
        # as plain operations: torch's kernels of attention for the CPU would be called for one model after another
        with _Rules(), sdpa_kernel(SDPBackend.MATH) if weights[0].is_cpu else contextlib.nullcontext():
            tensors = vmap(call, randomness="different")(weights, _tensors(leaves))
        values, shape = outputs[0]
        return pytree.tree_unflatten(_filled(values, tensors), shape)

    def _place(self, weights: Sequence[Tensor]) -> None:
        for (_, theirs, name), weight in zip(self.slots, weights, strict=True):
            theirs[name] = weight


def _tensors(leaves: list[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _filled(leaves: list[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """The leaves with other tensors; what is no tensor, such as None, stays."""
    left = iter(tensors)
    return [next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


class _Rules(TorchFunctionMode):
    """Write `nn.GRUCell` in operations that torch can map: itself, it would be a loop over the models."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gru_cell(*args) if func is torch.gru_cell else func(*args, **(kwargs or {}))


def _gru_cell(x: Tensor, state: Tensor, w_x: Tensor, w_state: Tensor, *biases: Tensor | None) -> Tensor:
    """n + z (h - n), n = tanh(W_n x + r U_n h), r = sigmoid(W_r x + U_r h), z = sigmoid(W_z x + U_z h)."""
    b_x, b_state = (*biases, None, None)[:2]
    reset, update, new = F.linear(x, w_x, b_x).chunk(3, -1)
    reset_state, update_state, new_state = F.linear(state, w_state, b_state).chunk(3, -1)
    new = (new + (reset + reset_state).sigmoid() * new_state).tanh()
    return new + (update + update_state).sigmoid() * (state - new)
