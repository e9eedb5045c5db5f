"""Figure 5: linear regression, trained AlgoFormers loop by loop against gradient descent and Newton's method.

The text gives no axis; here it is iterations, and what is judged is the last pair of a prompt, whose x is asked
about with all pairs before it as examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish, log_y, reference_line, seeds_line
from looped.files import finite
from looped.functional.descent import gradient_descent, newton_inverse
from looped.papers import gao24
from looped.papers.gao24.comparison import EVALUATION
from looped.papers.gao24.variants import Sizes, judged, read, trained, with_loops, written
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression

NOISES = (0.0, 0.1, 1.0)
"""The paper's sigma, where w and x are standard normal in d=20."""
TRAINED = {"smoke": ((3, 2), (2, 2)), "cpu": ((4, 3), (3, 3)), "paper": ((20, 15), (10, 10))}
"""(T, dT) of the two AlgoFormers."""
ALGORITHMS = {"gradient": "gradient descent", "newton": "Newton's method"}
EARLY = 2
"""The iteration that counts as a beginning stage."""


def _settings(scale: gao24.Scale) -> Data:
    made = {}
    for noise in NOISES:
        base = gao24.linear(scale)
        task = LinearRegression(d=base.task.d, noise=noise)
        for loops, window in TRAINED[scale]:
            made[f"{noise:g}/T={loops}, dT={window}"] = with_loops(replace(base, task=task), loops, window)
    return {**EVALUATION[scale], "noises": list(NOISES), "experiments": written(made)}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train both AlgoFormers at every noise, and run both algorithms on the prompts that judge them."""
    experiments = read(sizes["experiments"])
    found = judged(trained(experiments, sizes, settings), sizes, settings)
    data: Data = {"noises": sizes["noises"], "panels": {}}
    for noise in sizes["noises"]:
        own = {label: one for label, one in experiments.items() if label.startswith(f"{noise:g}/")}
        first = next(iter(own.values()))
        generator = torch.Generator().manual_seed(sizes["prompt_seed"])
        prompt = first.task.sample(batch=sizes["prompts"], n=first.train.points, generator=generator)
        curves = {
            name: finite((task_error(first.task, prompt, answers)).tolist())
            for name, answers in iterates(prompt.to(torch.float64), sizes["max_loops"]).items()
        }
        data["panels"][f"{noise:g}"] = {
            "models": {label.partition("/")[2]: found[label] for label in own},
            "algorithms": {"x": list(range(1, sizes["max_loops"] + 1)), **curves},
        }
    return data


def iterates(prompt: Prompt, steps: int) -> dict[str, Tensor]:
    """Predictions (steps, batch) for the last pair after 1, 2, .. iterations on those before it.

        gradient descent: w <- w - X'(X w - y) / |X'X|;  Newton: M <- 2 M - M S M, M_0 = S / |S|^2, w = M X'y

    Ref: gao24, Eq. (4), whose M_0 is Newton's iterate 0; so after 1 iteration both have used the data once more.
    """
    xs, ys, query = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1]
    squares = xs.mT @ xs
    largest = torch.linalg.eigvalsh(squares)[:, -1]
    descended = gradient_descent(xs, ys, steps=steps, rate=(1 / largest)[None])[1:]
    inverses = newton_inverse(squares, steps=steps, alpha=1 / largest.square())[1:]
    newton = torch.einsum("kbij,bnj,bn->kbi", inverses, xs, ys)
    return {name: (w * query).sum(-1) for name, w in {"gradient descent": descended, "Newton's method": newton}.items()}


def task_error(task: Any, prompt: Prompt, answers: Tensor) -> Tensor:
    """Mean error at the last pair, one number an iteration."""
    return task.error(answers[..., None], prompt.to(torch.float64)).mean((-1, -2))


def draw(figure: Any, data: Data) -> None:
    """Error against iterations, a panel a noise level."""
    figure.set_size_inches(9.6, 3.2)
    for ax, noise in zip(figure.subplots(1, len(data["noises"])), data["noises"], strict=True):
        panel = data["panels"][f"{noise:g}"]
        for index, (label, model) in enumerate(panel["models"].items()):
            curve = model["by_loops"]
            seeds_line(ax, index, curve["x"], curve["mean"], f"AlgoFormer, {label}".replace("dT", "ΔT"))
        for index, name in enumerate(ALGORITHMS.values()):
            dashes = [(0, (2, 1.6)), (0, (6, 1.6))][index]
            reference_line(ax, panel["algorithms"]["x"], panel["algorithms"][name], name, linestyle=dashes)
        log_y(ax, floor=1e-6)
        ax.set(xlabel="loops, or iterations", ylabel="error at the last pair", title=f"σ = {noise:g}")
    finish(figure, columns=4)


def against(noise: float, at: Callable[[Data], int], name: str) -> Callable[[Data], Measured]:
    """A judge: the first AlgoFormer's error over an algorithm's, both after as many iterations."""

    def judge(data: Data) -> Measured:
        panel = data["panels"][f"{noise:g}"]
        label, model = next(iter(panel["models"].items()))
        place = at(model) - 1
        other = panel["algorithms"][name][place]
        found = [float("inf") if seed[place] is None else seed[place] / other for seed in model["by_loops"]["mean"]]
        mean = sum(found) / len(found)
        return Measured(
            value=mean,
            low=min(found),
            high=max(found),
            holds=mean < 1,
            note=f"{label} over {name} after {place + 1} iterations, where {name} has {other:.4g}",
        )

    return judge


def best_error(data: Data) -> float:
    """The least error without noise of any AlgoFormer, loop and seed."""
    curves = [model["by_loops"]["mean"] for model in data["panels"]["0"]["models"].values()]
    return min(value for curve in curves for seed in curve for value in seed if value is not None)


def newton_ends_below(data: Data) -> Measured:
    """Without noise Newton's last error, beside the AlgoFormer's best."""
    panel = data["panels"]["0"]
    last = panel["algorithms"]["Newton's method"][-1]
    model = next(iter(panel["models"].values()))
    best = [min(value for value in seed if value is not None) for seed in model["by_loops"]["mean"]]
    found = [last / one for one in best]
    return Measured(
        value=sum(found) / len(found),
        low=min(found),
        high=max(found),
        holds=max(found) < 1e-3,
        note=f"Newton {last:.3g}; the AlgoFormer's best loop {min(best):.3g} to {max(best):.3g}",
    )


fig5 = Figure(
    name="gao24.fig5",
    title="Linear regression: AlgoFormer against gradient descent and Newton's method, by iteration",
    settings={scale: _settings(scale) for scale in gao24.SCALES},
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        *(
            Claim(
                id=f"gao24.fig5.early_beats_{short}",
                statement=f"Without noise the AlgoFormer is ahead of {name} in the beginning stages (Section 5.4).",
                tolerance=f"its error after {EARLY} loops is below that of {EARLY} iterations, mean over seeds",
                judge=against(0.0, lambda model: EARLY, name),
            )
            for short, name in ALGORITHMS.items()
        ),
        Claim(
            id="gao24.fig5.newton_ends_at_zero",
            statement="Without noise Newton's method reaches nearly zero later, the AlgoFormer about 1e-3 (Sec. 5.4).",
            tolerance="Newton's last error is below 1e-3 of the AlgoFormer's least, at every seed",
            judge=newton_ends_below,
        ),
        *(
            Claim(
                id=f"gao24.fig5.noisy_beats_{short}",
                statement=f"With noise 1 the AlgoFormer does better than {name} (Section 5.4).",
                tolerance="its error after T loops is below that of T iterations, mean over seeds",
                judge=against(1.0, lambda model: model["loops"], name),
            )
            for short, name in ALGORITHMS.items()
        ),
    ),
)
