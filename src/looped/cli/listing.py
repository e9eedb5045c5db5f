"""`looped list`."""

import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import looped.models
import looped.tasks
from looped.cli.options import Json, Quiet, results_folder
from looped.cli.output import interval, show
from looped.config import nearest
from looped.constructions.ready import READY
from looped.figure_facts import VERDICTS, FigureFacts, at_paper_scale, counts_text, figure_facts, kept_result
from looped.keeping import summary
from looped.models.base import ModelConfig
from looped.recipes import recipes
from looped.reproduce import damaged, studies
from looped.studies.claims import Claim
from looped.tasks.shifts import shifts_by_name
from looped.tasks.task import Task
from looped.theorems.check import theorems
from looped.training.kept import kept_models, own_results, results_with_claims

CLAIM_FIELDS = ("verdict", "value", "low", "high", "bound", "seeds", "asked", "note")
NOT_RUN = {"verdict": "not run", **dict.fromkeys(("value", "low", "high")), "seeds": 0, "note": ""}
HEADERS = {
    "models": ("model", "task", "parameters", "weights", "loops", "error", "training"),
    "figures": ("figure", "scale", "claims", "seeds", "training", "still needed", "title"),
    "claims": ("claim", "verdict", "value", "asked", "scale", "why not judged"),
}
"""Of the lists with more than two columns."""


def list_all(
    kind: Annotated[str | None, typer.Argument(help="Which of these lists; default: what there is to list.")] = None,
    results: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where `looped reproduce` keeps its results.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List recipes, tasks, shifts, architectures, models, theorems, constructions, figures, claims.

    Without a kind, the kinds with their numbers; with --json, all lists.
    Models are the kept ones, which every command takes by name. A model's line has its error after the loops that it
    was trained with, at the most examples k; --json also has those with more loops and with half of the examples.
    A figure's line has the largest scale with a result of today's settings, how many of its claims have which verdict,
    the seeds, the minutes of training, what it still needs at the paper's scale, and its title; numbers in print follow
    beside ours, and last how many of the papers' figures and tables have a result at their scale.
    A claim's line has the verdict at the scale that is judged (holds, fails, undecided, not judged, not run), the
    value with its interval, what is asked of it, the scale, and why there is no verdict; the counts come last, and
    --json has the sentence of the paper too.
    Without --results, those of the folder `results` here come before those kept with looped.

    Example: `looped list recipes`
    """
    if results is None:
        folders = [Path("results"), *filter(None, [own_results()])]
        with_claims = [Path("results"), results_with_claims()]
    else:
        folders = with_claims = [results_folder(results)]
    # a list is made only when it is asked for: a damaged file must not hide the other lists
    known: dict[str, Callable[[], dict[str, Any]]] = {
        "recipes": lambda: {name: _line(recipe) for name, recipe in recipes().items()},
        "tasks": lambda: {kind.__name__: _line(kind) for kind in _subclasses(looped.tasks, Task)},
        "shifts": lambda: {name: _line(kind) for name, kind in shifts_by_name().items()},
        "architectures": lambda: {kind.__name__: _line(kind) for kind in _subclasses(looped.models, ModelConfig)},
        "models": lambda: {name: summary(path) for name, path in kept_models().items()},
        "theorems": lambda: {name: theorem.statement for name, theorem in theorems().items()},
        "constructions": lambda: {name: _line(build) for name, build in READY.items()},
        "figures": lambda: {fact.name: fact for fact in figure_facts(folders)},
        "claims": lambda: _claims(with_claims),
    }
    if kind is not None and kind not in known:
        raise ValueError(f"there is no list of `{kind}`. {nearest(kind, known)}")
    shown = {title: make() for title, make in known.items() if kind in (None, title)}
    columns = {"models": model_columns, "claims": claim_columns, "figures": figure_columns}
    closings = {"figures": _after_figures, "claims": _after_claims}
    tables: list[Table | str] = []
    for title, entries in shown.items():
        headers = () if quiet or not entries else HEADERS.get(title, ())
        rows = Table(title=title, title_justify="left", show_header=bool(headers), box=None, padding=(0, 2, 0, 0))
        for header in headers:
            rows.add_column(header, overflow="fold")  # in a narrow terminal; cropped, a line would lose its verdict
        for name, facts in entries.items():
            texts = () if quiet else columns.get(title, lambda line: (line,))(facts)
            rows.add_row(name, *texts)
        if not entries:
            rows.add_row("" if quiet else "none yet: `looped keep` makes one")
        tables.append(rows)
        tables += [] if quiet or title not in closings else closings[title](entries)
    if kind is None:
        tables = [_kinds(shown)]
    if "figures" in shown:
        count, total = at_paper_scale([*shown["figures"].values()])
        shown["figures"] = {name: asdict(fact) for name, fact in shown["figures"].items()}
        shown["at_paper_scale"] = {"count": count, "of": total}
    if "claims" in shown:
        shown["verdicts"] = _count_verdicts(shown["claims"])
    show(shown, *tables, json=json, quiet=False)


def _kinds(shown: dict[str, dict[str, Any]]) -> Table:
    """How many entries each list has, and the command that shows it."""
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for title, entries in shown.items():
        rows.add_row(str(len(entries)), title, f"looped list {title}")
    rows.columns[0].justify = "right"
    return rows


def model_line(facts: dict[str, Any]) -> str:
    """A kept model in a line: task, size, errors with their intervals, where it was trained and for how long."""
    errors: dict[int, list[str]] = {}
    for error in facts["errors"]:
        text = f"{interval(error['mean'], error['low'], error['high'])} at k={error['x']}"
        errors.setdefault(error["loops"], []).append(text)
    measured = "; ".join(f"error after {loops} loops {', '.join(texts)}" for loops, texts in errors.items())
    seconds = facts["seconds"]
    trained = f"trained in {seconds / 60:.1f} minutes on {facts['device']}" if seconds else f"made on {facts['device']}"
    earlier = f", weights of step {facts['step']:,}" if facts["step"] else ""
    rounded = f", rounded to {facts['rounded_to']}" if facts["rounded_to"] else ""
    room = f"{facts['bytes'] / 1e6:.1f} MB" if facts["bytes"] else "weights in looped's repository"
    size = f"{facts['parameters']:,} parameters, {room}, {facts['loops']} loops"
    return f"{facts['task']}, {size}; {measured}; {trained}{earlier}{rounded}"


def model_columns(facts: dict[str, Any]) -> tuple[str, ...]:
    """Task, parameters, room on the disk, loops in training, error after them at the most examples, and training."""
    *_, error = (error for error in facts["errors"] if error["loops"] == facts["loops"])
    measured = f"{interval(error['mean'], error['low'], error['high'])} at k={error['x']}"
    room = f"{facts['bytes'] / 1e6:.1f} MB" if facts["bytes"] else "in looped's repository"
    minutes = f"{facts['seconds'] / 60:.1f} min, " if facts["seconds"] else ""
    task = facts["task"].partition("(")[0]
    return task, f"{facts['parameters']:,}", room, str(facts["loops"]), measured, f"{minutes}{facts['device']}"


def figure_columns(fact: FigureFacts) -> tuple[str, ...]:
    """Scale, verdicts, seeds, minutes of training, what is needed at the paper's scale, and the title."""
    title = fact.title if fact.in_print else f"not in print: {fact.title}"
    seeds = f"{fact.seeds} seed{'s' * (fact.seeds != 1)}" if fact.seeds else "-"
    return fact.scale_text, counts_text(fact.verdicts), seeds, fact.training_text, str(fact.needs or ""), title


def _after_figures(facts: dict[str, FigureFacts]) -> list[Table | str]:
    """Numbers in print beside ours, and how many figures have a result at the paper's scale."""
    numbers = Table(title="numbers in print", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("figure", "of", "in print", "ours", "scale"):
        numbers.add_column(column, overflow="fold")
    for name, fact in facts.items():
        for entry in fact.published:
            numbers.add_row(name, entry.what, entry.number, entry.ours or "-", fact.scale_text)
    count, total = at_paper_scale([*facts.values()])
    return [numbers, f"{count} of {total} at the paper's scale"]


def _after_claims(claims: dict[str, dict[str, Any]]) -> list[Table | str]:
    """How many claims have which verdict."""
    return [f"{len(claims)} claims: {counts_text(_count_verdicts(claims))}"]


def _count_verdicts(claims: dict[str, dict[str, Any]]) -> dict[str, int]:
    verdicts = Counter(claim["verdict"] for claim in claims.values())
    return {verdict: verdicts[verdict] for verdict in VERDICTS}


def _claims(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """Each claim at its judged scale: verdict, value, interval, what is asked of it, and why there is no verdict."""
    facts = {}
    for name, study in studies().items():
        claims = _judged_claims(folders, name, study.judged)
        for claim in study.claims:
            about = {"study": name, "scale": study.judged, "statement": claim.statement, "bounds": _bounds(claim)}
            asked = {"bound": float(claim.check.conditions[0].bound), "asked": str(claim.check)}
            facts[f"{name}.{claim.name}"] = about | claims.get(f"{name}.{claim.name}", NOT_RUN | asked)
    return facts


def _bounds(claim: Claim) -> str:
    """What is asked of the value: "at most 2 and at least 0.5"; and how many further values must meet a bound."""
    first, *_ = conditions = claim.check.conditions
    asked = [condition.asked for condition in conditions if condition.quantity is first.quantity]
    others = len(conditions) - len(asked)
    return " and ".join(asked) + (f", and {others} more" if others else "")


def claim_columns(claim: dict[str, Any]) -> tuple[str, ...]:
    """Verdict, value with its interval, what is asked, scale, and the reason where there is no verdict."""
    measured = claim["value"] is not None
    value = interval(claim["value"], claim["low"], claim["high"]) if measured else "-"
    reason = claim["note"].partition("; ")[0].partition(": ")[0] if claim["verdict"] == "not judged" else ""
    return claim["verdict"], value, claim["bounds"], claim["scale"], reason


def _judged_claims(folders: list[Path], name: str, scale: str) -> dict[str, dict[str, Any]]:
    """The claims of a figure's result by their ids; empty where there is no result."""
    if (result := kept_result(folders, name, scale)) is None:
        return {}
    path, content = result
    try:
        return {claim["id"]: {key: claim[key] for key in CLAIM_FIELDS} for claim in content["claims"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, error) from None


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
