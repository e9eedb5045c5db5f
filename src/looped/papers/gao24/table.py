"""The table of Section 5.5: German to English translation by the three models.

Multi30k stands in for IWSLT 2015, so numbers are not comparable with the paper's (4.994, 4.726, 4.609); their order is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from looped.evaluation.bootstrap import Interval
from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish
from looped.evaluation.translation import bleu, cross_entropies, per_token, translate
from looped.papers import gao24
from looped.papers.gao24.comparison import LAYERS
from looped.papers.gao24.variants import MODELS, Sizes, layers_applied, read, three, trained, written
from looped.tasks.translation import Translation

PAPER = {"standard": 4.994, "looped": 4.726, "AlgoFormer": 4.609}
"""Validation cross entropy as printed, IWSLT 2015."""
EVALUATION: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": 1, "sentences": 4, "resamples": 20, "level": 0.9},
    "cpu": {"seeds": 1, "sentences": None, "resamples": 1000, "level": 0.9},
    "paper": {"seeds": 1, "sentences": None, "resamples": 1000, "level": 0.9},
}
"""Judged on the validation split: all of it, or its first `sentences`."""


def _settings(scale: gao24.Scale) -> Data:
    layers = 2 if scale == "smoke" else LAYERS["paper"]
    return {**EVALUATION[scale], "experiments": written(three(gao24.translation(scale), layers))}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train the three models on the training pairs, judge them on the validation pairs."""
    bleu(["a b c d"], ["a b c d"], resamples=1)  # without sacrebleu, say so before training
    experiments = read(sizes["experiments"])
    runs = trained(experiments, sizes, settings)
    data: Data = {"models": {}, "differences": {}}
    sums: dict[str, Tensor] = {}
    counts: Tensor | None = None
    for index, (label, (run, *_)) in enumerate(runs.items()):
        settings.progress(f"translating with {label}", 0.9 + 0.1 * index / len(runs))
        task, train = run.experiment.task, run.experiment.train
        assert isinstance(task, Translation)
        held = replace(task, split="val")
        model, limit = run.model(settings.device), sizes["sentences"]
        sums[label], counts = cross_entropies(model, held, n=train.points, limit=limit)
        said = translate(model, held, n=train.points, limit=limit)
        references = held.texts()[1][: len(said)]
        data["models"][label] = {
            "parameters": model.num_parameters,
            "layers_applied": layers_applied(run.experiment),
            "cross_entropy": listed(per_token(sums[label], counts, level=sizes["level"])),
            "bleu": listed(bleu(said, references, level=sizes["level"], resamples=sizes["resamples"])),
            "seconds": run.provenance().get("train_seconds"),
            "sample": {"english": references[0], "said": said[0]},
        }
    assert counts is not None
    for label in MODELS[1:]:
        difference = per_token(sums["AlgoFormer"] - sums[label], counts, level=sizes["level"])
        data["differences"][f"AlgoFormer - {label}"] = listed(difference)
    data["differences"]["looped - standard"] = listed(
        per_token(sums["looped"] - sums["standard"], counts, level=sizes["level"])
    )
    data["sentences"], data["tokens"] = len(counts), int(counts.sum())
    return data


def listed(interval: Interval) -> list[float]:
    """Mean, low, high."""
    return [float(one) for one in interval]


def draw(figure: Any, data: Data) -> None:
    """Cross entropy and BLEU of the three models, with their intervals."""
    figure.set_size_inches(7.2, 2.6)
    names = {"cross_entropy": "validation cross entropy (nats a token)", "bleu": "BLEU, greedy"}
    for ax, (key, title) in zip(figure.subplots(1, 2), names.items(), strict=True):
        for index, label in enumerate(MODELS):
            mean, low, high = data["models"][label][key]
            ax.errorbar(
                mean,
                index,
                xerr=[[mean - min(low, mean)], [max(high, mean) - mean]],
                fmt="o",
                color=f"C{index}",
                label=label,
            )
        ax.set(xlabel=title, yticks=range(len(MODELS)), yticklabels=MODELS, ylim=(len(MODELS) - 0.5, -0.5))
    finish(figure, columns=3)


def below(difference: str) -> Callable[[Data], Measured]:
    """A judge: a paired difference of cross entropies lies below 0 with its whole interval."""

    def judge(data: Data) -> Measured:
        mean, low, high = data["differences"][difference]
        shown = "; ".join(
            f"{label} {one['cross_entropy'][0]:.3f} (BLEU {one['bleu'][0]:.1f}, {one['parameters']:,} parameters, "
            f"{one['layers_applied']} layers applied, paper {PAPER[label]:g})"
            for label, one in data["models"].items()
        )
        return Measured(value=mean, low=low, high=high, holds=high < 0, note=f"{shown}; Multi30k, one seed")

    return judge


table = Figure(
    name="gao24.table",
    title="German to English: cross entropy and BLEU of AlgoFormer, looped and standard transformer",
    settings={scale: _settings(scale) for scale in gao24.SCALES},
    measure=measure,
    draw=draw,
    claims=tuple(
        Claim(
            id=f"gao24.table.{better.lower()}_beats_{worse}",
            statement=f"Validation cross entropy of the {better} model is below the {worse} model's (Section 5.5).",
            tolerance="the 90% bootstrap interval over sentences of the paired difference lies below 0",
            judge=below(f"{better} - {worse}"),
        )
        for better, worse in (("AlgoFormer", "looped"), ("AlgoFormer", "standard"), ("looped", "standard"))
    ),
)
