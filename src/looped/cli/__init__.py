"""The `looped` command: one file per command, errors as one line.

A command's module is imported when the command is called; `looped --help` reads the docstrings without importing them.
"""

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from looped import __version__

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


def _options(version: bool = typer.Option(False, "--version", callback=_version, help="Print the version.")) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit 0, or 1 if it failed or was stopped, or 2 for bad input, with one line that says why."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and set(words) <= {"--help", "--version"}:
        _application(_described)(words, prog_name="looped")
    from looped.training.distributed import LostRank, launched
    from looped.training.stopping import Interrupted
    from looped.training.trainer import Diverged

    # typer's context would know the command, but its class moves between versions
    command = next((word for word in words if not word.startswith("-")), "train")
    try:
        if launched() and command != "train":
            raise ValueError(f"only `looped train` runs under torchrun. Start `looped {command}` alone.")
        functions = {COMMANDS[command]: _function(COMMANDS[command])} if command in COMMANDS else {}
        app = _application(lambda place: functions.get(place) or _described(place))
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
