"""The explorer's page in a real browser: its answers are PyTorch's, its rivals NumPy's, and hands can use it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.cli import main
from looped.experiment import Setup
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import vector
from looped.prompt import Prompt
from looped.report.explorer import MAX_BYTES, SHIPPED, write_explorer
from looped.tasks.mixture import FunctionMixture
from looped.tasks.regression import LinearRegression
from looped.training.run import Run
from report.test_browser import OVERFLOW, PAPER, brightness, complaints, requests

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


def setup(task, config):
    return Setup(name="tiny", task=task, model=config)


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
        spread = [abs(values[index]["answers"][0] - values[index]["answers"][1]) for values in seen]
        assert max(spread) > 100 * tolerance, "another query has another answer"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("explorer") / "page.html"
    return write_explorer(out, model=rough(TINY), setup=setup(FunctionMixture(), TINY))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_pytorch(browser, tmp_path, kind):
    model = rough(KINDS[kind])
    task = LinearRegression(d=model.config.d)
    page = write_explorer(tmp_path / "page.html", model=model, setup=setup(task, model.config))
    assert complaints(browser.open(page)) == []
    prompts = task.sample(batch=4, n=8, generator=torch.Generator().manual_seed(3))
    compare(browser, model, prompts, tolerance=1e-6)


def test_a_changed_point_is_computed_again_and_those_before_it_are_not(browser, page):
    browser.open(page)
    points = [{"x": x / 4 - 1, "y": x * x / 20 - 1} for x in range(8)]
    changed = [*points[:5], {"x": 0.3, "y": -2.0}, *points[6:7]]
    both = called(
        browser,
        """(before, after) => [[before, after], [after]].map(prompts => {
          const examples = new Examples(MODEL);
          let rows = 0;
          const step = MODEL.step.bind(MODEL);
          for (const points of prompts) {
            rows = 0;
            MODEL.step = (state, tokens, positions, attend) => {
              rows += positions.length;
              return step(state, tokens, positions, attend);
            };
            examples.set(points);
            examples.guesses(6);
          }
          delete MODEL.step;
          return [[...examples.guesses(6)], rows];
        })""",
        points,
        changed,
    )
    assert both[0][0] == pytest.approx(both[1][0], abs=1e-12)
    assert both[1][1] == 6 * 14
    assert both[0][1] == 6 * 4


def rivals(browser, xs, ys, at):
    points = [{"x": x, "y": y} for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    function = "(points, xs) => Object.fromEntries(Object.keys(RIVALS).map(name => [name, RIVALS[name](points, xs)]))"
    return called(browser, function, points, at.tolist())


def test_rivals_are_those_of_numpy(browser, page):
    browser.open(page)
    random = np.random.default_rng(5)
    xs, at = random.uniform(-2, 2, 9), np.linspace(-2.5, 2.5, 7)
    ys = np.sin(2 * xs) + 0.2 * random.normal(size=9)
    seen = rivals(browser, xs, ys, at)
    assert seen["least squares"] == pytest.approx(np.polyval(np.polyfit(xs, ys, 1), at), abs=1e-6)
    powers = [(x[:, None] / 1.75) ** np.arange(6) for x in (xs, at)]
    stacked = np.vstack([powers[0], 0.1**0.5 * np.eye(6)])
    weights = np.linalg.lstsq(stacked, np.concatenate([ys, np.zeros(6)]), rcond=None)[0]
    assert seen["ridge, degree 5"] == pytest.approx(powers[1] @ weights, abs=1e-9)
    candidates = []
    for length in (0.25, 0.5, 0.8, 1.3, 2.2):
        for noise in (0.03, 0.1, 0.25, 0.5):
            cross, gram = (1 + np.exp(-((u[:, None] - xs) ** 2) / (2 * length**2)) for u in (at, xs))
            gram = gram + noise**2 * np.eye(9)
            solved = np.linalg.solve(gram, ys)
            candidates.append((-ys @ solved / 2 - np.linalg.slogdet(gram)[1] / 2, cross @ solved))
    best = max(candidates, key=lambda candidate: candidate[0])[1]
    assert seen["Gaussian process"] == pytest.approx(best, abs=1e-9)


def drawn(browser):
    """Wait for two frames: before its first one a page hears no mouse."""
    frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
    browser.call("Runtime.evaluate", expression=frames, awaitPromise=True)


def mouse(browser, kind, x, y, **more):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, **more)


def press(browser, key):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def place_of(browser, selector):
    """The middle of an element in the window, once it is drawn."""
    drawn(browser)
    return browser.js(f"""(() => {{
      const box = document.querySelector('{selector}').getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    }})()""")


def points(browser):
    return browser.js("state.points.map(({ x, y }) => [x, y])")


def test_a_hand_adds_moves_and_removes_points(browser, page):
    browser.open(page, width=1300)
    browser.js("stop(); document.querySelector('#clear').click()")
    assert points(browser) == []
    x, y = place_of(browser, "#plane")
    for kind in ("mousePressed", "mouseReleased"):
        mouse(browser, kind, x + 100, y - 60)
    [[at, height]] = points(browser)
    assert at > 0.3
    assert height > 0.3
    x, y = place_of(browser, ".point .mark")
    mouse(browser, "mousePressed", x, y)
    mouse(browser, "mouseMoved", x - 150, y + 90, buttons=1)
    mouse(browser, "mouseReleased", x - 150, y + 90)
    drawn(browser)
    [[left, low]] = points(browser)
    assert left < at - 0.5
    assert low < height - 0.5
    browser.js("redraw(3); document.querySelector('.point').focus()")
    press(browser, "ArrowRight")
    press(browser, "ArrowUp")
    assert points(browser)[0] == pytest.approx([left + 0.1, low + 0.1])
    press(browser, "Delete")
    assert points(browser) == []
    browser.js("state.probe = 0.5; redraw(2); document.querySelector('.handle').focus()")
    press(browser, "Enter")
    assert points(browser) == [[0.5, 0]], "without a mouse a point comes where the query is"


def slide(browser, selector, value):
    slider = f"document.querySelector('{selector}')"
    browser.js(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input'))")


def test_the_controls_do_what_they_say(browser, page):
    browser.open(page, width=1300)
    browser.js("stop(); document.querySelector('[data-kind=line]').click(); stop(); state.rival = 'least squares'")
    browser.js("setNoise(0); redraw(20)")
    assert browser.js("rivalError") == pytest.approx(0, abs=1e-9), "least squares finds a line without noise"
    before = points(browser)
    browser.js("document.querySelector('#shift').click()")
    assert points(browser) == [pytest.approx([x + 1, y]) for x, y in before]
    browser.js("document.querySelector('#shift').click(); document.querySelector('#more').click()")
    assert len(points(browser)) == min(len(before) + 5, 9), "there are 20 positions: 9 points and a query"
    browser.js(
        "document.querySelector('#noise').value = 1; document.querySelector('#noise').dispatchEvent(new Event('input'))"
    )
    assert abs(points(browser)[0][1] - before[0][1]) > 0.05
    browser.js(
        "document.querySelector('#loop').value = 7; document.querySelector('#loop').dispatchEvent(new Event('input'))"
    )
    browser.js("redraw(state.t)")
    assert "Loop 7" in browser.js("document.querySelector('#story').textContent")
    shares = np.array(browser.js("[...queries.shares[6]]")).reshape(3, -1)
    assert shares.sum(1) == pytest.approx(1)


def test_nothing_is_requested_nothing_overflows_and_dark_is_dark(browser, page):
    for width in (1300, 390):
        seen = []
        for dark in (False, True):
            events = browser.open(page, width=width, dark=dark)
            assert complaints(events) == []
            assert [url for url in requests(events) if not url.startswith("data:")] == [page.resolve().as_uri()]
            browser.js("stop(); redraw(5)")
            assert browser.js(OVERFLOW) <= 0.5
            seen.append(brightness(browser.js(PAPER)))
        assert seen[0] > 240 > 60 > seen[1]
    browser.js("void fetch('http://127.0.0.1:9/').catch(() => 0)")
    browser.js("1")  # the policy's complaint has come by the next answer
    assert complaints(list(browser.events)), "the page's own policy forbids requests"


def test_the_command_writes_a_page_and_refuses_what_it_cannot_run(tmp_path, capsys):
    page, other = tmp_path / "page.html", vector(d=4, loops=2)
    with pytest.raises(ValueError, match=r"runs the plain LoopedDecoder.*Choose"):
        write_explorer(page, model=other.build(), setup=setup(LinearRegression(d=4), other))
    large = DecoderConfig(d=1, width=320, heads=4)
    with pytest.raises(ValueError, match=r"would have .* MB"):
        write_explorer(page, model=large.build(), setup=setup(FunctionMixture(), large))
    with pytest.raises(SystemExit) as stopped:
        main(["explore", "yang24.linear", "--out", str(tmp_path / "page.html"), "--json"])
    assert stopped.value.code == 0
    data = json.loads(capsys.readouterr().out)
    assert data["bytes"] == (tmp_path / "page.html").stat().st_size <= MAX_BYTES


def test_the_shipped_models_answers_are_those_of_pytorch(browser, tmp_path):
    run = Run.open(SHIPPED)
    page = write_explorer(tmp_path / "page.html", model=run.model(), setup=run.setup)
    assert page.stat().st_size < 500_000
    assert complaints(browser.open(page)) == []
    prompts = run.setup.task.sample(batch=20, n=11, generator=torch.Generator().manual_seed(8))
    assert called(browser, "() => document.querySelectorAll('.words p').length") == 3
    compare(browser, run.model(), prompts, tolerance=1e-4)
    assert browser.js("redraw(100), queries.errors[99] < queries.errors[0] / 10")
    assert browser.js("queries.changes[99] < 0.01"), "the curve has come to rest"


def test_words_and_strip_agree_on_what_is_at_rest(browser, page):
    browser.open(page, width=1300)
    coloured = (
        "[...document.querySelectorAll('#plane .strip')].filter(mark => Number(mark.getAttribute('opacity')) > 0)"
    )
    browser.js("document.querySelector('[data-kind=wave]').click(); stop(); redraw(1)")
    assert browser.js("document.querySelectorAll('#plane .strip').length") == 0, "the first loop has none before it"
    told = "document.querySelector('#story').textContent"
    words = "(values, dark) => story({ t: 3, changes: values, dark, errors: [1, 0.2, 0.5], where: '', most: 20 })"
    for t in (2, 3, 8):
        browser.js(f"redraw({t})")
        moves = np.abs(
            np.diff(browser.js(f"[{t - 1}, {t}].map(t => [...queries.curves[t - 1].subarray(0, QUERIES)])"), axis=0)
        )
        assert browser.js(f"{coloured}.length") == np.sum(moves > 0.005)
        assert ("come to rest" in browser.js(told)) == (browser.js(f"queries.changes[{t - 1}]") <= 0.005)
    assert "come to rest, on average" in called(browser, words, [None, 1, 0.004], 0.2)
    assert "come to rest." in called(browser, words, [None, 1, 0.004], 0)
    assert "smallest after loop 2" in called(browser, words, [None, 1, 0.004], 0)


def test_inside_another_page_only_the_plane_is_shown_in_its_colours(browser, page, tmp_path):
    around = tmp_path / "around.html"
    around.write_text(
        f"<iframe src='{page.resolve().as_uri()}#small' width='360' height='900'></iframe><script>"
        "const told = new Promise(done => addEventListener('message', event => done(event.data.explorerHeight)));"
        "</script>"
    )
    browser.open(around, width=390)
    height = browser.call("Runtime.evaluate", expression="told", awaitPromise=True, returnByValue=True)
    assert 300 < height["result"]["value"] < 900
    browser.open(page)
    browser.js("postMessage({ theme: 'dark' }, '*')")
    drawn(browser)
    assert brightness(browser.js(PAPER)) < 60
