import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from looped.evaluation.saved import evaluations, save_evaluation
from looped.experiment import Setup
from looped.report.numbers import number
from looped.report.page import write_report
from looped.reproduce import kept_results
from looped.training.run import Run

RESULTS = Path(__file__).resolve().parents[2] / "results"
EVIL = "<script>alert(1)</script>"


def theorem(**fields):
    plot = {"x_label": "layers L", "y_label": "error", "x": [1, 2], "lines": {"measured": [1, 0.1], "bound": [2, 1]}}
    row = {"name": "gatmiry24.thm2", "paper": "gatmiry24", "form": "as stated", "statement": "error <= bound"}
    row |= {"instance": "3 seeds", "measured": 1e-5, "bound": 1e-4, "bound_is": "from the statement", "margin": 10.0}
    return row | {"verdict": "holds", "seconds": 0.5, "plot": plot} | fields


class Reader(HTMLParser):
    """Tags in order, the text, and whether every element that must be closed is."""

    void = frozenset(("meta", "link", "input", "br"))
    inline = frozenset(("strong", "em", "b", "span", "code"))

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.words += [] if tag in self.inline else [" "]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def read(file):
    return Reader(file.read_text())


@pytest.fixture(scope="module")
def file(evaluated, tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    return write_report(out, runs=[evaluated], theorems=[theorem()], title="Two words", lead="A lead.")


def test_a_run_is_shown_with_its_numbers_config_and_provenance(evaluated, file):
    page = read(file)
    first = evaluations(evaluated)["noisy labels"]
    for curve in first.by_examples:
        assert number(curve.at(6)) in page.text  # k = 2d
    assert f"After 12 loops, 4× its training, it stands at {number(first.by_loops.at(12))}" in page.text
    assert f"{evaluated.model().num_parameters:,}" in page.text
    provenance = evaluated.provenance()
    assert provenance["device"] in page.text
    assert provenance["torch"] in page.text
    assert "TrainConfig" in page.text
    assert "Trapezoid(warmup=0.0, decay=0.0, floor=0.0)" in page.text
    assert page.text.index("noisy labels") < page.text.index("clean labels")
    assert page.text.index("Two words") < page.text.index("A lead.") < page.text.index("tiny")
    assert page.tags.count("figure") == 6
    assert page.tags.count("script") == 0


def test_least_squares_is_said_to_explode_or_to_be_exact(evaluated, file):
    noisy, clean = evaluations(evaluated).values()
    text = read(file).text
    least_squares = clean.by_examples[1]
    first = next(x for x, mean in zip(least_squares.x, least_squares.mean, strict=True) if mean < 1e-9)
    assert f"Least squares is exact from k = {first} on" in text
    assert ("explodes" in text) == (max(noisy.by_examples[1].mean) > 20)


def test_runs_keep_their_order_and_bare_ones_show_their_training(evaluated, trained, tmp_path):
    page = read(write_report(tmp_path / "deep" / "page.html", runs=[trained, evaluated]))
    assert page.text.index("bare") < page.text.index("tiny")
    assert "At a glance" in page.text
    assert "Not evaluated yet" in page.text
    assert page.tags.count("figure") == 6
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for key, value in page.attributes if key == "href" and value.startswith("#")} <= set(ids)


def test_an_interrupted_and_an_imported_run_say_so(experiment, tmp_path):
    waiting = Run.create(tmp_path / "waiting", experiment)
    imported = Run.create(tmp_path / "imported", Setup(name="imported", task=experiment.task, model=experiment.model))
    text = read(write_report(tmp_path, runs=[waiting, imported])).text
    assert "No step has been logged yet." in text
    assert "imported or constructed" in text


def test_no_runs_and_no_theorems(tmp_path):
    assert "Nothing was run yet" in read(write_report(tmp_path, runs=[])).text
    assert "No theorem was checked." in read(write_report(tmp_path, runs=[], theorems=[])).text


def test_everything_that_came_from_outside_is_inert(evaluated, experiment, tmp_path):
    run = Run.create(tmp_path / EVIL.replace("/", ""), experiment)
    run.save_provenance("cpu", 1.0, note=f"{EVIL}\" onload='x'")
    result = evaluations(evaluated)["noisy labels"]
    curves = [replace(curve, label=f"{EVIL}{curve.label}") for curve in result.by_examples]
    loops = replace(result.by_loops, label=f'"{EVIL}')
    save_evaluation(run, EVIL, replace(result, task=EVIL, by_examples=curves, by_loops=loops))
    rows = [theorem(**dict.fromkeys(("name", "paper", "statement", "instance", "form", "verdict"), EVIL))]
    rows[0]["plot"] = rows[0]["plot"] | {"x_label": EVIL, "lines": {EVIL: [1, 2]}}
    file = write_report(tmp_path, runs=[run], theorems=rows, title=EVIL, lead=f'"{EVIL}')
    page = read(file)
    assert "<script" not in file.read_text().lower()
    assert page.text.count("alert(1)") > 15
    assert not [key for key, _ in page.attributes if key.startswith("on")]


def test_nothing_is_loaded_from_elsewhere(file):
    page = read(file)
    loaded = [value for key, value in page.attributes if key in ("src", "href", "action", "srcset", "data")]
    assert all(value.startswith(("#", "data:")) for value in loaded)
    assert {value for key, value in page.attributes if "://" in (value or "")} == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", file.read_text())


def test_theorems_are_counted_grouped_and_coloured(tmp_path):
    rows = [
        theorem(),
        theorem(name="chen24.lem4.1", paper="chen24", form="as printed", verdict="fails as printed", margin=0.25),
        theorem(name="chen24.lem4.1", paper="chen24", form="as corrected", verdict="holds as corrected", margin=None),
        theorem(name="chen24.thm4.2", paper="chen24", bound_is="numerical tolerance", plot=None),
        theorem(name="chen24.thm5.8", paper="chen24", verdict="fails", measured=None, margin=None),
    ]
    file = write_report(tmp_path, runs=[], theorems=rows)
    page = read(file)
    assert "2 hold 1 holds as corrected 1 fails as printed 1 fails" in page.text
    assert "5 checks in 2.5 s" in page.text
    assert page.text.index("gatmiry24.thm2") < page.text.index("chen24.lem4.1")
    assert "Nothing was run" not in page.text
    assert page.tags.count("figure") == 4
    cells = re.findall(r'data-label="Margin">([^<]*)<', file.read_text())
    assert cells == ["10", "0.25", "∞", "10", "–"]
    classes = [value for key, value in page.attributes if key == "class" and value.startswith("verdict")]
    assert classes[4:] == [f"verdict {kind}" for kind in ("good", "note", "good", "good", "bad")]


def test_a_long_page_begins_with_its_contents(tmp_path):
    names = ("chen24.fig1.paper", "yang24.fig3.paper", "yang24.fig4.paper")
    for name in names:
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    rows = [theorem(), theorem(name="chen24.lem4.1", paper="chen24")]
    text = write_report(tmp_path, runs=[], results=kept_results(tmp_path), theorems=rows).read_text()
    contents = re.search(r'(?s)<nav class="contents".*?</nav>', text)[0]
    links = re.findall(r'href="#([^"]+)"', contents)
    assert links == [*names, "theorems-1", "theorems-2"]
    assert all(f'id="{link}"' in text for link in links)
    assert "contents" not in write_report(tmp_path, runs=[], theorems=rows[:1]).read_text().partition("<body>")[2]


def test_no_failure_is_counted_too(tmp_path):
    assert "1 holds 0 fail" in read(write_report(tmp_path, runs=[], theorems=[theorem()])).text


def test_a_model_that_diverged_is_shown(evaluated, experiment, tmp_path):
    run = Run.create(tmp_path / "run", experiment)
    result = evaluations(evaluated)["noisy labels"]
    nowhere = [math.nan] * len(result.by_loops.x)
    model = replace(result.by_examples[0], mean=[math.inf] * 9, low=[math.nan] * 9, high=[math.inf] * 9)
    loops = replace(result.by_loops, mean=nowhere, low=nowhere, high=nowhere)
    save_evaluation(run, "far away", replace(result, by_examples=[model, *result.by_examples[1:]], by_loops=loops))
    text = read(write_report(tmp_path, runs=[run])).text
    assert "the looped transformer diverged: its error is not a number. Ridge (optimal) reaches" in text
    assert "After 12 loops, 4× its training, it has diverged." in text


def test_an_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"cannot be written to .*file/report\.html: .*\. Choose another place\.$"):
        write_report(tmp_path / "file", runs=[])
    assert (tmp_path / "file").read_text() == "x"
