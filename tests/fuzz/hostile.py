"""Run folders with pipes, devices, deep nesting, huge sizes and weights of every precision; own code that slips."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import torch
from safetensors.torch import save

from fuzz import commands, values
from fuzz.commands import SMALL, trained
from fuzz.harness import Case, command
from looped.files import digest, read_tensors

DTYPES = (
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64),
    *(torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
)
HUGE = (10**6, 10**7, 10**9, 10**12)
"""Sizes that are numbers like others, and that nobody can want: where there is memory for one, there is no time."""
SLIPS = (
    *("pass", "return 1, 2", "return {}['x']", "raise SystemError('\\x1b[31m')", "return self.sample()", "1 / 0"),
    *("return super().sample(**{**sizes, 'n': sizes['n'] + 1})", "return super().sample(**{**sizes, 'batch': 1})"),
    *("return super().sample(**sizes).xs", "raise ValueError('two\\nlines')", "raise KeyError", "raise MemoryError"),
    *("raise StopIteration", "import no_such_module", "assert False", "return super().sample(**sizes).to(torch.int8)"),
    *("return super().sample(**sizes).to(torch.complex64)", "return torch.empty(10 ** 13)", "raise RecursionError"),
    *("sizes['generator'].manual_seed(0); return super().sample(**sizes)", "return self.label_variance.x"),
)
FIELDS = (
    *("", "label_variance = 'one'", "label_variance = float('nan')", "label_variance = 0.0", "label_variance = None"),
    *("label_variance = property(lambda self: {}[1])", "d = property(lambda self: 1 / 0)", "error = None"),
    *("error = lambda self, outputs, prompt: outputs.mean()", "__repr__ = lambda self: '\\x1b[31m[/nope]'"),
)
OWN_TASK = """
import torch
from looped import LinearRegression
class Own(LinearRegression):
    {}
    def sample(self, **sizes):
        {}
"""
OWN_THINGS = """
import torch
from looped import LinearRegression
from looped.tasks.shifts import Shift
class Own(Shift):
    def {}(self, *more, **named):
        {}
def own(*more):
    {}
"""
THINGS = (
    *("return more[0].ys * 0.5", "return more[0].xs.sum(-1)"),  # these two are right, as baselines
    *("pass", "return 1", "return None", "return more", "raise KeyError('\\x1b[31m')", "return more[0].ys[:1]"),
    *(
        "return more[0].ys * float('nan')",
        "return more[0].ys.int()",
        "return torch.zeros(3)",
        "1 / 0",
        "return more[0]",
    ),
    *("return more[0].ys[..., None].expand(-1, -1, 3)", "raise SystemExit(3)", "return torch.empty(10 ** 13)"),
)


def hostile(draw: random.Random, folder: Path) -> Case:
    """One of these in a run folder, at a command that opens it."""
    run = shutil.copytree(trained(), folder / "run")
    return draw.choice((_special, _special, _nested, _size, _dtype, _own_task, _own_task, _name))(draw, folder, run)


def sizes(draw: random.Random, folder: Path) -> Case:
    """Numbers that nobody can want, as an option or as a field."""
    run, huge = shutil.copytree(trained(), folder / "run"), str(draw.choice(HUGE))
    option = draw.choice(("--prompts", "--points", "--loops", "--seed"))
    ways: tuple[tuple[str, ...], ...] = (
        ("evaluate", str(run), draw.choice((option, "--max-loops")), huge),
        ("diagnose", str(run), draw.choice((option, "--starts")), huge),
        ("identify", str(run), draw.choice((option, "--max-steps")), huge),
        ("compare", str(run), str(shutil.copytree(run, folder / "other")), draw.choice((option, "--max-loops")), huge),
        ("keep", str(run), "--out", str(folder / "models"), "--prompts", huge),
        ("check", str(run), draw.choice(("--points", "--seed")), huge),
        ("construct", draw.choice(("gao24.thm4.1", "gatmiry24.thm5", "chen24.thm4.2")), draw.choice(SIZES), huge),
        ("sweep", "yang24.linear", *SMALL, "--out", str(folder / "runs"), draw.choice(("--seeds", "--workers")), huge),
        ("train", "yang24.linear", *SMALL, "--out", str(folder / "runs"), "--seeds", huge),
        ("train", "yang24.linear", *SMALL, "--out", str(folder / "runs"), "--set", f"{draw.choice(LARGE)}={huge}"),
        ("train", "yang24.linear", *SMALL, "--out", str(folder / "runs"), "--set", f"{draw.choice(LARGE)}={huge}"),
    )
    arguments = draw.choice(ways)
    small = arguments[0] in ("evaluate", "diagnose", "identify", "compare") and "--prompts" not in arguments
    arguments = [*arguments, *(("--prompts", "8") if small else ())]
    # a seed is a name and no size: any that torch can tell apart is right
    return Case(" ".join(arguments), lambda: command(arguments))


SIZES = ("--d", "--examples", "--loops")
LARGE = ("model.width", "model.layers", "model.loops", "model.positions", "model.heads", "train.batch", "train.points")


def own_things(draw: random.Random, folder: Path) -> Case:
    """A baseline, a shift, an algorithm or a figure of the user's own that does something else than it should."""
    run, module = shutil.copytree(trained(), folder / "run"), f"own_{draw.getrandbits(64):x}"
    body, method = draw.choice(THINGS), draw.choice(("xs", "ys", "queries", "__init__", "noise", "variance"))
    file = folder / f"{module}.py"
    file.write_text(OWN_THINGS.format(method, body, body))
    few = ("--prompts", "8", "--device", "cpu")
    ways: tuple[tuple[str, ...], ...] = (
        ("evaluate", str(run), *few, "--baseline", f"{file}:own"),
        ("evaluate", str(run), *few, "--shift", f"{file}:Own"),
        ("compare", str(run), str(shutil.copytree(run, folder / "other")), *few, "--baseline", f"{file}:own"),
        ("identify", str(run), *few, "--max-steps", "1", "--algorithm", f"{file}:own"),
        ("train", f"{file}:own", "--out", str(folder / "runs"), "--quiet"),
        ("check", f"{file}:own"),
        ("reproduce", f"{file}:own", "--out", str(folder / "results")),
        ("keep", f"{file}:own", "--out", str(folder / "models")),
    )
    arguments = draw.choice(ways)
    return Case(f"{' '.join(arguments)}: {body}", lambda: command(arguments))


def texts(draw: random.Random, folder: Path) -> Case:
    """Escapes, markup and other scripts as names of everything that has a name, on the line and in files."""
    run, text = shutil.copytree(trained(), folder / "run"), draw.choice(UGLY) + draw.choice(("", "x"))
    typed = text.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    (folder / "sweep.json").write_text(json.dumps({"recipe": text, "grid": {text: [text]}, text: 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({text: torch.ones(2), "_read_in.weight": torch.ones(4, 3), "x": text}, folder / "state.pt")
    data = json.loads((run / "config.json").read_text())
    holder = draw.choice((data, data["task"], data["model"], data["train"]))
    holder[draw.choice((*holder, text))] = text
    edited = draw.random() < 0.4
    if edited:
        (run / "config.json").write_text(json.dumps(data))
    facts = {"step": 1, "loss": 1.0, "error": 1.0, text: 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(facts) + "\n")
    (run / "provenance.json").write_text(json.dumps({"command": text, "device": text, text: text, "commit": text}))
    page = ("--out", str(folder / "page.html"))
    few = ("--prompts", "4", "--device", "cpu")
    ways: tuple[tuple[str, ...], ...] = (
        ("evaluate", str(run), *few, "--name", typed),
        ("evaluate", str(run), *few, "--set", typed),
        ("evaluate", str(run), *few, "--shift", typed),
        ("report", str(run), *page),
        ("list", typed),
        ("list", "figures", "--results", typed),
        ("train", "--resume", str(run), "--device", "cpu"),
        ("train", typed),
        ("train", "yang24.linear", *SMALL, "--set", f"name={typed}", "--out", str(folder / "runs")),
        ("sweep", "--file", str(folder / "sweep.json"), "--list", "--out", str(folder / "runs")),
        ("sweep", "yang24.linear", *SMALL, f"{typed}=1", "--list", "--out", str(folder / "runs")),
        ("import", str(folder / "state.pt"), "--heads", "2", "--out", str(folder / "in")),
        ("keep", str(run), *few, "--name", typed, "--out", str(folder / "models")),
        ("compare", str(run), typed, *few),
        ("diagnose", str(run), *few, "--starts", "1"),
        ("reproduce", typed, "--out", str(folder / "results")),
        ("verify", typed),
        ("construct", typed),
        ("check", typed),
        ("explore", typed, *page),
        ("queue", typed),
        ("bench", typed),
        (typed, typed),
    )
    arguments = draw.choice(ways)
    if arguments[0] in commands.LARGE and typed == "--":
        arguments = (*arguments, typed)  # `--` alone names nothing: that would be all of their work
    told = f"{' '.join(map(repr, arguments))} with {text[:40]!r}{' in its config' * edited}"
    return Case(told, lambda: command(arguments))


UGLY = (
    *("\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\u202etxt", "\r", "\b\b", "[/nope]", "[bold]x[/]", ":smile:"),
    *("<script>1</script>", "\u2028", "\ufeff", "\u200b", "日本語", "é", "%s%d{}", "\ud800", "\x7f", "a" * 5000),
    *("../../x", "/etc/passwd", "-", "--", "~", "nan", "'\"`$(id)", "\n\nlooped: fine", "[link=file:///etc]x[/]"),
)


def _special(draw: random.Random, folder: Path, run: Path) -> Case:
    file = draw.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
    if draw.random() < 0.2:
        file = file.parent if file.parent != run else run / "checkpoints"
        shutil.rmtree(file)
    else:
        file.unlink()
    if draw.random() < 0.5:
        os.mkfifo(file)
    else:
        file.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/proc", "/dev/null", "/dev/tty", file.name, "/")))
    return _opened(draw, folder, run, f"{file.name} is special")


def _nested(draw: random.Random, folder: Path, run: Path) -> Case:
    deep: object = None
    for _ in range(draw.choice((90, 300, 900))):
        deep = {"a": deep} if draw.random() < 0.5 else [deep]
    return _with_field(draw, folder, run, deep, "nested")


def _size(draw: random.Random, folder: Path, run: Path) -> Case:
    return _with_field(draw, folder, run, draw.choice((*HUGE, 10**15, 10**30, 10**400)), "huge")


def _with_field(draw: random.Random, folder: Path, run: Path, value: object, how: str) -> Case:
    data, part = json.loads((run / "config.json").read_text()), draw.choice(("model", "train", "task"))
    field = draw.choice([name for name in data[part] if name not in ("type", "seed", "log_every", "checkpoint_every")])
    data[part][field] = value
    (run / "config.json").write_text(json.dumps(data))
    return _opened(draw, folder, run, f"{part}.{field}: {how}")


def _dtype(draw: random.Random, folder: Path, run: Path) -> Case:
    (file,) = (run / "checkpoints").iterdir()
    tensors, about = read_tensors(file)
    name, dtype = draw.choice([name for name in tensors if name.startswith("model/")]), draw.choice(DTYPES)
    with warnings.catch_warnings():  # torch says that a complex part is lost
        warnings.simplefilter("ignore")
        tensors[name], text = tensors[name].to(dtype), json.dumps(about)
    file.write_bytes(save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))
    return _opened(draw, folder, run, f"{name} is {dtype}")


def _own_task(draw: random.Random, folder: Path, run: Path) -> Case:
    body, field = draw.choice(SLIPS), draw.choice(FIELDS) if draw.random() < 0.3 else ""
    if field and draw.random() < 0.7:
        body = "return super().sample(**sizes)"
    module = f"own_{draw.getrandbits(64):x}"
    (folder / f"{module}.py").write_text(OWN_TASK.format(field, body))
    data = json.loads((run / "config.json").read_text())
    data["task"]["type"] = f"{module}:Own"
    (run / "config.json").write_text(json.dumps(data))
    return _opened(draw, folder, run, f"own task: {field} {body}", "--code", str(folder / f"{module}.py"))


def _name(draw: random.Random, folder: Path, run: Path) -> Case:
    text = draw.choice(values.WORDS)
    (run / "provenance.json").write_text(json.dumps({"command": text, "device": text}))
    return _opened(draw, folder, run, f"provenance says {text!r}")


def _opened(draw: random.Random, folder: Path, run: Path, told: str, *more: str) -> Case:
    few = ("--prompts", "4", "--device", "cpu")
    ways: tuple[tuple[str, ...], ...] = (
        ("evaluate", str(run), *few),
        ("evaluate", str(run), *few),
        ("diagnose", str(run), *few, "--starts", "1"),
        ("identify", str(run), "--prompts", "8", "--loops", "1", "--max-steps", "1"),
        ("compare", str(run), "explorer.curves", *few),
        ("check", str(run)),
        ("explore", str(run), "--out", str(folder / "page.html")),
        ("keep", str(run), *few, "--out", str(folder / "models")),
        ("report", str(run), "--out", str(folder / "page.html")),
        ("train", "--resume", str(run), "--device", "cpu"),
        ("train", "--resume", str(run), "--device", "cpu"),
        ("train", "yang24.linear", *SMALL, "--start", str(run), "--out", str(folder / "runs"), "--quiet"),
    )
    arguments = [*draw.choice(ways)]
    arguments += more if arguments[0] != "report" and "--start" not in arguments else ()
    return Case(f"{arguments[0]} after: {told}", lambda: command(arguments))
