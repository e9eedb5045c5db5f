"""Damaged run folders, result files, checkpoints and .pt files at every command that opens them."""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fuzz import values
from fuzz.commands import SMALL, constructed, trained
from fuzz.harness import Case, check_finite, command
from looped.files import digest, read_tensors
from looped.training.run import load

ANYTHING = (
    *(None, True, False, 0, 1, -1, 3, 10**15, 10**30, 0.5, 1e308, "", "x", "../../x", "/tmp/x", "é\n", "<b>", [], {}),
    *([1], [None], {"a": 1}, {"type": "os:system"}, {"type": "looped.training.run:Run"}, [[[]]], "nan_", float("nan")),
    *(float("inf"), "\ud800"),
)
"""What may stand in a JSON file that somebody edited; numbers that are not finite are read by Python's own reader."""


def run_folder(draw: random.Random, folder: Path) -> Case:
    """A run folder with one or two of its files damaged, at one of the commands that open it."""
    run = shutil.copytree(trained() if draw.random() < 0.8 else constructed(), folder / "run")
    told = [_damage(draw, run) for _ in range(draw.choice((1, 1, 2)))]
    arguments = draw.choice(
        (
            ["evaluate", str(run), "--prompts", "4", "--device", "cpu"],
            ["evaluate", str(run), "--prompts", "4", "--device", "cpu"],
            ["train", "--resume", str(run), "--device", "cpu"],
            ["train", "--resume", str(run), "--device", "cpu"],
            ["train", "yang24.linear", *SMALL, "--start", str(run), "--out", str(folder / "runs")],
            ["report", str(run), "--out", str(folder / "page.html")],
            ["report", str(folder), "--out", str(folder / "page.html")],
            ["identify", str(run), "--prompts", "8", "--loops", "1", "--max-steps", "1"],
            ["diagnose", str(run), "--prompts", "4", "--device", "cpu", "--starts", "1"],
            ["keep", str(run), "--prompts", "4", "--device", "cpu", "--out", str(folder / "models")],
        )
    )
    if draw.random() < 0.3:
        arguments = [*arguments, "--json"]
    return Case(f"{' '.join(arguments[:1])} after {'; '.join(told)}", lambda: command(arguments))


def _damage(draw: random.Random, run: Path) -> str:
    files = sorted(path for path in run.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
    if not files:
        return "nothing is left to damage"
    file = draw.choice(
        [*files, run / "config.json", run / "config.json", run / "metrics.jsonl", run / "provenance.json"]
    )
    name = file.relative_to(run)
    kind = draw.choice(("remove", "bytes", "folder", "json", "json", "json", "json", "json", "twice"))
    if not file.is_file():
        return f"{name} is gone already"
    if kind == "remove":
        file.unlink()
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    elif kind == "twice":
        file.write_bytes(file.read_bytes() * 2)
    elif kind == "json" and file.suffix in (".json", ".jsonl"):
        return f"{name}: {edit(draw, file)}"
    else:
        return f"{name}: {scramble(draw, file)}"
    return f"{name}: {kind}"


def edit(draw: random.Random, file: Path) -> str:
    """Put something else into one place of a JSON file, or in place of all of it."""
    first, newline, rest = file.read_text().partition("\n") if file.suffix == ".jsonl" else (file.read_text(), "", "")
    try:
        data = json.loads(first)
    except (ValueError, RecursionError):  # cut off, or damaged to be nested deep
        return scramble(draw, file)
    change, what = draw.choice(("set", "set", "set", "drop", "add", "whole")), draw.choice(ANYTHING)
    places = list(_places(data))
    if change == "whole" or not places:
        data, said = what, f"is {what!r}"
    else:
        holder, key = draw.choice(places)
        if change == "drop":
            del holder[key]
            said = f"has lost {key!r}"
        elif change == "add" and isinstance(holder, dict):
            holder[draw.choice(("new", "type", "", "é"))] = what
            said = f"has {what!r} beside {key!r}"
        else:
            holder[key] = what
            said = f"{key!r} is {what!r}"
    file.write_text(json.dumps(data) + newline + rest)
    return said


def _places(data: Any):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        yield data, key
        yield from _places(value)


def scramble(draw: random.Random, file: Path) -> str:
    """Damage to the bytes of a file."""
    whole = file.read_bytes()
    at = draw.randrange(len(whole) + 1)
    early = draw.randrange(min(len(whole), 400) + 1)
    kinds: dict[str, Callable[[], bytes]] = {
        "cut": lambda: whole[:at],
        "cut early": lambda: whole[:early],
        "flipped": lambda: whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :],
        "flipped early": lambda: whole[:early] + bytes([draw.randrange(256)]) + whole[early + 1 :],
        "inserted": lambda: whole[:at] + draw.randbytes(3) + whole[at:],
        "empty": lambda: b"",
        "zeros": lambda: bytes(len(whole)),
        "zero tail": lambda: whole[:at] + bytes(len(whole) - at),
        "random": lambda: draw.randbytes(draw.choice((1, 8, 9, 200))),
        "huge header": lambda: b"\xff" * 7 + b"\x7f" + whole[8:],
        "text": lambda: draw.choice((b"nan", b"NaN\n", b"[" * 5000, b"\xef\xbb\xbf{}", b"1" * 5000, b"\xff\xfe")),
    }
    kind = draw.choice(list(kinds))
    file.write_bytes(kinds[kind]())
    return f"{kind} ({early if 'early' in kind else at} of {len(whole)})"


def checkpoint(draw: random.Random, folder: Path) -> Case:
    """A checkpoint with other bytes, other tensors or other facts, loaded, judged, or gone on from."""
    run = shutil.copytree(trained(), folder / "run")
    (file,) = (run / "checkpoints").iterdir()
    told = scramble(draw, file) if draw.random() < 0.5 else _rewrite(draw, file)
    way = draw.choice(("load", "load", "evaluate", "resume", "start"))

    def act() -> None:
        if way == "load":
            model = load(run)
            given = torch.Generator().manual_seed(0)
            from looped.experiment import Experiment

            task = Experiment.from_data(json.loads((run / "config.json").read_text())).task
            check_finite("predict", model.predict(task.sample(batch=2, n=3, generator=given)))
        elif way == "evaluate":
            command(["evaluate", str(run), "--prompts", "4", "--device", "cpu"])
        elif way == "resume":
            command(["train", "--resume", str(run), "--device", "cpu", "--quiet"])
        else:
            command(["train", "yang24.linear", *SMALL, "--start", str(run), "--out", str(folder / "runs"), "--quiet"])

    return Case(f"{way} after: {told}", act)


def _rewrite(draw: random.Random, file: Path) -> str:
    """A whole file with a right checksum that holds something else."""
    tensors, about = read_tensors(file)
    names = [name for name in tensors if name.startswith("model/")] if draw.random() < 0.7 else list(tensors)
    name = draw.choice(sorted(names))
    kind = draw.choice(("value", "shape", "missing", "extra", "dtype", "renamed", "about", "none", "foreign", "facts"))
    tensor = tensors[name]
    if kind == "value":
        tensors[name] = torch.full(tensor.shape, draw.choice((float("nan"), float("inf"), 3e38, 1e-40))).to(
            tensor.dtype
        )
    elif kind == "shape":
        tensors[name] = draw.choice((tensor[None], tensor.flatten()[:0], torch.zeros(()).to(tensor), tensor.flatten()))
    elif kind == "missing":
        del tensors[name]
    elif kind == "extra":
        tensors[f"model/{draw.choice(('x', '../x', 'é', 'a' * 500))}"] = torch.zeros(2)
    elif kind == "dtype":
        tensors[name] = tensor.to(draw.choice((torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)))
    elif kind == "renamed":
        tensors[values.mistyped(draw, name)] = tensors.pop(name)
    elif kind == "about":
        about[draw.choice(list(about))] = draw.choice([one for one in ANYTHING if one == one and one != float("inf")])
    elif kind == "none":
        tensors = {}
    elif kind == "facts":
        about = draw.choice(({}, [], 3, None, "x"))
    if kind == "foreign":
        file.write_bytes(save(tensors, metadata=draw.choice((None, {}, {"looped": ""}, {"looped": "x {}"}))))
    else:
        text = json.dumps(about)
        file.write_bytes(save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))
    return f"{kind} of {name}"


def published(draw: random.Random, folder: Path) -> Case:
    """A .pt file for `looped import`: the published layout, changed, or other bytes."""
    from cli.test_cli import published as state_dict

    state: Any = state_dict(layers=draw.choice((1, 2)))
    told = "whole"
    for _ in range(draw.choice((0, 1, 1, 2))):
        name = draw.choice([key for key, value in state.items() if isinstance(value, torch.Tensor)])
        told = draw.choice(("missing", "shape", "value", "dtype", "renamed", "object"))
        if told == "missing":
            del state[name]
        elif told == "shape":
            state[name] = draw.choice((state[name][None], torch.zeros(0), torch.zeros(3, 3), torch.zeros(())))
        elif told == "value":
            state[name] = torch.full_like(state[name], draw.choice((float("nan"), float("inf"), 3e38)))
        elif told == "dtype":
            state[name] = state[name].to(draw.choice((torch.float16, torch.int64, torch.complex64)))
        elif told == "renamed":
            state[values.mistyped(draw, name)] = state.pop(name)
        else:
            state[name] = draw.choice((3, "x", None, [1], {"a": 1}))
    torch.save(state if draw.random() < 0.7 else {"model": state, "step": draw.choice((3, None))}, folder / "state.pt")
    damage = scramble(draw, folder / "state.pt") if draw.random() < 0.4 else "bytes whole"
    heads = draw.choice(("2", "2", "2", "1", "3", "0", "-1", "1000000000000000"))
    loops = draw.choice(([], [], ["--loops", draw.choice(("1", "2", "0", "-3", "1" + "0" * 30))]))
    out = str(folder / "in")

    def act() -> None:
        command(["import", str(folder / "state.pt"), "--out", out, "--heads", heads, *loops, "--quiet"])
        command(["evaluate", out, "--prompts", "4", "--loops", "1", "--max-loops", "2", "--device", "cpu"])

    return Case(f"import {told}, {damage}, heads {heads} {' '.join(loops)}", act)


@functools.cache
def smoke() -> Path:
    """A result of the smallest figure."""
    out = Path(tempfile.mkdtemp(prefix="looped-fuzz-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    command(["reproduce", "chen24.fig1", "--scale", "smoke", "--device", "cpu", "--out", str(out), "--quiet"])
    return out / "chen24.fig1.smoke.json"


def results(draw: random.Random, folder: Path) -> Case:
    """Damaged files of `looped reproduce`, `looped verify` and `looped evaluate` at what reads them."""
    kept = folder / "results"
    kept.mkdir()
    source = Path(__file__).resolve().parents[2] / "results"
    whole = draw.choice(sorted(path for path in source.glob("*.json") if path.stat().st_size < 20_000))
    original = whole if draw.random() < 0.75 else smoke()
    figure = kept / original.name
    shutil.copy(original, figure)
    rows = folder / "verify.json"
    row = {
        "name": "a",
        "paper": "chen24",
        "statement": "s",
        "measured": 0.5,
        "bound": 1.0,
        "verdict": "holds",
        "seconds": 1,
    }
    plot = {"x": [1, 2], "lines": {"measured": [1, 2]}, "x_label": "n", "y_label": "e"}
    rows.write_text(json.dumps([{**row, "margin": 2.0, "form": "as stated", "plot": plot}, row]))
    file = draw.choice((figure, rows)) if original is whole else figure
    told = f"{file.name}: {edit(draw, file) if draw.random() < 0.8 else scramble(draw, file)}"
    page = ["--out", str(folder / "page.html")]
    ways = (
        (["report", "--results", str(kept), *page], ["list", "figures", "--results", str(kept)])
        if file is figure
        else (["report", "--theorems", str(rows), *page],)
    )
    if original is not whole:  # what is measured anew takes no time
        ways = (["reproduce", "chen24.fig1", "--scale", "smoke", "--device", "cpu", "--out", str(kept), "--json"],)
    arguments = draw.choice((*ways, ["list", "claims", "--results", str(kept)]))
    return Case(f"{arguments[0]} after {told}", lambda: command(arguments))
