"""Training by other gradient rules, loss weights of loops, penalties and random starts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from looped.experiment import Experiment, TrainConfig, training
from looped.functional.fixed_points import Anderson
from looped.functional.schedules import RandomDepth
from looped.models.gradients import Implicit, Phantom, Truncated, jacobian_penalty
from looped.papers import parts
from looped.training import engine
from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import Trainer, train, train_seeds
from training.tiny import assert_same_run, stop_at

BASE = training(parts.plain("smoke"), depth=None, dtype="float64", log_every=1)


def first_step(experiment, folder):
    """The trainer after one step, the prompt of that step, and the model before it."""
    prompts = Trainer([Run.create(folder / "prompts", experiment)], torch.device("cpu")).batches
    prompt = prompts.draw(prompts.now(0))
    trainer = Trainer([Run.create(folder / "run", experiment)], torch.device("cpu"))
    before = experiment.model.build().double()
    before.load_state_dict(trainer.weights())
    gradients = {}

    def clip(model, *, stacked):
        gradients.update({name: weight.grad.clone() for name, weight in model.named_parameters()})
        return torch.zeros((), dtype=torch.float64)

    trainer.optimizers.clip = clip
    trainer.step(0)
    return float(trainer.sums[0, 0]), gradients, before, prompt


def assert_step(experiment, folder, loss_of):
    """The first step's loss and gradients are those of `loss_of(model, prompt)`."""
    loss, gradients, model, prompt = first_step(experiment, folder)
    wanted = loss_of(model, prompt)
    assert loss == pytest.approx(wanted.item(), rel=1e-6)  # the trainer sums in float32
    slopes = torch.autograd.grad(wanted, list(model.parameters()))
    for (name, _), slope in zip(model.named_parameters(), slopes, strict=True):
        torch.testing.assert_close(gradients[name], slope, rtol=1e-9, atol=1e-12)


def test_loops_of_the_window_weigh_as_they_are_told(tmp_path):
    experiment = training(BASE, window=3, grad=3, loop_weights=(1.0, 0.0, 3.0))

    def loss(model, prompt):
        first, _, last = BASE.task.error(model(prompt, grad=3, keep=3), prompt).flatten(1).mean(1)
        return (first + 3 * last) / 4

    assert_step(experiment, tmp_path, loss)


def test_a_step_of_few_loops_has_the_last_weights(tmp_path):
    experiment = training(BASE, window=3, grad=3, loop_weights=(1.0, 1.0, 3.0), depth=RandomDepth(low=-2, high=-2))

    def loss(model, prompt):
        first, last = BASE.task.error(model(prompt, loops=2, keep=2), prompt).flatten(1).mean(1)
        return (first + 3 * last) / 4

    assert_step(experiment, tmp_path, loss)


@pytest.mark.parametrize(
    ("rule", "window"), [(Truncated(back=2), 3), (Phantom(back=2), 1), (Implicit(solver=Anderson()), 1)], ids=str
)
def test_a_gradient_rule_takes_the_place_of_the_window(tmp_path, rule, window):
    experiment = training(BASE, window=window, grad=None, gradient=rule)

    def loss(model, prompt):
        return BASE.task.error(model(prompt, keep=window, gradient=rule), prompt).mean()

    assert_step(experiment, tmp_path, loss)


def test_the_jacobians_penalty_is_added(tmp_path):
    experiment = training(BASE, window=1, grad=1, jacobian=0.7)

    def loss(model, prompt):
        context = model.embed(prompt)
        states = [model.start(context)]
        for t in range(4):
            states.append(model.step(states[-1] if t < 3 else states[-1].detach(), context, t))
        generator = torch.Generator()
        generator.set_state(
            Trainer([Run.create(tmp_path / "draws", experiment)], torch.device("cpu")).batches.generators[0].get_state()
        )
        experiment.task.sample(batch=8, n=5, generator=generator)
        direction = torch.randn(states[-1].shape, generator=generator, dtype=torch.float64)
        penalty = jacobian_penalty(model.step, states[-1], context, 3, direction, batch_axes=1).mean()
        return BASE.task.error(model.readout(states[-1], context)[None], prompt).mean() + 0.7 * penalty

    assert_step(experiment, tmp_path, loss)


def test_a_model_that_halts_pays_for_its_loops(tmp_path):
    experiment = training(replace(BASE, model=replace(BASE.model, ponder=0.3)), window=1, grad=None)

    def loss(model, prompt):
        context = model.embed(prompt)
        state = model.start(context)
        for t in range(4):
            state = model.step(state, context, t)
        return BASE.task.error(model.readout(state, context)[None], prompt).mean() + 0.3 * state.loops.mean()

    assert_step(experiment, tmp_path, loss)


DRAWN = {
    "random start": replace(BASE, model=replace(BASE.model, start_std=1.0)),
    "jacobian": training(BASE, jacobian=0.5),
    "implicit": training(BASE, window=1, grad=None, gradient=Implicit()),
}


@pytest.mark.parametrize("experiment", DRAWN.values(), ids=DRAWN)
def test_such_a_run_goes_on_bit_for_bit_and_seeds_in_a_stack_train_as_alone(tmp_path, experiment):
    with pytest.raises(Interrupted):
        train(experiment, out=tmp_path / "stopped", progress=stop_at(3))
    whole = train(experiment, out=tmp_path / "whole")
    assert_same_run(train(experiment, out=tmp_path / "stopped"), whole)
    for seed, run in enumerate(train_seeds(experiment, [0, 1], out=tmp_path / "stack")):
        alone = whole if seed == 0 else train(training(experiment, seed=seed), out=tmp_path / "whole")
        losses = [[line["loss"] for line in lines.metrics()] for lines in (run, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_random_starts_are_drawn_in_training_alone(tmp_path):
    experiment = DRAWN["random start"]
    trainer = Trainer([Run.create(tmp_path / "run", experiment)], torch.device("cpu"))
    prompt = trainer.batches.draw(trainer.batches.now(0))
    context = trainer.model.embed(prompt)
    first, second = trainer.model.start(context), trainer.model.start(context)
    assert (first - second).abs().min() > 0
    assert float(torch.cat([first, second]).std()) == pytest.approx(1.0, abs=0.05)  # 2,560 draws: .014
    with torch.no_grad():
        assert not trainer.model.start(context).any()
    model = train(experiment, out=tmp_path).model().double()
    assert torch.equal(model(prompt), model(prompt)), "an evaluated model starts at the mean"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gradient": Implicit(), "grad": 2}, "`gradient` takes the place of `grad`, which must be null then; got 2"),
        ({"gradient": Phantom(), "window": 2}, "Phantom gives gradient to the last loop alone; got window=2"),
        ({"loop_weights": (1.0,), "window": 2}, r"`loop_weights` are window=2 numbers"),
        ({"loop_weights": (1.0, 0.0), "window": 2}, r"the last above 0; got \[1.0, 0.0\]"),
        ({"loop_weights": (-1.0, 1.0), "window": 2}, r"of at least 0"),
        ({"jacobian": -0.1}, "`jacobian` must be at least 0; got -0.1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**fields)


def test_loops_that_differ_have_no_fixed_point(tmp_path):
    model = replace(BASE.model, loop_embedding=True)
    experiment = training(replace(BASE, model=model), window=1, grad=None, gradient=Implicit())
    with pytest.raises(ValueError, match="Implicit looks for a fixed point, and the loops of this model differ"):
        train(experiment, out=tmp_path)


def test_without_injection_no_rule_cuts_the_gradient():
    with pytest.raises(ValueError, match="`grad` and `gradient` must be null"):
        training(replace(BASE, model=replace(BASE.model, inject="none")), grad=None, gradient=Truncated(back=1))


def test_captured_engines_refuse_what_they_do_not_run():
    for fields, model in (
        ({"window": 1, "grad": None, "gradient": Implicit()}, BASE.model),
        ({"jacobian": 1.0}, BASE.model),
        ({}, replace(BASE.model, ponder=0.1)),
    ):
        config = training(BASE, **fields).train
        trainer = SimpleNamespace(
            model=model.build(), config=config, device=torch.device("cuda"), team=SimpleNamespace(joined=False)
        )
        assert type(engine.choose(trainer, "auto")[0]) is engine.Plain
        for name in ("graph", "fused"):
            with pytest.raises(
                ValueError, match=f"engine `{name}` has no gradient rules, penalties and learned halting"
            ):
                engine.choose(trainer, name)


def test_old_runs_keep_their_hash():
    """The hash that the experiment had before these fields, computed at commit 3314cbe."""
    from looped.recipes import experiment

    assert isinstance(experiment("yang24.linear", "paper"), Experiment)
    assert experiment("yang24.linear", "paper").hash == "da5f70ecb7"
