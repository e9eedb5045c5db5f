"""What can be read off a model's states: small networks trained to recover a quantity, loop by loop.

A probe for i examples reads the tokens of the first i pairs only, in the state after one loop (or layer). There is a
probe for every loop, number of examples and target. All of them train together as one batch of models, and each comes
out as if it had trained alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import Curve, Findings
from looped.evaluation.errors import check_prompts, weight_of
from looped.evaluation.properties import reads_later
from looped.functional.counts import check_at_least
from looped.functional.streams import generator_of, seeded, stream
from looped.models.base import LoopedModel
from looped.prompt import Prompt
from looped.tasks.task import Task

Target = Callable[[Prompt], Tensor]
"""The first i pairs of every prompt -> (batch, out): what a probe of those pairs should recover."""
CHUNK = 128
"""Prompts judged at once."""


def gradient(prompt: Prompt) -> Float[Tensor, "batch d"]:
    """X'y / i: the gradient of least squares at w = 0. Ref: yang24, App. F; divided by i so that lengths compare."""
    return torch.einsum("bnd,bn->bd", prompt.xs, prompt.ys) / prompt.num_examples


def least_squares_weights(prompt: Prompt) -> Float[Tensor, "batch d"]:
    """w_ols, the shortest where there are several: pinv(X) y. Ref: yang24, App. F.

    Uses the smaller of XX' and X'X, in float64: eigenvalues of many small symmetric matrices are fast.
    """
    xs, ys = prompt.xs.double(), prompt.ys.double()[..., None]
    if prompt.num_examples <= prompt.d:
        w = xs.mT @ (torch.linalg.pinv(xs @ xs.mT, hermitian=True) @ ys)
    else:
        w = torch.linalg.pinv(xs.mT @ xs, hermitian=True) @ (xs.mT @ ys)
    return w.squeeze(-1).to(prompt.xs.dtype)


TARGETS: dict[str, Target] = {"X'y": gradient, "w_ols": least_squares_weights}
"""yang24's targets."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """How well one target can be read off, by loop and by number of examples."""

    target: str
    """Its name."""
    mean: list[list[float]]
    """By loop, then by length: E |v - probe|^2 / out, on prompts that no probe was trained on."""
    low: list[list[float]]
    """Lower ends of the intervals over prompts."""
    high: list[list[float]]
    """Upper ends."""
    by_loop: Curve
    """The same averaged over the lengths, prompt by prompt, with its own interval: what yang24's Fig. 8 draws."""
    zero: list[float]
    """[length]: E |v|^2 / out, what answering 0 scores."""


@dataclass(frozen=True, kw_only=True)
class Probes(Findings):
    """All probes of a model."""

    loops: list[int]
    """1, 2, ...: after which loop, or layer, a state was read."""
    lengths: list[int]
    """Numbers of examples."""
    probed: list[Probed]
    """One for each target."""
    control: list[Probed]
    """The same for probes trained on w = 1 alone, which know only the distribution of x; judged like the others."""


@seeded(0, "evaluation")
def probe(
    model: LoopedModel,
    task: Task,
    targets: Mapping[str, Target] = TARGETS,
    *,
    points: int,
    loops: int | None = None,
    lengths: Sequence[int] | None = None,
    control: bool = True,
    hidden: int = 64,
    steps: int = 2000,
    batch: int = 64,
    learning_rate: float = 1e-3,
    prompts: int = 1280,
    seed: int = 0,
    level: float = 0.9,
) -> Probes:
    """Train and judge a probe for every target, loop up to `loops` and number of examples in `lengths`.

        probe(Y) = W_2 relu(W_1 z + b_1) + b_2,  z = sum over t < 2i of softmax(s)_t Y_t

    Ref: yang24, App. F (`hidden` 64, Adam at 1e-3; steps and batch are not stated). Errors are divided by the number
    of coordinates once; the published program divides twice, and its probes see tokens of later pairs. Every step has
    fresh prompts, and the judged ones come from another random stream. `lengths` is 1 .. points - 1 unless given;
    prompts are as long as the longest.
    """
    lengths = list(range(1, points)) if lengths is None else list(lengths)
    if not targets or not lengths or min(lengths) < 1 or max(lengths) > points:
        raise ValueError(f"`lengths` must be numbers of examples in [1, points={points}], at least one; got {lengths}.")
    check_at_least(1, hidden=hidden, steps=steps, batch=batch)
    check_prompts(prompts)
    weight = weight_of(model)
    reader = _Reader(model, task, targets, lengths, loops, weight.dtype)
    first, second = (reader.sample(2, torch.Generator().manual_seed(stream(seed, part) % 2**32)) for part in "ab")
    if reads_later(reader.states_by_pair, first.to(weight.device), second.to(weight.device)) is not None:
        raise ValueError(
            "only causal models can be probed: in this model the state of an early token knows later pairs."
        )
    trained_on = torch.Generator(weight.device).manual_seed(stream(seed, "probes") % 2**32)
    # on the CPU, as `evaluate` draws them
    test_prompts = reader.sample(prompts, generator_of(seed)).to(weight.device)
    states, goals = reader.read(test_prompts.rows(slice(2)))
    stack = ProbeStack(
        groups=2 if control else 1,
        targets=[goal.shape[-1] for goal in goals],
        loops=len(states),
        lengths=lengths,
        width=states.shape[-1],
        hidden=hidden,
        generator=trained_on,
        dtype=weight.dtype,
    )
    optimizer = torch.optim.Adam(stack.parameters, lr=learning_rate)
    for _ in range(steps):
        fresh = reader.sample(batch, trained_on)
        parts = [reader.read(prompt) for prompt in ([fresh, reader.fixed(fresh)] if control else [fresh])]
        states = torch.stack([part[0] for part in parts])
        goals = [torch.stack(goal) for goal in zip(*(part[1] for part in parts), strict=True)]
        optimizer.zero_grad()
        stack.errors(states, goals).mean(-1).sum().backward()
        optimizer.step()
    errors, zero = _judge(stack, reader, test_prompts)
    loops_read = list(range(1, errors.shape[3] + 1))

    def probed(group: int, index: int, name: str) -> Probed:
        values = errors[:, group, index]
        table = {key: part.tolist() for key, part in bootstrap(values, level=level, seed=seed)._asdict().items()}
        curve = Curve.over_prompts(name, loops_read, values.mean(-1), level=level, seed=seed)
        return Probed(target=name, by_loop=curve, zero=zero[:, index].mean(0).tolist(), **table)

    groups = [[probed(group, index, name) for index, name in enumerate(targets)] for group in range(stack.groups)]
    return Probes(
        task=repr(task),
        prompts=prompts,
        level=level,
        loops=loops_read,
        lengths=lengths,
        probed=groups[0],
        control=groups[1] if control else [],
    )


class ProbeStack:
    """Probes of one shape side by side, (groups, targets, loops, lengths), each independent of all others."""

    def __init__(
        self,
        *,
        groups: int,
        targets: Sequence[int],
        loops: int,
        lengths: Sequence[int],
        width: int,
        hidden: int,
        generator: torch.Generator,
        dtype: torch.dtype,
    ):
        """`targets` holds the size of each target; the smaller ones leave the rest of their outputs unused."""
        self.groups = groups
        device, lead, out = generator.device, (groups, len(targets), loops, len(lengths)), max(targets)

        def uniform(*shape: int, fan_in: int) -> Tensor:
            drawn = torch.rand(*lead, *shape, generator=generator, device=device, dtype=dtype)
            return ((2 * drawn - 1) / fan_in**0.5).requires_grad_()

        tokens = torch.arange(2 * max(lengths), device=device)
        self.hidden_tokens = tokens >= 2 * torch.tensor(list(lengths), device=device)[:, None]
        self.scores = torch.zeros(*lead, len(tokens), device=device, dtype=dtype, requires_grad=True)
        self.w_1, self.b_1 = uniform(width, hidden, fan_in=width), uniform(1, hidden, fan_in=width)
        self.w_2, self.b_2 = uniform(hidden, out, fan_in=hidden), uniform(1, out, fan_in=hidden)

    @property
    def parameters(self) -> list[Tensor]:
        """Everything that is trained."""
        return [self.scores, self.w_1, self.b_1, self.w_2, self.b_2]

    def __call__(
        self, states: Float[Tensor, "groups loops batch tokens width"]
    ) -> Float[Tensor, "groups targets loops lengths batch out"]:
        """What every probe answers."""
        weights = self.scores.masked_fill(self.hidden_tokens, -torch.inf).softmax(-1)
        pooled = torch.einsum("gqlkt,glbtw->gqlkbw", weights, states)
        return torch.relu(pooled @ self.w_1 + self.b_1) @ self.w_2 + self.b_2

    def errors(self, states: Tensor, goals: Sequence[Tensor]) -> Float[Tensor, "groups targets loops lengths batch"]:
        """Mean square over the coordinates of each target; a goal is (groups, lengths, batch, out)."""
        pairs = zip(self(states).unbind(1), goals, strict=True)
        return torch.stack([(got[..., : goal.shape[-1]] - goal[:, None]).square().mean(-1) for got, goal in pairs], 1)


@dataclass(frozen=True)
class _Reader:
    """Prompts, the states that a model makes of them, and the targets."""

    model: LoopedModel
    task: Task
    targets: Mapping[str, Target]
    lengths: Sequence[int]
    loops: int | None
    dtype: torch.dtype

    def sample(self, batch: int, generator: torch.Generator) -> Prompt:
        """Fresh prompts, as long as the longest probe needs."""
        return self.task.sample(batch=batch, n=max(self.lengths), generator=generator).to(self.dtype)

    def fixed(self, prompt: Prompt) -> Prompt:
        """The control task: the same x, labelled by w = 1."""
        w = prompt.truth.get("w")
        if w is None or w.shape != prompt.xs[:, 0].shape:
            raise ValueError(
                f"the control fixes w to 1, and {type(self.task).__name__} has no w. "
                "Use `control=False`, or a linear task."
            )
        ones = {**prompt.truth, "w": torch.ones_like(w)}
        return Prompt(prompt.xs, self.task.labels(prompt.xs, ones), truth=ones)

    def states_by_pair(self, prompt: Prompt) -> Float[Tensor, "batch n numbers"]:
        """All states of the two tokens of every pair."""
        states, _ = self.read(prompt)
        return states.permute(1, 2, 0, 3).unflatten(1, (-1, 2)).flatten(2)

    def read(self, prompt: Prompt) -> tuple[Tensor, list[Tensor]]:
        """States (loops, batch, tokens, width), and every target as (lengths, batch, out)."""
        states = self.model.states(prompt, self.loops)
        tokens = 2 * prompt.num_examples
        if not all(isinstance(state, Tensor) and state.shape[:2] == (len(prompt.xs), tokens) for state in states):
            raise ValueError(
                "a probe reads a state with two tokens a pair, such as a decoder's; this model's states differ."
            )
        heads = [prompt.head(length) for length in self.lengths]
        goals = [torch.stack([target(head) for head in heads]) for target in self.targets.values()]
        return torch.stack(states), goals


@torch.no_grad()
def _judge(stack: ProbeStack, reader: _Reader, prompt: Prompt) -> tuple[Tensor, Tensor]:
    """Errors (prompts, groups, targets, loops, lengths), and what 0 scores (prompts, targets, lengths)."""
    errors, zero = [], []
    for part in prompt.chunks(CHUNK):
        states, goals = reader.read(part)
        shared = [goal.expand(stack.groups, *goal.shape) for goal in goals]
        errors.append(stack.errors(states.expand(stack.groups, *states.shape), shared).movedim(-1, 0).cpu())
        zero.append(torch.stack([goal.square().mean(-1) for goal in goals]).movedim(-1, 0).cpu())
    return torch.cat(errors), torch.cat(zero)
