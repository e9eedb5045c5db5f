"""Rewrite result files of version 1 (nested data) as version 2 (tables): `python tools/carry_results.py results`.

Numbers stay as they are. A result is taken to have the settings that its figure had in the last version 1, which a test
of that version held for all kept results. Prints every verdict that changed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from looped.files import read_json, write_json
from looped.reproduce import FORMAT, studies

PAPERS = ("chen24", "cheng24", "gao24", "gatmiry24", "yang24")


def convert(path: Path, converters: dict, known: dict) -> list[str]:
    """Rewrite one file; a line for every verdict that changed."""
    old = read_json(path)
    if not isinstance(old, dict) or old.get("format", 1) == FORMAT or "figure" not in old:
        return []
    study, scale = known[old["figure"]], old["scale"]
    table = converters[study.name](old["data"], study, scale)
    claims = study.judge(table, scale)
    write_json(path, {
        "format": FORMAT,
        "study": study.name,
        "title": study.title,
        "scale": scale,
        "settings": study.settings(scale),
        "settings_hash": study.settings_hash(scale),
        "claims": [claim.to_data() for claim in claims],
        "provenance": old["provenance"],
        "table": table.to_data(),
    })  # fmt: skip
    before = {claim["id"]: (claim["verdict"], claim["value"]) for claim in old["claims"]}
    lines = []
    for claim in claims:
        verdict, value = before.pop(claim.id, ("not there", None))
        if verdict != claim.verdict:
            lines.append(f"{claim.id} ({scale}): {verdict} ({value}) -> {claim.verdict} ({claim.value}); {claim.note}")
    return lines + [f"{name} ({scale}): {verdict} -> gone" for name, (verdict, _) in before.items()]


def main(folder: Path) -> None:
    """Rewrite every result of a folder."""
    sys.path.insert(0, str(Path(__file__).parent))
    converters = {}
    for paper in PAPERS:
        if (Path(__file__).parent / f"results_{paper}.py").is_file():
            converters |= importlib.import_module(f"results_{paper}").CONVERTERS
    known = studies()
    for path in sorted(folder.glob("*.json")):
        if path.name.partition(".")[0] in PAPERS and read_json(path).get("figure") in converters:
            print("\n".join(convert(path, converters, known)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
