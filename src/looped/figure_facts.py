"""Where the figures stand: best result, verdicts, seeds, training time, published numbers, and what they still need."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from looped.experiment import SCALES, Experiment
from looped.files import read_json
from looped.queue.missing import Figures, figures, missing
from looped.queue.predictions import Predictions
from looped.reproduce import DAMAGE, damaged, studies
from looped.studies.expressions import NotMeasured
from looped.studies.study import Study, device_seconds
from looped.studies.table import Table

VERDICTS = ("holds", "fails", "undecided", "not judged", "not run")
"""Every verdict of a claim, in the order in which they are counted."""
IN_PRINT = re.compile(r"(\w+)\.(fig|table)(\d*)([a-z]?)")
"""The name of a figure or table of a paper: `fig10a`, `table2`. Any other, such as `fig2_noise`, is one of ours."""


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """A number in print beside ours."""

    what: str
    """What it is of: "12 layers, k = 20"."""
    number: str
    """The number as printed."""
    ours: str | None
    """Ours with its interval; None where it is not measured."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a figure lacks at the paper's scale."""

    what: str
    """How many trainings, and how many of them were brought home; empty where only the measurement is left."""
    minutes: float
    """Predicted minutes of the trainings whose time is known."""
    unknown: int
    """Trainings whose time is not known."""
    device: str
    """Where they would take so long."""

    def __str__(self) -> str:
        times = [minutes_text(self.minutes, self.device)] if self.minutes else []
        times += [f"? for {self.unknown}" if times else minutes_text(None, self.device)] if self.unknown else []
        return (self.what or "to be measured") + (f": {' and '.join(times)}" if times else "")


@dataclass(frozen=True, kw_only=True)
class FigureFacts:
    """Where one figure stands."""

    name: str
    """`paper.figure`."""
    title: str
    """What it shows."""
    in_print: bool
    """Whether it is a figure or table of the paper, and not one of ours beside them."""
    scale: str | None
    """The largest scale with a result of today's settings."""
    other_settings: list[str]
    """Larger scales whose result is of earlier settings."""
    verdicts: dict[str, int]
    """How many claims have each verdict at that scale."""
    seeds: int
    """Trained models of each cell, or trials; 0 without a result."""
    minutes: dict[str, float] | None
    """Minutes of training on each device; empty where nothing is trained, None where the result does not say."""
    published: list[PublishedNumber]
    """Numbers in print beside ours."""
    needs: Needs | None
    """What it lacks at the paper's scale; None where the result is there."""

    @property
    def scale_text(self) -> str:
        """`cpu (paper with other settings)`."""
        others = f" ({', '.join(self.other_settings)} with other settings)" if self.other_settings else ""
        return (self.scale or "none") + others

    @property
    def training_text(self) -> str:
        """`6.04 GPU min`; `none` where nothing is trained."""
        if self.scale is None or self.minutes is None:
            return "-" if self.scale is None else "? min"
        return ", ".join(minutes_text(minutes, device) for device, minutes in self.minutes.items()) or "none"


def minutes_text(minutes: float | None, device: str) -> str:
    """`6.04 GPU min`, `? GPU min`; the name of a CPU ends with its cores."""
    amount = "?" if minutes is None else f"{minutes:.3g}"
    return f"{amount} {'CPU' if device.endswith(' cores') else 'GPU'} min"


def counts_text(counts: Mapping[str, int]) -> str:
    """`3 hold, 1 fails`."""
    words = {"holds": "hold", "fails": "fail"}
    texts = [
        f"{count} {verdict if count == 1 else words.get(verdict, verdict)}"
        for verdict, count in counts.items()
        if count
    ]
    return ", ".join(texts) or "no claims"


def figure_facts(folders: Sequence[Path], *, runs: Path = Path("runs")) -> list[FigureFacts]:
    """Where every figure stands by the results in `folders`, the first first; what is in print comes first."""
    # cells are asked for many times, and take a second to make
    known = [replace(study, cells=cache(study.cells)) for study in studies().values()]
    known.sort(key=_place)
    facts = [_facts(study, folders) for study in known]
    home = next((folder for folder in folders if folder.is_dir()), folders[0])
    pairs = zip(known, facts, strict=True)
    lacking = [study for study, fact in pairs if "paper" in study.scales and fact.scale != "paper"]
    needs = _needs(figures(known, "paper", runs=runs, results=home), lacking)
    return [replace(fact, needs=needs.get(fact.name)) for fact in facts]


def at_paper_scale(facts: Sequence[FigureFacts]) -> tuple[int, int]:
    """How many figures and tables of the papers have a result at the paper's scale, and how many there are."""
    printed = [fact for fact in facts if fact.in_print]
    return sum(fact.scale == "paper" for fact in printed), len(printed)


def kept_result(folders: Sequence[Path], name: str, scale: str) -> tuple[Path, dict[str, Any]] | None:
    """The file of a figure's result and its content, from the first folder that has it."""
    files = (folder / f"{name}.{scale}.json" for folder in folders)
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise damaged(path, "it holds no object")
    return path, content


def _place(study: Study) -> tuple[bool, str, str, int, str]:
    """What is in print comes first: by paper, figures by number, then tables; the rest by name."""
    if (match := IN_PRINT.fullmatch(study.name)) is None:
        return True, study.name, "", 0, ""
    paper, kind, number, letter = match.groups()
    return False, paper, kind, int(number or 0), letter


def _facts(study: Study, folders: Sequence[Path]) -> FigureFacts:
    """All but what it needs."""
    other_settings = []
    for scale in (scale for scale in reversed(SCALES) if scale in study.scales):
        if (result := kept_result(folders, study.name, scale)) is None:
            continue
        path, content = result
        if content.get("settings_hash") != study.settings_hash(scale):
            other_settings.append(scale)
            continue
        try:
            return _from_result(study, scale, content, other_settings)
        except DAMAGE as error:
            raise damaged(path, error) from None
    return _from_result(study, None, {"claims": (), "provenance": {"seeds": ()}}, other_settings)


def _from_result(study: Study, scale: str | None, content: Mapping[str, Any], other_settings: list[str]) -> FigureFacts:
    verdicts = {claim["id"]: claim["verdict"] for claim in content["claims"]}
    counts = Counter(verdicts.get(f"{study.name}.{claim.name}", "not run") for claim in study.claims)
    origin = content["provenance"]
    return FigureFacts(
        name=study.name,
        title=study.title,
        in_print=IN_PRINT.fullmatch(study.name) is not None,
        scale=scale,
        other_settings=other_settings,
        verdicts={verdict: counts[verdict] for verdict in VERDICTS},
        seeds=len(origin["seeds"]),
        minutes={} if study.learned is None else _minutes(origin.get("trainings")),
        published=_published(study, content.get("table")),
        needs=None,
    )


def _minutes(trainings: Sequence[Mapping[str, Any]] | None) -> dict[str, float] | None:
    """Minutes on each device."""
    if trainings is None:
        return None
    minutes: defaultdict[str, float] = defaultdict(float)
    for training in trainings:
        device = training["device"] or "an unknown device"
        if not isinstance(training["run"], str) or not isinstance(device, str):
            raise TypeError(f"a training has the names of its run and device; got {training}")
        minutes[device] += device_seconds(training) / 60
    return dict(minutes)


def _published(study: Study, table: Any) -> list[PublishedNumber]:
    """The numbers in print that its claims name, each once, beside ours."""
    entries = {(entry.what, entry.number): entry.ours for claim in study.claims for entry in claim.published}
    measured = Table() if table is None or not entries else Table.from_data(table)
    numbers = []
    for (what, number), quantity in entries.items():
        try:
            ours = str(quantity.value(measured))
        except NotMeasured:
            ours = None
        numbers.append(PublishedNumber(what=what, number=number, ours=ours))
    return numbers


def _needs(asked: Figures, lacking: Sequence[Study]) -> dict[str, Needs]:
    """What each of the lacking figures needs; a training that several ask for counts for each of them."""
    if not lacking:
        return {}
    predictions = Predictions(asked, torch.device("cuda"))
    entries = missing(replace(asked, studies=lacking))
    needs = {}
    for study in (entry.what for entry in entries if isinstance(entry.what, Study)):
        trainings = [entry for entry in entries if isinstance(entry.what, Experiment) and study.name in entry.figures]
        seconds = [predictions.of(entry) for entry in trainings]
        is_family = study.learned is not None and not asked.trainings(study)
        [measurement] = [entry for entry in entries if entry.what is study]
        needs[study.name] = Needs(
            what="a family to train" if is_family else measurement.message,
            minutes=sum(known for known in seconds if known is not None) / 60,
            unknown=seconds.count(None) + is_family,
            device=predictions.device,
        )
    return needs
