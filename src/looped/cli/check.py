"""`looped check`."""

from dataclasses import asdict
from typing import Annotated

import typer

from looped.cli.options import Code, Device, Json, Points, Quiet, RecipeScale, load_user_code, pick_device
from looped.cli.output import show
from looped.evaluation.check import check as check_model
from looped.experiment import Experiment
from looped.functional.streams import seeded
from looped.recipes import setup as find_setup
from looped.training.kept import locate
from looped.training.run import Run


def check(
    name: Annotated[str, typer.Argument(help="`my_file.py:my_recipe`, a run folder, a kept model, or a recipe.")],
    scale: RecipeScale = None,
    points: Points = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh weights and of the prompts.")] = 0,
    code: Code = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Does the model keep its promises? Exit 1 if a fault is found; each finding is one line with its remedy.

    Measured on the model and on a copy trained for 20 steps: shapes, randomness, gradients, whether an answer reads its
    label or later pairs, whether loops do something and read the prompt, whether predicting zero scores 1.

    Example: `looped check my_file.py:my_recipe`
    """
    if ".py" not in name and scale is None and locate(name).exists():
        run = Run.open(name, load_user_code(code))
        setup, model = run.setup, run.model(pick_device(device))
        points = run.points if points is None else points
    else:
        setup = find_setup(name, scale)
        with seeded(seed, "model"):
            model = setup.model.build().to(pick_device(device))
    windows = {}
    if isinstance(setup, Experiment):
        windows = {"grad": setup.train.grad, "window": setup.train.window}
        points = setup.train.points if points is None else points
    checked = check_model(model, setup.task, points=points, seed=seed, **windows)
    faults = len(checked.faults)
    summary = f"{faults} fault{'s' * (faults != 1)} in {len(checked.findings)} findings about {setup.name}."
    show({"name": name, **asdict(checked)}, str(checked), summary, json=json, quiet=quiet)
    if faults:
        raise typer.Exit(1)
