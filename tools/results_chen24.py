"""Results of chen24 from version 1, as tables."""

from __future__ import annotations

from typing import Any

import torch

from looped.papers.chen24 import BOUND, FLOOR, LOOPED, PUBLISHED, PUBLISHED_KAPPA, decay_rates
from looped.studies.study import Study
from looped.studies.table import Cell, Table


def fig1(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`error[n][trial][loop]`, `bound[n][trial][loop]`, `kappa[n][trial]`; decay rates follow from the errors."""
    table = Table()
    for cell, errors, bounds, kappas in zip(
        study.cells(scale), data["error"], data["bound"], data["kappa"], strict=True
    ):
        rates = decay_rates(torch.tensor(errors, dtype=torch.float64)).tolist()
        for trial, (error, bound, kappa, rate) in enumerate(zip(errors, bounds, kappas, rates, strict=True)):
            loops = range(len(error))
            table.add({**cell, "model": LOOPED}, "error", error, x=loops, seed=trial)
            table.add({**cell, "model": LOOPED}, "kappa", kappa, seed=trial)
            table.add({**cell, "model": LOOPED}, "decay_rate", rate, seed=trial)
            table.add({**cell, "model": BOUND}, "error", [max(value, FLOOR) for value in bound], x=loops, seed=trial)
            table.add({**cell, "model": BOUND}, "decay_rate", 1 / kappa, seed=trial)
        table.add(Cell({**cell, "model": PUBLISHED}), "kappa", PUBLISHED_KAPPA[int(cell["n"])])
    return table


CONVERTERS = {"chen24.fig1": fig1}
