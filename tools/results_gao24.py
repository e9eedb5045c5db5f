"""Results of gao24 from version 1, as tables."""

from __future__ import annotations

from typing import Any

from looped.studies.study import Context, Study
from looped.studies.table import Cell, Table


def fig2(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`[task][model]`."""
    return _with_baselines({(task, model): data[task][model] for task in data for model in data[task]},
                           ("task", "model"), study, scale)  # fmt: skip


def grid(first: str, second: str):
    """`models` by a name such as "dT=1, T=4"."""

    def convert(data: dict[str, Any], study: Study, scale: str) -> Table:
        entries = {tuple(pair): model for pair, model in zip(data["grid"], data["models"].values(), strict=True)}
        return _with_baselines(entries, (first, second), study, scale)

    return convert


def fig5(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`panels[noise]` with models and algorithms; the algorithms are computed again, and must be the same."""
    entries = {}
    for noise, panel in data["panels"].items():
        for name, model in panel["models"].items():
            loops, window = (int(part.partition("=")[2]) for part in name.split(", "))
            entries[float(noise), loops, window] = model
    table = _with_baselines(entries, ("noise", "T", "dT"), study, scale)
    for noise, panel in data["panels"].items():
        for name in ("gradient descent", "Newton's method"):
            [series] = table.where("by_loops", noise=float(noise), model=name)
            kept = panel["algorithms"][name]
            assert all(abs(a / b - 1) < 1e-3 for a, b in zip(series.value, kept, strict=True)), (noise, name)
    return table


def _with_baselines(entries: dict[tuple, Any], labels: tuple[str, ...], study: Study, scale: str) -> Table:
    """Models' curves as kept, and the best known predictor, which version 1 did not have, on the same prompts."""
    measure, cells, table = study.measure(scale), study.cells(scale), Table()
    for values, model in entries.items():
        cell = Cell(dict(zip(labels, values, strict=True)))
        assert cell in cells, cell
        for index, seed in enumerate(measure.seeds):
            for old, new in (("by_points", "by_examples"), ("by_loops", "by_loops")):
                curve = model[old]
                places = list(curve["x"])
                numbers = [float("inf") if value is None else value for value in curve["mean"][index]]
                table.add(cell, new, numbers, x=places, seed=seed)
            table.add(cell, "trained_loops", model["loops"], seed=seed)
            table.add(cell, "layers_applied", model["layers_applied"], seed=seed)
            table.add(cell, "parameters", model["parameters"], seed=seed)
    measure.add_baselines(table, cells, Context(scale=scale))
    return table


def table(data: dict[str, Any], study: Study, scale: str) -> Table:
    """Cross entropy, BLEU and paired differences with their intervals."""
    result = Table()

    def add(cell: Cell, quantity: str, interval: list[float]) -> None:
        mean, low, high = interval
        result.add(cell, quantity, mean, low=[low], high=[high], seed=0)

    for model, entry in data["models"].items():
        for quantity in ("cross_entropy", "bleu"):
            add(Cell(model=model), quantity, entry[quantity])
        for quantity in ("parameters", "layers_applied"):
            result.add(Cell(model=model), quantity, entry[quantity], seed=0)
    for pair, interval in data["differences"].items():
        better, worse = pair.split(" - ")
        add(Cell(model=better, minus=worse), "difference", interval)
    return result


CONVERTERS = {
    "gao24.fig2": fig2,
    "gao24.fig3": grid("dT", "T"),
    "gao24.fig4": grid("L", "h"),
    "gao24.fig5": fig5,
    "gao24.table": table,
}
