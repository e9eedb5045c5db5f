"""The cases to measure: steps or predictions by recipe, engine, batch, loops, window, length and precision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from looped.experiment import Adam, Experiment, Scale
from looped.functional.counts import check_at_least
from looped.models.algoformer import AlgoFormerConfig
from looped.models.decoder import DecoderConfig
from looped.recipes import experiment as recipe_at
from looped.tasks.task import SequenceTask

RECIPE = "yang24.linear"
"""What is measured where nothing else is named; the rivals are written for its decoder."""

Dtype = Literal["float32", "tf32", "bfloat16", "float64"]
"""tf32: float32 weights, products in TF32; bfloat16: bf16 products, float32 master weights."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step, or one prediction, to measure."""

    recipe: str = RECIPE
    """The recipe whose model and task are measured."""
    predicts: bool = False
    """Whether a prediction of all labels of a batch is timed, not a training step."""
    engine: str
    """One of our engines, or a rival."""
    batch: int
    """Prompts per step, for each model."""
    loops: int
    """Loops: the paper's b."""
    window: int
    """The last loops, which carry loss and gradient: the paper's T."""
    points: int
    """Pairs in a prompt; a pair is two tokens."""
    packed: int = 1
    """Models that train side by side, each with its own prompts."""
    dtype: Dtype = "float32"
    """Precision of the step."""
    scale: Scale = "paper"
    """Sets the model's width, heads and dimension, as in `looped train yang24.linear --scale`."""

    def __post_init__(self) -> None:
        check_at_least(1, packed=self.packed)
        self.experiment()  # refuse what cannot be trained before anything is measured

    def experiment(self, *, steps: int = 1000, clip: float | None = 1.0, rate: float = 1e-4) -> Experiment:
        """The recipe's architecture and loss, without curriculum, at a constant rate, with Adam and clipping."""
        base = recipe_at(self.recipe, self.scale)
        model = _replaced(base.model, loops=self.loops, positions=self.points * _tokens_per_point(base))
        train = replace(
            base.train,
            steps=steps,
            depth=None,
            dims=None,
            active_points=None,
            batch=self.batch,
            points=self.points,
            window=self.window,
            grad=None if base.train.grad is None else self.window,
            dropout=0.0,
            start=None,
            average=None,
            optimizer=Adam(learning_rate=rate, clip=clip),
            dtype="float32" if self.dtype == "tf32" else self.dtype,  # type: ignore[arg-type]
        )
        return replace(base, name="bench", model=model, train=train)

    @property
    def sizes(self) -> str:
        """What is measured, by any engine, for people."""
        what = f"{self.recipe}, " if self.recipe != RECIPE else ""
        kind = "prediction, " if self.predicts else ""
        return f"{what}{kind}batch {self.batch}, b={self.loops}, T={self.window}, {self.points} points"

    @property
    def tokens(self) -> int:
        """Tokens per step, of all models together."""
        return _tokens_per_point(recipe_at(self.recipe, self.scale)) * self.points * self.batch * self.packed

    @property
    def flops(self) -> int:
        """Only products with the blocks' weights count: for a weight and a token 2 forward, and 4 backward.

        2 * 12 D^2 * tokens * b + 4 * 12 D^2 * tokens * T  for yang24's decoder, whose block has 12 D^2 weights
        """
        experiment = self.experiment()
        back = self.loops if experiment.train.grad is None else self.window
        read = 1 if self.predicts else self.window
        applied = {"blocks": (self.loops, back), "pre": (1, 1), "loop": (self.loops, back), "post": (read, read)}
        with torch.device("meta"):
            model = experiment.model.build()
        total = 0
        for name, (forward, backward) in applied.items():
            blocks = getattr(model, name, None)
            weights = sum(weight.numel() for weight in blocks.parameters() if weight.ndim == 2) if blocks else 0
            total += weights * (2 * forward + (0 if self.predicts else 4 * backward))
        return total * self.tokens


def _tokens_per_point(experiment: Experiment) -> int:
    """Tokens of a pair, or of a point of a sequence."""
    return experiment.task.tokens_per_point if isinstance(experiment.task, SequenceTask) else 2


def _replaced(model: Any, *, loops: int, positions: int) -> Any:
    """The model with so many loops, and positions for prompts of this length."""
    if not isinstance(model, (DecoderConfig, AlgoFormerConfig)):
        raise ValueError(
            f"`looped bench` measures decoders and AlgoFormers; got a {type(model).__name__}. Use another recipe."
        )
    return replace(model, loops=loops, positions=max(model.positions, positions))


def default_cases(scale: Scale, recipe: str = RECIPE) -> list[dict[str, int]]:
    """A sweep over the batch, then b, T and length changed one at a time; of other recipes their own sizes alone."""
    base = recipe_at(recipe, scale)
    train = {"window": base.train.window, "points": base.train.points}
    middle = {"batch": 64, "loops": base.model.loops, **train}
    if recipe != RECIPE:
        return [{**middle, "batch": base.train.batch}]
    if scale != "paper":
        return [{**middle, "batch": batch} for batch in (16, 64)]
    sweep = [{**middle, "batch": batch} for batch in (16, 64, 256, 1024)]
    return [*sweep, {**middle, "loops": 30}, {**middle, "window": 5}, {**middle, "points": 101}]


def left_out(engine: str, sizes: Mapping[str, int], sweep: Sequence[Mapping[str, int]]) -> bool:
    """Whether an engine skips a case: the compiled rival is slowest to set up, so it runs only in the batch sweep."""
    return engine == "gpt2-compile" and any(sizes[name] != sweep[0][name] for name in ("loops", "window", "points"))


def chosen_cases(scale: Scale, recipe: str = RECIPE, **chosen: Sequence[int] | None) -> list[dict[str, int]]:
    """Every combination of the chosen values; the rest is as in the middle of the default sweep."""
    given = {name: list(dict.fromkeys(values)) for name, values in chosen.items() if values}
    if not given:
        return default_cases(scale, recipe)
    middle = [case for case in default_cases(scale, recipe) if case["batch"] == 64 or recipe != RECIPE]
    cases = middle[:1]
    for name, values in given.items():
        cases = [{**case, name: value} for case in cases for value in values]
    if "window" not in given:  # with fewer loops than the usual window, all loops carry gradient
        cases = [{**case, "window": min(case["window"], case["loops"])} for case in cases]
    return cases
