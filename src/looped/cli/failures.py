"""An error as one line and an exit code, with the place in the user's own code where it came from."""

import inspect
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from looped.training.distributed import LostRank
from looped.training.stopping import Interrupted
from looped.training.trainer import Diverged

LIBRARIES = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))
"""What lies in these folders was not written by the user."""
MEMORY = re.compile("memory|Overflow when|overflow|torage size|bad_alloc")
"""torch has a class of errors for the GPU's memory; for the CPU's, or for absurd sizes, only the words tell."""


def explained(error: Exception | SystemExit) -> tuple[str, int] | None:
    """The line that says why a command failed, and its exit code; None for an error of looped itself."""
    place, how = _place_in_own_code(error)
    if how == "raised" and error.__cause__ is None:
        return f"{place}: {_named(error)} `--debug` shows the trace.", 2
    if isinstance(error, (Diverged, Interrupted, LostRank)):
        return str(error), 1
    if isinstance(error, (ValueError, OSError)):
        return f"{error} ({place})" if how in ("raised", "called") else str(error), 2
    if isinstance(error, MemoryError) or (isinstance(error, (RuntimeError, TypeError)) and MEMORY.search(str(error))):
        return "that needs more memory than there is. Ask for fewer or smaller prompts, or a smaller model.", 2
    # usage errors of typer; their class moved between versions, their method did not
    if hasattr(error, "format_message"):
        message = error.format_message().strip()  # type: ignore[attr-defined]
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} `looped --help` shows what there is." if message else "", 2
    if place:
        return f"{_named(error)} That came while looped used {place}. `--debug` shows the trace.", 2
    return None


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".") + "."


def _place_in_own_code(error: BaseException) -> tuple[str, Literal["raised", "called", "used", "none"]]:
    """File and line in the user's code that raised the error or called what did, or its classes that were used."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [*traceback.walk_tb(error.__traceback__)]
    for frame, line in reversed(frames):
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}, line {line}", "raised" if frame is frames[-1][0] else "called"
    for frame, _ in reversed(frames):
        kinds = dict.fromkeys(kind for kind in map(_kind, _at_work(frame)) if _is_users(_file_of(kind)))
        if kinds:
            return " and ".join(
                f"`{kind.__name__}` ({_file_of(kind)}, line {_line_of(kind)})" for kind in kinds
            ), "used"
    return "", "none"


def _kind(thing: Any) -> type | types.FunctionType:
    """What is named to people: a class, a function, or the class of anything else."""
    return thing if isinstance(thing, (type, types.FunctionType)) else type(thing)


def _at_work(frame: types.FrameType) -> Iterator[Any]:
    """What a frame's variables hold, and the experiment, task, model and functions that these hold."""
    for value in frame.f_locals.values():
        yield value
        fields = getattr(value, "__dict__", {})
        if isinstance(value, type) or not isinstance(fields, dict):
            continue  # what a class or a module has is not at work for that
        yield from (thing for thing in fields.values() if isinstance(thing, types.FunctionType))
        experiment = getattr(fields.get("experiment"), "__dict__", {})
        yield from (holder[name] for holder in (fields, experiment) for name in ("task", "model") if name in holder)


def _is_users(file: str) -> bool:
    return file.endswith(".py") and not any(Path(file).is_relative_to(folder) for folder in LIBRARIES)


def _file_of(kind: type | types.FunctionType) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


def _line_of(kind: type | types.FunctionType) -> int | str:
    try:
        return inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):  # the file has changed, or it was written by a program
        return "?"
