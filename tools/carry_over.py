"""Rewrite what the version before wrote, configs of format 1, as configs of format 2; no number changes.

    python tools/carry_over.py runs/*-* results/models/*

A run folder or kept model gets its config rewritten, and a run folder the name that its config has now. Checkpoints
stay as they are: the config says which hash they carry. A run that started from another (`train.start`) follows it
where both are given, and so do the sweeps beside the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from looped.experiment import Experiment, Setup, hash_of
from looped.files import locked, read_json, write_json
from looped.papers import yang24
from looped.training.kept import is_kept
from looped.upgrade import CARRIED_OVER


def main(names: list[str]) -> int:
    """Carry over every path given; exit code 2 and one line where one cannot be."""
    try:
        folders = {Path(name).name: Path(name) for name in names if (Path(name) / "config.json").is_file()}
        # a figure's settings name this run, which is too large to be kept
        new_names = {"yang24.sparse_12_layers-6d0f4ac06d": yang24.sparse_12_layers("paper").folder}
        for folder in folders:
            carry_run(folder, folders, new_names)
        for parent in {folder.parent for folder in folders.values()}:
            for file in parent.glob("sweeps/*/sweep.json"):
                carry_sweep(file, new_names)
    except (ValueError, OSError) as error:
        print(f"carry_over: {error}", file=sys.stderr)
        return 2
    return 0


def carry_run(name: str, folders: dict[str, Path], new_names: dict[str, str]) -> None:
    """Rewrite the config of one run folder, after the folder that it started from; note its new name."""
    path = folders[name]
    data = read_json(path / "config.json") if path.exists() else None  # else it has been renamed already
    if not isinstance(data, dict) or data.get("format") != 1:
        return
    setup = Setup.from_data(data)
    if isinstance(setup, Experiment):
        start = Path(setup.train.start or "").name
        if start in folders:
            carry_run(start, folders, new_names)
        setup = with_start(setup, new_names)
    earlier = hash_of(data)
    target = path.with_name(setup.folder if name == f"{setup.name}-{earlier}" else name)
    if target != path and target.exists():
        raise ValueError(f"{target} is there already, so {path} cannot take its name. Move one of them away.")
    with nullcontext() if is_kept(path) else locked(path / "lock", str(path)):
        write_json(path / "config.json", setup.to_data() | {CARRIED_OVER: {"from": earlier, "to": setup.hash}})
        path.rename(target)
    new_names[name] = target.name
    print(f"{path} -> {target.name}")


def with_start(experiment: Experiment, new_names: Mapping[str, str]) -> Experiment:
    """The experiment, starting from the same run as before under the name that the run has now."""
    start = Path(experiment.train.start or "")
    if start.name not in new_names:
        return experiment
    return replace(experiment, train=replace(experiment.train, start=str(start.with_name(new_names[start.name]))))


def carry_sweep(file: Path, new_names: Mapping[str, str]) -> None:
    """Name the runs of a sweep as they are called now."""
    data = read_json(file)
    for row in data["points"]:
        row["run"] = new_names.get(row["run"], row["run"])
    write_json(file, data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
