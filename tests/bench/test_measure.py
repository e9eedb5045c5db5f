import math
from dataclasses import replace

import pytest
import torch

from looped.bench import agreement
from looped.bench import measure as timing
from looped.bench.agreement import compare, first_gradients
from looped.bench.cases import Case, chosen_cases, left_out
from looped.bench.measure import Measured, matrix_rate, measure, timed
from looped.bench.results_table import bench_figure, notes, table
from looped.experiment import Adam
from looped.training.engine import ENGINES

CPU = torch.device("cpu")
CASE = Case(engine="plain", batch=4, loops=3, window=2, points=5, scale="smoke")
PAPER = Case(engine="plain", batch=64, loops=20, window=15, points=41)


def test_flops_are_counted_as_stated():
    assert PAPER.tokens == 5248
    assert PAPER.flops == 2 * 12 * 256**2 * 5248 * 20 + 4 * 12 * 256**2 * 5248 * 15
    assert math.isclose(PAPER.flops, 0.41e12, rel_tol=0.01)
    assert replace(PAPER, packed=4).flops == 4 * PAPER.flops


def test_a_case_is_the_papers_step_without_curriculum():
    experiment = replace(PAPER, points=120).experiment(steps=7, clip=None)
    train = experiment.train
    assert train.depth is train.dims is train.active_points is train.optimizer.clip is None
    assert (train.window, train.grad, train.steps, type(train.optimizer)) == (15, 15, 7, Adam)
    assert experiment.model.positions == 240
    with pytest.raises(ValueError, match="`window` must be in"):
        replace(PAPER, window=21)
    with pytest.raises(ValueError, match="`packed` must be at least 1"):
        replace(PAPER, packed=0)


def test_cases_are_a_sweep_or_every_combination_of_what_is_chosen():
    sweep = chosen_cases("paper", batch=None, loops=None)
    assert [case["batch"] for case in sweep[:4]] == [16, 64, 256, 1024]
    assert len({case["loops"] for case in sweep}) == len({case["window"] for case in sweep}) == 2
    assert {case["points"] for case in sweep} == {41, 101}
    assert [left_out("gpt2-compile", case, sweep) for case in sweep] == [False] * 4 + [True] * 3
    assert not any(left_out("gpt2", case, sweep) for case in sweep)
    grid = chosen_cases("paper", batch=[8, 16, 8], loops=[10, 20], window=None)
    assert [(case["batch"], case["loops"], case["window"]) for case in grid] == [
        (8, 10, 10),
        (8, 20, 15),
        (16, 10, 10),
        (16, 20, 15),
    ]


def test_a_step_is_measured():
    measured = measure(CASE, CPU, rate=2.0, steps=3)
    assert measured.steps == 3
    assert measured.spread[0] <= measured.ms <= measured.spread[1]
    assert measured.setup_seconds > 0
    assert measured.memory is None or measured.memory >= 0
    assert measured.tflops == CASE.flops / measured.ms / 1e9
    assert measured.share == measured.tflops / 2
    assert measured.to_data()["batch"] == 4
    assert measure(replace(CASE, engine="gpt2"), CPU, rate=2.0, steps=1).steps == 1


def test_flops_of_an_algoformer_count_each_part_as_often_as_it_is_applied():
    sizes = {"engine": "plain", "recipe": "gao24.chain_of_thought", "batch": 64, "points": 41, "window": 15}
    block, tokens = 12 * 256**2, 64 * 41 * 7
    case = Case(loops=20, **sizes)
    assert case.tokens == tokens
    assert case.flops == block * tokens * (2 * (1 + 20 + 15) + 4 * (1 + 15 + 15))
    assert replace(case, predicts=True).flops == block * tokens * 2 * (1 + 20 + 1)
    all_loops = Case(**{**sizes, "recipe": "yang24.tied"}, loops=20)  # every loop carries gradient
    assert all_loops.flops == block * all_loops.tokens * (2 * 20 + 4 * 20)
    assert chosen_cases("paper", "yang24.tied")[0]["batch"] == 256
    with pytest.raises(ValueError, match="measures decoders and AlgoFormers"):
        replace(case, recipe="cheng24.relu")


@pytest.mark.parametrize("engine", ["plain", "gpt2"])
def test_a_prediction_is_the_models_own(engine):
    case = replace(CASE, predicts=True, engine=engine)
    predictor = timing.ready(case, CPU, steps=1)
    answers = predictor.step(0)
    assert answers.shape == (4, 5)
    assert not answers.requires_grad
    assert measure(case, CPU, rate=2.0, steps=1).steps == 1
    with pytest.raises(ValueError, match="`graph` trains"):
        timing.ready(replace(case, engine="graph"), CPU, steps=1)


def test_several_models_train_in_one_step():
    alone, packed = (timing.stepper(replace(CASE, packed=count), CPU, steps=2) for count in (1, 3))
    for trainer in (alone, packed):
        trainer.step(0)
    assert packed.sums.shape == (3, 3)
    torch.testing.assert_close(packed.sums[:, 0], alone.sums[:, 0], rtol=1e-4, atol=1e-5)


def test_steps_end_by_number_or_by_time(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    assert timed(lambda step: None, CPU, steps=4) == [1000.0] * 4
    assert len(timed(lambda step: None, CPU, steps=None)) == timing.MIN_STEPS["cpu"]
    monkeypatch.setattr(timing, "MAX_SECONDS", 1e9)
    assert len(timed(lambda step: None, CPU, steps=None)) == timing.MAX_STEPS["cpu"]


def test_what_cannot_run_here_says_why():
    results = [measure(replace(CASE, engine=name), CPU, rate=1.0, steps=1) for name in ("plain", "graph")]
    assert results[1].ms is results[1].tflops is results[1].share is None
    assert "needs a GPU" in results[1].note
    assert notes(results) == [f"graph: {results[1].note}"]
    assert table(results, "title").row_count == 1
    assert "needs a GPU" in measure(replace(CASE, dtype="tf32"), CPU, rate=1.0).note
    assert "there is no engine `fast`" in measure(replace(CASE, engine="fast"), CPU, rate=1.0).note


def test_the_matrix_rate_is_a_rate():
    assert 1e-4 < matrix_rate(CPU, "float32") < 1e4


def result(engine: str, batch: int, ms: float | None, note: str = "") -> Measured:
    case = replace(CASE, engine=engine, batch=batch)
    return Measured(case=case, ms=ms, spread=None, steps=1, setup_seconds=1.0, memory=2**21, rate=1.0, note=note)


def test_table_and_figure_compare_with_the_eager_rival():
    results = [result("plain", 4, 2.0), result("gpt2", 4, 5.0), result("plain", 8, 3.0)]
    results += [result("gpt2", 8, None, "out of memory"), replace(result("plain", 4, 1.0), case=replace(CASE, loops=2))]
    speeds = list(table(results, "title").columns[-1].cells)
    assert speeds == ["2.5x", "1x", "", ""]
    assert notes(results) == ["gpt2: out of memory (batch 8, b=3, T=2, 5 points)"]
    left, right = bench_figure(results).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in left.get_lines()}
    assert lines == {"plain": [2.0, 3.0], "GPT2Model, eager": [5.0]}
    assert [label.get_text() for label in left.get_xticklabels()] == ["4", "8"]
    assert right.get_lines()[0].get_ydata()[0] == results[0].tflops


def test_the_gradients_read_off_adam_are_the_gradients():
    gradients = first_gradients(CASE, CPU)
    trainer = timing.stepper(CASE, CPU, steps=4)
    for row in gradients:
        batches = trainer.batches
        prompt = batches.draw(batches.now(0), None)
        loss = trainer.task.error(trainer.model(prompt, loops=3, grad=2, keep=2), prompt).mean()
        names, weights = zip(*sorted(trainer.model.named_parameters()), strict=True)
        expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights)])
        torch.testing.assert_close(row.float(), expected, rtol=1e-4, atol=1e-6)
    assert len(names) == len(dict(trainer.model.named_parameters()))


@pytest.mark.parametrize("packed", [1, 2])
def test_engines_and_rivals_agree(packed):
    graph, rival = compare(replace(CASE, packed=packed), ["plain", "graph", "gpt2"], CPU, steps=12)
    assert (graph.data["engine"], rival.data["engine"]) == ("graph", "gpt2")
    assert graph.holds is graph.data["gradients"] is None
    assert graph.line.startswith("graph: cannot run here: ")
    assert rival.holds
    assert rival.data["gradients"] < 1e-5
    assert "agrees with plain" in rival.line
    assert "losses of 12 steps" in rival.line
    assert ENGINES[0] == "plain"


@pytest.mark.parametrize(("name", "limit"), [(None, 0), ("GRADIENTS", 2e-4), ("LOSSES", 1.0)])
def test_disagreement_is_found(monkeypatch, name, limit):
    from looped.bench.rivals import RivalTrainer

    real = RivalTrainer._loss
    monkeypatch.setattr(RivalTrainer, "_loss", lambda self, model, index: 1.0001 * real(self, model, index))
    monkeypatch.setattr(agreement, "LOSSES", 1e-6)
    if name is not None:  # one limit alone does not make it hold
        monkeypatch.setattr(agreement, name, limit)
    (rival,) = compare(CASE, ["gpt2"], CPU, steps=5)
    assert rival.holds is rival.data["holds"] is False
    assert rival.data["gradients"] == pytest.approx(1e-4, rel=0.05)
    assert "DOES NOT AGREE" in rival.line


@pytest.mark.parametrize(("far", "holds"), [(0.019, True), (0.021, False)])
def test_bfloat16_is_judged_by_what_its_rounding_does_to_the_plain_engine(monkeypatch, far, holds):
    def losses(case, device, steps):
        assert case.packed == 3
        moved = 0.0 if case.dtype == "float32" else {"plain": 0.01, "graph": far}[case.engine]
        return torch.linspace(1.0, 0.5, steps)[:, None].repeat(1, 3) * (1 - moved)

    monkeypatch.setattr(agreement, "first_losses", losses)
    monkeypatch.setattr(agreement, "obstacle", lambda case, device: "no triton" if case.engine == "fused" else None)
    (rounding,) = agreement.rounding(CASE, ["plain", "graph", "fused", "gpt2"], CPU, steps=4)
    assert (rounding.data["engine"], rounding.holds, rounding.data["holds"]) == ("graph", holds, holds)
    assert [rounding.data[key] for key in ("losses", "spread")] == [
        pytest.approx(value, rel=1e-3) for value in (far, 0.01)
    ]
    assert ("NOT WITHIN" in rounding.line) is not holds
