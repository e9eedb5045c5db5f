"""The three models of gao24 on one task, and their variants."""

from dataclasses import replace

from looped.experiment import Experiment
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.tasks.task import SequenceTask

ALGOFORMER, LOOPED, STANDARD = MODELS = ("AlgoFormer", "looped", "standard")
NO_PART = Part(layers=0)


def with_task(experiment: Experiment, name: str, task: SequenceTask, points: int) -> Experiment:
    """The experiment on a task of sequences of vectors, which are the tokens."""
    shape = {"tokens": "given", "d": task.d, "outputs": task.d, "positions": points * task.tokens_per_point}
    train = replace(experiment.train, points=points)
    return replace(experiment, name=name, task=task, model=replace(_model(experiment), **shape), train=train)


def as_printed(experiment: Experiment) -> Experiment:
    """The AlgoFormer of Equation (2): the loop reads pre(X) as its first state alone, and all loops carry gradient."""
    model = replace(_model(experiment), inject="none", loop_norm=False)
    return replace(experiment, model=model, train=replace(experiment.train, grad=None))


def as_looped(experiment: Experiment) -> Experiment:
    """The vanilla looped model of yang24: no pre and no post, Y <- norm(Block(Y + X)) from 0."""
    model = replace(_model(experiment), pre=NO_PART, post=NO_PART, inject="add", loop_norm=True)
    return replace(experiment, model=model)


def as_standard(experiment: Experiment, layers: int) -> Experiment:
    """A transformer of `layers` layers with weights of their own: one loop, no pre and no post."""
    model = _model(experiment)
    loop = replace(model.loop, layers=layers)
    model = replace(model, pre=NO_PART, post=NO_PART, loop=loop, loops=1, inject="none")
    return replace(experiment, model=model, train=replace(experiment.train, window=1, grad=None))


def with_loops(experiment: Experiment, loops: int, window: int) -> Experiment:
    """Trained for T = `loops`, the loss over the last dT = `window`, and so the gradient unless all loops carry it."""
    grad = None if experiment.train.grad is None else window
    train = replace(experiment.train, window=window, grad=grad)
    return replace(experiment, model=replace(experiment.model, loops=loops), train=train)


def with_shape(experiment: Experiment, layers: int, heads: int) -> Experiment:
    """Pre, loop and post of `layers` layers and `heads` heads."""
    part = Part(layers=layers, heads=heads)
    return replace(experiment, model=replace(_model(experiment), pre=part, loop=part, post=part))


def three(experiment: Experiment, layers: int) -> dict[str, Experiment]:
    """AlgoFormer, vanilla looped and standard on one task: same prompts, width, steps and optimiser."""
    name = experiment.name
    return {
        ALGOFORMER: experiment,
        LOOPED: replace(as_looped(experiment), name=f"{name}_looped"),
        STANDARD: replace(as_standard(experiment, layers), name=f"{name}_{layers}_layers"),
    }


def _model(experiment: Experiment) -> AlgoFormerConfig:
    assert isinstance(experiment.model, AlgoFormerConfig)
    return experiment.model
