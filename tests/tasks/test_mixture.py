"""The mixture's labels are the functions in `truth`, by NumPy; a sum of many waves is a Gaussian process."""

import numpy as np
import pytest
import torch

from looped.tasks.mixture import CLASSES, FunctionMixture, Lines, Networks, Steps, Waves

SHAPES = {
    Lines: lambda z: z / np.sqrt(2),
    Networks: lambda z: np.maximum(z, 0),
    Steps: lambda z: np.where(z > 0, 1.0, -1.0),
    Waves: lambda z: np.sqrt(2) * np.cos(2 * np.pi * z),
}


def draw(task, batch, n=6, seed=0):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed))


def test_labels_are_sums_of_units_by_numpy():
    prompt = draw(FunctionMixture(d=2, noise=0), batch=60)
    truth = {name: value.double().numpy() for name, value in prompt.truth.items()}
    assert set(truth["kind"]) == set(range(len(CLASSES)))
    for index, xs in enumerate(prompt.xs.double().numpy()):
        functions = CLASSES[int(truth["kind"][index])]
        w, c, v = (truth[name][index][: functions.units] for name in "wcv")
        values = SHAPES[type(functions)](xs @ w.T + c) @ v
        assert prompt.ys[index].numpy() == pytest.approx(values, abs=1e-4)
        assert not truth["v"][index][functions.units :].any()


@pytest.mark.parametrize("functions", CLASSES, ids=lambda functions: f"{type(functions).__name__}-{functions.units}")
def test_each_class_has_mean_square_1(functions):
    ys = draw(FunctionMixture(d=3, classes=(functions,), noise=0), batch=30_000, n=2).ys.double()
    by_prompt = ys.square().mean(1)
    assert by_prompt.mean().item() == pytest.approx(1, abs=4 * by_prompt.std().item() / len(by_prompt) ** 0.5)


def test_many_waves_are_a_gaussian_process_with_an_rbf_kernel():
    prompt = draw(FunctionMixture(classes=(Waves(units=64, frequency=(1.5, 1.5)),), noise=0), batch=40_000, n=2)
    distance = (prompt.xs[:, 0] - prompt.xs[:, 1]).squeeze(-1).double().numpy()
    product = prompt.ys.double().prod(1).numpy()
    for low, high in ((0, 0.3), (0.3, 0.8), (0.8, 1.6)):
        inside = (np.abs(distance) >= low) & (np.abs(distance) < high)
        difference = product[inside] - np.exp(-((1.5 * distance[inside]) ** 2) / 2)
        assert abs(difference.mean()) < 4 * difference.std() / inside.sum() ** 0.5


def test_noise_has_the_size_in_truth_and_is_small_more_often_than_large():
    noisy, clean = (draw(FunctionMixture(classes=(Lines(),), noise=noise), batch=4000, n=20) for noise in (0.5, 0.0))
    sigma = noisy.truth["sigma"]
    heard = sigma > 0.01
    standard = (noisy.ys - clean.ys)[heard] / sigma[heard, None]
    assert standard.std().item() == pytest.approx(1, abs=0.02)
    assert (sigma < 0.125).float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_a_mixture_refuses_what_it_cannot_draw():
    for wrong, reason in (
        ({"classes": ()}, "at least one class"),
        ({"noise": -1.0}, "at least 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            FunctionMixture(**wrong)
    with pytest.raises(ValueError, match="`units` must be at least 1"):
        Steps(units=0)
    with pytest.raises(ValueError, match="ascending"):
        Waves(frequency=(2.0, 1.0))
