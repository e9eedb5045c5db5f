"""Runs examples and judges them: each is answered, refused in one line, or a failure; every one can be replayed.

An example is named by entry point, seed and number: its input is a function of these three alone. Time is counted in
seconds of this process's own CPU, so that a busy machine is no hang; five minutes of waiting by the clock are one too.
Memory is what the process had at most meanwhile, beyond what it had before.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from looped.cli import main

LIMIT = 10.0
"""Seconds of CPU after which an example is a hang."""
PATIENCE = 300.0
"""Seconds by the clock after which it is one too."""
MEMORY = 2 * 2**30
"""Bytes that an example may take at most."""
NOT_A_NUMBER = re.compile(r"(?<![\w.-])nan(?![\w.-])", re.IGNORECASE)

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


class Wrong(Exception):
    """What an entry point must not do."""


class Hang(BaseException):
    """Too long; not an Exception, so that nobody handles it on the way."""


class Case(NamedTuple):
    """One input: what it is in words, and what to do with it."""

    told: str
    act: Callable[[], Any]
    """Returns where the answer is finite, raises a ValueError of one line where the input is refused."""


Entry = Callable[[random.Random, Path], Case]
"""Draws an example; the folder is empty and the example's own."""


@dataclass(frozen=True)
class Outcome:
    """What became of one example."""

    entry: str
    seed: int
    number: int
    told: str
    kind: str
    """answered, refused or failed."""
    reason: str
    """The line it was refused with, or what is wrong."""
    seconds: float
    """Of this process's CPU."""
    memory: int = 0
    """Bytes that it took at most."""

    def __str__(self) -> str:
        return f"{self.entry} --seed {self.seed} --only {self.number}: {self.told}\n    {self.reason}"


def run_example(name: str, entry: Entry, seed: int, number: int, folder: Path) -> Outcome:
    """Draw example `number` of an entry point and see what it does; `folder` holds nothing afterwards."""
    own = folder / f"{name}-{number}"
    own.mkdir(parents=True)
    before, started, told = dict(os.environ), time.process_time(), "no example was drawn"
    memory = _peak_memory(anew=True)
    try:
        # inside its own folder: what a command looks for or writes by default is there, and not the checkout's
        with contextlib.chdir(own), _deadline(), _warnings():
            told, act = entry(random.Random(f"{name} {seed} {number}"), own)
            act()
        kind, reason = "answered", ""
    except ValueError as error:
        kind, reason = "refused", str(error)
        if not reason.strip() or "\n" in reason.strip():
            kind, reason = "failed", f"an error must be one line; got {reason!r}"
    except Wrong as error:
        kind, reason = "failed", str(error)
    except Hang:
        kind, reason = "failed", f"a hang: more than {LIMIT:g} s\n{traceback.format_exc()[-1500:]}"
    except Exception:
        kind, reason = "failed", traceback.format_exc()[-3000:]
    finally:
        os.environ.clear()
        os.environ.update(before)
        _writable(own)
        shutil.rmtree(own)
    memory = _peak_memory() - memory
    if kind != "failed" and memory > MEMORY:
        kind, reason = "failed", f"it took {memory / 2**20:,.0f} MB: more than {MEMORY / 2**20:,.0f}"
    return Outcome(name, seed, number, told, kind, reason, time.process_time() - started, memory)


def _peak_memory(*, anew: bool = False) -> int:
    """The most bytes this process has had so far, or since the last time that it was counted `anew`; 0 if unknown."""
    with contextlib.suppress(OSError):  # Linux alone says it
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(kilobytes)
    return 0


def command(arguments: Sequence[str]) -> str:
    """Run a command in this process: its standard output, or a ValueError with the line it was refused with.

    Exit 0 prints no `nan`, and valid JSON where that was asked for; anything else ends in one line `looped: ...`. Bad
    input leaves no file and no folder in the working directory that was not there before.
    """
    before = {*Path.cwd().rglob("*")}
    out, error = io.StringIO(), io.StringIO()
    code: Any = "none"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), _console(error), _notes() as notes:
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    printed, said = (re.sub(r"\x1b\[[0-9;]*m", "", one.getvalue()) for one in (out, error))
    if steering := CONTROL.search(printed + said):
        raise Wrong(f"a control character was printed: {steering[0]!r} in {(printed + said)[-300:]!r}")
    for note in notes:  # what goes on all the same says so in a line of its own, before the answer or the error
        if "\n" in note.strip() or NOT_A_NUMBER.search(note):
            raise Wrong(f"a note must be one line; got {note!r}")
    if "Traceback" in printed + said:
        raise Wrong(f"a traceback was printed: {said[-2000:]}")
    if code == 0:
        if found := NOT_A_NUMBER.search(printed + said):
            raise Wrong(f"a silent nan: {(printed + said)[max(0, found.start() - 200) : found.end() + 50]!r}")
        if "--json" in arguments and "--help" not in arguments and "--version" not in arguments:
            json.loads(printed, parse_constant=_no_constant)
        if arguments[0] == "report" and "--out" in arguments:
            _check_page(Path(arguments[len(arguments) - 1 - arguments[::-1].index("--out") + 1]))
        return printed
    if code == 1 and arguments[0] == "check" and not said.strip() and "fault" in printed:
        return printed  # what it was asked for
    if code == 2 and not said.strip() and "Commands" in printed:
        raise ValueError("no command: the help was shown")
    lines = [line for line in said.splitlines() if line.startswith("looped: ")]
    if code not in (1, 2) or len(lines) != 1 or not said.rstrip().endswith(lines[0].rstrip()):
        raise Wrong(f"exit {code} must come with one line at the end; got {said[-500:]!r}")
    if code == 2 and len(said.splitlines()) != 1:
        raise Wrong(f"bad input must be one line and nothing else; got {said[-500:]!r}")
    if code == 2 and (new := sorted({*Path.cwd().rglob("*")} - before)):
        raise Wrong(f"bad input must leave nothing behind; got {new[0].relative_to(Path.cwd())} after {lines[0]!r}")
    raise ValueError(lines[0])


def check_finite(what: str, *values: Any) -> None:
    """Every number in the answers is finite."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise Wrong(f"{what} gave a silent {value[~value.isfinite()].flatten()[0]}")
        elif isinstance(value, dict):
            check_finite(what, *value.values())
        elif isinstance(value, (list, tuple)):
            check_finite(what, *value)
        elif isinstance(value, float) and not abs(value) < float("inf"):
            raise Wrong(f"{what} gave a silent {value}")


def _check_page(page: Path) -> None:
    """No text of a page, its drawings included, is `nan`."""
    words = re.sub(r"<style.*?</style>|<[^>]*>", " ", page.read_text() if page.is_file() else "", flags=re.DOTALL)
    if found := NOT_A_NUMBER.search(words):
        raise Wrong(f"a silent nan on the page: {words[max(0, found.start() - 100) : found.end() + 50]!r}")


def _no_constant(name: str) -> None:
    raise Wrong(f"JSON holds {name}")


@contextlib.contextmanager
def _notes() -> Iterator[list[str]]:
    """What the library's log says meanwhile, kept from standard error."""
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    log = logging.getLogger("looped")
    log.addHandler(handler)
    try:
        yield seen
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def _console(stream: io.StringIO) -> Iterator[None]:
    """Messages for people go to the same place as errors."""
    from looped.cli.output import messages

    # the property gives today's sys.stderr where none is set, and would set that for ever
    before, messages._file = messages._file, stream
    try:
        yield
    finally:
        messages._file = before


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise Hang

    previous = [(number, signal.signal(number, stop)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous:
            signal.signal(number, handler)


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """A warning of our own is a line for people; any other is a surprise."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    strange = [one for one in seen if not (one.category is UserWarning and "looped" in one.filename)]
    strange = [one for one in strange if "distutils Version classes" not in str(one.message)]
    if strange:
        raise Wrong(f"a warning: {strange[0].category.__name__}: {strange[0].message} ({strange[0].filename})")


def _writable(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
