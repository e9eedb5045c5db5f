"""The parts of the page about figures of the papers and about theorems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from looped.report import plots
from looped.report.drawing import Figures, blank
from looped.report.numbers import duration, number
from looped.reproduce import DAMAGE, Result, damaged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERDICTS = {
    "holds": "good",
    "holds as corrected": "good",
    "fails as printed": "note",
    "fails in the proof": "note",
    "fails": "bad",
}
"""Every verdict on a theorem with its colour, in the order in which they are counted."""
CLAIM_VERDICTS = {"holds": "good", "fails": "bad", "undecided": "note", "not judged": "note"}

WORDS = ("name", "paper", "statement", "verdict", "form", "instance", "remark")
"""The text fields in a row of `looped verify --json`."""


def result_figure(result: Result) -> Figure:
    """The drawing of a reproduced figure; numbers that were read and cannot be drawn are damaged."""
    try:
        with blank((6.4, 3.6)) as canvas:
            result.study.draw(canvas, result.table)
    except DAMAGE as error:
        if result.measured:
            raise
        raise damaged(result.path, error) from None
    return canvas


def result_section(result: Result, figures: Figures) -> dict[str, Any]:
    """A reproduced figure: the drawing, the paper's claims beside it, and where the numbers come from."""
    study, origin = result.study, result.provenance
    try:
        source = f"{origin.get('device')}, commit {origin.get('commit')}, {duration(origin.get('seconds', 0.0))}"
        places = Counter((training["device"], training["commit"]) for training in origin.get("trainings", []))
        for (device, commit), count in places.items():
            source += f"; {count} model{'s' * (count != 1)} trained on {device}, commit {commit}"
        source += "; measured with settings that this study no longer has" if result.outdated else ""
    except DAMAGE as error:
        raise damaged(result.path, error) from None
    claims = [{**claim.to_data(), "kind": CLAIM_VERDICTS[claim.verdict]} for claim in result.claims]
    return {
        "id": f"{study.name}.{result.scale}",
        "name": study.name,
        "paper": study.name.partition(".")[0],
        "short": study.name.partition(".")[2],
        "title": study.title,
        "scale": result.scale,
        "svg": figures(result_figure(result), f"{study.name}: {study.title}"),
        "claims": claims,
        "origin": source,
        "command": str(origin.get("command", "")),
    }


def theorems_section(rows: Sequence[Mapping[str, Any]], figures: Figures) -> dict[str, Any]:
    """Rows of `looped verify --json` by paper, with small plots and counts of the verdicts."""
    papers: dict[str, list[dict[str, Any]]] = {}
    try:
        for row in rows:
            papers.setdefault(row["paper"], []).append(_theorem(row, figures))
        counts = Counter(row["verdict"] for row in rows)
        seconds = duration(sum(row["seconds"] for row in rows))
    except DAMAGE as error:
        raise ValueError(f"these are not the rows of `looped verify --json` ({error!r}). Print them again.") from None
    return {
        "total": len(rows),
        "seconds": seconds,
        "counts": [
            (counts[name], name if counts[name] == 1 else name.replace("s", "", 1), kind if counts[name] else "none")
            for name, kind in VERDICTS.items()
            if counts[name] or name == "fails"
        ],
        "papers": list(papers.items()),
    }


def _theorem(row: Mapping[str, Any], figures: Figures) -> dict[str, Any]:
    strange = [key for key in WORDS if not isinstance(row.get(key, ""), str)]
    if strange:
        raise ValueError(f"`{strange[0]}` must be text; got {row[strange[0]]!r}")
    plot, margin, holds = row.get("plot"), row.get("margin"), row["verdict"].startswith("holds")
    title = f"{row['name']}: measured {number(row['measured'])} against a bound of {number(row['bound'])}."
    return {
        **{key: row[key] for key in ("name", "statement", "measured", "bound", "verdict")},
        "form": "" if row.get("form", "as stated") == "as stated" else row["form"],
        **{key: row.get(key, "") for key in ("instance", "remark")},
        "bound_is": "tolerance" if row.get("bound_is") == "numerical tolerance" else "",
        "relation": {True: "≥ ", False: "≤ "}.get(row.get("at_least"), ""),  # type: ignore[arg-type]
        "margin": number(margin, 2) if margin is not None else "∞" if holds else "–",
        "kind": VERDICTS.get(row["verdict"], "bad"),
        "svg": figures(plots.bound_figure(plot), title) if plot else "",
    }
