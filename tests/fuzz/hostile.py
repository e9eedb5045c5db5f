"""Run folders with pipes, devices, deep nesting, huge sizes and weights of every precision, and own tasks that slip."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import save

from fuzz import values
from fuzz.commands import trained
from fuzz.harness import Case, command
from looped.files import digest, read_tensors

DTYPES = (torch.int8, torch.bool, torch.complex64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64)
SLIPS = ("pass", "return 1, 2", "return {}['x']", "raise SystemError('\\x1b[31m')", "return self.sample()", "1 / 0")
OWN = """
from looped import LinearRegression
class Own(LinearRegression):
    def sample(self, **sizes):
        {}
"""


def hostile(draw: random.Random, folder: Path) -> Case:
    """One of these in a run folder, at a command that opens it."""
    run = shutil.copytree(trained(), folder / "run")
    kind = draw.choice(("special", "special", "nested", "size", "dtype", "own", "name"))
    more: list[str] = []
    if kind == "special":
        file = draw.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
        file.unlink()
        os.mkfifo(file) if draw.random() < 0.5 else file.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/proc")))
        told = f"{file.name} is special"
    elif kind in ("nested", "size"):
        data, part = json.loads((run / "config.json").read_text()), draw.choice(("model", "train", "task"))
        field = draw.choice([name for name in data[part] if name != "type"])
        deep: object = None
        for _ in range(draw.choice((90, 300, 900))):
            deep = {"a": deep} if draw.random() < 0.5 else [deep]
        data[part][field] = deep if kind == "nested" else 10 ** draw.choice((15, 30, 400))
        (run / "config.json").write_text(json.dumps(data))
        told = f"{part}.{field}: {kind}"
    elif kind == "dtype":
        (file,) = (run / "checkpoints").iterdir()
        tensors, about = read_tensors(file)
        name, dtype = draw.choice([name for name in tensors if name.startswith("model/")]), draw.choice(DTYPES)
        tensors[name], text = tensors[name].to(dtype), json.dumps(about)
        file.write_bytes(save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))
        told = f"{name} is {dtype}"
    elif kind == "own":
        body, module = draw.choice(SLIPS), f"own_{draw.getrandbits(64):x}"
        (folder / f"{module}.py").write_text(OWN.format(body))
        data = json.loads((run / "config.json").read_text())
        data["task"]["type"] = f"{module}:Own"
        (run / "config.json").write_text(json.dumps(data))
        more, told = ["--code", str(folder / f"{module}.py")], f"own task: {body}"
    else:
        text = draw.choice(values.WORDS)
        (run / "provenance.json").write_text(json.dumps({"command": text, "device": text}))
        told = f"provenance says {text!r}"
    page = ["report", str(run), "--out", str(folder / "page.html")]
    ways = (["evaluate", str(run), "--prompts", "4"], ["diagnose", str(run), "--prompts", "4", "--starts", "1"], page)
    arguments = [*draw.choice((*ways, ["train", "--resume", str(run), "--device", "cpu"])), *more]
    return Case(f"{arguments[0]} after: {told}", lambda: command(arguments))
