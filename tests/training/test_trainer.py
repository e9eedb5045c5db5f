import hashlib
import json
import os
import shutil
import signal
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from tiny import assert_same_run, metrics, stop_at
from torch.utils._python_dispatch import TorchDispatchMode

from looped.config import code_of
from looped.experiment import Adam, AdamW, Experiment, Muon, Setup, TrainConfig
from looped.files import read_tensors, write_tensors
from looped.functional.schedules import Ramp, RandomDepth, Staircase, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.papers import cheng24
from looped.tasks.regression import LinearRegression
from looped.training.folder import checkpoint_path
from looped.training.provenance import command
from looped.training.run import Run, load
from looped.training.stopping import Interrupted, stop_signals
from looped.training.trainer import Diverged, Trainer, train, train_seeds

TASK = LinearRegression(d=2)
MODEL = DecoderConfig(d=2, width=8, heads=2, loops=3, positions=12)
TRAIN = TrainConfig(
    steps=12,
    batch=4,
    points=4,
    window=2,
    grad=2,
    optimizer=Adam(learning_rate=0.01, clip=1.0),
    log_every=5,
    checkpoint_every=100,
)


def experiment(**fields):
    return Experiment(name="tiny", task=TASK, model=MODEL, train=replace(TRAIN, **fields))


def muon(**fields):
    return Muon(learning_rate=0.01, muon_learning_rate=0.02, clip=1.0, **fields)


def test_training_reduces_the_error(tmp_path):
    optimizer = muon(schedule=Trapezoid(warmup=0.1, decay=0.3))
    run = train(experiment(steps=60, batch=16, pool=8, log_every=10, optimizer=optimizer), out=tmp_path)
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(10, 61, 10))
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert lines[-1]["error"] < 0.8 * lines[0]["error"]
    assert all(line["gradient_norm"] > 0 for line in lines)


def test_the_last_line_averages_what_is_left(tmp_path):
    every = train(experiment(log_every=1), out=tmp_path).metrics()
    fives = train(experiment(log_every=5), out=tmp_path).metrics()
    assert [line["step"] for line in fives] == [5, 10, 12]
    for line, group in zip(fives, (every[:5], every[5:10], every[10:]), strict=True):
        for key in ("loss", "error", "gradient_norm"):
            assert line[key] == pytest.approx(sum(one[key] for one in group) / len(group), rel=1e-5)


def test_one_seed_is_one_run_and_another_seed_another(tmp_path):
    first, again = (train(experiment(), out=tmp_path / name) for name in "ab")
    other = train(experiment(seed=1), out=tmp_path)
    assert_same_run(first, again)
    assert metrics(other) != metrics(first)


def test_training_neither_reads_nor_moves_the_global_random_state(tmp_path):
    first = train(experiment(), out=tmp_path / "a")
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    assert_same_run(train(experiment(), out=tmp_path / "b"), first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_finished_run_is_found_and_not_repeated(tmp_path):
    run = train(experiment(), out=tmp_path)
    files = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.path.rglob("*") if file.is_file()}
    heard = []
    again = train(experiment(), out=tmp_path, progress=lambda *args: heard.append(args))
    assert again.path == run.path
    assert heard == []
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files} == files
    assert run.path.name == f"tiny-{experiment().hash}"


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    run = train(experiment(steps=1), out=tmp_path)
    with pytest.raises(ValueError, match="holds another experiment"):
        train(experiment(steps=2), folder=run.path)


def test_progress_hears_every_step_with_the_last_line(tmp_path):
    heard = []
    train(experiment(), out=tmp_path, progress=lambda done, line: heard.append((done, line.get("step"))))
    assert [done for done, _ in heard] == list(range(1, 13))
    assert [step for _, step in heard] == [None] * 4 + [5] * 5 + [10] * 2 + [12]


VARIANTS = {
    "adam": {},
    "adamw, average": {
        "optimizer": AdamW(learning_rate=0.01, clip=1.0, weight_decay=0.1),
        "average": 0.9,
    },
    "muon, random depth": {
        "optimizer": muon(schedule=Trapezoid(warmup=0.2, decay=0.5)),
        "depth": RandomDepth(low=-2, high=2),
    },
    "pool": {"pool": 6},
    "curricula": {
        "dims": Ramp(start=1, stop=2, share=0.5),
        "active_points": Staircase(start=2, stop=4, by=1, every=3),
        "depth": Staircase(start=-1, stop=0, by=1, every=4),
        "window": 1,
        "grad": 1,
        "emphasis": 2.0,
    },
    "muon, average, pool, float64": {"optimizer": muon(), "average": 0.5, "pool": 3, "dtype": "float64"},
}


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, fields):
    """Stopped at step 7, between two lines of the metrics, and again at step 10, on one."""
    config = experiment(**fields)
    whole = train(config, out=tmp_path / "whole")
    for step in (7, 10):
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 12"):
            train(config, out=tmp_path / "parts", progress=stop_at(step))
        assert Run.open(tmp_path / "parts" / whole.path.name).latest().step == step
    assert_same_run(train(config, out=tmp_path / "parts"), whole)


@pytest.mark.parametrize(("checkpoint_every", "left"), [(1, 2), (3, 2), (5, 2), (100, 0)])
def test_lines_written_after_the_last_checkpoint_are_written_again_the_same(tmp_path, checkpoint_every, left):
    """As after a kill: the newest checkpoints, or all, are gone, the metrics go further and end in a torn line."""
    config = experiment(checkpoint_every=checkpoint_every, log_every=1, keep_checkpoints=100)
    whole = train(config, out=tmp_path / "whole")
    torn = tmp_path / "torn" / whole.path.name
    shutil.copytree(whole.path, torn)
    for step in whole.steps[left:]:
        checkpoint_path(torn, step).unlink()
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "lo')
    assert len(Run.open(torn).metrics()) == 12
    assert_same_run(train(config, out=tmp_path / "torn"), whole)


def test_only_the_last_checkpoints_stay(tmp_path):
    run = train(experiment(checkpoint_every=2, keep_checkpoints=3), out=tmp_path)
    assert {*run.steps, 8, 10, 12} == {8, 10, 12, run.best().step}
    assert [file.name for file in run.path.rglob(".*")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_go_on_and_handlers_come_back(tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped at step 3 of 12; saved in .*looped train --resume"):
        train(experiment(), out=tmp_path, progress=stop_at(3, number))
    assert signal.getsignal(number) is before


def test_a_stop_at_the_last_step_lets_the_training_end_and_is_handed_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(experiment(), out=tmp_path, progress=stop_at(12))
    assert Run.open(tmp_path / experiment().folder).latest().finished


def test_training_outside_the_main_thread_hears_no_signals(tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(train(experiment(steps=2), out=tmp_path)))
    thread.start()
    thread.join()
    assert runs[0].latest().finished
    with stop_signals() as stopping:
        assert not stopping.is_set()


@dataclass(frozen=True, kw_only=True)
class BreaksAtFullDims(LinearRegression):
    """Labels are not a number once all dimensions are active: a curriculum says at which step that is."""

    def sample(self, *, batch, n, generator, dims=None):
        prompt = super().sample(batch=batch, n=n, generator=generator, dims=dims)
        return replace(prompt, ys=prompt.ys * float("nan")) if dims == self.d else prompt


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, log_every):
    config = experiment(dims=Staircase(start=1, stop=2, by=1, every=8), checkpoint_every=3, log_every=log_every)
    config = replace(config, task=BreaksAtFullDims(d=2))
    folder = tmp_path / f"tiny-{config.hash}"
    for _ in range(2):  # going on from the good checkpoint ends at the same step
        with pytest.raises(Diverged, match=r"not finite at step 8; .* is of step 6\. Lower the learning rate"):
            train(config, out=tmp_path)
        run = Run.open(folder, code_of(BreaksAtFullDims))
        assert run.steps == [3, 6]
        assert all(value.isfinite().all() for value in run.latest().part("model").values())
        assert "NaN" not in (run.path / "metrics.jsonl").read_text() if log_every == 1 else True


@pytest.mark.parametrize("optimizer", [Adam(learning_rate=1e30), Muon(learning_rate=1e30, muon_learning_rate=1e30)])
def test_a_huge_learning_rate_diverges_for_real(tmp_path, optimizer):
    config = experiment(optimizer=optimizer, checkpoint_every=1)
    with pytest.raises(Diverged, match=r"the loss was not finite at step \d+; the last good checkpoint"):
        train(config, out=tmp_path)
    run = Run.open(tmp_path / f"tiny-{config.hash}")
    assert all(value.isfinite().all() for value in run.latest().part("model").values())


def test_weights_that_are_not_finite_are_not_saved_though_the_loss_was(tmp_path):
    """The update comes after the loss: the first step's loss is finite, what it leaves behind is not."""
    config = experiment(optimizer=Adam(learning_rate=1e39), checkpoint_every=1)
    with pytest.raises(Diverged, match=r"the weights were not finite after step 0; .* none was written yet"):
        train(config, out=tmp_path)
    assert Run.open(tmp_path / f"tiny-{config.hash}").latest() is None


def test_prompts_come_out_of_the_pool_and_all_of_it_is_used(tmp_path):
    trainer = Trainer([Run.create(tmp_path / "run", experiment(pool=5, batch=8))], torch.device("cpu"))
    pool = {row.numpy().tobytes(): index for index, row in enumerate(trainer.batches.pool[0].xs)}
    assert len(pool) == 5
    drawn = [trainer.batches.draw(trainer.batches.now(step)) for step in range(6)]
    found = [pool[row.numpy().tobytes()] for prompt in drawn for row in prompt.xs]
    assert set(found) == set(range(5))
    for prompt in drawn:
        for x, y, w in zip(prompt.xs, prompt.ys, prompt.truth["w"], strict=True):
            torch.testing.assert_close(y, x @ w)


def test_fresh_prompts_never_repeat(tmp_path):
    trainer = Trainer([Run.create(tmp_path / "run", experiment())], torch.device("cpu"))
    rows = [row.numpy().tobytes() for step in range(6) for row in trainer.batches.draw(trainer.batches.now(step)).xs]
    assert len(set(rows)) == 24


def test_curricula_mask_dims_and_points(tmp_path):
    fields = {
        "dims": Staircase(start=1, stop=2, by=1, every=2),
        "active_points": Staircase(start=2, stop=9, by=1, every=1),
    }
    trainer = Trainer([Run.create(tmp_path / "run", experiment(**fields))], torch.device("cpu"))
    for step in range(5):
        prompt = trainer.batches.draw(trainer.batches.now(step))
        assert prompt.xs.shape == (4, 4, 2)
        assert bool((prompt.xs[..., 1] == 0).all()) == (step < 2)
        scored = min(4, 2 + step)
        assert torch.equal(prompt.weights, (torch.arange(4) < scored).float().expand(4, 4))


@pytest.mark.parametrize(
    ("scored", "emphasis", "dtype"), [(3, 0.0, "float32"), (4, 1.5, "float64"), (3, 1.5, "float64")]
)
def test_the_loss_is_the_mean_over_the_last_loops_and_scored_pairs_by_a_power_of_their_place(
    tmp_path, scored, emphasis, dtype
):
    """By hand, before the first step: the i-th pair counts i^emphasis; the error is the last scored pair's."""
    points = Staircase(start=3, stop=4, by=1, every=100) if scored == 3 else None
    config = experiment(active_points=points, emphasis=emphasis, log_every=1, steps=1, dtype=dtype)
    trainer, twin = (Trainer([Run.create(tmp_path / "run", config)], torch.device("cpu")) for _ in range(2))
    prompt = twin.batches.draw(twin.batches.now(0))
    outputs = torch.stack([twin.model.predict(prompt, loops=loops) for loops in (2, 3)])
    squares = (outputs - prompt.ys).square()[..., :scored] / 2.0
    weights = torch.tensor([place**emphasis for place in range(1, scored + 1)], dtype=torch.float64)
    trainer.step(0)
    trainer.done = 1
    (line,) = trainer.metrics()
    assert line["loss"] == pytest.approx((squares.mean((0, 1)) * weights).sum().item() / weights.sum().item(), rel=1e-6)
    assert line["error"] == pytest.approx(squares[-1, :, -1].mean().item(), rel=1e-6)


@pytest.mark.parametrize("fields", [{"emphasis": 2.0}, {"active_points": Ramp(start=1, stop=15, share=0.5)}])
def test_weights_of_pairs_are_refused_where_the_last_pair_alone_is_answered(fields):
    base = cheng24.linear("smoke")
    with pytest.raises(ValueError, match="this one answers the last alone; got"):
        replace(base, train=replace(base.train, **fields))


def test_emphasis_is_taken_where_a_curriculum_begins_with_one_pair(tmp_path):
    config = experiment(active_points=Staircase(start=1, stop=4, by=1, every=2), emphasis=2.0, steps=3)
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cpu"))
    assert trainer.batches.num_pairs(0) == 1
    trainer.run_all()
    assert trainer.done == 3


def test_emphasis_is_a_power_that_pairs_can_have():
    for wrong in (-1.0, 11.0, float("nan")):
        with pytest.raises(ValueError, match="`emphasis` must be between 0 and 10; got"):
            replace(TRAIN, emphasis=wrong)


def test_the_average_of_the_weights_is_what_the_evaluation_reads(tmp_path):
    config = experiment(average=0.6, steps=4)
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cpu"))
    expected = {name: value.clone() for name, value in trainer.weights().items()}
    for step in range(4):
        trainer.step(step)
        decay = min(0.6, (step + 1) / (step + 10))
        for name, value in trainer.weights().items():
            expected[name] = decay * expected[name] + (1 - decay) * value
    run = train(config, out=tmp_path)
    for name, value in run.model().state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(value, run.latest().part("average")[name])


def test_a_start_gives_its_weights_and_is_not_needed_again(tmp_path):
    first = train(experiment(), out=tmp_path)
    config = experiment(start=str(first.path), seed=7)
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cpu"))
    for name, value in trainer.weights().items():
        assert torch.equal(value, first.latest().part("model")[name])
    whole = train(config, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, out=tmp_path / "parts", progress=stop_at(5))
    shutil.rmtree(first.path)
    resumed = train(config, out=tmp_path / "parts")
    assert_same_run(resumed, whole)
    assert resumed.provenance()["start"] == whole.provenance()["start"]


def test_a_start_may_be_the_name_of_a_run_beside_it(tmp_path):
    config = experiment(start=experiment().folder, seed=7)
    with pytest.raises(
        ValueError, match=rf"no run folder {experiment().folder}\..*or train `{experiment().name}` into"
    ):
        train(config, out=tmp_path)
    first = train(experiment(), out=tmp_path)
    assert first.path.name == experiment().folder
    trainer = Trainer([Run.create(tmp_path / config.folder, config)], torch.device("cpu"))
    for name, value in trainer.weights().items():
        assert torch.equal(value, first.latest().part("model")[name])


def test_a_start_that_is_no_run_or_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no run folder"):
        train(experiment(start=str(tmp_path / "nowhere")), out=tmp_path)
    first = train(experiment(steps=1), out=tmp_path)
    wider = replace(experiment(start=str(first.path)), model=replace(MODEL, width=16))
    with pytest.raises(ValueError, match="do not fit the model"):
        train(wider, out=tmp_path)


def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_gives_the_same_run(tmp_path, caplog):
    config = experiment(checkpoint_every=5, keep_checkpoints=5)
    whole = train(config, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, out=tmp_path / "parts", progress=stop_at(11))
    run = Run.open(tmp_path / "parts" / whole.path.name)
    damaged = checkpoint_path(run.path, 11)
    os.truncate(damaged, damaged.stat().st_size - 10)
    load(run.path)  # a reader says so and leaves the file
    assert [record.message for record in caplog.records] == [
        f"looped: {damaged} is damaged; the checkpoint before it, of step 10, is used."
    ]
    caplog.clear()
    assert_same_run(train(config, out=tmp_path / "parts"), whole)
    assert "(now step-00000011.safetensors.damaged)" in caplog.records[-1].message
    caplog.clear()
    assert run.steps == [5, 10, 12]
    load(run.path)
    assert caplog.records == []


@pytest.mark.parametrize("change", [{"width": 16}, {"layers": 2}, {"positions": 13}])
def test_weights_of_another_config_are_refused(tmp_path, change):
    config = experiment(checkpoint_every=5)
    other = replace(config, model=replace(MODEL, **change))
    for one in (config, other):
        with pytest.raises(Interrupted):
            train(one, out=tmp_path, progress=stop_at(3))
    mine, theirs = (tmp_path / f"tiny-{one.hash}" for one in (config, other))
    shutil.copy(checkpoint_path(theirs, 3), checkpoint_path(mine, 3))
    with pytest.raises(ValueError, match=f"does not fit its config: it was .* under another, of hash {other.hash}"):
        train(config, out=tmp_path)
    values, about = read_tensors(checkpoint_path(theirs, 3))
    write_tensors(checkpoint_path(mine, 3), values, {**about, "experiment": config.hash})
    with pytest.raises(ValueError, match=r"does not fit its config: .*(size mismatch|[Uu]nexpected key)") as caught:
        train(config, out=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="do not fit the model of this config"):
        load(mine)


def test_what_was_not_trained_cannot_be_trained(tmp_path):
    setup = Setup(name="imported", task=TASK, model=MODEL)
    run = Run.create(tmp_path / "imported", setup)
    with pytest.raises(ValueError, match="`imported` was imported or constructed: there is nothing to train here"):
        _ = run.experiment


def fail(*_):
    raise AssertionError("the host waited for the device")


class NoSynchronisation(TorchDispatchMode):
    """Fails where the host would have to wait for a number: `.item()`, `.tolist()`, `bool(tensor)`, `nonzero`."""

    METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.equal.default,
            torch.ops.aten.nonzero.default,
        ), function
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_step_never_waits_for_the_device(tmp_path, monkeypatch, fields, count):
    runs = [Run.create(tmp_path / str(seed), experiment(seed=seed, **fields)) for seed in range(count)]
    trainer = Trainer(runs, torch.device("cpu"))
    for name in NoSynchronisation.METHODS:
        monkeypatch.setattr(torch.Tensor, name, fail)
    with NoSynchronisation():
        for step in range(2):
            trainer.step(step)
    with pytest.raises(AssertionError, match="waited"):
        trainer.metrics()


@pytest.mark.parametrize("variant", ["adamw, average", "muon, random depth", "curricula"])
def test_many_seeds_at_once_equal_each_alone(tmp_path, variant):
    fields = VARIANTS[variant]
    config = experiment(**{**fields, "dtype": "float64"})
    together = train_seeds(config, [0, 1], out=tmp_path / "together")
    for seed, run in enumerate(together):
        alone = train(experiment(**{**fields, "dtype": "float64", "seed": seed}), out=tmp_path / "alone")
        assert run.path.name == alone.path.name
        assert run.latest().step == alone.latest().step
        torch.testing.assert_close(run.latest().tensors, alone.latest().tensors, rtol=1e-6, atol=1e-8)
        for one, other in zip(run.metrics(), alone.metrics(), strict=True):
            assert one == pytest.approx(other, rel=1e-6)


def test_many_seeds_at_once_resume_bit_for_bit(tmp_path):
    config = experiment(**VARIANTS["muon, random depth"], average=0.9)
    whole = train_seeds(config, [0, 1], out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train_seeds(config, [0, 1], out=tmp_path / "parts", progress=stop_at(7))
    for one, other in zip(train_seeds(config, [0, 1], out=tmp_path / "parts"), whole, strict=True):
        assert_same_run(one, other)


def test_the_run_folder_holds_what_it_says(tmp_path):
    run = train(experiment(), out=tmp_path)
    assert json.loads((run.path / "config.json").read_text()) == experiment().to_data()
    assert {"command", "commit", "device", "threads", "python", "torch", "train_seconds"} <= run.provenance().keys()
    assert list((run.path / "tensorboard").iterdir())
    values, about = read_tensors(checkpoint_path(run.path, 12))
    checksum = hashlib.sha256((run.path / "metrics.jsonl").read_bytes()).hexdigest()
    assert about == {"step": 12, "finished": True, "experiment": experiment().hash, "metrics": checksum}
    assert {name.partition("/")[0] for name in values} >= {"model", "optimizer", "generator"}
    assert all("time" not in line for line in run.metrics())


def test_no_run_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.json"):
            Run.open(path)
    run = Run.create(tmp_path / "empty", experiment())
    with pytest.raises(ValueError, match=r"has no checkpoint\. Train it first"):
        run.model()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written \(Not a directory\)\. Name another folder"):
        train(experiment(), out=tmp_path / "file")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["train", "a.b", "--out", "/some/where/runs", "-q"], "looped train a.b --out runs -q"),
        (["train", "--out=/some/where", "--set", "x=1/2"], "looped train --out=where --set x=1/2"),
        (["evaluate", "runs/one"], "looped evaluate runs/one"),
    ],
)
def test_provenance_names_no_folder_of_one_machine(monkeypatch, typed, told):
    monkeypatch.setattr("sys.argv", ["/some/bin/looped", *typed])
    assert command() == told
