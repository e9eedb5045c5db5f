"""The paper's own training, run to its end: 500k steps of Adam, and the errors that the authors' logs have.

21 minutes on one H200, its passes in bfloat16. At smaller scales the published numbers say nothing.
"""

from __future__ import annotations

from typing import Any

from looped.baselines.linear import least_squares
from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish, log_y
from looped.experiment import Experiment
from looped.papers.yang24 import Scale, linear_published
from looped.papers.yang24.judges import FLAT, at, at_most, beside, best_error, drift, quotient
from looped.papers.yang24.lines import baseline, examples_axis, line, loops_axis, trained_mark
from looped.papers.yang24.measuring import EVALUATION, Sizes, baseline_curves, errors_of, joined, shown_loops, trained
from looped.papers.yang24.trainings import training
from looped.training.run import Checkpoint, Run

BEST, END = "lowest logged loss", "end of training"
PUBLISHED = {20: (".0242", 0.0242), 40: ("7.8e-4", 7.8e-4)}
"""Examples -> the looped model's error in the authors' logs, as printed and as a number."""
WITHIN = 1.5
"""Factor between our error and the published one, either way, that counts as reproducing it."""
LOST = 10.0
"""Logged error over the least before it from which on a training counts as having lost what it had learned."""
MOST_LINES = 500
"""Most lines of the training's log that the figure draws."""


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train, and judge two checkpoints after the trained loops; the better one's error also far beyond them."""
    experiment = Experiment.from_brief(sizes["experiment"])
    run = trained({"": experiment}, sizes, settings)[""][0]
    if run.kept:
        raise ValueError(f"{run.path} has one checkpoint, and two are judged. Train the run itself: looped train.")
    loops, points = experiment.model.loops, experiment.train.points
    settings.progress("judging", 0.9)
    return {
        "trained_loops": loops,
        "training": log_of(run),
        "weights": {
            BEST: judged(run, run.best(), sizes, settings, loops=sizes["loops"]),
            END: judged(run, run.latest(), sizes, settings, loops=loops),
        },
        "least_squares": baseline_curves({"": least_squares}, experiment.task, sizes, points=points)[""],
    }


def judged(run: Run, checkpoint: Checkpoint | None, sizes: Sizes, settings: Settings, *, loops: int) -> Data:
    """A checkpoint's error by examples after the trained loops, and by loops up to `loops`."""
    assert checkpoint is not None
    model, b = run.model_of(checkpoint, settings.device), run.experiment.model.loops
    near = errors_of(model, run.experiment, sizes, loops=b)
    by_loops = near.by_loops if loops <= b else errors_of(model, run.experiment, sizes, loops=loops).by_loops
    return {
        "step": checkpoint.step,
        "trained_loops": b,
        "by_examples": joined([near.by_examples[0]]),
        "by_loops": joined([by_loops], shown_loops(by_loops.x[-1], b)),
    }


def log_of(run: Run) -> Data:
    """The error that training logged with the most examples, by steps; evenly thinned."""
    lines = run.metrics()
    every = -(-len(lines) // MOST_LINES)
    kept = lines[::-1][::every][::-1]
    return {"steps": [int(one["step"]) for one in kept], "error": [one["error"] for one in kept]}


def reproduces(which: str):
    """A judge: the errors of these weights are near the published ones, at both numbers of examples."""

    def judge(data: Data) -> Measured:
        weights = data["weights"][which]
        curve = weights["by_examples"]
        if curve["x"][-1] != max(PUBLISHED):
            return Measured(value=0.0, low=0.0, high=0.0, holds=None, note="the published numbers are of paper scale")
        ours = {k: at(curve, k)[0] for k in PUBLISHED}
        ratios = {k: quotient(ours[k], number) for k, (_, number) in PUBLISHED.items()}
        farthest = max(ratios.values(), key=lambda one: max(one, quotient(1, one)))
        note = "; ".join(f"k = {k}: {beside(text, [ours[k]])}" for k, (text, _) in PUBLISHED.items())
        note += f"; weights of step {weights['step']:,}"
        if (step := lost_at(data["training"])) is not None and which == END:
            note += f". By the log the training lost what it had learned at step {step:,}"
        holds = all(1 / WITHIN <= one <= WITHIN for one in ratios.values())
        return Measured(value=farthest, low=min(ratios.values()), high=max(ratios.values()), holds=holds, note=note)

    return judge


def lost_at(log: Data) -> int | None:
    """The first step at which the logged error is far above the least before it; None where it never is."""
    least = float("inf")
    for step, error in zip(log["steps"], log["error"], strict=True):
        if error > LOST * least:
            return step
        least = min(least, error)
    return None


def flat(data: Data) -> Measured:
    """The better weights' error far beyond the trained loops over that at them."""
    model = data["weights"][BEST]
    loops = model["by_loops"]["x"][-1]
    return at_most(drift(model), FLAT, f"error after {loops} loops over the error at {model['trained_loops']}")


def draw(figure: Any, data: Data) -> None:
    """The logged error by steps; then both checkpoints by examples, and the better one by loops."""
    figure.set_size_inches(9.6, 3.2)
    left, middle, right = figure.subplots(1, 3)
    log = data["training"]
    left.plot([step / 1000 for step in log["steps"]], log["error"], color="C0", linewidth=1)
    left.set(xlabel="training steps, thousands", ylabel="logged error, most examples")
    log_y(left, floor=1e-5)
    for index, (label, weights) in enumerate(data["weights"].items()):
        line(middle, index, weights["by_examples"], f"{label}, step {weights['step']:,}")
    baseline(middle, data["least_squares"], "least squares")
    if data["least_squares"]["x"][-1] == max(PUBLISHED):
        numbers = [number for _, number in PUBLISHED.values()]
        middle.plot([*PUBLISHED], numbers, "kx", markersize=6, label="published")
    examples_axis(middle, top=1.5)
    best = data["weights"][BEST]
    line(right, 0, best["by_loops"], "")
    trained_mark(right, 0, best["trained_loops"])
    loops_axis(right)
    finish(figure)


def _sizes(scale: Scale) -> dict[str, Any]:
    recipe = linear_published(scale)
    # the passes of the one run that there is: float32 would take hours
    recipe = training(recipe, dtype="bfloat16") if scale == "paper" else recipe
    return {**EVALUATION[scale], "seeds": 1, "experiment": recipe.brief()}


published = Figure(
    name="yang24.published",
    title="The paper's own training in full: logged error by steps, error by examples and by loops",
    settings={"smoke": _sizes("smoke"), "cpu": _sizes("cpu"), "paper": _sizes("paper")},
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.published.end",
            statement="Adam at 1e-4 with batch 64 gives the published errors after 500k steps (Section 5.1, logs).",
            tolerance=f"at 20 and 40 examples within a factor {WITHIN:g} of .0242 and 7.8e-4, at the last step",
            judge=reproduces(END),
        ),
        Claim(
            id="yang24.published.best",
            statement="The same training gives the published errors at its best (Section 5.1, logs).",
            tolerance=f"at 20 and 40 examples within a factor {WITHIN:g} of .0242 and 7.8e-4, lowest logged loss",
            judge=reproduces(BEST),
        ),
        Claim(
            id="yang24.published.fixed_point",
            statement="A model trained so has a stable fixed point beyond the trained loops (Figure 2, left).",
            tolerance=f"error after the most loops at most {FLAT:g} times the error at the trained loops, same weights",
            judge=flat,
        ),
    ),
)
