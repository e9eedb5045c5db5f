"""The one place where commands print: results on standard output, progress and remarks on standard error."""

import contextlib
import json as json_module
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from looped.evaluation.curves import Curve
from looped.files import finite, visible
from looped.training.trainer import Progress as TrainingProgress

FILE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, unless COLUMNS says otherwise."""


class PlainConsole(Console):
    """A console for which text is only text: no markup and no emoji codes, and control characters are escaped."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Titles and cells of tables and printed lines all come through here."""
        return super().render_str(visible(text), **options)


messages = PlainConsole(stderr=True, soft_wrap=True)
"""Progress and remarks for people."""


def coloured(*parts: tuple[str, str]) -> Text:
    """Pieces of text, each with its colour or style, for a cell of a table."""
    return Text.assemble(*((visible(text), style) for text, style in parts))


def show(data: Any, *results: Table | str, notes: Sequence[str] = (), json: bool, quiet: bool) -> None:
    """Print `data` as one JSON document (not finite: null), or `results` and `notes` for people, or nothing."""
    if json:
        print(json_module.dumps(finite(data), indent=2, allow_nan=False))
    elif not quiet:
        known = sys.stdout.isatty() or "COLUMNS" in os.environ
        console = PlainConsole() if known else PlainConsole(width=FILE_WIDTH)
        for result in results:
            console.print(result, soft_wrap=isinstance(result, str))
        for note in notes:
            say(note)


def say(text: str) -> None:
    """A remark on standard error."""
    messages.print(text)


def number(value: float | None) -> str:
    """Three significant digits."""
    return f"{value:.3g}" if value is not None and math.isfinite(value) else "not finite"


def interval(mean: float | None, low: float | None, high: float | None) -> str:
    """`0.5 [0.4, 0.6]`."""
    text = number(mean)
    return text if text == "not finite" else f"{text} [{number(low)}, {number(high)}]"


def interval_at(curve: Curve, x: int) -> str:
    """Mean and interval at a place of the axis; a dash where the curve has none."""
    if x not in curve.x:
        return "-"
    at = curve.x.index(x)
    return interval(curve.mean[at], curve.low[at], curve.high[at])


HOUR, YEAR = 3600.0, 365 * 24 * 3600.0
"""Seconds beyond which a reading of a model, and a training, are asked about; before, their bar is enough."""


class Pace:
    """Refuses a work once its first seconds say that it would take too long, unless the user said `--yes`."""

    def __init__(self, most: float, *, yes: bool, remedy: str):
        self.most, self.yes, self.remedy = most, yes, remedy
        self.began: tuple[float, float] | None = None
        """When, and with what share done: the first report comes after what is done only once."""

    def check(self, share: float) -> None:
        """Called with the share of the work that is done."""
        now = time.monotonic()
        if self.began is None:
            self.began = now, share
        seconds, done = now - self.began[0], share - self.began[1]
        if self.yes or seconds < 1 or done <= 0:
            return
        self.yes = True  # asked once: a work that slows down later is not thrown away
        if (left := seconds / done * (1 - share)) > self.most:
            raise ValueError(f"that would take about {_duration(left)} here. {self.remedy}, or say `--yes`.")


def _duration(seconds: float) -> str:
    for name, size in (("years", YEAR), ("days", 24 * HOUR), ("hours", HOUR)):
        if seconds > 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds / 60:.0f} minutes"


@contextlib.contextmanager
def _late_bar(*columns: ProgressColumn, quiet: bool, transient: bool) -> Iterator[Progress]:
    """A bar that appears at its first `start`: input that is refused before gets one line and no bar.

    One that is to vanish appears on a terminal only: of it a file would have an empty line.
    """
    quiet = quiet or (transient and not messages.is_terminal)
    first = (TextColumn("{task.description}", markup=False), BarColumn())
    bar = Progress(*first, *columns, console=messages, disable=quiet, transient=transient)
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def progress_lines(*, quiet: bool, transient: bool = True, yes: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar for every title that is reported, from its first report on: title, share done, detail.

    Without `yes` a title that would take more than an hour is refused.
    """
    columns = (TextColumn("{task.fields[detail]}", markup=False), TimeRemainingColumn(elapsed_when_finished=True))
    with _late_bar(*columns, quiet=quiet, transient=transient) as bar:
        lines: dict[str, TaskID] = {}
        paces: dict[str, Pace] = {}

        def report(title: str, share: float, detail: str = "") -> None:
            remedy = "Ask for fewer loops or prompts"
            paces.setdefault(title, Pace(HOUR, yes=yes, remedy=remedy)).check(share)
            bar.start()
            if title not in lines:
                lines[title] = bar.add_task(title, total=1.0, detail="")
            bar.update(lines[title], completed=share, detail=detail)

        yield report


@contextlib.contextmanager
def training_bar(title: str, steps: int, *, quiet: bool, yes: bool = True) -> Iterator[TrainingProgress]:
    """A progress bar with loss, error, speed and time left; without `yes` a training of more than a year is refused."""
    pace = Pace(YEAR, yes=yes, remedy="Set `train.steps` lower")
    columns = (MofNCompleteColumn(), TextColumn("{task.fields[numbers]}", markup=False), TimeRemainingColumn())
    with _late_bar(*columns, quiet=quiet, transient=False) as bar:
        task = bar.add_task(title, total=steps, numbers="")

        def report(done: int, line: dict[str, float]) -> None:
            pace.check(done / steps)
            bar.start()
            speed = bar.tasks[0].speed
            numbers = f"loss {number(line['loss'])}  error {number(line['error'])}" if line else ""
            bar.update(task, completed=done, numbers=f"{numbers}  {speed:.1f} steps/s" if speed else numbers)

        yield report
