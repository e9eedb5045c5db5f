"""Figures of the papers: found, measured, judged, drawn, kept.

OUT/NAME.SCALE.json            numbers, claims, provenance
OUT/figures/NAME.SCALE.svg     the figure, and .png
"""

from __future__ import annotations

import hashlib
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
from looped.config import nearest
from looped.evaluation.claims import Data, Figure, Judged, Settings
from looped.files import check_folder, read_json, write_json
from looped.training.provenance import provenance

DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)
"""What judging or drawing says to numbers of another form."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A figure as measured."""

    figure: Figure
    """Which one."""
    scale: str
    """At which scale."""
    data: Data
    """The numbers."""
    claims: list[Judged]
    """The paper's sentences, judged."""
    provenance: dict[str, Any]
    """Command, commit, device, versions, seconds."""
    path: Path
    """The file that keeps it."""
    measured: bool = False
    """Just now; otherwise it comes from the file, as whoever had it left it."""
    taken: bool = False
    """From the results kept with looped."""
    outdated: bool = False
    """Measured with settings that the figure no longer has at this scale."""


def figures() -> dict[str, Figure]:
    """Every figure of every paper, by name, in the order of the modules and their lines."""
    found: dict[str, Figure] = {}
    for info in pkgutil.walk_packages(looped.papers.__path__, "looped.papers."):
        members = vars(importlib.import_module(info.name)).values()
        found |= {member.name: member for member in members if isinstance(member, Figure)}
    return found


def select(names: Sequence[str]) -> list[Figure]:
    """The figures of those names; a paper's name means all of its figures, a figure's without letter all its panels."""
    known = figures()
    chosen: dict[str, Figure] = {}
    for name in names:
        panels = {key for key in known if key[:-1] == name and key[-1].isalpha()}
        hits = {key: known[key] for key in known if key == name or key.startswith(f"{name}.") or key in panels}
        if not hits:
            papers = {key.partition(".")[0] for key in known}
            raise ValueError(f"no figure is called `{name}`. {nearest(name, {*known, *papers})}")
        chosen |= hits
    return list(chosen.values())


def settings_hash(figure: Figure, scale: str) -> str:
    """The same for a result and for the figure of today, if the result is one of today's settings."""
    return hashlib.sha256(json.dumps(figure.settings[scale], sort_keys=True).encode()).hexdigest()[:10]


def reproduce(
    figure: Figure,
    scale: str,
    *,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
    runs: Path = Path("runs"),
    again: bool = False,
    own: Path | None = None,
) -> Result:
    """Measure a figure unless `out` has it at these settings already, judge its claims, and keep both.

    `own` is a folder whose results count too, such as the one that comes with the library's sources.
    Claims are always judged anew from the numbers: they are cheap, and a claim may have been added since.
    """
    if scale not in figure.settings:
        raise ValueError(f"{figure.name} has no scale `{scale}`. {nearest(scale, figure.settings)}")
    check_folder(out, "results")
    path = out / f"{figure.name}.{scale}.json"
    sizes = figure.settings[scale]
    key = settings_hash(figure, scale)
    kept, taken = _read(path, again=again), False
    if kept.get("settings_hash") != key and own is not None:
        ours = _read(own / path.name, again=again)
        taken = ours.get("settings_hash") == key
        kept = ours if taken else kept
    measured = kept.get("settings_hash") != key
    if measured:
        started = time.monotonic()
        settings = Settings(scale=scale, device=torch.device(device), progress=progress, runs=runs)
        # through JSON and back, so that a fresh result and a kept one are the same thing
        data = json.loads(json.dumps(figure.measure(sizes, settings), allow_nan=False))
        origin = {**provenance(device), "seconds": round(time.monotonic() - started, 2)}
        origin |= {"trainings": settings.used} if settings.used else {}
    else:
        data, origin = kept.get("data", {}), kept.get("provenance", {})
    try:
        claims = figure.judge(data, scale)
        origin = {**origin, "seconds": float(origin["seconds"])}
    except DAMAGE as error:
        if measured:
            raise
        raise damaged(own / path.name if taken and own is not None else path, error) from None
    content = {
        "figure": figure.name,
        "title": figure.title,
        "scale": scale,
        "settings": sizes,
        "settings_hash": key,
        "claims": [claim.to_data() for claim in claims],
        "provenance": origin,
        "data": data,
    }
    write_json(path, content)
    how = {"provenance": origin, "path": path, "measured": measured, "taken": taken}
    return Result(figure=figure, scale=scale, data=data, claims=claims, **how)


def _read(path: Path, *, again: bool) -> dict[str, Any]:
    """A result that is there and not to be measured again; else nothing."""
    kept = read_json(path) if path.exists() and not again else {}
    if not isinstance(kept, dict):
        raise damaged(path, "it holds no object")
    return kept


def damaged(path: Path, why: object) -> ValueError:
    """The error for a kept result that cannot be judged or drawn."""
    return ValueError(f"{path} is damaged or of another version ({why!r}). Measure it anew with `--again`.")


def kept(out: Path) -> list[Result]:
    """The results that a folder keeps, by name and scale; those of a figure or scale not known are passed over."""
    known, found = figures(), []
    for path in sorted(out.glob("*.json")):
        content = read_json(path)
        figure = known.get(str(content.get("figure"))) if isinstance(content, dict) else None
        if figure is None or str(content.get("scale")) not in figure.settings:
            continue
        try:
            scale, data = content["scale"], content["data"]
            how = {
                "provenance": content["provenance"],
                "path": path,
                "outdated": content.get("settings_hash") != settings_hash(figure, scale),
            }
            found.append(Result(figure=figure, scale=scale, data=data, claims=figure.judge(data, scale), **how))
        except DAMAGE as error:
            raise damaged(path, error) from None
    return found
