"""Make a kept model of a finished run: the weights an evaluation reads, and the numbers it gave when it was kept."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.curves import Curve, evaluate, judged_loops
from looped.experiment import is_plain
from looped.files import finite, log, read_json, write_bytes, write_json
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.tasks.task import Task
from looped.training.folder import Checkpoint
from looped.training.kept import is_kept
from looped.training.provenance import provenance
from looped.training.run import Run

MOST_BYTES = 15_000_000
"""Largest file that is kept."""
MOST_LINES = 500
"""Most lines of the metrics that are kept."""
CHECK_PROMPTS, CHECK_SEED = 128, 20_240
"""The few prompts on which CI judges a kept model again."""
LEVEL = 0.9
"""Level of the intervals."""


def keep(
    run: Run,
    *,
    points: int,
    name: str | None = None,
    best: bool = False,
    out: str | Path = "results/models",
    again: bool = False,
    loops: int | None = None,
    prompts: int = 1280,
    seed: int = 1,
    check_prompts: int = CHECK_PROMPTS,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Path:
    """Write OUT/NAME from a finished run and record its errors there; the folder is there whole or not at all.

    Recorded on `prompts` fresh prompts of `points` pairs: the error by examples after the trained loops b and after 2b,
    and by loops up to `loops` (2b), each with a 90% interval; and the few numbers of `check`. With `best` the weights
    are those of the lowest logged loss; unless they are the last ones, no figure takes them for the whole training.
    """
    named = name is not None
    name = name if named else run.setup.name
    target = Path(out) / name
    _check_target(target, name, run, again, named=named)
    checkpoint = _finished(run)
    checkpoint = (best and run.best()) or checkpoint
    weights = _weights(run, checkpoint)
    origin = _origin(run) | ({} if checkpoint.finished else {"weights_of_step": checkpoint.step})
    b = run.setup.model.loops
    loops = _twice(run.setup.model.build()) if loops is None else loops
    if loops < b:
        raise ValueError(f"`loops` must be at least the trained {b}; got {loops}.")
    _tidy(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        small = Run.create(temporary, run.setup)
        lines = _thinned((run.path / "metrics.jsonl").read_bytes() if run.metrics() else b"")
        if lines:
            write_bytes(temporary / "metrics.jsonl", lines)
        small.save(Checkpoint(checkpoint.step, checkpoint.finished, weights))
        write_json(temporary / "provenance.json", origin)
        write_json(
            temporary / "kept.json",
            record(
                small.model(device),
                run.setup.task,
                points=points,
                loops=loops,
                prompts=prompts,
                seed=seed,
                check_prompts=check_prompts,
                device=device,
                progress=progress,
            ),
        )
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
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, Any]:
    """What kept.json holds: the curves, the check, and where and how they were measured."""
    started = time.monotonic()
    b, twice = model.config.loops, _twice(model)
    how: dict[str, Any] = {"points": points, "prompts": prompts, "seed": seed, "level": LEVEL, "baselines": {}}
    by_examples: dict[str, Any] = {}
    most = max(twice, loops)
    judged_loops(b, None, most, min(prompts, check_prompts))
    check_loops(most)
    # what cannot be read at all is refused here, before a bar is shown
    evaluate(model, task, loops=1, max_loops=1, **{**how, "prompts": 2})
    by_loops: Curve | None = None
    for one, far in {b: b, twice: most}.items():
        progress(f"after {one} of {most} loops", 0.3 if by_examples else 0.0)
        found = evaluate(model, task, loops=one, max_loops=far, **how)
        by_examples[str(one)], by_loops = _numbers(found.by_examples[0]), found.by_loops
    progress("the check", 0.9)
    assert by_loops is not None
    return {
        "task": repr(task),
        "parameters": model.num_parameters,
        "trained_loops": b,
        **{key: how[key] for key in ("points", "prompts", "seed", "level")},
        "by_examples": by_examples,
        "by_loops": _numbers(by_loops, range(loops)),
        "check": check(model, task, points=points, prompts=check_prompts),
        "provenance": {**provenance(device), "seconds": round(time.monotonic() - started, 2)},
    }


def check(
    model: LoopedModel, task: Task, *, points: int, prompts: int = CHECK_PROMPTS, seed: int = CHECK_SEED
) -> dict[str, Any]:
    """The error after the trained loops, where a quarter, half and all of the examples are seen.

    It is judged in the model's own precision. `evaluate` draws on the CPU whatever the device, so that every machine
    judges the same prompts.
    """
    b = model.config.loops
    how: dict[str, Any] = {"points": points, "prompts": prompts, "seed": seed, "level": LEVEL, "baselines": {}}
    [curve] = evaluate(model, task, loops=b, max_loops=b, **how).by_examples
    last = len(curve.x) - 1
    found = _numbers(curve, sorted({round(share * last) for share in (0.25, 0.5, 1)}))
    if not all(map(math.isfinite, curve.mean)):
        raise ValueError(f"the model's errors are not finite after its {b} loops: there is nothing to keep.")
    return {"prompts": prompts, "seed": seed, "points": points, "loops": b, **found}


def recorded(path: Path) -> dict[str, Any]:
    """What was recorded when a model was kept; damage is a ValueError that names the file."""
    file = path / "kept.json"
    found = read_json(file)
    try:
        whole = _is_whole(found)
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"{file} is damaged or of another version. Keep the model again: `looped keep`.")
    return found


def _is_whole(found: Any) -> bool:
    """Whether a record has its curves and facts; some damage is an error of Python's own."""
    curves = [*found["by_examples"].values(), found["by_loops"], found["check"]]
    sizes = [{len(curve[key]) for key in ("x", "mean", "low", "high")} for curve in curves]
    counts = [found[key] for key in ("parameters", "trained_loops", "points", "prompts", "seed")]
    return (
        all(len(one) == 1 and 0 not in one for one in sizes)
        and all(type(one) is int for one in counts)
        and all(one.isdigit() for one in found["by_examples"])
        and str(found["trained_loops"]) in found["by_examples"]
        and isinstance(found["task"], str)
        and {"command", "commit", "device", "seconds"} <= found["provenance"].keys()
        and all(
            isinstance(number, (int, float, type(None)))
            for curve in curves
            for key in ("mean", "low", "high")
            for number in curve[key]
        )
    )


def summary(path: Path) -> dict[str, Any]:
    """A kept model in a few facts: the errors with half and all of the examples, and where it was trained."""
    found, origin = recorded(path), read_json(path / "provenance.json")
    if not isinstance(origin, dict) or not isinstance(origin.get("train_seconds", 0), (int, float)):
        raise ValueError(f"{path / 'provenance.json'} is damaged: it says no seconds. Restore it from a copy.")
    errors = [
        {"loops": int(loops), **{key: curve[key][at] for key in ("x", "mean", "low", "high")}}
        for loops, curve in found["by_examples"].items()
        for at in sorted({round((len(curve["x"]) - 1) / 2), len(curve["x"]) - 1})
    ]
    return {
        "task": found["task"],
        "parameters": found["parameters"],
        "loops": found["trained_loops"],
        "errors": errors,
        "device": origin.get("device"),
        "seconds": origin.get("train_seconds"),
        "step": origin.get("weights_of_step"),
    }


def _check_target(target: Path, name: str, run: Run, again: bool, *, named: bool) -> None:
    if not is_plain(name) or name.startswith("."):
        raise ValueError(
            f"a kept model's name has letters, digits, '.', '_' and '-', and begins with no '.'; got {name!r}."
        )
    if target.exists() and not again:
        raise ValueError(f"{target} is there already. Keep it under another `--name`, or replace it with `--again`.")
    if target.exists() and not is_kept(target):
        raise ValueError(f"{target} is no kept model, so it is not replaced. Remove it, or say another `--name`.")
    if target.exists() and not named and read_json(target / "config.json") != read_json(run.path / "config.json"):
        raise ValueError(f"{target} is of another experiment. Say `--name {name}` to replace it all the same.")


def _tidy(target: Path) -> None:
    """Make the folder of the kept models; put away what an earlier `keep` of this name left when it was killed."""
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
            f"{run.path} {where}: only a finished run is kept. Go on with: looped train --resume {run.path}"
        )
    return checkpoint


def _weights(run: Run, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """What an evaluation reads, in float32 at least: the averaged weights where the run keeps them."""
    found = checkpoint.part("average") or checkpoint.part("model")
    kept = {f"model/{key}": _widened(one) for key, one in found.items()}
    size = sum(one.numel() * one.element_size() for one in kept.values())
    if size > MOST_BYTES:
        raise ValueError(
            f"the weights in {run.path} take {size / 1e6:.1f} MB; a kept file has at most {MOST_BYTES / 1e6:.0f} MB."
        )
    return kept


def _widened(one: Tensor) -> Tensor:
    """Half precision as float32; what is finer stays, since a construction may need all of float64."""
    return one.to(torch.promote_types(one.dtype, torch.float32)) if one.is_floating_point() else one


def _origin(run: Run) -> dict[str, Any]:
    found = run.provenance()
    missing = [key for key in ("command", "commit", "device", "train_seconds") if key not in found]
    if missing:
        raise ValueError(f"{run.path / 'provenance.json'} does not say the {missing[0]} of the training: it is needed.")
    if found["commit"] is None:
        log.warning(f"looped: {run.path} does not know the commit that trained it; set LOOPED_COMMIT where it trains.")
    return found


def _twice(model: LoopedModel) -> int:
    """Twice the trained loops, where looping on means anything: not for layers of their own."""
    b = model.config.loops
    return 2 * b if model.steady and b > 1 else b


def _thinned(text: bytes) -> bytes:
    """At most `MOST_LINES` of the lines, spread evenly, the last among them."""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    count = min(MOST_LINES, len(lines))
    return b"".join(lines[len(lines) - 1 - index * len(lines) // count] for index in reversed(range(count)))


def _numbers(curve: Curve, places: Any = None) -> dict[str, Any]:
    """A curve as JSON data, at all its places or some."""
    at = range(len(curve.x)) if places is None else places
    return finite({key: [getattr(curve, key)[index] for index in at] for key in ("x", "mean", "low", "high")})


def _put(made: Path, target: Path) -> None:
    """Rename a folder that is complete to its name; one that is there already steps aside first, and then goes."""
    old = made.with_suffix(".old")
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
