"""The explorer's page in a real browser: its answers are PyTorch's, its rivals NumPy's, and hands can use it."""

import json
from dataclasses import replace

import pytest
import torch

from looped.models.decoder import DecoderConfig
from looped.prompt import Prompt
from looped.report.explorer import write_explorer
from looped.tasks.mixture import FunctionMixture
from looped.tasks.regression import LinearRegression
from report.test_browser import complaints

LOOPS = (1, 5, 20)
TINY = DecoderConfig(d=1, width=12, heads=3, loops=4, positions=20)
KINDS = {
    "inside": TINY,
    "around": replace(TINY, inside=False, layers=2),
    "multiply": replace(TINY, inject="multiply"),
    "tied": replace(TINY, inject="none", d=3, layers=2),
}
ANSWERS = """prompts => {
  return prompts.map(([points, xs]) => {
    const examples = new Examples(MODEL);
    examples.set(points);
    const queries = new Queries(MODEL, examples, xs);
    while (queries.t < 20) queries.advance();
    return [1, 5, 20].map(t => ({ answers: [...queries.curves[t - 1]], guesses: [...examples.guesses(t)] }));
  });
}"""


def rough(config, seed=0):
    """A decoder whose weights are large enough for every part of it to matter."""
    torch.manual_seed(seed)
    model = config.build()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight += (0.1 if "norm" in name or "bias" in name else 0.25) * torch.randn_like(weight)
    return model


def called(browser, function, *values):
    return browser.js(f"({function})({', '.join(map(json.dumps, values))})")


def compare(browser, model, prompts, *, tolerance):
    """Answers at each prompt's last x, after all points before it, and at every x; in float64 and the browser."""
    double = model.double()
    data = []
    for xs, ys in zip(prompts.xs[..., 0].tolist(), prompts.ys.tolist(), strict=True):
        points = [{"x": x, "y": y} for x, y in zip(xs[:-1], ys[:-1], strict=True)]
        data.append([points, [xs[-1], 0.25, xs[-1] - 1]])
    seen = called(browser, ANSWERS, data)
    plane = torch.zeros(*prompts.ys.shape, model.config.d, dtype=torch.float64)
    plane[..., 0] = prompts.xs[..., 0]
    for index, t in enumerate(LOOPS):
        with torch.no_grad():
            answers = double(Prompt(plane, prompts.ys.double()), loops=t)[-1]
        for row, values in zip(answers, seen, strict=True):
            assert values[index]["answers"][0] == pytest.approx(row[-1].item(), abs=tolerance)
            assert values[index]["guesses"] == pytest.approx(row[:-1].tolist(), abs=tolerance)
            assert values[index]["answers"][1] != pytest.approx(row[-1].item(), abs=tolerance)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("explorer") / "page.html"
    return write_explorer(out, model=rough(TINY), task=FunctionMixture(), name="tiny")


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_pytorch(browser, tmp_path, kind):
    model = rough(KINDS[kind])
    task = LinearRegression(d=model.config.d)
    page = write_explorer(tmp_path / "page.html", model=model, task=task, name="tiny")
    assert complaints(browser.open(page)) == []
    prompts = task.sample(batch=4, n=8, generator=torch.Generator().manual_seed(3))
    compare(browser, model, prompts, tolerance=1e-6)
