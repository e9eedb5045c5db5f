"""The parts of looped models against NumPy, float64, written from the maths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.functional.attention import rotate
from looped.models.block_parts import BlockParts
from looped.models.blocks import stack
from looped.models.decoder import DecoderConfig
from looped.models.exit_rules import Halted, StateChange, TokenChange
from looped.models.fusing import block_obstacle, obstacle
from looped.models.loop import settle_tokens
from looped.models.query_stream import query_stream, supports_query_stream
from looped.models.recurrent_depth import RecurrentDepthConfig
from looped.prompt import Prompt
from models.reference import random_model

TINY = RecurrentDepthConfig(d=2, width=12, heads=2, loops=3, positions=12, prelude=0, coda=0)
ALL_PARTS = BlockParts(norm="rms", mlp="swiglu", rotary=True, kv_heads=1)
VARIANTS = {
    "prelude and coda": {"prelude": 1, "coda": 2},
    "norm once": {"prelude": 1, "coda": 1, "inside": False},
    "multiply": {"inject": "multiply", "coda": 1},
    "scaled": {"inject": "scaled"},
    "gated": {"inject": "gated"},
    "concat": {"inject": "concat"},
    "loop embedding": {"loop_embedding": True},
    "low rank": {"rank": 2, "layers": 2},
    "all parts": {"parts": ALL_PARTS},
    "linear attention": {"parts": BlockParts(attention="linear")},
    "halting": {"ponder": 0.1, "layers": 2},
}
every_variant = pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)


def some_prompt(batch=3, n=4, seed=0, models=()):
    rng = np.random.default_rng(seed)
    return Prompt(
        torch.tensor(rng.normal(size=(*models, batch, n, 2))), torch.tensor(rng.normal(size=(*models, batch, n)))
    )


# the parts of a block, in NumPy


def layer_norm(x, state, name):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def rms_norm(x, state, name):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * state[f"{name}.weight"]


def affine(x, state, name):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def turned(x, t):
    """Rotary positions by complex numbers: the pair (x_i, x_{i + r/2}) is one of them."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * t * 10_000.0 ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


def attention(x, state, name, parts, heads):
    """Token by token and head by head; linear attention by its recurrence."""
    seq, width = x.shape
    r, kv_heads = width // heads, parts.kv_heads or heads
    q = affine(x, state, f"{name}.q")
    kv = x @ state[f"{name}.kv.weight"].T  # keys have no bias
    k, v = kv[:, : kv_heads * r], kv[:, kv_heads * r :] + state[f"{name}.kv.bias"][kv_heads * r :]
    out = np.zeros((seq, width))
    for head in range(heads):
        mine, shared = slice(head * r, head * r + r), head * kv_heads // heads
        group = slice(shared * r, shared * r + r)
        memory, mass = np.zeros((r, r)), np.zeros(r)
        for i in range(seq):
            if parts.attention == "linear":
                phi = [np.where(z > 0, z + 1, np.exp(z)) for z in (q[i, mine], k[i, group])]
                memory, mass = memory + np.outer(phi[1], v[i, group]), mass + phi[1]
                out[i, mine] = phi[0] @ memory / (phi[0] @ mass)
                continue
            query = turned(q[i, mine], i) if parts.rotary else q[i, mine]
            keys = np.stack([turned(k[j, group], j) if parts.rotary else k[j, group] for j in range(i + 1)])
            weights = np.exp(keys @ query / np.sqrt(r))
            out[i, mine] = weights / weights.sum() @ v[: i + 1, group]
    return affine(out, state, f"{name}.proj")


def block(x, state, name, parts, heads):
    norm = rms_norm if parts.norm == "rms" else layer_norm
    x = x + attention(norm(x, state, f"{name}.norm_1"), state, f"{name}.attention", parts, heads)
    inner = affine(norm(x, state, f"{name}.norm_2"), state, f"{name}.mlp.fc")
    if parts.mlp == "swiglu":
        gate, values = np.split(inner, 2, -1)
        inner = gate / (1 + np.exp(-gate)) * values
    else:
        inner = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    return x + affine(inner, state, f"{name}.mlp.proj")


@pytest.mark.parametrize(
    "parts",
    [
        ALL_PARTS,
        BlockParts(attention="linear", norm="rms"),
        BlockParts(attention="linear", kv_heads=1),
        BlockParts(rotary=True, mlp="swiglu"),
        BlockParts(kv_heads=2),
    ],
    ids=str,
)
def test_a_block_of_other_parts_is_its_maths(parts):
    model = random_model(replace(TINY, heads=2, width=16, parts=parts))
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    x = np.random.default_rng(3).normal(size=(2, 6, 16))
    wanted = np.stack([block(row, state, "blocks.0", parts, 2) for row in x])
    got = model.blocks[0](torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-11)


def test_turned_vectors_have_inner_products_of_their_distance_alone():
    rng = np.random.default_rng(0)
    q, k = (torch.tensor(rng.normal(size=6)).expand(9, 6) for _ in range(2))
    products = rotate(q) @ rotate(k).mT
    for distance in (0, 3, -4):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-12, atol=1e-12)
    assert (products[0, 3] - products[0, 4]).abs() > 1e-3


# the model


def test_without_parts_it_is_the_looped_decoder():
    model = random_model(TINY)
    plain = DecoderConfig(d=2, width=12, heads=2, loops=3, positions=12).build().double()
    plain.load_state_dict(model.state_dict())
    prompt = some_prompt()
    assert torch.equal(model(prompt, loops=5, keep=3), plain(prompt, loops=5, keep=3))


def test_the_whole_model_is_its_maths():
    """Prelude, concatenation, a vector and a low-rank change for each loop, coda."""
    parts = BlockParts(norm="rms", mlp="swiglu", kv_heads=1)
    config = replace(
        TINY, prelude=1, coda=1, layers=2, inject="concat", loop_embedding=True, rank=2, parts=parts, loops=2
    )
    model, prompt = random_model(config), some_prompt(batch=1)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    tokens = np.zeros((8, 2))
    tokens[::2], tokens[1::2, 0] = prompt.xs[0].numpy(), prompt.ys[0].numpy()
    p = block(affine(tokens, state, "read_in") + state["positions"][:8], state, "prelude.0", parts, 2)
    y = np.zeros_like(p)
    names = ["attention.proj", "attention.q", "attention.kv", "mlp.fc", "mlp.proj"]
    assert model.changed == [name for name, _ in model.blocks[0].named_modules() if name in names]
    for t in range(4):
        row = min(t, 1)  # past b the last loop's part
        y = affine(np.concatenate([y, p], -1), state, "injection.adapter") + state["loop_embedding"][row]
        for i in range(2):
            changed = dict(state)
            for j, name in enumerate(model.changed):
                number = i * len(names) + j
                change = state[f"changes.{number}.up"][row] @ state[f"changes.{number}.down"][row]
                changed[f"blocks.{i}.{name}.weight"] = state[f"blocks.{i}.{name}.weight"] + change
            y = block(y, changed, f"blocks.{i}", parts, 2)
        y = rms_norm(y, state, "norm")
    last = rms_norm(block(y, state, "coda.0", parts, 2), state, "coda_norm")
    wanted = affine(last, state, "read_out")[::2, 0]
    np.testing.assert_allclose(model(prompt, loops=4)[0, 0].detach().numpy(), wanted, rtol=1e-9, atol=1e-10)


def test_injections_are_their_maths():
    rng = np.random.default_rng(5)
    y, p = rng.normal(size=(2, 4, 12)), rng.normal(size=(2, 4, 12))

    def injected(inject):
        model = random_model(replace(TINY, inject=inject))
        weights = {name: value.numpy() for name, value in model.injection.state_dict().items()}
        return model.injection(torch.tensor(y), torch.tensor(p)).detach().numpy(), weights

    got, weights = injected("scaled")
    np.testing.assert_allclose(got, weights["carry"] * y + weights["scale"] * p, rtol=1e-12)
    got, weights = injected("gated")
    gate = 1 / (1 + np.exp(-affine(np.concatenate([y, p], -1), weights, "gate")))
    np.testing.assert_allclose(got, (1 - gate) * y + gate * p, rtol=1e-11)


@pytest.mark.parametrize("inject", ["scaled", "concat"])
def test_injections_with_weights_start_as_addition(inject):
    torch.manual_seed(0)
    added, other = TINY.build().double(), replace(TINY, inject=inject).build().double()
    other.load_state_dict(added.state_dict(), strict=False)
    prompt = some_prompt()
    torch.testing.assert_close(other(prompt, keep=3), added(prompt, keep=3), rtol=1e-12, atol=1e-12)


@every_variant
def test_a_stack_equals_each_model_alone(fields):
    config = replace(TINY, **fields)
    models = [random_model(config, seed) for seed in range(2)]
    stacked, prompt = stack(models), some_prompt(models=(2,))
    together = stacked(prompt, loops=4, keep=2)
    weights = torch.tensor(np.random.default_rng(9).normal(size=tuple(together.shape)))
    (together * weights).sum().backward()
    gradients = dict(stacked.named_parameters())
    for index, model in enumerate(models):
        alone = model(Prompt(prompt.xs[index], prompt.ys[index]), loops=4, keep=2)
        torch.testing.assert_close(together[:, index], alone, rtol=1e-10, atol=1e-11)
        (alone * weights[:, index]).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.abs().max() > 0, name
            torch.testing.assert_close(gradients[name].grad[index], parameter.grad, rtol=1e-8, atol=1e-10)


@every_variant
def test_an_answer_reads_only_what_came_before(fields):
    model, prompt, other = random_model(replace(TINY, **fields)), some_prompt(), some_prompt(seed=1)
    before = model.predict(prompt)
    xs, ys = torch.cat([prompt.xs[:, :3], other.xs[:, 3:]], 1), torch.cat([prompt.ys[:, :2], other.ys[:, 2:]], 1)
    after = model.predict(Prompt(xs, ys))
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-13)
    assert (after[:, 3] - before[:, 3]).abs().min() > 1e-6


@every_variant
def test_a_query_stream_is_exact_where_it_is_offered(fields):
    model = random_model(replace(TINY, **fields))
    assert supports_query_stream(model) == ("linear" not in str(fields.get("parts")))
    if not supports_query_stream(model):
        return
    prompt, queries = some_prompt(), some_prompt(seed=1)
    both = Prompt(torch.cat((prompt.xs, queries.xs)), torch.cat((prompt.ys, prompt.ys)))
    with query_stream(model, 3):
        got = model.predict(both)[3:]
    for i in range(4):
        alone = Prompt(torch.cat((prompt.xs[:, :i], queries.xs[:, i : i + 1]), 1), prompt.ys[:, : i + 1])
        torch.testing.assert_close(got[:, i], model.predict(alone)[:, i], rtol=1e-10, atol=1e-11)


def test_our_gpu_kernels_refuse_what_they_do_not_cover():
    model = replace(TINY, width=32, heads=2).build()
    assert obstacle(model) == "it is shaped by a RecurrentDepthConfig"
    for parts, reason in (
        (BlockParts(kv_heads=1), "it is made of GroupedAttention and MLP"),
        (BlockParts(mlp="swiglu"), "it is made of Attention and SwiGLU"),
        (BlockParts(norm="rms"), "its norm is a RMSNorm"),
    ):
        assert block_obstacle(parts.block(32, 2)) == reason
    assert block_obstacle(BlockParts().block(32, 2)) is None


# halting


def halting_model():
    model = random_model(replace(TINY, ponder=0.1, loops=6))
    with torch.no_grad():
        model.halt.bias.zero_()
    return model


def test_halting_mixes_streams_by_the_chances_to_halt():
    model, prompt = halting_model(), some_prompt()
    context = model.embed(prompt)
    assert model.costs
    state, remaining, answer, expected = model.start(context), 1.0, 0.0, 0.0
    stream = state.stream
    for t in range(5):
        *_, stream = super(type(model), model).substeps(stream, context, t)
        chance = 1 / (1 + torch.exp(-(stream @ model.halt.weight[0] + model.halt.bias)))
        expected = expected + remaining * torch.ones_like(chance)
        answer = answer + (remaining * chance)[..., None] * stream
        remaining = remaining * (1 - chance)
        state = model.step(state, context, t)
    torch.testing.assert_close(state.remaining, remaining, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state.loops, expected, rtol=1e-12, atol=1e-13)
    mixed = answer + remaining[..., None] * stream
    torch.testing.assert_close(
        model.readout(state, context), model.read_out(mixed[:, ::2])[..., 0], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(model.cost(state), 0.1 * expected.mean(-1), rtol=1e-12, atol=1e-12)
    assert 1 < expected.detach().min() < expected.detach().max() <= 5


# exits per token


def test_a_token_that_left_stays_and_the_others_read_it():
    """By hand, token by token, over a plain step whose tokens read each other's mean."""
    rate = torch.tensor([[0.1, 0.5, 0.8]], dtype=torch.float64)

    def step(state, context, t):
        return rate[..., None] * state + state.mean(1, keepdim=True) * 0.1 + 1

    def rule(state, previous, context, t):
        return (state - previous).abs().amax(-1) < 1e-2

    state = torch.zeros(1, 3, 2, dtype=torch.float64)
    got = settle_tokens(step, state, (), rule, max_loops=60, collect=lambda state, _: state)
    values, left, loops = np.zeros((3, 2)), [False] * 3, [60] * 3
    for t in range(60):
        new = rate[0].numpy()[:, None] * values + values.mean(0) * 0.1 + 1
        leaving = np.abs(new - values).max(-1) < 1e-2
        for i in range(3):
            if not left[i]:
                values[i] = new[i]
                loops[i], left[i] = (t + 1, True) if leaving[i] else (60, False)
        if all(left):
            break
    assert got.loops.tolist() == [loops]
    assert len(set(loops)) == 3
    assert got.finished.all()
    np.testing.assert_allclose(got.predictions[0].numpy(), values, rtol=1e-13)


def test_tokens_leave_by_their_change_or_as_they_learned():
    prompt = some_prompt()
    model = random_model(replace(TINY, inject="gated"))
    out = model.settle_tokens(prompt, TokenChange(tolerance=1e-3), max_loops=40)
    assert out.loops.shape == (3, 8)
    assert out.finished.all()
    assert len(set(out.loops.flatten().tolist())) > 1
    torch.testing.assert_close(out.predictions, model.predict(prompt, loops=60), rtol=0, atol=0.05)
    never = model.settle_tokens(prompt, TokenChange(tolerance=0.0), max_loops=5)
    assert not never.finished.any()
    torch.testing.assert_close(never.predictions, model.predict(prompt, loops=5), rtol=1e-12, atol=1e-12)
    learned = halting_model()
    out = learned.settle_tokens(prompt, Halted(chance=0.6), max_loops=30)
    assert out.finished.all()
    assert len(set(out.loops.flatten().tolist())) > 1
    sure = learned.settle_tokens(prompt, Halted(chance=0.99), max_loops=30)
    assert (sure.loops >= out.loops).all()
    with pytest.raises(ValueError, match="is for models that learn to halt"):
        model.settle_tokens(prompt, Halted(), max_loops=3)
    assert learned.settle(prompt, StateChange(tolerance=0.5), max_loops=30).predictions.shape == (3, 4)


# what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prelude": -1}, "`prelude` must be at least 0; got -1"),
        ({"ponder": -0.5}, "`ponder` must be at least 0; got -0.5"),
        ({"parts": BlockParts(kv_heads=3)}, "`kv_heads` must divide heads=2; got 3"),
        ({"parts": BlockParts(rotary=True), "heads": 4}, "heads must have an even width; got 3"),
        ({"inject": "none", "start_std": 1.0}, "`start_std` must be 0; got 1.0"),
        ({"inject": "none", "prelude": 1}, "adds positions inside the loops"),
        ({"chance": 1.0}, "`chance` must be between 0 and 1; got 1.0"),
    ],
)
def test_options_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Halted(**fields) if "chance" in fields else replace(TINY, **fields)
