"""`looped explore`."""

import os
import sys
import webbrowser
from typing import Annotated

import typer

from looped.cli.chosen_run import open_run
from looped.cli.options import Best, Code, Json, Quiet
from looped.cli.output import show
from looped.report.explorer import SHIPPED, write_explorer


def explore(
    model: Annotated[str, typer.Argument(help="A run folder or a kept model, of a plain decoder.")] = SHIPPED,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The page to write.")] = "explorer.html",
    open_: Annotated[bool | None, typer.Option("--open/--no-open", help="Open the page in a browser.")] = None,
    best: Best = False,
    code: Code = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A page to play with: put points into a plane and watch the model's answer change, loop by loop.

    One HTML file with the weights inside; the model runs in the browser, on any computer or phone, without a network.
    The model that comes with looped has learned curves of one x. Any run of a small decoder works; of its x the plane
    shows the first coordinate, and the others are 0.

    Example: `looped explore --out explorer.html`
    """
    chosen = open_run(model, points=None, best=best, code=code)
    page = write_explorer(out, model=chosen.model("cpu"), setup=chosen.run.setup)
    size = page.stat().st_size
    data = {"page": str(page), "model": model, "bytes": size}
    show(data, f"{page}: {size / 1e6:.2f} MB, nothing else needed. Open it in a browser.", json=json, quiet=quiet)
    if open_ or (open_ is None and not (quiet or json) and sys.stdout.isatty() and os.environ.get("DISPLAY")):
        webbrowser.open(page.resolve().as_uri())
