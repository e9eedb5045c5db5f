"""Build the documentation as HTML files that need no network: `python tools/build_site.py [--out site]`.

Pages are docs/*.md in the order of docs/navigation.toml. Figures, theorems, commands and the reference are put in
where a page has `<!-- figures of PAPER -->`, `<!-- theorems -->`, `<!-- commands -->` or `::: module`.
What a page shows below `<!-- printed -->` is the output of the code above it (`tools/printed_blocks.py`).
`--theorems FILE` reads the rows that `looped verify --json` printed; without it the theorems are checked now.
"""

import argparse
import html
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from os.path import relpath
from pathlib import Path
from typing import Any

import jinja2
from markdown import Markdown
from website.commands import commands
from website.equations import Equations
from website.reference import reference
from website.results import figures_of, theorems

import looped
from looped.figure_facts import figure_facts
from looped.report.drawing import STYLES, adaptive
from looped.report.explorer import SHIPPED, write_explorer
from looped.theorems.check import verify
from looped.training.kept import store
from looped.training.run import Run

ROOT = Path(__file__).resolve().parents[1]
DOCS, PARTS = ROOT / "docs", Path(__file__).parent / "website"
EXTENSIONS = ("tables", "fenced_code", "codehilite", "def_list", "attr_list", "toc", Equations())
OPTIONS = {"codehilite": {"guess_lang": False}, "toc": {"permalink": "#", "permalink_title": "Link to this section"}}
HEADING = re.compile(r'<h([1-3]) id="([^"]+)">(.*?)</h\1>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page in HTML."""

    path: str
    """Where it lies in the site: `papers/yang24.html`."""
    title: str
    """Its first heading."""
    content: str
    """What the template goes around."""
    headings: list[dict[str, Any]]
    """Its sections with their names and ids, as the extension `toc` gives them."""


def build(out: Path, *, rows: list[dict[str, Any]], results: Path = ROOT / "results") -> list[Page]:
    """Write the site into `out`, which is emptied first; `rows` are those of `looped verify --json`."""
    navigation = tomllib.loads((DOCS / "navigation.toml").read_text())["section"]
    shutil.rmtree(out, ignore_errors=True)
    assets = out / "assets"
    assets.mkdir(parents=True)
    facts = figure_facts([results], runs=results / "runs")
    parts = {
        "commands": commands,
        "explorer": partial(explorer, out),
        "printed": lambda: "It prints:\n",
        "theorems": partial(theorems, rows, assets),
        **{f"figures of {paper}": partial(figures_of, paper, facts, results, assets) for paper in _papers()},
    }
    pages = [page(name, assets, parts) for section in navigation for name in section["pages"]]
    titles = {page.path.removesuffix(".html") + ".md": page.title for page in pages}
    sections = [
        (section["title"], [(name.removesuffix(".md") + ".html", titles[name]) for name in section["pages"]])
        for section in navigation
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PARTS), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("page.html")
    for index, entry in enumerate(pages):
        file = out / entry.path
        file.parent.mkdir(exist_ok=True)
        around = {"before": pages[index - 1] if index else None, "after": (*pages, None)[index + 1]}
        root = relpath(out, file.parent)
        file.write_text(template.render(page=entry, sections=sections, root=root, version=looped.__version__, **around))
    (assets / "site.css").write_text(STYLES.read_text() + (PARTS / "site.css").read_text())
    shutil.copy(PARTS / "site.js", assets)
    entries = [entry for page in pages for entry in _search_entries(page)]
    (assets / "search.js").write_text(f"window.searchEntries = {json.dumps(entries, separators=(',', ':'))};\n")
    return pages


def page(name: str, assets: Path, parts: dict[str, Callable[[], str]]) -> Page:
    """One page of docs/ in HTML, with its generated parts put in and its links leading into the site."""
    text = (DOCS / name).read_text()
    text = re.sub(r"<!-- ([\w ]+) -->", lambda hit: parts[hit[1]]() if hit[1] in parts else "", text)
    text = re.sub(r"(?m)^::: ([\w.]+)$", lambda hit: reference(hit[1]), text)
    markdown = Markdown(extensions=EXTENSIONS, extension_configs=OPTIONS)
    content = markdown.convert(text)
    content = re.sub(r"<table.*?</table>", r'<div class="scroll">\g<0></div>', content, flags=re.DOTALL)
    content = re.sub(r'(href|src)="([^"]*)"', lambda hit: f'{hit[1]}="{_target(hit[2], name, assets)}"', content)
    tokens = markdown.toc_tokens  # type: ignore[attr-defined] - set by the extension `toc`
    path = name.removesuffix(".md") + ".html"
    return Page(path=path, title=html.unescape(tokens[0]["name"]), content=content, headings=tokens[0]["children"])


@cache
def explorer(out: Path) -> str:
    """The plane of the loop explorer, to be shown within a page, and a link to the explorer's own page."""
    run = Run.open(store() / SHIPPED)
    write_explorer(out / "explorer_page.html", model=run.model(), setup=run.setup)
    frame = (
        '<iframe class="explorer" src="@explorer_page.html#small" title="The loop explorer" loading="lazy"></iframe>'
    )
    more = "noise, other methods to compare with, the error by loop, and where the model looks"
    return f"{frame}\n\n**[Open it as a page of its own](@explorer_page.html)**: it adds {more}."


def _target(link: str, name: str, assets: Path) -> str:
    """Where a link of a page leads in the site: pages become HTML, and files of the repository are copied."""
    if link.startswith(("http:", "https:", "#", "data:")):
        return link
    up = "../" * name.count("/")
    if link.startswith("@"):  # a file that the build writes
        return up + link[1:]
    path, hash_sign, place = link.partition("#")
    if path.endswith(".md"):
        return path.removesuffix(".md") + ".html" + hash_sign + place
    source = (DOCS / name).parent / path
    if path.startswith("../results/figures/"):
        drawn = source.with_suffix(".svg")
        source = drawn if drawn.exists() else source  # some large ones are kept as PNG alone
    if source.suffix == ".svg" and source.parent.name == "figures":
        (assets / source.name).write_text(adaptive(source.read_text()))
    else:
        shutil.copy(source, assets)
    return f"{up}assets/{source.name}"


def _papers() -> list[str]:
    return sorted(path.stem for path in (DOCS / "papers").glob("*.md"))


def _search_entries(page: Page) -> list[dict[str, str]]:
    """The text of each section, for the search."""
    pieces = HEADING.split(page.content)[1:]
    entries = []
    for place, title, text in zip(pieces[1::4], pieces[2::4], pieces[3::4], strict=True):
        words = " ".join(html.unescape(re.sub(r"(?s)<svg.*?</svg>|<[^>]+>", " ", text)).split())
        shown = html.unescape(re.sub(r"<a class=\"headerlink.*?</a>|<[^>]+>", "", title))
        entries.append({"page": page.title, "url": f"{page.path}#{place}", "title": shown, "text": words[:1500]})
    return entries


def main() -> None:
    """Read the options, build, and say where the site is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--theorems", type=Path, help="rows that `looped verify --json` printed")
    options = parser.parse_args()
    rows = json.loads(options.theorems.read_text()) if options.theorems else [row.as_dict() for row in verify(None)]
    pages = build(options.out, rows=rows)
    print(f"{len(pages)} pages: open {options.out / 'index.html'}")


if __name__ == "__main__":
    main()
