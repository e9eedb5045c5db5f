"""Recipes are functions that return an `Experiment`: those of the papers, found by import, and the user's own."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import looped.papers
from looped.config import load_code, nearest
from looped.experiment import SCALES, Experiment, Setup, trainable

Recipe = Callable[..., Experiment]


def recipes() -> dict[str, Recipe]:
    """Every recipe of every paper, by name: `yang24.linear` is `linear` in looped/papers/yang24."""
    by_name: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(looped.papers.__path__):
        module = importlib.import_module(f"looped.papers.{info.name}")
        for name, thing in vars(module).items():
            defined_here = inspect.isfunction(thing) and thing.__module__ == module.__name__
            returned = thing.__annotations__.get("return") if defined_here else None
            if returned in (Experiment, "Experiment") and not name.startswith("_"):
                by_name[f"{info.name}.{name}"] = thing
    return by_name


def experiment(name: str, scale: str | None = None) -> Experiment:
    """The experiment of a recipe: `yang24.linear`, or `my_file.py:my_recipe` of the user's own."""
    return trainable(setup(name, scale))


def setup(name: str, scale: str | None = None) -> Setup:
    """What a recipe gives: an experiment, or where only task and model are asked for, a user's `Setup`."""
    if ".py" in name:
        path, colon, function = name.partition(":")
        recipe = getattr(load_code(path), function, None) if colon else None
        if not callable(recipe):
            raise ValueError(f"a recipe of your own reads `file.py:function`; got `{name}`, which is no such function.")
    elif (recipe := recipes().get(name)) is None:
        raise ValueError(f"no recipe is called `{name}`. {nearest(name, recipes())}")
    if scale is not None and scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}; got `{scale}`. {nearest(scale, SCALES)}")
    if scale is not None and "scale" not in inspect.signature(recipe).parameters:
        raise ValueError(f"`{name}` comes in one scale only; leave `--scale` out.")
    try:
        result = recipe(scale) if scale is not None else recipe()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")
        raise ValueError(f"`{name}` gives no experiment: {reason}.") from error
    if not isinstance(result, Setup):
        raise ValueError(f"`{name}` must give an `Experiment`; got {type(result).__name__}.")
    return result
