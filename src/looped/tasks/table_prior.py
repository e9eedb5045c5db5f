"""Small tables at random: what a predictor for tables is trained on, put together from pieces.

    columns -> function -> noise -> target

Every prompt draws one piece of each kind. All pieces are drawn for all prompts and one is selected, so that shapes do
not depend on what was drawn. `docs/tables.md` shows how to write your own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from looped.functional.counts import check_at_least
from looped.functional.quantiles import pinball, quantile_levels
from looped.prompt import Prompt
from looped.tasks.table_pieces import (
    BESIDE,
    Additive,
    Classes,
    Columns,
    Draws,
    Function,
    Linear,
    Network,
    Noise,
    Number,
    OneClass,
    Prototypes,
    Target,
    Trees,
    standardized_beside,
    units_beside,
)
from looped.tasks.task import Task, active_mask

WIDEST = 6.0
"""No label is further from the mean than this many standard deviations."""
FUNCTIONS: tuple[Function, ...] = (
    Linear(),
    Network(activation="relu"),
    Network(activation="tanh"),
    Network(activation="sine"),
    Trees(),
    Additive(),
    Prototypes(),
)
TARGETS: tuple[Target, ...] = (Number(), Classes())


@dataclass(frozen=True, kw_only=True)
class TablePrior(Task):
    """A random small table in every prompt; its rows have no order.

        y = target(sqrt(1 - s) f(x) + sqrt(s) noise),  standardised by rows that are drawn beside and thrown away

    A random number of features is used, a random number of those matters, and functions are blended with a linear one
    in half of the prompts.
    """

    columns: Columns = field(default_factory=Columns)
    """What the features are like."""
    functions: tuple[Function, ...] = FUNCTIONS
    """One is drawn for each prompt, each as likely; name one twice to have it twice as often."""
    noise: Noise = field(default_factory=lambda: Noise(none=0.25))
    """How noisy labels are."""
    targets: tuple[Target, ...] = TARGETS
    """What is asked for; one is drawn for each prompt."""
    irrelevant: float = 0.5
    """Share of prompts in which some features have no effect."""
    blended: float = 0.5
    """Share of prompts in which a linear function is added to the one drawn."""
    quantiles: int = 0
    """With a model that answers by a mean and so many quantiles, the loss judges them too."""
    answers: int = field(default=1, metadata={"later": True})
    """Labels of every query, each with noise of its own: the mean of their losses varies less from draw to draw."""

    captured = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("functions", "targets"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must name at least one piece; got none.")
        check_at_least(0, quantiles=self.quantiles)
        check_at_least(1, answers=self.answers)

    @property
    def label_variance(self) -> float:
        """A little above 1, as measured: the deviation of the rows beside a prompt is itself drawn."""
        return 1.032

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh tables."""
        draws = Draws(generator, batch, n + BESIDE)
        active = active_mask(self.d, dims, generator.device)
        # small tables are as likely as wide ones: the number of features is uniform on a logarithmic scale
        width = (draws.uniform(1) * (active.sum() + 0.99).log()).exp().floor()
        places = (draws.uniform(self.d) + (1 - active)).argsort(1).argsort(1)
        used = (places < width).float()
        columns = self.columns(draws, self.d)
        relevant = (draws.uniform(self.d) < draws.uniform(1, low=0.1)) | (draws.uniform(1) >= self.irrelevant)
        relevant = relevant | (places == 0)
        read = columns.read * (used * relevant)[:, None]
        values = standardized_beside(draws.select([function(read, draws) for function in self.functions])[..., None])
        linear = standardized_beside(Linear()(read, draws)[..., None])
        share = draws.uniform(1, 1) * (draws.uniform(1, 1) < self.blended)
        values = standardized_beside((1 - share).sqrt() * values + share.sqrt() * linear)[..., 0].clamp(-5, 5)
        # rows are repeated, so that noise and targets are drawn as for more rows of the same prompt
        noisy, noise_share = self.noise(values.repeat(1, self.answers), draws)
        labels = draws.select([target(noisy, draws) for target in self.targets]).unflatten(1, (self.answers, -1)).mT
        mean, deviation = units_beside(labels[..., :1])
        labels = ((labels - mean) / deviation).clamp(-WIDEST, WIDEST)[:, :n]
        xs = (columns.shown * used[:, None])[:, :n]
        truth = {"noise": noise_share, "features": used.sum(-1), "answers": labels}
        return Prompt(xs, labels[..., 0], truth=truth)

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*loops_batch_and_outputs"], prompt: Prompt
    ) -> Float[Tensor, "*loops batch scored"]:
        """Squared error of the mean; where a model in training gives quantiles too, plus their mean pinball loss.

        A model may answer any number of the last pairs.
        """
        quantiles = self.quantiles and outputs.ndim >= prompt.ys.ndim + 2
        means = outputs[..., 0] if quantiles else outputs
        answers = answers_of(prompt, means.shape[-1])
        answers = answers.expand(*means.shape, answers.shape[-1])
        error = (means[..., None] - answers).square().mean(-1) / self.label_variance
        if not quantiles:
            return error
        asked = outputs[..., None, 1:].expand(*answers.shape, -1)
        return error + pinball(asked, answers, quantile_levels(self.quantiles)).mean((-1, -2))


@dataclass(frozen=True, kw_only=True)
class ClassPrior(TablePrior):
    """Random tables whose labels are 1 for the rows of one class and 0 for the rest; answers are log-odds of the class.

    A table of several classes is several such tables, one for each class: so their number is free, and no model has to
    learn that the names of classes mean nothing.
    """

    targets: tuple[Target, ...] = (OneClass(),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles:
            raise ValueError(f"answers that are log-odds have no `quantiles`; got {self.quantiles}. Set it to 0.")

    @property
    def label_variance(self) -> float:
        """The share of ones, as measured."""
        return 0.40

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh tables."""
        prompt = super().sample(batch=batch, n=n, generator=generator, dims=dims)
        truth = {**prompt.truth, "answers": (prompt.truth["answers"] > 0).to(prompt.ys.dtype)}
        return replace(prompt, ys=(prompt.ys > 0).to(prompt.ys.dtype), truth=truth)

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*loops batch scored"], prompt: Prompt
    ) -> Float[Tensor, "*loops batch scored"]:
        """Log loss, in units where log-odds of zero have error 1."""
        share = answers_of(prompt, outputs.shape[-1]).mean(-1).expand_as(outputs)
        return binary_cross_entropy_with_logits(outputs, share, reduction="none") / math.log(2)


def answers_of(prompt: Prompt, scored: int) -> Float[Tensor, "*models batch scored answers"]:
    """All labels of the last `scored` pairs; those of the prompt where it was not drawn here or is shifted."""
    n = prompt.num_examples
    answers = prompt.truth.get("answers", prompt.ys[..., None])
    return answers[..., n - scored : n, :]
