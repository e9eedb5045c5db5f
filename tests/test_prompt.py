import numpy as np
import pytest
import torch

from looped.prompt import Prompt, Sequence


def make(batch=4, n=5, d=3, **fields):
    generator = torch.Generator().manual_seed(0)
    xs, ys = torch.randn(batch, n, d, generator=generator), torch.randn(batch, n, generator=generator)
    return Prompt(xs, ys, **fields)


def test_counts():
    assert (make().num_examples, make().d) == (5, 3)


def test_models_may_stand_in_front():
    prompt = Prompt(torch.zeros(2, 4, 5, 3), torch.zeros(2, 4, 5))
    assert (prompt.num_examples, prompt.d) == (5, 3)
    assert prompt.head(2).xs.shape == (2, 4, 2, 3)


def test_rows_takes_everything_of_a_prompt_along():
    ids = torch.arange(4)
    prompt = make(weights=torch.rand(4, 5), truth={"w": torch.randn(4, 3), "id": ids})
    for index in (slice(1, 3), torch.tensor([3, 0, 3]), torch.tensor([True, False, False, True])):
        part = prompt.rows(index)
        assert torch.equal(part.xs, prompt.xs[index])
        assert torch.equal(part.ys, prompt.ys[index])
        assert torch.equal(part.weights, prompt.weights[index])
        assert torch.equal(part.truth["w"], prompt.truth["w"][index])
        assert torch.equal(part.truth["id"], ids[index])


def test_head_keeps_the_first_pairs():
    prompt = make(weights=torch.rand(4, 5), truth={"w": torch.randn(4, 3)})
    part = prompt.head(2)
    assert torch.equal(part.xs, prompt.xs[:, :2])
    assert torch.equal(part.ys, prompt.ys[:, :2])
    assert torch.equal(part.weights, prompt.weights[:, :2])
    assert torch.equal(part.truth["w"], prompt.truth["w"])
    assert make().head(2).weights is None


def test_precision_changes_floats_alone():
    prompt = make(weights=torch.ones(4, 5), truth={"w": torch.randn(4, 3), "id": torch.arange(4)}).to(torch.float64)
    kinds = [prompt.xs.dtype, prompt.ys.dtype, prompt.weights.dtype, prompt.truth["w"].dtype]
    assert kinds == [torch.float64] * 4
    assert prompt.truth["id"].dtype == torch.int64


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_a_device_takes_everything(device):
    prompt = make(weights=torch.ones(4, 5), truth={"w": torch.randn(4, 3), "id": torch.arange(4)}).to(device)
    tensors = [prompt.xs, prompt.ys, prompt.weights, *prompt.truth.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("xs", [torch.zeros(4, 5, 3), torch.zeros(4, 1, 3)])
def test_axes_must_agree(xs, unchecked):
    with pytest.raises(ValueError, match=r"`xs` must be \(batch, n, d\) and `ys` \(batch, n\); got"):
        Prompt(xs, torch.zeros(4, 2))


def test_one_prompt_still_needs_its_batch_axis(unchecked):
    with pytest.raises(ValueError, match="Add the missing axis"):
        Prompt(torch.zeros(5, 3), torch.zeros(5))


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_nothing_is_no_prompt(shape):
    with pytest.raises(ValueError, match="at least one prompt, example and dimension"):
        Prompt(torch.zeros(shape), torch.zeros(shape[:-1]))
    with pytest.raises(ValueError, match="at least one"):
        make().head(0)


def test_integers_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"holds floats; got torch\.int64"):
        Prompt(torch.zeros(4, 5, 3, dtype=torch.int64), torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"and torch\.int64"):
        Prompt(torch.zeros(4, 5, 3), torch.zeros(4, 5, dtype=torch.int64))


def test_weights_have_the_shape_of_ys(unchecked):
    with pytest.raises(ValueError, match=r"`weights` must have one number per position, \(4, 5\); got \(5,\)"):
        make(weights=torch.ones(5))


@pytest.mark.parametrize(("part", "value"), [("xs", np.ones((2, 5, 3))), ("ys", [[0.0] * 5] * 2), ("weights", 1.0)])
def test_what_is_no_tensor_is_refused_by_name(part, value, unchecked):
    fields = {"xs": torch.ones(2, 5, 3), "ys": torch.ones(2, 5), part: value}
    with pytest.raises(ValueError, match=f"`{part}` must be a torch tensor; got {type(value).__name__}. Use torch"):
        Prompt(**fields)
    tokens = {"tokens": fields["xs"], "targets": fields["ys"], "weights": fields.get("weights")}
    with pytest.raises(ValueError, match=r"must be a torch tensor; got .*\. Use torch\.as_tensor\.$"):
        Sequence(**tokens)
