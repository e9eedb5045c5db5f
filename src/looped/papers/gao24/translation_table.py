"""gao24's table in Section 5.5: German to English translation by the three models.

Multi30k stands in for IWSLT 2015, so numbers are not comparable with the paper's; their order is. Long trainings
overfit it, and some models more than others. So the validation pairs are split at random: on one half every model's
checkpoint is chosen, on the other half the chosen ones are judged. Checkpoints do not travel: train and measure on one
machine. At `paper` scale all three have dropout .1.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.lines import finish
from looped.evaluation.translation import (
    bleu,
    cross_entropies,
    frequency_cross_entropies,
    halves,
    per_token,
    translate,
)
from looped.experiment import Experiment, Scale
from looped.models.base import LoopedModel
from looped.papers import gao24
from looped.papers.gao24.variants import ALGOFORMER, LOOPED, MODELS, STANDARD, three
from looped.studies import Cell, Context, Learned, Published, Study, Table, claim, curve
from looped.studies.measures import TRAINING_SHARE, trained
from looped.studies.study import Cells
from looped.tasks.translation import Translation
from looped.training.folder import read_checkpoint
from looped.training.run import Run

PUBLISHED = {STANDARD: "4.994", LOOPED: "4.726", ALGOFORMER: "4.609"}
"""Validation cross entropy as printed, IWSLT 2015."""
CHECKPOINTS = {"smoke": 3, "cpu": 12, "paper": 10}
"""Checkpoints of each training to choose from; at `cpu` scale 1.5 GB for 12 layers."""
AXES = {"cross_entropy": "cross entropy (nats a token)", "bleu": "BLEU, greedy"}


@dataclass(frozen=True, kw_only=True)
class Translations:
    """Every model's checkpoint of least cross entropy on one half of the validation pairs, judged on the other half.

    For every model: `cross_entropy` and `bleu`, `last_cross_entropy` of its last step, `by_frequency` of answers that
    read nothing, `chosen_step`, and `choice` by steps, the cross entropy on the half that chooses. For pairs of
    models: `difference` and `last_difference` of their cross entropies, sentence by sentence.
    """

    seeds: tuple[int, ...] = (0,)
    """One training for each."""
    split_seed: int = 0
    """Of the two halves."""
    sentences: int | None = None
    """The first of the validation split that are used; None: all."""
    resamples: int = 1000
    """Bootstrap resamples behind the interval of BLEU."""
    level: float = 0.9
    """Level of the intervals over sentences."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train the three models on the training pairs, then choose and judge."""
        bleu(["a b c d"], ["a b c d"], resamples=1)  # without sacrebleu, say so before training
        runs = trained(cells, self.seeds, context)
        table, jobs = Table(), [(*job, seed) for job in runs.items() for seed in self.seeds]
        sums: dict[tuple[str, int], dict[Any, Tensor]] = {}
        counts = torch.zeros(0)
        for index, (cell, members, seed) in enumerate(jobs):
            share = TRAINING_SHARE + (1 - TRAINING_SHARE) * index / len(jobs)
            context.progress(f"translating with {cell['model']}", share)
            run = members[self.seeds.index(seed)]
            task, n = run.experiment.task, run.experiment.train.points
            assert isinstance(task, Translation)
            validation = replace(task, split="val")
            references = validation.texts()[1][: self.sentences]
            choosing, testing = halves(len(references), self.split_seed)
            model = self.chosen(table, cell, run, validation, choosing, context)
            options = {"n": n, "rows": testing}
            for name, weights in (("", model), ("last_", run.model(context.device))):
                total, counts = cross_entropies(weights, validation, **options)
                sums.setdefault((f"{name}difference", seed), {})[cell["model"]] = total
                self._add(table, cell, f"{name}cross_entropy", per_token(total, counts, level=self.level), seed)
            said = translate(model, validation, **options)
            english = [references[row] for row in testing.tolist()]
            self._add(table, cell, "bleu", bleu(said, english, level=self.level, resamples=self.resamples), seed)
            if seed == self.seeds[0]:
                guess, tokens = frequency_cross_entropies(validation, **options)
                table.add(cell, "by_frequency", float(guess.sum() / tokens.sum()))
            table.add(cell, "parameters", model.num_parameters, seed=seed)
            table.add(cell, "layers_applied", run.experiment.model.layers_applied, seed=seed)
        for (quantity, seed), by_model in sums.items():
            for better, worse in combinations(by_model, 2):
                difference = per_token(by_model[better] - by_model[worse], counts, level=self.level)
                self._add(table, Cell(model=better, minus=worse), quantity, difference, seed)
        return table

    def chosen(
        self, table: Table, cell: Cell, run: Run, validation: Translation, rows: Tensor, context: Context
    ) -> LoopedModel:
        """The model of the run's checkpoint that is best on these rows; all of them go into the table."""
        if len(run.steps) < 2:
            raise ValueError(f"{run.path} has one checkpoint, and several are compared. Train the run: looped train.")
        errors: dict[int, float] = {}
        seed = run.experiment.train.seed
        for step in run.steps:
            model = run.model_of(read_checkpoint(run.path, step), context.device)
            sums, counts = cross_entropies(model, validation, n=run.experiment.train.points, rows=rows)
            errors[step] = float(sums.sum() / counts.sum())
        best = min(errors, key=lambda step: errors[step])
        table.add(cell, "choice", list(errors.values()), x=list(errors), seed=seed)
        table.add(cell, "chosen_step", best, seed=seed)
        return run.model_of(read_checkpoint(run.path, best), context.device)

    def _add(self, table: Table, cell: Cell, quantity: str, interval: Any, seed: int) -> None:
        mean, low, high = map(float, interval)
        table.add(cell, quantity, mean, low=[low], high=[high], seed=seed)


def draw(figure: Any, table: Table) -> None:
    """Cross entropy by steps on the half that chooses; cross entropy and BLEU on the other, with their intervals."""
    figure.set_size_inches(10.2, 2.8)
    first, *others = figure.subplots(1, 3)
    for index, model in enumerate(MODELS):
        for series in table.where("choice", model=model):
            first.plot(series.x, series.value, marker=".", color=f"C{index}")
    first.set(xlabel="training steps", ylabel=AXES["cross_entropy"], title="half that chooses")
    for ax, (quantity, title) in zip(others, AXES.items(), strict=True):
        for index, model in enumerate(MODELS):
            value = curve(quantity, model=model).value(table)
            spread = [[value.mean - min(value.low, value.mean)], [max(value.high, value.mean) - value.mean]]
            size = curve("parameters", model=model).value(table).mean
            label = f"{model}, {size / 1e6:.3g}M parameters"
            ax.errorbar(value.mean, index, xerr=spread, fmt="o", color=f"C{index}", label=label)
        ax.set(xlabel=title, yticks=range(len(MODELS)), yticklabels=MODELS, ylim=(len(MODELS) - 0.5, -0.5))
        ax.set_title("other half, chosen checkpoints")
    finish(figure, columns=3)


def translators(scale: Scale) -> dict[Cell, Experiment]:
    """The three models, each with all the checkpoints that there are to choose from."""
    count = CHECKPOINTS[scale]
    models = three(gao24.translation(scale), 2 if scale == "smoke" else 12)
    return {
        Cell(model=name): replace(
            model,
            train=replace(model.train, checkpoint_every=model.train.steps // count, keep_checkpoints=count),
        )
        for name, model in models.items()
    }


MEASURES = {
    "smoke": Translations(sentences=4, resamples=20),
    "cpu": Translations(),
    "paper": Translations(seeds=(0, 1, 2)),
}

TABLE = Study(
    name="gao24.table",
    title="German to English on Multi30k: cross entropy and BLEU of AlgoFormer, looped and standard transformer",
    cells=translators,
    measure=MEASURES.__getitem__,
    panels=draw,
    learned=Learned(of="cross_entropy", zero="by_frequency", best=0.0),
    claims=tuple(
        claim(
            f"{better.lower()}_beats_{worse}",
            f"Validation cross entropy of the {better} model is below the {worse} model's (Section 5.5).",
            curve("difference", model=better, minus=worse) < 0,
            published=[
                Published(what=f"{model}, IWSLT", number=PUBLISHED[model], ours=curve("cross_entropy", model=model))
                for model in (better, worse)
            ],
            beside={
                "difference at the last step": curve("last_difference", model=better, minus=worse),
                "parameters": curve("parameters", model=better) / curve("parameters", model=worse),
            },
            remark="Multi30k; checkpoints chosen on one half of the validation pairs, judged on the other",
        )
        for better, worse in combinations(MODELS, 2)
    ),
)
