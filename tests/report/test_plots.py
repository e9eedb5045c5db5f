import io
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from PIL import Image, ImageChops

from looped.evaluation.curves import Curve, Evaluation
from looped.report import drawing, plots

SVG = "{http://www.w3.org/2000/svg}"


def curve(label, mean, x=None):
    x = x or list(range(len(mean)))
    return Curve(label=label, x=x, mean=mean, low=[0.9 * v for v in mean], high=[1.1 * v for v in mean])


@pytest.fixture
def evaluation():
    return Evaluation(
        task="task",
        prompts=8,
        level=0.9,
        loops=3,
        trained_loops=3,
        by_examples=[
            curve("looped transformer", [1.0, 0.7, 0.5, 0.3, 0.1]),
            curve("least squares", [1.0, 0.5, 900.0, 1e-14, 1e-14]),
            curve("ridge (optimal)", [1.0, 0.6, 0.4, 0.2, 0.09]),
        ],
        by_loops=curve("looped transformer", [1.0, 0.5, 0.2, 0.1] + 8 * [0.1], list(range(1, 13))),
    )


def svg(figure, name="one", title="title"):
    text = drawing.inline_svg(figure, title=title, name=name)
    return text, ElementTree.fromstring(text)


def texts(root):
    return [node.text for node in root.iter(f"{SVG}text")]


def test_an_inline_figure_takes_its_colours_from_the_page_and_nothing_from_elsewhere(evaluation):
    text, _ = svg(plots.examples_figure(evaluation.by_examples, d=2))
    assert "currentColor" in text
    assert drawing.INK not in text
    assert "var(--curve-0, " + drawing.PALETTE[0] in text
    assert "font-family" not in text
    assert "<style" not in text  # it would reach the whole page
    assert not re.search(r'(?:href|src)="(?!#)', text)
    assert not re.search(r"url\((?!#)", text)


def test_several_figures_share_no_id_and_every_reference_finds_its_own(evaluation):
    figures = [plots.examples_figure(evaluation.by_examples, d=2), plots.examples_figure(evaluation.by_examples, d=2)]
    every = []
    for index, figure in enumerate(figures):
        text, root = svg(figure, name=f"figure-{index}")
        ids = [node.get("id") for node in root.iter() if node.get("id")]
        wanted = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
        assert {a or b for a, b in wanted} <= set(ids)
        assert len(wanted) > 10
        every += ids
    assert len(every) == len(set(every))


def test_the_same_figure_is_the_same_text(evaluation):
    assert svg(plots.loops_figure(evaluation))[0] == svg(plots.loops_figure(evaluation))[0]


def test_figures_say_what_they_show(evaluation):
    _, root = svg(plots.examples_figure(evaluation.by_examples, d=2), title="a < b & c")
    assert root.find(f"{SVG}title").text == "a < b & c"
    assert root.get("aria-labelledby") == root.find(f"{SVG}title").get("id")
    said = texts(root)
    assert {"k = d = 2", "least squares", "ridge (optimal)", "looped transformer"} <= set(said)
    assert any("examples" in text for text in said)
    assert any("predicting zero" in text for text in said)
    assert "trained b = 3" in texts(svg(plots.loops_figure(evaluation))[1])


def test_the_models_range_stays_readable_beside_baselines_that_leave_the_picture(evaluation):
    ax = plots.examples_figure(evaluation.by_examples).axes[0]
    low, high = ax.get_ylim()
    assert ax.get_yscale() == "log"
    assert 1e-3 < low < 0.09
    assert 1.0 < high < 100


def test_the_trained_loops_are_shaded_and_marked(evaluation):
    ax = plots.loops_figure(evaluation).axes[0]
    assert [list(line.get_xdata()) for line in ax.lines if len(set(line.get_xdata())) == 1] == [[3, 3]]
    (shade,) = ax.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (1, 3)
    assert list(ax.get_xticks())[1:] == [3, 6, 9, 12]


def test_the_level_in_the_loop_curve_is_the_best_baselines_unless_it_is_exact(evaluation):
    ridge_only = replace(evaluation, by_examples=[evaluation.by_examples[0], evaluation.by_examples[2]])
    labels = {line.get_label(): line for line in plots.loops_figure(ridge_only).axes[0].lines}
    assert list(labels["ridge (optimal)"].get_ydata()) == [0.09, 0.09]
    assert labels["ridge (optimal)"].get_color() == drawing.PALETTE[plots.KNOWN["ridge (optimal)"]]
    assert "least squares" not in [line.get_label() for line in plots.loops_figure(evaluation).axes[0].lines]


def test_a_baseline_has_one_colour_in_every_figure():
    assert plots.colours(["model", "least squares", "averaging"]) == [0, 1, 3]
    assert plots.colours(["model", "lasso", "least squares", "trees"]) == [0, 4, 1, 5]


@pytest.mark.parametrize("mean", [[math.nan] * 12, [1.0] + [math.nan] * 11, [1e-30] * 12, [1.0, 1e9] * 6, [0.0] * 12])
def test_diverged_and_degenerate_curves_are_drawn(evaluation, mean):
    strange = curve("looped transformer", mean, list(range(1, 13)))
    strange = replace(evaluation, by_loops=strange, by_examples=[replace(strange, label="m"), *evaluation.by_examples])
    for figure in (plots.loops_figure(strange), plots.examples_figure(strange.by_examples, d=2)):
        low, high = figure.axes[0].get_ylim()
        assert 0 < low < high < math.inf
        assert svg(figure)[1].tag == f"{SVG}svg"


@pytest.mark.parametrize("label", ["_hidden", "$x_{", "<script>alert(1)</script>", "循环", "--> x"])
def test_labels_are_text_whatever_they_hold(evaluation, label):
    named = [replace(evaluation.by_examples[0], label=label), *evaluation.by_examples[1:]]
    assert label in [text.strip() for text in texts(svg(plots.examples_figure(named))[1])]


def test_training_curve():
    metrics = [{"step": step, "loss": 1 / step, "error": 2 / step} for step in (1, 2, 3)]
    lines = plots.training_figure(metrics).axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3]] * 2
    assert [list(line.get_ydata()) for line in lines] == [[1, 1 / 2, 1 / 3], [2, 1, 2 / 3]]


@pytest.mark.parametrize("log_x", [True, False])
def test_measured_against_bound(log_x):
    lines = {"measured": [1.0, 0.1, None], "bound": [2.0, 0.5, 0.1], "gradient descent": [3.0, 2.0, 1.0]}
    plot = {"x_label": "layers L", "y_label": "error", "x": [1, 10, 100], "lines": lines, "log_x": log_x}
    figure = plots.bound_figure(plot)
    ax = figure.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log" if log_x else "linear", "log")
    drawn = {line.get_label(): line for line in ax.lines}
    assert list(drawn) == ["measured", "bound", "gradient descent"]
    assert drawn["bound"].get_color() == drawing.INK
    assert math.isnan(drawn["measured"].get_ydata()[2])
    assert {"layers L", "error", "gradient descent"} <= set(texts(svg(figure)[1]))


def test_a_plot_without_positive_values_falls_back_on_a_linear_axis():
    plot = {"x_label": "x", "y_label": "y", "x": [0, 1], "lines": {"measured": [0.0, -1.0]}, "log_x": False}
    assert plots.bound_figure(plot).axes[0].get_yscale() == "linear"


def test_files_are_on_white_and_end_as_they_are_named(evaluation, tmp_path):
    figure = plots.evaluation_figure(evaluation, d=2)
    png = drawing.save_figure(figure, tmp_path / "a.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    with Image.open(io.BytesIO(drawing._save(figure, "png", facecolor="white", dpi=200))) as exact:
        colours, paletted = exact.convert("RGB"), Image.open(io.BytesIO(png)).convert("RGB")
        assert max(high for _, high in ImageChops.difference(colours, paletted).getextrema()) < 32
        assert paletted.getpixel((0, 0)) == (255, 255, 255)
    text = drawing.save_figure(figure, tmp_path / "a.svg").read_text()
    assert "#ffffff" in text
    assert drawing.PALETTE[0] in text
    assert "var(--" not in text
    assert not re.search(r' (?:d|x|y|transform)="[^"]*\.\d{3}', text)
    assert drawing.save_figure(figure, tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"\.svg, \.png or \.pdf; got `a\.bmp`"):
        drawing.save_figure(figure, tmp_path / "a.bmp")


def test_drawing_leaves_matplotlibs_settings_as_they_were(evaluation):
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg(plots.loops_figure(evaluation))
    assert dict(matplotlib.rcParams) == before


def test_a_number_near_the_largest_float_is_drawn_without_a_warning():
    with drawing.blank((4, 3)) as figure:
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], [0.5, 1e308, 1.0])
        axes.set_yscale("log")
    assert "<path" in svg(figure)[0]
