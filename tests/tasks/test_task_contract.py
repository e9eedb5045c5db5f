"""What every task promises; a new task module in looped/tasks is found by import and held to it."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch

import looped.tasks
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.task import Task

EXAMPLES = [
    LinearRegression(d=3, noise=0.5),
    SparseRegression(d=6, nonzero=2),
    SparseRegression(d=4, nonzero=4, noise=1.0),
    GaussianProcess(d=3, eigenvalues=(0.5, 2.0, 1.0), whiten=False),
]
"""More than the defaults; a task that cannot be made from defaults needs one here."""


def concrete(kind):
    """Every task class of the library below `kind` that can be made."""
    own = [] if inspect.isabstract(kind) else [kind]
    return own + [one for child in kind.__subclasses__() for one in concrete(child)]


def cases():
    for info in pkgutil.walk_packages(looped.tasks.__path__, "looped.tasks."):
        importlib.import_module(info.name)
    kinds = [kind for kind in dict.fromkeys(concrete(Task)) if kind.__module__.startswith("looped.tasks.")]
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


def same(a, b):
    return torch.equal(a.xs, b.xs) and torch.equal(a.ys, b.ys)


def test_every_task_class_is_covered():
    assert {LinearRegression, SparseRegression} <= set(KINDS)
    left_out = set(KINDS) - {type(task) for task in TASKS}
    assert not left_out, f"{left_out} have required fields: add an example of each to EXAMPLES"


@every_task
def test_shapes(task):
    for batch, n in ((5, 7), (1, 1)):
        prompt = draw(task, batch=batch, n=n)
        assert prompt.xs.shape == (batch, n, task.d)
        assert prompt.ys.shape == (batch, n)
        assert prompt.xs.isfinite().all()
        assert prompt.ys.isfinite().all()
        assert all(len(value) == batch for value in prompt.truth.values()), "truth is batch first"


@every_task
def test_one_seed_gives_one_prompt(task):
    first = draw(task, seed=3)
    assert same(first, draw(task, seed=3))
    assert not same(first, draw(task, seed=4))
    for name, value in first.truth.items():
        assert torch.equal(value, draw(task, seed=3).truth[name])


@every_task
def test_a_generator_goes_on(task):
    generator = torch.Generator().manual_seed(0)
    first = task.sample(batch=5, n=7, generator=generator)
    assert not same(first, task.sample(batch=5, n=7, generator=generator))


@every_task
def test_the_global_generator_is_left_alone(task):
    before = torch.get_rng_state()
    draw(task)
    assert torch.equal(before, torch.get_rng_state())


@every_task
def test_prompts_of_a_batch_differ(task):
    prompt = draw(task)
    assert len(prompt.xs.flatten(1).unique(dim=0)) == len(prompt.xs)
    assert len(prompt.ys.unique(dim=0)) == len(prompt.ys)


@every_task
def test_declared_label_variance_is_the_measured_one_and_zero_scores_one(task):
    """Prompts are independent, so the standard error comes from their means; 1e-3 for variances done by quadrature."""
    prompt = draw(task, batch=20_000, n=3)
    assert isinstance(task.label_variance, float | int)
    by_prompt = prompt.ys.double().square().mean(1)
    tolerance = 4 * by_prompt.std().item() / len(by_prompt) ** 0.5 + 1e-3 * task.label_variance
    assert by_prompt.mean().item() == pytest.approx(task.label_variance, abs=tolerance)
    zero = task.error(torch.zeros_like(prompt.ys), prompt).double().mean().item()
    assert zero == pytest.approx(1, abs=tolerance / task.label_variance)


@every_task
def test_labels_have_mean_zero(task):
    """Else predicting zero would be no sensible unit."""
    by_prompt = draw(task, batch=20_000, n=3, seed=1).ys.double().mean(1)
    assert abs(by_prompt.mean().item()) < 4 * by_prompt.std().item() / len(by_prompt) ** 0.5


@every_task
def test_error_is_zero_at_the_labels_and_keeps_its_shape(task):
    prompt = draw(task)
    assert (task.error(prompt.ys, prompt) == 0).all()
    assert task.error(prompt.ys.expand(2, 3, *prompt.ys.shape), prompt).shape == (2, 3, *prompt.ys.shape)


@every_task
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_coordinates_from_dims_on_are_zero(task, part):
    dims = max(1, round(part * task.d))
    prompt = draw(task, batch=50, dims=dims)
    assert (prompt.xs[..., dims:] == 0).all()
    assert prompt.xs[..., :dims].flatten(0, 1).any(0).all(), "every active coordinate is used"
    assert prompt.ys.isfinite().all()
    assert prompt.ys.any()
    if "w" in prompt.truth:
        assert (prompt.truth["w"][..., dims:] == 0).all()


@every_task
def test_dims_may_be_a_tensor(task):
    """So that a curriculum can run inside a captured graph."""
    dims = max(1, task.d // 2)
    assert same(draw(task, dims=dims), draw(task, dims=torch.tensor(dims)))
    assert same(draw(task, dims=task.d), draw(task))


@every_task
def test_d_below_one_is_refused(task):
    with pytest.raises(ValueError, match=r"`d` must be at least 1; got 0|must be"):
        dataclasses.replace(task, d=0)
