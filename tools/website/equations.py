"""TeX in Markdown as drawings, which need no script and no font: `$a$` in a line, `$$a$$` by itself."""

import html
from functools import cache
from xml.etree.ElementTree import Element, fromstring

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath

SIZE = 10.0
"""Points of the drawing to an em of the text around it."""
FONT = FontProperties(family="serif", math_fontfamily="stix", size=SIZE)
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


@cache
def drawing(tex: str, *, display: bool = False) -> str:
    """An equation as an `<svg>` in the colour and size of the text, on its baseline; `display` has large fractions."""
    text = "$" + tex.replace(r"\|", r"\Vert ").replace(r"\frac", r"\dfrac" if display else r"\frac") + "$"
    try:
        measured = MathTextParser("path").parse(text, dpi=72, prop=FONT)
        path = TextPath((0, 0), text, size=SIZE, prop=FONT)
    except ValueError as error:
        raise ValueError(f"`{tex}` is no equation that matplotlib can set: {str(error).splitlines()[-1]}.") from None
    width, height, depth = measured.width + 0.4, measured.height + 0.6, measured.depth + 0.3
    steps = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        numbers = [f"{x:.2f} {-y:.2f}" for x, y in points.reshape(-1, 2)]
        steps.append(LETTERS[code] + ("" if code == Path.CLOSEPOLY else " ".join(numbers)))
    return (
        f'<svg class="equation" role="img" aria-label="{html.escape(tex)}" viewBox="0 {depth - height:.2f} '
        f'{width:.2f} {height:.2f}" style="width: {width / SIZE:.3f}em; height: {height / SIZE:.3f}em; '
        f'vertical-align: {-depth / SIZE:.3f}em"><path fill="currentColor" d="{"".join(steps)}"/></svg>'
    )


class _Equation(InlineProcessor):
    """Puts the drawing of an equation into the page's tree."""

    def handleMatch(self, m, data):
        display = m[0].startswith("$$")
        element = Element("span", {"class": "display" if display else "inline"})
        element.append(fromstring(drawing(" ".join(m[1].split()), display=display)))
        return element, m.start(0), m.end(0)


class Equations(Extension):
    """Markdown with equations, which are read before escapes and emphasis but after code."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: D102 - the name that Markdown calls
        md.inlinePatterns.register(_Equation(r"\$\$(.+?)\$\$", md), "display equation", 186)
        md.inlinePatterns.register(_Equation(r"\$([^\s$](?:[^$]*?[^\s$])?)\$", md), "equation", 185)
