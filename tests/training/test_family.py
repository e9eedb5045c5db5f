"""A family trained as one batch equals each model trained alone; a family's folder goes on after a stop."""

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from looped.cli.report import run_folders
from looped.experiment import Adam, AdamW
from looped.files import read_json, write_json
from looped.functional import kernels
from looped.functional.schedules import Staircase, Trapezoid
from looped.models.kernel_transformer import functional, restricted
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression
from looped.training import training_loop
from looped.training.clip import Clip
from looped.training.family import build_family, family_folder, train_family
from looped.training.folder import is_family
from looped.training.provenance import commit
from looped.training.rollback import Rollback
from looped.training.stopping import Interrupted, stop_signals
from unstacking import unstack

D, N, STEPS = 3, 6, 12
train_in_memory = partial(train_family, folder=None)


def prompts(seed: int, step: int) -> Prompt:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return LinearRegression(d=D).sample(batch=16, n=N + 1, generator=generator).to(torch.float64)


def draw(seeds):
    """Private prompts: every model has its own."""

    def batch(step):
        made = [prompts(seed, step) for seed in seeds]
        return torch.stack([one.xs for one in made]), torch.stack([one.ys for one in made])

    return batch


def loss(model, batch):
    xs, ys = batch
    error = (model(Prompt(xs, ys))[-1, ..., 0] - ys[..., -1]).square()
    return error.mean(-1)


OPTIMIZER = AdamW(learning_rate=0.05, betas=(0.9, 0.95), weight_decay=0.01, schedule=Trapezoid(decay=0.5))


@pytest.mark.parametrize(
    "clip",
    [None, Clip(norm=0.1), Clip(norm=0.05, over="matrix"), Clip(norm=(1e-8, 0.03), over="layer")],
    ids=["none", "model", "matrix", "layer"],
)
def test_each_model_is_trained_as_if_alone(clip):
    config = functional(d=D, loops=2, layers=2, kernel=lambda u, v: (u @ v.mT / 4).exp(), init_std=0.1)
    seeds = (3, 7, 11)
    options = {"steps": STEPS, "optimizer": OPTIMIZER, "clip": clip, "every": 4, "log_every": 2}
    together = train_in_memory(build_family(config, seeds, dtype=torch.float64), loss, draw=draw(seeds), **options)
    for index, seed in enumerate(seeds):
        alone = train_in_memory(build_family(config, [seed], dtype=torch.float64), loss, draw=draw([seed]), **options)
        torch.testing.assert_close(together.losses[:, index], alone.losses[:, 0], rtol=1e-10, atol=1e-10)
        mine, theirs = unstack(together.family)[index], unstack(alone.family)[0]
        for name, weight in theirs.named_parameters():
            torch.testing.assert_close(mine.get_parameter(name), weight, rtol=1e-10, atol=1e-10)
            assert not torch.equal(weight, dict(build_family(config, [seed]).named_parameters())[name][0].double())


def test_against_a_plain_loop_of_torch():
    """One model, its gradients, clipping and AdamW written out with torch alone."""
    config = restricted(d=D, loops=3, layers=3, init_std=0.1)
    family = build_family(config, [5], dtype=torch.float64)
    single = unstack(family)[0]
    trained = train_in_memory(family, loss, steps=STEPS, optimizer=OPTIMIZER, clip=Clip(norm=0.2), draw=draw([5]))
    adam = torch.optim.AdamW(single.parameters(), lr=0.05, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = 0.05 * Trapezoid(decay=0.5)(step, STEPS)
        prompt = prompts(5, step)
        value = (single(prompt)[-1, :, 0] - prompt.ys[:, -1]).square().mean()
        assert value.item() == pytest.approx(trained.losses[step, 0].item(), rel=1e-5)  # torch divides by norm + 1e-6
        adam.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(single.parameters(), 0.2)
        adam.step()

    torch.testing.assert_close(unstack(family)[0].state_dict(), single.state_dict(), rtol=1e-4, atol=1e-6)


def test_tiny_layer_norms_make_adam_take_normalised_steps():
    """cheng24's program: the first step of a layer has length rate norm / eps, whatever the gradient."""
    start = {"a": torch.ones(2, 2, 4, dtype=torch.float64), "b": torch.ones(2, 2, dtype=torch.float64)}
    scale = torch.tensor([1.0, 100.0], dtype=torch.float64)

    def valley(weights, batch):
        return scale * (weights["a"].square().sum((1, 2)) + weights["b"].square().sum(1))

    norms = (1e-12, 4e-12)
    optimizer = AdamW(learning_rate=0.1, betas=(0.9, 0.9))
    trained = train_in_memory(start, valley, steps=1, optimizer=optimizer, clip=Clip(norm=norms, over="layer"))
    moved = ((trained.family["a"] - 1).square().sum(-1) + (trained.family["b"] - 1).square()).sqrt()
    expected = 0.1 * torch.tensor(norms, dtype=torch.float64) / 1e-8
    torch.testing.assert_close(moved, expected.expand(2, 2), rtol=1e-3, atol=0)
    assert torch.equal(start["a"], torch.ones(2, 2, 4, dtype=torch.float64))


def test_a_model_that_diverges_leaves_the_others_alone():
    start = {"w": torch.tensor([[1.0], [torch.inf]], dtype=torch.float64)}
    optimizer = Adam(learning_rate=0.1, clip=1.0)
    trained = train_in_memory(start, lambda w, _: w["w"].square().sum(1), steps=60, optimizer=optimizer)
    assert trained.losses[-1, 0] < 0.05
    assert not trained.losses[-1, 1].isfinite()


def test_batches_last_and_watch_sees_start_and_end():
    seen, told = [], []

    def batch(step):
        seen.append(step)
        return torch.tensor(float(step))

    trained = train_in_memory(
        {"w": torch.zeros(2, 1)},
        lambda weights, value: (weights["w"][:, 0] - value).square(),
        steps=7,
        optimizer=Adam(learning_rate=1.0, schedule=Staircase(start=1, stop=1, by=1, every=1)),
        draw=batch,
        every=3,
        log_every=2,
        watch=lambda weights: weights["w"],
        progress=told.append,
    )
    assert seen == [0, 3, 6]
    assert trained.steps == [0, 2, 4, 6]
    assert told == [1, 3, 5, 7]
    assert trained.watched.shape == (5, 2, 1)
    assert torch.equal(trained.watched[0], torch.zeros(2, 1))
    assert torch.equal(trained.watched[-1], trained.family["w"])


def test_graph_is_for_the_gpu_and_changes_nothing_elsewhere():
    options = {"steps": 6, "optimizer": Adam(learning_rate=0.1)}
    results = [
        train_in_memory({"w": torch.ones(1, 2)}, lambda w, _: w["w"].square().sum(1), graph=graph, **options).losses
        for graph in (False, True)
    ]
    assert torch.equal(*results)


def test_families_that_threads_build_have_the_weights_of_their_seeds():
    config = functional(d=D, loops=2, layers=2, kernel=kernels.relu)
    alone = build_family(config, range(4)).state_dict()
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(lambda _: build_family(config, range(4)).state_dict(), range(64)))
    assert all(torch.equal(state[name], alone[name]) for state in built for name in alone)


def test_bad_settings_are_named():
    start, optimizer = {"w": torch.ones(1, 2)}, Adam(clip=1.0)
    with pytest.raises(ValueError, match="`steps` must be at least 1; got 0"):
        train_in_memory(start, lambda w, _: w["w"].sum(1), steps=0, optimizer=optimizer)
    with pytest.raises(ValueError, match="clipped once"):
        train_in_memory(start, lambda w, _: w["w"].sum(1), steps=1, optimizer=optimizer, clip=Clip(norm=1.0))
    with pytest.raises(ValueError, match="Set `over` to layer"):
        Clip(norm=(1.0, 2.0))


IDENTITY = {"what": "a valley"}


def train_valley(folder, *, steps=40, tell=None, rollback=None, identity=IDENTITY, **options):
    """Three models on noisy parabolas, with prompts from two generators, every third step a new batch."""
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]

    def noise(step):
        return torch.stack([torch.randn(3, 2, generator=generator) for generator in generators]).sum(0)

    return train_family(
        {"w": torch.linspace(-1, 1, 6).view(3, 2)},
        lambda family, batch: 1 + (family["w"] - 0.1 * batch).square().sum(1),
        folder=folder,
        identity=identity,
        steps=steps,
        optimizer=Adam(learning_rate=0.05, schedule=Trapezoid(decay=0.5)),
        rollback=rollback,
        draw=noise,
        every=3,
        generators=generators,
        log_every=2,
        checkpoint_seconds=0,
        watch=lambda family: family["w"].norm(dim=1),
        progress=tell,
        **options,
    )


def assert_same(left, right):
    assert left.steps == right.steps
    assert torch.equal(left.family["w"], right.family["w"])
    assert torch.equal(left.losses, right.losses)
    assert torch.equal(left.watched, right.watched)


@pytest.mark.parametrize("rollback", [None, Rollback()], ids=["adam", "rollback"])
@pytest.mark.parametrize("stop", [6, 19, 36])
def test_a_stopped_family_goes_on_and_ends_with_the_same_bits(tmp_path, stop, rollback):
    whole = train_valley(None, rollback=rollback)
    folder = family_folder(tmp_path, "valley", IDENTITY)

    def interrupt(done):
        if done >= stop:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped at step \d+ of 40; saved in .*valley-.*Go on with the same"):
        train_valley(folder, rollback=rollback, tell=interrupt)
    assert_same(train_valley(folder, rollback=rollback), whole)


def test_a_finished_family_is_loaded_and_not_trained(tmp_path):
    folder = family_folder(tmp_path, "valley", IDENTITY)
    trained = train_valley(folder)
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    again = train_valley(folder, tell=lambda done: pytest.fail("it was trained again"))
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == files
    assert_same(again, trained)
    assert trained.seconds == again.seconds > 0
    assert again.folder.provenance()["commit"] == commit()
    assert is_family(folder)
    assert run_folders(tmp_path) == ([], 0)  # `looped report` shows runs


def test_seconds_and_commits_add_up_over_processes(tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(training_loop.time, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(Interrupted):
        train_valley(tmp_path / "a", tell=lambda done: signal.raise_signal(signal.SIGINT))
    earlier = read_json(tmp_path / "a" / "provenance.json")
    write_json(tmp_path / "a" / "provenance.json", {**earlier, "commit": "abc1234"})
    trained = train_valley(tmp_path / "a")
    last = trained.folder.provenance()
    assert last["train_seconds"] == trained.seconds > earlier["train_seconds"] + 30
    assert (last["commit"], last["earlier_commits"]) == (commit(), ["abc1234"])


def test_a_folder_of_another_family_is_refused(tmp_path):
    train_valley(tmp_path / "a")
    for other in ({"steps": 20}, {"identity": {"what": "a hill"}}, {"rollback": Rollback(calm=5)}):
        with pytest.raises(ValueError, match="holds another family"):
            train_valley(tmp_path / "a", **other)
    with pytest.raises(ValueError, match="needs the family's `identity`"):
        train_valley(tmp_path / "b", identity=None)
    with pytest.raises(ValueError, match="letters, digits"):
        family_folder(tmp_path, "../a", {})
    assert not (tmp_path / "b").exists()


def test_a_damaged_checkpoint_costs_what_came_after_the_one_before_it(tmp_path, caplog):
    whole = train_valley(tmp_path / "whole")
    train_valley(tmp_path / "a")
    last = max((tmp_path / "a" / "checkpoints").iterdir())
    last.write_bytes(last.read_bytes()[:-9])
    assert_same(train_valley(tmp_path / "a"), whole)
    assert "is damaged" in caplog.text


def test_families_in_threads_stop_when_the_main_thread_says_so(tmp_path):
    with stop_signals() as stop, ThreadPoolExecutor(2) as workers:
        jobs = [workers.submit(train_valley, tmp_path / name, steps=10**6) for name in "ab"]
        while not all((tmp_path / name / "checkpoints").exists() for name in "ab"):
            pass
        stop.set()
        for job in jobs:
            with pytest.raises(Interrupted):
                job.result()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rollback", [None, Rollback()], ids=["adam", "rollback"])
def test_captured_steps_are_the_plain_ones_and_go_on_after_a_stop(tmp_path, rollback):
    def train_on_gpu(folder, graph, tell=None):
        generator = torch.Generator("cuda").manual_seed(3)
        return train_family(
            {"w": torch.linspace(-1, 1, 6, device="cuda").view(3, 2)},
            lambda family, batch: 1 + (family["w"] - 0.1 * batch).square().sum(1),
            folder=folder,
            identity=IDENTITY,
            steps=40,
            optimizer=Adam(learning_rate=0.05, schedule=Trapezoid(decay=0.5)),
            clip=Clip(norm=(0.5, 1.0), over="layer"),
            rollback=rollback,
            draw=lambda step: torch.randn(3, 2, generator=generator, device="cuda"),
            every=3,
            generators=[generator],
            checkpoint_seconds=0,
            progress=tell,
            graph=graph,
        )

    plain, captured = (train_on_gpu(None, graph) for graph in (False, True))
    torch.testing.assert_close(captured.losses, plain.losses)
    torch.testing.assert_close(captured.family["w"], plain.family["w"])
    with pytest.raises(Interrupted):
        train_on_gpu(tmp_path / "a", True, lambda done: signal.raise_signal(signal.SIGINT) if done == 20 else None)
    torch.testing.assert_close(train_on_gpu(tmp_path / "a", True).family["w"], plain.family["w"])
