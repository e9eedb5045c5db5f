"""The attention-only transformer behind cheng24, chen24 and gatmiry24, multilayer or looped.

    Z <- Z + scale sum over heads of V Z M h(B X, C X)

Tokens are rows here, columns in cheng24 and gatmiry24. A row is (x, y, registers, positions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from looped.functional import kernels
from looped.functional.attention import kernel_attention
from looped.functional.counts import check_at_least
from looped.functional.kernels import Kernel
from looped.models import patterns
from looped.models.base import LoopedModel, ModelConfig, only_pairs
from looped.prompt import AnyPrompt

Readout = Callable[[Tensor, int], Tensor]
"""(query row (*batch width), d) -> what the model answers (*batch out)."""


def query_label(row: Float[Tensor, "*batch width"], d: int) -> Float[Tensor, "*batch 1"]:
    """Minus the query's label coordinate, which is a prediction of +y.

    Ref: cheng24, Eq. (4); gatmiry24, Eq. (3), whose sign this is: 'the output equals y_q' of Section 2.3 is a misprint.
    """
    return -row[..., d : d + 1]


def query_covariates(row: Float[Tensor, "*batch width"], d: int) -> Float[Tensor, "*batch d"]:
    """Minus the query's covariates: the generated vector.

    Ref: chen24, Definition 3.6.
    """
    return -row[..., :d]


@dataclass(frozen=True, kw_only=True)
class Head:
    """One attention head: its kernel, and which entries of its matrices are free."""

    kernel: Kernel = kernels.linear
    """h, a function of (keys, queries): a kernel, `attention.softmax`, or any function like them."""
    value: patterns.ValuePattern
    """The values V z_i of the examples."""
    scores: patterns.ScorePattern
    """What the kernel reads: h(B z_i, C z_j)."""


@dataclass(frozen=True, kw_only=True)
class KernelTransformerConfig(ModelConfig):
    """The fields of a kernel transformer; `restricted`, `unrestricted`, `functional` and `vector` fill in a paper's."""

    d: int
    """Dimension of the covariates."""
    layers: int = 1
    """How many layers have their own weights; loop t uses layer t, and the last one from there on. 1 is looped."""
    heads: tuple[Head, ...]
    """The heads of every layer; their updates add."""
    scale: float = 1.0
    """Factor on the update: 1 in cheng24, -1 in chen24 and gatmiry24."""
    mean: bool = False
    """Whether the update is divided by the number of examples, as in gatmiry24."""
    hide_label: bool = True
    """Whether the last pair's label is hidden from the model; chen24's is its input, alpha."""
    query_only: bool = False
    """Whether only the last row attends, and so is updated: chen24's causal mask."""
    registers: int = 0
    """Coordinates that start at zero, for constructions that need to remember more than (x, y)."""
    positions: int = 0
    """Coordinates of a one-hot position, one for each example a prompt may hold; the query has none."""
    readout: Readout = query_label
    """What is read off the last row."""
    models: int | None = None
    """How many models there are, as a leading axis of every weight; None: one, without the axis."""
    init_std: float = 0.1
    """Standard deviation of the initial weights."""

    reads_query_last = True

    @property
    def width(self) -> int:
        """Length of a row."""
        return self.d + 1 + self.registers + self.positions

    def build(self) -> KernelTransformer:
        """A model with normal weights."""
        return KernelTransformer(self)

    @property
    def max_examples(self) -> int | None:
        """One position to an example; any number without positions."""
        return self.positions or None

    @property
    def hides_labels(self) -> bool:
        """`hide_label`."""
        return self.hide_label

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, d=self.d, layers=self.layers, heads=len(self.heads), models=self.models or 1)
        narrow = self.d + 1
        both = [pattern for head in self.heads for pattern in (head.value, head.scores)]
        reads_rest = any(pattern.shapes(self.d, self.width) != pattern.shapes(self.d, narrow) for pattern in both)
        if self.width > narrow and not reads_rest:
            raise ValueError(
                "no head reads more of a row than (x, y), so `registers` and `positions` must be 0; got "
                f"{self.registers} and {self.positions}. Use a head with `FullValue` or `FullScores`."
            )


class Rows(NamedTuple):
    """The rows as they enter the first loop."""

    rows: Float[Tensor, "*models batch tokens width"]


class KernelHead(nn.Module):
    """The free weights of one head, `(*models, layers, *shape)`, under the names its patterns give them."""

    def __init__(self, head: Head, config: KernelTransformerConfig):
        super().__init__()
        self.head, self.config = head, config
        lead = (config.layers,) if config.models is None else (config.models, config.layers)
        shapes = head.value.shapes(config.d, config.width) | head.scores.shapes(config.d, config.width)
        self.ranks = {name: len(shape) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(config.init_std * torch.randn(*lead, *shape)))

    def at(self, layer: int) -> dict[str, Tensor]:
        """The weights of one layer, with an axis of one where the rows have their batch."""
        return {name: weight.narrow(-1 - self.ranks[name], layer, 1) for name, weight in self.named_parameters()}

    def forward(self, rows: Float[Tensor, "*batch tokens width"], layer: int) -> Float[Tensor, "*all queries width"]:
        """What the head adds to every row, or to the last one alone.

        out_j = sum over the examples i of h(B z_i, C z_j) V z_i
        """
        weights, d, examples = self.at(layer), self.config.d, rows[..., :-1, :]
        readers = rows[..., -1:, :] if self.config.query_only else rows
        return kernel_attention(
            self.head.scores.queries(readers, weights, d),
            self.head.scores.keys(examples, weights, d),
            self.head.value.values(examples, weights, d),
            self.head.kernel,
        )


class KernelTransformer(LoopedModel):
    """Attention layers alone, with residuals: the last pair of a prompt is the query, all pairs before are examples.

        Z <- Z + scale sum over heads of V Z M h(B X, C X),  M = diag(I_n, 0)

    Ref: cheng24, Eq. (3) and (26); gatmiry24, Eq. (2) and (4); chen24, Definition 3.6. With `models`, a prompt may
    have the axis too, or be shared by all; `settle` wants the batch first, so it is for one model.
    """

    config: KernelTransformerConfig

    def __init__(self, config: KernelTransformerConfig):
        super().__init__(config)
        self.heads = nn.ModuleList(KernelHead(head, config) for head in config.heads)

    @property
    def steady(self) -> bool:
        """With one layer for all loops."""
        return self.config.layers == 1

    @torch.no_grad()
    def put(self, head: int = 0, **weights: float | Tensor) -> None:
        """Set a head's weights by name, each broadcast to its shape: one without a layer axis goes to every layer."""
        free = dict(self.heads[head].named_parameters())
        for name, value in weights.items():
            if name not in free:
                raise ValueError(f"head {head} has no weight `{name}`; it has {sorted(free)}. Use one of them.")
            free[name].copy_(torch.as_tensor(value, dtype=free[name].dtype))

    def embed(self, prompt: AnyPrompt) -> Rows:
        """Rows (x_i, y_i, 0, e_i) and (x_q, 0 or y_q, 0, 0)."""
        prompt = only_pairs(prompt)
        config, n = self.config, prompt.num_examples - 1
        if prompt.d != config.d:
            raise ValueError(f"the model reads `d`={config.d}; got a prompt with d={prompt.d}. Build it for that d.")
        if n < 1:
            raise ValueError("the last pair is the query, so a prompt needs at least 2 pairs; got 1. Add an example.")
        if 0 < config.positions < n:
            raise ValueError(f"`positions`={config.positions} is too few for {n} examples. Raise it to {n}.")
        labels = prompt.ys
        if config.hide_label:
            labels = torch.cat([labels[..., :-1], torch.zeros_like(labels[..., -1:])], -1)
        extra = labels.new_zeros(*labels.shape, config.registers + config.positions)
        if config.positions:
            extra[..., :n, config.registers : config.registers + n] = torch.eye(n, dtype=extra.dtype)
        return Rows(torch.cat([prompt.xs, labels[..., None], extra], -1))

    def start(self, context: Rows) -> Tensor:
        """The embedded prompt itself."""
        return context.rows

    def step(self, state: Tensor, context: Rows, t: int) -> Tensor:
        """One layer: loop t uses layer t, or the last one."""
        layer = min(t, self.config.layers - 1)
        update = torch.stack([head(state, layer) for head in self.heads]).sum(0)
        scale = self.config.scale / (state.shape[-2] - 1 if self.config.mean else 1)
        if self.config.query_only:
            update = pad(update, (0, 0, state.shape[-2] - 1, 0))
        return state + scale * update

    def readout(self, state: Tensor, context: Rows) -> Tensor:
        """What `config.readout` reads off the query's row: a prediction of +y, or chen24's vector."""
        return self.config.readout(state[..., -1, :], self.config.d)


def restricted(
    *, d: int, loops: int, layers: int = 1, kernel: Kernel = kernels.linear, tilted: bool = False, **fields
) -> KernelTransformerConfig:
    """Restricted attention: P = (0; u', 1), u = 0 unless `tilted`, and Q = diag(A, 0).

        y <- y - (1/n) (y + X u)' h(X, A X)

    Ref: gatmiry24, Eq. (2) and (5). `layers` = `loops` is its multilayer model, `layers` = 1 its looped one.
    """
    value = patterns.RestrictedValue() if tilted else patterns.UnitValue()
    head = Head(kernel=kernel, value=value, scores=patterns.CovariateScores())
    return KernelTransformerConfig(d=d, loops=loops, layers=layers, heads=(head,), scale=-1.0, mean=True, **fields)


def unrestricted(
    *, d: int, loops: int, layers: int = 1, kernel: Kernel = kernels.linear, **fields
) -> KernelTransformerConfig:
    """Attention with free P and Q over whole rows.

        Z <- Z - (1/n) P Z M h(Z, Q Z)

    Ref: gatmiry24, Eq. (2).
    """
    head = Head(kernel=kernel, value=patterns.FullValue(), scores=patterns.FullScores())
    return KernelTransformerConfig(d=d, loops=loops, layers=layers, heads=(head,), scale=-1.0, mean=True, **fields)


def functional(
    *, d: int, loops: int, layers: int, kernel: Kernel | tuple[Kernel, ...], transform: bool = True, **fields
) -> KernelTransformerConfig:
    """Heads with V = diag(A, r), A = 0 unless `transform`, one for each kernel.

        Z <- Z + sum over heads of V Z M h(B X, C X)

    Ref: cheng24, Eq. (3) and (26), Assumption 4.4.
    """
    value, scores = patterns.BlockValue() if transform else patterns.LabelValue(), patterns.FactoredScores()
    each_kernel = kernel if isinstance(kernel, tuple) else (kernel,)
    heads = tuple(Head(kernel=head_kernel, value=value, scores=scores) for head_kernel in each_kernel)
    return KernelTransformerConfig(d=d, loops=loops, layers=layers, heads=heads, **fields)


def vector(*, d: int, loops: int, layers: int = 1, **fields) -> KernelTransformerConfig:
    """Linear attention from whole rows into the last row alone; the prompt's last pair is (q, alpha), q = 0 first.

        Z <- Z - (M o (Z Q Z')) Z P

    Ref: chen24, Definitions 3.4 to 3.6. `score` is Q', `value` is eta P'.
    """
    return KernelTransformerConfig(
        d=d,
        loops=loops,
        layers=layers,
        heads=(Head(value=patterns.FullValue(), scores=patterns.FullScores()),),
        scale=-1.0,
        hide_label=False,
        query_only=True,
        readout=query_covariates,
        **fields,
    )
