"""Evaluations saved in the run folder: RUN/evaluations/NN-name.json, in the order in which they were first saved."""

import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from looped.evaluation.curves import Curve, Evaluation
from looped.files import finite, read_json, write_json


@runtime_checkable
class Folder(Protocol):
    """Anything that lives in a folder, such as a `Run`."""

    path: Path


def save_evaluation(run: Folder, name: str, evaluation: Evaluation) -> Path:
    """Save an evaluation under a title such as 'noisy labels'; it replaces an earlier one of the same title.

    A number that is not finite (of a model that diverged) is written as null and read back as NaN.
    """
    if not name.strip():
        raise ValueError("an evaluation needs a `name`, such as 'noisy labels'; got an empty one.")
    folder = run.path / "evaluations"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is a link or a file, and no folder of the run's. Put a folder in its place.")
    folder.mkdir(exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "evaluation"
    files = _files(run)
    last = max((int(file.name.partition("-")[0]) for file in files), default=0)
    # a damaged file of that title is replaced too: evaluating again repairs it
    same = [file for file in files if file.stem.partition("-")[2] == slug and _title(file) in (name, None)]
    file = same[0] if same else folder / f"{last + 1:02d}-{slug}.json"
    write_json(file, {"name": name, **finite(asdict(evaluation))})
    return file


def evaluations(run: Folder) -> dict[str, Evaluation]:
    """The saved evaluations by title; a damaged file is a ValueError that names it."""
    return dict(_read(file) for file in _files(run))


def _files(run: Folder) -> list[Path]:
    files = (run.path / "evaluations").glob("*.json")
    numbered = [file for file in files if re.match(r"\d{1,9}-", file.name)]
    return sorted(numbered, key=lambda file: (int(file.name.partition("-")[0]), file.name))


def _title(file: Path) -> str | None:
    try:
        return _read(file)[0]
    except ValueError:
        return None


def _read(file: Path) -> tuple[str, Evaluation]:
    data = read_json(file)
    try:
        data = dict(data)
        name = _typed(data.pop("name"), str, "name")
        by_examples = [_curve(curve) for curve in data.pop("by_examples")]
        if not by_examples:
            raise ValueError("`by_examples` is empty")
        by_loops = _curve(data.pop("by_loops"))
        for field, kind in {"task": str, "prompts": int, "loops": int, "trained_loops": int, "level": float}.items():
            _typed(data[field], kind, field)
        evaluation = Evaluation(**data, by_examples=by_examples, by_loops=by_loops)
    except KeyError as error:
        raise ValueError(f"{file} is incomplete: it has no {error}. Evaluate the run again.") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} is not an evaluation ({error}). Evaluate the run again.") from None
    return name, evaluation


def _curve(data: Any) -> Curve:
    values = {key: [math.nan if value is None else value for value in data[key]] for key in ("mean", "low", "high")}
    numbers = [*data["x"], *(value for line in values.values() for value in line)]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError("a curve holds something that is not a number")
    if any(abs(number) > 2**53 for number in numbers if isinstance(number, int)):
        raise ValueError("a curve holds a whole number above 2^53")
    if not data["x"] or any(len(line) != len(data["x"]) for line in values.values()):
        raise ValueError("a curve's x, mean, low and high must have the same length, at least 1")
    return Curve(label=_typed(data["label"], str, "label"), x=data["x"], **values)


def _typed(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"`{name}` must be {kind.__name__}")
    return value
