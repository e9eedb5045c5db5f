"""The parts of the page about a run's diagnosis and about the algorithms that `identify` named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from looped.files import read_json
from looped.report.numbers import number


def findings_section(folder: Path) -> dict[str, Any]:
    """What `looped diagnose` and `looped identify` saved in a run folder; None for what was not asked."""
    return {
        "diagnosis": _read(folder / "diagnose.json", _diagnosis),
        "identification": _read(folder / "identify.json", _identification),
    }


def _read(file: Path, section: Any) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        return section(read_json(file))
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        command = file.stem.partition(".")[0]
        raise ValueError(f"{file} is damaged ({error!r}). Run `looped {command} {file.parent}` again.") from None


def _diagnosis(data: Mapping[str, Any]) -> dict[str, Any]:
    shares = data.get("shares", {})  # diagnoses of older versions have none
    return {
        "verdict": str(data["verdict"]),
        "prompts": int(data["prompts"]),
        "loops": int(data["loops"]),
        "shares": [
            (name, f"{share['mean']:.0%}", f"{share['low']:.0%} to {share['high']:.0%}")
            for name, share in shares.items()
        ],
    }


def _identification(data: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for loop in data["loops"]:
        best = loop["best"]
        rows.append(
            {
                "loop": int(loop["loop"]),
                "name": str(loop.get("name", "" if best is None else best["algorithm"])),
                "steps": "" if best is None else str(best["steps"] or ""),
                "distance": ""
                if best is None
                else f"{number(best['distance'])} [{number(best['low'])}, {number(best['high'])}]",
            }
        )
    return {"prompts": int(data["prompts"]), "rows": rows}
