"""Trains the models of cheng24's figures, those of one shape as one family; what figures share is trained once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.claims import Settings
from looped.experiment import Adam
from looped.functional.attention import softmax
from looped.functional.schedules import Trapezoid
from looped.models.kernel_loss import HeadWeights, head_weights, in_context_loss, predictions, prepare
from looped.models.kernel_transformer import functional
from looped.papers.cheng24.worlds import HEADS, D, Pool, Source
from looped.prompt import Prompt
from looped.training.clip import Clip
from looped.training.family import Trained, build_family, family_folder, train_family
from looped.training.rollback import Rollback
from looped.training.stopping import stop_signals


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line's point: an architecture on one distribution, for all seeds."""

    world: str
    data: str
    heads: tuple[str, ...]
    n: int
    layers: int
    transform: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is kept of a case, one entry a seed."""

    losses: list[float]
    """Test loss."""
    bayes: list[float]
    """The Bayes estimator's on the same prompts."""
    distances: list[list[list[float]]]
    """Distance to a multiple of I at every kept step: (seeds, kept, matrices), B'C of all layers, then A."""
    first: float
    """Mean training loss at the first step."""


_done: dict[tuple[Case, str], Outcome] = {}
OTHER = {"paper": "released", "released": "paper"}


def outcomes(cases: Iterable[Case], sizes: Mapping[str, Any], settings: Settings) -> dict[Case, Outcome]:
    """Every case's outcome; those that no figure has asked for yet in this process are trained, shapes side by side."""
    device = settings.device
    key = json.dumps({name: sizes[name] for name in SIZES}, sort_keys=True) + str(device)
    wanted = list(dict.fromkeys(cases))
    # on a GPU the twin figure's models fill the same kernels, and are there when it asks for them
    twins = [replace(case, world=OTHER[case.world]) for case in wanted] if device.type == "cuda" else []
    shapes: dict[tuple, list[Case]] = {}
    for case in [*wanted, *twins]:
        if (case, key) not in _done:
            shapes.setdefault((case.heads, case.n, case.layers, case.transform), []).append(case)
    # the costly ones first, so that the last thread does not end alone
    groups = sorted(shapes.values(), key=lambda group: -group[0].layers * group[0].n ** 2 * len(group))
    families = [_build(group, sizes, device) for group in groups]
    threads = torch.get_num_threads()
    alone = device.type != "cpu" or threads == 1 or len(groups) == 1
    torch.set_num_threads(threads if alone else 1)
    try:
        with stop_signals() as stop, ThreadPoolExecutor(1 if alone else threads) as workers:
            jobs = [
                workers.submit(_train, group, family, sizes, settings)
                for group, family in zip(groups, families, strict=True)
            ]
            try:
                for count, (group, job) in enumerate(zip(groups, jobs, strict=True)):
                    first = group[0]
                    settings.progress(f"{'+'.join(first.heads)}, n={first.n}, L={first.layers}", count / len(groups))
                    _done.update({(case, key): outcome for case, outcome in zip(group, job.result(), strict=True)})
            except BaseException:  # what runs is saved and ends, what waits is not begun
                stop.set()
                workers.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
        _pool.cache_clear()
    return {case: _done[case, key] for case in wanted}


SIZES = ("batch", "resample", "steps", "seeds", "test", "pool", "optimizer", "kept")
"""The sizes that training reads."""


def _build(group: Sequence[Case], sizes: Mapping[str, Any], device: torch.device):
    first = group[0]
    config = functional(
        d=D,
        loops=first.layers,
        layers=first.layers,
        kernel=tuple(HEADS[name] for name in first.heads),
        transform=first.transform,
    )
    return build_family(config, seeds=[seed for _ in group for seed in sizes["seeds"]], device=device)


def rollback_adam(optimizer: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Adam whose rate falls to 0, each layer's gradient clipped, models that jump sent back.

    `clip` is the largest norm of the last of nine layers' gradients: `clip` / (9 - i)^2 in layer i.
    """
    adam = Adam(
        learning_rate=optimizer["rate"], betas=tuple(optimizer["betas"]), schedule=Trapezoid(decay=optimizer["decay"])
    )
    norms = (optimizer["clip"] / (9.0 - torch.arange(layers)) ** 2).tolist()
    return {"optimizer": adam, "clip": Clip(norm=tuple(norms), over="layer"), "rollback": Rollback()}


def train_group(group: Sequence[Case], family: Any, sizes: Mapping[str, Any], settings: Settings) -> Trained:
    """Train one family, models ordered by case and then by seed, or load it."""
    first, device = group[0], settings.device
    heads = tuple(HEADS[name] for name in first.heads)
    sources = _sources(group, sizes)
    generators = [source.generators(device) for source in sources]
    roots = torch.stack([source.root for source in sources]).to(device, torch.float32)

    def draw(step: int):
        pools = [_pool(source, sizes["pool"], device) for source in sources]
        return prepare(
            _join([pool.sample(sizes["batch"], *pair) for pool, pair in zip(pools, generators, strict=True)]), heads
        )

    def loss(model: Any, batch: Any) -> Tensor:
        return in_context_loss(weights_of(model, first.n), heads, batch)

    identity = {
        "cases": [asdict(case) for case in group],
        "sizes": {name: sizes[name] for name in SIZES},
        "device": device.type,  # it decides the random numbers
    }
    return train_family(
        family,
        loss,
        folder=family_folder(settings.runs, "cheng24", identity),
        identity=identity,
        steps=sizes["steps"],
        **rollback_adam(sizes["optimizer"], first.layers),
        draw=draw,
        every=sizes["resample"],
        generators=[generator for pair in generators for generator in pair],
        log_every=max(1, sizes["steps"] // sizes["kept"]),
        watch=lambda model: distances(model, roots),
        graph=True,
    )


def _sources(group: Sequence[Case], sizes: Mapping[str, Any]) -> list[Source]:
    return [Source(world=case.world, data=case.data, n=case.n, seed=seed) for case in group for seed in sizes["seeds"]]


def _train(group: Sequence[Case], family: Any, sizes: Mapping[str, Any], settings: Settings) -> list[Outcome]:
    """Train one family and test it."""
    first, seeds, device = group[0], list(sizes["seeds"]), settings.device
    heads = tuple(HEADS[name] for name in first.heads)
    trained = train_group(group, family, sizes, settings)
    settings.trained(trained.folder)
    assert trained.watched is not None
    watched = trained.watched.double().cpu()
    tests = [_test(source, sizes["test"], device) for source in _sources(group, sizes)]
    with torch.no_grad():
        weights, found = weights_of(family, first.n), []
        for index, (prompt, _) in enumerate(tests):
            own = [_one(one, index) for one in weights]
            guess = predictions(own, heads, prepare(prompt, heads))[0]
            found.append(float((guess - prompt.ys[:, -1]).square().mean()))
    split = len(seeds)
    return [
        Outcome(
            losses=found[k * split : (k + 1) * split],
            bayes=[bayes for _, bayes in tests[k * split : (k + 1) * split]],
            distances=watched[:, k * split : (k + 1) * split].permute(1, 0, 2).tolist(),
            first=float(trained.losses[0][k * split : (k + 1) * split].mean()),
        )
        for k in range(len(group))
    ]


def _one(weights: HeadWeights, index: int) -> HeadWeights:
    """One model's weights out of a family's."""
    own = slice(index, index + 1)
    transform = None if weights.transform is None else weights.transform[own]
    return HeadWeights(weights.score[own], transform, weights.label[own])


def kept_steps(sizes: Mapping[str, Any]) -> list[int]:
    """The steps before which distances were read, and the last."""
    return [*range(0, sizes["steps"], max(1, sizes["steps"] // sizes["kept"])), sizes["steps"]]


def weights_of(model: Any, n: int) -> list[HeadWeights]:
    """The heads' weights with M = B'C, in units that suit one rate: r over n and A over 10 n, unless h is the softmax.

    A sum over n examples wants weights of the order of 1/n; covariates that grow in every layer make scores explode.
    """
    found = []
    for head in model.heads:
        mean = head.head.kernel is softmax
        transform = head.transform * (1 if mean else 0.1 / n) if hasattr(head, "transform") else None
        found.append(head_weights(head.key, head.query, head.label * (1 if mean else 1 / n), transform))
    return found


def distances(model: Any, roots: Float[Tensor, "models d d"]) -> Float[Tensor, "models matrices"]:
    """dist(M, I) of Sigma^{1/2} B'C Sigma^{1/2} in every layer, then of A in all layers but the last, first head.

        dist(M, I) = min_a |M - a I| / |M|

    Ref: cheng24, Fig. 3 and App. H.2. The last A has no effect on the prediction and so never moves.
    """
    head = weights_of(model, 1)[0]
    found = [to_identity(roots[:, None] @ head.score @ roots[:, None])]
    if head.transform is not None:
        found.append(to_identity(head.transform[:, :-1]))
    return torch.cat(found, 1)


def to_identity(matrix: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    """min_a |M - a I| / |M|, Frobenius norms; the best a is the mean of the diagonal."""
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return (matrix - mean * eye).norm(dim=(-2, -1)) / matrix.norm(dim=(-2, -1))


def _join(prompts: Sequence[Prompt]) -> Prompt:
    return Prompt(torch.stack([one.xs for one in prompts]), torch.stack([one.ys for one in prompts]))


@cache
def _pool(source: Source, size: int, device: torch.device) -> Pool:
    return Pool(source, size, device=device)


@cache
def _test(source: Source, size: int, device: torch.device) -> tuple[Prompt, float]:
    """Prompts that training never saw, the same for every model of a source, and the Bayes estimator's loss."""
    pool = Pool(source, size, device=device, purpose="test")
    prompt = pool.all()
    return prompt, pool.bayes(prompt)
