"""How the gradient of a loss gets from the last loops to the weights, in place of the window that `unroll` has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.functional.fixed_points import Anderson, Repeat, Solver
from looped.models.loop import Context, State, Step, check_loops, tree_map

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GradientRule(ABC):
    """Applies the step and gives what `collect` reads off the last `keep` states, with gradient as the rule says."""

    last_only: ClassVar[bool] = False
    """Whether only the last state has a gradient, so that `keep` must be 1."""
    alike: ClassVar[bool] = False
    """Whether all loops must be the same step, and a state one tensor."""

    @abstractmethod
    def states(self, step: Step, state: State, context: Context, *, loops: int, keep: int, batch_axes: int) -> list:
        """The last `keep` states."""

    def __call__(
        self, step: Step, state: State, context: Context, *, loops: int, keep: int = 1,
        collect: Callable[[State, Context], T], batch_axes: int = 1,
    ) -> list[T]:  # fmt: skip
        """What `collect` reads; the first `batch_axes` axes of a state count prompts, each a problem of its own."""
        check_loops(loops, keep=keep)
        if self.last_only and keep > 1:
            raise ValueError(
                f"{type(self).__name__} gives a gradient to the last loop alone; got keep={keep}. Set it to 1."
            )
        if self.alike and not isinstance(state, Tensor):
            raise ValueError(f"{type(self).__name__} needs a state that is one tensor; got {type(state).__name__}.")
        states = self.states(step, state, context, loops=loops, keep=keep, batch_axes=batch_axes)
        return [collect(state, context) for state in states]


@dataclass(frozen=True, kw_only=True)
class Truncated(GradientRule):
    """Truncated backpropagation: the loss after each loop of the window goes back through `back` loops.

    The window of `train.grad` ends at one place instead: the first loops of the loss get the shortest way back. The
    loops are repeated with gradient for each state: loops + window x back in all.
    """

    back: int
    """Loops that each loss goes back through, or all before it where there are fewer."""

    def __post_init__(self) -> None:
        check_at_least(1, back=self.back)

    def states(self, step: Step, state: State, context: Context, *, loops: int, keep: int, batch_axes: int) -> list:
        """The last `keep` states, each with a graph of its own."""
        starts = {0: state}
        with torch.no_grad():
            for t in range(max(0, loops - self.back)):
                state = step(state, context, t)
                if t + 1 > loops - keep - self.back:
                    starts[t + 1] = tree_map(Tensor.detach, state)
        return [self._again(step, starts, context, last) for last in range(loops - keep + 1, loops + 1)]

    def _again(self, step: Step, starts: dict[int, State], context: Context, last: int) -> State:
        first = max(0, last - self.back)
        state = starts[first]
        for t in range(first, last):
            state = step(state, context, t)
        return state


@dataclass(frozen=True, kw_only=True)
class Phantom(GradientRule):
    """Phantom gradients: loops without gradient, then `back` damped ones with it.

        z <- (1 - damping) z + damping f(z)

    Ref: Geng et al. 2021, the unrolled form. With damping = 1 it is `train.grad=back` with a window of 1.
    """

    back: int = 5
    """Loops with gradient, the last ones."""
    damping: float = 0.5
    """How far each of them goes."""

    last_only = alike = True

    def __post_init__(self) -> None:
        check_at_least(1, back=self.back)
        if not 0 < self.damping <= 1:
            raise ValueError(f"`damping` must be above 0 and at most 1; got {self.damping}.")

    def states(self, step: Step, state: State, context: Context, *, loops: int, keep: int, batch_axes: int) -> list:
        """The last state."""
        first = max(0, loops - self.back)
        with torch.no_grad():
            for t in range(first):
                state = step(state, context, t)
        state = state.detach() if first else state
        for t in range(first, loops):
            state = torch.lerp(state, step(state, context, t), self.damping)
        return [state]


@dataclass(frozen=True, kw_only=True)
class Implicit(GradientRule):
    """Implicit differentiation: the gradient at the fixed point z = f(z), whose memory is that of one loop.

        dL/dweights = g' df/dweights,  g = dL/dz + (df/dz)' g

    Ref: Bai et al. 2019. The solver gets as many calls of the step as there are loops; g is found the same way. It is
    the gradient of endless loops where the solver has converged. Anderson's and Broyden's coefficients read the whole
    prompt, so before they have converged an early answer is not quite causal; at evaluation the loops are plain.
    """

    solver: Solver = field(default_factory=Anderson)
    """Finds the fixed point."""
    adjoint: Solver = field(default_factory=Repeat)
    """Finds g, which is a fixed point too."""
    back: int = 8
    """Calls of the adjoint solver, each as dear as the backward pass of a loop."""

    last_only = alike = True

    def __post_init__(self) -> None:
        check_at_least(1, back=self.back)

    def states(self, step: Step, state: State, context: Context, *, loops: int, keep: int, batch_axes: int) -> list:
        """The fixed point, with one loop's graph and the gradient's rule on it."""
        shape, rows = state.shape, state.shape[:batch_axes].numel()

        def flat(tensor: Tensor) -> Tensor:
            return tensor.reshape(rows, -1)

        with torch.no_grad():
            point = self.solver.solve(lambda z: flat(step(z.view(shape), context, 0)), flat(state), calls=loops)
        if not torch.is_grad_enabled():
            return [point.view(shape)]
        point = point.view(shape).requires_grad_()
        image = step(point, context, 0)

        def solve_adjoint(up: Tensor) -> Tensor:
            def pull(g: Tensor) -> Tensor:
                [back] = torch.autograd.grad(image, point, g.view(shape), retain_graph=True)
                return flat(back + up)

            return self.adjoint.solve(pull, flat(up), calls=self.back).view(shape)

        last = image.clone()
        last.register_hook(solve_adjoint)
        return [last]


def jacobian_penalty(
    step: Step, state: Tensor, context: Context, t: int, direction: Tensor, *, batch_axes: int
) -> Tensor:
    """For each prompt an unbiased estimate of |J|^2 / n, the mean square gain of one loop, by one direction v.

        |J'v|^2 / n,  J = df/dz at z, n numbers a prompt, v ~ N(0, I)

    Ref: Bai et al. 2021. The state counts as given: the penalty shrinks the Jacobian there and does not move z.
    """
    point = state.detach().requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no second derivative
        image = step(point, context, t)
        [pulled] = torch.autograd.grad(image, point, direction, create_graph=True)
    return pulled.square().flatten(batch_axes).mean(-1)
