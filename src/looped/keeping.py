"""Make a kept model of a finished run: its weights, and the errors it had when it was kept."""

import contextlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from looped.evaluation.curves import Curve, evaluate, resolve_loops
from looped.experiment import is_plain
from looped.files import Busy, check_folder, finite, locked, log, quoted, read_json, write_bytes, write_json
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.tasks.task import Task
from looped.training.folder import Checkpoint
from looped.training.kept import is_kept
from looped.training.provenance import provenance
from looped.training.run import Run

MAX_BYTES = 15_000_000
"""The largest size of a weights file."""
Rounding = Literal["float16", "bfloat16"]
"""What weights can be rounded to; they are loaded as float32 all the same."""
MAX_LINES = 500
"""How many lines of the metrics a kept model has at most."""
CHECK_PROMPTS, CHECK_SEED = 32, 20_240
"""The few prompts on which tests judge a kept model again."""
LEVEL = 0.9
"""Level of the intervals."""


def keep(
    run: Run,
    *,
    points: int,
    name: str | None = None,
    best: bool = False,
    rounding: Rounding | None = None,
    out: str | Path = "results/models",
    again: bool = False,
    loops: int | None = None,
    prompts: int = 1280,
    seed: int = 1,
    check_prompts: int = CHECK_PROMPTS,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Path:
    """Write OUT/NAME from a finished run and record its errors there; the folder is written whole or not at all.

    The record is measured on `prompts` fresh prompts of `points` pairs: the error by examples after the trained loops b
    and after 2b, and by loops up to `loops` (default 2b), all with 90% intervals; and the few numbers of `check`. With
    `best` the weights are those of the lowest logged loss; unless these are the last ones, no figure uses the kept
    model in place of the training. With `rounding` they are rounded to half the size, unless that moves an error of
    `check` out of its interval; the record is of the rounded ones.
    """
    target = Path(out) / (run.setup.name if name is None else name)
    _check_target(target, name, run, again)
    last = _finished(run)
    checkpoint = (best and run.best()) or last
    weights = _weights(run, checkpoint, rounding)
    origin = _origin(run) | ({} if checkpoint.finished else {"weights_of_step": checkpoint.step})
    origin |= {"rounded_to": rounding} if rounding else {}
    b = run.setup.model.loops
    loops = _twice(run.setup.model.build()) if loops is None else loops
    if loops < b:
        raise ValueError(f"`loops` must be at least the trained {b}; got {loops}.")
    with _alone(target):
        _tidy(target)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        try:
            small = Run.create(temporary, run.setup)
            lines = _thinned((run.path / "metrics.jsonl").read_bytes() if run.metrics() else b"")
            if lines:
                write_bytes(temporary / "metrics.jsonl", lines)
            small.save(Checkpoint(checkpoint.step, checkpoint.finished, weights))
            write_json(temporary / "provenance.json", origin)
            sizes = {"points": points, "loops": loops, "prompts": prompts, "seed": seed, "check_prompts": check_prompts}
            if rounding:
                exact = check(run.model_of(checkpoint, device), run.setup.task, points=points, prompts=check_prompts)
                _check_rounding(exact, check(small.model(device), run.setup.task, points=points, prompts=check_prompts))
            data = record(small.model(device), run.setup.task, device=device, progress=progress, **sizes)
            write_json(temporary / "kept.json", data)
            _put(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def record(
    model: LoopedModel,
    task: Task,
    *,
    points: int,
    loops: int,
    prompts: int,
    seed: int,
    check_prompts: int,
    device: torch.device | str,
    progress: Callable[[str, float], None],
) -> dict[str, Any]:
    """What kept.json holds: the curves, the check, and where and how they were measured."""
    started = time.monotonic()
    b, twice = model.config.loops, _twice(model)
    sizes: dict[str, Any] = {"points": points, "prompts": prompts, "seed": seed, "level": LEVEL}
    by_examples: dict[str, Any] = {}
    last = max(twice, loops)
    resolve_loops(b, None, last, min(prompts, check_prompts))
    check_loops(last)
    # a task that the model cannot read is refused here, before a bar is shown
    result = evaluate(model, task, loops=1, max_loops=1, baselines={}, **{**sizes, "prompts": 2})
    for count, max_loops in {b: b, twice: last}.items():
        progress(f"after {count} of {last} loops", 0.3 if by_examples else 0.0)
        result = evaluate(model, task, loops=count, max_loops=max_loops, baselines={}, **sizes)
        by_examples[str(count)] = _numbers(result.by_examples[0])
    progress("the check", 0.9)
    return {
        "task": repr(task),
        "parameters": model.num_parameters,
        "trained_loops": b,
        **sizes,
        "by_examples": by_examples,
        "by_loops": _numbers(result.by_loops, range(loops)),
        "check": check(model, task, points=points, prompts=check_prompts),
        "provenance": {**provenance(device), "seconds": round(time.monotonic() - started, 2)},
    }


def check(
    model: LoopedModel, task: Task, *, points: int, prompts: int = CHECK_PROMPTS, seed: int = CHECK_SEED
) -> dict[str, Any]:
    """The error after the trained loops, with a quarter, half and all of the examples, in the model's precision.

    `evaluate` draws on the CPU whatever the device, so that every machine judges the same prompts.
    """
    b = model.config.loops
    sizes: dict[str, Any] = {"points": points, "prompts": prompts, "seed": seed, "loops": b}
    [curve] = evaluate(model, task, max_loops=b, level=LEVEL, baselines={}, **sizes).by_examples
    last = len(curve.x) - 1
    numbers = _numbers(curve, sorted({round(share * last) for share in (0.25, 0.5, 1)}))
    if not all(map(math.isfinite, curve.mean)):
        raise ValueError(f"the model's errors are not finite after its {b} loops: there is nothing to keep.")
    return {**sizes, **numbers}


def read_record(path: Path) -> dict[str, Any]:
    """What was recorded when a model was kept; a damaged file is a ValueError that names it."""
    file = path / "kept.json"
    record = read_json(file)
    try:
        curves = [*record["by_examples"].values(), record["by_loops"], record["check"]]
        lengths = [{len(curve[key]) for key in ("x", "mean", "low", "high")} for curve in curves]
        numbers = [value for curve in curves for key in ("mean", "low", "high") for value in curve[key]]
        counts = [record[key] for key in ("parameters", "trained_loops", "points", "prompts", "seed")]
        whole = (
            all(len(distinct) == 1 and 0 not in distinct for distinct in lengths)
            and all(isinstance(number, (int, float, type(None))) for number in numbers)
            and all(type(count) is int for count in counts)
            and all(loops.isdigit() for loops in record["by_examples"])
            and str(record["trained_loops"]) in record["by_examples"]
            and isinstance(record["task"], str)
            and {"command", "commit", "device", "seconds"} <= record["provenance"].keys()
        )
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"{file} is damaged or of another version. Keep the model again: `looped keep`.")
    return record


def summary(path: Path) -> dict[str, Any]:
    """A kept model in a few facts: the errors with half and all of the examples, and where it was trained."""
    facts, origin = read_record(path), read_json(path / "provenance.json")
    if not isinstance(origin, dict) or not isinstance(origin.get("train_seconds", 0), (int, float)):
        file = path / "provenance.json"
        raise ValueError(f"{file} is damaged: `train_seconds` must be a number. Restore it from a copy.")
    errors = [
        {"loops": int(loops), **{key: curve[key][at] for key in ("x", "mean", "low", "high")}}
        for loops, curve in facts["by_examples"].items()
        for at in sorted({round((len(curve["x"]) - 1) / 2), len(curve["x"]) - 1})
    ]
    return {
        "task": facts["task"],
        "parameters": facts["parameters"],
        "loops": facts["trained_loops"],
        "errors": errors,
        "device": origin.get("device"),
        "seconds": origin.get("train_seconds"),
        "step": origin.get("weights_of_step"),
        "rounded_to": origin.get("rounded_to"),
        "bytes": sum(file.stat().st_size for file in (path / "checkpoints").glob("*.safetensors")),
    }


def _check_target(target: Path, given: str | None, run: Run, again: bool) -> None:
    name = run.setup.name if given is None else given
    if not is_plain(name) or name.startswith("."):
        raise ValueError(
            f"a kept model's name has letters, digits, '.', '_' and '-', and does not begin with '.'; got {name!r}."
        )
    if target.exists() and not again:
        raise ValueError(f"{target} already exists. Keep it under another `--name`, or replace it with `--again`.")
    if target.exists() and not is_kept(target):
        raise ValueError(f"{target} is not a kept model, so it is not replaced. Remove it, or give another `--name`.")
    if target.exists() and given is None and read_json(target / "config.json") != read_json(run.path / "config.json"):
        raise ValueError(f"{target} is of another experiment. Give `--name {name}` to replace it all the same.")


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Only one process at a time writes a kept model of that name."""
    check_folder(target.parent, "a kept model")
    lock = target.with_name(f".{target.name}.lock")
    try:
        with locked(lock, str(target)):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    except Busy:
        raise ValueError(f"{target} is being written by another process. Wait until that ends.") from None


def _tidy(target: Path) -> None:
    """Make the folder of the kept models; clean up after an earlier `keep` of this name that was killed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(target.parent.glob(f".{target.name}.*.old")):
            if not target.exists():  # killed between the two renames of `_put`
                os.rename(old, target)
            shutil.rmtree(old, ignore_errors=True)
        for torn in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(torn, ignore_errors=True)
    except OSError as error:
        raise ValueError(f"{target} cannot be written ({error.strerror}). Name another folder with --out.") from None


def _finished(run: Run) -> Checkpoint:
    checkpoint = run.latest()
    if checkpoint is None or not (checkpoint.finished or run.kept):
        where = "has no checkpoint" if checkpoint is None else f"has stopped at step {checkpoint.step}"
        raise ValueError(
            f"{run.path} {where}: only a finished run is kept. Go on with: looped train --resume {quoted(run.path)}"
        )
    return checkpoint


def _weights(run: Run, checkpoint: Checkpoint, rounding: Rounding | None) -> dict[str, Tensor]:
    """The weights that an evaluation reads, in their precision or rounded: the averaged ones if the run has them."""
    tensors = checkpoint.part("average") or checkpoint.part("model")
    weights = {
        f"model/{key}": tensor.to(getattr(torch, rounding)) if rounding and tensor.is_floating_point() else tensor
        for key, tensor in tensors.items()
    }
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    if size > MAX_BYTES:
        raise ValueError(
            f"the weights in {run.path} take {size / 1e6:.1f} MB; a kept file has at most {MAX_BYTES / 1e6:.0f} MB."
        )
    return weights


def _check_rounding(exact: dict[str, Any], rounded: dict[str, Any]) -> None:
    """Refuse rounded weights whose errors lie outside the intervals of the exact ones."""
    for x, low, high, error in zip(exact["x"], exact["low"], exact["high"], rounded["mean"], strict=True):
        if not low <= error <= high:
            raise ValueError(
                f"rounded, the model has an error of {error:.3g} with {x} examples, outside [{low:.3g}, {high:.3g}]. "
                "Keep it without rounding."
            )


def _origin(run: Run) -> dict[str, Any]:
    origin = run.provenance()
    missing = [key for key in ("command", "commit", "device", "train_seconds") if key not in origin]
    if missing:
        raise ValueError(f"{run.path / 'provenance.json'} lacks the {missing[0]} of the training, which is needed.")
    if origin["commit"] is None:
        log.warning(f"looped: {run.path} does not know the commit that trained it; set LOOPED_COMMIT where it trains.")
    return origin


def _twice(model: LoopedModel) -> int:
    """Twice the trained loops, or the trained loops where more have no meaning: layers with their own weights."""
    b = model.config.loops
    return 2 * b if model.steady and b > 1 else b


def _thinned(text: bytes) -> bytes:
    """At most `MAX_LINES` of the lines, evenly spaced, with the last one."""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    count = min(MAX_LINES, len(lines))
    return b"".join(lines[len(lines) - 1 - index * len(lines) // count] for index in reversed(range(count)))


def _numbers(curve: Curve, places: Any = None) -> dict[str, Any]:
    """A curve as JSON data, at all or some of its places."""
    at = range(len(curve.x)) if places is None else places
    return finite({key: [getattr(curve, key)[index] for index in at] for key in ("x", "mean", "low", "high")})


def _put(complete: Path, target: Path) -> None:
    """Rename a complete folder to its name; an older one of that name is moved aside first, then removed."""
    old = complete.with_suffix(".old")
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(complete, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
