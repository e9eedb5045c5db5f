"""The page in a real browser: silent console, figures with a size, no overflow, light and dark, no request."""

import pytest

from looped.report.page import write_report

PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "getComputedStyle(document.querySelector('figure svg text')).fill"
CURVE = "getComputedStyle([...document.querySelectorAll('svg path')].find(p => /curve-0/.test(p.style.stroke))).stroke"
BOXES = """[...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect(), drawn = svg.getBBox();
  return [box.width, box.height, drawn.width, drawn.height];
})"""
# how far anything visible reaches past the right edge, tables that scroll by themselves aside
OVERFLOW = """Math.max(document.documentElement.scrollWidth - document.documentElement.clientWidth,
  ...[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll'))
    .map(e => e.getBoundingClientRect().right - document.documentElement.clientWidth))"""


@pytest.fixture(scope="module")
def page(evaluated, trained, tmp_path_factory):
    plot = {"x_label": "layers L", "y_label": "error", "x": [1, 2], "lines": {"measured": [1, 0.1], "bound": [2, 1]}}
    row = {"paper": "gatmiry24", "form": "as corrected", "statement": "x" * 90, "instance": "", "measured": 1e-5}
    row |= {"name": "gatmiry24.thm2", "bound": 1e-4, "margin": 9.0, "seconds": 1.0, "plot": plot}
    rows = [{**row, "verdict": "holds as corrected"}, {**row, "verdict": "fails as printed"}]
    return write_report(tmp_path_factory.mktemp("page"), runs=[evaluated, trained], theorems=rows)


def complaints(events):
    """What the page wrote to the console or threw; warnings count."""
    told = [event for event in events if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")]
    logged = [event["params"]["entry"]["text"] for event in events if event["method"] == "Log.entryAdded"]
    return told + logged


def requests(events):
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def test_console_is_silent_and_only_the_page_itself_is_requested(browser, page):
    events = browser.open(page)
    assert complaints(events) == []
    assert [url for url in requests(events) if not url.startswith("data:")] == [page.resolve().as_uri()]


def test_these_checks_can_fail(browser, page, tmp_path):
    broken = tmp_path / "broken.html"
    script = "<script>console.error('x')</script><img src='http://127.0.0.1:9/x.png'><p style='width: 3000px'>wide</p>"
    text = page.read_text().replace("http-equiv", "data-off").replace("<main>", f"<main>{script}")
    broken.write_text(text)
    events = browser.open(broken)
    assert complaints(events)
    assert "http://127.0.0.1:9/x.png" in requests(events)
    assert browser.js(OVERFLOW) > 1000


@pytest.mark.parametrize("width", [400, 768, 1200])
def test_figures_have_a_size_and_nothing_overflows(browser, page, width):
    browser.open(page, width=width)
    assert browser.js("document.documentElement.clientWidth") > 0.95 * width
    boxes = browser.js(BOXES)
    assert len(boxes) == 8
    for box_width, box_height, *drawn in boxes:
        assert 150 < box_width <= width
        assert 90 < box_height < box_width
        assert min(drawn) > 90
    assert browser.js(OVERFLOW) <= 0.5


def brightness(colour):
    """Mean of red, green and blue of `rgb(...)`, 0 to 255."""
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def test_dark_and_light_differ_by_preference_and_by_the_switch(browser, page):
    seen = {}
    for dark in (False, True):
        browser.open(page, dark=dark)
        seen[dark] = [brightness(browser.js(of)) for of in (PAPER, INK, CURVE)]
    assert seen[False][0] > 240 > 60 > seen[True][0]
    assert seen[False][1] < 60 < 200 < seen[True][1]
    assert seen[True][2] > seen[False][2] + 40
    for preferred in (False, True):
        browser.open(page, dark=preferred)
        for switch, dark in (("light", False), ("dark", True), ("auto", preferred)):
            browser.js(f"document.querySelector('label[for=theme-{switch}]').click()")
            assert [brightness(browser.js(of)) for of in (PAPER, INK, CURVE)] == seen[dark]


def test_paper_is_white_in_print(browser, page):
    browser.open(page, dark=True)
    browser.js("document.querySelector('label[for=theme-dark]').click()")
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert brightness(browser.js(PAPER)) == 255
    assert brightness(browser.js(INK)) < 60
    assert browser.js("getComputedStyle(document.querySelector('.theme')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_figures_are_announced(browser, page):
    browser.open(page)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "image"]
    figures = [name for name in names if name.startswith(("Error by", "Training curve", "gatmiry24.thm2: measured"))]
    assert len(figures) == 8


def test_a_hostile_name_stays_text(browser, evaluated, tmp_path):
    evil = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
    file = write_report(tmp_path, runs=[evaluated], title=evil, lead=evil)
    events = browser.open(file)
    assert complaints(events) == []
    assert browser.js("document.title") == evil
    assert browser.js("document.querySelector('h1').textContent") == evil
    assert browser.js("document.querySelectorAll('img, script').length") == 0
