"""What a measure reads from one trained model, as a small file: who has it needs neither weights nor evaluation.

RUNS/readings/RUNHASH-KEY.json.gz     series with their draws, where the model was trained, where it was measured

The key is made of the measure's settings without its seeds and baselines, and of the cell's labels.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from looped.config import encode
from looped.experiment import Experiment, hash_of
from looped.files import log, one_line, write_bytes
from looped.studies.table import Cell, Series, Table
from looped.training.provenance import provenance
from looped.training.run import Run

FORMAT = 1
"""Raised when an evaluation gives other numbers, so that older readings are no longer used."""
DAMAGE = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The series of one trained model, and what `Context.note_training` asks of its run: `path` and `provenance`."""

    series: tuple[Series, ...]
    """What the measure added to its table; curves have their draws."""
    run: str
    """The run folder that the experiment names."""
    path: Path
    """The folder that the weights were in, as a name alone: the run folder, or a kept model."""
    training: dict[str, Any]
    """Provenance of the training."""
    measured: dict[str, Any]
    """Commit and device of the evaluation; `products` where they were in TF32."""

    def provenance(self) -> dict[str, Any]:
        """That of the training, and where the model was measured."""
        return {**self.training, "measured": self.measured}

    def to_bytes(self) -> bytes:
        """As a compressed file: 82 kB where 262 kB of text are mostly draws."""
        data = {"format": FORMAT, "run": self.run, "path": self.path.name, "training": self.training}
        data |= {"measured": self.measured, "series": [series.to_data() for series in self.series]}
        return gzip.compress(json.dumps(data, allow_nan=False).encode(), compresslevel=6, mtime=0)

    @staticmethod
    def from_bytes(content: bytes) -> Reading:
        """Read what `to_bytes` wrote; other content raises one of `DAMAGE`."""
        data = json.loads(gzip.decompress(content))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        series = tuple(map(Series.from_data, data["series"]))
        facts = {"training": dict(data["training"]), "measured": dict(data["measured"])}
        return Reading(series=series, run=str(data["run"]), path=Path(data["path"]), **facts)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A reading that a study wants: of one cell and one seed."""

    measure: Any
    """Adds what it reads from a model to a table: `Curves`; all its fields change the reading."""
    cell: Cell
    """Whose it is."""
    experiment: Experiment
    """The training, with its seed."""
    runs: Path
    """Where run folders lie, and readings in a folder beside them."""

    @cached_property
    def file(self) -> Path:
        """Where the reading lies, or will."""
        settings = {"measure": encode(self.measure, without="defaults"), "cell": dict(self.cell), "format": FORMAT}
        return self.runs / "readings" / f"{self.experiment.hash}-{hash_of(settings)}.json.gz"

    @property
    def key(self) -> str:
        """What tells it from other readings of the same run."""
        return key_of(self.file)

    def read(self) -> Reading | None:
        """The reading; None where there is none. A damaged one counts as none, with a warning."""
        if not self.file.exists():
            return None
        try:
            reading = Reading.from_bytes(self.file.read_bytes())
            if reading.run != self.experiment.folder:
                raise ValueError(f"it is of {reading.run}")
        except DAMAGE as error:
            log.warning(f"looped: {self.file} cannot be used ({one_line(error)}): measured again.")
            return None
        return reading

    def make(self, run: Run, device: torch.device) -> Reading:
        """Evaluate the trained model and write what it gives; returns it as it will be read."""
        table, here = Table(), provenance(device)
        tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        products = {"products": "TF32"} if tf32 else {}
        self.measure.add_model(table, self.cell, self.experiment.train.seed, self.experiment, run.model(device))
        content = Reading(
            series=tuple(table),
            run=self.experiment.folder,
            path=Path(run.path.name),
            training=run.provenance(),
            measured={key: here[key] for key in ("commit", "device")} | products,
        ).to_bytes()
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            for torn in self.file.parent.glob(f".{self.file.name}.*.tmp"):  # what a kill left of writing this one
                torn.unlink(missing_ok=True)
            write_bytes(self.file, content)
        except OSError as error:  # a full or read-only disk costs time later, not the reading now
            log.warning(f"looped: {self.file} cannot be written ({error}): the reading is not kept.")
        return Reading.from_bytes(content)


def key_of(file: Path) -> str:
    """The key in a reading's name."""
    return file.name.partition(".")[0].rpartition("-")[2]
