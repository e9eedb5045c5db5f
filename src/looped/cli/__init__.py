"""The `looped` command: one file per command, errors as one line."""

import contextlib
import io
import os
import re
import sys
import traceback
from pathlib import Path

import torch
import typer

from looped import __version__
from looped.cli.bench import bench
from looped.cli.construct import construct
from looped.cli.demo import demo
from looped.cli.diagnose import diagnose
from looped.cli.evaluate import evaluate
from looped.cli.failures import explained
from looped.cli.identify import identify
from looped.cli.keep import keep
from looped.cli.listing import list_all
from looped.cli.queue import queue
from looped.cli.report import report
from looped.cli.reproduce import reproduce
from looped.cli.sweep import sweep
from looped.cli.train import import_file, train
from looped.cli.verify import verify
from looped.files import visible
from looped.training.distributed import launched

app = typer.Typer(
    help="The laboratory for transformers that learn by looping.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
experiments = (demo, list_all, train, sweep, import_file, construct)
findings = (evaluate, identify, diagnose, verify, reproduce, queue, keep, report, bench)
for command in (
    *experiments,
    *findings,
):  # `list` and `import` are words of Python, so their functions have longer names
    app.command(command.__name__.partition("_")[0])(command)


def _version(asked: bool) -> bool:
    if asked:
        print(f"looped {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Also print the trace of an error; may stand anywhere."),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit 0, or 1 if it failed or was stopped, or 2 for bad input, with one line that says why."""
    _open_streams()
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]  # it may stand anywhere
    # typer's context would know the command, but its class moves between versions
    command = next((word for word in words if not word.startswith("-")), "train")
    try:
        if any("\0" in word for word in words):
            raise ValueError("an argument holds a NUL character, which no name and no number has. Leave it out.")
        _bound_memory()
        if launched() and command != "train":
            raise ValueError(f"only `looped train` runs under torchrun. Start `looped {command}` alone.")
        code = app(words, prog_name="looped", standalone_mode=False)
    except KeyboardInterrupt:
        _fail("stopped.", 1)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if (reason := explained(error)) is None:
            raise
        _fail(*reason)
    else:
        if code == 130:  # how typer reports Ctrl-C
            _fail("stopped.", 1)
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Print into nothing where a stream is closed (`>&-`), and what a terminal cannot write as an escape."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test puts there
            stream.reconfigure(errors="backslashreplace")


def _bound_memory() -> None:
    """Let what the machine has no memory for be refused; otherwise the kernel kills the process, without a word."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system; a job may have a bound already
        import resource

        (kilobytes,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
        now, most = resource.getrlimit(resource.RLIMIT_DATA)
        if now == resource.RLIM_INFINITY and not torch.cuda.is_available():  # CUDA reserves more than it uses
            resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(kilobytes), most))


def _fail(message: str, code: int) -> None:
    if message:  # no command: the help is printed already
        print(f"looped: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
