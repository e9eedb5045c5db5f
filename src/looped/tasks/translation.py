"""German to English as one causal sequence: `<s> german <sep> english </s>`, scored on the English side.

LOOPED_DATA/translation/CORPUS/ holds for every split (train, val, test) and language (de, en) one sentence a line:
`train.de.gz` as Multi30k has it, or `train.de`, or `train.de-en.de` as IWSLT folders do, gzipped or not. The
vocabulary is learned from the training side alone and kept in LOOPED_CACHE (default: the user's cache folder).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from looped.prompt import Sequence
from looped.tasks.data import closest, data_folder
from looped.tasks.task import SequenceTask

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Split = Literal["train", "val", "test"]
SPECIAL = ("<pad>", "<s>", "<sep>", "</s>")
"""Tokens that are no text; their ids are their places here."""
PAD, START, BETWEEN, END = range(4)
LEAST = len(SPECIAL) + 256
"""The smallest vocabulary: every byte is a token, so nothing is unknown."""


@dataclass(frozen=True, kw_only=True)
class Translation(SequenceTask):
    """Pairs of sentences, tokenised by byte-level BPE, each one sequence padded to `n` tokens.

        loss = -log p(english_i | german, english before i), </s> included

    Ref: gao24, Sec. 5.5, which names IWSLT 2015, the cross entropy and the models' sizes, and leaves open: tokeniser
    and vocabulary (here one BPE for both languages), encoder or decoder (here one causal sequence), whether the loss
    reads the German side (here not), length and batch. A pair that does not fit into n + 1 tokens is left out of
    training and cut short in the other splits.
    """

    d: int = 1
    """A token is one whole number."""
    corpus: str = "multi30k"
    """The folder below LOOPED_DATA/translation."""
    split: Split = "train"
    """Which pairs are drawn; the vocabulary is always the training side's."""
    vocabulary: int = 8000
    """Tokens of the BPE, special ones and single bytes included; fewer where the text has no more to merge."""
    limit: int | None = None
    """Read only the first `limit` pairs of every split; None: all."""
    captured: ClassVar[bool] = True
    """On the device alone, once its table is there."""

    def __post_init__(self) -> None:
        if self.d != 1:
            raise ValueError(f"`d` must be 1, one whole number a token; got {self.d}.")
        if self.vocabulary < LEAST:
            raise ValueError(f"`vocabulary` must be at least {LEAST}, one token a byte; got {self.vocabulary}.")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"`limit` must be at least 1; got {self.limit}.")

    @property
    def vocabulary_size(self) -> int:
        """`vocabulary`."""
        return self.vocabulary

    @property
    def label_variance(self) -> float:
        """1: the error is a cross entropy, in nats; predicting zero everywhere costs log(vocabulary)."""
        return 1.0

    def sample(  # type: ignore[override]
        self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None
    ) -> Sequence:
        """Pairs drawn with replacement."""
        if dims is not None:
            raise ValueError(f"text has no dimensions to switch off; got `dims`={dims}. Set `train.dims` to null.")
        table = self.table(n, generator.device)
        rows = torch.randint(len(table.ids), (batch,), generator=generator, device=generator.device)
        return _sequence(Table(table.ids[rows], table.weights[rows]))

    def everything(self, n: int, device: torch.device | str = "cpu") -> Sequence:
        """Every pair of the split once, in its order, as sequences of `n` tokens."""
        return _sequence(self.table(n, torch.device(device)))

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*kept batch seq vocabulary"], prompt: Sequence
    ) -> Float[Tensor, "*kept batch seq"]:
        """Cross entropy at every token, in nats."""
        targets = prompt.targets.expand(outputs.shape[:-1])
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)

    def table(self, n: int, device: torch.device) -> Table:
        """The split's pairs, tokenised once and kept on the device."""
        return _table(self, n, str(device), str(self.folder()))

    def tokenizer(self) -> Tokenizer:
        """The BPE of the training side: read from the cache, or learned and put there."""
        return _tokenizer(str(self.folder()), self.vocabulary, self.limit)

    def texts(self) -> tuple[list[str], list[str]]:
        """The German and the English sentences of the split."""
        return _pairs(str(self.folder()), self.split, self.limit)

    def folder(self) -> Path:
        """Where the corpus lies."""
        parent = data_folder("translation")
        there = [one.name for one in parent.iterdir() if one.is_dir()]
        if self.corpus not in there:  # a name, not a path that leads elsewhere
            raise ValueError(f"{parent} has no corpus `{self.corpus}`. {closest(self.corpus, there)}")
        return parent / self.corpus


class Table(NamedTuple):
    """Sequences as numbers."""

    ids: Int[Tensor, "pairs longer"]
    """`<s> german <sep> english </s>`, padded to one more than the tokens of a sequence."""
    weights: Float[Tensor, "pairs seq"]
    """1 where the next token is English or `</s>`."""


def _sequence(table: Table) -> Sequence:
    return Sequence(table.ids[:, :-1], table.ids[:, 1:], table.weights)


def cache_folder() -> Path:
    """LOOPED_CACHE, or `looped` in the user's cache folder; made where it is missing."""
    named = os.environ.get("LOOPED_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "looped"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.lru_cache(maxsize=16)
def _table(task: Translation, n: int, device: str, folder: str) -> Table:
    """Built once for each task, length, device and folder."""
    coder = task.tokenizer()
    german, english = (
        [one.ids for one in coder.encode_batch_fast(side, add_special_tokens=False)] for side in task.texts()
    )
    whole = [
        ([START, *source, BETWEEN], [*target, END])
        for source, target in zip(german, english, strict=True)
        if task.split != "train" or len(source) + len(target) + 3 <= n + 1
    ]
    if not whole:
        raise ValueError(f"no pair of {folder} fits into `n`={n} tokens. Raise n.")
    ids = torch.full((len(whole), n + 1), PAD)
    weights = torch.zeros(len(whole), n)
    for row, (source, target) in enumerate(whole):
        line = torch.tensor((source + target)[: n + 1])
        ids[row, : len(line)] = line
        weights[row, len(source) - 1 : len(line) - 1] = 1
    return Table(ids.to(device), weights.to(device))


@functools.lru_cache(maxsize=8)
def _pairs(folder: str, split: Split, limit: int | None) -> tuple[list[str], list[str]]:
    german, english = (_lines(Path(folder), split, language)[:limit] for language in ("de", "en"))
    if len(german) != len(english) or not german:
        raise ValueError(
            f"`{split}` in {folder} must have as many German as English lines, at least one; got "
            f"{len(german)} and {len(english)}. Restore the files."
        )
    return german, english


def _lines(folder: Path, split: str, language: str) -> list[str]:
    names = [f"{split}.{middle}{language}{end}" for middle in ("", "de-en.") for end in (".gz", "")]
    for path in (folder / name for name in names):
        if path.is_file():
            try:
                data = path.read_bytes()
                text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
            except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
                raise ValueError(
                    f"{path} cannot be read ({error}). It must be UTF-8 text, one sentence a line."
                ) from None
            return [line.strip() for line in text.rstrip("\n").split("\n")]
    raise ValueError(f"{folder} has none of {', '.join(names)}. Put one there, one sentence a line.")


@functools.lru_cache(maxsize=8)
def _tokenizer(folder: str, vocabulary: int, limit: int | None) -> Tokenizer:
    """Cached by what it is learned from: the text, the vocabulary and the way it is built."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("translation needs `tokenizers`. Install it: pip install 'looped[text]'.") from None
    german, english = _pairs(folder, "train", limit)
    total = hashlib.sha256(f"bpe 1 {vocabulary} {SPECIAL}\n".encode())
    for line in (*german, "", *english):
        total.update(line.encode() + b"\n")
    path = cache_folder() / f"bpe-{total.hexdigest()[:16]}.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers has no class of its own for a damaged file
            warnings.warn(f"{path} cannot be used ({error}): learned again.", stacklevel=2)
    made = _learn((*german, *english), vocabulary)
    # a temporary name first, so that the cache never holds a part of a file
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(made.to_str())
    os.replace(temporary, path)
    return Tokenizer.from_file(str(path))


def _learn(lines: Iterable[str], vocabulary: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    coder = Tokenizer(models.BPE())
    coder.normalizer = normalizers.NFC()
    coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    coder.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    coder.train_from_iterator(lines, trainer)
    return coder
