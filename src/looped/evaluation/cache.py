"""A cache of baselines' answers: the same prompts, baseline and parameters are never computed twice."""

import functools
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from looped.baselines.signs import OnSigns
from looped.files import digest, one_line, read_tensors, write_tensors
from looped.prompt import Prompt
from looped.tasks.data import cache_folder

VERSION = 1
"""Raised when a baseline's answers change, so that older files are no longer used."""
IGNORED_PARAMETERS = ("progress", "workers")
"""Parameters that change how an answer is computed, not the answer."""
LIBRARIES = {"looped.baselines.trees": ("scikit-learn", "xgboost-cpu", "xgboost")}
"""The libraries that compute a module's answers: another version may answer differently."""

BaselineProgress = Callable[[str, float], None]
"""Called with a baseline's name and the share that is done."""


def cached(
    name: str, baseline: Callable[..., Tensor], folder: Path | None = None, *, progress: BaselineProgress | None = None
) -> Callable[[Prompt], Tensor]:
    """`baseline`, but an answer computed before is read from `folder` (default: `cache_folder()` / baselines).

    A baseline is a function of a module, or `functools.partial` or `on_signs` of one, so that its name and parameters
    identify it. `name` is shown to people and passed to `progress`. A damaged file is computed again, with a warning.
    """
    about = json.dumps({"baseline": describe(baseline), "version": VERSION}, sort_keys=True, default=list)
    slug = "".join(letter if letter.isalnum() else "-" for letter in name.lower())[:40]

    def answer(prompt: Prompt) -> Tensor:
        place = cache_folder() / "baselines" if folder is None else folder
        # what generated the examples does not matter
        examples = {"xs": prompt.xs.detach().cpu().contiguous(), "ys": prompt.ys.detach().cpu().contiguous()}
        key = hashlib.sha256(digest(examples, about).encode()).hexdigest()[:32]
        file = place / f"{slug}-{key}.safetensors"
        answers = _read(file, about, prompt)
        if answers is None:
            options, function = {}, baseline.baseline if isinstance(baseline, OnSigns) else baseline
            if progress is not None and "progress" in inspect.signature(function).parameters:
                options["progress"] = functools.partial(progress, name)
            answers = baseline(prompt, **options)
            _write(file, answers, about)
        if progress is not None:
            progress(name, 1.0)
        return answers

    return answer


def describe(baseline: Any) -> dict[str, Any]:
    """A baseline as JSON data: its function and all parameters that change its answers."""
    if isinstance(baseline, OnSigns):
        inner = {"baseline": describe(baseline.baseline)}
        return {"function": f"{OnSigns.__module__}:{OnSigns.__qualname__}", "parameters": inner}
    function = baseline.func if isinstance(baseline, functools.partial) else baseline
    if isinstance(baseline, functools.partial) and baseline.args:
        raise ValueError("a cached baseline's parameters must be keywords; got positional ones in `partial`.")
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise ValueError(
            f"only functions of a module can be cached, since a lambda has no name to find it by; got {function!r}. "
            "Use `functools.partial` of a module's function to set parameters."
        )
    parameters = {
        key: parameter.default
        for key, parameter in inspect.signature(baseline).parameters.items()
        if parameter.default is not inspect.Parameter.empty and key not in IGNORED_PARAMETERS
    }
    about = {"function": f"{function.__module__}:{function.__qualname__}", "parameters": parameters}
    libraries = {name: _version(name) for name in LIBRARIES.get(function.__module__, ())}
    return {**about, "libraries": libraries} if libraries else about


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(file: Path, about: str, prompt: Prompt) -> Tensor | None:
    if not file.exists():
        return None
    try:
        tensors, facts = read_tensors(file)
        answers = tensors["answers"]
        if facts != {"about": about} or answers.shape != prompt.ys.shape:
            raise ValueError("it answers other prompts")
    except (ValueError, KeyError, OSError) as error:
        warnings.warn(f"{file} cannot be used ({one_line(error)}): computed again.", stacklevel=3)
        return None
    return answers.to(prompt.ys.device)


def _write(file: Path, answers: Tensor, about: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, {"answers": answers}, {"about": about})
    except OSError as error:
        # a full or read-only disk costs time later, not the answer now
        warnings.warn(f"{file} cannot be written ({error}): the answer is not cached.", stacklevel=3)
