import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from looped.prompt import Sequence, join
from looped.tasks.sequences import AutoRegression, ChainOfThought, Representation, RepresentationRegression


def draw(task, *, batch=6, n=5, seed=0, **fields):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), **fields)


def phi_of(phi, x):
    """The network in NumPy, one input at a time."""
    *first, last = (weight.numpy() for weight in phi.weights(torch.device("cpu")))
    h = np.asarray(x, dtype=np.float64)
    for weight in first:
        v = weight @ h
        h = np.where(v > 0, v, phi.slope * v)
    return last @ h


SIZES = {"inputs": st.integers(1, 5), "features": st.integers(1, 4), "hidden": st.integers(1, 6)}


@settings(max_examples=15, deadline=None)
@given(**SIZES, layers=st.integers(1, 4), slope=st.sampled_from([0.01, 0.5]), seed=st.integers(0, 9))
def test_phi_is_the_network(inputs, features, hidden, layers, slope, seed):
    phi = Representation(inputs=inputs, features=features, hidden=hidden, layers=layers, slope=slope, seed=seed)
    x = torch.randn(3, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert len(phi.weights(x.device)) == layers
    assert np.allclose(phi(x), [phi_of(phi, row) for row in x.numpy()], rtol=1e-12, atol=1e-12)
    # leaky ReLU without biases: scaling the input scales the output
    assert torch.allclose(phi(3 * x), 3 * phi(x), rtol=1e-12)


def test_phi_is_fixed_by_its_seed_alone_and_keeps_the_scale():
    first, again, other = (Representation(inputs=20, features=20, hidden=20, seed=seed) for seed in (0, 0, 1))
    x = torch.randn(2000, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first(x), again(x))
    assert not torch.allclose(first(x), other(x))
    assert torch.allclose(first(x.float()).double(), first(x), atol=1e-4)
    sizes = [Representation(inputs=20, features=20, hidden=20, seed=seed)(x).square().mean() for seed in range(40)]
    assert 0.8 < float(torch.stack(sizes).mean()) < 1.2


def test_regression_labels_are_linear_in_phi():
    task = RepresentationRegression(d=3, features=4, hidden=5, representation=2)
    prompt = draw(task)
    for row in range(6):
        a = prompt.truth["a"][row].double().numpy()
        for x, y in zip(prompt.xs[row], prompt.ys[row], strict=True):
            assert float(y) == pytest.approx(float(a @ phi_of(task.phi, x)), abs=1e-5)
    third, plain = RepresentationRegression(d=3, representation=3), RepresentationRegression(d=3)
    assert not torch.equal(draw(third).ys, draw(plain).ys)


def test_noise_has_its_standard_deviation():
    task = RepresentationRegression(d=3, noise=0.7)
    prompt = draw(task, batch=4000)
    clean = torch.einsum("bnf,bf->bn", task.phi(prompt.xs), prompt.truth["a"])
    assert float((prompt.ys - clean).std()) == pytest.approx(0.7, rel=0.03)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_state_is_made_of_the_last_ones(order):
    """Without noise every state follows from those before it, read oldest first."""
    task = AutoRegression(d=3, order=order, noise=0.0, features=4, hidden=5)
    prompt = draw(task, n=7)
    assert torch.equal(prompt.tokens[:, 1:], prompt.targets[:, :-1])
    assert prompt.weights.tolist() == [[0.0] * (order - 1) + [1.0] * (8 - order)] * 6
    for row in range(6):
        a = prompt.truth["a"][row].double().numpy()
        series = np.vstack([prompt.tokens[row], prompt.targets[row, -1:]]).astype(np.float64)
        for t in range(order, 8):
            raw = phi_of(task.phi, series[t - order : t].ravel())
            assert np.allclose(series[t], a @ (raw / np.linalg.norm(raw)), atol=1e-4)


def test_a_series_never_explodes():
    task = AutoRegression(d=20)
    prompt = draw(task, batch=200, n=200)
    assert prompt.tokens.abs().max() < 30
    late = task.error(torch.zeros_like(prompt.targets), prompt)[:, 100:].mean()
    assert float(late) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_series_shorter_than_its_order_is_not_scored(n):
    prompt = draw(AutoRegression(d=2, order=4), n=n)
    assert prompt.tokens.shape == (6, n, 2)
    assert not prompt.weights.any()


@pytest.mark.parametrize(("layers", "slope"), [(1, 0.01), (3, 0.5)])
def test_a_chain_shows_every_layer(layers, slope):
    task = ChainOfThought(d=3, layers=layers, slope=slope)
    prompt = draw(task, n=4)
    tokens, targets, weights = (
        tensor.unflatten(1, (4, layers + 1)) for tensor in (prompt.tokens, prompt.targets, prompt.weights)
    )
    for row in range(6):
        for example in range(4):
            s = tokens[row, example, 0].double().numpy()
            for layer in range(layers):
                v = prompt.truth["w"][row, layer].double().numpy() @ s
                s = np.where(v > 0, v, slope * v)
                assert np.allclose(tokens[row, example, layer + 1], s, atol=1e-5)
                assert torch.equal(targets[row, example, layer], tokens[row, example, layer + 1])
    assert not weights[:, :, -1].any()
    assert weights[:, :, :-1].all()
    assert not targets[:, :, -1].any()


def test_every_layer_keeps_the_size_of_states():
    """So that the declared variance, 1, is that of each step."""
    prompt = draw(ChainOfThought(d=8, layers=4, slope=0.1), batch=20_000, n=1)
    by_step = prompt.targets.double().square().mean(-1)[:, :4]
    spread = by_step.std(0) / len(by_step) ** 0.5
    assert ((by_step.mean(0) - 1).abs() < 4 * spread).all()


def test_error_is_the_mean_over_outputs_in_units_of_predicting_zero():
    task = AutoRegression(d=3, noise=2.0)
    prompt = draw(task)
    guess = torch.randn(2, *prompt.targets.shape, generator=torch.Generator().manual_seed(1))
    by_hand = ((guess.numpy() - prompt.targets.numpy()) ** 2).mean(-1) / 5
    assert np.allclose(task.error(guess, prompt), by_hand, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (AutoRegression, {"order": 0}, "`order` must be at least 1; got 0"),
        (AutoRegression, {"noise": -1.0}, "`noise` is a standard deviation"),
        (AutoRegression, {"hidden": 0}, "`hidden` must be at least 1; got 0"),
        (RepresentationRegression, {"features": 0}, "`features` must be at least 1; got 0"),
        (RepresentationRegression, {"noise": -1.0}, "`noise` is a standard deviation"),
        (ChainOfThought, {"layers": 0}, "`layers` must be at least 1; got 0"),
    ],
)
def test_fields_out_of_range_are_refused(kind, fields, said):
    with pytest.raises(ValueError, match=said):
        kind(**fields)


# the prompt itself


def sequence(batch=4, seq=5, **fields):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(batch, seq, 3, generator=generator)
    return Sequence(tokens, torch.randn(batch, seq, 2, generator=generator), **fields)


def text(batch=4, seq=5):
    ids = torch.arange(batch * seq).view(batch, seq)
    return Sequence(ids, ids + 1, torch.rand(batch, seq))


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([3, 0]), torch.tensor([True, False, True, False])])
def test_places_rows_and_head_of_a_sequence(index):
    for prompt, d in ((sequence(), 3), (text(), 1)):
        assert (prompt.places, prompt.num_positions, prompt.d) == ((4, 5), 5, d)
    whole = sequence(weights=torch.rand(4, 5), truth={"a": torch.randn(4, 2)})
    part = whole.rows(index)
    for name in ("tokens", "targets", "weights"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[index])
        assert torch.equal(getattr(whole.head(2), name), getattr(whole, name)[:, :2])
    assert torch.equal(part.truth["a"], whole.truth["a"][index])
    assert torch.equal(text().head(3).tokens, text().tokens[:, :3])
    assert sequence().head(3).weights is None


def test_precision_leaves_whole_numbers_alone():
    double = text().to(torch.float64)
    assert double.tokens.dtype == double.targets.dtype == torch.int64
    assert double.weights.dtype == torch.float64
    assert sequence().to(torch.float64).targets.dtype == torch.float64
    assert text().to("meta").tokens.device.type == "meta"


def test_join_puts_an_axis_of_models_in_front():
    first, second = draw(AutoRegression(d=2), seed=0), draw(AutoRegression(d=2), seed=1)
    both = join([first, second])
    assert both.places == (2, 6, 5)
    assert torch.equal(both.targets[1], second.targets)
    assert torch.equal(both.truth["a"][0], first.truth["a"])
    assert join([first]) is first


@pytest.mark.usefixtures("unchecked")
def test_sequences_that_do_not_fit_are_refused():
    message = r"`tokens` and `targets` must be \(batch, seq, d\).*make the first axes agree"
    with pytest.raises(ValueError, match=message):
        Sequence(torch.zeros(4, 5, 3), torch.zeros(4, 6, 3))
    with pytest.raises(ValueError, match="Add the missing axis"):
        Sequence(torch.zeros(5, 3), torch.zeros(5, 3))
    with pytest.raises(ValueError, match="at least one prompt, token and dimension"):
        Sequence(torch.zeros(0, 5, 3), torch.zeros(0, 5, 3))
    with pytest.raises(ValueError, match=r"one number per position, \(4, 5\); got \(5,\)"):
        sequence(weights=torch.ones(5))
