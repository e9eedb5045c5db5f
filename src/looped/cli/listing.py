"""`looped list`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import looped.models
import looped.tasks
from looped.cli.options import Json, Quiet, results_folder
from looped.cli.output import interval, print_json, print_result
from looped.config import nearest
from looped.constructions.ready import READY
from looped.files import read_json
from looped.keeping import summary
from looped.models.base import ModelConfig
from looped.recipes import recipes
from looped.reproduce import studies
from looped.studies.study import Study
from looped.tasks.shifts import shifts_by_name
from looped.tasks.task import Task
from looped.theorems.check import theorems
from looped.training.kept import kept_models, own_results


def list_all(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="recipes, tasks, shifts, architectures, models, theorems, constructions, figures or claims."
        ),
    ] = None,
    results: Annotated[
        str | None, typer.Option("--results", metavar="DIR", help="Where `looped reproduce` keeps its results.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List recipes, tasks, shifts, architectures, models, theorems, constructions, figures, claims.

    Models are the kept ones, which every command takes by name; --json prints their numbers as fields.
    A figure's line also says how many claims it checks, and at which scales there is a result, with how many of them
    hold; a claim's line says whether it holds, fails, is undecided or was not run, at the scale that is judged.
    Without --results, those of the folder `results` here come before those kept with looped.

    Example: `looped list recipes`
    """
    folders = _results() if results is None else [results_folder(results)]
    # a list is made only when it is asked for: a damaged file must not hide the other lists
    known: dict[str, Callable[[], dict[str, Any]]] = {
        "recipes": lambda: {name: _line(recipe) for name, recipe in recipes().items()},
        "tasks": lambda: {kind.__name__: _line(kind) for kind in _subclasses(looped.tasks, Task)},
        "shifts": lambda: {name: _line(kind) for name, kind in shifts_by_name().items()},
        "architectures": lambda: {kind.__name__: _line(kind) for kind in _subclasses(looped.models, ModelConfig)},
        "models": lambda: {name: summary(path) for name, path in kept_models().items()},
        "theorems": lambda: {name: theorem.statement for name, theorem in theorems().items()},
        "constructions": lambda: {name: _line(build) for name, build in READY.items()},
        "figures": lambda: _figures(folders),
        "claims": lambda: _claims(folders),
    }
    if kind is not None and kind not in known:
        raise ValueError(f"there is no list of `{kind}`. {nearest(kind, known)}")
    shown = {title: make() for title, make in known.items() if kind in (None, title)}
    if json:
        print_json(shown)
        return
    for title, entries in shown.items():
        rows = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, line in entries.items():
            rows.add_row(name, "" if quiet else escape(line if isinstance(line, str) else model_line(line)))
        if not entries:
            rows.add_row("" if quiet else "none yet: `looped keep` makes one")
        print_result(rows)


def _results() -> list[Path]:
    """The folder `results` here, then the results kept with looped."""
    return [Path("results"), *filter(None, [own_results()])]


def _file(folders: list[Path], name: str, scale: str) -> Path:
    """A figure's result at a scale in the first folder that has it; where none has, in the first."""
    files = [folder / f"{name}.{scale}.json" for folder in folders]
    return next((file for file in files if file.is_file()), files[0])


def model_line(facts: dict[str, Any]) -> str:
    """A kept model in a line: task, size, errors with their intervals, where it was trained."""
    errors: dict[int, list[str]] = {}
    for error in facts["errors"]:
        text = f"{interval(error['mean'], error['low'], error['high'])} at k={error['x']}"
        errors.setdefault(error["loops"], []).append(text)
    measured = "; ".join(f"error after {loops} loops {', '.join(texts)}" for loops, texts in errors.items())
    seconds = facts["seconds"]
    trained = f"trained in {seconds:.0f} s on {facts['device']}" if seconds else f"made on {facts['device']}"
    earlier = f", weights of step {facts['step']:,}" if facts["step"] else ""
    size = f"{facts['parameters']:,} parameters, {facts['loops']} loops"
    return f"{facts['task']}, {size}; {measured}; {trained}{earlier}"


def _figures(folders: list[Path]) -> dict[str, str]:
    """Title, number of claims, and the scales of which results are kept, for every figure."""
    lines = {}
    for name, study in studies().items():
        count = len(study.claims)
        results = [_summary(_file(folders, name, scale), study, scale) for scale in study.scales]
        shown = ", ".join(filter(None, results)) or "none"
        lines[name] = f"{study.title} ({count} claim{'s' * (count != 1)}; results: {shown})"
    return lines


def _summary(path: Path, study: Study, scale: str) -> str:
    """`paper 2/3`: the scale, and how many of its judged claims held; empty where there is no result."""
    if not path.is_file():
        return ""
    verdicts = [claim["verdict"] for claim in _claims_in(path).values() if claim["verdict"] != "not judged"]
    old = " with other settings" if read_json(path).get("settings_hash") != study.settings_hash(scale) else ""
    return f"{scale} {verdicts.count('holds')}/{len(verdicts)}{old}" if verdicts else f"{scale}{old}"


def _claims(folders: list[Path]) -> dict[str, str]:
    """The verdict on each claim at its judged scale, with value, interval and what was asked."""
    lines = {}
    for name, study in studies().items():
        claims = _claims_in(_file(folders, name, study.judged))
        for claim in study.claims:
            judged = claims.get(f"{name}.{claim.name}")
            lines[f"{name}.{claim.name}"] = f"{_verdict(judged)}. {claim.statement}"
    return lines


def _verdict(judged: dict[str, Any] | None) -> str:
    """`holds: 1.06 [0.97, 1.21], asked: ...`, or why there is none."""
    if judged is None:
        return "not run"
    if judged["verdict"] == "not judged":
        return f"not judged ({judged['note'].partition(';')[0]})"
    value = interval(judged["value"], judged["low"], judged["high"])
    return f"{judged['verdict']}: {value}, asked: {judged['asked']}"


def _claims_in(path: Path) -> dict[str, dict[str, Any]]:
    """The claims of a kept result by id; none where there is no result."""
    content = read_json(path) if path.is_file() else {"claims": []}
    try:
        return {claim["id"]: dict(claim) for claim in content["claims"]}
    except (KeyError, TypeError):
        raise ValueError(f"{path} is damaged or of another version. Measure it anew.") from None


def _line(thing) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]


def _subclasses(package, base: type) -> list[type]:
    """The public classes of a package that derive from `base`, found by importing its modules."""
    classes: dict[str, type] = {}
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for thing in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(thing) and issubclass(thing, base) and not inspect.isabstract(thing):
                classes[thing.__name__] = thing
    return list(classes.values())
