import numpy as np
import pytest
import torch

from looped.constructions.gradient_descent import functional_descent, vector_descent
from looped.functional import attention, kernels
from looped.prompt import Prompt


def prompt_of(*lead, n=5, d=3, seed=0):
    rng = np.random.default_rng(seed)
    return Prompt(torch.tensor(rng.normal(size=(*lead, n + 1, d))), torch.tensor(rng.normal(size=(*lead, n + 1))))


MAKERS = [
    vector_descent,
    lambda **fields: functional_descent(kernel=kernels.exp, **fields),
    lambda **fields: functional_descent(
        kernel=(kernels.linear, attention.softmax), maps=torch.randn(2, 3, 3).double().unbind(), **fields
    ),
]


@pytest.mark.parametrize("make", MAKERS)
def test_one_rate_is_looped_and_equals_as_many_layers(make):
    torch.manual_seed(0)
    looped = make(d=3, rates=[0.05], loops=6)
    torch.manual_seed(0)
    deep = make(d=3, rates=[0.05] * 6)
    assert (looped.config.layers, deep.config.layers) == (1, 6)
    torch.testing.assert_close(looped.predict(prompt_of(4)), deep.predict(prompt_of(4)), atol=1e-13, rtol=0)


@pytest.mark.parametrize("make", MAKERS)
def test_rates_with_a_first_axis_are_models_side_by_side(make):
    rates = torch.tensor([[0.02, 0.05], [0.1, 0.01], [0.03, 0.03]], dtype=torch.float64)
    prompt = prompt_of(3, 1)
    torch.manual_seed(0)
    many = make(d=3, rates=rates).predict(prompt)
    for i in range(3):
        torch.manual_seed(0)
        alone = make(d=3, rates=rates[i]).predict(Prompt(prompt.xs[i], prompt.ys[i]))
        torch.testing.assert_close(many[i], alone, atol=1e-13, rtol=0)


def test_weights_are_the_papers():
    model = functional_descent(d=2, rates=[0.3, 0.4], kernel=kernels.relu)
    weights = dict(model.heads[0].named_parameters())
    assert weights["label"].tolist() == [-0.3, -0.4]
    assert torch.equal(weights["key"], torch.eye(2).expand(2, 2, 2).double())
    assert torch.equal(weights["query"], weights["key"])
    assert "transform" not in weights
    vectors = dict(vector_descent(d=2, rates=[0.3]).heads[0].named_parameters())
    assert vectors["value"][0].tolist() == [[0.3, 0, 0], [0, 0.3, 0], [0, 0, 0]]
    assert torch.equal(vectors["score"][0], torch.eye(3).double())
