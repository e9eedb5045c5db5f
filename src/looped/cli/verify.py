"""`looped verify`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from looped.cli.options import Json, Quiet
from looped.cli.output import coloured, number, progress_lines, show
from looped.files import check_folder, tidied, write_json
from looped.report.page import write_report
from looped.theorems.check import Row
from looped.theorems.check import verify as check

COLOURS = {
    "holds": "green",
    "holds as corrected": "green",
    "fails as printed": "yellow",
    "fails in the proof": "yellow",
    "fails": "red",
}


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Theorems, papers or patterns; default all.")] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Write verify.json and verify.html.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the papers' theorems numerically: statement, measured value, bound, verdict.

    Exits 1 if a result fails. A misprint that fails as printed, or in a proof, does not count; its corrected form has
    its own row.

    Example: `looped verify gatmiry24.thm2 "chen24.*"`
    """
    folder = None if out is None else Path(out)
    with tidied(*([folder] if folder else [])), progress_lines(quiet=quiet or json) as report:
        if folder is not None:
            check_folder(folder, "verdicts")
        rows = check(names, progress=lambda name, done, total: report("verify", done / total, name))
        data = [row.as_dict() for row in rows]
        if folder is not None:
            write_json(folder / "verify.json", data)
            write_report(folder / "verify.html", runs=[], theorems=data, title="looped verify")
    show(data, table(rows), json=json, quiet=quiet)
    if any(row.verdict == "fails" for row in rows):
        raise typer.Exit(1)


def table(rows: list[Row]) -> Table:
    """One line a row: the statement, and what was measured against which bound."""
    lines = Table(title=f"{len(rows)} rows", box=None, padding=(0, 2, 1, 0))
    for column in ("name", "statement", "measured", "", "bound", "verdict"):
        right = column in ("measured", "bound")
        lines.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column != "statement")
    for row in rows:
        relation = ">=" if row.at_least else "<="
        verdict = coloured((row.verdict, COLOURS[row.verdict]))
        lines.add_row(row.name, row.statement, number(row.measured), relation, number(row.bound), verdict)
    return lines
