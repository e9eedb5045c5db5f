"""The trainings and measurements that figures lack at a scale, each once, in the order in which they are wanted.

RUNS/NAME-HASH/                       a training; `failed` in it says why the queue leaves it alone
RUNS/results/NAME.SCALE.json          a result that the queue measured
RESULTS/NAME.SCALE.json               all results, those included
RESULTS/paper_runs/home.json          what `looped queue --unpack` brought home; it travels with the sources
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from looped.experiment import Experiment
from looped.files import read_json
from looped.recipes import experiment as recipe_at
from looped.recipes import recipes
from looped.studies.study import Study
from looped.training.grid import kept_by_hash
from looped.training.kept import own_results
from looped.training.trials import standing

YANG_AND_GAO = (
    "gao24.fig2 yang24.fig10b yang24.fig3 yang24.fig4 yang24.fig12 yang24.fig6 yang24.fig15 yang24.fig16 gao24.fig5 "
    "yang24.fig5 yang24.fig14 yang24.fig8 yang24.fig7 gao24.fig3 gao24.fig4 yang24.fig11 yang24.fig9 yang24.fig13 "
    "yang24.fig17 yang24.table2 gao24.table"
)
ORDER = {name: place for place, name in enumerate(YANG_AND_GAO.split())}
"""Figures that come first; the others follow in the order of the papers."""
Status = Literal["waiting", "stopped", "failed", "ready"]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where trainings and results lie."""

    runs: Path
    """Run folders."""
    results: Path
    """Results of figures."""

    @property
    def measured(self) -> Path:
        """Results that the queue measured itself."""
        return self.runs / "results"

    @property
    def home_file(self) -> Path:
        """The record of what was brought home."""
        return self.results / "paper_runs" / "home.json"

    def home(self) -> dict[str, dict[str, Any]]:
        """`runs`: the provenance of every training at home; `results`: the settings of every result at home."""
        record = read_json(self.home_file) if self.home_file.exists() else {}
        if not isinstance(record, dict) or not all(isinstance(part, dict) for part in record.values()):
            raise ValueError(f"{self.home_file} is damaged: it holds no records. Restore it from a copy.")
        return {"runs": {}, "results": {}, **record}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training, or the measurement of one figure."""

    name: str
    """The run folder, or the figure."""
    figures: tuple[str, ...]
    """The figures that lack it."""
    experiment: Experiment | None = None
    """What is to be trained; None for a measurement."""
    study: Study | None = None
    """What is to be measured; None for a training."""
    status: Status
    """waiting (for its turn, or for other trainings), stopped (a part is saved), failed, or ready to be measured."""
    step: int = 0
    """Steps done and saved."""
    message: str = ""
    """Why it failed, or what it waits for."""


def trainings(study: Study, scale: str) -> list[Experiment]:
    """Every training that a figure's measure asks for; families and figures without a training have none here."""
    measure = study.measure(scale)
    seeds = getattr(measure, "seeds", None) or (getattr(measure, "seed", 0),)
    return [
        replace(cell, train=replace(cell.train, seed=seed))
        for cell in study.cells(scale).values()
        if isinstance(cell, Experiment)
        for seed in seeds
    ]


def has_result(study: Study, scale: str, places: Places) -> bool:
    """Whether the figure is measured with today's settings, here or in the results that come with the sources."""
    folders = [places.results, places.measured, *([shipped] if (shipped := own_results()) else [])]
    files = [path for folder in folders if (path := folder / f"{study.name}.{scale}.json").exists()]
    return any(read_json(file).get("settings_hash") == study.settings_hash(scale) for file in files)


def missing(studies: Sequence[Study], scale: str, places: Places) -> list[Entry]:
    """What the figures lack, in order: the trainings of a figure, then its measurement."""
    lacking = [study for study in in_order(studies, scale) if not has_result(study, scale, places)]
    wanted = {study.name: {run.folder: run for run in trainings(study, scale)} for study in lacking}
    starts = _starts(scale, [run for runs in wanted.values() for run in runs.values()])
    home = places.home()["runs"]
    hashes = {run.hash for runs in wanted.values() for run in runs.values()}
    kept = kept_by_hash(hashes | {run.hash for run in starts.values()})
    entries: dict[str, Entry] = {}
    for study in lacking:
        absent = []
        for run in _first_stages(wanted[study.name].values(), starts):
            status = standing(places.runs / run.folder)
            if status.status == "finished" or run.hash in kept:
                continue
            absent.append(run.folder)
            if run.folder in home:
                continue
            failed = places.runs / run.folder / "failed"
            entries.setdefault(
                run.folder,
                Entry(
                    name=run.folder,
                    figures=tuple(name for name, runs in wanted.items() if run.folder in runs) or (study.name,),
                    experiment=run,
                    status="failed" if failed.exists() else "stopped" if status.step else "waiting",
                    step=status.step,
                    message=failed.read_text().strip() if failed.exists() else "",
                ),
            )
        here = sum(name not in home for name in absent)
        waits = f"{here} to train" if here else f"the weights of {len(absent)} trainings are at home" if absent else ""
        status = "waiting" if absent else "ready"
        entries[study.name] = Entry(name=study.name, figures=(study.name,), study=study, status=status, message=waits)
    return list(entries.values())


def in_order(studies: Sequence[Study], scale: str) -> list[Study]:
    """The studies that have this scale, the most wanted first."""
    chosen = [study for study in studies if scale in study.scales]
    if not chosen:
        raise ValueError(f"none of these figures has the scale `{scale}`. Take smoke, cpu or paper.")
    return sorted(chosen, key=lambda study: ORDER.get(study.name, len(ORDER)))


def _starts(scale: str, asked: Sequence[Experiment]) -> dict[str, Experiment]:
    """The trainings that others start from, by folder: looked for among the figures' own and the recipes'."""
    names = {run.train.start for run in asked} - {None}
    if not names:
        return {}
    known = {run.folder: run for run in [*asked, *(recipe_at(name, scale) for name in recipes())]}
    return {name: known[name] for name in names if name in known}


def _first_stages(runs: Any, starts: Mapping[str, Experiment]) -> Iterator[Experiment]:
    """Every training, after the one that it starts from."""
    for run in runs:
        if run.train.start in starts:
            yield starts[run.train.start]
        yield run
