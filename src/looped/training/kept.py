"""Kept models: trained models that come with looped, as small run folders, found by name.

In a checkout of the sources they lie in results/models, in an installed package in looped/kept, which lists all of
them and has the weights of the small ones.

NAME/config.json                  the experiment
NAME/checkpoints/*.safetensors    the weights that an evaluation reads, and nothing to train on from
NAME/metrics.jsonl                some lines of the training
NAME/provenance.json              command, commit, device and seconds of the training
NAME/kept.json                    what was measured when it was kept (`looped.keeping`); no other run folder has it
"""

import os
from pathlib import Path

from looped.config import nearest
from looped.experiment import is_plain
from looped.files import log

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of this library."""
PRETRAINED = "model.safetensors"
"""The weights in a folder of `looped.save_pretrained`, which has no checkpoints."""
LOCAL = Path("results/models")
"""Where `looped keep` puts them, in the folder it is called from."""


def own_results(package: Path = PACKAGE) -> Path | None:
    """The results folder of the checkout this library runs from; None for an installed library."""
    root = package.parents[1]
    return root / "results" if package.parent.name == "src" and (root / "pyproject.toml").is_file() else None


def store(package: Path = PACKAGE) -> Path:
    """The folder of the kept models."""
    results = own_results(package)
    return package / "kept" if results is None else results / "models"


def results_with_claims(package: Path = PACKAGE) -> Path:
    """The folder of the results whose verdicts come with looped; in an installed package they have no tables."""
    return own_results(package) or package / "results"


def is_kept(path: Path) -> bool:
    """Whether a run folder is a kept model: it has a record, even a damaged one."""
    return os.path.isfile(path / "kept.json")  # false also for names that no file can have


def kept_models() -> dict[str, Path]:
    """The folder of every kept model, by name: those of `LOCAL` come before those of the library."""
    models: dict[str, Path] = {}
    for folder in (LOCAL, store()):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if is_plain(path.name) and path.name[0] != "." and is_kept(path):
                models.setdefault(path.name, path)
    return dict(sorted(models.items()))


def locate(path: str | Path, *, beside: Path | None = None) -> Path:
    """The run folder that `path` names: an existing path, else a kept model, else a run in the folder `beside`.

    Where there is none of these, the path itself.
    """
    path = Path(path)
    if os.path.exists(path):
        return path
    near = path if beside is None or not is_plain(str(path)) else beside / path  # a name leads nowhere else
    folder = kept_models().get(str(path), near if os.path.exists(near) else path)
    shipped = store() / path
    if folder.parent == LOCAL and is_kept(shipped) and not os.path.samefile(folder, shipped):
        log.warning(f"looped: {path} is the model in {LOCAL}, not the one of that name that comes with looped.")
    return folder


def hint(path: Path) -> str:
    """The end of an error message about a path that is no run folder: the nearest kept model, if any."""
    known = {} if os.path.exists(path) else kept_models()
    return f", or name a kept model. {nearest(str(path), known)}" if known else "."


def refuse_missing_weights(path: Path) -> None:
    """Say where the weights of a kept model are that an installed package lists and does not carry."""
    if is_kept(path):
        raise ValueError(
            f"the weights of {path.name} are too large for the installed package. They are in "
            f"results/models/{path.name}/checkpoints of looped's repository: take a checkout, or copy them to "
            f"{path / 'checkpoints'}."
        )


def refuse_training(path: Path) -> None:
    """Refuse to train on in the folder of a kept model, or of `looped.save_pretrained`."""
    if is_kept(path) or os.path.isfile(path / PRETRAINED):
        raise ValueError(
            f"{path} is kept without its optimiser, so it cannot be resumed. Start from its weights instead: "
            f"`looped train RECIPE --set train.start={path.name if path.name in kept_models() else path}`."
        )
