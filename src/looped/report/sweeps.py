"""The part of the page about a sweep: one line a point, with the fields in which the points differ."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from looped.report.numbers import number
from looped.training.sweep import read_sweep


def sweep_section(folder: Path) -> dict[str, Any]:
    """A sweep's points as they stand now, in the order asked; the smallest error of those that finished stands out."""
    found = read_sweep(folder)
    names = dict.fromkeys(name for fields, _, _ in found for name in fields)
    varied = [name for name in names if len({json.dumps(fields.get(name)) for fields, _, _ in found}) > 1]
    counts = Counter(one.status for _, _, one in found)
    errors = [one.metrics.get("error") for _, _, one in found if one.status == "finished"]
    best = min((error for error in errors if error is not None and error == error), default=None)
    rows = [
        {
            "run": path.name.rpartition("-")[2],
            "values": [_text(fields.get(name)) for name in varied],
            "status": one.status,
            "step": f"{one.step:,}",
            "best": best is not None and one.status == "finished" and one.metrics.get("error") == best,
            **{key: number(one.metrics[key]) if key in one.metrics else "–" for key in ("loss", "error")},
        }
        for fields, path, one in found
    ]
    return {
        "name": folder.name,
        "said": ", ".join(f"{count} {status}" for status, count in counts.items()),
        "columns": varied,
        "rows": rows,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
