"""The documentation as `tools/build_site.py` builds it: links, generated parts, equations, and a real browser."""

import importlib.util
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import looped
from looped.cli import app
from looped.figure_facts import kept_result
from looped.reproduce import studies
from looped.theorems.check import verify

pytest.importorskip("markdown", reason="the site needs the extra `docs`: it was not built")
ROOT = Path(__file__).resolve().parents[2]
PLOT = {"x_label": "layers L", "y_label": "error", "x": [1, 2], "lines": {"measured": [1, 0.1], "bound": [2, 1]}}


@pytest.fixture(scope="module")
def tool():
    """The script as a module; the parts beside it are found as they are when it runs."""
    sys.path.insert(0, str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_site"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def site(tool, tmp_path_factory):
    """The whole site, with the theorems that are checked fastest."""
    out = tmp_path_factory.mktemp("documents") / "site"
    rows = [{**row.as_dict(), "plot": PLOT} for row in verify(["chen24.lem4.1", "gatmiry24.lem4"])]
    assert len(rows) == 3
    pages = tool.build(out, rows=rows)
    assert all((out / page.path).is_file() for page in pages)
    return out


class Links(HTMLParser):
    """The links of a page, what it loads, and its ids."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        fields = dict(attrs)
        self.ids.add(fields.get("id"))
        self.links += [fields["href"]] if tag == "a" and "href" in fields else []
        self.loaded += [fields[key] for key in ("src", "href") if key in fields and tag in ("img", "script", "link")]


def broken_links(site):
    """Links and loaded files that lead nowhere, and files that are loaded from elsewhere."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            if (link.startswith(("https:", "http:")) and link not in page.loaded) or link == "data:,":
                continue
            name, _, place = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.is_file() or (place and place not in pages[target].ids):
                broken.append(f"{path.name}: {link}")
    return broken


def test_every_link_and_picture_leads_somewhere(site):
    assert len(list(site.rglob("*.html"))) >= 24
    assert broken_links(site) == []


def test_a_broken_link_is_found(tool, site, tmp_path):
    text = (site / "index.html").read_text()
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="no.html">x</a><a href="#no">y</a><img src="https://x.org/a.png"><a href="https://x.org">z</a>'
    )
    assert broken_links(tmp_path) == ["index.html: no.html", "index.html: #no", "index.html: https://x.org/a.png"]
    assert "how_looping_works.html" in text


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_command_name_theorem_and_figure_is_there(site):
    commands = text_of(site / "commands.html")
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f"looped {name}" in commands
        assert all(option in commands for parameter in command.params for option in parameter.opts if option[0] == "-")
    reference = (site / "reference.html").read_text()
    assert [name for name in looped.__all__ if f'<h3 id="{name.lower()}' not in reference] == []
    theorems = text_of(site / "all_theorems.html")
    assert theorems.count("chen24.lem4.1") == 1
    assert theorems.count("gatmiry24.lem4") == 2
    assert len(list((site / "assets").glob("theorem-*.svg"))) == 3
    measured = 0
    for name in studies():
        file = site / "papers" / f"{name.partition('.')[0]}.html"
        if not file.is_file():  # a study of ours, of no paper
            assert name in (site / "all_figures.html").read_text()
            continue
        page = file.read_text()
        assert name in page
        scale = next((scale for scale in ("paper", "cpu") if f"assets/{name}.{scale}.svg" in page), None)
        if scale is not None:
            claims = kept_result([ROOT / "results"], name, scale)[1]["claims"]
            assert all(claim["id"] in page and f">{claim['verdict']}<" in page for claim in claims)
            measured += 1
    assert measured >= 27


def test_the_loop_explorer_is_a_page_of_the_site(site):
    assert "explorer.curves" in (site / "explorer_page.html").read_text()
    for name in ("explorer.html", "how_looping_works.html"):
        assert 'href="explorer_page.html"' in (site / name).read_text()
        assert 'src="explorer_page.html#small"' in (site / name).read_text()


def test_the_loop_explorer_in_a_page_is_as_high_as_it_says(browser, site):
    browser.open(site / "how_looping_works.html", width=390)
    height = """new Promise(done => {
      const frame = document.querySelector('iframe.explorer');
      const look = () => frame.style.height ? done(parseInt(frame.style.height)) : requestAnimationFrame(look);
      frame.scrollIntoView();
      look();
    })"""
    told = browser.call("Runtime.evaluate", expression=height, awaitPromise=True, returnByValue=True)
    assert 500 < told["result"]["value"] < 1200


def test_equations_are_drawings_and_code_is_not(tool):
    from website.equations import Equations

    html = tool.Markdown(extensions=[Equations()]).convert("so $x_1^2$ and `$HOME`, a $5 note\n\n$$\n\\frac{a}{b}\n$$")
    assert re.findall(r'class="(\w+)"><svg', html) == ["inline", "display"]
    assert re.findall(r'aria-label="([^"]*)"', html) == ["x_1^2", r"\frac{a}{b}"]
    assert "<code>$HOME</code>, a $5 note" in html
    heights = [float(height) for height in re.findall(r"height: ([\d.]+)em", html)]
    assert 0.5 < heights[0] < heights[1] < 4
    with pytest.raises(ValueError, match=r"`\\frac\{a` is no equation"):
        tool.Markdown(extensions=[Equations()]).convert(r"$\frac{a$")


def test_drawings_follow_the_page(site):
    for path in (site / "assets").glob("*.svg"):
        drawn = path.read_text().partition("</style>")[2]
        assert "prefers-color-scheme" in path.read_text(), path.name
        assert not re.search(r"#(1b1c1e|0b5fa5|ffffff)(?![^(]*\))", drawn), path.name


def test_the_search_knows_every_page(site):
    entries = json.loads((site / "assets" / "search.js").read_text().partition("= ")[2].rstrip(";\n"))
    pages = {entry["url"].partition("#")[0] for entry in entries}
    assert pages == {str(path.relative_to(site)) for path in site.rglob("*.html")} - {"explorer_page.html"}
    [entry] = [entry for entry in entries if entry["url"] == "how_looping_works.html#a-step-that-is-repeated"]
    assert "gradient descent" in entry["text"]


@pytest.mark.parametrize("width", [390, 1300])
def test_pages_are_silent_and_fit_in_a_browser(browser, site, width):
    import test_browser

    for path in sorted(site.rglob("*.html")):
        events = browser.open(path, width=width)
        assert test_browser.complaints(events) == [], path.name
        assert all(url.startswith("file:") for url in test_browser.requests(events) if url != "data:,"), path.name
        assert browser.js("document.documentElement.scrollWidth") <= width, path.name
        assert browser.js("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)") == []


def test_search_menu_and_colours_work_without_a_server(browser, site):
    browser.open(site / "papers" / "yang24.html", width=390)
    browser.js("document.querySelector('.menu').click()")
    assert browser.js("getComputedStyle(document.querySelector('#navigation')).display") == "block"
    browser.js("document.querySelector('.menu').click()")
    assert browser.js("getComputedStyle(document.querySelector('#navigation')).display") == "none"
    search = """(async () => {
      const input = document.querySelector('.search input');
      input.focus(); input.value = 'newton inverse'; await showHits();
      return [...document.querySelectorAll('.hits a')].map(a => a.getAttribute('href'));
    })()"""
    hits = browser.call("Runtime.evaluate", expression=search, awaitPromise=True, returnByValue=True)["result"]["value"]
    assert any("papers/g" in hit for hit in hits)
    assert all((site / "papers" / hit.partition("#")[0]).resolve().is_file() for hit in hits)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(paper)
    for _ in range(2):  # auto, light, dark
        browser.js("document.querySelector('.colours').click()")
    assert browser.js("document.documentElement.dataset.theme") == "dark"
    assert browser.js(paper) != light
