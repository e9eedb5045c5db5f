"""The three models of gao24 on one task, and what their figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from looped.evaluation.claims import Data, Measured, Settings, seeds_of
from looped.evaluation.curves import Curve, Evaluation, evaluate
from looped.experiment import Experiment
from looped.files import finite
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.tasks.task import SequenceTask, Task
from looped.training.grid import train_variants
from looped.training.run import Run

Sizes = Mapping[str, Any]
MODELS = ("AlgoFormer", "looped", "standard")
NONE = Part(layers=0)
"""A part left out."""


def with_task(experiment: Experiment, name: str, task: SequenceTask, points: int) -> Experiment:
    """The experiment on a task of sequences of vectors, which are the tokens."""
    layers = getattr(task, "layers", 0)
    shape = {"tokens": "given", "d": task.d, "outputs": task.d, "positions": points * (layers + 1)}
    train = replace(experiment.train, points=points)
    return replace(experiment, name=name, task=task, model=replace(_model(experiment), **shape), train=train)


def as_printed(experiment: Experiment) -> Experiment:
    """The AlgoFormer of Equation (2): the loop reads pre(X) as its first state alone, and all loops carry gradient."""
    model = replace(_model(experiment), inject="none", loop_norm=False)
    return replace(experiment, model=model, train=replace(experiment.train, grad=None))


def as_looped(experiment: Experiment) -> Experiment:
    """The vanilla looped model of yang24: no pre and no post, Y <- norm(Block(Y + X)) from 0."""
    return replace(experiment, model=replace(_model(experiment), pre=NONE, post=NONE, inject="add", loop_norm=True))


def as_standard(experiment: Experiment, layers: int) -> Experiment:
    """A transformer of `layers` layers with weights of their own: one loop, no pre and no post."""
    old = _model(experiment)
    model = replace(old, pre=NONE, post=NONE, loop=replace(old.loop, layers=layers), loops=1, inject="none")
    return replace(experiment, model=model, train=replace(experiment.train, window=1, grad=None))


def with_loops(experiment: Experiment, loops: int, window: int) -> Experiment:
    """Trained for T = `loops`, the loss over the last dT = `window`, and so the gradient unless all loops carry it."""
    grad = None if experiment.train.grad is None else window
    train = replace(experiment.train, window=window, grad=grad)
    return replace(experiment, model=replace(experiment.model, loops=loops), train=train)


def three(experiment: Experiment, layers: int) -> dict[str, Experiment]:
    """AlgoFormer, vanilla looped and standard on one task: same prompts, width, steps and optimiser."""
    made = (experiment, as_looped(experiment), as_standard(experiment, layers))
    names = (experiment.name, f"{experiment.name}_looped", f"{experiment.name}_{layers}_layers")
    return {label: replace(one, name=name) for label, one, name in zip(MODELS, made, names, strict=True)}


def layers_applied(experiment: Experiment) -> int:
    """Blocks that one answer passes through: the compute of a prediction, all blocks being of one size."""
    model = _model(experiment)
    return model.pre.layers + model.loops * model.loop.layers + model.post.layers


def written(experiments: Mapping[str, Experiment]) -> Data:
    """Experiments as data, for a figure's settings."""
    return {label: one.brief() for label, one in experiments.items()}


def read(data: Data) -> dict[str, Experiment]:
    """The experiments that `written` wrote."""
    return {label: Experiment.from_brief(one) for label, one in data.items()}


def trained(
    experiments: Mapping[str, Experiment], sizes: Sizes, settings: Settings, *, share: float = 0.9
) -> dict[str, list[Run]]:
    """The runs of every experiment, one for each seed; `share` of the figure's progress."""
    return train_variants(experiments, seeds_of(sizes), **settings.training(share))


def judged(runs: Mapping[str, Sequence[Run]], sizes: Sizes, settings: Settings) -> Data:
    """For every label, on the same fresh prompts: error by point and by loop, parameters and compute."""
    data: Data = {}
    for index, (label, members) in enumerate(runs.items()):
        settings.progress(f"judging {label}", 0.9 + 0.1 * index / len(runs))
        experiment = members[0].experiment
        loops = experiment.model.loops
        far = max(loops, sizes["max_loops"]) if loops > 1 else 1
        found: list[Evaluation] = []
        for run in members:
            model = run.model(settings.device)
            options = {"loops": loops, "max_loops": far, "prompts": sizes["prompts"], "seed": sizes["prompt_seed"]}
            found.append(evaluate(model, experiment.task, points=experiment.train.points, baselines={}, **options))
        data[label] = {
            "parameters": experiment.model.build().num_parameters,
            "layers_applied": layers_applied(experiment),
            "loops": loops,
            "by_points": joined([by_point(one.by_examples[0], experiment.task) for one in found]),
            "by_loops": joined([one.by_loops for one in found]),
        }
    return data


def by_point(curve: Curve, task: Task) -> Curve:
    """Of chains of thought the mean over the steps of each example; other curves as they are."""
    each = getattr(task, "layers", 0) + 1
    if each == 1:
        return curve
    points = sorted({place // each for place in curve.x})

    def mean(values: Sequence[float]) -> list[float]:
        groups = [[value for place, value in zip(curve.x, values, strict=True) if place // each == p] for p in points]
        return [sum(group) / len(group) for group in groups]

    return Curve(label=curve.label, x=points, mean=mean(curve.mean), low=mean(curve.low), high=mean(curve.high))


def joined(curves: Sequence[Curve]) -> Data:
    """One curve a seed as plain data; null where a model diverged."""
    return {"x": curves[0].x, "mean": finite([curve.mean for curve in curves])}


def average(data: Data, label: str, seed: int) -> float:
    """Mean error over all points of one seed's curve; infinite where it diverged."""
    values = data[label]["by_points"]["mean"][seed]
    return float("inf") if None in values else sum(values) / len(values)


def ratio(data: Data, better: str, worse: str, *, most: float) -> Measured:
    """The error of one model over another's, seed by seed; it holds where the mean over seeds is at most `most`."""
    seeds = range(len(data[better]["by_points"]["mean"]))
    pairs = [(average(data, better, seed), average(data, worse, seed)) for seed in seeds]
    found = [a / b for a, b in pairs]
    mean = sum(found) / len(found)
    sizes = ", ".join(
        f"{label} {data[label]['parameters']:,} parameters, {data[label]['layers_applied']} layers applied"
        for label in (better, worse)
    )
    errors = "; ".join(f"{a:.4f} against {b:.4f}" for a, b in pairs)
    note = f"mean error over points by seed: {errors}; {sizes}"
    return Measured(value=mean, low=min(found), high=max(found), holds=mean <= most, note=note)


def _model(experiment: Experiment) -> AlgoFormerConfig:
    assert isinstance(experiment.model, AlgoFormerConfig)
    return experiment.model
