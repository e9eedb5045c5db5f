"""gao24's table in Section 5.5: German to English translation by the three models.

Multi30k stands in for IWSLT 2015, so numbers are not comparable with the paper's; their order is.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from looped.evaluation.lines import finish
from looped.evaluation.translation import bleu, cross_entropies, per_token, translate
from looped.papers import gao24
from looped.papers.gao24.variants import ALGOFORMER, LOOPED, MODELS, STANDARD, three
from looped.studies import Cell, Context, Published, Study, Table, claim, curve
from looped.studies.measures import TRAINING_SHARE, trained
from looped.studies.study import Cells
from looped.tasks.translation import Translation

PUBLISHED = {STANDARD: "4.994", LOOPED: "4.726", ALGOFORMER: "4.609"}
"""Validation cross entropy as printed, IWSLT 2015."""
AXES = {"cross_entropy": "validation cross entropy (nats a token)", "bleu": "BLEU, greedy"}


@dataclass(frozen=True, kw_only=True)
class Translations:
    """Cross entropy and BLEU on the validation pairs, and paired differences of cross entropy."""

    seeds: tuple[int, ...] = (0,)
    """One training for each; the first is judged."""
    sentences: int | None = None
    """The first of the validation split that are judged; None: all."""
    resamples: int = 1000
    """Bootstrap resamples behind the interval of BLEU."""
    level: float = 0.9
    """Level of the intervals over sentences."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train the three models on the training pairs, judge them on the validation pairs."""
        bleu(["a b c d"], ["a b c d"], resamples=1)  # without sacrebleu, say so before training
        runs = trained(cells, self.seeds, context)
        table, sums = Table(), {}
        for index, (cell, (run, *_)) in enumerate(runs.items()):
            share = TRAINING_SHARE + (1 - TRAINING_SHARE) * index / len(runs)
            context.progress(f"translating with {cell['model']}", share)
            experiment, model = run.experiment, run.model(context.device)
            assert isinstance(experiment.task, Translation)
            validation = replace(experiment.task, split="val")
            options = {"n": experiment.train.points, "limit": self.sentences}
            sums[cell["model"]], counts = cross_entropies(model, validation, **options)
            said = translate(model, validation, **options)
            references = validation.texts()[1][: len(said)]
            self._add(table, cell, "cross_entropy", per_token(sums[cell["model"]], counts, level=self.level))
            self._add(table, cell, "bleu", bleu(said, references, level=self.level, resamples=self.resamples))
            table.add(cell, "parameters", model.num_parameters, seed=self.seeds[0])
            table.add(cell, "layers_applied", experiment.model.layers_applied, seed=self.seeds[0])
        for better, worse in combinations(sums, 2):
            difference = per_token(sums[better] - sums[worse], counts, level=self.level)
            self._add(table, Cell(model=better, minus=worse), "difference", difference)
        return table

    def _add(self, table: Table, cell: Cell, quantity: str, interval: Any) -> None:
        mean, low, high = map(float, interval)
        table.add(cell, quantity, mean, low=[low], high=[high], seed=self.seeds[0])


def draw(figure: Any, table: Table) -> None:
    """Cross entropy and BLEU of the three models, with their intervals."""
    figure.set_size_inches(7.2, 2.6)
    for ax, (quantity, title) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
        for index, model in enumerate(MODELS):
            value = curve(quantity, model=model).value(table)
            spread = [[value.mean - min(value.low, value.mean)], [max(value.high, value.mean) - value.mean]]
            ax.errorbar(value.mean, index, xerr=spread, fmt="o", color=f"C{index}", label=model)
        ax.set(xlabel=title, yticks=range(len(MODELS)), yticklabels=MODELS, ylim=(len(MODELS) - 0.5, -0.5))
    finish(figure, columns=3)


TABLE = Study(
    name="gao24.table",
    title="German to English: cross entropy and BLEU of AlgoFormer, looped and standard transformer",
    cells=lambda scale: {
        Cell(model=model): experiment
        for model, experiment in three(gao24.translation(scale), 2 if scale == "smoke" else 12).items()
    },
    measure=lambda scale: Translations(sentences=4, resamples=20) if scale == "smoke" else Translations(),
    panels=draw,
    claims=tuple(
        claim(
            f"{better.lower()}_beats_{worse}",
            f"Validation cross entropy of the {better} model is below the {worse} model's (Section 5.5).",
            curve("difference", model=better, minus=worse) < 0,
            published=[
                Published(what=f"{model}, IWSLT", number=PUBLISHED[model], ours=curve("cross_entropy", model=model))
                for model in (better, worse)
            ],
            remark="Multi30k, one seed",
        )
        for better, worse in combinations(MODELS, 2)
    ),
)
