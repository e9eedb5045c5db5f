"""The points of a sweep: experiments that differ in the fields asked, each with the run folder that is its own."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from looped.config import change, encode, parse_value
from looped.experiment import Experiment
from looped.files import read_about, read_json
from looped.training.folder import checkpoint_path, checkpoint_steps

Status = Literal["waiting", "running", "finished", "stopped", "diverged", "busy", "failed"]
MOST = 10**5
"""More points than this are a slip of the hand: only to write them down would take hours."""
TAIL = 4096
"""Bytes at the end of the metrics that surely hold the last whole line."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One experiment of a sweep."""

    experiment: Experiment
    """The experiment, complete."""
    path: Path
    """Its run folder, named by the hash of the config: the one that `looped train` would make."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields that the sweep sets, as JSON data."""

    @property
    def steps(self) -> int:
        """Steps to train."""
        assert self.experiment.train is not None
        return self.experiment.train.steps


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a point stands."""

    status: Status = "waiting"
    """waiting (nothing is saved), stopped (a part is saved), running, finished, diverged, busy (elsewhere), failed."""
    step: int = 0
    """Steps done and saved."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last line of its metrics."""
    message: str = ""
    """What went wrong."""
    lost: int = 0
    """Workers that died on it."""


def point(experiment: Experiment, out: str | Path = "runs", fields: Mapping[str, Any] | None = None) -> Point:
    """The point of an experiment that can be trained."""
    if experiment.train is None:
        raise ValueError(f"`{experiment.name}` was imported or constructed: there is nothing to train. Set `train`.")
    path = Path(out) / experiment.folder
    return Point(experiment=experiment, path=path, fields=fields or {})


def points(
    base: Experiment,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    each: Sequence[Mapping[str, Any]] = ({},),
    seeds: Iterable[int] | None = None,
    out: str | Path = "runs",
    code: Mapping[str, Any] | None = None,
    skip_invalid: bool = False,
) -> list[Point]:
    """Every combination of a field's values, of the sets of fields in `each`, and of seeds; equal ones are one point.

    Fields have their dotted names, `model.loops`; several that go together are one key, `model.loops,train.window`,
    with a list for each value. Seeds vary fastest. A combination that is no valid experiment is an error, or left out.
    """
    axes = [list(_settings(name, values)) for name, values in (grid or {}).items()]
    numbers = [{"train.seed": seed} for seed in itertools.islice(seeds, MOST + 1)] if seeds is not None else [{}]
    axes = [list(each), *axes, numbers]
    _check_once(axes)
    if math.prod(map(len, axes)) > MOST:
        raise ValueError(f"a sweep has at most {MOST:,} points; this one has more. Give fewer values or seeds.")
    found: dict[Path, Point] = {}
    reason = ""
    for combination in itertools.product(*axes):
        fields = {name: _data(value) for part in combination for name, value in part.items()}
        try:
            made = point(change(base, fields, code), out, fields)
        except ValueError as error:
            said = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
            reason = f"{error} That is the point {said}."
            if not skip_invalid:
                raise ValueError(f"{reason} `--skip-invalid` leaves such points out.") from None
            continue
        found.setdefault(made.path, made)
    if not found:
        raise ValueError(f"no point of this sweep can be trained. {reason}".strip())
    return list(found.values())


def _check_once(axes: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Refuse a field that two axes set: one of them would count for nothing."""
    seen: set[str] = set()
    for axis in axes:
        names = {name for setting in axis for name in setting}
        if twice := sorted(names & seen):
            raise ValueError(f"`{twice[0]}` is given twice; give it once, with all its values.")
        seen |= names


def standing(path: Path) -> Standing:
    """Where a run stands by what lies in its folder; no weights are read, so a long run costs what a short one does.

    A last checkpoint that is not whole does not count as finished: training goes on from the one before it.
    """
    saved = checkpoint_steps(path)
    if not saved:
        return Standing(metrics=last_metrics(path))
    try:
        finished = bool(read_about(checkpoint_path(path, saved[-1])).get("finished"))
    except ValueError:
        finished = False
    return Standing(status="finished" if finished else "stopped", step=saved[-1], metrics=last_metrics(path))


def last_metrics(path: Path) -> dict[str, float]:
    """The last whole line of a run's metrics, read from the end of the file; empty where there is none."""
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        found = json.loads(line) if line else {}
    except (OSError, ValueError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in numbers if isinstance(value, (int, float))}


def read_axes(assignments: Iterable[str]) -> dict[str, list[Any]]:
    """Axes as typed: `model.loops=4,8,16`, and of fields that go together `model.loops,train.window=[4,2],[8,4]`."""
    grid: dict[str, list[Any]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = ",".join(part.strip() for part in name.split(","))
        if not equals or not name.strip(","):
            raise ValueError(f"an axis reads `field=value,value,...`; got `{assignment}`.")
        if name in grid:
            raise ValueError(f"`{name}` is given twice; give it once, with all its values.")
        grid[name] = [parse_value(one.strip()) for one in _split(text)]
    return grid


def read_file(path: Path) -> dict[str, Any]:
    """A sweep's file, JSON or TOML: any of `recipe`, `scale`, `grid`, `points` and `seeds`."""
    import tomllib

    kinds = {"recipe": str, "scale": str, "grid": dict, "points": list, "seeds": (int, list)}
    if path.suffix in (".json", ".toml") and not os.path.isfile(path):
        raise ValueError(f"there is no file {path}. Name one that is there.")
    if path.suffix == ".toml":
        try:
            data: Any = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read as TOML: {error}.") from None
    elif path.suffix == ".json":
        data = read_json(path)
    else:
        raise ValueError(f"a sweep's file is .json or .toml; got {path}.")
    if not isinstance(data, dict) or not data or data.keys() - kinds.keys():
        raise ValueError(f"{path} must hold some of {', '.join(kinds)}, and nothing else.")
    for name, value in data.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(f"`{name}` in {path} has the wrong type; got {value!r}.")
    grid, each = data.get("grid", {}), data.get("points", [{}])
    if not all(isinstance(values, list) for values in grid.values()) or not all(isinstance(one, dict) for one in each):
        raise ValueError(f"in {path} `grid` has a list of values for each field, `points` is a list of sets of fields.")
    seeds = data.get("seeds", 1)
    if isinstance(seeds, list) and not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ValueError(f"`seeds` in {path} must be a number of seeds or a list of seeds; got {seeds!r}.")
    return data


def _settings(name: str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The fields that each value of an axis sets."""
    if isinstance(values, (str, Mapping)) or not values:
        raise ValueError(f"`{name}` needs a list of one or more values; got {values!r}.")
    names = [part.strip() for part in name.split(",")]
    for value in values:
        if len(names) > 1 and not (isinstance(value, (list, tuple)) and len(value) == len(names)):
            raise ValueError(f"`{name}` needs a list of {len(names)} for each value; got {value!r}.")
        yield dict(zip(names, value if len(names) > 1 else [value], strict=True))


def _data(value: Any) -> Any:
    """A value as JSON data: a task or model may be given as the object that it is."""
    return encode(value) if is_dataclass(value) else value


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside brackets, braces and quotes."""
    parts, depth, quoted, escaped = [""], 0, False, False
    for letter in text:
        if letter == "," and not depth and not quoted:
            parts.append("")
            continue
        parts[-1] += letter
        quoted ^= letter == '"' and not escaped
        escaped = quoted and letter == "\\" and not escaped
        if not quoted:
            depth += (letter in "[{") - (letter in "]}")
    return parts
