"""Options that several commands share, and what they mean."""

import os
import shlex
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import torch
import typer

from looped.config import code_of
from looped.recipes import load_code

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors, and JSON with --json.")]
Out = Annotated[str, typer.Option("--out", help="Folder that holds the run folders.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change any field, such as train.steps=100.")
]
Code = Annotated[
    list[str] | None, typer.Option("--code", metavar="FILE.py", help="Your file with classes that the config names.")
]
Best = Annotated[bool, typer.Option("--best", help="Use the weights of the lowest logged loss, not the last ones.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU if there is one.")]
RunName = Annotated[
    str, typer.Argument(help="A run folder, or a kept model such as yang24.linear; `looped list models`.")
]
Recipe = Annotated[str | None, typer.Argument(help="`yang24.linear`, or `my_file.py:my_recipe`.")]
RecipeScale = Annotated[str | None, typer.Option(help="smoke (seconds), cpu (minutes) or paper (a GPU).")]
RunFolder = Annotated[str, typer.Option("--out", metavar="DIR", help="The run folder to write.")]
Points = Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")]
Prompts = Annotated[int, typer.Option(help="How many fresh prompts to use.")]
PromptSeed = Annotated[int, typer.Option(help="Seed of the prompts.")]

Yes = Annotated[bool, typer.Option("--yes", help="Begin it even if it takes more than an hour; a training: a year.")]

JudgedTask = Annotated[str | None, typer.Option("--task", metavar="RECIPE", help="Judge on the task of this recipe.")]
JudgedScale = Annotated[str | None, typer.Option("--scale", help="Scale of that recipe.")]
Shifts = Annotated[
    list[str] | None,
    typer.Option(
        "--shift",
        metavar="SHIFT",
        help="Shift the task: skewed, scaled-x:factor=2, my_file.py:MyShift; `looped list shifts`.",
    ),
]
OwnBaselines = Annotated[
    list[str] | None,
    typer.Option("--baseline", metavar="FILE.py:FUNCTION", help="Your own baseline: prompt -> predictions at every x."),
]


def own_thing(name: str, kind: type | tuple[type, ...], what: str) -> Any:
    """What `my_file.py:name` names, if it is of that kind; `what` says for people what it should be."""
    path, _, attribute = name.rpartition(":")
    thing = getattr(load_code(path), attribute, None) if path.endswith(".py") else None
    if not isinstance(thing, kind):
        raise ValueError(f"{what} of your own reads `my_file.py:NAME`; got `{name}`, which is none.")
    return thing


def own_baselines(names: list[str] | None) -> dict[str, Any]:
    """The user's baselines by the names of their functions."""
    return {name.rpartition(":")[2]: own_thing(name, FunctionType, "a baseline") for name in names or []}


def pick_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"`--device` must be cpu, cuda or auto; got `{name}`.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("`--device cuda` needs a GPU that torch can see; this machine has none. Use cpu.")
    return torch.device(name)


def results_folder(name: str) -> Path:
    """The results folder that the user named; a missing one is a typo, not an empty folder."""
    if not os.path.isdir(name):  # false also for names that no file can have
        raise ValueError(f"`--results` must name a folder that `looped reproduce` wrote to; there is no folder {name}.")
    return Path(name)


def load_user_code(files: list[str] | None) -> dict[str, Any]:
    """What the user's own files define, for configs to name."""
    return code_of(*(load_code(file) for file in files or []))


def code_options(files: list[str] | None) -> str:
    """The `--code` options that hand the same files to the next command."""
    return "".join(f" --code {shlex.quote(file)}" for file in dict.fromkeys(files or []))
