"""Models in the format of the Hugging Face hub: a folder with config, weights and a model card.

FOLDER/config.json          the run's config, as data
FOLDER/model.safetensors    the weights that an evaluation reads
FOLDER/README.md            the model card: task, error, training, provenance, licence
FOLDER/provenance.json      command, commit, device and versions of the training

Every command reads such a folder like a run's. Only repositories on the hub need huggingface_hub and a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import looped
from looped.experiment import Experiment
from looped.files import visible, write_bytes, write_json, write_tensors
from looped.keeping import check, read_record
from looped.models.base import LoopedModel
from looped.training.kept import PRETRAINED, store
from looped.training.run import Run, load

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""`user/name` on the hub."""
FILES = ["config.json", PRETRAINED, "README.md", "provenance.json"]
"""What travels."""
PROMPTS = 256
"""On how many prompts the error of a run that is not kept is measured."""


def save_pretrained(
    run: Run | str | Path,
    folder: str | Path,
    *,
    best: bool = False,
    license: str | None = None,
    push_to_hub: str | None = None,
) -> Path:
    """Write a run's or a kept model's config, weights and model card into a folder; returns the folder.

    With `best` the weights are those of the lowest logged loss. `license` is an identifier such as "mit" for the card;
    the models that come with looped have looped's. `push_to_hub`, such as "user/name", also uploads the folder there.
    A model that is no run yet becomes one by `looped.save(model, task, path)`.
    """
    run, folder = run if isinstance(run, Run) else Run.open(run), Path(folder)
    api = None if push_to_hub is None else _hub("push_to_hub", push_to_hub).HfApi()
    if folder.exists() and not (folder / PRETRAINED).is_file() and any(_visible_names(folder)):
        raise ValueError(f"{folder} holds something else than a model. Name a new folder.")
    model = run.model(best=best)
    if license is None and run.path.resolve().parent == store().resolve():
        license = "apache-2.0"
    card = _card(run, model, _errors(run, model), name=push_to_hub or folder.name, license=license)
    checkpoint = run.best() if best else run.latest()
    weights = model.state_dict() if checkpoint is None else checkpoint.part("average") or checkpoint.part("model")
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / PRETRAINED, weights, {"looped": looped.__version__})
    write_json(folder / "provenance.json", run.provenance())
    write_bytes(folder / "README.md", card.encode())
    write_json(folder / "config.json", run.setup.to_data())
    if api is not None:
        api.create_repo(push_to_hub, exist_ok=True)
        api.upload_folder(repo_id=push_to_hub, folder_path=folder, allow_patterns=FILES)
    return folder


def from_pretrained(
    name: str | Path, *, revision: str | None = None, code: Sequence[Any] = (), device: torch.device | str = "cpu"
) -> LoopedModel:
    """The model of a folder that `save_pretrained` wrote, or of a repository `user/name` on the hub, ready to predict.

    `revision` is a commit, branch or tag of the repository. `code` holds your own classes or modules that the config
    names: a download can name none but looped's.
    """
    if not os.path.isdir(name) and REPOSITORY.fullmatch(str(name)):
        return load(_downloaded(str(name), revision), code=code, device=device)
    if revision is not None:
        raise ValueError(f"`revision` is of a repository on the hub, and {name} is none. Leave it out.")
    return load(name, code=code, device=device)


def _downloaded(repository: str, revision: str | None) -> Path:
    """The folder of a repository, from the hub or from what was downloaded before."""
    hub = _hub("there is no such folder here", repository)
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=FILES))
    except (OSError, ValueError) as error:  # what huggingface_hub and its network raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"there is no folder {repository} here, and the hub did not give it: {reason}") from error


def _hub(why: str, repository: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{why}: {repository} on the hub needs huggingface_hub: pip install 'looped[hub]'.") from None
    return huggingface_hub


def _visible_names(folder: Path) -> list[str]:
    """What a folder holds, without what begins with a dot, such as git's."""
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def _errors(run: Run, model: LoopedModel) -> tuple[int, list[tuple[int, int, float, float, float]]]:
    """How many prompts, and loops, examples, error, and its interval: as recorded, or measured now."""
    if run.kept:
        record = read_record(run.path)
        prompts, curves = record["prompts"], record["by_examples"]
    else:
        checked = check(model, run.setup.task, points=run.points, prompts=PROMPTS)
        prompts, curves = PROMPTS, {str(checked["loops"]): checked}
    rows = []
    for loops, curve in curves.items():
        last = len(curve["x"]) - 1
        places = sorted({round(share * last) for share in (0.25, 0.5, 1)})
        rows += [(int(loops), *(curve[key][at] for key in ("x", "mean", "low", "high"))) for at in places]
    return prompts, rows


def _card(
    run: Run,
    model: LoopedModel,
    errors: tuple[int, list[tuple[int, int, float, float, float]]],
    *,
    name: str,
    license: str | None,
) -> str:
    """The model card, as Markdown with the hub's metadata."""
    setup, (prompts, rows) = run.setup, errors
    lines = ["---", "library_name: looped", *([f"license: {license}"] if license else [])]
    lines += ["tags:", "- looped-transformer", "- in-context-learning", "---", "", f"# {setup.name}", ""]
    lines += [f"A looped transformer, `{type(model).__name__}`, with {model.num_parameters:,} parameters and"]
    lines += [f"{setup.model.loops} loops. Its answers come from the examples in its prompt; no weight changes.", ""]
    lines += ["```python", "import looped", "", f'model = looped.from_pretrained("{name}")', "```", ""]
    lines += ["## Task", "", f"`{setup.task!r}`", "", "## Error", ""]
    lines += [f"Mean over {prompts:,} fresh prompts of the task, with its 90% interval. Predicting zero scores 1.", ""]
    lines += ["| loops | examples | error | interval |", "| --- | --- | --- | --- |"]
    lines += [f"| {loops} | {x} | {mean:.3g} | {low:.3g} to {high:.3g} |" for loops, x, mean, low, high in rows]
    lines += ["", "## Training", ""]
    if isinstance(setup, Experiment):
        train = setup.train
        lines += [f"{train.steps:,} steps of {train.batch:,} prompts with {train.points} pairs each, by"]
        lines += [f"{type(train.optimizer).__name__}, seed {train.seed}. `config.json` has all of it.", ""]
    else:
        lines += ["None here: the weights were imported, constructed, or trained by another program.", ""]
    lines += ["## Provenance", "", "| | |", "| --- | --- |"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in run.provenance().items() if value is not None]
    lines += ["", "## Licence", "", f"{license}." if license else "Not stated.", ""]
    return visible("\n".join(lines))


def _cell(value: Any) -> str:
    """A value in a table: nothing in it may end the cell or the line."""
    return "`" + str(value).replace("\n", " ").replace("`", "'").replace("|", "\\|") + "`"
