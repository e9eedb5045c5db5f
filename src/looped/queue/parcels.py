"""Finished trainings and results as files of at most 15 MB that travel, and back.

DIR/looped-DIGEST-00-of-03        a third of a tar archive; the digest is that of the whole archive
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from looped.experiment import TrainConfig
from looped.files import check_folder, write_bytes, write_json
from looped.queue.missing import Figures
from looped.training.folder import Checkpoint, read_checkpoint
from looped.training.run import Run
from looped.training.trials import standing

PIECE_BYTES, MAX_PIECES = 15_000_000, 4
"""A borrowed machine returns at most 8 files of 16 MiB, 64 MiB together, for each command."""
HALF_FROM = 2_000_000
"""Models of more parameters travel as float16."""
NAME = re.compile(r"looped-([0-9a-f]{10})-(\d\d)-of-(\d\d)")


def pack(asked: Figures, target: Path) -> list[str]:
    """Write what was finished here and is not at home yet; returns the names.

    Results come first, then finished trainings, then checkpoints of trainings under way. What has no room travels next
    time.
    """
    check_folder(target, "the archive")
    archive, packed, room = io.BytesIO(), [], PIECE_BYTES * MAX_PIECES - 20_000
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        for path in _parcels(asked, Path(folder)):
            size = sum(file.stat().st_size + 1024 for file in [path, *path.rglob("*")])
            if size <= room:
                room -= size
                tar.add(path, f"{path.parent.name}/{path.name}")
                packed.append(path.name)
    content = archive.getvalue() if packed else b""
    pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
    digest = hashlib.sha256(content).hexdigest()[:10]
    for index, piece in enumerate(pieces):
        write_bytes(target / f"looped-{digest}-{index:02d}-of-{len(pieces):02d}", piece)
    return packed


def _parcels(asked: Figures, folder: Path) -> Iterator[Path]:
    """What may travel: files in `results`, folders in `runs`."""
    yield from sorted((asked.runs / "results").glob(f"*.{asked.scale}.json"))
    names = {run.folder for study in asked.studies for run in asked.trainings(study)} - asked.home().keys()
    paths = [asked.runs / name for name in sorted(names)]
    for status in ("finished", "stopped"):
        yield from (_copy(Run.open(path), folder / "runs") for path in paths if standing(path).status == status)


def _copy(run: Run, folder: Path) -> Path:
    """A copy of the last checkpoint; of a finished run only the weights that an evaluation reads.

    A run that keeps more checkpoints than usual is one whose figure chooses among them, so all of them come.
    """
    copy = Run.create(folder / run.path.name, run.experiment)
    for name in ("metrics.jsonl", "provenance.json"):
        if (run.path / name).exists():
            shutil.copy(run.path / name, copy.path)
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
        for place in (asked.runs, asked.home_file.parent):
            check_folder(place, "what was brought")
        with tempfile.TemporaryDirectory(dir=asked.runs, prefix=".unpack") as folder:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(folder, filter="data")
            for path in sorted(Path(folder).glob("*/*")):
                names.append(path.name)
                if path.is_file():
                    write_bytes(asked.results / path.name, path.read_bytes())
                    continue
                if standing(path).status == "finished":
                    record[path.name] = _restored(Run.open(path))
                _put(path, asked.runs / path.name)
        write_json(asked.home_file, record)
    return names


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


def _restored(run: Run) -> dict[str, object]:
    """Weights in float32 again, in which the model then computes; returns what is recorded about the training."""
    for step in run.steps:
        checkpoint = read_checkpoint(run.path, step)
        if any(value.dtype is torch.float16 for value in checkpoint.tensors.values()):
            tensors = {
                name: value.float() if value.dtype is torch.float16 else value
                for name, value in checkpoint.tensors.items()
            }
            run.save(replace(checkpoint, tensors=tensors))
    origin = run.provenance()
    return {key: origin[key] for key in ("device", "train_seconds", "side_by_side") if key in origin}


def _put(path: Path, target: Path) -> None:
    """Move a run folder to its place, unless the one there has gone as far."""
    if not target.exists() or standing(target).step < standing(path).step:
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
