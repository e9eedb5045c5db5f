"""The page of a construction: its numbers are the algorithm's by NumPy, and the page draws every loop of them."""

import json

import numpy as np
import pytest

from looped.cli import main
from looped.constructions.ready import READY
from looped.report.construction import ANGLES, picture_data, write_picture
from report.test_browser import complaints, requests

LOOPS = 6
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def examples_of(construction):
    prompt = construction.prompt
    return prompt.xs[0, :-1].numpy(), prompt.ys[0, :-1].numpy()


@pytest.mark.parametrize("name", ["gatmiry24.thm5", "gatmiry24.thm2", "gao24.thm4.2"])
def test_weights_go_down_the_gradient_as_numpy_does(name):
    construction = READY[name](2, 12, LOOPS)
    weights = picture_data(construction)["weights"]
    xs, ys = examples_of(construction)
    assert np.array(weights["gram"]) == pytest.approx(xs.T @ xs)
    assert weights["best"] == pytest.approx(np.linalg.lstsq(xs, ys, rcond=None)[0])
    w = np.zeros(2)
    for after in np.array(weights["path"]):
        gradient = xs.T @ (xs @ w - ys)
        move = after - w
        # every step is down the gradient, by a rate that is read off and the same for both coordinates
        rate = -(move @ gradient) / (gradient @ gradient)
        assert move == pytest.approx(-rate * gradient, abs=1e-8)
        assert rate > 0
        w = after
    assert np.linalg.norm(w - weights["best"]) < 0.6 * np.linalg.norm(weights["best"])


def test_the_function_around_the_circle_is_functional_descent():
    construction = READY["cheng24.prop3.1"](2, 12, LOOPS)
    curves = np.array(picture_data(construction)["curves"])
    xs, ys = examples_of(construction)
    turns = np.linspace(0, 2 * np.pi, ANGLES)
    queries = np.stack([np.cos(turns), np.sin(turns)], 1)
    at_examples, at_queries = np.zeros(12), np.zeros(ANGLES)
    rate = float(construction.algorithm.split()[4])
    for curve in curves:
        misses = ys - at_examples
        at_queries = at_queries + rate * np.exp(queries @ xs.T) @ misses
        at_examples = at_examples + rate * np.exp(xs @ xs.T) @ misses
        assert curve == pytest.approx(at_queries, abs=2e-3 * np.abs(at_queries).max())  # the rate is read to 3 digits


@pytest.mark.parametrize("name", READY)
def test_every_construction_has_numbers_for_every_loop(name):
    data = picture_data(READY[name](2, 6, 3))
    assert len(data["errors"]) == len(data["pairs"][0]) == len(data["pairs"][1]) == 3
    assert max(data["errors"]) < 1e-6
    assert all(len(data[key]) == 3 for key in ("curves",) if key in data)
    json.dumps(data, allow_nan=False)


def test_the_page_draws_the_loop_that_is_chosen(browser, tmp_path):
    page = write_picture(tmp_path / "page.html", name="gao24.thm4.1", examples=12, loops=LOOPS)
    for width in (1300, 390):
        events = browser.open(page, width=width)
        assert complaints(events) == []
        assert [url for url in requests(events) if not url.startswith("data:")] == [page.resolve().as_uri()]
        assert browser.js(WIDER) <= 0  # a contour may reach past the frame that clips it
    now = "document.querySelector('#around path.now').getAttribute('d')"
    first = browser.js(now)
    browser.js("$('loop').value = 4; $('loop').dispatchEvent(new Event('input'))")
    assert browser.js(now) != first
    assert browser.js("document.querySelectorAll('#weights .dot.now').length") == 5
    assert browser.js("document.querySelectorAll('#around path.before').length") == 3
    browser.js("$('play').click(); stop()")
    assert complaints(list(browser.events)) == []


def test_the_command_writes_it_beside_the_table(tmp_path, capsys):
    file = tmp_path / "picture.html"
    with pytest.raises(SystemExit) as stopped:
        main(["construct", "gatmiry24.thm5", "--examples", "12", "--loops", "3", "--picture", str(file)])
    assert stopped.value.code == 0
    assert "gatmiry24.thm5, loop by loop" in file.read_text()
    assert str(file) in capsys.readouterr().err.replace("\n", "")
