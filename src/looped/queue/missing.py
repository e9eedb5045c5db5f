"""The trainings and measurements that figures lack at a scale, each once, in the order in which they are wanted.

RUNS/NAME-HASH/                       a training; `diverged` in it says why the queue leaves it alone
RUNS/results/NAME.SCALE.json          a result that the queue measured; a copy goes to RESULTS
RUNS/readings/RUNHASH-KEY.json.gz     what a figure reads from a training (`studies/readings.py`): no weights are needed
RUNS/home.json                        the trainings whose weights or readings are at home; bring it along
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from looped.experiment import Experiment, training
from looped.files import read_json
from looped.recipes import experiment as recipe_at
from looped.recipes import recipes
from looped.studies.measures import Curves
from looped.studies.readings import Wanted
from looped.studies.study import Study
from looped.training.grid import kept_by_hash
from looped.training.kept import is_kept, locate, own_results
from looped.training.trials import standing

ORDER = (
    *("gao24.fig2", "yang24.fig10b", "yang24.fig3", "yang24.fig4", "yang24.fig12", "yang24.fig6", "yang24.fig15"),
    *("yang24.fig16", "gao24.fig5", "yang24.fig5", "yang24.fig14", "yang24.fig8", "yang24.fig7", "gao24.fig3"),
    *("gao24.fig4", "yang24.fig11", "yang24.fig9", "yang24.fig13", "yang24.fig17", "yang24.table2", "gao24.table"),
)
"""Figures that come first; the others follow in the order of the papers."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures at one scale, and where their trainings and results lie."""

    studies: Sequence[Study]
    """The most wanted first."""
    scale: str
    """smoke, cpu or paper."""
    runs: Path
    """Run folders."""
    results: Path
    """Results of figures."""

    @property
    def home_file(self) -> Path:
        """The record of the trainings that were brought home."""
        return self.runs / "home.json"

    def home(self) -> dict[str, dict[str, Any]]:
        """Every training that was brought home, by run folder: device, seconds, and the keys of its readings.

        Where `weights` is false, only readings came.
        """
        record = read_json(self.home_file) if self.home_file.exists() else {}
        if not isinstance(record, dict) or not all(isinstance(facts, dict) for facts in record.values()):
            raise ValueError(f"{self.home_file} is damaged: it is no record of trainings. Restore it from a copy.")
        return record

    def result(self, study: Study) -> dict[str, Any]:
        """The result of a figure as measured with today's settings; empty where there is none."""
        folders = [self.results, self.runs / "results", *([shipped] if (shipped := own_results()) else [])]
        files = [path for folder in folders if (path := folder / f"{study.name}.{self.scale}.json").exists()]
        key = study.settings_hash(self.scale)
        return next((data for file in files if (data := read_json(file)).get("settings_hash") == key), {})

    def trainings(self, study: Study) -> list[Experiment]:
        """Every training that a figure asks for; a family, which trains while it is measured, is not among them.

        The weights that a training starts from come before it, if a recipe trains them.
        """
        measure = study.measure(self.scale)
        seeds = getattr(measure, "seeds", None) or (getattr(measure, "seed", 0),)
        cells = [cell for cell in study.cells(self.scale).values() if isinstance(cell, Experiment)]
        runs = [training(cell, seed=seed) for cell in cells for seed in seeds]
        starts = {run.train.start for run in runs} - {None}
        known = (recipe_at(name, self.scale) for name in recipes()) if starts else ()
        return [*(run for run in known if run.folder in starts), *runs]

    def readings(self, study: Study) -> dict[str, list[Wanted]]:
        """What a figure reads from its trainings, by run folder; nothing where it needs their weights."""
        measure, by_run = study.measure(self.scale), {}
        for entry in measure.readings(study.cells(self.scale), self.runs) if isinstance(measure, Curves) else ():
            by_run.setdefault(entry.experiment.folder, []).append(entry)
        return by_run


def figures(studies: Sequence[Study], scale: str, *, runs: Path, results: Path) -> Figures:
    """The studies that have this scale, in order."""
    places = {name: place for place, name in enumerate(ORDER)}
    chosen = [study for study in studies if scale in study.scales]
    chosen.sort(key=lambda study: places.get(study.name, len(places)))
    return Figures(studies=chosen, scale=scale, runs=runs, results=results)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training, or the measurement of one figure."""

    name: str
    """The run folder, or the figure."""
    figures: tuple[str, ...]
    """The figures that ask for it and are not measured."""
    what: Experiment | Study
    """What is to be trained or measured."""
    status: str
    """waiting, stopped (a part is saved), diverged, or ready to be measured."""
    step: int = 0
    """Steps done and saved."""
    message: str = ""
    """Why it diverged, or what it waits for."""


def missing(asked: Figures) -> list[Entry]:
    """What the figures lack, in order: the trainings of a figure, then its measurement."""
    wanted = {study.name: asked.trainings(study) for study in asked.studies if not asked.result(study)}
    users: dict[str, list[str]] = {}
    for name, runs in wanted.items():
        for run in runs:
            users.setdefault(run.folder, []).append(name)
    shipped = kept_by_hash({run.hash for runs in wanted.values() for run in runs})
    entries: dict[str, Entry] = {}
    for study in asked.studies:
        if study.name in wanted:
            absent = _absent(study, wanted[study.name], asked, shipped, users)
            entries |= {entry.name: entry for entry in absent if entry.status != "at home"}
            counts = Counter("at home" if entry.status == "at home" else "to train" for entry in absent)
            message = ", ".join(f"{count} {where}" for where, count in counts.items())
            status = "waiting" if absent else "ready"
            entries[study.name] = Entry(
                name=study.name, figures=(study.name,), what=study, status=status, message=message
            )
    return list(entries.values())


def _absent(
    study: Study, runs: Sequence[Experiment], asked: Figures, shipped: Any, users: dict[str, list[str]]
) -> list[Entry]:
    """The trainings of a figure that are neither finished here, nor kept models, nor read here already.

    Those whose weights, or what this figure reads from them, are at home are `at home`.
    """
    home, readings, absent = asked.home(), asked.readings(study), []
    for run in runs:
        path, wanted = asked.runs / run.folder, readings.get(run.folder, [])
        stand = standing(path)
        if stand.status != "finished" and run.hash not in shipped and not all_read(wanted):
            reason = note.read_text().strip() if (note := path / "diverged").exists() else ""
            at_home = has_weights(facts := home.get(run.folder)) or _all_known(wanted, facts)
            status = "at home" if at_home else "diverged" if reason else stand.status
            waits = "" if can_start(run, asked.runs) else f"waits for {run.train.start}"
            about = {"status": status, "step": stand.step, "message": reason or waits}
            absent.append(Entry(name=run.folder, figures=tuple(dict.fromkeys(users[run.folder])), what=run, **about))
    # weights that others start from must be here while one of those others is to be trained; then nobody misses them
    needed = {entry.what.train.start for entry in absent if entry.status != "at home"}
    starts = {run.train.start for run in runs} - needed - readings.keys()
    return [
        replace(entry, status="waiting") if entry.status == "at home" and entry.name in needed else entry
        for entry in absent
        if entry.name not in starts
    ]


def can_start(experiment: Experiment, runs: Path) -> bool:
    """Whether the weights that a training starts from are here, and finished."""
    if experiment.train.start is None:
        return True
    path = locate(experiment.train.start, beside=runs)
    return is_kept(path) or standing(path).status == "finished"


def all_read(wanted: Sequence[Wanted]) -> bool:
    """Whether there is something to read, and all readings are here."""
    return bool(wanted) and all(entry.file.exists() for entry in wanted)


def _all_known(wanted: Sequence[Wanted], facts: Mapping[str, Any] | None) -> bool:
    """Whether there is something to read, and all readings are at home."""
    return bool(wanted) and {entry.key for entry in wanted} <= {*(facts or {}).get("readings", ())}


def has_weights(facts: Mapping[str, Any] | None) -> bool:
    """Whether the weights of a training came home, as the record has it."""
    return facts is not None and facts.get("weights", True)
