"""Small tables under the names of the OpenML ones: linear labels with noise."""

import gzip
from pathlib import Path

import numpy as np

from looped.tasks.tables import OPENML


def write(folder: Path, names=OPENML[:2]) -> Path:
    """One file for each name."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        features = rng.normal(size=(60, 4))
        labels = features @ rng.normal(size=4) + 0.5 * rng.normal(size=60) > 0
        rows = [",".join([*map(repr, map(float, row)), str(int(y))]) for row, y in zip(features, labels, strict=True)]
        text = "\n".join(["a,b,c,d,label", *rows])
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder
