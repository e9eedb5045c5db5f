"""Planted failures of chen24's theorems."""

import torch
from theorem_plants import Plant

CHEN24 = "looped.theorems.chen24."
TRANSFORMER = CHEN24 + "vector_prompts.vector_descent"


def rates_times(factor):
    """The construction with every step too large or too small by a factor."""
    return lambda construct: lambda *, rates, **fields: construct(rates=factor * torch.as_tensor(rates), **fields)


def score_turned(construct):
    """The construction with the columns of Q moved on by one."""

    def turned(**fields):
        model = construct(**fields)
        model.put(score=model.heads[0].get_parameter("score").detach().roll(1, -1))
        return model

    return turned


def mean_over_examples(loss):
    """The mean loss where the lemmas have the sum."""
    return lambda prompts: lambda theta: loss(prompts)(theta) / prompts.xs.shape[1]


def noisy_labels(draw):
    """Labels that no theta* explains."""

    def noisy(*sizes, **options):
        prompts = draw(*sizes, **options)
        return prompts._replace(ys=prompts.ys + 0.1 * torch.cos(torch.arange(prompts.ys.shape[1])))

    return noisy


def uneven_columns(draw):
    """X whose columns have standard deviations from 1 to 2."""
    return lambda *sizes, **options: draw(*sizes, spread=2.0, **options)


def no_descent(xs, ys, *, steps, rate):
    """Weights that stay 0."""
    return torch.zeros(steps + 1, len(xs), xs.shape[-1], dtype=xs.dtype)


def plant(theorem, rows, target, change, why):
    return Plant(theorem=f"chen24.{theorem}", rows=rows, target=target, change=change, why=why)


PLANTS = [
    plant("def3.3", (1,), CHEN24 + "conditioning.draw_prompts", noisy_labels, "labels with noise"),
    plant("def3.3", (1,), TRANSFORMER, rates_times(1.1), "steps too large by 1.1"),
    plant("lem4.1", (0,), CHEN24 + "identities.vector_descent", score_turned, "Q with its columns moved"),
    plant("lem4.3", (0,), TRANSFORMER, rates_times(0.5), "steps half as large as those of descent"),
    plant("lem5.3", (0,), CHEN24 + "smoothness.squares_loss", mean_over_examples, "the mean loss for the sum"),
    plant("lem5.5", (0,), CHEN24 + "smoothness.squares_loss", mean_over_examples, "the mean loss for the sum"),
    plant("lem5.6", (0, 2), TRANSFORMER, rates_times(0.3), "steps smaller than the bound's"),
    plant("lem5.6", (0, 2), TRANSFORMER, rates_times(2.5), "steps above 2/L"),
    plant("lem5.6", (1,), CHEN24 + "smoothness.bent_loss", lambda loss: lambda theta: 2.5 * loss(theta), "L of 2.5"),
    plant("sec1", (0,), CHEN24 + "conditioning.draw_prompts", uneven_columns, "X with uneven columns"),
    plant("sec1", (1,), TRANSFORMER, rates_times(0.5), "steps half as large"),
    plant("thm4.2", (0,), TRANSFORMER, score_turned, "Q with its columns moved"),
    plant("thm4.4", (1, 2), TRANSFORMER, rates_times(2.5), "steps above 2/L"),
    plant("thm4.4", (1, 2), TRANSFORMER, rates_times(0.3), "steps of 0.3/L"),
    plant(
        "thm4.5", (0,), CHEN24 + "convergence.gradient_descent", lambda descend: no_descent, "a loop that does nothing"
    ),
    plant("thm4.5", (1,), TRANSFORMER, rates_times(0.3), "steps of 0.3/L"),
    plant("thm5.8", (0,), TRANSFORMER, rates_times(0.3), "steps of 0.3/L"),
    plant("thm5.8", (0,), TRANSFORMER, score_turned, "Q with its columns moved"),
]
