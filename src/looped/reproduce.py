"""Studies by name: measured, judged, drawn, and kept.

OUT/NAME.SCALE.json            numbers, claims, provenance
OUT/figures/NAME.SCALE.svg     the figure, and .png
"""

import importlib
import json
import pkgutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import looped.papers
from looped.config import load_code, nearest
from looped.files import check_folder, read_json, write_json
from looped.studies.claims import JudgedClaim
from looped.studies.study import Context, Study, training_facts
from looped.studies.table import Table
from looped.training.provenance import provenance

FORMAT = 2
"""Version of a result file; version 1 held nested data of every figure's own."""
SAVE_EVERY_S = 5.0
"""How often the seconds spent on a study are saved."""
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)
"""Errors that judging or drawing raises when the numbers have another form."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A study as measured."""

    study: Study
    """Which one."""
    scale: str
    """At which scale."""
    table: Table
    """The numbers."""
    claims: list[JudgedClaim]
    """What the paper says, judged."""
    provenance: dict[str, Any]
    """Command, commit, device, versions, seconds and seeds of the measurement; seconds and commits of the trainings it
    rests on, which may have been done before: `seconds` has only what was trained by its own command."""
    path: Path
    """The file that it was read from or written to."""
    measured: bool = False
    """Measured just now; otherwise read from the file."""
    shipped: bool = False
    """Read from the results that come with looped's sources."""
    outdated: bool = False
    """Measured with settings that the study no longer has at this scale."""


def studies() -> dict[str, Study]:
    """Every study of every paper, by name, in the order of the modules and their lines."""
    by_name: dict[str, Study] = {}
    for info in pkgutil.walk_packages(looped.papers.__path__, "looped.papers."):
        members = vars(importlib.import_module(info.name)).values()
        by_name |= {member.name: member for member in members if isinstance(member, Study)}
    return by_name


def select(names: Sequence[str]) -> list[Study]:
    """The studies of those names.

    A paper's name means all of its studies, a figure's name without its letter all its panels, and `file.py:name` a
    study of the user's own.
    """
    known = studies()
    chosen: dict[str, Study] = {}
    for name in names:
        if ".py" in name:
            study = from_file(name)
            chosen[study.name] = study
            continue
        panels = {key for key in known if key[:-1] == name and key[-1].isalpha()}
        hits = {key: known[key] for key in known if key == name or key.startswith(f"{name}.") or key in panels}
        if not hits:
            papers = {key.partition(".")[0] for key in known}
            raise ValueError(f"no figure is called `{name}`. {nearest(name, {*known, *papers})}")
        chosen |= hits
    return list(chosen.values())


def from_file(name: str) -> Study:
    """The study `file.py:name` of the user's own."""
    path, colon, attribute = name.partition(":")
    module = load_code(path)
    study = getattr(module, attribute, None) if colon else None
    if not isinstance(study, Study):
        there = [key for key, value in vars(module).items() if isinstance(value, Study)]
        remedy = nearest(attribute, there) if there else "The file has no `Study`."
        raise ValueError(f"a study of your own reads `file.py:name`; got `{name}`. {remedy}")
    return study


def reproduce(
    study: Study,
    scale: str,
    *,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
    runs: Path = Path("runs"),
    again: bool = False,
    shipped: Path | None = None,
) -> Result:
    """Measure a study unless `out` has it with these settings already, judge its claims, and keep both.

    `shipped` is a folder whose results count too: the one that comes with the library's sources. Claims are always
    judged anew from the numbers: that is cheap, and a claim may have been added since.
    """
    settings, key = study.settings(scale), study.settings_hash(scale)
    check_folder(out, "results")
    path = out / f"{study.name}.{scale}.json"
    sources = [path] if shipped is None else [path, shipped / path.name]
    hits = ((file, data) for file in sources if (data := _read(file, again=again)).get("settings_hash") == key)
    source, content = next(hits, (path, {}))
    measured = not content
    if measured:
        watch = Stopwatch(runs / f".{study.name}.{scale}-{key}.seconds.json")
        options = {"device": torch.device(device), "progress": watch.saving(progress), "runs": runs, "again": again}
        context = Context(scale=scale, **options)
        table = study.measure(scale)(study.cells(scale), context)
        origin = {**provenance(device), "seconds": round(watch.seconds(), 2), "seeds": table.seeds()}
        origin |= training_facts(context.trainings)
        watch.path.unlink(missing_ok=True)
        # through JSON and back, so that a fresh result and a kept one are the same thing
        content = json.loads(json.dumps({"provenance": origin, "table": table.to_data()}, allow_nan=False))
    result = _result(study, scale, content, source, measured=measured, shipped=source != path)
    written = {
        "format": FORMAT,
        "study": study.name,
        "title": study.title,
        "scale": scale,
        "settings": settings,
        "settings_hash": key,
        "claims": [claim.to_data() for claim in result.claims],
        "provenance": result.provenance,
        "table": result.table.to_data(),
    }
    write_json(path, written)
    return result


def _result(study: Study, scale: str, content: dict[str, Any], path: Path, **about: bool) -> Result:
    """The result of a file's content, its claims judged anew."""
    try:
        table, origin = Table.from_data(content["table"]), content["provenance"]
        origin = {**origin, "seconds": float(origin["seconds"])}
        claims = study.judge(table, scale)
    except DAMAGE as error:
        if about.get("measured"):
            raise
        raise damaged(path, error) from None
    return Result(study=study, scale=scale, table=table, claims=claims, provenance=origin, path=path, **about)


class Stopwatch:
    """Seconds spent on a study; those of attempts that were interrupted or killed are read from a file."""

    def __init__(self, path: Path):
        self.path = path
        self.earlier = float(read_json(path)["seconds"]) if path.is_file() else 0.0
        self.started = self.saved = time.monotonic()

    def seconds(self) -> float:
        """Over all attempts."""
        return self.earlier + time.monotonic() - self.started

    def saving(self, progress: Callable[[str, float], None]) -> Callable[[str, float], None]:
        """The same progress, which also saves the seconds now and then."""

        def report(what: str, share: float) -> None:
            if time.monotonic() - self.saved > SAVE_EVERY_S and self.path.parent.is_dir():
                write_json(self.path, {"seconds": self.seconds()})
                self.saved = time.monotonic()
            progress(what, share)

        return report


def _read(path: Path, *, again: bool) -> dict[str, Any]:
    """A result that is there and not to be measured again; else nothing."""
    content = read_json(path) if path.exists() and not again else {}
    if not isinstance(content, dict):
        raise damaged(path, "it holds no object")
    if content and content.get("format", 1) != FORMAT:
        raise ValueError(f"{path} was written by another version of looped. Measure it anew with `--again`.")
    return content


def damaged(path: Path, why: object) -> ValueError:
    """The error for a kept result that cannot be judged or drawn."""
    return ValueError(f"{path} is damaged or of another version ({why!r}). Measure it anew with `--again`.")


def kept_results(out: Path) -> list[Result]:
    """The results that a folder keeps, by name and scale; those of unknown studies or scales are passed over."""
    known, results = studies(), []
    for path in sorted(out.glob("*.json")):
        content = read_json(path)
        study = known.get(str(content.get("study"))) if isinstance(content, dict) else None
        if study is None or str(content.get("scale")) not in study.scales:
            continue
        scale = content["scale"]
        outdated = content.get("settings_hash") != study.settings_hash(scale)
        results.append(_result(study, scale, content, path, outdated=outdated))
    return results
