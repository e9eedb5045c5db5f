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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from looped.experiment import TrainConfig
from looped.files import check_folder, read_json, write_bytes, write_json
from looped.queue.missing import Places, in_order, trainings
from looped.studies.study import Study
from looped.training.folder import Checkpoint, checkpoint_path, read_checkpoint
from looped.training.run import Run
from looped.training.trials import standing

PIECE_BYTES, MAX_PIECES = 15_000_000, 7
"""A borrowed machine returns at most 8 files of 16 MiB for each command; one is left for a log."""
HALF_FROM = 4_000_000
"""Models of more parameters travel as float16."""
NAME = re.compile(r"looped-([0-9a-f]{10})-(\d\d)-of-(\d\d)")


def pack(studies: Sequence[Study], scale: str, places: Places, target: Path) -> list[str]:
    """Write what was finished here and is not at home yet; returns the names.

    Results come first, then finished trainings with the weights that an evaluation reads, then, if there is room, the
    last checkpoints of trainings under way. What has no room travels next time.
    """
    check_folder(target, "the archive")
    archive, packed, room = io.BytesIO(), [], PIECE_BYTES * MAX_PIECES - 20_000
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        for path in _parcels(studies, scale, places, Path(folder)):
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


def _parcels(studies: Sequence[Study], scale: str, places: Places, folder: Path) -> Iterator[Path]:
    """What may travel, each as a file or folder in `results`, `finished` or `unfinished`."""
    home = places.home()
    for file in sorted(places.measured.glob(f"*.{scale}.json")):
        if home["results"].get(file.name) != read_json(file)["settings_hash"]:
            yield file
    asked = {run.folder for study in in_order(studies, scale) for run in trainings(study, scale)}
    begun = [places.runs / name for name in sorted(asked - home["runs"].keys()) if (places.runs / name).is_dir()]
    for status, copy in (("finished", _small), ("stopped", _last_checkpoint)):
        for path in begun:
            if standing(path).status == status:
                yield copy(Run.open(path), folder)


def _small(run: Run, folder: Path) -> Path:
    """A copy of a finished run with the weights that an evaluation reads, of the last checkpoint.

    A training that keeps more checkpoints than usual is one whose figure chooses among them, so all of them come.
    """
    copy = Run.create(folder / "finished" / run.path.name, run.experiment)
    shutil.copy(run.path / "metrics.jsonl", copy.path)
    several = run.experiment.train.keep_checkpoints > TrainConfig.keep_checkpoints
    for step in run.steps if several else run.steps[-1:]:
        checkpoint = read_checkpoint(run.path, step)
        part = "average" if checkpoint.part("average") else "model"
        weights = {f"{part}/{name}": value for name, value in checkpoint.part(part).items()}
        if sum(value.numel() for value in weights.values()) > HALF_FROM:
            weights = {name: _to_half(value) for name, value in weights.items()}
        copy.save(Checkpoint(step, checkpoint.finished, weights))
    write_json(copy.path / "provenance.json", {**run.provenance(), "weights": f"{part} alone"})
    return copy.path


def _to_half(value: torch.Tensor) -> torch.Tensor:
    """As float16, unless that would overflow."""
    fits = value.is_floating_point() and value.abs().max() < torch.finfo(torch.float16).max
    return value.half() if fits else value


def _last_checkpoint(run: Run, folder: Path) -> Path:
    """A copy of a run with all that is needed to go on."""
    copy = folder / "unfinished" / run.path.name
    (copy / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "provenance.json"):
        if (run.path / name).exists():
            shutil.copy(run.path / name, copy)
    shutil.copy(checkpoint_path(run.path, run.steps[-1]), copy / "checkpoints")
    return copy


def unpack(source: Path, places: Places) -> list[str]:
    """Put what `pack` wrote into the runs and results, and record it as being at home; returns the names."""
    check_folder(places.runs, "the runs")
    record, names = places.home(), []
    for content in _archives(source):
        with tempfile.TemporaryDirectory(dir=places.runs, prefix=".unpack") as folder:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(folder, filter="data")
            for file in Path(folder).glob("results/*.json"):
                places.results.mkdir(parents=True, exist_ok=True)
                write_bytes(places.results / file.name, file.read_bytes())
                record["results"][file.name] = read_json(file)["settings_hash"]
                names.append(file.name)
            for path in sorted(Path(folder).glob("*finished/*")):
                if path.parent.name == "finished":
                    record["runs"][path.name] = _to_float32(Run.open(path))
                if _put(path, places.runs / path.name):
                    names.append(path.name)
    places.home_file.parent.mkdir(parents=True, exist_ok=True)
    write_json(places.home_file, record)
    return names


def _archives(source: Path) -> Iterator[bytes]:
    """The whole archives in a folder; a missing or damaged piece is a ValueError."""
    matches = [match for path in sorted(source.glob("looped-*")) if (match := NAME.fullmatch(path.name))]
    if not matches:
        raise ValueError(f"{source} holds no files that `looped queue --pack` wrote. Name the folder that does.")
    for digest in dict.fromkeys(match[1] for match in matches):
        pieces = [match for match in matches if match[1] == digest]
        content = b"".join((source / match[0]).read_bytes() for match in pieces)
        if len(pieces) != int(pieces[0][3]) or hashlib.sha256(content).hexdigest()[:10] != digest:
            wanted = f"all {int(pieces[0][3])} files looped-{digest}-*"
            raise ValueError(f"{source} does not hold {wanted} whole. Bring them again.")
        yield content


def _to_float32(run: Run) -> dict[str, object]:
    """Undo float16, so that the model computes in float32; returns the provenance."""
    origin = run.provenance()
    for step in run.steps:
        checkpoint = read_checkpoint(run.path, step)
        if any(value.dtype is torch.float16 for value in checkpoint.tensors.values()):
            tensors = {
                name: value.float() if value.dtype is torch.float16 else value
                for name, value in checkpoint.tensors.items()
            }
            run.save(replace(checkpoint, tensors=tensors))
            origin |= {"weights": "average alone, rounded to float16"}
    write_json(run.path / "provenance.json", origin)
    return {key: origin[key] for key in ("device", "train_seconds", "side_by_side") if key in origin}


def _put(path: Path, target: Path) -> bool:
    """Move a run folder to its place, unless that one is finished or has gone further."""
    new, old = standing(path), standing(target)
    if old.status == "finished" or (new.status != "finished" and old.step >= new.step):
        return False
    shutil.rmtree(target, ignore_errors=True)
    path.rename(target)
    return True
