"""Results of gatmiry24 from version 1, as tables. Old losses are `[cell][seed][place]`, null where one diverged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from looped.papers.gatmiry24.chebyshev import BEST, CHEBYSHEV, COVARIANCES, LOWER, UPPER
from looped.papers.gatmiry24.forms import FORMS
from looped.studies.study import Study
from looped.studies.table import Label, Table


def by_setting(label: str, old_label: str, old_places: str):
    """Figures 1 and 2: `[setting][kind]` with the loss by kappa or k, and the best weights' loss."""

    def convert(data: dict[str, Any], study: Study, scale: str) -> Table:
        table, references = Table(), Table()
        for cell in study.cells(scale):
            entry = data[str(cell["setting"])][cell["model"]]
            index = data[old_label].index(cell[label])
            _add_seeds(table, cell, "loss", entry["loss"][index], data[old_places])
            best = {**cell, "model": f"best {cell['model']}"}
            references.add(best, "loss", entry["best"][index], x=data[old_places])
        return Table([*table, *references])

    return convert


def beyond_chebyshev(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`[kind of covariance]`, and references by depth."""
    table, depths = Table(), data["depths"]
    for covariance in COVARIANCES:
        entry, cell = data[covariance], {"covariance": covariance}
        _add_seeds(table, cell, "loss", entry["loss"], depths)
        _add_seeds(table, cell, "loss_at_worst_s", entry["largest"], depths)
        rates = sorted(rate for layer in entry["eigenvalues"] for rate in layer)
        table.add(cell, "rates", rates, x=range(1, len(rates) + 1), seed=0)
        table.add(cell, "off_identity", entry["off_identity"], x=range(1, len(entry["off_identity"]) + 1), seed=0)
    d = len(data["isotropic"]["eigenvalues"][0])
    for model, name in ((BEST, "best"), (CHEBYSHEV, "chebyshev")):
        table.add({"model": model}, "loss", data[name], x=depths)
        rates = [rate for rate in data[f"{name}_rates"] for _ in range(d)]
        table.add({"model": model}, "rates", rates, x=range(1, len(rates) + 1))
    table.add({"model": UPPER}, "loss_at_worst_s", data["upper"], x=depths)
    table.add({"model": LOWER}, "loss_at_worst_s", data["lower"], x=depths)
    return table


def beyond_forms(data: dict[str, Any], study: Study, scale: str) -> Table:
    """`[form][kind]`."""
    table, names = Table(), {form: name for name, form in FORMS.items()}
    for cell in study.cells(scale):
        _add_seeds(table, cell, "loss", data[names[str(cell["form"])]][cell["model"]]["loss"][0], data["halves"])
    return table


def _add_seeds(
    table: Table, cell: Mapping[str, Label], quantity: str, runs: Sequence[Sequence[float | None]], x: Sequence[float]
) -> None:
    for seed, run in enumerate(runs):
        table.add(cell, quantity, [math.inf if value is None else value for value in run], x=x, seed=seed)


CONVERTERS = {
    "gatmiry24.fig1a": by_setting("kappa", "kappas", "depths"),
    "gatmiry24.fig1b": by_setting("kappa", "kappas", "depths"),
    "gatmiry24.fig2": by_setting("k", "counts", "halves"),
    "gatmiry24.beyond_chebyshev": beyond_chebyshev,
    "gatmiry24.beyond_forms": beyond_forms,
}
