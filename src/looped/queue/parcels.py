"""Results, readings and trainings as files of at most 15 MB that travel, and back.

DIR/looped-DIGEST-00-of-03        a third of a tar archive; the digest is that of the whole archive
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from looped.experiment import TrainConfig
from looped.files import check_folder, log, one_line, read_json, write_bytes, write_json
from looped.queue.missing import Figures, all_read, has_weights
from looped.studies.readings import DAMAGE, Reading, key_of
from looped.training.folder import Checkpoint, checkpoint_path, read_checkpoint
from looped.training.run import Run
from looped.training.trials import standing

PIECE_BYTES, MAX_PIECES = 15_000_000, 4
"""A borrowed machine returns at most 8 files of 16 MiB, 64 MiB together, for each command."""
HALF_FROM = 2_000_000
"""Models of more parameters travel as float16."""
Record = dict[str, dict[str, Any]]
"""Facts about the trainings at home, by run folder."""
NAME = re.compile(r"looped-([0-9a-f]{10})-(\d\d)-of-(\d\d)")


def pack(asked: Figures, target: Path) -> list[str]:
    """Write what was finished here and is not at home yet; returns the names.

    Results come first, then readings, then what is known about finished trainings, then their weights, those that are
    not read yet first and small ones before large ones, then checkpoints of trainings under way. What has no room
    travels next time.
    """
    check_folder(target, "the archive")
    archive, packed, room = io.BytesIO(), [], PIECE_BYTES * MAX_PIECES - 20_000
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        for path in _parcels(asked, Path(folder)):
            size = sum(file.is_file() * file.stat().st_size + 2048 for file in [path, *path.rglob("*")])
            if size <= room:
                room -= size
                tar.add(path, f"{path.parent.name}/{path.name}")
                packed.append(path.name)
    content = archive.getvalue() if packed else b""
    pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
    digest = hashlib.sha256(content).hexdigest()[:10]
    for index, piece in enumerate(pieces):
        write_bytes(target / f"looped-{digest}-{index:02d}-of-{len(pieces):02d}", piece)
    return list(dict.fromkeys(packed))


def _parcels(asked: Figures, folder: Path) -> Iterator[Path]:
    """What may travel: files in `results` and `readings`, folders in `about` and `runs`."""
    yield from sorted((asked.runs / "results").glob(f"*.{asked.scale}.json"))
    home, names, files, unread = asked.home(), set(), set(), set()
    for study in asked.studies:
        names |= {run.folder for run in asked.trainings(study)}
        readings = asked.readings(study)
        unread |= {run.folder for run in asked.trainings(study) if not all_read(readings.get(run.folder, ()))}
        for run, entries in readings.items():
            known = home.get(run, {}).get("readings", ())
            files |= {entry.file for entry in entries if entry.key not in known and entry.file.exists()}
    yield from sorted(files)
    paths = [asked.runs / name for name in sorted(names) if not has_weights(home.get(name))]
    finished, stopped = (
        [Run.open(path) for path in paths if standing(path).status == status] for status in ("finished", "stopped")
    )
    diverged = [Run.open(path) for path in paths if (path / "diverged").exists() and (path / "config.json").exists()]
    yield from (_about(run, folder / "about") for run in [*finished, *diverged] if run.path.name not in home)
    finished.sort(key=lambda run: (run.path.name not in unread, _checkpoint_bytes(run)))
    yield from (_copy(run, folder / "runs") for run in [*finished, *stopped])


def _checkpoint_bytes(run: Run) -> int:
    return checkpoint_path(run.path, run.steps[-1]).stat().st_size


def _about(run: Run, folder: Path) -> Path:
    """A run folder with config, metrics and provenance alone."""
    copy = folder / run.path.name
    copy.mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "provenance.json", "diverged"):
        if (run.path / name).exists():
            shutil.copy(run.path / name, copy)
    return copy


def _copy(run: Run, folder: Path) -> Path:
    """A copy of the last checkpoint; of a finished run only the weights that an evaluation reads.

    A run that keeps more checkpoints than usual is one whose figure chooses among them, so all of them come.
    """
    copy = Run(_about(run, folder), run.experiment)
    several = run.experiment.train.keep_checkpoints > TrainConfig.keep_checkpoints
    for step in run.steps if several else run.steps[-1:]:
        checkpoint = read_checkpoint(run.path, step)
        part = "average" if checkpoint.part("average") else "model"
        if standing(run.path).status == "finished":
            weights = {f"{part}/{name}": value for name, value in checkpoint.part(part).items()}
            large = sum(value.numel() for value in weights.values()) > HALF_FROM
            weights = {
                name: value.half() if large and value.is_floating_point() else value for name, value in weights.items()
            }
            checkpoint = Checkpoint(step, checkpoint.finished, weights)
            rounded = ", rounded to float16" if large else ""
            write_json(copy.path / "provenance.json", {**run.provenance(), "weights": f"{part} alone{rounded}"})
        copy.save(checkpoint)
    return copy.path


def unpack(source: Path, asked: Figures) -> list[str]:
    """Put what `pack` wrote into the runs and results, and record it as being at home; returns the names."""
    record, names = asked.home(), []
    for content in _archives(source):
        for place in (asked.runs, asked.results):
            check_folder(place, "what was brought")
        with tempfile.TemporaryDirectory(dir=asked.runs, prefix=".unpack") as folder:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(folder, filter="data")
            try:
                for path in sorted(Path(folder).glob("*/*")):  # about, readings, results, runs
                    names.append(path.name)
                    _put[path.parent.name](path, asked, record)
            finally:
                write_json(asked.home_file, record)
    return list(dict.fromkeys(names))


def _archives(source: Path) -> Iterator[bytes]:
    """The archives in a folder; a missing or damaged piece is a ValueError."""
    matches = [match for path in sorted(source.glob("looped-*")) if (match := NAME.fullmatch(path.name))]
    if not matches:
        raise ValueError(f"{source} holds no files that `looped queue --pack` wrote. Name the folder that does.")
    for digest, count in dict.fromkeys((match[1], match[3]) for match in matches):
        content = b"".join((source / match[0]).read_bytes() for match in matches if match[1] == digest)
        if hashlib.sha256(content).hexdigest()[:10] != digest:
            raise ValueError(f"{source} does not hold all {int(count)} of looped-{digest}-* whole. Bring them again.")
        yield content


def _put_result(path: Path, asked: Figures, record: Record) -> None:
    """A result, unless the one there was measured with the same settings, or with today's."""
    there, todays = asked.results / path.name, {study.settings_hash(asked.scale) for study in asked.studies}
    known = {*todays, read_json(path).get("settings_hash")}
    if not there.exists() or read_json(there).get("settings_hash") not in known:
        write_bytes(there, path.read_bytes())


def _put_reading(path: Path, asked: Figures, record: Record) -> None:
    """A reading, and in the record its key; its run's weights may have stayed where it was trained."""
    try:
        reading = Reading.from_bytes(path.read_bytes())
    except DAMAGE as error:
        log.warning(f"looped: the reading {path.name} cannot be used ({one_line(error)}): left out.")
        return
    has_run = standing(asked.runs / reading.run).status == "finished"
    facts = record.setdefault(reading.run, {**_facts(reading.training), **({} if has_run else {"weights": False})})
    facts["readings"] = sorted({*facts.get("readings", ()), key_of(path)})
    (asked.runs / "readings").mkdir(exist_ok=True)
    write_bytes(asked.runs / "readings" / path.name, path.read_bytes())


def _put_run(path: Path, asked: Figures, record: Record) -> None:
    """A run folder, unless the one there has gone as far; in the record, if it is finished."""
    if standing(path).status == "finished":
        facts = {**record.get(path.name, {}), **_facts(_restored(Run.open(path)).provenance())}
        record[path.name] = {key: value for key, value in facts.items() if key != "weights"}
    target = asked.runs / path.name
    if not target.exists() or standing(target).step < standing(path).step:
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)


_put = {"about": _put_run, "readings": _put_reading, "results": _put_result, "runs": _put_run}


def _restored(run: Run) -> Run:
    """A run with weights in float32 again, in which the model then computes."""
    for step in run.steps:
        checkpoint = read_checkpoint(run.path, step)
        if any(value.dtype is torch.float16 for value in checkpoint.tensors.values()):
            tensors = {
                name: value.float() if value.dtype is torch.float16 else value
                for name, value in checkpoint.tensors.items()
            }
            run.save(replace(checkpoint, tensors=tensors))
    return run


def _facts(origin: Mapping[str, Any]) -> dict[str, Any]:
    """What the record has about a training."""
    return {key: origin[key] for key in ("device", "train_seconds", "side_by_side") if key in origin}
