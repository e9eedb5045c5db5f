"""Random sweeps: axes as typed, files of them, and what a finished one left behind, damaged."""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import tempfile
from pathlib import Path

from fuzz import values
from fuzz.commands import assignment
from fuzz.folders import edit, scramble
from fuzz.harness import Case, command
from looped.recipes import experiment

SMALL = ["--scale", "smoke", "--device", "cpu", "--executor", "stack"]


@functools.cache
def swept() -> Path:
    """A folder of runs with a finished sweep of two points, made once in a process."""
    out = Path(tempfile.mkdtemp(prefix="looped-fuzz-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    command(["sweep", "yang24.linear", "train.steps=1", "--seeds", "2", *SMALL, "--out", str(out), "--quiet"])
    return out


def sweep(draw: random.Random, folder: Path) -> Case:
    """A sweep of one step, or the list of its points, or a page over one that was damaged."""
    return draw.choice((_typed, _file, _file, _left))(draw, folder)


def _typed(draw: random.Random, folder: Path) -> Case:
    made = experiment("yang24.linear", "smoke")
    axes = [_axis(draw, assignment(draw, made)) for _ in range(draw.choice((0, 1, 1, 2)))]
    arguments = ["sweep", draw.choice(("yang24.linear",) * 5 + (values.word(draw),)), "train.steps=1", *axes]
    for option in draw.sample(("--seeds", "--seed", "--workers", "--threads", "--retries", "--table"), k=2):
        if draw.random() < 0.5:
            arguments += [option, draw.choice(values.WHOLE) if draw.random() < 0.6 else values.word(draw)]
    return _case(draw, arguments, folder)


def _axis(draw: random.Random, text: str) -> str:
    """A field with one value, several, or several fields with lists."""
    name, _, value = text.partition("=")
    kind = draw.choice(("one", "two", "pair", "none", "brackets"))
    return {
        "one": text,
        "two": f"{text},{draw.choice(values.WHOLE)}",
        "pair": f"{name},train.log_every=[{value},1],[2,3]",
        "none": f"{name}=",
        "brackets": f"{name}=[{value},{{,",
    }[kind]


def _file(draw: random.Random, folder: Path) -> Case:
    data = {
        "recipe": "yang24.linear",
        "scale": "smoke",
        "grid": {"train.steps": [1], "model.loops,train.window": [[2, 1], [3, 2]]},
        "points": [{"train.log_every": 1}, {"train.log_every": 2}],
        "seeds": draw.choice((1, [0, 1])),
    }
    file = folder / f"sweep.{draw.choice(('json', 'json', 'json', 'toml', 'yaml'))}"
    file.write_text(json.dumps(data) if file.suffix == ".json" else TOML)
    told = "whole"
    if draw.random() < 0.8:
        told = edit(draw, file) if file.suffix == ".json" and draw.random() < 0.8 else scramble(draw, file)
    made = _case(draw, ["sweep", "--file", str(file)], folder)
    return Case(f"{made.told} with a file that {told}", made.act)


TOML = """recipe = "yang24.linear"
seeds = [0, 1]
[grid]
"train.steps" = [1]
"model.loops,train.window" = [[2, 1], [3, 2]]
"""


def _left(draw: random.Random, folder: Path) -> Case:
    out = shutil.copytree(swept(), folder / "runs")
    (kept,) = (out / "sweeps").iterdir()
    file = draw.choice(sorted(path for path in out.rglob("*") if path.suffix in (".json", ".jsonl", ".safetensors")))
    file = draw.choice((file, kept / "sweep.json"))
    told = edit(draw, file) if file.suffix.startswith(".json") and draw.random() < 0.8 else scramble(draw, file)
    again = ["sweep", "yang24.linear", "train.steps=1", "--seeds", "2", *SMALL, "--out", str(out)]
    page = ["--out", str(folder / "page.html")]
    arguments = draw.choice(
        (again, [*again, "--list"], ["report", str(out), *page], ["report", str(kept), *page], [*again, "--json"])
    )
    return Case(f"{arguments[0]} after {file.relative_to(out)}: {told}", lambda: command(arguments))


def _case(draw: random.Random, arguments: list[str], folder: Path) -> Case:
    arguments = [*arguments, *SMALL, "--out", str(folder / "runs")]
    arguments += ["--list"] if draw.random() < 0.5 or not _short(arguments) else []
    arguments += ["--json"] if draw.random() < 0.3 else []
    return Case(" ".join(map(repr, arguments)), lambda: command(arguments))


def _short(arguments: list[str]) -> bool:
    """Nothing on the line is a large number that may be valid, so that a sweep of it takes milliseconds."""
    return not any(len(word) > 6 and any(letter.isdigit() for letter in word) for word in arguments if "/" not in word)
