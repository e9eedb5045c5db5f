"""Trains the models of cheng24's figures, those of one shape as one family.

The paper says Adam with clipping, batch 30000, a new minibatch every 10 steps, 3 seeds, and neither rate nor steps. The
released program's steps have length .1/(9-i)^2 in layer i, too short for a run of minutes; these are longer and shrink
to 0.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.config import encode
from looped.experiment import Adam, hash_of
from looped.files import finite, write_json
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.functional.matrices import to_identity
from looped.functional.schedules import Trapezoid
from looped.models.fast_losses.cheng24_loss import HeadWeights, head_weights, in_context_loss, predictions, prepare
from looped.models.kernel_transformer import functional
from looped.papers.cheng24.protocols import HEADS, TASKS, D, Pool, Source
from looped.prompt import Prompt, join
from looped.studies import Context
from looped.training.clip import Clip
from looped.training.family import Trained, build_family, family_folder, train_family
from looped.training.folder import Folder
from looped.training.rollback import Rollback
from looped.training.stopping import stop_signals

ROUNDING = 1e-14
"""A squared error below this is float32's rounding."""
RECORDS = "cheng24.outcomes"
"""The folder among the runs in which the outcome of every case lies."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An architecture on one distribution, for all seeds."""

    protocol: str
    """paper or released."""
    data: str
    """K: linear, relu, exp or mixed."""
    heads: tuple[str, ...]
    """h of each head."""
    n: int
    """Examples a prompt."""
    layers: int
    """Layers, each with weights of its own."""
    transform: bool = True
    """Whether A is free; otherwise it is 0."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """h of each head."""
        return tuple(HEADS[name] for name in self.heads)


@dataclass(frozen=True, kw_only=True)
class FamilyTraining:
    """How the families are trained and tested."""

    batch: int = 30_000
    """Prompts of a minibatch."""
    resample: int = 10
    """Steps on one minibatch."""
    steps: int = 600
    """Optimiser steps."""
    deep: int = 8
    """From this many layers on, a model takes `deep_steps`."""
    deep_steps: int = 600
    """Optimiser steps of deep models."""
    held: float = 0.0
    """Share of the steps in which A stays 0; free from the start, some deep exp models blow up."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One model for each."""
    test: int = 60_000
    """Test prompts."""
    pool: int = 60_000
    """Gram matrices to draw minibatches from."""
    logged: int = 50
    """How often distances are read."""
    learning_rate: float = 0.02
    """Adam's."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's."""
    decay: float = 0.9
    """Share of the run in which the rate falls to 0."""
    clip: float = 10.0
    """Largest gradient norm of the last of nine layers: `clip` / (9 - i)^2 in layer i."""

    def steps_of(self, case: Case) -> int:
        """Optimiser steps of a case."""
        return self.deep_steps if case.layers >= self.deep else self.steps

    def log_every(self, case: Case) -> int:
        """Steps between two readings."""
        return max(1, self.steps_of(case) // self.logged)

    def logged_steps(self, case: Case) -> list[int]:
        """The steps before which distances are read, and the last."""
        return [*range(0, self.steps_of(case), self.log_every(case)), self.steps_of(case)]

    def rules(self, layers: int) -> dict[str, Any]:
        """Adam whose rate falls to 0, each layer's gradient clipped, models whose loss jumps sent back."""
        adam = Adam(learning_rate=self.learning_rate, betas=self.betas, schedule=Trapezoid(decay=self.decay))
        # through torch: it divides by a float32 reciprocal
        norms = (self.clip / (9.0 - torch.arange(layers)) ** 2).tolist()
        return {"optimizer": adam, "clip": Clip(norm=tuple(norms), over="layer"), "rollback": Rollback()}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is measured of a case, one entry for each seed."""

    losses: list[float]
    """Test loss."""
    typical: list[float]
    """The geometric mean of the squared errors, which no rare prompt dominates."""
    rare: list[int]
    """How many of the test prompts, those with the largest errors, make up half of the loss."""
    bayes: list[float]
    """The Bayes estimator's loss on the same prompts."""
    distances: list[list[list[float]]]
    """Distance to a multiple of I: (seeds, logged steps, matrices), B'C of all layers, then A."""


def outcomes(cases: Iterable[Case], training: FamilyTraining, context: Context) -> dict[Case, Outcome]:
    """Every case's outcome; what any figure measured already is read, the rest trained side by side."""
    device, wanted = context.device, list(dict.fromkeys(cases))
    # on a GPU the twin figure's models fill the same kernels, and are there when it asks for them
    twins = [replace(case, protocol=protocol) for protocol in TASKS for case in wanted]
    shapes: dict[tuple, list[Case]] = {}
    for case in twins if device.type == "cuda" else wanted:
        if not _record(case, training, context).exists():
            shapes.setdefault((case.heads, case.n, case.layers, case.transform), []).append(case)
    # the costly ones first, so that the last thread does not end alone
    groups = sorted(shapes.values(), key=lambda group: -group[0].layers * group[0].n ** 2 * len(group))
    threads = torch.get_num_threads()
    one_at_a_time = device.type != "cpu" or threads == 1 or len(groups) <= 1
    torch.set_num_threads(threads if one_at_a_time else 1)
    try:
        with stop_signals() as stop, ThreadPoolExecutor(1 if one_at_a_time else threads) as workers:
            jobs = [workers.submit(_train_and_test, group, training, context) for group in groups]
            try:
                for count, (group, job) in enumerate(zip(groups, jobs, strict=True)):
                    first = group[0]
                    context.progress(f"{'+'.join(first.heads)}, n={first.n}, L={first.layers}", count / len(groups))
                    job.result()
            except BaseException:  # what runs is saved and ends, what waits is not begun
                stop.set()
                workers.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
        _pool.cache_clear()
        _test.cache_clear()
    records = {case: json.loads(_record(case, training, context).read_text()) for case in wanted}
    for family in sorted({record["family"] for record in records.values()}):
        context.note_training(Folder(context.runs / family, ""))
    return {case: Outcome(**_with_infinity(record["outcome"])) for case, record in records.items()}


def _with_infinity(content: Any) -> Any:
    """JSON data with infinity for null: a model that diverged has no finite loss, and JSON no infinite number."""
    if isinstance(content, dict):
        return {key: _with_infinity(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_with_infinity(value) for value in content]
    return math.inf if content is None else content


def _record(case: Case, training: FamilyTraining, context: Context) -> Path:
    """The file with a case's outcome and the name of the family that it was trained in."""
    # the device decides the random numbers
    identity = {"case": encode(case), "training": encode(training), "device": context.device.type}
    return context.runs / RECORDS / f"{hash_of(identity)}.json"


def _train_and_test(group: Sequence[Case], training: FamilyTraining, context: Context) -> None:
    """Train a family and write a record for each of its cases."""
    first, device = group[0], context.device
    sources = [
        Source(protocol=case.protocol, data=case.data, n=case.n, seed=seed) for case in group for seed in training.seeds
    ]
    shape = {"loops": first.layers, "layers": first.layers, "transform": first.transform}
    config = functional(d=D, kernel=first.kernels, **shape)
    family = build_family(config, seeds=[source.seed for source in sources], device=device)
    trained = _train(group, sources, family, training, context)
    assert trained.watched is not None
    assert trained.folder is not None
    watched = trained.watched.double().cpu()
    tests = [_test(source, training.test, device) for source in sources]
    errors = []
    with torch.no_grad():
        weights = weights_of(family, first.n)
        for index, (prompt, _) in enumerate(tests):
            members = [_member(head, index) for head in weights]
            answers = predictions(members, first.kernels, prepare(prompt, first.kernels))[0]
            errors.append((answers - prompt.ys[:, -1]).double().square())
    (context.runs / RECORDS).mkdir(exist_ok=True)
    for index, case in enumerate(group):
        part = slice(index * len(training.seeds), (index + 1) * len(training.seeds))
        outcome = Outcome(
            losses=[float(error.mean()) for error in errors[part]],
            typical=[float(error.clamp(min=ROUNDING).log().mean().exp()) for error in errors[part]],
            rare=[prompts_with_half(error) for error in errors[part]],
            bayes=[bayes for _, bayes in tests[part]],
            distances=watched[:, part].permute(1, 0, 2).tolist(),
        )
        record = {"family": trained.folder.path.name, "outcome": asdict(outcome)}
        write_json(_record(case, training, context), finite(record))
    del family, trained, weights
    if device.type == "cuda":  # a captured step holds the memory of its tensors
        gc.collect()
        torch.cuda.empty_cache()


def prompts_with_half(errors: Float[Tensor, " prompts"]) -> int:
    """How many prompts, those with the largest errors, make up half of the sum."""
    total = errors.sort(descending=True).values.cumsum(0)
    return int((total < total[-1] / 2).sum()) + 1


def _train(
    group: Sequence[Case], sources: Sequence[Source], family: Any, training: FamilyTraining, context: Context
) -> Trained:
    """Train one family, models ordered by case and then by seed, or load it."""
    first, device = group[0], context.device
    generators = [source.generators(device) for source in sources]
    roots = torch.stack([source.task.root for source in sources]).to(device, torch.float32)
    steps = training.steps_of(first)
    release = training.held * steps if first.transform else 0
    if release:
        with torch.no_grad():
            for head in family.heads:
                head.transform.zero_()

    def draw(step: int):
        pools = [_pool(source, training.pool, device) for source in sources]
        prompt = join(pool.sample(training.batch, *pair) for pool, pair in zip(pools, generators, strict=True))
        # a factor on A, in the batch since a captured step reads nothing else: times 0, A has no gradient and stays
        return prepare(prompt, first.kernels), torch.tensor(float(step >= release), device=device)

    def loss(model: Any, batch: Any) -> Tensor:
        prompts, free = batch
        weights = weights_of(model, first.n)
        if first.transform:
            weights = [head._replace(transform=free * head.transform) for head in weights]
        return in_context_loss(weights, first.kernels, prompts)

    # the device decides the random numbers
    identity = {"cases": [encode(case) for case in group], "training": encode(training), "device": device.type}
    return train_family(
        family,
        loss,
        folder=family_folder(context.runs, "cheng24", identity),
        identity=identity,
        steps=steps,
        **training.rules(first.layers),
        draw=draw,
        every=training.resample,
        generators=[generator for pair in generators for generator in pair],
        log_every=training.log_every(first),
        watch=lambda model: distances(model, roots),
        graph=True,
    )


def _member(weights: HeadWeights, index: int) -> HeadWeights:
    """One model's weights out of a family's."""
    part = slice(index, index + 1)
    transform = None if weights.transform is None else weights.transform[part]
    return HeadWeights(weights.score[part], transform, weights.label[part])


def weights_of(model: Any, n: int) -> list[HeadWeights]:
    """The heads' weights with M = B'C, in units that suit one rate: r over n and A over 10 n, unless h is the softmax.

    A sum over n examples wants weights of the order of 1/n; covariates that grow in every layer make scores explode.
    """
    weights = []
    for head in model.heads:
        is_mean = head.head.kernel is softmax
        transform = head.transform * (1 if is_mean else 0.1 / n) if hasattr(head, "transform") else None
        weights.append(head_weights(head.key, head.query, head.label * (1 if is_mean else 1 / n), transform))
    return weights


def distances(model: Any, roots: Float[Tensor, "models d d"]) -> Float[Tensor, "models matrices"]:
    """dist(M, I) of Sigma^{1/2} B'C Sigma^{1/2} in every layer, then of A in all layers but the last, first head.

        dist(M, I) = min_a |M - a I| / |M|

    Ref: cheng24, Fig. 3 and App. H.2. The last A has no effect on the prediction and so never moves.
    """
    head = weights_of(model, 1)[0]
    parts = [to_identity(roots[:, None] @ head.score @ roots[:, None])]
    if head.transform is not None:
        parts.append(to_identity(head.transform[:, :-1]))
    return torch.cat(parts, 1)


def label_variance(protocol: str, data: str) -> float:
    """The loss of predicting zero."""
    return TASKS[protocol][data].label_variance


@cache
def _pool(source: Source, size: int, device: torch.device) -> Pool:
    return Pool(source, size, device=device)


@cache
def _test(source: Source, size: int, device: torch.device) -> tuple[Prompt, float]:
    """Prompts that training never saw, the same for every model of a source, and the Bayes estimator's loss."""
    pool = Pool(source, size, device=device, purpose="test")
    prompt = pool.all()
    return prompt, pool.bayes(prompt)
