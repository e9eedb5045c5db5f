"""Table 2: trained on nine OpenML tables, tested in context on the tenth, against logistic regression.

What the paper leaves open, and what is done here: the number of examples (k = 40 at `paper` scale, as for linear
functions), the training, the scaler, and which class is called 1 (see `looped.tasks.tables`). Logistic regression reads
the same examples of each prompt; its strength of regularisation is chosen on the nine training tables, never on the
tenth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.lines import finish, reference_line
from looped.experiment import Experiment, Scale
from looped.functional.schedules import RandomDepth, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import trainings
from looped.papers.yang24.trainings import around, short
from looped.papers.yang24.variants import LOOPED, UNLOOPED
from looped.prompt import Prompt
from looped.studies import Cell, Context, Learned, Published, Study, Table, claim
from looped.studies.measures import trained
from looped.studies.quantities import curve, mean, share, worst
from looped.studies.study import Cells
from looped.tasks.tables import OPENML, Tables

CHUNK = 256
"""Prompts in one forward pass."""
LOGISTIC = "logistic regression"
POLLEN = "871_pollen"
TUNED_ON = ("803_delta_ailerons", "847_wind")
"""Tables whose accuracy chose the `cpu` setting (docs/log.md)."""
CHANCE = 0.5
PRINTED: Mapping[str, tuple[float, float]] = {
    "720_abalone": (0.662, 0.626),
    "725_bank8FM": (0.504, 0.511),
    "737_space_ga": (0.72, 0.656),
    "803_delta_ailerons": (0.40, 0.394),
    "807_kin8nm": (0.416, 0.405),
    "816_puma8NH": (0.462, 0.463),
    "819_delta_elevators": (0.568, 0.483),
    "847_wind": (0.757, 0.668),
    POLLEN: (0.51, 0.532),
    "42192_compas-two-years": (0.65, 0.65),
}
"""The paper's Table 2: looped, standard.

Its label codes are not flipped, so that a model may learn that most tables' class 1 is low.
"""
CPU = replace(
    trainings.CPU,
    steps=700,
    window=3,
    grad=3,
    depth=RandomDepth(low=-2, high=2),
    dims=None,
    optimizer=replace(trainings.CPU.optimizer, schedule=Trapezoid(warmup=0.03, decay=0.2)),
    log_every=50,
    checkpoint_every=400,
)
"""Ten examples, five random features of each table: labels are noisy, and wider prompts take longer to learn at all."""
PAPER_STEPS = 6000
"""Steps of 64 prompts of both models at `paper` scale, 20 and 30 seconds on one H200. As in `trainings.PAPER` they
begin where the `cpu` setting is, with 10 examples of 5 random features, and have 40 of all features after a third."""
SMOKE = replace(CPU, steps=4, batch=4, points=6, depth=RandomDepth(low=-1, high=3), log_every=2)


def leave_out(table: str, scale: Scale, model: str, among: Sequence[str] = OPENML) -> Experiment:
    """Training on all tables but one: a looped decoder with b = 30, T = 15, or 12 layers unlooped (App. G)."""
    config, train = {
        "smoke": (DecoderConfig(d=5, width=8, heads=2, loops=3, positions=12), SMOKE),
        "cpu": (DecoderConfig(d=5, width=64, heads=4, loops=4, positions=22), CPU),
        "paper": (DecoderConfig(d=20, width=256, heads=8, loops=30), trainings.PAPER),
    }[scale]
    if model == UNLOOPED:
        layers = {"smoke": 2, "cpu": 4, "paper": 12}[scale]
        config, train = replace(config, layers=layers, loops=1), replace(train, window=1, grad=None, depth=None)
    names = tuple(name for name in among if name != table)
    kind = "looped" if model == LOOPED else "transformer"
    name = f"yang24.tables-{kind}-without-{table}"
    base = Experiment(name=name, task=Tables(d=config.d, names=names), model=config, train=train)
    if scale != "paper":
        return base
    return short(around(base, 30, 15) if model == LOOPED else base, steps=PAPER_STEPS)


def left_out(scale: Scale) -> Cells:
    """One model of each kind for every table; two tables at `smoke` scale, looped models alone at `cpu` scale."""
    tables = OPENML[:2] if scale == "smoke" else OPENML
    models = (LOOPED,) if scale == "cpu" else (LOOPED, UNLOOPED)
    return {
        Cell(model=model, task=table): leave_out(table, scale, model, tables) for model in models for table in tables
    }


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """Right answers at the last pair of test prompts, of every model and of logistic regression.

    For every model and table: `accuracy`, and of those that are not looped `behind_looped`, the looped model's
    accuracy minus theirs on the same prompts. For logistic regression also `strength` and, by strength, `tuning`.
    For every trained model: `least_shortfall`.
    """

    prompts: int
    """Prompts for the accuracies."""
    tuning_prompts: int
    """Prompts from each training table for the choice of a strength."""
    strengths: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    """Values of scikit-learn's C to choose from."""
    seed: int = 0
    """Of the trainings."""
    level: float = 0.9
    """Level of the intervals over prompts."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train every model on all tables but one, then count."""
        runs = trained(cells, (self.seed,), context, share=0.85)
        tables = list(dict.fromkeys(str(cell["task"]) for cell in cells))
        first = next(iter(cells.values()))
        points, task = first.train.points, first.task
        tuning = self.tuning(task, points, tables, context)
        table = Table()
        for index, name in enumerate(tables):
            context.progress(f"testing on {name}", 0.92 + 0.08 * index / len(tables))
            prompt = draw_prompts(replace(task, names=(name,), rows="test"), points, self.prompts, index, context)
            right = {
                str(cell["model"]): correct(run.model(context.device).predict, prompt)
                for cell, [run] in runs.items()
                if cell["task"] == name
            }
            # chosen where the models learned: on the other tables
            strength = self.best_strength([tuning[other] for other in tables if other != name])
            right[LOGISTIC] = (logistic(prompt, strength) == prompt.ys[:, -1].cpu()).double()
            for model, values in right.items():
                cell, seed = Cell(model=model, task=name), None if model == LOGISTIC else self.seed
                self.add_mean(table, cell, "accuracy", values, seed)
                if model != LOOPED:
                    self.add_mean(table, cell, "behind_looped", right[LOOPED] - values, seed)
            table.add(Cell(model=LOGISTIC, task=name), "strength", strength)
            table.add(Cell(model=LOGISTIC, task=name), "tuning", tuning[name], x=self.strengths)
        for model in dict.fromkeys(str(cell["model"]) for cell in cells):
            table.add(Cell(model=model), "least_shortfall", least_shortfall(table, model), seed=self.seed)
        return table

    def tuning(self, task: Tables, points: int, tables: Sequence[str], context: Context) -> dict[str, list[float]]:
        """Accuracy of logistic regression with each strength, on prompts from the training rows of each table."""
        accuracies = {}
        for index, name in enumerate(tables):
            context.progress(f"logistic regression on {name}", 0.85 + 0.07 * index / len(tables))
            rows = replace(task, names=(name,), rows="train")
            prompt = draw_prompts(rows, points, self.tuning_prompts, -1 - index, context)
            answers = prompt.ys[:, -1].cpu()
            accuracies[name] = [(logistic(prompt, c) == answers).double().mean().item() for c in self.strengths]
        return accuracies

    def best_strength(self, accuracies: Sequence[Sequence[float]]) -> float:
        """The strength with the best mean accuracy over tables."""
        totals = [sum(column) for column in zip(*accuracies, strict=True)]
        return self.strengths[totals.index(max(totals))]

    def add_mean(self, table: Table, cell: Cell, quantity: str, values: Tensor, seed: int | None) -> None:
        """The mean over prompts with its interval."""
        average, low, high = (part.item() for part in bootstrap(values, level=self.level))
        table.add(cell, quantity, average, low=[low], high=[high], seed=seed)


MEASURES = {
    "smoke": Accuracies(prompts=8, tuning_prompts=4),
    "cpu": Accuracies(prompts=1000, tuning_prompts=50),
    "paper": Accuracies(prompts=1280, tuning_prompts=200),
}


def draw_prompts(task: Tables, points: int, batch: int, seed: int, context: Context) -> Prompt:
    """Prompts from some rows of one table."""
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    return task.sample(batch=batch, n=points, generator=generator).to(context.device)


def correct(predict: Callable[[Prompt], Tensor], prompt: Prompt) -> Tensor:
    """1 where the sign of the prediction at the last pair is its label, else 0."""
    right = [(predict(part)[:, -1].sign() == part.ys[:, -1]).double() for part in prompt.chunks(CHUNK)]
    return torch.cat(right).cpu()


def logistic(prompt: Prompt, strength: float) -> Tensor:
    """Class of the last x by scikit-learn's logistic regression on the pairs before it; a lone class is the answer.

    Coordinates that are zero in the whole prompt get the weight zero, so padding changes nothing.
    """
    try:
        from sklearn import config_context
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise ValueError("logistic regression needs scikit-learn: pip install 'looped[baselines]'.") from None
    answers = []
    # Newton's method: problems of tens of rows converge in a few steps
    fit = LogisticRegression(C=strength, solver="newton-cholesky", max_iter=1000)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for xs, ys in zip(prompt.xs.double().cpu().numpy(), prompt.ys.cpu().numpy(), strict=True):
            lone_class = (ys[:-1] == ys[0]).all()
            answers.append(float(ys[0] if lone_class else fit.fit(xs[:-1], ys[:-1]).predict(xs[-1:])[0]))
    return torch.tensor(answers)


def draw(figure: Any, table: Table) -> None:
    """Accuracy on each table: points with 90% intervals, and the paper's numbers as crosses."""
    figure.set_size_inches(7.2, 3.8)
    ax = figure.subplots()
    tables = table.labels("task")
    for index, model in enumerate((LOOPED, UNLOOPED, LOGISTIC)):
        members = list(table.where("accuracy", model=model))
        means = [series.value[0] for series in members]
        below = [series.value[0] - low for series in members for low in series.low or series.value]
        above = [high - series.value[0] for series in members for high in series.high or series.value]
        places = [tables.index(series.cell["task"]) + 0.18 * (index - 1) for series in members]
        style = {"color": f"C{index}", "marker": "os^"[index], "markersize": 4, "linestyle": ""}
        ax.errorbar(places, means, yerr=[below, above], label=model, capsize=2, **style)
    for index, model in enumerate((LOOPED, UNLOOPED)):
        places = [place + 0.18 * (index - 1) for place in range(len(tables))]
        printed = [PRINTED[str(name)][index] for name in tables]
        style = {"color": f"C{index}", "marker": "x", "markersize": 4, "linestyle": "", "alpha": 0.6}
        ax.plot(places, printed, label=f"{model}, as published (no flips)", **style)
    reference_line(ax, [-0.5, len(tables) - 0.5], [0.5, 0.5], "chance")
    ax.set_xticks(range(len(tables)), [str(name).partition("_")[2] for name in tables], rotation=30, ha="right")
    ax.set(ylabel="accuracy in context", xlim=(-0.5, len(tables) - 0.5))
    finish(figure, columns=3)


def least_shortfall(table: Table, model: str) -> float:
    """How far a model stays behind logistic regression on its best table: 0 is level with it, 1 is chance.

    Tables on which logistic regression is not above chance do not count; infinite where there is no other.
    """
    shortfalls = [math.inf]
    for rival in table.where("accuracy", model=LOGISTIC):
        [series] = table.where("accuracy", model=model, task=rival.cell["task"])
        if rival.low is not None and rival.low[0] > CHANCE:
            shortfalls.append((rival.value[0] - series.value[0]) / (rival.value[0] - CHANCE))
    return min(shortfalls)


accuracy = curve("accuracy", model=LOOPED)
behind_looped = curve("behind_looped", model=UNLOOPED)
fresh = [name for name in OPENML if name not in (POLLEN, *TUNED_ON)]
above_chance, logistic_above_chance = (
    mean(curve("accuracy", model=model) - CHANCE, over="task", among=fresh) for model in (LOOPED, LOGISTIC)
)
TABLE2 = Study(
    name="yang24.table2",
    title="Accuracy in context on an OpenML table that was left out of training",
    cells=left_out,
    measure=lambda scale: MEASURES[scale],
    panels=draw,
    # three of the claims hold for a model that is at chance everywhere
    learned=Learned(of="least_shortfall", best=0.0),
    claims=(
        claim(
            "not_below_chance",
            "In context on a table left out of training, no accuracy is below chance (our check: Table 2 prints 0.40 "
            "for delta_ailerons, which flipping label codes at random rules out).",
            share(accuracy < CHANCE, over="task") <= 0,
            published=[
                Published(what=name, number=f"{looped:g}", ours=curve("accuracy", model=LOOPED, task=name))
                for name, (looped, _) in PRINTED.items()
            ],
        ),
        claim(
            "learns",
            "Trained on nine tables, the looped decoder learns the tenth in context (App. G).",
            above_chance / logistic_above_chance >= 0.5,
            remark="learned means halfway from chance to logistic regression, on the mean of seven tables: without "
            "pollen, which nobody can learn, and without the two on which the cpu setting was chosen",
            beside={"tables above chance, of ten": 10 * share(accuracy > CHANCE, over="task")},
        ),
        claim(
            "pollen_is_noise",
            "Pollen's label is its row number, so nothing can be learned there (Table 2: 0.51).",
            abs(curve("accuracy", model=LOOPED, task=POLLEN) - CHANCE) <= 0.05,
        ),
        claim(
            "comparable",
            "The looped transformer is comparable to the standard one, and in some cases better (App. G).",
            (mean(behind_looped, over="task") >= -0.02) & (worst(behind_looped, over="task") > 0),
            published=[
                Published(
                    what=f"{name}, transformer",
                    number=f"{unlooped:g}",
                    ours=curve("accuracy", model=UNLOOPED, task=name),
                )
                for name, (_, unlooped) in PRINTED.items()
            ],
        ),
    ),
)
