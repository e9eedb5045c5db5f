"""Train a small looped transformer, and plot its error by examples and by loops.

python examples/train_and_plot.py            # about a minute on two cores; writes train_and_plot.png
"""

import sys

import matplotlib.pyplot as plt

import looped
from looped.papers import yang24


def main(scale="cpu"):
    """Train, evaluate far beyond the trained loops, and draw both curves."""
    run = looped.train(yang24.noisy(scale))  # a second call finds it done
    experiment = run.experiment
    evaluation = looped.evaluate(
        run.model(), experiment.task, points=experiment.train.points, max_loops=4 * experiment.model.loops
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for curve in evaluation.by_examples:
        left.plot(curve.x, curve.mean, label=curve.label)
        left.fill_between(curve.x, curve.low, curve.high, alpha=0.2)
    left.set(xlabel="examples in the prompt", ylabel="error (predicting zero = 1)", ylim=(0, 2))
    left.legend()
    right.plot(evaluation.by_loops.x, evaluation.by_loops.mean)
    right.axvline(evaluation.trained_loops, linestyle="--", color="gray")
    right.set(xlabel="loops", ylabel="error with the most examples", yscale="log")
    figure.savefig("train_and_plot.png")
    print("train_and_plot.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
