"""Random command lines, overrides and recipe files.

Whatever is valid must be small, or an example would be real work: training is of one step at smoke scale.
"""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from pathlib import Path

import typer.main

from fuzz import values
from fuzz.harness import Case, command
from looped.cli import app
from looped.config import encode, override
from looped.experiment import Experiment
from looped.recipes import experiment, recipes

SMALL = ["--scale", "smoke", "--set", "train.steps=1", "--device", "cpu"]
LARGE = ("bench", "demo", "verify", "reproduce", "queue")
"""Commands that work for minutes when all is well: something is always wrong here."""


@functools.cache
def trained() -> Path:
    """A run folder of the smallest recipe, made once in a process."""
    out = Path(tempfile.mkdtemp(prefix="looped-fuzz-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    command(["train", "yang24.linear", *SMALL, "--out", str(out), "--quiet"])
    command(["evaluate", str(next(out.iterdir())), "--prompts", "4", "--quiet"])
    return next(out.iterdir())


@functools.cache
def constructed() -> Path:
    """A run folder that nobody trained: its config says nothing about training, its provenance more."""
    out = Path(tempfile.mkdtemp(prefix="looped-fuzz-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    run = out / "built"
    command(["construct", "gatmiry24.thm5", "--d", "3", "--examples", "6", "--loops", "2", "--out", str(run)])
    command(["evaluate", str(run), "--prompts", "4", "--device", "cpu", "--quiet"])
    return run


@functools.cache
def options() -> dict[str, dict[str, bool]]:
    """Every command's options, and whether they take a value."""
    group = typer.main.get_command(app)
    found = {}
    for name, one in group.commands.items():  # type: ignore[attr-defined]
        found[name] = {
            option: not one_.is_flag for one_ in one.params if hasattr(one_, "is_flag") for option in one_.opts
        }
    return found


def command_line(draw: random.Random, folder: Path) -> Case:
    """A command with some options, their values and its arguments, most of them wrong."""
    name = draw.choice(list(options()))
    run = shutil.copytree(trained(), folder / "run")
    arguments = [name if draw.random() < 0.95 else values.mistyped(draw, name)]
    if draw.random() < 0.8:
        arguments += _argument(draw, name, run)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        option = draw.choice(list(options()[name]))
        if option in ("--open", "--no-open"):
            continue
        arguments.append(option if draw.random() < 0.95 else values.mistyped(draw, option))
        if options()[name][option]:
            arguments += _value(draw, option, folder)
    needed = {"construct": ["--out", str(folder / "built")], "import": ["--out", str(folder / "in"), "--heads", "2"]}
    arguments += needed.get(name, []) if draw.random() < 0.7 else []
    # whatever is valid is kept small
    if name == "sweep":
        arguments += ["train.steps=1", "--scale", "smoke", "--device", "cpu", "--out", str(folder / "runs")]
    elif name == "train":
        arguments += ["--set", "train.steps=1", "--device", "cpu", "--out", str(folder / "runs")]
        arguments += [] if "--resume" in arguments else ["--scale", "smoke"]
    elif name in ("evaluate", "identify", "diagnose", "compare") and "--prompts" not in arguments:
        arguments += ["--prompts", "8"]
    elif name == "keep":
        arguments += ["--prompts", "8", "--device", "cpu", "--out", str(folder / "models")]
    elif name in ("report", "explore"):
        arguments += ["--out", str(folder / "page.html")]
    if name in LARGE:
        arguments += draw.choice((["--no-such-option"], ["--quiet=3"], [f"no.such.{name}"]))
    if draw.random() < 0.3:
        arguments.append("--json")
    return Case(" ".join(map(repr, arguments)), lambda: command(arguments))


def _argument(draw: random.Random, name: str, run: Path) -> list[str]:
    if name in ("train", "sweep"):
        return [draw.choice(("yang24.linear", "yang24.tied", "yang24.sparse", "yang24.linearr", values.word(draw)))]
    if name == "construct":
        return [draw.choice(("gatmiry24.thm5", "gao24.thm4.1", values.word(draw)))]
    if name == "compare":
        other = shutil.copytree(run, run.with_name("other"))
        return [str(run), draw.choice((str(other), str(other), str(run), "explorer.curves", values.word(draw)))]
    if name in ("evaluate", "identify", "diagnose", "report", "keep", "check", "explore", "export"):
        return [draw.choice((str(run), str(run), str(run), str(run.parent), values.word(draw)))]
    if name == "import":
        return [draw.choice((str(run / "config.json"), str(run), values.word(draw)))]
    if name == "list":
        return [draw.choice(("recipes", "claims", "figures", "models", values.word(draw)))]
    return [values.word(draw)]


def _value(draw: random.Random, option: str, folder: Path) -> list[str]:
    if option == "--set":
        return [assignment(draw, experiment("yang24.linear", "smoke"))]
    if option in ("--out", "--runs", "--results"):
        return [str(folder / draw.choice(("new", "run", "run/config.json", "x" * 300, "a\nb", "é")))]
    if option == "--shift":
        shift = draw.choice(("skewed", "scaled-x:factor=2", "noisy", "scaled-x", "random", values.word(draw)))
        return [f"{shift}:factor={values.word(draw)}" if draw.random() < 0.3 else shift]
    small = draw.random() < 0.6
    return [draw.choice(values.WHOLE) if small else values.word(draw)]


def overrides(draw: random.Random, folder: Path) -> Case:
    """Fields of any recipe changed to anything; what comes out small by its numbers is trained for one step."""
    name = draw.choice(sorted(recipes()))
    made = experiment(name, "smoke")
    changes = [assignment(draw, made) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    arguments = [name, *(part for one in changes for part in ("--set", one)), *SMALL, "--out", str(folder / "runs")]

    def act() -> None:
        changed = override(made, changes)
        again = Experiment.from_data(changed.to_data())
        assert (again, again.hash) == (changed, changed.hash)
        if made.name.startswith("yang24") and _small(changed.to_data()) and _data_free(changed):
            command(["train", *arguments, "--json"])
            command(["train", *arguments, "--quiet"])

    return Case(" ".join(map(repr, arguments)), act)


def _small(data: object) -> bool:
    """No number in the config is large, so that a step of it takes milliseconds."""
    if isinstance(data, dict):
        return all(_small(value) for key, value in data.items() if key not in ("seed", "every", "log_every"))
    if isinstance(data, list):
        return all(map(_small, data))
    return not isinstance(data, int) or abs(data) <= 300


def _data_free(made: Experiment) -> bool:
    return type(made.task).__name__ not in ("Tables", "Translation")


def assignment(draw: random.Random, made: Experiment) -> str:
    """`field=value` for a field of the config, or nearly one."""
    paths = list(_paths(encode(made), ""))
    path = draw.choice(paths) if draw.random() < 0.9 else values.mistyped(draw, draw.choice(paths))
    if draw.random() < 0.05:
        return draw.choice((path, f"={values.word(draw)}", f"{path}.x=1", f".{path}=1", f"{path}==1"))
    value = draw.choice(values.WHOLE) if draw.random() < 0.4 else values.word(draw)
    return f"{path}={value}"


def _paths(data: object, where: str):
    if isinstance(data, dict):
        for key, value in data.items():
            yield f"{where}{key}"
            yield from _paths(value, f"{where}{key}.")


PIECES = (
    "import looped\n",
    "from looped import *\n",
    "def f():\n    return 1\n",
    "def f():\n    return 1 / 0\n",
    "def f(scale):\n    return scale\n",
    "def f(a, b, c):\n    return a\n",
    "f = 3\n",
    "class f:\n    pass\n",
    "def f():\n    raise ValueError('two\\nlines')\n",
    "def f():\n    raise KeyError\n",
    "async def f():\n    return 1\n",
    "def f():\n    yield 1\n",
    "f = len\n",
    "f = print\n",
    "import no_such_module_at_all\n",
    "raise RuntimeError\n",
    "def f(:\n",
    "\x00",
    "\ufeff",
    "x = '",
    "# coding: no-such-coding\n",
    "from looped import Experiment, LinearRegression, DecoderConfig\n"
    "def f():\n    return Experiment(task=LinearRegression(d=2), model=DecoderConfig(d=2))\n",
    "from looped import Experiment, LinearRegression, DecoderConfig, TrainConfig\ndef f():\n"
    "    return Experiment(task=LinearRegression(d=2), model=DecoderConfig(d=2, width=8, heads=2),"
    " train=TrainConfig(steps=1, batch=2, points=3))\n",
    "from looped import Experiment\ndef f():\n    return Experiment(task=1, model=2)\n",
)
"""Parts of a recipe file; none does anything but fail."""


def recipe_file(draw: random.Random, folder: Path) -> Case:
    """A file of the user's own, named on the command line as a recipe or handed over as code."""
    text = "".join(draw.choice(PIECES) for _ in range(draw.choice((0, 1, 1, 2))))
    unique = f"fuzz_{draw.getrandbits(64):x}"
    file = folder / draw.choice((f"{unique}.py", f"{unique}.py", f"{unique}.txt", f"{unique} b.py", "json.py"))
    content = text.encode("utf-8", "replace") if draw.random() < 0.9 else bytes(draw.randbytes(40))
    file.write_bytes(content)
    ending = draw.choice((":f", ":f", ":f", ":g", ":", "", ":f:f", ":__class__", ":" + values.word(draw)))
    out = ["--out", str(folder / "runs"), "--device", "cpu", "--quiet"]
    arguments = ["train", f"{file}{ending}", *out]
    if draw.random() < 0.2:
        arguments += ["--scale", draw.choice(("smoke", "x"))]
    if draw.random() < 0.2:
        arguments = ["train", "yang24.linear", *SMALL, *out, "--code", str(file)]
    return Case(f"{' '.join(map(repr, arguments))} with {content[:200]!r}", lambda: command(arguments))
