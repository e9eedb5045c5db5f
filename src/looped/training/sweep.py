"""A sweep: many points as one piece of work that can be stopped, killed and repeated, and one table of what came out.

OUT/NAME-HASH/                 every point's run folder, as `looped train` makes it
OUT/sweeps/NAME-HASH/          sweep.json (the points) and table.csv, and table.parquet where pyarrow is installed
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from looped.files import check_folder, finite, read_json, write_bytes, write_json
from looped.training.executors import Executor, Pool, Tell, run_pool, run_stacks, stacks_of
from looped.training.points import Point, Standing, standing
from looped.training.provenance import command
from looped.training.stopping import Interrupted, NotSaved

FORMAT = 1
"""Version of sweep.json."""
Row = dict[str, Any]


def sweep(
    points: Sequence[Point],
    executor: Executor | None = None,
    *,
    tell: Tell = lambda index, standing: None,
    begin: Callable[[], object] = lambda: None,
) -> list[Standing]:
    """Train every point that is not finished; where each stands in the end, in their order.

    Runs that diverge, fail, or belong to another process are told by their standing, and the others go on. Ctrl-C and
    SIGTERM save and raise `Interrupted`; calling again goes on. `tell` hears every change, `begin` that the executor
    is accepted and training begins.
    """
    executor = executor or Executor()
    stands = [standing(point.path) for point in points]

    for index, one in enumerate(stands):
        tell(index, one)
    left = unfinished(points, stands, whole_stacks=executor.kind == "stack")
    chosen = [points[index] for index in left]

    def heard(index: int, one: Standing) -> None:
        stands[left[index]] = one
        tell(left[index], one)

    pool = _pool(executor) if chosen and executor.kind != "stack" else None
    begin()
    try:
        if pool is not None:
            run_pool(chosen, executor, heard, pool)
        elif chosen:
            run_stacks(chosen, executor, heard)
    except Interrupted as error:
        done = sum(one.status == "finished" for one in stands)
        said = f"{error} " if isinstance(error, NotSaved) else ""
        raise type(error)(
            f"{said}stopped with {done} of {len(points)} points finished; what was done is saved in "
            f"{points[0].path.parent}. Go on with the same command."
        ) from None
    return stands


def unfinished(points: Sequence[Point], stands: Sequence[Standing], *, whole_stacks: bool) -> list[int]:
    """Indices of the points to train; of a stack of models all, since it may have to go back to a common step."""
    left = {index for index, one in enumerate(stands) if one.status != "finished"}
    if whole_stacks and left:
        stacks = stacks_of([point.experiment for point in points])
        left = {index for stack in stacks if left.intersection(stack) for index in stack}
    return sorted(left)


def table(points: Sequence[Point], stands: Sequence[Standing] | None = None) -> list[Row]:
    """One row a point: name, hash, status, the fields asked, last metrics, time, path, then the whole config."""
    stands = [standing(point.path) for point in points] if stands is None else stands
    rows = []
    for point, one in zip(points, stands, strict=True):
        config = dict(_flat(point.experiment.to_data(complete=True)))
        name, _, hashed = point.path.name.rpartition("-")
        metrics = {key: one.metrics.get(key) for key in ("loss", "error", "gradient_norm", "rate")}
        facts = _provenance(point.path)
        rows.append(
            {
                "name": name,
                "hash": hashed,
                "status": one.status,
                "seed": config.get("train.seed"),
                **{key: config.get(key, _cell(value)) for key, value in point.fields.items() if key != "train.seed"},
                "step": one.step,
                **metrics,
                "train_seconds": facts.get("train_seconds"),
                "threads": facts.get("threads"),
                "lost_workers": one.lost,
                "message": one.message,
                "path": str(point.path),
                **{key: value for key, value in config.items() if key not in ("format", "name", *point.fields)},
            }
        )
    return finite(rows)


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write the table as .parquet, .csv or .json."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if path.suffix == ".json":
        data = (json.dumps([{key: row.get(key) for key in columns} for row in rows], indent=2) + "\n").encode()
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
    elif path.suffix == ".parquet":
        data = _parquet(columns, rows)
    else:
        raise ValueError(f"a table is .parquet, .csv or .json; got {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    return importlib.util.find_spec("pyarrow") is not None


def sweep_folder(points: Sequence[Point]) -> Path:
    """Where a sweep's table lies: a folder named by its points."""
    runs = " ".join(sorted(point.path.name for point in points))
    name = f"{points[0].experiment.name}-{hashlib.sha256(runs.encode()).hexdigest()[:10]}"
    return points[0].path.parent / "sweeps" / name


def save_sweep(points: Sequence[Point]) -> Path:
    """Write down which points a sweep has; its folder."""
    folder = sweep_folder(points)
    rows = [{"run": point.path.name, "steps": point.steps, "fields": dict(point.fields)} for point in points]
    check_folder(folder, "the sweep")
    write_json(folder / "sweep.json", {"format": FORMAT, "command": command(), "points": rows})
    return folder


def save_tables(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write a sweep's table into its folder: CSV always, Parquet where pyarrow is installed."""
    files = [folder / "table.csv", *([folder / "table.parquet"] if has_parquet() else [])]
    for file in files:
        write_table(file, rows)
    return files


def sweep_folders(path: Path) -> list[Path]:
    """`path` itself if it is a sweep's folder, else the sweeps of the runs in it."""
    if (path / "sweep.json").is_file():
        return [path]
    return sorted(file.parent for file in (path / "sweeps").glob("*/sweep.json"))


def read_sweep(folder: Path) -> list[tuple[Mapping[str, Any], Path, Standing]]:
    """The points of a saved sweep: the fields asked, the run folder, and where it stands now."""
    data = read_json(folder / "sweep.json")
    try:
        found = [(row["fields"], row["run"]) for row in data["points"]]
        if data["format"] != FORMAT or not all(isinstance(fields, dict) and _plain(run) for fields, run in found):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{folder / 'sweep.json'} is damaged or of another version. Sweep again.") from None
    runs = folder.parent.parent
    return [(fields, runs / run, standing(runs / run)) for fields, run in found]


def _pool(executor: Executor) -> Pool:
    if executor.kind == "ray":
        from looped.training.cluster import Cluster

        return Cluster(executor)
    from looped.training.processes import Processes

    return Processes(executor)


def _plain(name: Any) -> bool:
    """A run's name is a name, not a way out of the folder."""
    return isinstance(name, str) and name.strip(".") != "" and not set(name) & set("/\\\0:")


def _provenance(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path / "provenance.json")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _flat(data: Mapping[str, Any], where: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted names and plain values."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", _cell(value)


def _cell(value: Any) -> Any:
    """A value that a table can hold."""
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _parquet(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("a Parquet table needs pyarrow: pip install 'looped[cluster]'. Or write .csv.") from None
    made = {}
    for column in columns:
        values = [row.get(column) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        if kinds == {int, float}:
            values = [None if value is None else float(value) for value in values]
        elif len(kinds) > 1:  # a column has one type
            values = [None if value is None else str(value) for value in values]
        made[column] = pyarrow.array(values)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(made), buffer)
    return buffer.getvalue()
