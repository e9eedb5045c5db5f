"""What every task promises; a new task module in looped/tasks is found by import and held to it."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch

import looped.tasks
from looped import config
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.sequences import AutoRegression, ChainOfThought, RepresentationRegression
from looped.tasks.shifts import NoisyOutputs, ScaledX, Shifted, SkewedCovariance
from looped.tasks.table_prior import ClassPrior
from looped.tasks.task import Task
from looped.tasks.vector_generation import VectorGeneration

EXAMPLES = [
    LinearRegression(d=3, noise=0.5),
    SparseRegression(d=6, nonzero=2),
    SparseRegression(d=4, nonzero=4, noise=1.0),
    GaussianProcess(d=3, eigenvalues=(0.5, 2.0, 1.0), rotation=None, whiten=False),
    RepresentationRegression(d=4, noise=0.5, features=3, hidden=5, representation=7),
    AutoRegression(d=6, order=2, noise=2.0),
    AutoRegression(d=1, order=1),
    ChainOfThought(d=4, layers=2, slope=0.5),
    VectorGeneration(d=3),
    Shifted(
        task=LinearRegression(d=4, noise=0.5), shifts=(SkewedCovariance(), NoisyOutputs(std=2.0), ScaledX(factor=0.5))
    ),
]
"""More than the defaults; a task that cannot be made from defaults needs one here."""


def concrete(kind):
    """Every task class of the library below `kind` that can be made."""
    here = [] if inspect.isabstract(kind) else [kind]
    return here + [task for child in kind.__subclasses__() for task in concrete(child)]


def cases():
    for info in pkgutil.walk_packages(looped.tasks.__path__, "looped.tasks."):
        importlib.import_module(info.name)
    # a task that reads files is held to this in its own test, which knows where they are
    files = ("looped.tasks.tables", "looped.tasks.translation")
    kinds = [kind for kind in dict.fromkeys(concrete(Task)) if kind.__module__.startswith("looped.tasks.")]
    kinds = [kind for kind in kinds if kind.__module__ not in files]
    return [*(kind() for kind in kinds if not required(kind)), *EXAMPLES], kinds


def required(kind):
    missing = dataclasses.MISSING
    return [
        f.name for f in dataclasses.fields(kind) if f.init and f.default is missing and f.default_factory is missing
    ]


TASKS, KINDS = cases()
every_task = pytest.mark.parametrize(
    "task", TASKS, ids=[f"{index}-{type(t).__name__}" for index, t in enumerate(TASKS)]
)


def draw(task, *, batch=5, n=7, seed=0, dims=None):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), dims=dims)


def inputs(prompt):
    """What a model reads first: x, or a token of a sequence."""
    return prompt.xs if isinstance(prompt, Prompt) else prompt.tokens


def labels(prompt):
    """What it answers: y, or the target vector at a token."""
    return prompt.ys if isinstance(prompt, Prompt) else prompt.targets


def right_answers(task, prompt):
    """What has no error: the labels, log-odds that are certain, or a vector whose label is the last one."""
    if isinstance(task, ClassPrior):
        return 100 * (2 * labels(prompt) - 1)
    return prompt.ys[:, -1:] * prompt.truth["w"] if isinstance(task, VectorGeneration) else labels(prompt)


def scored(prompt, values):
    """The mean over the scored positions of each prompt, and over the outputs of each."""
    values = values.double() if values.ndim == 2 else values.double().mean(-1)
    weights = torch.ones_like(values) if prompt.weights is None else prompt.weights.double()
    return (values * weights).sum(1) / weights.sum(1)


def same(a, b):
    return torch.equal(inputs(a), inputs(b)) and torch.equal(labels(a), labels(b))


def test_every_task_class_is_covered():
    assert {LinearRegression, SparseRegression} <= set(KINDS)
    left_out = set(KINDS) - {type(task) for task in TASKS}
    assert not left_out, f"{left_out} have required fields: add an example of each to EXAMPLES"


@every_task
def test_shapes(task):
    for batch, n in ((5, 7), (1, 1)):
        prompt = draw(task, batch=batch, n=n)
        places = (batch, n * (task.layers + 1)) if isinstance(task, ChainOfThought) else (batch, n)
        assert prompt.places == places
        assert inputs(prompt).shape == (*places, task.d)
        assert labels(prompt).shape == (places if isinstance(prompt, Prompt) else (*places, task.d))
        assert inputs(prompt).isfinite().all()
        assert labels(prompt).isfinite().all()
        assert all(len(value) == batch for value in prompt.truth.values()), "truth is batch first"


@every_task
def test_one_seed_gives_one_prompt_and_the_global_generator_is_left_alone(task):
    before = torch.get_rng_state()
    first = draw(task, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert same(first, draw(task, seed=3))
    assert not same(first, draw(task, seed=4))
    for name, value in first.truth.items():
        assert torch.equal(value, draw(task, seed=3).truth[name])
    generator = torch.Generator().manual_seed(0)
    earlier, later = (task.sample(batch=5, n=7, generator=generator) for _ in range(2))
    assert not same(earlier, later), "a generator goes on"


@every_task
def test_prompts_of_a_batch_differ(task):
    prompt = draw(task)
    for values in (inputs(prompt), labels(prompt)):
        assert len(values.flatten(1).unique(dim=0)) == len(values)


@every_task
def test_declared_label_variance_is_the_measured_one_and_zero_scores_one(task):
    """Prompts are independent, so the standard error comes from their means; 1e-3 for variances done by quadrature."""
    prompt = draw(task, batch=20_000, n=3)
    assert isinstance(task.label_variance, float | int)
    by_prompt = scored(prompt, labels(prompt).square())
    tolerance = 4 * by_prompt.std().item() / len(by_prompt) ** 0.5 + 1e-3 * task.label_variance
    assert by_prompt.mean().item() == pytest.approx(task.label_variance, abs=tolerance)
    zero = scored(prompt, task.error(torch.zeros_like(right_answers(task, prompt)), prompt)).mean().item()
    assert zero == pytest.approx(1, abs=tolerance / task.label_variance)


@every_task
def test_labels_have_mean_zero(task):
    """Else predicting zero would be no sensible unit; states of a network after leaky ReLU have a mean, and say so.

    Of one class against the rest the labels are 0 and 1, and an answer of zero means that both are as likely.
    """
    prompt = draw(task, batch=20_000, n=3, seed=1)
    by_prompt = scored(prompt, labels(prompt))
    zero = abs(by_prompt.mean().item()) < 4 * by_prompt.std().item() / len(by_prompt) ** 0.5
    assert zero != isinstance(task, ChainOfThought | ClassPrior)


@every_task
def test_error_is_zero_at_the_labels_and_keeps_its_shape(task):
    prompt = draw(task)
    answers = right_answers(task, prompt)
    assert (task.error(answers, prompt) <= 1e-12).all()
    places = (5, 1) if isinstance(task, VectorGeneration) else prompt.places  # only the last pair is asked for
    assert task.error(answers.expand(2, 3, *answers.shape), prompt).shape == (2, 3, *places)


@every_task
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_coordinates_from_dims_on_are_zero(task, part):
    dims = max(1, round(part * task.d))
    prompt = draw(task, batch=50, dims=dims)
    assert (inputs(prompt)[..., dims:] == 0).all()
    assert inputs(prompt)[..., :dims].flatten(0, 1).any(0).all(), "every active coordinate is used"
    assert labels(prompt).isfinite().all()
    assert labels(prompt).any()
    if "w" in prompt.truth:
        assert (prompt.truth["w"][..., dims:] == 0).all()


@every_task
def test_dims_may_be_a_tensor(task):
    """So that a curriculum can run inside a captured graph."""
    dims = max(1, task.d // 2)
    assert same(draw(task, dims=dims), draw(task, dims=torch.tensor(dims)))
    assert same(draw(task, dims=task.d), draw(task))


@every_task
def test_a_task_is_data_and_has_a_d_of_at_least_one(task):
    assert config.decode(config.encode(task), Task) == task
    task = task.task if isinstance(task, Shifted) else task
    with pytest.raises(ValueError, match=r"`d` must be at least 1; got 0|must be"):
        dataclasses.replace(task, d=0)
