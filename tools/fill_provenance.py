"""Give older results the provenance that new ones have: `python tools/fill_provenance.py results`.

Everything is read from the result files themselves: the seeds from the table, the seconds of trainings from the list of
trainings. A result that took no time, since another figure of the same command had trained its models, says which one,
with the seconds of all that figure's work: what of it were these trainings was not recorded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from looped.files import read_json, write_json
from looped.studies.study import training_facts
from looped.studies.table import Table

AT_ONCE_S = 1.0
"""A result of trained models that took less had them already."""
PLACE = ("command", "commit", "device")

Content = dict[str, Any]


def main(folder: Path) -> None:
    """Rewrite every result that lacks something, and print what came."""
    results = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    for path, content in results.items():
        origin = content["provenance"]
        facts: Content = {"seeds": Table.from_data(content["table"]).seeds()}
        if "trainings" in origin:
            facts |= training_facts(with_batches(origin["trainings"]))
        elif "training" in content["settings"]["measure"] and origin["seconds"] < AT_ONCE_S:
            facts["trained_by"] = trained_by(content, list(results.values()))
        added = {key: value for key, value in facts.items() if origin.get(key) != value}
        if added:
            write_json(path, {**content, "provenance": {**origin, **facts}})
            shown = {key: value for key, value in added.items() if key != "trainings"}
            print(f"{path.name}: {json.dumps(shown)}")


def with_batches(trainings: list[Content]) -> list[Content]:
    """Trainings of one commit whose seconds agree to the millisecond were one batch, in which each has a part."""
    counts = Counter((training["commit"], training["train_seconds"]) for training in trainings)
    batches = [counts[training["commit"], training["train_seconds"]] for training in trainings]
    return [
        {"models_in_one_batch": count, **training} if count > 1 else training
        for training, count in zip(trainings, batches, strict=True)
    ]


def cases(content: Content) -> set[str]:
    """The models of a result; on a GPU both settings of a model of cheng24 are trained at once."""
    ignored = {"protocol"} if "NVIDIA" in content["provenance"]["device"] else set()
    return {
        json.dumps({key: value for key, value in case.items() if key not in ignored})
        for _, case in content["settings"]["cells"]
    }


def trained_by(content: Content, results: list[Content]) -> Content:
    """The result of the same command and training that has all models of this one, and fewest others."""
    training = content["settings"]["measure"]["training"]
    sources = [
        other
        for other in results
        if all(other["provenance"][key] == content["provenance"][key] for key in PLACE)
        and other["provenance"]["seconds"] >= AT_ONCE_S
        and other["settings"]["measure"].get("training") == training
        and cases(content) <= cases(other)
    ]
    if not sources:
        raise ValueError(f"no result trained the models of {content['study']} at scale {content['scale']}.")
    source = min(sources, key=lambda other: len(cases(other)))
    name = f"{source['study']}.{source['scale']}"
    return {"result": name, **{key: source["provenance"][key] for key in (*PLACE, "seconds")}}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
