import numpy as np
import pytest
import torch
from torch import nn

from looped.evaluation.probes import TARGETS, ProbeStack, gradient, least_squares_weights, probe
from looped.models.algoformer import AlgoFormerConfig
from looped.models.blocks import Attention
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import restricted
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression
from looped.tasks.trees import DecisionTree

TASK = LinearRegression(d=3)


def decoder(**fields):
    torch.manual_seed(0)
    return DecoderConfig(**{"d": 3, "width": 8, "heads": 2, "loops": 2, "positions": 20, **fields}).build().double()


def test_targets_are_numpys(generator):
    prompt = LinearRegression(d=4).sample(batch=3, n=9, generator=generator)
    for length in (1, 3, 4, 9):
        head = prompt.head(length)
        for row in range(3):
            xs, ys = head.xs[row].double().numpy(), head.ys[row].double().numpy()
            assert np.allclose(gradient(head)[row], xs.T @ ys / length, atol=1e-5)
            assert np.allclose(least_squares_weights(head)[row], np.linalg.lstsq(xs, ys, rcond=None)[0], atol=1e-4)


def test_least_squares_is_the_shortest_where_x_has_too_few_dimensions():
    xs = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    xs[..., 2:] = 0
    ys = xs.sum(-1)
    for length in (1, 3, 6):
        found = least_squares_weights(Prompt(xs[:, :length], ys[:, :length]))
        expected = torch.linalg.pinv(xs[:, :length]) @ ys[:, :length, None]
        assert torch.allclose(found, expected.squeeze(-1), atol=1e-10)


def alone(stack, place, states, goals, steps):
    """One probe of the stack, as ordinary modules trained by themselves."""
    group, _, loop, length = place
    first, second = nn.Linear(8, 5).double(), nn.Linear(5, goals.shape[-1]).double()
    with torch.no_grad():
        first.weight.copy_(stack.w_1[place].T)
        first.bias.copy_(stack.b_1[place][0])
        second.weight.copy_(stack.w_2[place].T[: goals.shape[-1]])
        second.bias.copy_(stack.b_2[place][0, : goals.shape[-1]])
    seen = 2 * (length + 1)
    s = torch.zeros(seen, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([s, *first.parameters(), *second.parameters()], lr=1e-2)
    for _ in range(steps):
        pooled = torch.einsum("t,btw->bw", s.softmax(0), states[group, loop, :, :seen])
        loss = nn.functional.mse_loss(second(torch.relu(first(pooled))), goals[group, length])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pooled = torch.einsum("t,btw->bw", s.softmax(0), states[group, loop, :, :seen])
    return second(torch.relu(first(pooled))).detach()


def test_trained_together_is_trained_alone():
    """Also targets of different sizes, and groups with data of their own."""
    generator = torch.Generator().manual_seed(0)
    sizes, lengths = [3, 2], [1, 2, 3]
    stack = ProbeStack(
        groups=2, targets=sizes, loops=2, lengths=lengths, width=8, hidden=5, generator=generator, dtype=torch.float64
    )
    states = torch.randn(2, 2, 16, 6, 8, generator=generator, dtype=torch.float64)
    goals = [torch.randn(2, 3, 16, size, generator=generator, dtype=torch.float64) for size in sizes]
    places = [(0, 0, 0, 0), (1, 1, 1, 2), (0, 1, 0, 1), (1, 0, 1, 1)]
    expected = [alone(stack, place, states, goals[place[1]], 20) for place in places]
    optimizer = torch.optim.Adam(stack.parameters, lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        stack.errors(states, goals).mean(-1).sum().backward()
        optimizer.step()
    answers = stack(states).detach()
    for place, answer in zip(places, expected, strict=True):
        found = answers[place][:, : answer.shape[-1]]
        assert torch.allclose(found, answer, rtol=1e-8, atol=1e-8)
        before = goals[place[1]][place[0], place[3]]
        assert (found - before).square().mean() < before.square().mean(), "it has learned something"


def test_a_probe_sees_no_token_of_later_pairs():
    generator = torch.Generator().manual_seed(0)
    stack = ProbeStack(
        groups=1, targets=[2], loops=1, lengths=[1, 3, 4], width=8, hidden=5, generator=generator, dtype=torch.float64
    )
    states = torch.randn(1, 1, 4, 8, 8, generator=generator, dtype=torch.float64)
    other = states.clone()
    other[:, :, :, 6:] += 1
    before, after = stack(states), stack(other)
    assert torch.equal(before[:, :, :, :2], after[:, :, :, :2])
    assert not torch.equal(before[:, :, :, 2], after[:, :, :, 2])


def test_probes_find_what_is_there():
    """A state that holds the label token: after one example X'y is x y, so w = 1 is no help and training is."""
    found = probe(
        decoder(), TASK, points=5, lengths=[1, 4], steps=80, batch=32, prompts=200, hidden=16, learning_rate=1e-2
    )
    assert (found.loops, found.lengths, found.prompts) == ([1, 2], [1, 4], 200)
    assert [one.target for one in found.probed] == list(TARGETS)
    for one, control in zip(found.probed, found.control, strict=True):
        assert np.shape(one.mean) == np.shape(one.low) == np.shape(control.high) == (2, 2)
        assert np.all(np.array(one.low) <= np.array(one.mean))
        assert np.all(np.array(one.mean) <= np.array(one.high))
        assert one.by_loop.mean == pytest.approx(np.mean(one.mean, 1), rel=1e-9)
        assert one.zero == control.zero
        assert np.mean(one.mean[1]) < np.mean(one.zero), "better than answering 0"
        assert np.mean(one.mean) < np.mean(control.mean), "the control knows nothing of w"
    gram = found.probed[0].zero
    # E |x y|^2 / d for one example: E x_k^2 (w'x)^2 = d + 2
    assert gram[0] == pytest.approx(5, rel=0.5)


def test_a_seed_names_the_probes_and_any_target_will_do():
    def last_label(prompt):
        return prompt.ys[:, -1:]

    def call(seed):
        return probe(
            decoder(), TASK, {"y": last_label}, points=4, lengths=[2], control=False, steps=3, prompts=20, seed=seed
        )

    found = call(0)
    assert found == call(0)
    assert found != call(1)
    assert found.control == []
    assert np.shape(found.probed[0].mean) == (2, 1)
    assert found.probed[0].target == "y"


def test_layers_are_loops_too():
    found = probe(decoder(layers=3, loops=1), TASK, points=3, steps=1, prompts=4, control=False)
    assert found.loops == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [0]}, r"`lengths` must be numbers of examples in \[1, points=4\]"),
        ({"lengths": [5]}, "`lengths` must be"),
        ({"points": 1}, "at least one; got"),
        ({"hidden": 0}, "`hidden` must be at least 1; got 0"),
        ({"prompts": 1}, "`prompts` must be at least 2"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        probe(decoder(), TASK, **{"points": 4, "steps": 1, **arguments})


def test_what_cannot_be_probed_is_refused():
    torch.manual_seed(0)
    full = AlgoFormerConfig(d=3, width=8, causal=False, query="last", loops=2).build()
    with pytest.raises(ValueError, match="only causal models"):
        probe(full, TASK, points=4, steps=1)
    unmasked = decoder()
    assert unmasked.causal, "its class says so; what it does is measured"
    for module in unmasked.modules():
        if isinstance(module, Attention):
            module.causal = False
    with pytest.raises(ValueError, match="only causal models"):
        probe(unmasked, TASK, points=4, steps=1)
    with pytest.raises(ValueError, match="two tokens a pair"):
        probe(restricted(d=3, loops=2).build(), TASK, points=4, steps=1)
    with pytest.raises(ValueError, match="DecisionTree has no w"):
        probe(decoder(), DecisionTree(d=3, depth=2), points=4, steps=1)
