"""Results of yang24 from version 1, as tables.

Two things that version 1 did not keep are missing in them: Figure 17's curves by loops, and Figure 6's errors without a
shift. No claim reads the first; the second says whether a model has learned, and small scales are not judged.
"""

from __future__ import annotations

from typing import Any

from looped.papers.yang24.openml import LOGISTIC
from looped.papers.yang24.variants import LEAST_SQUARES, LOOPED, UNLOOPED
from looped.studies.measures import trained_loops
from looped.studies.study import Study
from looped.studies.table import Cell, Table


def models(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`models[model]`, and least squares or `baselines[name]`."""
    table = Table()
    for model, entry in data["models"].items():
        for quantity in ("by_examples", "by_loops"):
            _add(table, study, scale, Cell(model=model), quantity, entry[quantity])
        _add_sizes(table, study, scale, Cell(model=model), parameters=entry["parameters"])
    baselines = data.get("baselines") or {LEAST_SQUARES: data["least_squares"]}
    for name, curve in baselines.items():
        _add_reference(table, Cell(model=name), curve)
    return table


def schedules(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`classes[task][kind]`."""
    table = Table()
    for task, kinds in data["classes"].items():
        for kind, curve in kinds.items():
            _add(table, study, scale, Cell(task=task, kind=kind), "by_examples", curve)
            _add_sizes(table, study, scale, Cell(task=task, kind=kind))
    return table


def prompts(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`panels[d][model]`."""
    table = Table()
    for d, panel in data["panels"].items():
        for old, model in (("unlooped", UNLOOPED), ("looped", LOOPED)):
            _add(table, study, scale, Cell(model=model, d=int(d)), "by_prompts", panel[old])
    return table


def shifts(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`shifts[shift]["looped.B" | "unlooped.L" | "least squares"]`."""
    table = Table()
    for shift, curves in data["shifts"].items():
        for name, curve in curves.items():
            kind, _, number = name.partition(".")
            if kind == LEAST_SQUARES:
                _add_reference(table, Cell(model=LEAST_SQUARES, shift=shift), curve)
                continue
            labels = Cell(model=LOOPED, b=int(number)) if kind == "looped" else Cell(model=UNLOOPED, L=int(number))
            assert labels in study.cells(scale), labels
            _add(table, study, scale, Cell(labels, shift=shift), "by_examples", curve)
    return table


def published(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`weights[which]`, the log and least squares."""
    [cell], [seed], table = study.cells(scale), study.measure(scale).seeds, Table()
    steps = [step / 1000 for step in data["training"]["steps"]]
    table.add(cell, "logged_error", data["training"]["error"], x=steps, seed=seed)
    for weights, entry in data["weights"].items():
        for quantity in ("by_examples", "by_loops"):
            _add(table, study, scale, Cell(weights=weights), quantity, entry[quantity])
        _add_sizes(table, study, scale, Cell(weights=weights), of=cell)
        table.add(Cell(weights=weights), "step", entry["step"], seed=seed)
    _add_reference(table, Cell(model=LEAST_SQUARES), data["least_squares"])
    return table


def accuracies(data: dict[str, Any], study: Study, scale: str) -> Table:
    """A row for each table: accuracies, differences, and the strength of logistic regression."""
    names, table = {"looped": LOOPED, "transformer": UNLOOPED, "logistic": LOGISTIC}, Table()
    for row in data["rows"]:
        for old, model in names.items():
            if old not in row:
                continue
            cell, seed = Cell(model=model, task=row["table"]), None if model == LOGISTIC else 0
            entries = {"accuracy": row[old], "behind_looped": row["differences"].get(old)}
            for quantity, interval in entries.items():
                if interval is not None:
                    ends = {"low": [interval["low"]], "high": [interval["high"]]}
                    table.add(cell, quantity, interval["mean"], **ends, seed=seed)
        table.add(Cell(model=LOGISTIC, task=row["table"]), "strength", row["strength"])
        table.add(Cell(model=LOGISTIC, task=row["table"]), "tuning", row["tuning"], x=study.measure(scale).strengths)
    return table


def _add(table: Table, study: Study, scale: str, cell: Cell, quantity: str, curve: dict[str, Any]) -> None:
    for index, seed in enumerate(study.measure(scale).seeds):
        value, low, high = (_numbers(curve[side][index]) for side in ("mean", "low", "high"))
        table.add(cell, quantity, value, x=curve["x"], low=low, high=high, seed=seed)


def _add_reference(table: Table, cell: Cell, curve: dict[str, Any]) -> None:
    value, low, high = (_numbers(curve[side][0]) for side in ("mean", "low", "high"))
    table.add(cell, "by_examples", value, x=curve["x"], low=low, high=high)


def _add_sizes(
    table: Table, study: Study, scale: str, cell: Cell, *, of: Cell | None = None, parameters: int | None = None
) -> None:
    """What follows from the experiment; the number of parameters as kept must be that of the model."""
    experiment = study.cells(scale)[of or cell]
    count = experiment.model.build().num_parameters
    assert parameters in (None, count), (cell, parameters, count)
    for seed in study.measure(scale).seeds:
        table.add(cell, "trained_loops", trained_loops(experiment), seed=seed)
        table.add(cell, "layers_applied", experiment.model.layers_applied, seed=seed)
        table.add(cell, "parameters", count, seed=seed)


def _numbers(values: list[float | None]) -> list[float]:
    return [float("inf") if value is None else value for value in values]


CONVERTERS = {
    **{f"yang24.fig{number}": models for number in ("2", "3", "10a", "10b", "10c")},
    "yang24.fig5": prompts,
    "yang24.fig6": shifts,
    "yang24.fig17": schedules,
    "yang24.published": published,
    "yang24.table2": accuracies,
}
