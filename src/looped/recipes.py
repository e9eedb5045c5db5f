"""Recipes are functions that give an `Experiment`: those of the papers, found by import, and the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import looped.papers
from looped.config import nearest
from looped.experiment import Experiment

Recipe = Callable[..., Experiment]
SCALES = ("smoke", "cpu", "paper")


def recipes() -> dict[str, Recipe]:
    """Every recipe of every paper, by name: `yang24.linear` is `linear` in looped/papers/yang24."""
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(looped.papers.__path__):
        module = importlib.import_module(f"looped.papers.{info.name}")
        for name, thing in vars(module).items():
            own = inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
            if own and thing.__annotations__.get("return") in (Experiment, "Experiment"):
                found[f"{info.name}.{name}"] = thing
    return found


def experiment(name: str, scale: str | None = None) -> Experiment:
    """The experiment of a recipe: `yang24.linear`, or `my_file.py:my_recipe` of the user's own."""
    if ".py" in name:
        path, colon, function = name.partition(":")
        recipe = getattr(load_code(path), function, None) if colon else None
        if not callable(recipe):
            raise ValueError(
                f"a recipe of your own reads `file.py:function`; got `{name}`, and found no such function."
            )
    elif (recipe := recipes().get(name)) is None:
        raise ValueError(f"no recipe is called `{name}`. {nearest(name, recipes())}")
    takes_scale = "scale" in inspect.signature(recipe).parameters
    if scale is not None and scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}; got `{scale}`. {nearest(scale, SCALES)}")
    if scale is not None and not takes_scale:
        raise ValueError(f"`{name}` comes in one scale only; leave `--scale` out.")
    made = recipe(scale) if scale is not None else recipe()
    if not isinstance(made, Experiment):
        raise ValueError(f"`{name}` must give an `Experiment`; got {type(made).__name__}.")
    return made


def load_code(path: str | Path) -> ModuleType:
    """Import a file of the user's own: handing it over is what allows a config to name what it defines."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == path.resolve():
            return loaded
        raise ValueError(f"{path} is named like the module `{path.stem}`; rename the file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error
    return module
