"""Interrupt commands at random moments: each ends with one line, and the same command then ends as if it never was.

    python benchmarks/interrupts.py [train evaluate verify reproduce sweep report construct demo] [--each 50]
                                    [--terms 5] [--seed 0] [--jobs 2] [--demo FOLDER]

Each command is started as a process of its own, as a person would, and gets SIGINT (`--each` times) or SIGTERM
(`--terms` times) with its whole group, at a moment drawn uniformly from the seconds that it takes when nobody
interrupts it; every other time its standard error is a terminal. With `--fresh 3` only every third is a new process,
whose imports take most of its time; the others are forked off one that has imported everything, and interrupted from
there to their end. It must end

- with exit code 1 and exactly one line that begins with `looped: `, or, where the result was out already, with 0 and
  all of its output; never with a traceback, and never killed by the signal. A signal before Python has run the first
  line of looped is counted apart: no line of ours can answer it;
- within 2 s of CPU time from the signal on. Seconds on the clock are printed beside them; they say as much about other
  work on the machine.

Then the same command runs again to its end, in a process forked from one that has imported everything. All files it
leaves must be those of an uninterrupted run: weights and metrics byte by byte; results, tables, figures and pages but
for seconds and dates. Of checkpoints the last one counts, and those that both have. Exits 1 if something differs.

`demo` is interrupted in the last steps of its first training and from there on; `--demo` names the folder that a
finished `looped demo` wrote, which is otherwise made first (minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import multiprocessing
import os
import pty
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S, HANGS_S = 2.0, 120.0
"""Seconds of CPU in which a command ends; seconds on the clock after which it hangs and is killed."""
SETTINGS = {"OMP_NUM_THREADS": "1", "LOOPED_COMMIT": "none", "COLUMNS": "200"}
TRAIN = ["train", "yang24.linear", "--scale", "smoke"]
SWEEP = ["sweep", "yang24.linear", "model.loops=3,4", "--seeds", "2", "--scale", "smoke", "--prompts", "32"]
REPRODUCE = ["reproduce", "yang24.fig4", "--scale", "smoke"]
PRELOADED = [
    f"looped.cli.{name}"
    for name in ("train", "evaluate", "verify", "reproduce", "sweep", "report", "demo", "construct")
]
PRELOADED += ["looped.papers.yang24", "torch._dynamo", "torch.utils.tensorboard", "matplotlib.backends.backend_agg"]
SECONDS = re.compile(r'(seconds"?\b[^\w\n]{1,3})[\d.e+-]+')
"""Seconds in JSON, and in a page's table of provenance."""
DATES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC|\d[\d.]* (?:s|ms|min|h)\b")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Command:
    """A command to interrupt, in a folder with what it needs."""

    words: list[str]
    """What is typed after `looped`."""
    needs: list[list[str]] = field(default_factory=list)
    """The commands whose files it needs."""


COMMANDS = {
    "train": Command(TRAIN),
    "evaluate": Command(["evaluate", "RUN"], needs=[TRAIN]),
    "verify": Command(["verify", "chen24.lem*", "gatmiry24.thm4", "gatmiry24.thm2", "--out", "verdicts"]),
    "reproduce": Command(REPRODUCE),
    "sweep": Command(SWEEP),
    "sweep in processes": Command([*SWEEP, "--executor", "processes", "--workers", "2"]),
    "report": Command(["report", "runs", "--results", "results"], needs=[TRAIN, ["evaluate", "RUN"], SWEEP, REPRODUCE]),
    "construct": Command(["construct", "gao24.thm4.1", "--loops", "1000"]),
    "demo": Command(["demo", "--no-open"], needs=[["demo", "--no-open"]]),
}


@dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    error: str
    seconds: float
    """On the clock."""
    after: float | None = None
    """Seconds on the clock from the signal to the end; None where it ended before."""
    cpu_after: float = 0.0
    """Seconds of the CPU from the signal to the end."""


def arguments_of(words: Sequence[str], folder: Path) -> list[str]:
    """The words with the folder of the only run in the place of RUN."""
    return [str(next((folder / "runs").glob("*-*")).relative_to(folder)) if word == "RUN" else word for word in words]


class Fresh:
    """`looped` in a new interpreter."""

    def __init__(self, words: list[str], folder: Path, out: Path, error: str):
        with open(out, "wb") as results, open(error, "wb") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "looped", *arguments_of(words, folder)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=results,
                stderr=messages,
                start_new_session=True,
                env={**os.environ, **SETTINGS},
            )
        self.pid = self.process.pid

    def ended_by(self, deadline: float | None) -> bool:
        """Wait until the process has ended or the clock shows `deadline`; whether it has ended."""
        return waited(deadline, lambda: self.process.poll() is not None)

    @property
    def code(self) -> int | None:
        return self.process.returncode


class Forked:
    """`looped` in a process forked off a server that has imported everything: as a new one is after its imports."""

    said: int | None = None
    """The exit code, as the process itself says it; one that is killed says nothing."""

    def __init__(self, server: Any, words: list[str], folder: Path, out: Path, error: str):
        self.connection, end = server.Pipe()
        self.process = server.Process(target=run_forked, args=(words, str(folder), str(out), error, end))
        self.process.start()
        end.close()
        self.connection.recv()
        self.pid = self.process.pid

    def ended_by(self, deadline: float | None) -> bool:
        """Wait until the process has ended or the clock shows `deadline`; whether it has ended."""
        self.process.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        if self.process.exitcode is not None and self.said is None:
            # the process says it itself: the server's word for it is now and then lost
            with contextlib.suppress(EOFError):
                self.said = self.connection.recv()
        return self.process.exitcode is not None

    @property
    def code(self) -> int | None:
        return self.process.exitcode if self.said is None else self.said


def run_forked(words: list[str], folder: str, out: str, error: str, connection: Any) -> None:
    """What `python -m looped` does, where the imports are done already."""
    import torch

    import looped
    from looped.__main__ import SIGNALS, main

    os.setsid()
    for number in SIGNALS:
        signal.signal(number, looped.signals.stop_at_once)
    torch.set_num_threads(1)
    os.environ |= SETTINGS
    os.chdir(folder)
    sys.argv = ["looped", *arguments_of(words, Path(folder))]
    for number, name in ((1, out), (2, error)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    connection.send("begun")
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(code or 0)
    os._exit(code or 0)


def waited(deadline: float | None, ended: Callable[[], bool]) -> bool:
    """Wait for something until the clock shows `deadline`; whether it came."""
    while not ended():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def run_and_signal(
    start: Callable[[Path, str], Fresh | Forked], out: Path, number: int, moment: float | None, terminal: bool
) -> Ended:
    """Start a process; at `moment` its group gets the signal."""
    ours, theirs = pty.openpty() if terminal else (None, None)
    error = out.with_name(f"{out.name}.error") if theirs is None else Path(os.ttyname(theirs))
    pieces: list[bytes] = []

    def listen(terminal: int) -> None:
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(terminal, 4096):
                pieces.append(piece)

    reader = None
    if ours is not None:
        reader = threading.Thread(target=listen, args=(ours,), daemon=True)
        reader.start()
    started = time.monotonic()
    process = start(out, str(error))
    sent, used, usage = None, 0.0, 0.0
    if not process.ended_by(None if moment is None else started + moment):
        used, sent = cpu_of(process.pid), time.monotonic()
        os.killpg(process.pid, number)
        # the CPU of a process that is not waited for is seen only while it lives
        while not process.ended_by(time.monotonic() + 0.05) and time.monotonic() < sent + HANGS_S:
            usage = cpu_of(process.pid, usage)
        if process.code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.ended_by(None)
    ended = time.monotonic()
    if theirs is not None and reader is not None:
        os.close(theirs)
        reader.join(10)
    text = b"".join(pieces) if terminal else error.read_bytes()
    code = process.code
    assert code is not None
    said = (out.read_text(), text.decode(errors="replace").replace("\r\n", "\n"))
    after = (None, 0.0) if sent is None else (ended - sent, max(usage - used, 0.0))
    return Ended(code, *said, ended - started, *after)


def cpu_of(pid: int, otherwise: float = 0.0) -> float:
    """Seconds of CPU of a process so far; `otherwise` where it has ended."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return otherwise
    return sum(map(int, values[11:13])) / os.sysconf("SC_CLK_TCK")


def contents(folder: Path) -> dict[str, Any]:
    """All files that a command leaves, without what differs between any two runs."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == "lock" or path.suffix == ".parquet" or "tfevents" in path.name:
            continue
        data: Any = path.read_bytes()
        if path.suffix == ".csv":
            rows = csv.DictReader(io.StringIO(data.decode()))
            data = [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]
        elif path.suffix in (".json", ".html", ".gz"):
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            data = DATES.sub("TIME", SECONDS.sub(r"\1SECONDS", data.decode()))
        files[name] = data
    return files


def differences(folder: Path, whole: dict[str, Any]) -> list[str]:
    """The files that are not those of an uninterrupted run."""
    mine = contents(folder)
    wrong = []
    for name in sorted({*mine, *whole}):
        if "/checkpoints/" in name:  # a run that was stopped at a step has a checkpoint of it
            place, _, _ = name.rpartition("/")
            last = max(file for file in whole if file.startswith(place))
            if name != last and not (name in mine and name in whole):
                continue
        if mine.get(name) != whole.get(name):
            wrong.append(f"{name} {'differs' if name in mine and name in whole else 'is in one of them alone'}")
    return wrong


def judged(ended: Ended, out: str) -> tuple[str, str]:
    """What the interrupt came to, and what is wrong with it."""
    text = ESCAPES.sub("", ended.error)
    lines = [line for line in text.splitlines() if line.startswith("looped: ")]
    frames = re.findall(r'File "([^"]+)", line', text)
    if ended.cpu_after > LIMIT_S:
        return "late", f"it took {ended.cpu_after:.1f} s of CPU from the signal on; at most {LIMIT_S:.1f}"
    if ended.after is not None and ended.after >= HANGS_S:
        return "hangs", f"it had not ended {HANGS_S:.0f} s after the signal: {text[-300:]}"
    ours = [file for file in frames if "/looped/" in file and not file.endswith("/looped/__init__.py")]
    if not ended.out and not lines and not ours and (ended.code < 0 or frames or "Fatal Python error" in text):
        return "before looped began", ""
    if ended.code < 0:
        return "killed", f"killed by signal {-ended.code} after: {text[-300:]}"
    if "Traceback" in text or "Exception ignored" in text:
        return "traceback", text[-3000:]
    if ended.error.rfind("\x1b[?25l") > ended.error.rfind("\x1b[?25h"):
        return "cursor", f"the cursor stays hidden: {text[-200:]}"
    if ended.code == 0:
        same = DATES.sub("", ended.out) == DATES.sub("", out)
        return ("had ended", "") if same else ("output", f"exit 0 without all of its output: {ended.out[-300:]}")
    if ended.code == 1 and len(lines) == 1 and text.rstrip().endswith(lines[0]):
        return "one line", ""
    return "other", f"exit {ended.code}: {text[-500:]}"


class Campaign:
    """One command: what it leaves when nobody interrupts it, and then the interrupts."""

    def __init__(self, name: str, folder: Path, server: Any, *, fresh: bool, demo: Path | None):
        self.command, self.folder, self.server = COMMANDS[name], folder / name.replace(" ", "_"), server
        self.name, self.began = name, self.folder / "began"
        self.began.mkdir(parents=True)
        if name == "demo" and demo is not None:
            shutil.copytree(demo, self.began / "runs")
        else:
            for words in self.command.needs:
                self.end(words, self.began)
        if name == "demo":
            self.run_inside(nearly_done, str(self.began / "runs"))
        whole = [self.copy(f"whole-{index}") for index in range(2)]
        self.seconds = {}
        self.server.Process(target=os.getcwd).start()  # the server imports everything now, and not while it is timed
        for new, place in zip((fresh, False), whole, strict=True):
            ended = run_and_signal(
                self.starter(new, self.command.words, place), place.with_suffix(".out"), 0, None, False
            )
            if ended.code:
                raise SystemExit(f"`looped {' '.join(self.command.words)}` fails: {ended.error}")
            self.seconds[new], self.out = ended.seconds, ended.out
        self.whole = contents(whole[1])
        if wrong := differences(whole[0], self.whole):
            raise SystemExit(f"two uninterrupted runs of {name} differ: {wrong}")

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.began, self.folder / name))

    def starter(self, fresh: bool, words: list[str], folder: Path) -> Callable[[Path, str], Fresh | Forked]:
        """Starts a command in a folder, with its standard output and error in these files."""
        if fresh:
            return lambda out, error: Fresh(words, folder, out, error)
        return lambda out, error: Forked(self.server, words, folder, out, error)

    def end(self, words: list[str], folder: Path) -> None:
        """Run a command to its end in a forked process; a RuntimeError where it fails."""
        ended = run_and_signal(self.starter(False, words, folder), folder.with_suffix(".out"), 0, None, False)
        if ended.code:
            raise RuntimeError(f"`looped {' '.join(words)}` then exits with {ended.code}: {ended.error[-2000:]}")

    def run_inside(self, function: Callable[..., None], *arguments: Any) -> Any:
        """What a function sends from a process that was forked with everything imported; None where that dies."""
        parent, end = self.server.Pipe()
        process = self.server.Process(target=function, args=(*arguments, end))
        process.start()
        end.close()
        try:
            return parent.recv()
        except EOFError:
            return None
        finally:
            process.join()

    def interrupt(self, index: int, number: int, fresh: bool, share: float) -> tuple[str, Ended, list[str]]:
        """One interrupt, and the same command again: what came of it, how it ended, what is wrong."""
        place, moment = self.copy(str(index)), share * self.seconds[fresh]
        terminal = index % 2 == 1
        start = self.starter(fresh, self.command.words, place)
        ended = run_and_signal(start, place.with_suffix(".out"), number, moment, terminal)
        if ended.after is None:  # it was faster this time: once more, a little earlier
            shutil.rmtree(place)
            self.seconds[fresh] = min(self.seconds[fresh], ended.seconds)
            return self.interrupt(index, number, fresh, share)
        kind, trouble = judged(ended, self.out)
        wrong = [trouble] if trouble else []
        try:
            self.end(self.command.words, place)
        except RuntimeError as error:
            wrong.append(str(error))
        else:
            wrong += differences(place, self.whole)
        how = f"{'new' if fresh else 'forked'} process{', terminal' * terminal}"
        about = f"{self.name} ({index}), {signal.Signals(number).name} after {moment:.3f} s, {how}"
        if not wrong:
            shutil.rmtree(place)
        return kind, ended, [f"{about}: {text}" for text in wrong]


def nearly_done(runs: str, connection: Any) -> None:
    """Take a finished demo back to the last steps of its trainings."""
    from looped.training.folder import checkpoint_path
    from looped.training.run import Run
    from looped.training.stopping import Interrupted
    from looped.training.trainer import train

    place = Path(runs)
    for file in [*place.glob("*.html"), *place.glob("*.png")]:
        file.unlink()
    os.chdir(place.parent)  # the second training starts from the first one's weights
    first, second = sorted(place.glob("demo-*"), key=lambda path: path.name.startswith("demo-noisy"))
    for path, left in ((second, 5), (first, 20)):
        shutil.rmtree(path / "evaluations", ignore_errors=True)
        run = Run.open(path)
        at = run.experiment.train.steps - left
        checkpoint_path(path, run.steps[-1]).unlink()

        def stop(step: int, line: object, at: int = at) -> None:
            if step == at - 1:
                signal.raise_signal(signal.SIGTERM)

        with contextlib.suppress(Interrupted):
            train(run.experiment, folder=path, progress=stop)
    connection.send([Run.open(path).steps[-1] for path in (first, second)])


def campaign(name: str, folder: Path, server: Any, options: argparse.Namespace) -> list[str]:
    """Interrupt one command; what went wrong."""
    subject = Campaign(name, folder, server, fresh=options.fresh > 0, demo=options.demo)
    draw = random.Random(f"{options.seed} {name}")
    numbers = [signal.SIGINT] * options.each + [signal.SIGTERM] * options.terms
    fresh = [options.fresh > 0 and index % options.fresh == 0 for index in range(len(numbers))]
    whole = f"{subject.seconds[True]:.1f} s when nobody interrupts it, " if options.fresh else ""
    print(
        f"{name}: {whole}{subject.seconds[False]:.1f} s once all is imported; {sum(fresh)} new and "
        f"{len(fresh) - sum(fresh)} forked processes; seed {options.seed}",
        flush=True,
    )
    moments = [(index, *about, draw.random()) for index, about in enumerate(zip(numbers, fresh, strict=True))]
    kinds: dict[str, int] = {}
    ends: list[Ended] = []
    wrong: list[str] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for kind, ended, troubles in pool.map(lambda moment: subject.interrupt(*moment), moments):
            kinds[kind] = kinds.get(kind, 0) + 1
            ends += [] if ended.after is None else [ended]
            wrong += troubles
            for trouble in troubles:
                print(trouble, flush=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{name}: {len(numbers)} signals: {counts}; {len(wrong)} troubles", flush=True)
    if not ends:
        return wrong
    for what, values in {
        "clock": [ended.after or 0.0 for ended in ends],
        "CPU": [ended.cpu_after for ended in ends],
    }.items():
        print(f"  from signal to end: median {statistics.median(values):.2f} s, at most {max(values):.2f} s of {what}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}; default all")
    parser.add_argument("--each", type=int, default=50, help="how often each command gets SIGINT")
    parser.add_argument("--terms", type=int, default=5, help="how often each command gets SIGTERM")
    parser.add_argument("--fresh", type=int, default=1, help="every so many interrupts meet a new process; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--demo", type=Path, help="a folder that `looped demo --out` wrote")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave what went wrong there")
    options = parser.parse_args(arguments)
    if unknown := {*options.commands} - {*COMMANDS}:
        parser.error(f"no command is called {', '.join(unknown)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and so would these
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    wrong: list[str] = []
    place: Callable[[], Any] = (
        (lambda: contextlib.nullcontext(options.keep)) if options.keep else tempfile.TemporaryDirectory
    )
    with place() as folder:
        for name in options.commands or COMMANDS:
            wrong += campaign(name, Path(folder), server, options)
    print("all as if never interrupted" if not wrong else f"{len(wrong)} troubles")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
