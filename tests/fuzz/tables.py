"""Random table files: gaps, text, one class, one row, wide, empty, binary, and some that are right."""

from __future__ import annotations

import gzip
import itertools
import os
import random
from pathlib import Path

import torch

from fuzz import values
from fuzz.harness import Case, check_finite
from looped.baselines.linear import least_squares
from looped.tasks.tables import Tables
from looped.tasks.translation import Translation

CELLS = (
    "",
    " ",
    "?",
    "NA",
    "nan",
    "inf",
    "-inf",
    "text",
    "1e400",
    "1e308",
    "-1e308",
    "1e-320",
    '"1"',
    "1;2",
    "True",
    "٣",
)


def table(draw: random.Random, folder: Path) -> Case:
    """A file, and prompts of its rows: finite numbers and labels +1 and -1, or one line that says what is wrong."""
    rows, columns = draw.choice((0, 1, 2, 20, 30, 40, 50, 200)), draw.choice((0, 1, 2, 5, 5, 5, 5, 5, 300))
    lines = [_row(draw, columns) for _ in range(rows)]
    damage = draw.choice(list(DAMAGE)) if draw.random() < 0.6 else "none"
    content = DAMAGE[damage](draw, [",".join([*(f"x{i}" for i in range(columns)), "label"]), *lines])
    data = content if isinstance(content, bytes) else "\n".join(content).encode("utf-8", "surrogatepass")
    suffix = draw.choice((".csv",) * 10 + (".csv.gz",) * 10 + (".CSV", ".csv.bak"))
    if suffix == ".csv.gz" and draw.random() < 0.85:
        data = gzip.compress(data)
        data = data[: draw.randrange(len(data))] if draw.random() < 0.1 else data
    (folder / "openml").mkdir()
    (folder / "openml" / f"t{suffix}").write_bytes(data)
    name = "t" if draw.random() < 0.95 else draw.choice(("u", "../t", "/etc/passwd", "", "t.csv", values.word(draw)))
    d, n, share = (
        draw.choice((1, 3, 3, 8)),
        draw.choice((1, 2, 3, 4, 5, 8)) if draw.random() < 0.9 else draw.choice((0, 10**15)),
        draw.choice((0.5, 0.5, 0.5, 0.3, 0.01, 0.99)),
    )

    def act() -> None:
        os.environ["LOOPED_DATA"] = str(folder) if draw.random() < 0.95 else values.word(draw).replace("\x00", "")
        task = Tables(d=d, names=(name,), rows=draw.choice(("train", "test")), test_share=share)
        given = task.sample(batch=3, n=n, generator=torch.Generator().manual_seed(0))
        check_finite("a table", given.xs, given.ys, least_squares(given))
        assert set(given.ys.flatten().tolist()) <= {-1.0, 1.0}

    told = f"{rows} x {columns}, {damage}, {suffix}, table {name!r}, d={d}, n={n}, share {share}: {data[:120]!r}"
    return Case(told, act)


def corpus(draw: random.Random, folder: Path) -> Case:
    """A corpus of translations, and sequences of its sentences: numbers below the vocabulary, and weights."""
    where = folder / "translation" / "multi30k"
    where.mkdir(parents=True)
    count, told = draw.choice((0, 1, 3, 3, 30, 30)), []
    for split, language in itertools.product(("train", "test"), ("de", "en")):
        damage = draw.choice(list(TEXTS)) if draw.random() < 0.12 else "none"
        data = TEXTS[damage](draw, "\n".join(f"{language} {draw.choice(WORDS)} {i}" for i in range(count)).encode())
        zipped = draw.random() < 0.5
        if zipped and draw.random() < 0.95:
            data = gzip.compress(data)
            data = data[: draw.randrange(len(data))] if draw.random() < 0.1 else data
        if draw.random() < 0.98:
            (where / f"{split}.{language}{'.gz' * zipped}").write_bytes(data)
        told.append(f"{split}.{language} {damage}{', gzipped' * zipped}")
    name = "multi30k" if draw.random() < 0.9 else draw.choice(("../translation/multi30k", "..", ".", values.word(draw)))
    n, vocabulary = draw.choice((40, 40, 40, 5, 1, 0)), draw.choice((260, 260, 260, 261, 270, 3))
    limit = draw.choice((None, None, None, 2, 0))

    def act() -> None:
        os.environ["LOOPED_DATA"] = str(folder)
        os.environ["LOOPED_CACHE"] = str(folder / "cache")
        task = Translation(corpus=name, split=draw.choice(("train", "test")), vocabulary=vocabulary, limit=limit)
        given = task.sample(batch=2, n=n, generator=torch.Generator().manual_seed(0))
        check_finite("a corpus", given.weights)
        assert 0 <= int(given.tokens.min()) <= int(given.tokens.max()) < vocabulary

    said = f"{count} lines, {'; '.join(told)}, corpus {name!r}, n={n}, vocabulary {vocabulary}, limit {limit}"
    return Case(said, act)


TEXTS = {
    "none": lambda draw, data: data,
    "empty": lambda draw, data: b"",
    "zeros": lambda draw, data: bytes(50),
    "random bytes": lambda draw, data: draw.randbytes(50),
    "utf-16": lambda draw, data: data.decode().encode("utf-16"),
    "byte order mark": lambda draw, data: b"\xef\xbb\xbf" + data,
    "a line more": lambda draw, data: data + b"\nmore",
    "blank lines": lambda draw, data: data.replace(b"\n", b"\n\n"),
    "windows": lambda draw, data: data.replace(b"\n", b"\r\n"),
    "one long line": lambda draw, data: data.replace(b"\n", b" "),
}
WORDS = ("ein Hund", "a dog", "", "<s>", "</s>", "日本", "é" * 30, "\x00", "\t", "x" * 300)


def _row(draw: random.Random, columns: int) -> str:
    return ",".join([*(f"{draw.gauss(0, 1):.3g}" for _ in range(columns)), str(draw.randrange(2))])


def _cell(draw: random.Random, lines: list[str]) -> list[str]:
    at = draw.randrange(len(lines))
    cells = lines[at].split(",")
    cells[draw.randrange(len(cells))] = draw.choice(CELLS)
    return [*lines[:at], ",".join(cells), *lines[at + 1 :]]


def _constant(draw: random.Random, lines: list[str]) -> list[str]:
    value = draw.choice(("0", "7", "1e300", "1e-300"))
    return [lines[0], *(",".join([value, *line.split(",")[1:]]) for line in lines[1:])]


def _labels(draw: random.Random, lines: list[str]) -> list[str]:
    labels = draw.choice(
        (("0",), ("1",), ("1", "2"), ("-1", "1"), ("0", "1", "2"), ("a", "b"), ("0.5", "1"), ("nan", "1"))
    )
    return [lines[0], *(",".join([*line.split(",")[:-1], draw.choice(labels)]) for line in lines[1:])]


DAMAGE = {
    "none": lambda draw, lines: lines,
    "one cell": _cell,
    "two cells": lambda draw, lines: _cell(draw, _cell(draw, lines)),
    "labels": _labels,
    "a constant column": _constant,
    "no header": lambda draw, lines: lines[1:],
    "short row": lambda draw, lines: [*lines, "1"],
    "long row": lambda draw, lines: [*lines, "1," * 400 + "1"],
    "blank lines": lambda draw, lines: [line for one in lines for line in (one, "")],
    "semicolons": lambda draw, lines: [line.replace(",", ";") for line in lines],
    "windows": lambda draw, lines: [line + "\r" for line in lines],
    "only returns": lambda draw, lines: "\r".join(lines).encode(),
    "byte order mark": lambda draw, lines: "\n".join(lines).encode("utf-8-sig"),
    "utf-16": lambda draw, lines: "\n".join(lines).encode("utf-16"),
    "comments": lambda draw, lines: ["# a table", *lines],
    "quotes": lambda draw, lines: [lines[0], '"' + "\n".join(lines[1:])],
    "quoted header": lambda draw, lines: ['"x\ny",label', *lines[1:]],
    "huge": lambda draw, lines: [lines[0], *(line.replace(".", "") + "e300,1" for line in lines[1:])],
    "empty": lambda draw, lines: b"",
    "zeros": lambda draw, lines: bytes(100),
    "random bytes": lambda draw, lines: draw.randbytes(draw.choice((1, 50, 3000))),
    "flipped byte": lambda draw, lines: _flip(draw, "\n".join(lines).encode()),
    "wide header": lambda draw, lines: [",".join(["x"] * 20000 + ["label"]), *lines[1:]],
    "long field": lambda draw, lines: ["x" * 200000 + ",label", *lines[1:]],
}


def _flip(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
