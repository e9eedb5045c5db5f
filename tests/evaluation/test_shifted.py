import pytest
import torch

from looped.baselines.linear import averaging, least_squares
from looped.evaluation import curves, shifted
from looped.evaluation.curves import evaluate
from looped.evaluation.shifted import answer_errors, ask, evaluate_shifted, read_shift, shifted_errors, shifts_by_name
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.blocks import Attention, stack
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import restricted
from looped.models.query_stream import query_stream, supports_query_stream
from looped.prompt import Prompt
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression
from looped.tasks.shifts import (
    CovarianceWindow,
    DifferentOrthants,
    EqualQuery,
    NoisyOutputs,
    OrthogonalQuery,
    ScaledLabels,
    ScaledX,
    SkewedCovariance,
)

TASK = LinearRegression(d=4)
QUERY = [OrthogonalQuery(), EqualQuery(), DifferentOrthants(), DifferentOrthants(opposite=True)]


def decoder(seed=0, **fields):
    torch.manual_seed(seed)
    return DecoderConfig(**{"d": 4, "width": 16, "heads": 2, "loops": 3, "positions": 20, **fields}).build()


def algoformer(**fields):
    torch.manual_seed(0)
    part = Part(layers=1, heads=2)
    return AlgoFormerConfig(
        **{"d": 4, "width": 16, "loops": 3, "positions": 20, "pre": part, "loop": part, "post": part, **fields}
    ).build()


MODELS = {
    "added": decoder(),
    "multiplied": decoder(inject="multiply", layers=2),
    "tied": decoder(inject="none"),
    "outside": decoder(inject="none", inside=False),
    "algoformer": algoformer(),
    "apart": algoformer(tokens="apart", inject="add", loop_norm=True),
}


def sharp(model):
    """Weights large enough that every token matters: a fresh model hardly attends."""
    model = model.double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("task", [TASK, LinearRegression(d=4, noise=0.5), ReLUNetwork(d=4, hidden=5)])
def test_no_shift_is_the_plain_evaluation_bit_for_bit(task, monkeypatch):
    for module in (curves, shifted):
        monkeypatch.setattr(module, "CHUNK", 16)
    model = decoder()
    plain = evaluate(model, task, points=7, prompts=40, seed=5, loops=2, max_loops=4)
    found = evaluate_shifted(model, task, (), points=7, prompts=40, seed=5, loops=2, max_loops=4)
    assert found.by_examples == plain.by_examples
    assert found.by_loops == plain.by_loops
    prompt = task.sample(batch=40, n=7, generator=torch.Generator().manual_seed(5))
    errors = shifted_errors(model, task, (), prompts=40, points=7, seed=5, loops=2)
    parts = [
        task.error(model.predict(part, loops=2), part)
        for part in map(prompt.rows, (slice(16), slice(16, 32), slice(32, 40)))
    ]
    assert torch.equal(errors, torch.cat(parts))
    assert torch.equal(
        shifted_errors(least_squares, task, [], prompts=40, points=7, seed=5), task.error(least_squares(prompt), prompt)
    )


def by_definition(predict, task, asked):
    """Position i, prompt by prompt: a prompt of its first i examples and its own query, and nothing else."""
    errors = torch.full(asked.answers.shape, torch.nan, dtype=asked.answers.dtype)
    for row in range(len(errors)):
        for i in range(errors.shape[1]):
            if not asked.defined[i]:
                continue
            xs = torch.cat((asked.prompt.xs[row, :i], asked.queries[row, i : i + 1]))[None]
            ys = torch.cat((asked.prompt.ys[row, :i], torch.zeros(1)))[None]
            answer = predict(Prompt(xs, ys.to(xs)))[0, -1]
            errors[row, i] = (answer - asked.answers[row, i]).square() / task.label_variance
    return errors


@pytest.mark.parametrize("shift", [*QUERY, SkewedCovariance(), CovarianceWindow()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_one_pass_is_the_definition(name, shift):
    model = sharp(MODELS[name])
    asked = ask(TASK, [shift], prompts=3, points=6, dtype=torch.float64)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        found = answer_errors(model, TASK, asked)[-1]
        assert len(calls) == 1, "one pass for all positions"
        expected = by_definition(model.predict, TASK, asked)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert found[:, asked.defined].std() > 1e-3
    plain = answer_errors(model, TASK, asked._replace(queries=asked.prompt.xs, answers=asked.prompt.ys))[-1]
    assert (shift in QUERY) != torch.allclose(plain, found, rtol=1e-6, equal_nan=True), "the queries matter"


@pytest.mark.parametrize("shift", QUERY, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("baseline", [least_squares, averaging])
def test_baselines_by_definition(baseline, shift):
    asked = ask(TASK, [shift, NoisyOutputs()], prompts=4, points=6, dtype=torch.float64)
    found = answer_errors(baseline, TASK, asked)[-1]
    assert torch.allclose(found, by_definition(baseline, TASK, asked), rtol=1e-8, atol=1e-10, equal_nan=True)


def test_a_model_that_answers_the_last_pair_is_asked_about_the_whole_prompt():
    model = restricted(d=4, loops=2).build().double()
    assert not supports_query_stream(model)
    asked = ask(TASK, [EqualQuery()], prompts=3, points=6, dtype=torch.float64)
    found = answer_errors(model, TASK, asked, keep=2)
    assert found.shape == (2, 3, 1)
    xs = torch.cat((asked.prompt.xs[:, :-1], asked.queries[:, -1:]), 1)
    answer = model.predict(Prompt(xs, torch.zeros_like(asked.prompt.ys).copy_(asked.prompt.ys)))
    assert torch.allclose(found[-1], (answer - asked.answers[:, -1:]).square() / 4, rtol=1e-9)


def test_loops_are_kept_apart():
    model = sharp(decoder())
    asked = ask(TASK, [DifferentOrthants()], prompts=3, points=5, dtype=torch.float64)
    kept = answer_errors(model, TASK, asked, loops=3, keep=3)
    for loop in range(3):
        assert torch.allclose(kept[loop], answer_errors(model, TASK, asked, loops=loop + 1)[-1], rtol=1e-10)


def test_a_stack_of_models_answers_like_each_alone():
    singles = [sharp(decoder(seed)) for seed in (0, 1)]
    singles[1].read_out.weight.data.mul_(2)
    asked = ask(TASK, [EqualQuery()], prompts=3, points=5, dtype=torch.float64)
    both = Prompt(torch.cat((asked.prompt.xs, asked.queries)), asked.prompt.ys.repeat(2, 1))
    together = stack(singles)
    with torch.no_grad(), query_stream(together, 3):
        found = together(both)[-1]
    for single, answers in zip(singles, found, strict=True):
        with torch.no_grad(), query_stream(single, 3):
            assert torch.allclose(answers, single(both)[-1], rtol=1e-9)


def test_asking_leaves_no_trace_even_after_an_error():
    model = decoder()
    prompt = TASK.sample(batch=2, n=4, generator=torch.Generator().manual_seed(0))
    before = model.predict(prompt)
    with pytest.raises(RuntimeError), query_stream(model, 3):
        model.predict(prompt)
    assert torch.equal(model.predict(prompt), before)
    assert all("mix" not in vars(part) for part in model.modules() if isinstance(part, Attention))


def test_which_models_can_be_asked():
    assert all(map(supports_query_stream, MODELS.values()))
    assert not supports_query_stream(algoformer(causal=False, query="last"))
    assert not supports_query_stream(algoformer(query="last"))
    assert not supports_query_stream(least_squares)


def test_least_squares_does_what_it_must():
    """Exact on an example it has seen, knows nothing of a direction it has not, exact in any orthant after d."""

    def errors(*shifts, task=TASK):
        return shifted_errors(least_squares, task, shifts, prompts=2000, points=8, dtype=torch.float64).nanmean(0)

    equal, orthogonal, orthants = errors(EqualQuery()), errors(OrthogonalQuery()), errors(DifferentOrthants())
    assert equal[0] == pytest.approx(1, abs=0.2)
    assert (equal[1:] < 1e-6).all()
    assert orthogonal[:4].tolist() == pytest.approx([1] * 4, abs=0.15)
    assert orthogonal[4:].isnan().all()
    assert (orthants[6:] < 1e-6).all()
    assert errors(ScaledX(factor=3.0))[0] == pytest.approx(9, rel=0.15), "in units of the unshifted task"
    assert errors(ScaledLabels(factor=0.5))[0] == pytest.approx(0.25, rel=0.15)


def test_evaluation_under_shifts_is_in_its_own_unit_and_stops_where_queries_do():
    found = evaluate_shifted(decoder(), TASK, [ScaledX(factor=3.0)], points=7, prompts=500)
    assert found.by_examples[0].at(0) == pytest.approx(1, abs=0.2)
    assert "ScaledX(factor=3.0)" in found.task
    found = evaluate_shifted(decoder(), TASK, [OrthogonalQuery()], points=7, prompts=50)
    assert [curve.x for curve in found.by_examples] == [[0, 1, 2, 3]] * 3
    assert found.by_loops.at(3) == found.by_examples[0].at(3)
    assert len(found.by_loops.x) == 12


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`prompts` must be at least 2"):
        evaluate_shifted(decoder(), TASK, [], points=4, prompts=1)
    with pytest.raises(ValueError, match="`max_loops` must be at least loops=5; got 4"):
        evaluate_shifted(decoder(), TASK, [], points=4, prompts=4, loops=5, max_loops=4)
    with pytest.raises(ValueError, match="answers the last pair only"):
        evaluate_shifted(algoformer(query="last"), TASK, [OrthogonalQuery()], points=7, prompts=4)


def test_shifts_have_names():
    assert {"skewed-covariance", "scaled-x", "different-orthants"} <= set(shifts_by_name())
    assert len(shifts_by_name()) == 9
    assert read_shift("skewed") == SkewedCovariance()
    assert read_shift("scaled-x:factor=0.5") == ScaledX(factor=0.5)
    assert read_shift("noisy:std=2,rescale=false") == NoisyOutputs(std=2.0, rescale=False)
    for text, message in {
        "scaled": "may be scaled-x or scaled-labels",
        "skewd": "Valid: .*skewed-covariance",
        "": "no shift is called",
        "scaled-x:fctor=2": "Did you mean `factor`",
        "scaled-x:factor=0": "must be above 0",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_shift(text)


@pytest.mark.parametrize("shifts", [[], [OrthogonalQuery()]])
def test_questions_move_whole(shifts):
    asked = ask(TASK, shifts, prompts=3, points=5, seed=2)
    moved = asked.to("meta").to(torch.float64)
    assert {one.device.type for one in (moved.prompt.xs, moved.queries, moved.answers, moved.defined)} == {"meta"}
    assert (moved.queries.dtype, moved.defined.dtype) == (torch.float64, torch.bool)
    assert moved.own == asked.own == (not shifts)


def test_one_seed_asks_the_same_wherever_the_model_lies():
    """Drawn on the CPU and moved: a device without random numbers of its own can be asked too."""
    assert ask(TASK, [SkewedCovariance()], prompts=3, points=5, device="meta").queries.shape == (3, 5, 4)
