"""Translations by greedy decoding, and how good they are: cross entropy and BLEU with intervals.

`rows` names the sentences of a split: all of them, or those of one of its `halves`.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.evaluation.bootstrap import Interval, bootstrap
from looped.evaluation.errors import weight_of
from looped.models.base import LoopedModel
from looped.prompt import Sequence
from looped.tasks.translation import BETWEEN, END, PAD, Translation

CHUNK = 128
"""Sentences in one forward pass."""


Rows = slice | Int[Tensor, "pairs"]
ALL = slice(None)


def halves(pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """The rows of a split of so many pairs, in two halves at random: one to choose a checkpoint on, one to judge it."""
    if pairs < 2:
        raise ValueError(f"a split of {pairs} pairs has no two halves; give at least 2.")
    rows = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))
    return rows[: pairs // 2].sort().values, rows[pairs // 2 :].sort().values


@torch.no_grad()
def cross_entropies(
    model: LoopedModel, task: Translation, *, n: int, rows: Rows = ALL
) -> tuple[Float[Tensor, "pairs"], Float[Tensor, "pairs"]]:
    """The summed cross entropy of every English sentence of the split, and its number of tokens."""
    prompt = task.everything(n, weight_of(model).device).rows(rows)
    sums, counts = [], []
    for part in prompt.chunks(CHUNK):
        assert part.weights is not None
        sums.append((task.error(model.predict(part), part) * part.weights).sum(-1).cpu().double())
        counts.append(part.weights.sum(-1).cpu().double())
    return torch.cat(sums), torch.cat(counts)


def frequency_cross_entropies(
    task: Translation, *, n: int, rows: Rows = ALL
) -> tuple[Float[Tensor, "pairs"], Float[Tensor, "pairs"]]:
    """The same for answers that read nothing: how often each token is English in the training split, plus one."""
    training, prompt = replace(task, split="train").everything(n), task.everything(n).rows(rows)
    assert training.weights is not None
    assert prompt.weights is not None
    counts = torch.bincount(training.targets[training.weights > 0], minlength=task.vocabulary).double() + 1
    surprise, weights = -(counts / counts.sum()).log(), prompt.weights.double()
    return (surprise[prompt.targets] * weights).sum(-1), weights.sum(-1)


def per_token(
    sums: Float[Tensor, "pairs"], counts: Float[Tensor, "pairs"], *, level: float = 0.9, seed: int = 0
) -> Interval:
    """Cross entropy per token, with a bootstrap interval over sentences.

        sum_i sums_i / sum_i counts_i, resampled by its linearisation (sums_i - ratio counts_i) / mean count

    For the difference of two models, pass the difference of their sums.
    """
    ratio = sums.sum() / counts.sum()
    spread = bootstrap((sums - ratio * counts) / counts.mean(), level=level, seed=seed)
    return Interval(ratio, ratio + spread.low, ratio + spread.high)


@torch.no_grad()
def translate(model: LoopedModel, task: Translation, *, n: int, rows: Rows = ALL) -> list[str]:
    """English translations of the split's German sentences by greedy decoding, in batches.

    A sentence ends at `</s>`, or after `n` tokens, the German side included.
    """
    prompt = task.everything(n, weight_of(model).device).rows(rows)
    tokenizer, texts = task.tokenizer(), []
    for part in prompt.chunks(CHUNK):
        tokens = decode(model, part.tokens)
        texts += tokenizer.decode_batch([row[row.index(BETWEEN) + 1 :] for row in tokens.tolist()])
    return [text.strip() for text in texts]


def decode(model: LoopedModel, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """The tokens of every row up to `<sep>`, then the model's translation, then padding, which is not read."""
    seq = tokens.shape[1]
    places = torch.arange(seq, device=tokens.device)
    # a German side that fills the row leaves no room for English; the row stays as it is
    fits = (tokens == BETWEEN).any(1)
    last = torch.where(fits, (tokens == BETWEEN).int().argmax(1), seq - 1)
    tokens = torch.where(places <= last[:, None], tokens, PAD)
    tokens[~fits, -1] = BETWEEN
    going = last < seq - 1
    while bool(going.any()):
        longest = int(last[going].max()) + 1
        part = tokens[going, :longest]
        answers = model.predict(Sequence(part, part))
        chosen = answers[torch.arange(len(part), device=tokens.device), last[going]].argmax(-1)
        last = last + going
        tokens[going, last[going]] = chosen
        ended = torch.zeros_like(going)
        ended[going] = (chosen == END) | (last[going] == seq - 1)
        going = going & ~ended
    return tokens


def bleu(
    translations: list[str], references: list[str], *, level: float = 0.9, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Corpus BLEU (sacrebleu's default, 13a) with a bootstrap interval over sentences: mean, low, high."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ValueError("BLEU needs `sacrebleu`. Install it: pip install 'looped[text]'.") from None
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(ours, [theirs]) for ours, theirs in zip(translations, references, strict=True)]
    facts = torch.tensor([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]).double()

    def corpus(total: Tensor) -> float:
        whole = [int(value) for value in total.tolist()]
        return BLEU.compute_bleu(whole[:4], whole[4:8], whole[8], whole[9], smooth_method="exp").score

    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(facts), (resamples, len(facts)), generator=generator)
    resampled = torch.tensor([corpus(facts[rows].sum(0)) for rows in draws], dtype=torch.float64)
    tail = (1 - level) / 2
    low, high = torch.quantile(resampled, torch.tensor([tail, 1 - tail]).double())
    return Interval(torch.tensor(corpus(facts.sum(0)), dtype=torch.float64), low, high)
