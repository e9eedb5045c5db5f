import pytest
import torch

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.models.fast_losses import cheng24_loss
from looped.models.fast_losses.batch_last import matrix_times, outer, product, to_last
from looped.models.fast_losses.cheng24_loss import head_weights, in_context_loss, predictions, prepare
from looped.models.kernel_transformer import functional
from looped.prompt import Prompt

HEADS = [
    (kernels.linear,),
    (kernels.relu,),
    (kernels.exp,),
    (softmax,),
    (kernels.linear, kernels.exp),
    (kernels.linear, kernels.linear),
    (softmax, kernels.relu),
]


def prompts(models, batch, n, d=4):
    xs = torch.randn(models, batch, n + 1, d, dtype=torch.float64)
    return Prompt(xs / xs.norm(dim=-1, keepdim=True), torch.randn(models, batch, n + 1, dtype=torch.float64))


def weights_of(model, transform):
    return [head_weights(h.key, h.query, h.label, h.transform if transform else None) for h in model.heads]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("transform", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_loss_predictions_and_gradients_are_the_plain_model_s(heads, transform, layers):
    torch.manual_seed(layers)
    prompt = prompts(3, 23, 6)
    model = functional(d=4, loops=layers, layers=layers, kernel=heads, transform=transform, models=3, init_std=0.15)
    model = model.build().double()
    upstream = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    answers = model(prompt)[-1, ..., 0]
    plain = (answers - prompt.ys[..., -1]).square().mean(-1)
    expected = torch.autograd.grad((upstream * plain).sum(), list(model.parameters()), allow_unused=True)
    weights = weights_of(model, transform)
    batch = prepare(prompt, heads, chunk=10)  # 23 prompts in chunks of 10: the last is ragged
    fast = in_context_loss(weights, heads, batch)
    gradients = torch.autograd.grad((upstream * fast).sum(), list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(in_context_loss(weights, heads, batch), plain, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(predictions(weights, heads, batch), answers, atol=1e-10, rtol=1e-10)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert (gradient is None or not gradient.any()) if wanted is None else True
        if wanted is not None:
            gradient = torch.zeros_like(wanted) if gradient is None else gradient
            torch.testing.assert_close(gradient, wanted, atol=1e-10, rtol=1e-10)


def test_one_model_without_the_axis_and_kernels_without_a_derivative():
    prompt = prompts(1, 5, 3)
    alone = prepare(Prompt(prompt.xs[0], prompt.ys[0]), (kernels.exp,))
    assert torch.equal(alone[0].rows, prepare(prompt, (kernels.exp,))[0].rows)
    with pytest.raises(ValueError, match="must be linear, relu, exp or softmax"):
        prepare(prompt, (kernels.rbf,))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("heads", [(kernels.linear, softmax), (kernels.relu,), (kernels.exp,)])
def test_a_plan_carries_nothing_from_one_step_to_the_next(heads, threads):
    before, steps = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for seed in (0, 1, 0):
            torch.manual_seed(seed)
            batch = prepare(prompts(2, 8, 3), heads, chunk=2)
            parts = [0.3 * torch.randn(2, 3, 4, 4).double() for _ in range(3)] + [torch.randn(2, 3).double()]
            key, query, transform, label = (part.requires_grad_() for part in parts)
            loss = in_context_loss([head_weights(key, query, label, transform)] * len(heads), heads, batch)
            steps.append([loss, *torch.autograd.grad(loss.sum(), [key, query, transform, label])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first, other) for first, other in zip(steps[0], steps[2], strict=True))
    assert not any(torch.equal(first, other) for first, other in zip(steps[0], steps[1], strict=True))


def test_a_thread_stores_the_plans_of_few_shapes():
    weights = [head_weights(*torch.randn(2, 1, 2, 4, 4).double(), torch.randn(1, 2).double())]
    for n in range(1, 8):
        predictions(weights, (kernels.exp,), prepare(prompts(1, 5, n), (kernels.exp,)))
    assert len(cheng24_loss._of_thread.plans) == cheng24_loss.MAX_PLANS


def test_products_with_prompts_last_are_batched_products():
    left, right = torch.randn(2, 7, 4, 3).double(), torch.randn(2, 7, 3, 5).double()
    left_last, right_last = to_last(left), to_last(right)
    both = product(left_last, right_last)
    torch.testing.assert_close(both, to_last(left @ right))
    torch.testing.assert_close(product(left_last, right_last, both.clone(), start=both), 2 * both)
    column = torch.randn(2, 4, 1, 7).double()
    torch.testing.assert_close(product(left_last, right_last, start=column), both + column)
    matrix = torch.randn(2, 6, 3).double()
    once = matrix_times(matrix, right_last)
    torch.testing.assert_close(once, to_last(matrix[:, None] @ right))
    torch.testing.assert_close(matrix_times(matrix, right_last, once.clone(), add=True), 2 * once)
    expected = torch.einsum("mcpq,mckq->mpk", left, left)
    torch.testing.assert_close(outer(left_last, left_last), expected)
