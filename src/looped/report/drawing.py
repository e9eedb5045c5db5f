"""How a figure gets into a page or a file: the house style, and one drawing for light and dark pages.

Figures are drawn with fixed colours. A file keeps them, on white. In a page ink becomes `currentColor` and a curve
`var(--curve-N)`, so that the same drawing fits a light and a dark page. A file of `adaptive` brings both colours of
each, for a page that shows it as a picture.
"""

from __future__ import annotations

import contextlib
import html
import io
import itertools
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looped.files import write_bytes

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

# where it keeps its fonts, for a user without a home folder, is nothing to tell them
logging.getLogger("matplotlib").setLevel(logging.ERROR)

INK = "#1b1c1e"
PALETTE = ("#0b5fa5", "#c44e00", "#00795a", "#9a4b8f", "#7a6a00", "#3a86ad")
"""Blue, vermilion, green, purple, olive, sky: distinct for colour-blind readers too, and by their dashes."""
PLACES = re.compile(rb' (?:d|x|y|transform)="[^"]*"')
"""Attributes of an SVG that say where something lies, in points."""
DECIMALS = re.compile(rb"(\.\d\d)\d+")
STYLES = Path(__file__).parent / "templates" / "style.css"
"""The pages' own style, which has the light and the dark colours."""
COLOUR = re.compile(r"--(ink|paper|curve-\d): light-dark\((#\w+), (#\w+)\);")
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": f"cycler('color', {list(PALETTE)})",  # C0 .. C5, for code that does not import this module
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


@contextlib.contextmanager
def blank(size: tuple[float, float]) -> Iterator[Figure]:
    """An empty figure in the house style; draw inside the block."""
    from matplotlib.figure import Figure

    with _house_style():
        yield Figure(figsize=size, layout="constrained")


def inline_svg(figure: Figure, *, title: str, name: str) -> str:
    """The figure as an `<svg>` for an HTML page: its ids start with `name`, its colours are the page's."""
    text = re.sub(r"(?s)<!--.*?-->|<style.*?</style>", "", _save(figure, "svg").decode())
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda hit: f' id="{name}-{hit[1]}"' if hit[1] in used else "", text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r'style="[^"]*"', lambda hit: page_colours(hit[0]), text)
    inner = text[text.index(">", text.index("<svg")) + 1 :]
    width, height = (72 * inches for inches in figure.get_size_inches())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{html.escape(title)}</title>'
        + re.sub(r"\n\s*", "\n", inner).strip()
    )


class Figures:
    """Draws the figures of one page, with unique ids."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)

    def __call__(self, figure: Figure, title: str) -> Markup:
        """The figure as safe HTML, announced as `title`."""
        from markupsafe import Markup

        return Markup(inline_svg(figure, title=title, name=f"figure-{next(self.numbers)}"))


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Save as .svg, .png or .pdf, by the name's ending, on white, in a folder that is made if it is missing."""
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png", "pdf"):
        raise ValueError(f"a figure is saved as .svg, .png or .pdf; got `{path.name}`.")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _save(figure, kind, facecolor="white", dpi=200)
    write_bytes(path, _with_palette(content) if kind == "png" else content)
    return path


def adaptive(svg: str) -> str:
    """A drawing saved on white, as one that follows the light or dark colours of the page that shows it."""
    schemes = []
    for scheme in (1, 2):
        names = {colour[0]: colour[scheme] for colour in COLOUR.findall(STYLES.read_text())}
        values = " ".join(f"--{name}: {value};" for name, value in names.items())
        schemes.append(f"svg {{ {values} color: {names['ink']}; }}")
    dark = f"@media (prefers-color-scheme: dark) {{ {schemes[1]} }}"
    style = f"<style>{schemes[0]} {dark} text {{ font-family: sans-serif; }}</style>"
    svg = re.sub(r"(?s)<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->", "", svg).strip()
    svg = re.sub(r'style="[^"]*"', lambda hit: page_colours(hit[0]).replace("#ffffff", "var(--paper)"), svg)
    return re.sub(r"(<svg[^>]*>)", rf"\1{style}", svg, count=1)


def _with_palette(png: bytes) -> bytes:
    """The picture in 256 colours, a quarter of the size: curves and letters need no more."""
    from PIL import Image

    picture, buffer = Image.open(io.BytesIO(png)).convert("RGB"), io.BytesIO()
    picture = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@contextlib.contextmanager
def _house_style() -> Iterator[None]:
    """The house style, whatever the user's matplotlibrc says. The browser supplies glyphs that the font lacks.

    A number near the largest float has no ticks above it, and is drawn without.
    """
    import matplotlib.style
    import numpy as np

    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    """The same figure gives the same bytes: no date, no random ids."""
    import matplotlib

    buffer = io.BytesIO()
    empty = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate", "Creator", "Producer")}
    with _house_style(), matplotlib.rc_context({"svg.hashsalt": "looped"}):
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(empty.get(kind, ()), None), **options)
    content = buffer.getvalue()
    # a hundredth of a point is enough, and a fifth of the file smaller
    cut = PLACES.sub(lambda places: DECIMALS.sub(rb"\1", places[0]), content)
    return cut if kind == "svg" else content


def page_colours(style: str) -> str:
    """A style whose fixed colours are the page's: ink is `currentColor`, a curve `var(--curve-N)`."""
    style = style.replace(INK, "currentColor")
    for index, colour in enumerate(PALETTE):
        style = style.replace(colour, f"var(--curve-{index}, {colour})")
    return re.sub(r" ?font-family: [^;\"]*;?", "", style)
