"""`model(xs, ys)`: tensors in place of a prompt."""

import numpy as np
import pytest
import torch

import looped
from looped.models.kernel_transformer import restricted, vector

CONFIGS = [looped.DecoderConfig(d=3, width=8, heads=2, loops=2, positions=16), restricted(d=3, loops=2)]
DECODER = CONFIGS[0]


@pytest.fixture
def pairs(generator):
    prompt = looped.LinearRegression(d=3).sample(batch=4, n=5, generator=generator)
    return prompt.xs, prompt.ys


@pytest.mark.parametrize("config", CONFIGS)
def test_tensors_are_a_prompt_and_the_last_label_may_be_left_out(config, pairs):
    (xs, ys), model = pairs, config.build()
    expected = model(looped.Prompt(xs, ys), loops=3, keep=2)
    assert torch.equal(model(xs, ys, loops=3, keep=2), expected)
    assert torch.equal(model(xs, ys[:, :-1], loops=3, keep=2), expected)
    assert torch.equal(model.predict(xs, ys[:, :-1], loops=3), expected[-1])


def test_a_first_answer_needs_no_labels(pairs):
    xs, ys = pairs
    model = DECODER.build()
    assert torch.equal(model(xs[:, :1], ys[:, :0]), model(xs[:, :1], ys[:, :1]))


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda xs, ys: (xs,), r"got one Tensor alone. Give the labels too: `model\(xs, ys\)`"),
        (lambda xs, ys: (xs, ys[:, :-2]), r"`xs` must be \(batch, n, d\) and `ys` \(batch, n\); got \(4, 5, 3\)"),
        (lambda xs, ys: (xs[0], ys[0]), r"`xs` must be \(batch, n, d\).* Add the missing axis"),
        (lambda xs, ys: (xs[..., :2], ys), r"reads x of dimension 3; got 2"),
        (lambda xs, ys: (xs.int(), ys), r"a prompt holds floats; got torch.int32"),
        (lambda xs, ys: (np.asarray(xs), ys), r"`xs` must be a torch tensor; got ndarray"),
        (lambda xs, ys: (looped.Prompt(xs, ys), ys), r"a prompt holds its labels already"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_other_shapes_are_refused_in_one_line(pairs, give, message):
    model = DECODER.build()
    for method in (model, model.predict):
        with pytest.raises(ValueError, match=message):
            method(*give(*pairs))


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_reads_the_last_label_needs_it(pairs):
    xs, ys = pairs
    with pytest.raises(ValueError, match=r"`xs` must be \(batch, n, d\) and `ys` \(batch, n\)"):
        vector(d=3, loops=1).build()(xs, ys[:, :-1])
