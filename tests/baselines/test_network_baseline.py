import pytest
import torch
from torch import nn

from looped.baselines import network
from looped.baselines.network import initial_weights, minibatches, two_layer
from looped.prompt import Prompt


def prompts(batch=4, n=14, d=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(batch, n, d, generator=generator, dtype=dtype)
    return Prompt(xs, torch.randn(batch, n, generator=generator, dtype=dtype))


def alone(prompt, row, i, *, hidden, steps, minibatch, rate, seed):
    """One ordinary network trained in an ordinary loop, from the same start and on the same minibatches."""
    batch, _, d = prompt.xs.shape
    generator = torch.Generator().manual_seed(seed * 1_000_003 + i)
    start = initial_weights(batch, d, hidden, generator, like=prompt.xs)
    batches = minibatches(i, minibatch, steps, generator)
    model = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, 1)).double()
    with torch.no_grad():
        for layer, weight, bias in ((model[0], start[0], start[1]), (model[2], start[2], start[3])):
            layer.weight.copy_(weight[row].T)
            layer.bias.copy_(bias[row, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for seen in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(prompt.xs[row, seen])[:, 0], prompt.ys[row, seen]).backward()
        optimizer.step()
    return model(prompt.xs[row, i]).item()


@pytest.mark.parametrize("i", [1, 6, 13])
def test_each_network_of_the_batch_is_one_trained_alone(i):
    prompt, options = prompts(), {"hidden": 8, "steps": 60, "minibatch": 5, "rate": 0.02, "seed": 3}
    got = two_layer(prompt, at=[i], **options)
    for row in range(4):
        assert got[row, i].item() == pytest.approx(alone(prompt, row, i, **options), rel=1e-8, abs=1e-10)


def test_the_start_is_a_linear_layers_own(generator):
    first, bias, second, last = initial_weights(2000, 4, 25, generator, like=torch.zeros(1))
    for weight, inputs in ((first, 4), (bias, 4), (second, 25), (last, 25)):
        bound = inputs**-0.5
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert weight.mean().abs() < 0.05 * bound
    reference = nn.Linear(4, 25).weight
    assert reference.abs().max() <= 0.5


def test_minibatches_are_drawn_without_repetition(generator):
    drawn = minibatches(9, 4, 500, generator)
    assert drawn.shape == (500, 4)
    assert (drawn.sort(dim=1).values.diff(dim=1) > 0).all()
    assert torch.bincount(drawn.flatten(), minlength=9).min() > 170
    assert minibatches(3, 10, 5, generator).sort(dim=1).values.tolist() == [[0, 1, 2]] * 5


def test_an_answer_does_not_depend_on_chunks_or_on_the_other_positions(monkeypatch):
    prompt, options = prompts(batch=5), {"hidden": 6, "steps": 10}
    whole = two_layer(prompt, at=[2, 9], **options)
    assert torch.equal(two_layer(prompt, at=[9], **options)[:, 9], whole[:, 9])
    monkeypatch.setattr(network, "CHUNK", 2 * 6 * 5)
    torch.testing.assert_close(two_layer(prompt, at=[2, 9], **options), whole, equal_nan=True, rtol=1e-12, atol=1e-13)
    assert whole.isnan().all(0).sum() == 12


def test_it_learns():
    xs = torch.rand(20, 42, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    prompt = Prompt(xs, xs[..., 0].abs())
    answers = two_layer(prompt, hidden=20, steps=300, rate=0.02, at=[41])
    assert (answers[:, 41] - prompt.ys[:, 41]).abs().mean() < 0.05


def test_progress_is_told_to_the_end():
    shares = []
    two_layer(prompts(), hidden=2, steps=1, at=[1, 2], progress=shares.append)
    assert shares == [0.5, 1.0]


@pytest.mark.parametrize("options", [{"hidden": 0}, {"minibatch": 0}, {"steps": -1}])
def test_senseless_parameters_are_refused(options):
    with pytest.raises(ValueError, match="must be at least"):
        two_layer(prompts(), **options)
