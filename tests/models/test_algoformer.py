from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from looped.config import decode, encode, override
from looped.models.algoformer import AlgoFormerConfig, Part, given, pairs
from looped.models.base import ModelConfig
from looped.models.blocks import relu, stack
from looped.models.decoder import DecoderConfig
from looped.models.exit_rules import Budget, StateChange
from looped.prompt import Prompt, Sequence
from models.reference import random_model as build
from unstacking import unstack

HALF = Part(heads=2)
SMALL = AlgoFormerConfig(d=3, width=16, positions=14, loops=3, pre=HALF, loop=replace(HALF, layers=2), post=HALF)
EMPTY = Part(layers=0)
TEXT = {"d": 1, "tokens": "given", "vocabulary": 11}


def prompt_of(seed=0, *, batch=3, n=6, d=3, models=()):
    rng = np.random.default_rng(seed)
    return Prompt(
        torch.tensor(rng.normal(size=(*models, batch, n, d))), torch.tensor(rng.normal(size=(*models, batch, n)))
    )


# the same model in plain NumPy, token by token and head by head


def norm(x, weights, name):
    if f"{name}.weight" not in weights:
        return x
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def block(x, weights, name, *, heads, size, causal, activation):
    mixed = linear(norm(x, weights, f"{name}.norm_1"), weights, f"{name}.attention.qkv")
    queries, keys, values = np.split(mixed, 3, axis=-1)
    outs = []
    for head in range(heads):
        at = slice(head * size, (head + 1) * size)
        scores = np.einsum("bid,bjd->bij", queries[..., at], keys[..., at]) / np.sqrt(size)
        if causal:
            scores = np.where(np.arange(x.shape[1])[:, None] >= np.arange(x.shape[1]), scores, -np.inf)
        outs.append(softmax(scores, axis=-1) @ values[..., at])
    x = x + linear(np.concatenate(outs, -1), weights, f"{name}.attention.proj")
    hidden = activation(linear(norm(x, weights, f"{name}.norm_2"), weights, f"{name}.mlp.fc"))
    return x + linear(hidden, weights, f"{name}.mlp.proj")


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def reference(model, tokens, loops):
    config = model.config
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    activation = gelu if config.norm else lambda x: np.maximum(x, 0)

    def part(x, name):
        shape = getattr(config, name)
        size = shape.head_width or config.width // shape.heads
        options = {"heads": shape.heads, "size": size, "causal": config.causal, "activation": activation}
        for layer in range(shape.layers):
            x = block(x, weights, f"{name}.{layer}", **options)
        return x

    x = linear(tokens, weights, "read_in") + weights["positions"][: tokens.shape[1]]
    if "marks" in weights:
        x[:, -len(weights["marks"]) :] += weights["marks"]
    prepared = part(x, "pre")
    state = prepared if config.inject == "none" else np.zeros_like(prepared)
    for _ in range(loops):
        state = part(state if config.inject == "none" else state + prepared, "loop")
        state = norm(state, weights, "loop_norm")
    return linear(norm(part(state, "post"), weights, "norm"), weights, "read_out")


@pytest.mark.parametrize("inject", ["none", "add"])
@pytest.mark.parametrize("loop_norm", [False, True])
def test_forward_is_the_formula(inject, loop_norm):
    model, prompt = build(replace(SMALL, inject=inject, loop_norm=loop_norm)), prompt_of()
    tokens = np.zeros((3, 12, 3))
    tokens[:, ::2], tokens[:, 1::2, 0] = prompt.xs, prompt.ys
    wanted = [reference(model, tokens, loops)[:, ::2, 0] for loops in (1, 2, 3)]
    assert np.allclose(model(prompt, keep=3).detach(), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("read", ["x", "y"])
def test_encoder_form_is_the_formula(read):
    free = Part(heads=3, head_width=5, hidden=7)
    config = replace(SMALL, tokens="apart", query="last", read=read, causal=False, norm=False, activation=relu)
    model, prompt = build(replace(config, pre=free, loop=free, post=free)), prompt_of()
    tokens = np.zeros((3, 12, 4))
    tokens[:, ::2, :3], tokens[:, 1:-1:2, 3] = prompt.xs, prompt.ys[:, :-1]
    wanted = reference(model, tokens, 3)[:, -2 if read == "x" else -1]
    answer = model(prompt)[-1]
    assert answer.shape == (3, 1)
    assert np.allclose(answer.detach(), wanted, rtol=1e-10, atol=1e-10)


def test_vector_labels_and_sequences_come_as_tokens():
    xs, ys = torch.randn(2, 4, 3).double(), torch.randn(2, 4, 2).double()
    config = replace(SMALL, tokens="apart", outputs=2, query="last", causal=False)
    assert build(config).predict(given(pairs(xs, ys))).shape == (2, 1, 2)
    sequence = build(replace(SMALL, tokens="given", outputs=3))
    tokens = torch.randn(2, 9, 3).double()
    assert sequence.predict(given(tokens)).shape == (2, 9, 3)
    wanted = reference(sequence, tokens.numpy(), 3)
    assert np.allclose(sequence.predict(given(tokens)), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("inside", "layers", "loops"), [(True, 1, 4), (False, 2, 3), (True, 3, 1)])
def test_without_pre_and_post_it_is_the_looped_and_the_standard_decoder(inside, layers, loops):
    decoder = build(DecoderConfig(d=3, width=16, heads=2, positions=14, layers=layers, loops=loops, inside=inside))
    vanilla = replace(SMALL, pre=EMPTY, post=EMPTY, loop=Part(heads=2, layers=layers), inject="add", loops=loops)
    model = replace(vanilla, loop_norm=inside).build().double()
    names = {"blocks": "loop", "norm": "loop_norm" if inside else "norm"}
    state = {".".join([names.get(name.split(".")[0], name.split(".")[0]), *name.split(".")[1:]]): value
             for name, value in decoder.state_dict().items()}  # fmt: skip
    model.load_state_dict(state)
    prompt = prompt_of(1)
    assert torch.allclose(model(prompt, keep=loops), decoder(prompt, keep=loops), rtol=1e-12, atol=1e-12)


def test_the_pieces_change_the_answer():
    prompt = prompt_of()
    answers = [build(config).predict(prompt) for config in (
        SMALL, replace(SMALL, pre=EMPTY), replace(SMALL, post=EMPTY), replace(SMALL, inject="add"),
        replace(SMALL, loop_norm=True), replace(SMALL, norm=False), replace(SMALL, activation=relu),
    )]  # fmt: skip
    for index, one in enumerate(answers):
        assert all((one - other).abs().max() > 1e-3 for other in answers[:index])


def test_a_decoder_reads_only_what_comes_before():
    model, prompt = build(SMALL), prompt_of()
    before = model.predict(prompt)
    ys = prompt.ys.clone()
    ys[:, 3] += 10
    after = model.predict(Prompt(prompt.xs, ys))
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] - after[:, 4:]).abs().min() > 1e-9


def test_the_asked_label_is_hidden():
    model, prompt = build(replace(SMALL, query="last", causal=False)), prompt_of()
    ys = prompt.ys.clone()
    ys[:, -1] += 10
    assert torch.equal(model.predict(prompt), model.predict(Prompt(prompt.xs, ys)))
    ys[:, 0] += 10
    assert (model.predict(prompt) - model.predict(Prompt(prompt.xs, ys))).abs().min() > 1e-9
    # the marks tell the query from the examples wherever it stands
    assert model.predict(prompt.head(4)).shape == (3, 1)


def test_without_injection_a_gradient_window_leaves_pre_untrained():
    model = build(SMALL)
    model(prompt_of(), grad=1, keep=1).square().sum().backward()
    assert all(parameter.grad is None for parameter in model.pre.parameters())
    assert all(parameter.grad is not None for parameter in model.loop.parameters())


def test_states_show_every_layer_of_every_loop():
    model, prompt = build(SMALL), prompt_of()
    states = model.states(prompt)
    assert len(states) == 6
    last = model.readout(states[-1], model.embed(prompt))
    assert torch.allclose(last, model(prompt)[-1], rtol=1e-12)


def test_settle_leaves_the_loop_by_rule():
    model, prompt = build(SMALL), prompt_of()
    settled = model.settle(prompt, Budget(loops=2), max_loops=5)
    assert settled.loops.tolist() == [2, 2, 2]
    assert torch.allclose(settled.predictions, model.predict(prompt, loops=2))
    assert not model.settle(prompt, StateChange(tolerance=0.0), max_loops=2).finished.any()


def test_config_is_data():
    config = replace(SMALL, activation=relu, subspaces=(("x", 10), ("y", 6)))
    assert decode(encode(config), ModelConfig) == config
    assert override(config, ["pre.layers=2", "inject=add"]).pre.layers == 2
    with pytest.raises(ValueError, match=r"unknown field `pre\.depth`"):
        override(config, ["pre.depth=2"])
    with pytest.raises(ValueError, match="`layers` must be at least 0; got -1"):
        Part(layers=-1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loop": Part(layers=0)}, "`loop.layers` must be at least 1"),
        ({"width": 15}, "multiple of heads=2; got 15"),
        ({"causal": False}, 'needs `causal=True` and `read="x"`'),
        ({"read": "y"}, 'needs `causal=True` and `read="x"`'),
        ({"outputs": 2}, '`outputs` must be 1 with `tokens="overlaid"`'),
        ({"subspaces": (("x", 3),)}, "`subspaces` must fill `width`=16"),
        ({"d": 0}, "`d` must be at least 1; got 0"),
        ({**TEXT, "vocabulary": 0}, "`vocabulary` must be at least 1"),
        ({**TEXT, "tokens": "overlaid"}, "text needs `tokens="),
        ({**TEXT, "d": 2}, "text has `d=1`"),
        ({**TEXT, "causal": False}, "otherwise a token sees the next one"),
    ],
)
def test_config_refuses(fields, said):
    with pytest.raises(ValueError, match=said):
        replace(SMALL, **fields)


# sequences and text

WORDS = replace(SMALL, **TEXT)


def words(seed=0, *, batch=3, seq=9, models=()):
    ids = torch.tensor(np.random.default_rng(seed).integers(0, 11, size=(*models, batch, seq)))
    return Sequence(ids, ids)


def test_text_is_embedded_and_read_out_by_one_matrix():
    model, prompt = build(WORDS), words()
    table = model.words.detach().numpy()
    around = {
        "read_in.weight": torch.eye(16),
        "read_in.bias": torch.zeros(16),
        "read_out.weight": model.words.detach(),
        "read_out.bias": torch.zeros(11),
    }
    twin = replace(SMALL, d=16, tokens="given", outputs=11).build().double()
    twin.load_state_dict(around | {name: value for name, value in model.state_dict().items() if name != "words"})
    vectors = torch.as_tensor(table[prompt.tokens.numpy()])
    wanted = twin(given(vectors), keep=3)
    assert torch.allclose(model(prompt, keep=3), wanted, rtol=1e-10, atol=1e-10)
    assert wanted.shape == (3, 3, 9, 11)


LAST = replace(SMALL, query="last", causal=False)


@pytest.mark.parametrize(("config", "prompt_for"), [(SMALL, prompt_of), (LAST, prompt_of), (WORDS, words)])
def test_stacked_models_equal_each_alone(config, prompt_for):
    singles = [build(config, seed) for seed in range(3)]
    stacked, prompt = stack(singles), prompt_for()
    wanted = torch.stack([single(prompt, keep=2) for single in singles], 1)
    assert torch.allclose(stacked(prompt, keep=2), wanted, rtol=1e-10)
    apart = prompt_for(models=(3,))
    second = apart.rows(torch.tensor(1))
    for model in (singles[1], unstack(stacked)[1]):
        assert torch.allclose(stacked(apart)[:, 1], model(second), rtol=1e-10)


@pytest.mark.parametrize(
    ("config", "prompt"),
    [
        (replace(SMALL, positions=12), prompt_of()),
        (replace(SMALL, positions=12, inject="add"), prompt_of()),
        (replace(LAST, positions=12, tokens="apart", loop_norm=True), prompt_of()),
        (replace(WORDS, positions=9, inject="add"), words()),
    ],
)
def test_every_parameter_receives_gradient(config, prompt):
    model = build(config)
    model(prompt, grad=1 if config.inject == "add" else None, keep=1).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_parts_left_out_are_left_out():
    """Layers that an answer passes through, and parameters: the block's times the blocks, and what is around them."""
    one = sum(parameter.numel() for parameter in SMALL.build().pre.parameters())
    around = sum(
        parameter.numel()
        for name, parameter in SMALL.build().named_parameters()
        if "." not in name or "." not in name.split(".", 1)[1]
    )
    for pre, loop, post in ((1, 1, 1), (0, 1, 0), (0, 12, 0), (3, 2, 0)):
        config = replace(
            SMALL, pre=replace(HALF, layers=pre), loop=replace(HALF, layers=loop), post=replace(HALF, layers=post)
        )
        assert config.build().num_parameters == around + (pre + loop + post) * one


GIVEN = replace(SMALL, tokens="given")
VECTORS = given(torch.zeros(2, 4, 3).double())


@pytest.mark.parametrize(
    ("config", "prompt", "message"),
    [
        (SMALL, prompt_of(d=4), "x of dimension 3; got 4"),
        (SMALL, prompt_of(n=8), "at most 14 tokens here; got 16"),
        (replace(SMALL, tokens="apart", outputs=2), prompt_of(), "labels of dimension 2"),
        (GIVEN, prompt_of(), "this model reads a sequence; got pairs"),
        (SMALL, VECTORS, "this model reads pairs; got tokens"),
        (WORDS, VECTORS, r"reads whole numbers; got tokens of torch\.float64"),
        (GIVEN, words(), r"reads vectors; got tokens of torch\.int64"),
        (GIVEN, given(torch.zeros(2, 4, 4).double()), "tokens of length 3; got 4"),
        (DecoderConfig(d=3, width=16, heads=2, positions=14), VECTORS, r"reads pairs \(x, y\); got a sequence"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(config, prompt, message):
    with pytest.raises(ValueError, match=message):
        build(config).predict(prompt)
