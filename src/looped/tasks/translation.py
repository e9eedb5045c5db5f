"""German to English as one causal sequence: `<s> german <sep> english </s>`, scored on the English side.

LOOPED_DATA/translation/CORPUS/ holds one file for every split (train, val, test) and language (de, en), one sentence
per line: `train.de` as in Multi30k or `train.de-en.de` as in IWSLT folders, gzipped (`.gz`) or not. The vocabulary is
learned from the training split only and stored in LOOPED_CACHE (default: the user's cache folder).
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.prompt import Sequence
from looped.tasks.data import cache_folder, closest, data_folder, read_text
from looped.tasks.task import SequenceTask

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Split = Literal["train", "val", "test"]
SPECIAL = ("<pad>", "<s>", "<sep>", "</s>")
"""Tokens that are not text; their ids are their positions here."""
PAD, START, BETWEEN, END = range(4)
MIN_VOCABULARY = len(SPECIAL) + 256
"""Every byte is a token, so no text is unknown."""


@dataclass(frozen=True, kw_only=True)
class Translation(SequenceTask):
    """Pairs of sentences, tokenised by byte-level BPE; each pair is one sequence, padded to `n` tokens.

        loss = -log p(english_i | german, english before i), </s> included

    Ref: gao24, Sec. 5.5, which names IWSLT 2015, the cross entropy and the models' sizes. It leaves open the tokeniser
    and vocabulary (here one BPE for both languages), encoder or decoder (here one causal sequence), whether the loss
    includes the German side (here not), length and batch. A pair that does not fit into n + 1 tokens is left out of
    training and cut short in the other splits.
    """

    d: int = 1
    """A token is one whole number."""
    corpus: str = "multi30k"
    """The folder below LOOPED_DATA/translation."""
    split: Split = "train"
    """Which pairs are drawn; the vocabulary always comes from the training split."""
    vocabulary: int = 8000
    """Tokens of the BPE, including special ones and single bytes; fewer if the text has nothing more to merge."""
    limit: int | None = None
    """Read only the first `limit` pairs of every split; None: all."""
    captured: ClassVar[bool] = True
    """Sampling stays on the device, once its pairs are there."""

    def __post_init__(self) -> None:
        if self.d != 1:
            raise ValueError(f"`d` must be 1, one whole number per token; got {self.d}.")
        if self.vocabulary < MIN_VOCABULARY:
            raise ValueError(
                f"`vocabulary` must be at least {MIN_VOCABULARY}, one token per byte; got {self.vocabulary}."
            )
        check_at_least(1, limit=self.limit)

    @property
    def vocabulary_size(self) -> int:
        """`vocabulary`."""
        return self.vocabulary

    @property
    def label_variance(self) -> float:
        """1: the error is a cross entropy, in nats; equal logits have error log(vocabulary)."""
        return 1.0

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Sequence:  # type: ignore[override]
        """Pairs drawn with replacement."""
        if dims is not None:
            raise ValueError(f"text has no dimensions to switch off; got `dims`={dims}. Set `train.dims` to null.")
        pairs = self.everything(n, generator.device)
        return pairs.rows(torch.randint(len(pairs.tokens), (batch,), generator=generator, device=generator.device))

    def everything(self, n: int, device: torch.device | str = "cpu") -> Sequence:
        """Every pair of the split once, in its order, as sequences of `n` tokens; tokenised once for each device."""
        return _everything(self, n, str(device), str(self.folder()))

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*loops batch seq vocabulary"], prompt: Sequence
    ) -> Float[Tensor, "*loops batch seq"]:
        """Cross entropy at every token, in nats."""
        targets = prompt.targets.expand(outputs.shape[:-1])
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)

    def tokenizer(self) -> Tokenizer:
        """The BPE of the training split: read from the cache, or learned and stored there."""
        return _tokenizer(str(self.folder()), self.vocabulary, self.limit)

    def texts(self) -> tuple[list[str], list[str]]:
        """The German and the English sentences of the split."""
        return _pairs(str(self.folder()), self.split, self.limit)

    def folder(self) -> Path:
        """The folder of the corpus."""
        parent = data_folder("translation")
        corpora = [path.name for path in parent.iterdir() if path.is_dir()]
        if self.corpus not in corpora:  # a name, not a path that leads elsewhere
            raise ValueError(f"{parent} has no corpus `{self.corpus}`. {closest(self.corpus, corpora)}")
        return parent / self.corpus


@functools.lru_cache(maxsize=16)
def _everything(task: Translation, n: int, device: str, folder: str) -> Sequence:
    coder = task.tokenizer()
    german, english = (
        [encoding.ids for encoding in coder.encode_batch_fast(side, add_special_tokens=False)] for side in task.texts()
    )
    whole = [
        ([START, *source, BETWEEN], [*target, END])
        for source, target in zip(german, english, strict=True)
        if task.split != "train" or len(source) + len(target) + 3 <= n + 1
    ]
    if not whole:
        raise ValueError(f"no pair of {folder} fits into `n`={n} tokens. Raise n.")
    ids = torch.full((len(whole), n + 1), PAD)
    weights = torch.zeros(len(whole), n)  # 1 where the next token is English or `</s>`
    for row, (source, target) in enumerate(whole):
        line = torch.tensor((source + target)[: n + 1])
        ids[row, : len(line)] = line
        weights[row, len(source) - 1 : len(line) - 1] = 1
    ids, weights = ids.to(device), weights.to(device)
    return Sequence(ids[:, :-1], ids[:, 1:], weights)


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
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"{folder} has none of {', '.join(names)}. Put one there, one sentence per line.")
    text = read_text(path, "It must be UTF-8 text, one sentence per line.")
    return [line.strip() for line in text.rstrip("\n").split("\n")]


@functools.lru_cache(maxsize=8)
def _tokenizer(folder: str, vocabulary: int, limit: int | None) -> Tokenizer:
    """Cached under a hash of the text, the vocabulary's size and how it is built."""
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
        except Exception as error:  # tokenizers raises a plain Exception for a damaged file
            warnings.warn(f"{path} cannot be used ({error}): learned again.", stacklevel=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    # a temporary name first, so that the cache never holds half a file
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_learn((*german, *english), vocabulary).to_str())
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
