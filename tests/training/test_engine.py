"""What an engine is asked for, and how a step is cut; on a GPU also that all engines do the same."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from looped.experiment import Adam, Experiment, Muon, TrainConfig
from looped.functional.schedules import RandomDepth, Staircase
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.blocks import relu
from looped.models.decoder import DecoderConfig
from looped.models.fusing import blocks_obstacle
from looped.models.kernel_transformer import restricted
from looped.tasks.regression import LinearRegression
from looped.training import engine
from looped.training.batches import Batches
from looped.training.determinism import check_determinism
from looped.training.engine import ENGINES, Graphs, Plain, fusible, split
from looped.training.optim import Optimizers
from looped.training.passes import Passes
from looped.training.run import Run
from looped.training.trainer import Trainer, train

CPU = torch.device("cpu")
TRAIN = TrainConfig(steps=6, batch=4, points=8, window=2, grad=2, optimizer=Adam(learning_rate=1e-3))
SMALL = Experiment(
    task=LinearRegression(d=2), model=DecoderConfig(d=2, width=32, heads=2, positions=16, loops=4), train=TRAIN
)


SCHEDULES = [
    {},
    {"grad": None},
    {"average": 0.5, "dims": Staircase(start=1, stop=2, by=1, every=3)},
    {"active_points": Staircase(start=2, stop=8, by=1, every=2), "depth": RandomDepth(low=-2, high=0), "emphasis": 2.0},
    {"optimizer": Muon(clip=1.0)},
    {"pool": 16},
    {"emphasis": 2.0},
]


def with_train(**fields) -> Experiment:
    return replace(SMALL, train=replace(TRAIN, **fields))


@pytest.mark.parametrize(
    ("loops", "grad", "keep", "steady", "expected"),
    [
        (20, 15, 15, True, (5, 15)),
        (20, None, 15, True, (0, 20)),
        (20, 5, 15, True, (5, 15)),  # loops that are read are not ahead, though they carry no gradient
        (4, 2, 2, False, (0, 4)),  # a model of different layers cannot repeat one captured loop
        (2, 2, 2, True, (0, 2)),
    ],
)
def test_loops_ahead_are_those_without_gradient_and_unread(loops, grad, keep, steady, expected):
    assert split(loops, {"grad": grad, "keep": keep}, steady=steady) == expected


def test_on_a_cpu_the_engine_is_plain_and_the_others_are_refused(tmp_path):
    run = Run.create(tmp_path / "run", SMALL)
    assert isinstance(Trainer([run], CPU).engine, Plain)
    for name in ("graph", "fused"):
        with pytest.raises(ValueError, match=f"engine `{name}` needs a GPU; this run is on cpu"):
            Trainer([run], CPU, name)
    with pytest.raises(ValueError, match="must be auto, plain, graph or fused; got 'fast'"):
        Trainer([run], CPU, "fast")
    with pytest.raises(ValueError, match="`dtype=bfloat16` needs a GPU"):
        Trainer([Run.create(tmp_path / "low", with_train(dtype="bfloat16"))], CPU)


def test_a_wrong_option_is_refused_on_a_finished_run_and_by_the_check_too(tmp_path):
    train(SMALL, folder=tmp_path / "run")
    for options, message in (({"engine": "fsued"}, "must be auto, plain"), ({"threads": 0}, "`threads` must be")):
        with pytest.raises(ValueError, match=message):
            train(SMALL, folder=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="engine `graph` needs a GPU"):
        check_determinism(SMALL, engine="graph")


def test_what_our_kernels_cannot_train_is_said():
    def reason(model=None, **fields) -> str | None:
        config = replace(TRAIN, **fields)
        return fusible((replace(SMALL.model, **(model or {}))).build(), config)

    assert reason() is None
    assert reason({"layers": 2}) == "it has 2 blocks a loop"
    assert reason({"inject": "multiply"}) == "its prompt is not added inside every loop"
    assert reason({"inside": False}) == "its prompt is not added inside every loop"
    assert reason({"heads": 4}) == "its heads are 8 wide, not 16 or 32 or 64"
    assert reason(grad=1) == "its loss reads 2 loops and its gradient 1"
    assert reason(dtype="float64") == "it is trained in float64"
    assert fusible(restricted(d=2, loops=2).build(), TRAIN) == "this is a KernelTransformer"


def test_a_model_none_of_whose_blocks_has_kernels_is_refused_by_fused_alone(monkeypatch):
    """`auto` stays with torch's operations for all but one-block decoders, until the others are timed."""
    part = Part(heads=2)
    shape = AlgoFormerConfig(d=2, width=32, positions=16, pre=part, loop=part, post=part)
    last = replace(shape, query="last", causal=False)
    assert blocks_obstacle(shape.build()) is None
    assert blocks_obstacle(shape.build().double()) == "it is in float64"
    assert blocks_obstacle(replace(shape, activation=relu).build()) == "its activation is relu, not gelu"
    assert blocks_obstacle(last.build()) == "its attention is not causal"
    assert blocks_obstacle(replace(SMALL.model, heads=4).build()) == "its heads are 8 wide, not 16 or 32 or 64"
    assert blocks_obstacle(restricted(d=2, loops=2).build()) == "this is a KernelTransformer"
    mixed = shape.build()
    mixed.pre[0].mlp.activation = relu
    assert blocks_obstacle(mixed) is None

    monkeypatch.setattr(engine.Graphs, "__init__", lambda self, trainer: None)
    team = SimpleNamespace(joined=False)
    trainer = SimpleNamespace(model=last.build(), config=TRAIN, device=torch.device("cuda"), team=team)
    with pytest.raises(ValueError, match="no kernels for this model: its attention is not causal"):
        engine.choose(trainer, "fused")
    trainer.model = last.build()
    assert type(engine.choose(trainer, "auto")[1]) is Passes


def test_prompts_are_cut_behind_the_scored_pairs_and_training_is_the_same(tmp_path, monkeypatch):
    """A causal model's loss does not see what is cut: equal to uncut prompts up to the order of sums."""
    config = with_train(active_points=Staircase(start=2, stop=8, by=1, every=1), dtype="float64")
    trainer = Trainer([Run.create(tmp_path / "a", config)], CPU)
    assert [trainer.batches.num_pairs(step) for step in range(6)] == [2, 4, 4, 6, 6, 8]
    cut = train(config, folder=tmp_path / "cut")
    monkeypatch.setattr(Batches, "num_pairs", lambda self, step: None)
    whole = train(config, folder=tmp_path / "whole")
    for one, other in zip(cut.metrics(), whole.metrics(), strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    for one, other in zip(cut.model().parameters(), whole.model().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


class Rehearsed(Graphs):
    """Graphs without CUDA: what would be captured runs again at every replay."""

    def _capture(self, body):
        return SimpleNamespace(replay=body)

    def _on_stream(self, body):
        body()


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("fields", SCHEDULES)
def test_a_step_in_graphs_is_the_plain_step(tmp_path, monkeypatch, fields, captured):
    """All but CUDA itself: what is drawn where, the table and its counter, shapes, rates on the device."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(LinearRegression, "captured", captured)
    config = with_train(steps=14, dtype="float64", **fields)
    plain, graphs = (Trainer([Run.create(tmp_path / name, config)], CPU) for name in ("plain", "graphs"))
    graphs.engine = Rehearsed(graphs)
    graphs.optimizers = Optimizers(graphs.model, config.train.optimizer, captured=True)
    for step in range(14):
        plain.step(step)
        graphs.step(step)
        torch.testing.assert_close(graphs.sums, plain.sums, rtol=1e-5, atol=1e-6)
    assert graphs.engine.graphs
    for name, value in plain.weights().items():
        torch.testing.assert_close(graphs.weights()[name], value, rtol=1e-4, atol=1e-6)


def test_more_graphs_than_sixteen_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    trainer = Trainer([Run.create(tmp_path / "run", SMALL)], CPU)
    engine = Rehearsed(trainer)
    for key in range(16):
        engine._replay(key, lambda: None)
    with pytest.raises(ValueError, match="needs more than 16 captured graphs"):
        engine._replay(16, lambda: None)


needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA graphs need a GPU; see `looped bench --check`"
)


@needs_gpu
@pytest.mark.parametrize("fields", SCHEDULES)
def test_every_engine_trains_alike(tmp_path, fields):
    config = with_train(steps=30, log_every=1, **fields)
    lines = {}
    for name in ENGINES:
        run = train(config, folder=tmp_path / name, device="cuda", engine=name)
        lines[name] = [line["loss"] for line in run.metrics()]
    for name in ENGINES[1:]:
        assert lines[name] == pytest.approx(lines["plain"], rel=1e-3), name


@needs_gpu
@pytest.mark.parametrize(
    "fields", [{}, {"grad": None}, {"window": 1, "grad": 1}, {"depth": RandomDepth(low=-2, high=0)}]
)
@pytest.mark.parametrize("kind", ["layers", "tied", "algoformer"])
def test_block_by_block_every_engine_trains_alike(tmp_path, kind, fields):
    part = Part(heads=2)
    model = {
        "layers": replace(SMALL.model, layers=2),
        "tied": replace(SMALL.model, inject="none"),
        "algoformer": AlgoFormerConfig(
            d=2, width=32, positions=16, pre=part, loop=part, post=part, inject="add", loop_norm=True, loops=4
        ),
    }[kind]
    fields = fields | ({"grad": None} if kind == "tied" else {})  # without injection all loops must carry gradient
    config = replace(with_train(steps=30, log_every=1, **fields), model=model)
    lines = {}
    for name in ENGINES:
        run = train(config, folder=tmp_path / name, device="cuda", engine=name)
        lines[name] = [line["loss"] for line in run.metrics()]
    for name in ENGINES[1:]:
        assert lines[name] == pytest.approx(lines["plain"], rel=1e-3), name


@needs_gpu
def test_a_resumed_run_goes_on_under_replay(tmp_path):
    """Up to rounding: kernels on a GPU need not add in one order."""
    config = with_train(steps=20, checkpoint_every=10, log_every=1, average=0.5)
    whole = train(config, folder=tmp_path / "whole", device="cuda")
    run = Run.create(tmp_path / "parts", config)
    first = Trainer([run], torch.device("cuda"))
    for step in range(10):
        first.step(step)
    first.done = 10
    first.save()
    parts = train(config, folder=tmp_path / "parts", device="cuda")
    for one, other in zip(parts.model().parameters(), whole.model().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@needs_gpu
def test_replayed_steps_allocate_nothing_and_capture_each_shape_once(tmp_path):
    config = with_train(
        steps=1100, active_points=Staircase(start=2, stop=8, by=2, every=1), depth=RandomDepth(low=-2, high=2)
    )
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cuda"), "fused")
    for step in range(100):
        trainer.step(step)
    held, graphs = torch.cuda.memory_stats()["allocation.all.allocated"], dict(trainer.engine.graphs)
    for step in range(100, 1100):
        trainer.step(step)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == held
    assert trainer.engine.graphs == graphs
    assert len(graphs) <= 12


@needs_gpu
def test_too_many_graphs_are_refused(tmp_path):
    config = with_train(steps=200, grad=None, depth=RandomDepth(low=-2, high=26), window=2)
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cuda"), "graph")

    def run() -> None:
        for step in range(200):
            trainer.step(step)

    with pytest.raises(ValueError, match="more than 16 captured graphs"):
        run()
