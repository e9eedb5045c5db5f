"""Run the Python of pages and write what a block prints where `<!-- printed -->` follows it.

`python tools/printed_blocks.py README.md docs/index.md`; without names, every page that has the mark.
`tests/test_documents.py` runs the same blocks and compares.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- printed -->\n```text\n"
BLOCK = re.compile(rf"```python\n(?P<code>.*?)```(?:\n\n{re.escape(MARK)}(?P<printed>.*?)```)?", re.DOTALL)


def with_output(text: str) -> str:
    """The page with what its blocks print, where it shows that."""
    names: dict[str, object] = {"__name__": "page"}

    def run(block: re.Match[str]) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block["code"], "page", "exec"), names)
        if block["printed"] is None:
            return block[0]
        return block[0][: block.start("printed") - block.start()] + output.getvalue() + "```"

    return BLOCK.sub(run, text)


def main() -> None:
    """Rewrite the pages."""
    chosen = [ROOT / name for name in sys.argv[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    os.chdir(tempfile.mkdtemp())  # trainings write their runs there
    for page in chosen:
        if MARK in (text := page.read_text()):
            page.write_text(with_output(text))


if __name__ == "__main__":
    main()
