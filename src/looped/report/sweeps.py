"""The part of the page about a sweep: one line per point, with the fields in which the points differ."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from looped.evaluation.diagnosis import Estimate
from looped.report.drawing import Figures
from looped.report.numbers import number
from looped.report.sweep_figure import sweep_figure
from looped.sweep_results import best_points, read_results, varied_fields
from looped.training.sweep import read_sweep
from looped.training.trials import Standing

MOST = 200
"""Points in a table of the page."""


def sweep_section(folder: Path, figures: Figures) -> dict[str, Any]:
    """A sweep's points with their status, in the order asked; the smallest error of the finished ones stands out.

    Of many points those that did not finish come first into the table, then those of least error.
    """
    points = read_sweep(folder)
    varied = varied_fields([fields for fields, _, _ in points])
    counts = Counter(standing.status for _, _, standing in points)
    errors = [standing.metrics.get("error") for _, _, standing in points if standing.status == "finished"]
    best = min((error for error in errors if error is not None and error == error), default=None)
    places = sorted(range(len(points)), key=lambda place: _interest(points[place][2]))[:MOST]
    rows = [
        {
            "run": path.name.rpartition("-")[2],
            "values": [_text(fields.get(name)) for name in varied],
            "status": standing.status,
            "step": f"{standing.step:,}",
            "best": best is not None and standing.status == "finished" and standing.metrics.get("error") == best,
            **{key: number(standing.metrics.get(key)) for key in ("loss", "error")},
        }
        for fields, path, standing in (points[place] for place in sorted(places))
    ]
    return {
        "name": folder.name,
        "count": f"{len(points):,}",
        "left_out": f"{len(points) - len(rows):,}" if len(points) > len(rows) else "",
        "totals": ", ".join(f"{count} {status}" for status, count in counts.items()),
        "columns": varied,
        "rows": rows,
        "results": _results(folder, figures),
    }


def _interest(standing: Standing) -> tuple[bool, float]:
    error = standing.metrics.get("error", math.inf)
    return standing.status == "finished", math.inf if math.isnan(error) else error


def _results(folder: Path, figures: Figures) -> dict[str, Any] | None:
    """The points on held-out prompts, if they were judged."""
    results = read_results(folder)
    if results is None:
        return None
    rows = [
        {
            "name": ", ".join(f"{name}={_text(value)}" for name, value in point.fields.items()),
            "seeds": len(point.seeds),
            **{key: _interval(getattr(point, key)) for key in ("error", "late", "difference")},
            "verdict": point.verdict,
        }
        for point in (results.points[place] for place in sorted(best_points(results.points, MOST)))
    ]
    svg = figures(sweep_figure(results), f"Errors of the points of the sweep {folder.name}, and their curves by loop.")
    return {"prompts": results.prompts, "rows": rows, "svg": svg}


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    return f"{number(estimate.mean)} [{number(estimate.low)}, {number(estimate.high)}]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
