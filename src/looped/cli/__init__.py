"""The `looped` command: one file per command, errors as one line.

A command's module is imported when the command is called; `looped --help` reads the docstrings without importing them.
"""

import ast
import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from looped import __version__
from looped.signals import STOPPED

COMMANDS = {
    "demo": "demo",
    "explore": "explore",
    "list": "listing:list_all",
    "train": "train",
    "sweep": "sweep",
    "import": "train:import_file",
    "construct": "construct",
    "check": "check",
    "evaluate": "evaluate",
    "compare": "compare",
    "identify": "identify",
    "diagnose": "diagnose",
    "verify": "verify",
    "reproduce": "reproduce",
    "queue": "queue",
    "keep": "keep",
    "export": "export",
    "report": "report",
    "bench": "bench",
}
"""The commands in the order of the help: the module in this folder, and its function where that is called otherwise."""


def _function(place: str) -> Callable[..., Any]:
    """The function of a command."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name or module)


def _described(place: str) -> Callable[..., Any]:
    """A function that does nothing, with the docstring of a command's: enough for a line of the help."""
    module, _, name = place.partition(":")
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def command() -> None:
        pass

    command.__doc__ = ast.get_docstring(functions[name or module])
    return command


def _application(functions: Callable[[str], Callable[..., Any]]) -> typer.Typer:
    """All commands, each with the function that `functions` gives for its place."""
    application = typer.Typer(
        help="The laboratory for transformers that learn by looping.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    application.callback()(_options)
    for name, place in COMMANDS.items():
        application.command(name)(functions(place))
    return application


def __getattr__(name: str) -> object:
    """`app`, with every command imported: for tests and documents that look into it."""
    if name == "app":
        return _application(_function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version(asked: bool) -> bool:
    if asked:
        print(f"looped {__version__}")
        raise typer.Exit
    return asked


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Also print the trace of an error; may stand anywhere."),
) -> None:
    pass


def main(arguments: list[str] | None = None, *, imported: Callable[[], None] = lambda: None) -> None:
    """Run a command: exit 0, or 1 if it failed or was stopped, or 2 for bad input, with one line that says why.

    `imported` is called when the command's modules are there, before it begins.
    """
    _open_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if words and set(words) <= {"--help", "--version"}:
        _application(_described)(words, prog_name="looped")
    from looped.cli.failures import explained
    from looped.training.distributed import launched

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
        functions = {COMMANDS[command]: _function(COMMANDS[command])} if command in COMMANDS else {}
        app = _application(lambda place: functions.get(place) or _described(place))
        imported()
        code = app(words, prog_name="looped", standalone_mode=False)
    except KeyboardInterrupt:
        _fail(STOPPED, 1)
    except (Exception, SystemExit) as error:  # commands return their exit code: this one is of a user's own code
        if debug:
            traceback.print_exc()
        if (reason := explained(error)) is None:
            raise
        _fail(*reason)
    else:
        if code == 130:  # how typer reports Ctrl-C
            _fail(STOPPED, 1)
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

        import torch

        from looped.functional.memory import available

        now, most = resource.getrlimit(resource.RLIMIT_DATA)
        # CUDA reserves more than it uses
        if now == resource.RLIM_INFINITY and not torch.cuda.is_available() and (free := available()) is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (free, most))


def _fail(message: str, code: int) -> None:
    from looped.files import visible

    if message:  # no command: the help is printed already
        print(f"looped: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
