from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.models.blocks import stack
from looped.models.decoder import DecoderConfig, interleave
from looped.prompt import Prompt
from looped.training.importer import import_checkpoint
from models.reference import LAYOUTS, Published, published_state, random_model
from unstacking import unstack

SIZES = {"d": 3, "width": 16, "positions": 14}
HEADS = 4
SMALL = DecoderConfig(**SIZES, heads=HEADS, layers=2, loops=3)


def numbers(seed, *, models=(), batch=3, n=6, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*models, batch, n, d)), rng.normal(size=(*models, batch, n))


def prompt_of(xs, ys):
    return Prompt(torch.tensor(xs), torch.tensor(ys))


def imported(state, tmp_path, *, loops=1, heads=HEADS, inject="add", inside=True):
    """The decoder of a published state dict by way of the importer, which knows no `multiply` and no `inside=False`."""
    file = tmp_path / "state.pt"
    torch.save({name: torch.as_tensor(value) for name, value in state.items()}, file)
    known = "add" if inject == "multiply" else inject
    run, _ = import_checkpoint(file, tmp_path / "run", heads=heads, loops=loops, inject=known)
    model = replace(run.model().config, inject=inject, inside=inside).build().double()
    model.load_state_dict(run.model().state_dict())
    return model


def close(got, wanted, tolerance=1e-10):
    got = got.detach().numpy()
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() < tolerance * max(1, np.abs(wanted).max())


def test_parameter_counts_are_the_published_ones():
    assert DecoderConfig(loops=20).build().num_parameters == 847_873
    assert DecoderConfig(layers=12).build().num_parameters == 9_535_233


def test_start_of_training_is_gpt2s():
    torch.manual_seed(0)
    model = DecoderConfig(width=128, layers=4).build()
    block = model.blocks[2]
    for weight, std in (
        (model.positions, 0.02),
        (block.attention.qkv.weight, 0.02),
        (block.mlp.fc.weight, 0.02),
        (block.attention.proj.weight, 0.02 / 8**0.5),
        (block.mlp.proj.weight, 0.02 / 8**0.5),
    ):
        assert weight.std().item() == pytest.approx(std, rel=5 / (2 * weight.numel()) ** 0.5)
    biases = [value for name, value in block.named_parameters() if name.endswith("bias")]
    assert biases
    assert all((value == 0).all() for value in biases)


def test_tokens_interleave_x_and_y():
    prompt = Prompt(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[5.0, 6.0]]))
    assert interleave(prompt).tolist() == [[[1, 2], [5, 0], [3, 4], [6, 0]]]
    assert torch.equal(interleave(prompt, torch.float16), interleave(prompt).half())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", [1, 3])
def test_unlooped_equals_the_published_forward_pass(layout, layers, tmp_path):
    state = published_state(layout, layers=layers, **SIZES, seed=layers)
    xs, ys = numbers(1)
    model = imported(state, tmp_path, loops=1)
    close(model.predict(prompt_of(xs, ys)), Published(state, layout, heads=HEADS).unlooped(xs, ys))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inject", ["add", "multiply", "none"])
@pytest.mark.parametrize("layers", [1, 2])
def test_every_loop_equals_the_published_forward_pass(layout, inject, layers, tmp_path):
    state = published_state(layout, layers=layers, **SIZES, seed=7)
    xs, ys = numbers(2)
    model = imported(state, tmp_path, loops=5, inject=inject)
    wanted = Published(state, layout, heads=HEADS).looped(xs, ys, 5, inject)
    close(model(prompt_of(xs, ys), loops=5, keep=5), wanted)


@pytest.mark.parametrize("inject", ["add", "multiply", "none"])
def test_positions_and_norm_outside_the_loop(inject, tmp_path):
    state = published_state("yang24", layers=2, **SIZES, seed=8)
    for name in state:  # with no norm in the loop the stream grows: keep it near 1
        if "c_proj" in name or "wpe" in name or "read_in" in name:
            state[name] = 0.3 * state[name]
    xs, ys = numbers(3)
    published = Published(state, "yang24", heads=HEADS)
    wanted = published.looped(xs, ys, 4, inject, inside=False)
    model = imported(state, tmp_path, loops=4, inject=inject, inside=False)
    close(model(prompt_of(xs, ys), loops=4, keep=4), wanted)
    assert np.abs(wanted - published.looped(xs, ys, 4, inject)).max() > 0.1


def test_the_published_layer_count_and_width(tmp_path):
    """One full-size pass: 12 layers of width 256, as yang24 compares with."""
    state = published_state("yang24", layers=12, d=20, width=256, positions=203, seed=9)
    xs, ys = numbers(4, batch=1, n=5, d=20)
    model = imported(state, tmp_path, heads=8)
    assert model.num_parameters == 9_535_233
    close(model.predict(prompt_of(xs, ys)), Published(state, "yang24", heads=8).unlooped(xs, ys))


def test_a_shorter_prompt_gives_the_same_first_predictions():
    prompt, model = prompt_of(*numbers(5)), random_model(SMALL, 0)
    before = model.predict(prompt)
    torch.testing.assert_close(model.predict(prompt.head(2)), before[:, :2], rtol=0, atol=1e-12)
    prompt.ys[:, -1] += 5
    assert torch.equal(before, model.predict(prompt)), "the last label is not read"


def test_states_between_layers_are_the_stream_before_the_norm():
    prompt, model = prompt_of(*numbers(5)), random_model(SMALL, 0)
    states, tokens = model.states(prompt), model.embed(prompt).tokens
    assert len(states) == 6
    for t in range(3):
        first = model.blocks[0](tokens + (states[2 * t - 1] if t else 0))
        assert torch.equal(states[2 * t], first)
        assert torch.equal(states[2 * t + 1], model.norm(model.blocks[1](first)))


def test_float32_prompts_are_read_in_the_models_precision():
    xs, ys = numbers(7)
    single = Prompt(torch.tensor(xs, dtype=torch.float32), torch.tensor(ys, dtype=torch.float32))
    model = random_model(SMALL, 0)
    out = model.predict(single)
    assert out.dtype == torch.float64
    assert torch.equal(out, model.predict(single.to(torch.float64)))
    assert model.float().predict(prompt_of(xs, ys)).dtype == torch.float32


def test_prompts_that_do_not_fit_are_refused():
    model = SMALL.build()
    assert model.predict(prompt_of(*numbers(0, n=7))).shape == (3, 7)
    with pytest.raises(ValueError, match=r"at most 7 examples here; got 8"):
        model.predict(prompt_of(*numbers(0, n=8)))
    with pytest.raises(ValueError, match=r"dimension 3; got 2"):
        model.predict(prompt_of(*numbers(0, d=2)))


@pytest.mark.parametrize("field", ["d", "width", "heads", "layers", "positions", "loops"])
def test_fields_below_one_and_widths_that_do_not_divide_are_refused(field):
    with pytest.raises(ValueError, match=rf"`{field}` must be at least 1; got 0"):
        DecoderConfig(**{field: 0})
    with pytest.raises(ValueError, match=r"`width` must be a multiple of heads=8; got 20"):
        DecoderConfig(width=20)


@pytest.mark.parametrize("inject", ["add", "multiply", "none"])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("own", [True, False], ids=["own prompts", "shared prompts"])
def test_stacked_models_equal_each_alone(inject, inside, own):
    config = replace(SMALL, inject=inject, inside=inside)
    models = [random_model(config, seed) for seed in range(3)]
    stacked = stack(models)
    xs, ys = numbers(8, models=(3,) if own else ())
    windows = {"loops": 4, "grad": None if inject == "none" else 3, "keep": 3}
    together = stacked(prompt_of(xs, ys), **windows)
    assert together.shape == (3, 3, 3, 6)
    weights = torch.tensor(np.random.default_rng(9).normal(size=together.shape))
    (together * weights).sum().backward()
    gradients = dict(stacked.named_parameters())
    for index, model in enumerate(models):
        alone = model(prompt_of(xs[index], ys[index]) if own else prompt_of(xs, ys), **windows)
        torch.testing.assert_close(together[:, index], alone, rtol=1e-10, atol=1e-11)
        (alone * weights[:, index]).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.abs().max() > 0
            torch.testing.assert_close(gradients[name].grad[index], parameter.grad, rtol=1e-8, atol=1e-10)


def test_unstack_undoes_stack():
    models = [random_model(SMALL, seed) for seed in range(3)]
    models[0].positions.requires_grad_(False)
    stacked = stack(models)
    assert stacked.num_parameters == 3 * models[0].num_parameters
    singles = unstack(stacked)
    assert len(singles) == 3
    for model, single in zip(models, singles, strict=True):
        assert not single.positions.requires_grad
        for (name, value), (same, back) in zip(model.state_dict().items(), single.state_dict().items(), strict=True):
            assert name == same
            assert torch.equal(value, back)
    with torch.no_grad():
        stacked.positions.zero_()
    assert singles[0].positions.abs().max() > 0, "a model taken out of a stack has weights of its own"
