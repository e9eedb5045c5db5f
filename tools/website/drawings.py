"""Drawings as files of the site: an SVG in the house style follows the light or dark colours of the page around it."""

import re
from pathlib import Path

import looped.report
from looped.report.drawing import page_colours

STYLES = Path(looped.report.__file__).parent / "templates" / "style.css"
COLOUR = re.compile(r"--(ink|paper|curve-\d): light-dark\((#\w+), (#\w+)\);")
COLOURS = COLOUR.findall(STYLES.read_text())


def adaptive(svg: str) -> str:
    """A drawing saved on white, as one that follows its page."""
    schemes = []
    for scheme in (1, 2):
        names = {colour[0]: colour[scheme] for colour in COLOURS}
        values = " ".join(f"--{name}: {value};" for name, value in names.items())
        schemes.append(f"svg {{ {values} color: {names['ink']}; }}")
    dark = f"@media (prefers-color-scheme: dark) {{ {schemes[1]} }}"
    style = f"<style>{schemes[0]} {dark} text {{ font-family: sans-serif; }}</style>"
    svg = re.sub(r"(?s)<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->", "", svg).strip()
    svg = re.sub(r'style="[^"]*"', lambda hit: page_colours(hit[0]).replace("#ffffff", "var(--paper)"), svg)
    return re.sub(r"(<svg[^>]*>)", rf"\1{style}", svg, count=1)
