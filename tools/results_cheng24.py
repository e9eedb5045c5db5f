"""Results of cheng24 from version 1, as tables."""

from __future__ import annotations

from typing import Any

from looped.papers.cheng24.families import label_variance
from looped.papers.cheng24.figures import matrix_names
from looped.studies.study import Study
from looped.studies.table import Table


def losses(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`panels`, and the `extra` ones: lines by h, seed and place, and Bayes by seed and place."""
    table, seeds = Table(), study.measure(scale).training.seeds
    for panel in [*data["panels"], *data.get("extra", [])]:
        fixed = {"L": panel["layers"]} if panel["axis"] == "n" else {"n": panel["n"]}
        labels = {"K": panel["data"], **fixed}
        for head, runs in panel["lines"].items():
            for seed, values in zip(seeds, runs, strict=True):
                cell = {"K": panel["data"], "h": head, **fixed}
                table.add(cell, "loss", _numbers(values), x=panel["x"], seed=seed)
        for seed, values in zip(seeds, panel["bayes"], strict=True):
            table.add(labels, "Bayes", _numbers(values), x=panel["x"], seed=seed)
        table.add(labels, "label_variance", label_variance(data["world"], panel["data"]))
    return table


def matrices(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`panels`, in the order of the study's cells: distances by seed, step and matrix."""
    table, seeds = Table(), study.measure(scale).training.seeds
    for (cell, case), panel in zip(study.cells(scale).items(), data["panels"], strict=True):
        assert panel["title"].startswith(f"({case.data}, {case.heads[0]})")
        assert panel["transform"] == case.transform
        for index, seed in enumerate(seeds):
            columns = list(zip(*panel["distances"][index], strict=True))
            for matrix, values in zip(matrix_names(case), columns, strict=True):
                table.add({**cell, "matrix": matrix}, "distance", _numbers(values), x=data["steps"], seed=seed)
            table.add(cell, "loss", _numbers([panel["losses"][index]]), seed=seed)
            table.add(cell, "Bayes", panel["bayes"][index], seed=seed)
        table.add(cell, "label_variance", label_variance(case.protocol, case.data))
    return table


def _numbers(values: Any) -> list[float]:
    return [float("inf") if value is None else value for value in values]


CONVERTERS = {
    f"cheng24.fig{number}{suffix}": losses if number in (1, 2, 4) else matrices
    for number in range(1, 7)
    for suffix in ("", "_released")
}
