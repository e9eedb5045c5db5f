"""The trials of a sweep: experiments that differ in the fields asked for, each with its own run folder."""

import contextlib
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
from looped.files import parse_json, read_about, read_json, regular
from looped.training.folder import checkpoint_path, checkpoint_steps

Status = Literal["waiting", "running", "finished", "stopped", "diverged", "busy", "failed"]
MAX_TRIALS = 10**5
"""More trials than this are a typo: writing them down alone would take hours."""
TAIL_BYTES = 4096
"""The end of a metrics file that is sure to hold its last whole line."""


@dataclass(frozen=True, kw_only=True)
class Trial:
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
        return self.experiment.train.steps


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a trial stands."""

    status: Status = "waiting"
    """waiting (nothing is saved), stopped (a part is saved), running, finished, diverged, busy (elsewhere), failed."""
    step: int = 0
    """Steps done and saved."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last line of its metrics."""
    message: str = ""
    """What went wrong."""
    lost: int = 0
    """How many workers died while they trained it."""


def trial(experiment: Experiment, out: str | Path = "runs", fields: Mapping[str, Any] | None = None) -> Trial:
    """An experiment as a trial."""
    return Trial(experiment=experiment, path=Path(out) / experiment.folder, fields=fields or {})


def trials(
    base: Experiment,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    field_sets: Sequence[Mapping[str, Any]] = ({},),
    seeds: Iterable[int] | None = None,
    out: str | Path = "runs",
    code: Mapping[str, Any] | None = None,
    skip_invalid: bool = False,
) -> list[Trial]:
    """Every combination of the grid's values, of `field_sets` and of seeds; equal combinations are one trial.

    Fields have dotted names, `model.loops`. Fields that vary together are one key, `model.loops,train.window`, whose
    values are lists. Seeds vary fastest. A combination that is no valid experiment is an error, or is left out.
    """
    axes = [list(_settings(name, values)) for name, values in (grid or {}).items()]
    numbers = [{"train.seed": seed} for seed in itertools.islice(seeds, MAX_TRIALS + 1)] if seeds is not None else [{}]
    axes = [list(field_sets), *axes, numbers]
    _check_once(axes)
    if math.prod(map(len, axes)) > MAX_TRIALS:
        raise ValueError(f"a sweep has at most {MAX_TRIALS:,} trials; this one has more. Give fewer values or seeds.")
    by_path: dict[Path, Trial] = {}
    reason = ""
    for combination in itertools.product(*axes):
        fields = {name: value for part in combination for name, value in part.items()}
        # a task or model may be given as an object
        fields = {name: encode(value) if is_dataclass(value) else value for name, value in fields.items()}
        try:
            valid = trial(change(base, fields, code), out, fields)
        except ValueError as error:
            text = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
            reason = f"{error} That is the trial {text}."
            if not skip_invalid:
                raise ValueError(f"{reason} `--skip-invalid` leaves such trials out.") from None
            continue
        by_path.setdefault(valid.path, valid)
    if not by_path:
        raise ValueError(f"no trial of this sweep can be trained. {reason}".strip())
    return list(by_path.values())


def _check_once(axes: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Refuse a field that two axes set: one of them would be ignored."""
    seen: set[str] = set()
    for axis in axes:
        names = {name for setting in axis for name in setting}
        if twice := sorted(names & seen):
            raise ValueError(f"`{twice[0]}` is given twice; give it once, with all its values.")
        seen |= names


def standing(path: Path) -> Standing:
    """Where a run stands, read from its folder without its weights.

    A damaged last checkpoint does not count as finished: training goes on from the one before it.
    """
    step = max(checkpoint_steps(path), default=None)
    if step is None:
        return Standing(metrics=last_metrics(path))
    finished = False
    with contextlib.suppress(ValueError):
        finished = bool(read_about(checkpoint_path(path, step)).get("finished"))
    return Standing(status="finished" if finished else "stopped", step=step, metrics=last_metrics(path))


def last_metrics(path: Path) -> dict[str, float]:
    """The last whole line of a run's metrics, read from the end of the file; empty where there is none."""
    try:
        with open(regular(path / "metrics.jsonl"), "rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL_BYTES, 0))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        data = parse_json(line) if line else {}
    except (OSError, ValueError):
        return {}
    numbers = data.items() if isinstance(data, dict) else ()
    return {key: value for key, value in numbers if isinstance(value, (int, float))}


def read_axes(assignments: Iterable[str]) -> dict[str, list[Any]]:
    """Axes as typed: `model.loops=4,8,16`, or, varied together, `model.loops,train.window=[4,2],[8,4]`."""
    grid: dict[str, list[Any]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = ",".join(part.strip() for part in name.split(","))
        if not equals or not name.strip(","):
            raise ValueError(f"an axis reads `field=value,value,...`; got `{assignment}`.")
        if name in grid:
            raise ValueError(f"`{name}` is given twice; give it once, with all its values.")
        grid[name] = [parse_value(part.strip()) for part in _split(text)]
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
            data = parse_json(json.dumps(data))
        except TypeError:
            raise ValueError(f"{path} holds a date or a time, which no field is. Write it in quotes.") from None
        except (OSError, ValueError, RecursionError) as error:
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
    grid, field_sets = data.get("grid", {}), data.get("points", [{}])
    lists = all(isinstance(values, list) for values in grid.values())
    if not lists or not all(isinstance(fields, dict) for fields in field_sets):
        raise ValueError(f"in {path} `grid` has a list of values for each field, `points` is a list of sets of fields.")
    seeds = data.get("seeds", 1)
    if isinstance(seeds, list) and not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise ValueError(f"`seeds` in {path} must be a number of seeds or a list of seeds; got {seeds!r}.")
    return data


def _settings(name: str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    if isinstance(values, (str, Mapping)) or not values:
        raise ValueError(f"`{name}` needs a list of one or more values; got {values!r}.")
    names = [part.strip() for part in name.split(",")]
    for value in values:
        if len(names) > 1 and not (isinstance(value, (list, tuple)) and len(value) == len(names)):
            raise ValueError(f"`{name}` needs a list of {len(names)} for each value; got {value!r}.")
        yield dict(zip(names, value if len(names) > 1 else [value], strict=True))


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
