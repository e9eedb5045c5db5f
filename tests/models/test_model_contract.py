"""What every recipe's model promises; a new paper's recipes are found by import and held to it."""

from dataclasses import replace

import pytest
import torch

from looped.experiment import Experiment
from looped.models.decoder import DecoderConfig
from looped.models.loop import leaves
from looped.prompt import Prompt, Sequence
from looped.recipes import SCALES, experiment, recipes
from looped.tasks.translation import Translation
from tasks.tiny_text import write

RECIPES = recipes()
every_recipe = pytest.mark.parametrize("name", RECIPES)
SMALL = [
    (name, scale)
    for name in RECIPES
    for scale in ("smoke", "cpu")
    # its `cpu` scale is for a GPU
    if scale == "smoke" or not isinstance(experiment(name, scale).task, Translation)
]
every_small_recipe = pytest.mark.parametrize(("name", "scale"), SMALL)


@pytest.fixture(autouse=True)
def _text(tmp_path_factory, request, monkeypatch):
    """Recipes that read text read a tiny one; those that read tables, the real ones."""
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name is not None and isinstance(experiment(name, "smoke").task, Translation):
        folder = tmp_path_factory.mktemp("data")
        write(folder / "translation" / "multi30k")
        monkeypatch.setenv("LOOPED_DATA", str(folder))
        monkeypatch.setenv("LOOPED_CACHE", str(folder / "cache"))


def built(recipe, seed=0):
    """A fresh model in float64."""
    torch.manual_seed(seed)
    return recipe.model.build().double()


def shaken(recipe, seed=0):
    """The model with random numbers added to all weights: at its start, so small, a mistake would not show."""
    model = built(recipe, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def prompts(recipe, batch=4, n=None, seed=0):
    n = recipe.train.points if n is None else n
    return recipe.task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed)).to(torch.float64)


def test_the_promised_recipes_exist():
    assert {"yang24.linear", "yang24.linear_12_layers", "yang24.sparse", "yang24.tied"} <= set(RECIPES)


@every_recipe
def test_recipes_come_in_every_scale_and_survive_being_written(name):
    scales = [experiment(name, scale) for scale in SCALES]
    assert len({recipe.hash for recipe in scales}) == len(SCALES)
    for recipe in scales:
        assert recipe.name == name
        assert recipe.train is not None
        again = Experiment.from_data(recipe.to_data())
        assert again == recipe
        assert again.hash == recipe.hash
        if isinstance(recipe.model, DecoderConfig):
            assert 2 * recipe.train.points <= recipe.model.positions, "the longest prompt fits"


@every_small_recipe
def test_every_parameter_receives_gradient(name, scale):
    """In the first step of training, with its windows and depth: what gets none there is never trained."""
    recipe = experiment(name, scale)
    model, prompt, config = built(recipe), prompts(recipe, batch=8), recipe.train
    loops = recipe.loops_at(0)
    outputs = model(prompt, loops=loops, **config.windows(loops))
    recipe.task.error(outputs, prompt).mean().backward()
    silent = [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert not silent
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_weight_tying_with_a_window_would_leave_the_read_in_untrained():
    """Why `yang24.tied` carries gradient through all loops; the contract above finds it where it does not."""
    recipe = experiment("yang24.tied", "smoke")
    assert recipe.train.grad is None
    model, prompt = built(recipe), prompts(recipe)
    recipe.task.error(model(prompt, grad=2, keep=2), prompt).mean().backward()
    assert model.read_in.weight.grad is None


def spliced(prompt, other, i):
    """`prompt` up to and with x_i, or token i, and `other` after it."""
    if isinstance(prompt, Sequence):
        tokens = torch.cat((prompt.tokens[:, : i + 1], other.tokens[:, i + 1 :]), dim=1)
        return Sequence(tokens, prompt.targets)
    xs = torch.cat((prompt.xs[:, : i + 1], other.xs[:, i + 1 :]), dim=1)
    return Prompt(xs, torch.cat((prompt.ys[:, :i], other.ys[:, i:]), dim=1))


@every_small_recipe
def test_predictions_read_only_what_came_before(name, scale):
    """Change y_i, x_{i+1}, y_{i+1} and all after: predictions up to i stay, bit for bit or to rounding."""
    recipe = experiment(name, scale)
    model, prompt = shaken(recipe), prompts(recipe)
    before, other = model.predict(prompt), prompts(recipe, seed=1)
    n, answered = prompt.num_positions, before.shape[1]
    if not recipe.model.hides_labels:  # its answer is a vector, which may depend on all pairs
        answered = 0
    moved = False
    for i in range(n) if n < 40 else (0, n // 3, n // 2, n - 2):
        after = model.predict(spliced(prompt, other, i))
        known = i + 1 - (n - answered)  # a model may answer at the last positions only
        if known > 0:
            torch.testing.assert_close(after[:, :known], before[:, :known], rtol=0, atol=1e-12)
        moved = moved or not torch.allclose(after, before)
    assert moved, "and they do read what came before"


@every_small_recipe
def test_states_end_in_the_prediction(name, scale):
    recipe = experiment(name, scale)
    model, prompt = shaken(recipe), prompts(recipe)
    for loops in (None, 3):
        states = model.states(prompt, loops)
        count = recipe.model.loops if loops is None else loops
        if isinstance(recipe.model, DecoderConfig):
            assert len(states) == count * recipe.model.layers
        assert len(states) % count == 0
        layers_per_loop = len(states) // count
        context = model.embed(prompt)
        curve = model(prompt, loops=count, keep=count)
        for t in range(count):
            assert torch.equal(model.readout(states[(t + 1) * layers_per_loop - 1], context), curve[t])
        assert torch.equal(model.readout(states[-1], context), model.predict(prompt, loops=loops))
        assert not any(part.requires_grad for part in leaves(states))


@every_small_recipe
def test_precision_is_the_models(name, scale):
    recipe = experiment(name, scale)
    model, prompt = shaken(recipe), prompts(recipe)
    double = model.predict(prompt)
    assert double.dtype == torch.float64
    single = model.float().predict(prompt.to(torch.float32))
    assert single.dtype == torch.float32
    assert (single - double).abs().max() < 1e-3 * double.abs().max().clamp(min=1)


@every_recipe
def test_prompts_of_a_batch_do_not_mix(name):
    recipe = experiment(name, "smoke")
    model, prompt = shaken(recipe), prompts(recipe)
    whole = model.predict(prompt)
    for i in range(4):
        alone = model.predict(prompt.rows(slice(i, i + 1)))
        torch.testing.assert_close(alone[0], whole[i], rtol=0, atol=1e-12)


@every_recipe
def test_truth_and_weights_are_never_read(name):
    recipe = experiment(name, "smoke")
    model, prompt = shaken(recipe), prompts(recipe)
    bare = replace(prompt, weights=None, truth={})
    weighted = replace(bare, weights=torch.rand(prompt.places), truth={"w": torch.full((4, 1), torch.nan)})
    assert torch.equal(model.predict(bare), model.predict(weighted))


@every_recipe
def test_a_seed_names_the_fresh_weights(name):
    recipe = experiment(name, "smoke")
    first, same, other = (built(recipe, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
