"""A sweep: many trials that can be stopped, killed and continued together, and one table of their results.

OUT/NAME-HASH/                 every trial's run folder, as `looped train` makes it
OUT/sweeps/NAME-HASH/          sweep.json (the trials) and table.csv, and table.parquet where pyarrow is installed
"""

import contextlib
import csv
import hashlib
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from looped.config import flat
from looped.experiment import is_plain
from looped.files import check_folder, finite, read_json, write_bytes, write_json
from looped.training.executors import Executor, Pool, Tell, run_pool, run_stacks
from looped.training.folder import Folder
from looped.training.provenance import command
from looped.training.stopping import Interrupted, NotSaved
from looped.training.trials import Standing, Trial, standing

FORMAT = 1
"""Version of sweep.json."""
Row = dict[str, Any]


def sweep(
    trials: Sequence[Trial],
    executor: Executor | None = None,
    *,
    tell: Tell = lambda index, standing: None,
    begin: Callable[[], object] = lambda: None,
) -> list[Standing]:
    """Train every trial that is not finished; returns where all of them stand in the end, in their order.

    The standing shows runs that diverge, fail, or belong to another process; the others go on. Ctrl-C and SIGTERM save
    and raise `Interrupted`; the next call goes on. `tell` gets every change; `begin` is called when the executor is
    accepted and training begins.
    """
    executor = executor or Executor()
    stands = [standing(trial.path) for trial in trials]

    for index, stand in enumerate(stands):
        tell(index, stand)
    left = {index: trials[index] for index, stand in enumerate(stands) if stand.status != "finished"}

    def update(index: int, stand: Standing) -> None:
        stands[index] = stand
        tell(index, stand)

    pool = _pool(executor) if left and executor.kind != "stack" else None
    begin()
    try:
        if pool is not None:
            run_pool(left, executor, update, pool)
        elif left:
            run_stacks(trials, left, executor, update)
    except Interrupted as error:
        done = sum(stand.status == "finished" for stand in stands)
        reason = f"{error} " if isinstance(error, NotSaved) else ""
        raise type(error)(
            f"{reason}stopped with {done} of {len(trials)} trials finished; everything is saved in "
            f"{trials[0].path.parent}. Go on with the same command."
        ) from None
    return stands


def table(trials: Sequence[Trial], stands: Sequence[Standing] | None = None) -> list[Row]:
    """One row a trial: name, hash, status, the fields varied, last metrics, time, path, then the whole config."""
    stands = [standing(trial.path) for trial in trials] if stands is None else stands
    rows = []
    for trial, stand in zip(trials, stands, strict=True):
        # names interned: all rows have the same ones
        data = flat(trial.experiment.to_data(complete=True))
        config = {sys.intern(key): _cell(value) for key, value in data.items()}
        name, _, hashed = trial.path.name.rpartition("-")
        facts: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            facts = Folder(trial.path, "").provenance()
        row = {
            "name": name,
            "hash": hashed,
            "status": stand.status,
            "seed": config.get("train.seed"),
            **{key: config.get(key, _cell(value)) for key, value in trial.fields.items() if key != "train.seed"},
            "step": stand.step,
            **{key: stand.metrics.get(key) for key in ("loss", "error", "gradient_norm", "rate")},
            **{key: facts.get(key) for key in ("train_seconds", "threads")},
            "lost_workers": stand.lost,
            "message": stand.message,
            "path": str(trial.path),
            **{key: value for key, value in config.items() if key not in ("format", "name", *trial.fields)},
        }
        rows.append(finite(row))
    return rows


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


def sweep_folder(trials: Sequence[Trial]) -> Path:
    """Where a sweep's table lies: a folder named by its trials."""
    runs = " ".join(sorted(trial.path.name for trial in trials))
    name = f"{trials[0].experiment.name}-{hashlib.sha256(runs.encode()).hexdigest()[:10]}"
    return trials[0].path.parent / "sweeps" / name


def save_sweep(trials: Sequence[Trial]) -> Path:
    """Record which trials a sweep has; returns its folder."""
    folder = sweep_folder(trials)
    rows = [{"run": trial.path.name, "steps": trial.steps, "fields": dict(trial.fields)} for trial in trials]
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
    """The trials of a saved sweep: the fields varied, the run folder, and where it stands now."""
    data = read_json(folder / "sweep.json")
    try:
        rows = [(row["fields"], row["run"]) for row in data["points"]]  # the name that older sweeps have
        if data["format"] != FORMAT or not all(isinstance(fields, dict) and is_plain(run) for fields, run in rows):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{folder / 'sweep.json'} is damaged or of another version. Sweep again.") from None
    runs = folder.parent.parent
    return [(fields, runs / run, standing(runs / run)) for fields, run in rows]


def _pool(executor: Executor) -> Pool:
    if executor.kind == "ray":
        from looped.training.cluster import Cluster

        return Cluster(executor)
    from looped.training.processes import Processes

    return Processes(executor)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _parquet(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("a Parquet table needs pyarrow: pip install 'looped[cluster]'. Or write .csv.") from None
    arrays = {}
    for column in columns:
        values = [row.get(column) for row in rows]
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1:  # a column has one type
            common = float if kinds == {int, float} else str
            values = [None if value is None else common(value) for value in values]
        arrays[column] = pyarrow.array(values)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), buffer)
    return buffer.getvalue()
