"""`looped verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from looped.cli.common import Json, Quiet, late, messages, print_json
from looped.files import check_folder, tidied, write_json
from looped.report.page import write_report
from looped.theorems.check import Row
from looped.theorems.check import verify as check

COLOURS = {"holds": "green", "holds as corrected": "green", "fails as printed": "yellow", "fails": "red"}


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Theorems, papers or patterns; all without names.")] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Write verify.json and verify.html.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the papers' theorems numerically: statement, measured value, bound, verdict.

    Exits 1 if a result fails; a misprint that fails as printed does not count, its corrected form has a row of its own.

    Example: `looped verify gatmiry24.thm2 "chen24.*"`
    """
    folder = None if out is None else Path(out)
    bar = Progress(console=messages, disable=quiet or json, transient=True)
    with tidied(*([folder] if folder else [])), late(bar):
        if folder is not None:
            check_folder(folder, "verdicts")
        task = bar.add_task("verify", total=None)

        def report(name: str, done: int, total: int) -> None:
            bar.start()
            bar.update(task, description=f"verify {name}", completed=done, total=total)

        rows = check(names, progress=report)
        data = [row.as_dict() for row in rows]
        if folder is not None:
            write_json(folder / "verify.json", data)
            write_report(folder / "verify.html", runs=[], theorems=data, title="looped verify")
    if json:
        print_json(data)
    elif not quiet:
        messages.print(table(rows))
    if any(row.verdict == "fails" for row in rows):
        raise typer.Exit(1)


def table(rows: list[Row]) -> Table:
    """One line a row: what was measured against which bound."""
    lines = Table(title=f"{len(rows)} rows", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "form", "measured", "bound", "margin", "verdict", "seconds"):
        right = column in ("measured", "bound", "margin", "seconds")
        lines.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "name")
    for row in rows:
        verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]"
        numbers = (f"{row.measured:.3g}", f"{row.bound:.3g}", f"{row.margin:.3g}")
        lines.add_row(row.name, row.form, *numbers, verdict, f"{row.seconds:.1f}")
    return lines
