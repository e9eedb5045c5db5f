"""`check` finds ten planted faults, and in the models that come with looped nothing but what they declare."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import looped
from looped.evaluation.check import check
from looped.evaluation.identify import identify
from looped.models.base import LoopedModel, ModelConfig
from looped.prompt import Prompt
from looped.recipes import experiment, recipes
from looped.tasks.regression import LinearRegression

TASK = LinearRegression(d=3)


class Pairs(NamedTuple):
    tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class SmallConfig(ModelConfig):
    """A running mean over the pairs before each x, gated: sound unless a fault is planted."""

    loops: int = 3
    fault: str = ""
    injects = True

    def build(self):
        return Small(self)


class Small(LoopedModel):
    def __init__(self, config):
        super().__init__(config)
        self.read_in, self.mix = nn.Linear(4, 8), nn.Linear(8, 8)
        self.read_out = nn.Linear(8, 1)
        self.dead = nn.Linear(8, 8) if config.fault == "dead parameter" else None

    def embed(self, prompt):
        xs, before = prompt.xs, nn.functional.pad(prompt.ys, (1, 0))[..., :-1]
        if self.config.fault == "shape that depends on data":
            xs, before = xs[:, prompt.xs[0, :, 0] > 0], before[:, prompt.xs[0, :, 0] > 0]
        ys = prompt.ys if self.config.fault == "leaking label" else before
        return Pairs(self.read_in(torch.cat((xs, ys[..., None]), -1)))

    def start(self, context):
        zeros = torch.zeros_like(context.tokens)
        if self.config.fault == "unseeded noise":
            fresh = torch.Generator()
            fresh.seed()
            return torch.randn(zeros.shape, generator=fresh)
        if self.config.fault == "seeded noise":
            return torch.randn_like(zeros)
        return context.tokens if self.config.fault == "prompt only at the start" else zeros

    def step(self, state, context, t):
        fault, tokens = self.config.fault, context.tokens
        if fault == "loops that do nothing":
            return torch.tanh(self.mix(tokens))
        stream = state if fault == "prompt only at the start" else state + tokens
        if fault == "non-causal mask":
            stream = stream + stream.mean(1, keepdim=True)
        else:
            counts = torch.arange(1, stream.shape[1] + 1)[:, None]
            stream = stream + stream.cumsum(1) / counts
        new = torch.tanh(self.mix(stream))
        if fault == "in-place state":
            state.copy_(new)
            return state
        return new

    def readout(self, state, context):
        if self.config.fault == "constant output":
            return self.read_out(torch.zeros_like(state)).squeeze(-1)
        return self.read_out(state).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class WrongVariance(LinearRegression):
    @property
    def label_variance(self):
        return 1.0


FAULTS = {
    "leaking label": "label",
    "non-causal mask": "causal",
    "prompt only at the start": "prompt",
    "unseeded noise": "random",
    "dead parameter": "gradient",
    "shape that depends on data": "shapes",
    "in-place state": "in place",
    "constant output": "constant",
    "loops that do nothing": "loops",
    "wrong variance": "variance",
}


def small(fault, seed=0):
    torch.manual_seed(seed)
    return SmallConfig(fault=fault).build()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(fault):
    task = WrongVariance(d=3) if fault == "wrong variance" else TASK
    checked = check(small(fault), task)
    assert FAULTS[fault] in [finding.check for finding in checked.faults], str(checked)
    assert all(len(str(finding.text).splitlines()) == 1 for finding in checked.findings)
    assert all(finding.text.rstrip(".").count(". ") for finding in checked.faults), "a fault has a remedy"


@pytest.mark.parametrize("seed", range(3))
def test_a_sound_model_has_no_fault(seed):
    model = small("", seed)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    checked = check(model, TASK, seed=seed)
    assert [finding.verdict for finding in checked.findings] == ["fine"] * len(checked.findings), str(checked)
    assert {finding.check for finding in checked.findings} >= {*FAULTS.values()} | {"training", "batch"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_noise_that_a_seed_names_is_a_property():
    model, state = small("seeded noise"), torch.random.get_rng_state()
    checked = check(model, TASK)
    assert [(finding.check, finding.verdict) for finding in checked.findings if finding.verdict != "fine"] == [
        ("random", "property")
    ]
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_prompt_only_at_the_start_is_a_property_where_it_is_declared():
    class Declared(SmallConfig):
        injects = False

    checked = check(Small(Declared(fault="prompt only at the start")), TASK)
    assert not checked.faults
    assert [finding.check for finding in checked.findings if finding.verdict == "property"] == ["prompt"]


def test_a_model_that_raises_is_a_finding_and_not_a_traceback():
    model = small("")
    model.step = lambda state, context, t: state @ state
    [finding] = check(model, TASK).faults
    assert "RuntimeError" in finding.text


def test_a_task_that_cannot_be_sampled_is_one_line():
    class Broken(LinearRegression):
        def sample(self, *, batch, n, generator, dims=None):
            return torch.zeros(2)[n]

    with pytest.raises(ValueError, match="no prompts can be drawn from this task; `sample` stops with IndexError"):
        check(small(""), Broken(d=3))
    with pytest.raises(ValueError, match="`points` must be at least 2"):
        check(small(""), TASK, points=1)


PROPERTIES = {
    "tied": {"prompt"},
    "printed": {"prompt"},
    "12_layers": {"unlooped"},
    "gatmiry24.looped": {"causal", "prompt"},
    "gatmiry24.multilayer": {"causal", "prompt", "unlooped"},
    "cheng24": {"causal", "prompt", "unlooped"},
    "chen24": {"label", "prompt"},
    "tables": {"causal"},
}
"""What is known of the models whose recipes' names contain these words."""


@pytest.mark.parametrize("name", [name for name in recipes() if "gao24.table" not in name])
def test_models_that_come_with_looped_have_declared_properties_only(name):
    recipe = experiment(name, "smoke")
    if type(recipe.task).__name__ in ("Translation", "Tables"):
        return  # they need data files; their models are those of other recipes
    torch.manual_seed(0)
    checked = check(recipe.model.build(), recipe.task, points=recipe.train.points, window=recipe.train.window, steps=5)
    assert not checked.faults, str(checked)
    known = set().union(*(names for words, names in PROPERTIES.items() if words in name))
    assert {finding.check for finding in checked.findings if finding.verdict == "property"} == known


def test_identify_refuses_an_answer_that_reads_its_label():
    with pytest.raises(ValueError, match="changes with the query's own label"):
        identify(small("leaking label"), TASK, points=5, prompts=8, loops=1, max_steps=1)


@pytest.mark.usefixtures("unchecked")
def test_it_is_importable_from_the_top_and_refuses_what_is_no_model():
    assert looped.check is check
    for arguments in ((TASK, TASK), (small(""), small(""))):
        with pytest.raises(ValueError, match="must be a"):
            check(*arguments)
    with pytest.raises(ValueError, match="`steps` must be at least 1"):
        check(small(""), TASK, steps=0)


def test_prompts_of_a_batch_that_mix_are_a_fault():
    model = small("")
    plain = model.step
    model.step = lambda state, context, t: (
        plain(state, context, t) + state.mean(0, keepdim=True) + context.tokens.mean(0)
    )
    assert "batch" in [finding.check for finding in check(model, TASK).faults]


def test_weights_of_positions_enter_the_variance():
    @dataclass(frozen=True, kw_only=True)
    class LastOnly(LinearRegression):
        def sample(self, *, batch, n, generator, dims=None):
            prompt = super().sample(batch=batch, n=n, generator=generator, dims=dims)
            weights = torch.zeros_like(prompt.ys)
            weights[:, -1] = 1
            ys = torch.where(weights > 0, prompt.ys, 100 * prompt.ys)
            return replace(Prompt(prompt.xs, ys), weights=weights)

    findings = {finding.check: finding.verdict for finding in check(small(""), LastOnly(d=3)).findings}
    assert findings["variance"] == "fine"
