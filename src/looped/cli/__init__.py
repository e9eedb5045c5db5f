"""The `looped` command: one file per command, errors as one line."""

import os
import re
import sys

import typer

from looped import __version__
from looped.cli.bench import bench
from looped.cli.construct import construct
from looped.cli.demo import demo
from looped.cli.diagnose import diagnose
from looped.cli.evaluate import evaluate
from looped.cli.explore import explore
from looped.cli.identify import identify
from looped.cli.keep import keep
from looped.cli.listing import list_all
from looped.cli.queue import queue
from looped.cli.report import report
from looped.cli.reproduce import reproduce
from looped.cli.sweep import sweep
from looped.cli.train import import_file, train
from looped.cli.verify import verify
from looped.training.distributed import LostRank, launched
from looped.training.stopping import Interrupted
from looped.training.trainer import Diverged

app = typer.Typer(
    help="The laboratory for transformers that learn by looping.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
experiments = (demo, explore, list_all, train, sweep, import_file, construct)
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
def _options(version: bool = typer.Option(False, "--version", callback=_version, help="Print the version.")) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit 0, or 1 if it failed or was stopped, or 2 for bad input, with one line that says why."""
    words = sys.argv[1:] if arguments is None else arguments
    # typer's context would know the command, but its class moves between versions
    command = next((word for word in words if not word.startswith("-")), "train")
    try:
        if launched() and command != "train":
            raise ValueError(f"only `looped train` runs under torchrun. Start `looped {command}` alone.")
        code = app(arguments, prog_name="looped", standalone_mode=False)
    except (Diverged, Interrupted, LostRank) as error:
        _fail(str(error), 1)
    except (ValueError, OSError) as error:
        _fail(str(error), 2)
    except (MemoryError, RuntimeError, TypeError) as error:
        # torch has a class of errors for the GPU's memory; for the CPU's, or for absurd sizes, only the words tell
        if not isinstance(error, MemoryError) and not re.search(
            "memory|Overflow when|overflow|torage size", str(error)
        ):
            raise
        _fail("that needs more memory than there is. Ask for fewer or smaller prompts, or a smaller model.", 2)
    except KeyboardInterrupt:
        _fail("stopped.", 1)
    except Exception as error:
        # usage errors of typer; their class moved between versions, their method did not
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip()  # type: ignore[attr-defined]
        if not message:  # no command: the help is printed already
            sys.exit(2)
        end = "" if message.endswith((".", "?")) else "."
        _fail(f"{message}{end} `looped --help` shows what there is.", 2)
    else:
        if code == 130:  # how typer reports Ctrl-C
            _fail("stopped.", 1)
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(f"looped: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
