"""Baselines for all prompts and prefixes at once against the loop over them, as ratios within one run.

    python benchmarks/baselines.py [--prompts 1280] [--points 41] [--sample 8]

The loop is what people would write: for every prompt and every prefix NumPy's `lstsq`, scikit-learn's `Ridge`,
`KNeighborsRegressor` and `Lasso` (as released with yang24: no intercept, default tolerance), and a NumPy mean for
averaging. It is timed on a `--sample` of the prompts and scaled up; the batched form is timed on all of them. Answers
are compared first. Least squares, ridge, averaging and neighbours must be 20 times as fast, Lasso 3 times; exits 1
if one is not.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.linear_model import Lasso, Ridge
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares, ridge
from looped.baselines.neighbours import nearest
from looped.bench.measure import timed
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression, SparseRegression

Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def by_lstsq(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
    return query[0] @ np.linalg.lstsq(xs, ys, rcond=None)[0]


def by_mean(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
    return query[0] @ (xs * ys[:, None]).mean(0)


def by_ridge(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
    return Ridge(alpha=1.0, fit_intercept=False).fit(xs, ys).predict(query)[0]


def by_neighbours(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
    return KNeighborsRegressor(min(3, len(ys))).fit(xs, ys).predict(query)[0]


def by_lasso(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
    return Lasso(alpha=0.01, fit_intercept=False, max_iter=100_000).fit(xs, ys).predict(query)[0]


def loop(fit: Fit, prompt: Prompt) -> np.ndarray:
    """Prompt by prompt and prefix by prefix."""
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    answers = np.zeros_like(ys)
    for b in range(len(xs)):
        for i in range(1, xs.shape[1]):
            answers[b, i] = fit(xs[b, :i], ys[b, :i], xs[b, i : i + 1])
    return answers


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs, after one to warm up."""
    run()
    return min(timed(lambda _: run(), torch.device("cpu"), steps=repeats)) / 1000


def main() -> int:
    """Measure every baseline, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1280)
    parser.add_argument("--points", type=int, default=41)
    parser.add_argument("--sample", type=int, default=8, help="prompts the loop is timed on")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="more do not help with tensors this small")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = {"batch": options.prompts, "n": options.points, "generator": torch.Generator().manual_seed(0)}
    noisy = LinearRegression(d=20, noise=1.0).sample(**sizes).to(torch.float64)
    sparse = SparseRegression(d=20, nonzero=3).sample(**sizes).to(torch.float64)
    cases: list[tuple[str, Callable[[Prompt], Tensor], Fit, Prompt, float, float]] = [
        ("least squares", least_squares, by_lstsq, noisy, 20, 1e-6),
        ("ridge", lambda prompt: ridge(prompt, 1.0), by_ridge, noisy, 20, 1e-8),
        ("averaging", averaging, by_mean, noisy, 20, 1e-8),
        ("3 neighbours", nearest, by_neighbours, noisy, 20, 1e-8),
        # scikit-learn stops at a relative duality gap of 1e-4, ours is at the optimum
        ("Lasso", lasso, by_lasso, sparse, 3, 1e-1),
    ]
    print(f"{options.prompts} prompts of {options.points} points, d 20, {options.threads} thread(s); ", end="")
    print(f"the loop timed on {options.sample} prompts and scaled")
    enough = True
    for name, batched, fit, prompt, target, near in cases:
        few = prompt.rows(slice(0, options.sample))
        got, wanted = batched(few).numpy(), loop(fit, few)
        gap = np.median(np.abs(got - wanted)[:, 1:] / np.maximum(1, np.abs(wanted[:, 1:])))
        if gap > near:
            raise ValueError(f"{name}: the two forms differ by {gap:g} in the median, more than {near:g}.")
        slow = seconds(lambda fit=fit, few=few: loop(fit, few), options.repeats) * options.prompts / options.sample
        quick = seconds(lambda batched=batched, prompt=prompt: batched(prompt), options.repeats)
        enough &= slow / quick >= target
        print(f"{name:14} loop {slow:8.2f} s   batched {quick:7.3f} s   ratio {slow / quick:7.1f}   target {target:g}")
    print("reached" if enough else "missed")
    return 0 if enough else 1


if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.exit(main())
