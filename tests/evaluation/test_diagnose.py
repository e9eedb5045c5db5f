import math

import numpy as np
import pytest
import torch

from evaluation.planted_models import Affine, AffineConfig, Pair
from looped.constructions.gradient_descent import looped_descent
from looped.evaluation.diagnose import best_of_others, diagnose, diverging_loop
from looped.evaluation.diagnosis import ROUNDING, WORSE, Estimate
from looped.evaluation.properties import loops_read_prompt, repeats_weights
from looped.evaluation.radius import dominant, spectral_radius
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import restricted
from looped.tasks.regression import LinearRegression

TASK = LinearRegression(d=3)
PART = Part(layers=1, heads=2)


def decoder(std=0.3, seed=1, **fields):
    torch.manual_seed(0)
    model = DecoderConfig(**{"d": 3, "width": 8, "heads": 2, "loops": 4, "positions": 20, **fields}).build().double()
    return spread(model, std, seed)


def spread(model, std, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=std, generator=generator)
        if "norm" in name and name.endswith("weight"):
            torch.nn.init.ones_(parameter)
    return model


def algoformer(**fields):
    torch.manual_seed(0)
    config = AlgoFormerConfig(
        **{"d": 3, "width": 8, "loops": 4, "positions": 20, "pre": PART, "loop": PART, "post": PART, **fields}
    )
    return spread(config.build().double(), 0.2)


MODELS = {
    "added": decoder(),
    "wide": decoder(0.1, width=32),
    "two layers": decoder(layers=2),
    "tied": decoder(inject="none"),
    "outside": decoder(0.15, inside=False),
    "algoformer": algoformer(inject="add"),
    "full attention": algoformer(causal=False, query="last"),
    "descent": looped_descent(d=3, n=4, loops=3, rate=0.1).double(),
}


@pytest.mark.parametrize("name", MODELS)
def test_radius_is_that_of_the_dense_jacobian(name):
    """At states that are not fixed points too. With full attention many eigenvalues lie close together."""
    model = MODELS[name]
    prompt = TASK.sample(batch=3, n=5, generator=torch.Generator().manual_seed(0)).to(torch.float64)
    with torch.no_grad():
        context = model.embed(prompt)
        state = model.start(context)
        for t in range(6):
            state = model.step(state, context, t)
    found = spectral_radius(model, state, context, t=6, generator=torch.Generator().manual_seed(3))
    for row in range(3):
        own = type(context)(*(leaf[row : row + 1] for leaf in context))

        def step(flat, row=row, own=own):
            return model.step(flat.view_as(state[row : row + 1]), own, 6).flatten()

        dense = torch.autograd.functional.jacobian(step, state[row].flatten())
        expected = np.abs(np.linalg.eigvals(dense.numpy())).max()
        assert found[row].item() == pytest.approx(expected, rel=1e-4 if name == "full attention" else 1e-6)


def test_dominant_handles_complex_pairs_repeated_values_and_zero():
    turn = torch.tensor([[0.0, -1.3], [1.3, 0.0]], dtype=torch.float64)
    matrices = torch.zeros(5, 6, 6, dtype=torch.float64)
    matrices[0, :2, :2] = turn
    matrices[0, 2:, 2:] = 1.2 * torch.eye(4, dtype=torch.float64)
    matrices[1] = 0.7 * torch.eye(6, dtype=torch.float64)
    matrices[2] = torch.diag(torch.tensor([-2.0, 1.9, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64))
    matrices[3] = torch.eye(6, dtype=torch.float64).roll(1, 0) * 0.8  # six eigenvalues of one modulus
    skew = torch.linalg.qr(torch.randn(5, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    matrices = skew @ matrices @ skew.mT
    start = torch.randn(5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = dominant(lambda v: torch.einsum("bij,bj->bi", matrices, v), start, iterations=30, subspace=6)
    assert found.tolist() == pytest.approx([1.3, 0.7, 2.0, 0.8, 0.0], abs=1e-8)


def layered_descent():
    """Three steps of descent by three layers with weights of their own."""
    model = restricted(d=3, loops=3, layers=3).build().double()
    for weight in model.parameters():
        weight.data = 0.7 * torch.eye(3).double().expand(3, 3, 3) if weight.ndim == 3 else torch.ones_like(weight)
    return model


AFFINE = {"loops": 8}
PLANTED = {
    "stable": (AffineConfig(**AFFINE, turn=0.5), ["Stable.", "It has learned", "Loops help", "it stays", "settles"]),
    "drifts": (
        AffineConfig(**AFFINE, flip=1.0, step=0.006, first=0.5, read=1.0),
        ["Drifts.", "It has learned", "it surely rises", "keeps moving", "Run it for"],
    ),
    "diverges": (
        AffineConfig(**AFFINE, flip=1.5, first=1e-3, read=1.0),
        ["Diverges.", "It has learned", "surely above 2 times its best", "diverges for 100%", "Run it for"],
    ),
    "cycles": (
        AffineConfig(**AFFINE, flip=-1.0, read=0.3),
        ["Cycles.", "It has learned", "it stays", "cycles, most with period 2 for 100%"],
    ),
    "collapsed": (
        AffineConfig(**AFFINE, rate=0.0),
        ["Collapsed.", "the same answer", "Loops do nothing", "Train it"],
    ),
    "not learned": (None, ["Not learned.", "It has not learned", "Train it"]),
    "unlooped": (AffineConfig(loops=1, rate=0.9), ["Unlooped.", "It has learned", "nothing is repeated"]),
    "mixed": (
        AffineConfig(**AFFINE, flip=1.5, share=0.3, read=0.01),
        ["Stable for ", "%, diverges for ", "of the prompts. It has learned", "Where it settles"],
    ),
}
NEVER_BESIDE = {
    "Stable.": ["Diverges", "Drifts", "surely rises", "not learned", "keeps moving", "grows for"],
    "Drifts.": ["it stays", "not learned", "Loops do nothing", "Where it settles"],
    "Diverges.": ["it stays", "not learned", "dies out", "path independent"],
    "Cycles.": ["settles", "keeps moving", "diverges", "not learned"],
    "Collapsed.": ["Loops help", "has learned", "Stable", "it stays"],
    "Not learned.": ["Loops help", "has learned", "Stable", "it stays"],
    "Unlooped.": ["Stable", "settles", "start", "Run it for"],
    "Stable for": ["Stable.", "not learned", "it stays"],
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", PLANTED)
def test_planted_models_are_described_rightly(kind, seed):
    config, words = PLANTED[kind]
    model = decoder(seed=seed) if config is None else config.build()
    diagnosis = diagnose(model, TASK, points=5, seed=seed, starts=2)
    assert diagnosis.kind == kind, diagnosis.verdict
    assert all(word in diagnosis.verdict for word in words), diagnosis.verdict
    silent = next(wrong for start, wrong in NEVER_BESIDE.items() if diagnosis.verdict.startswith(start))
    assert not [word for word in silent if word in diagnosis.verdict], diagnosis.verdict
    if kind == "mixed":
        share = diagnosis.shares["settles"]
        assert share.low < 0.7 < share.high or abs(share.mean - 0.7) < 0.1
        assert diagnosis.shares["diverges"].mean == pytest.approx(1 - share.mean)
    assert diagnosis.period == (2 if kind == "cycles" else None)
    assert diagnosis.looped == (kind != "unlooped")


def test_numbers_of_a_model_whose_loops_are_known():
    diagnosis = diagnose(AffineConfig(loops=4).build(), TASK, points=5, prompts=16, loops=90)
    assert diagnosis.radius is not None
    assert diagnosis.radius.low == pytest.approx(0.9, abs=1e-4), "a complex pair in a state of two parts"
    assert diagnosis.radius.high == pytest.approx(0.9, abs=1e-4)
    assert (diagnosis.repelled, diagnosis.same, diagnosis.starts) == (0, 1, 3)
    assert (diagnosis.diverges_at, diagnosis.overflows_at) == (None, None)
    assert diagnosis.apart == pytest.approx(0, abs=1e-4)
    assert diagnosis.error.at(1) / diagnosis.error.at(2) == pytest.approx(4, rel=1e-3)
    assert diagnosis.error.x == diagnosis.change.x == list(range(1, 91))
    assert diagnosis.gain.mean == pytest.approx(diagnosis.zero - diagnosis.error.at(4))
    assert diagnosis.help.mean == pytest.approx(diagnosis.error.at(1) - diagnosis.error.at(4))
    assert "path independent" in diagnosis.verdict


def test_settling_at_another_answer_from_other_starts_is_path_dependence():
    """A pair that stays where it starts, and is read."""
    stays = AffineConfig(loops=8, flip=1.0, first=0.1, read=1.0).build()
    diagnosis = diagnose(stays, TASK, points=5, prompts=32)
    assert diagnosis.same == 0
    assert "path dependent" in diagnosis.verdict
    assert diagnosis.radius is not None
    assert diagnosis.radius.median == pytest.approx(1.0, abs=1e-5)


def test_a_rise_that_the_prompts_cannot_decide_is_undecided():
    rare = AffineConfig(loops=8, turn=0.0, flip=1.05, first=0.02, share=0.05, read=1.5).build()
    diagnosis = diagnose(rare, TASK, points=5, prompts=40, seed=1)
    assert "undecided" in diagnosis.verdict
    assert "more prompts" in diagnosis.verdict
    assert diagnosis.rise.low < ROUNDING < diagnosis.rise.high


def test_an_overflow_is_said_and_nothing_is_measured_there():
    diagnosis = diagnose(AffineConfig(loops=2, rate=1e6).build(), TASK, points=5, prompts=4, loops=20)
    assert diagnosis.overflows_at is not None
    assert diagnosis.diverges_at is not None
    assert diagnosis.diverges_at <= diagnosis.overflows_at
    assert (diagnosis.radius, diagnosis.repelled, diagnosis.apart, diagnosis.starts) == (None, None, None, 0)
    assert f"overflows at loop {diagnosis.overflows_at}" in diagnosis.verdict


def test_an_overflow_before_the_trained_loops_is_said_without_nan():
    diagnosis = diagnose(AffineConfig(loops=8, rate=1e6).build(), TASK, points=5, prompts=4)
    assert diagnosis.overflows_at is not None
    assert 1 < diagnosis.overflows_at < 8
    assert diagnosis.verdict.startswith("Not learned.")
    assert "overflows at loop" in diagnosis.verdict
    assert "nan" not in diagnosis.verdict


def test_a_model_that_draws_is_diagnosed_equally_twice():
    class Drawing(Affine):
        def start(self, context):
            return Pair(torch.randn_like(context.ys), torch.zeros_like(context.ys[:, :2]))

    state = torch.random.get_rng_state()
    first, second = (diagnose(Drawing(AffineConfig(loops=4)), TASK, points=5, prompts=16) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.random.get_rng_state())
    assert first != diagnose(Drawing(AffineConfig(loops=4)), TASK, points=5, prompts=16, seed=1)


def test_without_injection_no_random_starts():
    diagnosis = diagnose(AffineConfig(loops=2, turn=0.0, injected=False).build(), TASK, points=5, prompts=4)
    assert (diagnosis.injects, diagnosis.starts, diagnosis.same) == (False, 0, None)
    assert "first state alone" in diagnosis.verdict
    assert diagnosis.loops == 8


def test_injection_and_repetition_are_measured_not_declared():
    generator = torch.Generator().manual_seed(0)
    prompt, other = (TASK.sample(batch=2, n=5, generator=generator).to(torch.float64) for _ in range(2))
    for name, model in MODELS.items():
        assert loops_read_prompt(model, prompt, other) == model.config.injects, name
        assert repeats_weights(model, prompt), name
    assert loops_read_prompt(AffineConfig(loops=4).build(), prompt, other), "whose config says nothing"
    assert not repeats_weights(layered_descent(), prompt)
    assert not repeats_weights(decoder(loops=1, layers=3), prompt)


def test_layers_with_weights_of_their_own_are_unlooped():
    diagnosis = diagnose(layered_descent(), TASK, points=13, prompts=64)
    assert (diagnosis.kind, diagnosis.loops, diagnosis.shares) == ("unlooped", 3, {})
    assert "loops share no weights" in diagnosis.verdict


def test_a_share_has_an_interval_at_its_ends_too():
    everything = Estimate.share(torch.ones(100, dtype=torch.bool), 0.9)
    assert everything.high == 1
    z = 1.6448536
    assert everything.low == pytest.approx(100 / (100 + z**2), rel=1e-6), "Wilson's at n of n"


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([1.0, 0.5, 0.1, 0.1, 0.1], None),
        ([1.0, 0.1, 0.15, 0.19, 0.19], None),
        ([1.0, 0.1, 0.15, 0.3, 0.5], 4),
        ([1.0, 0.1, 0.5, 0.1, 0.5], 5),
        ([1.0, 0.1, 0.5, 0.11, 0.12], None),
        ([0.1, math.inf, math.nan], 2),
        ([1e-9, 1e-7, 1e-7], None),
        ([math.nan, math.nan], 1),
        ([0.5], None),
    ],
)
def test_where_it_begins_to_diverge(means, expected):
    assert diverging_loop(torch.tensor(means).double().expand(6, -1)) == expected
    assert WORSE == 2
    assert ROUNDING < 1e-5


def test_differences_are_paired():
    """Prompts of very different error, each a little more than twice as bad: unpaired intervals would overlap."""
    hardness = torch.logspace(-4, 0, 40, dtype=torch.float64)[:, None]
    assert diverging_loop(hardness * torch.tensor([3.0, 1.0, 2.05])) == 3
    assert diverging_loop(hardness * torch.tensor([3.0, 1.0, 1.95])) is None


def test_the_best_loop_of_a_prompt_is_chosen_on_other_prompts():
    errors = torch.tensor([[1.0, 2.0], [1.0, 2.0], [5.0, 3.0], [5.0, 3.0]])
    assert best_of_others(errors).tolist() == [2.0, 2.0, 5.0, 5.0]


def test_one_seed_gives_one_diagnosis_and_no_trace():
    model = decoder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one = diagnose(model, TASK, points=5, prompts=8, loops=6)
    assert one == diagnose(model, TASK, points=5, prompts=8, loops=6)
    assert one != diagnose(model, TASK, points=5, prompts=8, loops=6, seed=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_diagnosed_is_refused():
    cases = [
        (decoder(loops=1, layers=3), {"loops": 4}, "share no weights"),
        (decoder(), {"loops": 4}, "`loops` must be above the trained loops=4"),
        (decoder(), {"prompts": 1}, "`prompts` must be at least 2"),
        (decoder(), {"starts": 0}, "`starts` must be at least 1"),
    ]
    for model, arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            diagnose(model, TASK, **{"points": 5, "prompts": 4, **arguments})
