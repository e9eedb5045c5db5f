import copy

import numpy as np
import pytest
import torch
from torch import nn

from looped.experiment import Adam, AdamW, Muon
from looped.models.blocks import stack
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training import pieces
from looped.training.optim import MuonOptimizer, Optimizers, clip_gradients, clip_in_pieces, muon_matrices, orthogonal
from unstacking import unstack

SHAPES = [(6, 6), (12, 4), (4, 12), (1, 5), (5, 1)]


def matrices(*shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def decoder(seed=0, **fields):
    torch.manual_seed(seed)
    return DecoderConfig(**({"d": 3, "width": 8, "heads": 2, "loops": 3, "positions": 12} | fields)).build().double()


def give_gradients(*models, seed=0, scale=1.0):
    """The same to each of them."""
    for model in models:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters()]


def numpy_orthogonal(matrix):
    """The quintic iteration, one matrix at a time and on its singular values: p(s) = a s + b s^3 + c s^5."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = s / max(np.sqrt((s**2).sum()), 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ vt


def numpy_muon(weight, gradients, *, rate, momentum=0.95):
    """Muon by hand: Nesterov momentum, then the orthogonalised direction, scaled for tall matrices."""
    buffer = np.zeros_like(weight)
    for gradient in gradients:
        buffer = momentum * buffer + gradient
        direction = numpy_orthogonal(gradient + momentum * buffer)
        weight = weight - rate * np.sqrt(max(1.0, weight.shape[0] / weight.shape[1])) * direction
    return weight


def run_muon(weights, gradients, **options):
    """Our Muon over several parameters; `gradients` holds one list of gradients for each step."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = MuonOptimizer([{"params": parameters, "split": options.pop("split", 1)}], **options)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_is_the_polynomial_of_the_singular_values_near_the_nearest_orthogonal_matrix(shape):
    (matrix,) = matrices(shape)
    torch.testing.assert_close(orthogonal(matrix).numpy(), numpy_orthogonal(matrix.numpy()), rtol=1e-10, atol=1e-12)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    s = torch.linalg.svdvals(orthogonal(matrix))
    assert ((s > 0.3) & (s < 1.3)).all()
    cosine = torch.nn.functional.cosine_similarity(orthogonal(matrix).flatten(), (u @ vt).flatten(), dim=0)
    assert cosine > 0.97
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_muon_equals_its_derivation_in_numpy(shape):
    weight, *gradients = matrices(*[shape] * 5)
    (ours,) = run_muon([weight], [[gradient] for gradient in gradients], lr=0.1)
    theirs = numpy_muon(weight.numpy(), [gradient.numpy() for gradient in gradients], rate=0.1)
    torch.testing.assert_close(ours.numpy(), theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_goes_the_way_of_torchs_own(shape):
    """torch's Muon iterates in bfloat16 (8 bits), so the ways agree to about a percent, not to rounding."""
    weight, *gradients = matrices(*[shape] * 4, dtype=torch.float32)
    parameter = nn.Parameter(weight.clone())
    reference = torch.optim.Muon([parameter], lr=0.1, weight_decay=0.0, momentum=0.95, nesterov=True)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        reference.step()
    (ours,) = run_muon([weight], [[gradient] for gradient in gradients], lr=0.1)
    theirs, ours = parameter.detach() - weight, ours - weight
    assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.999
    torch.testing.assert_close(ours.norm(), theirs.norm(), rtol=0.02, atol=0.0)


def test_many_matrices_or_models_at_once_equal_one_by_one():
    shapes = [(6, 6), (12, 4), (6, 6), (4, 12), (6, 6)]
    weights, first, second = (matrices(*shapes, seed=seed) for seed in range(3))
    together = run_muon(weights, [first, second], lr=0.1)
    stacks = matrices(*[(3, 12, 4)] * 3)
    (stacked,) = run_muon(stacks[:1], [[gradient] for gradient in stacks[1:]], lr=0.1)
    cases = [*zip(together, weights, first, second, strict=True), *zip(stacked, *stacks, strict=True)]
    for moved, weight, *gradients in cases:
        (alone,) = run_muon([weight], [[gradient] for gradient in gradients], lr=0.1)
        torch.testing.assert_close(moved, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_q_k_and_v_apart_equal_three_matrices(lead):
    weight, first, second = matrices(*[(*lead, 18, 6)] * 3)
    (together,) = run_muon([weight], [[first], [second]], lr=0.1, split=3)
    parts = [tensor.chunk(3, dim=-2) for tensor in (weight, first, second)]
    apart = run_muon(parts[0], [parts[1], parts[2]], lr=0.1)
    torch.testing.assert_close(together, torch.cat(apart, dim=-2), rtol=1e-12, atol=1e-12)
    (as_one,) = run_muon([weight], [[first], [second]], lr=0.1)
    assert not torch.allclose(together, as_one)


def test_a_tensor_learning_rate_equals_a_number():
    weight, gradient = matrices((6, 4), (6, 4))
    (number,) = run_muon([weight], [[gradient]], lr=0.25)
    (tensor,) = run_muon([weight], [[gradient]], lr=torch.tensor(0.25, dtype=torch.float64))
    assert torch.equal(number, tensor)


def test_muon_leaves_alone_what_has_no_gradient():
    parameter = nn.Parameter(torch.ones(2, 2))
    MuonOptimizer([{"params": [parameter]}], lr=1.0).step()
    assert torch.equal(parameter.detach(), torch.ones(2, 2))


def test_muon_takes_the_blocks_matrices_and_q_k_v_apart():
    model = decoder(layers=2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(parameter)]: split for parameter, split in muon_matrices(model)}
    parts = {"attention.qkv": 3, "attention.proj": 1, "mlp.fc": 1, "mlp.proj": 1}
    assert found == {f"blocks.{i}.{part}.weight": split for i in range(2) for part, split in parts.items()}


class Own(nn.Module):
    """A model of somebody else's, with every kind of weight that Muon meets."""

    def __init__(self):
        super().__init__()
        self.embedding, self.read_in, self.prelude = nn.Embedding(5, 4), nn.Linear(3, 4), nn.Linear(4, 6)
        self.attention = nn.MultiheadAttention(4, 2)
        self.cell, self.wide_cell = nn.GRUCell(4, 4), nn.LSTMCell(4, 4)
        self.conv, self.norm, self.head, self.gate = (
            nn.Conv1d(4, 4, 3),
            nn.LayerNorm(4),
            nn.Linear(4, 7),
            nn.Linear(4, 1),
        )
        self.rate = nn.Parameter(torch.eye(4))


TAKEN = {
    "prelude.weight": 1, "attention.in_proj_weight": 3, "attention.out_proj.weight": 1, "cell.weight_ih": 3,
    "cell.weight_hh": 3, "wide_cell.weight_ih": 4, "wide_cell.weight_hh": 4, "rate": 1,
}  # fmt: skip


@pytest.mark.parametrize("stacked", [False, True])
def test_muon_takes_every_matrix_but_embeddings_read_in_and_read_out(stacked):
    model = stack([Own(), Own()]) if stacked else Own()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = {names[id(parameter)]: split for parameter, split in muon_matrices(model, stacked=stacked)}
    assert taken == TAKEN
    model.left_to_adam = "cell|rate"  # the model's own rule in place of ours
    taken = {names[id(parameter)] for parameter, _ in muon_matrices(model, stacked=stacked)}
    assert taken == {name for name in TAKEN if "cell" not in name and name != "rate"} | {
        "read_in.weight",
        "head.weight",
    }


def test_muon_without_matrices_says_what_to_use():
    with pytest.raises(ValueError, match=r"this LayerNorm has none but those that `left_to_adam` names\. Use Adam"):
        Optimizers(nn.LayerNorm(2), Muon())


ADAMS = [
    (Adam(learning_rate=0.03, betas=(0.8, 0.95)), torch.optim.Adam, {}),
    (AdamW(learning_rate=0.03, betas=(0.8, 0.95), weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
]
"""Our config, torch's class, and what it is told besides."""


@pytest.mark.parametrize(("config", "adam", "decay"), ADAMS)
def test_adam_equals_torchs(config, adam, decay):
    model = decoder()
    twin = copy.deepcopy(model)
    reference = adam(twin.parameters(), lr=0.03, betas=(0.8, 0.95), **decay)
    ours = Optimizers(model, config)
    for step, factor in enumerate([1.0, 0.5, 0.25]):
        give_gradients(model, twin, seed=step)
        ours.step(factor)
        reference.param_groups[0]["lr"] = 0.03 * factor
        reference.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("config", "adam", "decay"), ADAMS)
def test_a_captured_step_in_pieces_is_torchs_fused_adam_bit_for_bit(monkeypatch, config, adam, decay):
    """And its state is that of whole parameters: each goes on from a checkpoint of the other."""
    monkeypatch.setattr(pieces, "PIECE", 48)
    model = decoder().float()
    twin = copy.deepcopy(model)
    ours = Optimizers(model, config, captured=True)
    reference = adam(twin.parameters(), lr=torch.tensor(0.03), betas=(0.8, 0.95), fused=True, **decay)
    for step, factor in enumerate([1.0, 0.5, 0.25]):
        give_gradients(model, twin, seed=step)
        ours.step(torch.tensor(factor))
        reference.param_groups[0]["lr"].copy_(torch.tensor(factor) * 0.03)
        reference.step()
        if step == 1:  # a new one goes on from what torch's own remembers
            names = {parameter: name for name, parameter in twin.named_parameters()}
            state = {f"{names[p]}/{key}": value.clone() for p, s in reference.state.items() for key, value in s.items()}
            assert list(state) == list(ours.tensors())
            assert all(torch.equal(value, state[name]) for name, value in ours.tensors().items())
            ours = Optimizers(model, config, captured=True)
            ours.load(state)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("largest", [None, 1e-3, 1e6])
def test_clipping_in_pieces_is_clipping(monkeypatch, largest, stacked):
    monkeypatch.setattr(pieces, "PIECE", 48)
    model = stack([decoder(seed) for seed in range(3)]) if stacked else decoder()
    give_gradients(model)
    if stacked:
        for parameter in model.parameters():
            parameter.grad *= torch.tensor([1.0, 1e-1, 1e-5]).view(-1, *[1] * (parameter.ndim - 1))
    model.read_in.bias.grad = model.norm.bias.grad  # one gradient for two weights is clipped once
    twin = copy.deepcopy(model)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        other.grad = one.grad.clone()
    norms, expected = clip_in_pieces(model, largest, stacked=stacked), clip_gradients(twin, largest, stacked=stacked)
    torch.testing.assert_close(norms, expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(gradients_of(model), gradients_of(twin), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("captured", [False, True])
def test_muon_iterates_in_the_precision_of_the_passes(captured):
    """As torch's own does. Of gradients drawn at random the two updates are close; of a model's own less so."""
    config = Muon(muon_learning_rate=0.1)
    before = decoder(width=24).float()
    moved = []
    for dtype in (torch.float32, torch.bfloat16):
        model = copy.deepcopy(before)
        optimizers = Optimizers(model, config, captured=captured, dtype=dtype)
        for seed in range(3):
            give_gradients(model, seed=seed)
            optimizers.step(torch.tensor(1.0) if captured else 1.0)
        pairs = zip(muon_matrices(model), muon_matrices(before), strict=True)
        moved.append(torch.cat([(one - other).flatten() for (one, _), (other, _) in pairs]).detach())
    assert not torch.allclose(*moved, rtol=1e-5, atol=1e-5)
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.999
    torch.testing.assert_close(moved[1].norm(), moved[0].norm(), rtol=0.02, atol=0.0)


def test_with_muon_everything_else_is_adams():
    config = Muon(learning_rate=0.03, muon_learning_rate=0.2)
    model = decoder()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    twin = copy.deepcopy(model)
    give_gradients(model, twin)
    Optimizers(model, config).step(0.5)
    torch.optim.Adam(twin.parameters(), lr=0.015).step()
    expected = dict(twin.named_parameters())
    taken = {id(parameter): split for parameter, split in muon_matrices(model)}
    for name, parameter in model.named_parameters():
        if id(parameter) in taken:
            (by_muon,) = run_muon([before[name]], [[expected[name].grad]], lr=0.1, split=taken[id(parameter)])
            torch.testing.assert_close(parameter.detach(), by_muon, rtol=1e-12, atol=1e-12)
        else:
            torch.testing.assert_close(parameter, expected[name], rtol=1e-12, atol=1e-12)


EVERY = [Adam(learning_rate=0.03), AdamW(learning_rate=0.03, weight_decay=0.1), Muon(learning_rate=0.03)]


@pytest.mark.parametrize("config", EVERY)
def test_a_stack_of_models_is_stepped_like_each_alone(config):
    singles = [decoder(seed) for seed in range(3)]
    together = stack(singles)
    joint = Optimizers(together, config, stacked=True)
    apart = [Optimizers(model, config) for model in singles]
    for step in range(2):
        for index, model in enumerate(singles):
            give_gradients(model, seed=10 * step + index)
        for name, parameter in together.named_parameters():
            parameter.grad = torch.stack([model.get_parameter(name).grad for model in singles])
        joint.step(1.0)
        for optimizers in apart:
            optimizers.step(1.0)
    for one, other in zip(unstack(together), singles, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("largest", [None, 1e-3, 1.0, 1e6])
def test_clipping_equals_torchs(largest):
    model = decoder()
    twin = copy.deepcopy(model)
    give_gradients(model, twin)
    norm = clip_gradients(model, largest)
    expected = nn.utils.clip_grad_norm_(twin.parameters(), float("inf") if largest is None else largest)
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(gradients_of(model), gradients_of(twin), rtol=1e-12, atol=0.0)


def test_a_stack_is_clipped_model_by_model():
    singles = [decoder(seed) for seed in range(3)]
    together = stack(singles)
    for index, model in enumerate(singles):
        give_gradients(model, seed=index, scale=10.0**-index)
    for name, parameter in together.named_parameters():
        parameter.grad = torch.stack([model.get_parameter(name).grad for model in singles])
    norms = clip_gradients(together, 1.0, stacked=True)
    expected = torch.stack([nn.utils.clip_grad_norm_(model.parameters(), 1.0) for model in singles])
    torch.testing.assert_close(norms, expected, rtol=1e-12, atol=0.0)
    for name, parameter in together.named_parameters():
        alone = torch.stack([model.get_parameter(name).grad for model in singles])
        torch.testing.assert_close(parameter.grad, alone, rtol=1e-12, atol=0.0)


def test_clipping_skips_what_has_no_gradient():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.grad = torch.full((2, 2), 3.0)
    assert clip_gradients(model, 1.0) == 6.0
    torch.testing.assert_close(model[0].weight.grad.norm(), torch.tensor(1.0), rtol=1e-5, atol=0.0)
    assert model[1].weight.grad is None


@pytest.mark.parametrize("config", EVERY)
def test_state_comes_back(config):
    model = decoder()
    first = Optimizers(model, config)
    assert first.tensors() == {}
    give_gradients(model)
    first.step(1.0)
    state = {name: value.clone() for name, value in first.tensors().items()}
    twin = copy.deepcopy(model)
    second = Optimizers(twin, config)
    second.load(state)
    assert second.tensors().keys() == state.keys()
    for seed in (1, 2):
        give_gradients(model, twin, seed=seed)
        first.step(0.5)
        second.step(0.5)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0.0, atol=0.0)


def test_state_of_an_unknown_parameter_is_an_error():
    with pytest.raises(KeyError):
        Optimizers(decoder(), Adam()).load({"no.such/exp_avg": torch.zeros(1)})


def test_each_reduces_the_error_of_a_decoder(generator):
    task = LinearRegression(d=2)
    prompt = task.sample(batch=64, n=4, generator=generator).to(torch.float64)
    for config in (Adam(learning_rate=0.01), Muon(learning_rate=0.01, muon_learning_rate=0.02)):
        model = decoder(d=2)
        optimizers = Optimizers(model, config)
        errors = []
        for _ in range(15):
            loss = task.error(model(prompt), prompt).mean()
            loss.backward()
            optimizers.step(1.0)
            model.zero_grad()
            errors.append(loss.item())
        assert errors[-1] < 0.8 * errors[0]
