"""Read configs of format 1, which the version before wrote, as format 2.

Format 2 has one class per optimiser, adds `train.depth` to the model's loops, calls an experiment without training a
`Setup`, and has no fields that nothing read. `tools/carry_over.py` rewrites files with this, once.
"""

from collections.abc import Mapping
from typing import Any

CARRIED_OVER = "carried_over"
"""Key of a rewritten config file: its hash `from` before and `to` after, since checkpoints carry the one before."""

OPTIMIZERS = {
    "adam": ("Adam", ("muon_learning_rate", "weight_decay")),
    "adamw": ("AdamW", ("muon_learning_rate",)),
    "muon": ("Muon", ("weight_decay",)),
}
"""By `kind` the class of today, and the fields that this kind never read."""
COUNTS = {
    "looped.functional.schedules:RandomDepth": ("low", "high"),
    "looped.functional.schedules:Staircase": ("start", "stop"),
    "looped.functional.schedules:Ramp": ("start", "stop"),
}
"""The fields of each schedule that were numbers of loops."""


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """A config of format 1 as one of format 2 that trains the same; what is damaged stays, for the reader to refuse."""
    fields = {**data, "format": 2, "task": _task(data.get("task"))}
    train = fields.pop("train", None)
    if train is None:
        return {**fields, "type": "looped.experiment:Setup"}
    if isinstance(train, dict):
        train = dict(train)
        if isinstance(optimizer := train.get("optimizer"), dict):
            train["optimizer"] = _optimizer(optimizer)
        if isinstance(depth := train.get("depth"), dict):
            model = fields.get("model")
            train["depth"] = _depth(depth, model.get("loops", 1) if isinstance(model, dict) else 1)
    return {**fields, "train": train}


def _task(data: Any) -> Any:
    """A `MixedProcess` without the `kernel` that it never read, also inside a shifted task."""
    if not isinstance(data, dict):
        return data
    unread = ("kernel",) if data.get("type") == "looped.tasks.gaussian_process:MixedProcess" else ()
    fields = {key: value for key, value in data.items() if key not in unread}
    return {**fields, "task": _task(fields["task"])} if "task" in fields else fields


def _optimizer(data: Mapping[str, Any]) -> dict[str, Any]:
    kind = data.get("kind", "adam")
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        return dict(data)
    name, unread = OPTIMIZERS[kind]
    fields = {key: value for key, value in data.items() if key not in ("kind", *unread)}
    return {**fields, "type": f"looped.experiment:{name}"}


def _depth(data: Mapping[str, Any], loops: Any) -> dict[str, Any]:
    """Numbers of loops as differences from the model's `loops`."""
    counts = COUNTS.get(str(data.get("type")))
    if counts is None:
        raise ValueError(
            f"`train.depth.type` is `{data.get('type')}`, and its loops cannot be made relative to `model.loops`. "
            'Rewrite the schedule so that it is added to `model.loops`, and set `"format": 2` in the config.'
        )
    shifted = {key: data[key] - loops for key in counts if type(data.get(key)) is type(loops) is int}
    return {**data, **shifted}
