"""The cases to measure: training steps of yang24's decoder by engine, batch, loops, window, length and precision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from looped.experiment import Adam, Experiment
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import Scale, linear

Dtype = Literal["float32", "tf32", "bfloat16", "float64"]
"""tf32: float32 weights, products in TF32; bfloat16: bf16 products, float32 master weights."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step to measure."""

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
    """Sets the decoder's width, heads and dimension, as in `looped train yang24.linear --scale`."""

    def __post_init__(self) -> None:
        if self.packed < 1:
            raise ValueError(f"`packed` must be at least 1; got {self.packed}.")
        self.experiment()  # refuse what cannot be trained before anything is measured

    def experiment(self, *, steps: int = 1000, clip: float | None = 1.0, rate: float = 1e-4) -> Experiment:
        """The paper's architecture and loss, without curriculum, at a constant rate, with Adam and clipping."""
        base = linear(self.scale)
        assert isinstance(base.model, DecoderConfig)
        model = replace(base.model, loops=self.loops, positions=max(base.model.positions, 2 * self.points))
        train = replace(
            base.train,
            steps=steps,
            depth=None,
            dims=None,
            active_points=None,
            batch=self.batch,
            points=self.points,
            window=self.window,
            grad=self.window,
            average=None,
            optimizer=Adam(learning_rate=rate, clip=clip),
            dtype="float32" if self.dtype == "tf32" else self.dtype,  # type: ignore[arg-type]
        )
        return replace(base, name="bench", model=model, train=train)

    @property
    def sizes(self) -> str:
        """Batch, loops, window and length for people."""
        return f"batch {self.batch}, b={self.loops}, T={self.window}, {self.points} points"

    @property
    def tokens(self) -> int:
        """Tokens per step, of all models together."""
        return 2 * self.points * self.batch * self.packed

    @property
    def flops(self) -> int:
        """Only products with the blocks' weights count, forward in every loop and backward in the window.

        2 * 12 D^2 * tokens * b + 4 * 12 D^2 * tokens * T,  since a block has 12 D^2 weights
        """
        model = self.experiment().model
        assert isinstance(model, DecoderConfig)
        weights = 12 * model.width**2 * model.layers
        return 2 * weights * self.tokens * self.loops + 4 * weights * self.tokens * self.window


def default_cases(scale: Scale) -> list[dict[str, int]]:
    """A sweep over the batch, then b, T and length changed one at a time at the middle batch."""
    base = linear(scale)
    middle = {"batch": 64, "loops": base.model.loops, "window": base.train.window, "points": base.train.points}
    if scale != "paper":
        return [{**middle, "batch": batch} for batch in (16, 64)]
    sweep = [{**middle, "batch": batch} for batch in (16, 64, 256, 1024)]
    return [*sweep, {**middle, "loops": 30}, {**middle, "window": 5}, {**middle, "points": 101}]


def left_out(engine: str, sizes: Mapping[str, int], sweep: Sequence[Mapping[str, int]]) -> bool:
    """Whether an engine skips a case: the compiled rival is slowest to set up, so it runs only in the batch sweep."""
    return engine == "gpt2-compile" and any(sizes[name] != sweep[0][name] for name in ("loops", "window", "points"))


def chosen_cases(scale: Scale, **chosen: Sequence[int] | None) -> list[dict[str, int]]:
    """Every combination of the chosen values; the rest is as in the middle of the default sweep."""
    given = {name: list(dict.fromkeys(values)) for name, values in chosen.items() if values}
    if not given:
        return default_cases(scale)
    cases = [next(case for case in default_cases(scale) if case["batch"] == 64)]
    for name, values in given.items():
        cases = [{**case, name: value} for case in cases for value in values]
    if "window" not in given:  # with fewer loops than the usual window, all loops carry gradient
        cases = [{**case, "window": min(case["window"], case["loops"])} for case in cases]
    return cases
