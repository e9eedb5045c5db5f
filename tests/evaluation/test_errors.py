import pytest
import torch

from looped.baselines.linear import averaging, least_squares
from looped.evaluation import errors as errors_module
from looped.evaluation.curves import evaluate
from looped.evaluation.errors import draw_questions, errors_of, measure_errors
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.blocks import Attention, stack
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import restricted
from looped.models.query_stream import query_stream, supports_query_stream
from looped.prompt import Prompt
from looped.tasks.networks import ReLUNetwork
from looped.tasks.questions import Questions
from looped.tasks.regression import LinearRegression
from looped.tasks.shifts import (
    CovarianceWindow,
    DifferentOrthants,
    EqualQuery,
    NoisyOutputs,
    OrthogonalQuery,
    ScaledLabels,
    ScaledX,
    Shifted,
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


def ask(*shifts, prompts, points, seed=0):
    questions = draw_questions(Shifted(task=TASK, shifts=shifts), prompts=prompts, points=points, seed=seed)
    return questions.to(torch.float64)


@pytest.mark.parametrize("task", [TASK, LinearRegression(d=4, noise=0.5), ReLUNetwork(d=4, hidden=5)])
def test_no_shift_is_the_plain_evaluation_bit_for_bit(task, monkeypatch):
    monkeypatch.setattr(errors_module, "CHUNK", 16)
    model, sizes = decoder(), {"points": 7, "prompts": 40, "seed": 5}
    plain = evaluate(model, task, loops=2, max_loops=4, **sizes)
    shifted = evaluate(model, Shifted(task=task), loops=2, max_loops=4, **sizes, baselines={"zero": zero})
    assert shifted.by_examples[0] == plain.by_examples[0]
    assert shifted.by_loops == plain.by_loops
    prompt = task.sample(batch=40, n=7, generator=torch.Generator().manual_seed(5))
    measured = measure_errors(model, task, loops=2, max_loops=4, **sizes)
    parts = [
        task.error(model.predict(part, loops=2), part)
        for part in map(prompt.rows, (slice(16), slice(16, 32), slice(32, 40)))
    ]
    assert torch.equal(measured.values, torch.cat(parts))
    assert measured.positions == list(range(7))
    assert measured.by_loop.shape == (40, 4)
    assert torch.equal(measured.by_loop[:, 1], measured.values[:, -1])
    baseline = measure_errors(least_squares, task, **sizes)
    assert torch.equal(baseline.values, task.error(least_squares(prompt), prompt))
    assert torch.equal(baseline.by_loop, baseline.values[:, -1:])


def zero(prompt):
    return torch.zeros_like(prompt.ys)


def by_definition(predict, questions):
    """Position i, prompt by prompt: a prompt of its first i examples and its own query, and nothing else."""
    queries, answers = questions.judged.xs, questions.judged.ys
    positions = [i for i in range(answers.shape[1]) if questions.defined is None or questions.defined[i]]
    errors = torch.empty(len(answers), len(positions), dtype=answers.dtype)
    for row in range(len(errors)):
        for column, i in enumerate(positions):
            xs = torch.cat((questions.prompt.xs[row, :i], queries[row, i : i + 1]))[None]
            ys = torch.cat((questions.prompt.ys[row, :i], torch.zeros(1)))[None]
            answer = predict(Prompt(xs, ys.to(xs)))[0, -1]
            errors[row, column] = (answer - answers[row, i]).square() / TASK.label_variance
    return errors


@pytest.mark.parametrize("shift", [*QUERY, SkewedCovariance(), CovarianceWindow()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_one_pass_is_the_definition(name, shift):
    model = sharp(MODELS[name])
    questions = ask(shift, prompts=3, points=6)
    passes = []
    model.embed = lambda prompt: passes.append(1) or type(model).embed(model, prompt)
    try:
        measured = errors_of(model, TASK, questions)
    finally:
        del model.embed
    assert len(passes) == 1, "one pass for all positions"
    expected = by_definition(model.predict, questions)
    assert torch.allclose(measured.values, expected, rtol=1e-9, atol=1e-12)
    assert measured.values.std() > 1e-3
    plain = errors_of(model, TASK, Questions(questions.prompt)).values[:, measured.positions]
    assert (shift in QUERY) != torch.allclose(plain, measured.values, rtol=1e-6), "the queries matter"


@pytest.mark.parametrize("shift", QUERY, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("baseline", [least_squares, averaging])
def test_baselines_by_definition(baseline, shift):
    questions = ask(shift, NoisyOutputs(), prompts=4, points=6)
    measured = errors_of(baseline, TASK, questions)
    assert torch.allclose(measured.values, by_definition(baseline, questions), rtol=1e-8, atol=1e-10)
    assert torch.equal(measured.by_loop, measured.values[:, -1:])


def test_a_model_that_answers_the_last_pair_is_asked_about_the_whole_prompt():
    model = restricted(d=4, loops=2).build().double()
    assert not supports_query_stream(model)
    questions = ask(EqualQuery(), prompts=3, points=6)
    measured = errors_of(model, TASK, questions)
    assert measured.positions == [5]
    assert measured.by_loop.shape == (3, 2)
    xs = torch.cat((questions.prompt.xs[:, :-1], questions.queries.xs[:, -1:]), 1)
    answer = model.predict(Prompt(xs, questions.prompt.ys.clone()))
    assert torch.allclose(measured.values, (answer - questions.queries.ys[:, -1:]).square() / 4, rtol=1e-9)


def test_loops_are_measured_apart():
    model = sharp(decoder())
    questions = ask(DifferentOrthants(), prompts=3, points=5)
    by_loop = errors_of(model, TASK, questions, loops=1, max_loops=3).by_loop
    for loop in range(3):
        alone = errors_of(model, TASK, questions, loops=loop + 1)
        assert torch.allclose(by_loop[:, loop], alone.values[:, -1], rtol=1e-10)


def test_a_stack_of_models_answers_like_each_alone():
    singles = [sharp(decoder(seed)) for seed in (0, 1)]
    singles[1].read_out.weight.data.mul_(2)
    questions = ask(EqualQuery(), prompts=3, points=5)
    both = Prompt(torch.cat((questions.prompt.xs, questions.queries.xs)), questions.prompt.ys.repeat(2, 1))
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

    def errors(*shifts):
        sizes = {"prompts": 2000, "points": 8, "dtype": torch.float64}
        measured = measure_errors(least_squares, TASK, shifts=shifts, **sizes)
        return measured.values.mean(0), measured.positions

    equal, orthants = errors(EqualQuery())[0], errors(DifferentOrthants())[0]
    orthogonal, defined = errors(OrthogonalQuery())
    assert equal[0] == pytest.approx(1, abs=0.2)
    assert (equal[1:] < 1e-6).all()
    assert orthogonal.tolist() == pytest.approx([1] * 4, abs=0.15)
    assert defined == [0, 1, 2, 3]
    assert (orthants[6:] < 1e-6).all()
    assert errors(ScaledX(factor=3.0))[0][0] == pytest.approx(9, rel=0.15), "in units of the unshifted task"
    assert errors(ScaledLabels(factor=0.5))[0][0] == pytest.approx(0.25, rel=0.15)


def shifted(shift):
    return Shifted(task=TASK, shifts=(shift,))


def test_evaluation_under_shifts_is_in_its_own_unit_and_stops_where_queries_do():
    result = evaluate(decoder(), shifted(ScaledX(factor=3.0)), points=7, prompts=500)
    assert result.by_examples[0].at(0) == pytest.approx(1, abs=0.2)
    assert "ScaledX(factor=3.0)" in result.task
    result = evaluate(decoder(), shifted(OrthogonalQuery()), points=7, prompts=50)
    assert [curve.x for curve in result.by_examples] == [[0, 1, 2, 3]] * 3
    assert result.by_loops.at(3) == result.by_examples[0].at(3)
    assert len(result.by_loops.x) == 12


def test_a_model_without_a_defined_query_is_refused():
    with pytest.raises(ValueError, match="answers the last pair only"):
        evaluate(algoformer(query="last"), shifted(OrthogonalQuery()), points=7, prompts=4)


@pytest.mark.parametrize("shifts", [(), (OrthogonalQuery(),)])
def test_questions_move_whole(shifts):
    questions = draw_questions(Shifted(task=TASK, shifts=shifts), prompts=3, points=5, seed=2)
    moved = questions.to("meta").to(torch.float64)
    parts = (moved.prompt.xs, moved.judged.xs, moved.judged.ys, moved.defined)
    assert {part.device.type for part in parts if part is not None} == {"meta"}
    assert (moved.queries is None) == (moved.defined is None) == (not shifts)
    assert moved.judged.xs.dtype == torch.float64
    assert moved.defined is None or moved.defined.dtype == torch.bool
