import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.constructions.newton import NUM_BEFORE, newton_loop
from looped.prompt import Prompt


def instances(n, d, seed, noise):
    rng = np.random.default_rng(seed)
    xs, w = rng.normal(size=(2, n + 1, d)), rng.normal(size=(2, d))
    return xs, np.einsum("bnd,bd->bn", xs, w) + noise * rng.normal(size=(2, n + 1))


def newton(examples, labels, query, alpha, steps):
    covariance = examples.T @ examples
    inverse = alpha * covariance
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ covariance @ inverse
    return query @ inverse @ examples.T @ labels


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 8), d=st.integers(1, 4), steps=st.integers(0, 8), seed=st.integers(0, 999))
def test_the_loop_is_newtons_iteration(n, d, steps, seed):
    xs, ys = instances(n, d, seed, noise=0.5)
    alpha = float(0.9 / max(np.linalg.norm(x[:-1], 2) for x in xs) ** 4)
    model = newton_loop(d=d, n=n, loops=NUM_BEFORE + steps, alpha=alpha)
    got = model.predict(Prompt(torch.tensor(xs), torch.tensor(ys)))
    for b in range(2):
        expected = newton(xs[b, :-1], ys[b, :-1], xs[b, -1], alpha, steps)
        assert got[b].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_it_uses_as_many_coordinates_as_it_says_and_ends_at_least_squares():
    xs, ys = instances(9, 3, 0, noise=0.1)
    model = newton_loop(d=3, n=9, loops=30, alpha=1e-3)
    assert model.config.width == 2 * 3 + 1 + 9
    assert model.config.layers == NUM_BEFORE + 1
    got = model.predict(Prompt(torch.tensor(xs), torch.tensor(ys)))
    for b in range(2):
        expected = xs[b, -1] @ np.linalg.lstsq(xs[b, :-1], ys[b, :-1])[0]
        assert got[b].item() == pytest.approx(expected, rel=1e-8)


def test_fewer_examples_than_positions_are_read_too():
    xs, ys = instances(4, 2, 1, noise=0.0)
    short = Prompt(torch.tensor(xs), torch.tensor(ys))
    exact, roomy = (newton_loop(d=2, n=n, loops=7, alpha=1e-2).predict(short) for n in (4, 6))
    torch.testing.assert_close(exact, roomy)


CHANGES = {"sign": lambda x: -x, "scale": lambda x: 1.5 * x, "turn": lambda x: x.mT.clone()}
MUTATIONS = [(head, name, change) for head in range(3) for name in ("value", "score") for change in ("sign", "scale")]


# head 0 is symmetric, and x_i'M x_j = x_j'M x_i makes turning head 1's scores no change
@pytest.mark.parametrize(("head", "name", "change"), [*MUTATIONS, (1, "value", "turn"), (2, "score", "turn")])
def test_every_weight_matters(head, name, change):
    xs, ys = instances(6, 3, 2, noise=0.3)
    prompt = Prompt(torch.tensor(xs), torch.tensor(ys))
    model = newton_loop(d=3, n=6, loops=NUM_BEFORE + 3, alpha=1e-3)
    before = model.predict(prompt)
    model.put(head, **{name: CHANGES[change](model.heads[head].get_parameter(name).detach())})
    assert (model.predict(prompt) - before).abs().max() > 1e-6
