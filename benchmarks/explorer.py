"""How long the loop explorer takes to redraw, in this machine's Chromium: 20 loops, 20 points, 100 queries."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "report"))

from conftest import chromium
from looped.report.explorer import SHIPPED, write_explorer
from looped.training.run import Run

REPEATS = 9
POINTS = "state.points = Array.from({ length: 20 }, (_, i) => ({ x: (i * 37 % 20) / 6 - 1.6, y: Math.sin(i) }))"
MEDIAN = """(change => {
  const times = [];
  for (let repeat = 0; repeat < REPEATS; repeat++) {
    const start = performance.now();
    change(repeat);
    redraw(20);
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[REPEATS >> 1];
})"""
CHANGES = {
    "all points move": "() => { state.points = state.points.map(({ x, y }) => ({ x, y: y + 0.01 })) }",
    "the last point moves": "repeat => { state.points.at(-1).y = 0.1 * repeat; state.points = [...state.points] }",
    "only the query moves": "repeat => { state.probe = 0.1 * repeat }",
}


def main() -> None:
    run = Run.open(SHIPPED)
    with tempfile.TemporaryDirectory() as folder, chromium(f"{folder}/profile") as browser:
        browser.open(write_explorer(Path(folder) / "page.html", model=run.model(), setup=run.setup), width=1300)
        browser.js(f"stop(); {POINTS}; redraw(20)")
        for name, change in CHANGES.items():
            milliseconds = browser.js(MEDIAN.replace("REPEATS", str(REPEATS)) + f"({change})")
            print(f"{name}: {milliseconds:.0f} ms for 20 loops, 20 points, 100 queries")


if __name__ == "__main__":
    main()
