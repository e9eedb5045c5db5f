"""Write docs/all_figures.md from the kept results: `python tools/figures_page.py`."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from looped.figure_facts import FigureFacts, at_paper_scale, counts_text, figure_facts

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "all_figures.md"
START = """# All figures

<!-- written by `python tools/figures_page.py`; do not edit -->

{count} of the {total} figures and tables of the five papers have a result at the paper's scale.
`looped list figures` shows the same, and [Figures](figures.md) says what the scales and verdicts
mean.

- *scale*: the largest one with a result of today's settings. At `cpu` scale claims of
  papers are not judged.
- *seeds*: trained models of each cell (`chen24.fig1`: trials).
- *training*: of all models behind the figure, some of which other figures show too; "?" where the
  result does not say. Trainings that shared a GPU count for their part.
- *still needed*: at the paper's scale. Minutes are predicted for {device}, one training at a
  time, from trainings of similar size; "?" where there is none. A training that several figures
  lack counts for each. "At home" are trainings that are done; the figure is to be measured.
- *ours*: the mean, with the range over seeds, or with one seed a 90% interval over prompts.
"""


def page(results: Path) -> str:
    """The page as Markdown."""
    facts = figure_facts([results], runs=results / "runs")  # there are none: only what is tracked counts
    count, total = at_paper_scale(facts)
    device = next((fact.needs.device for fact in facts if fact.needs), "a GPU")
    parts = [START.format(count=count, total=total, device=device)]
    for paper, group in groupby(facts, key=lambda fact: fact.name.partition(".")[0] if fact.in_print else ""):
        chosen = list(group)
        parts.append(f"## {paper or 'Beside them'}\n")
        parts.append(_table(("figure", "what", "scale", "claims", "seeds", "training", "still needed"), _lines(chosen)))
        if numbers := [
            (fact.name, entry.what, entry.number, entry.ours or "-", fact.scale_text)
            for fact in chosen
            for entry in fact.published
        ]:
            parts.append("Numbers in print beside ours:\n")
            parts.append(_table(("figure", "of", "in print", "ours", "scale"), numbers))
    return "\n".join(parts)


def _lines(facts: Sequence[FigureFacts]) -> Iterable[tuple[str, ...]]:
    for fact in facts:
        drawing = Path("results", "figures", f"{fact.name}.{fact.scale}.png")
        name = f"[{fact.name}](../{drawing})" if (ROOT / drawing).is_file() else fact.name
        claims = counts_text(fact.verdicts)
        yield (
            *(name, fact.title, fact.scale_text, claims, str(fact.seeds or "-"), fact.training_text),
            str(fact.needs or "-"),
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(ROOT / "results"))
