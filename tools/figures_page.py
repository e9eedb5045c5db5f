"""Write docs/all_figures.md and the tables of results in README and docs/: `python tools/figures_page.py`."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import result_tables
from result_tables import markdown

from looped.figure_facts import VERDICTS, FigureFacts, at_paper_scale, counts_text, figure_facts
from looped.studies.table import Table
from looped.theorems.check import theorems

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "all_figures.md"
README = ROOT / "README.md"
PREDICTORS = ROOT / "docs" / "scikit_learn.md"
COMPARED = re.compile(r"(?s)(<!-- compared: (\S+) (\S+) -->\n).*?(<!-- end of comparison -->)")
TABLE = re.compile(r"(?s)(<!-- table: ([\w ]+) -->\n).*?(<!-- end of table -->)")
BLOCK = re.compile(r"(?s)(<!-- results: .*? -->\n).*?(<!-- end of results -->)")
START = """# All figures

<!-- written by `python tools/figures_page.py`; do not edit -->

{count} of the {total} figures and tables of the five papers have a result at the paper's scale.
`looped list figures` shows the same, and [Figures](figures.md) says what the scales and verdicts
mean.

A name such as `chen24` is the first author and the year of a paper; [The papers](papers.md) has one
page for each. The columns mean:

- *figure*: a name that is a link leads to our drawing of the figure.
- *claims*: how many of the paper's statements about the figure hold in our measurement, and how
  many fail.
- *scale*: the largest scale at which the figure was measured with today's settings. Claims of
  papers are judged at `paper` scale; `cpu` scale gives a preview.
- *seeds*: how many models were trained for each cell of the figure (`chen24.fig1`: trials).
- *training*: how long all models behind the figure were trained, some of which other figures show
  too; "?" where the result does not say. Trainings that shared a GPU count for their part of it.
- *still needed*: what is missing for a result at the paper's scale. Minutes are predicted for
  {device}, one training at a time, from trainings of similar size; "?" where there is none.
  A training that several figures lack counts for each. "At home" means that trainings are done and
  the figure is still to be measured.
- *of*, *in print*: what a number is about, and the number in the paper.
- *ours*: our number for the same: the mean, with the range over seeds in brackets; with one seed, a
  90% interval over prompts.
"""


def facts_of(results: Path) -> list[FigureFacts]:
    """Where every figure stands by what is tracked: the folder of runs is none."""
    return figure_facts([results], runs=results / "runs")


def page(facts: Sequence[FigureFacts]) -> str:
    """The page as Markdown."""
    count, total = at_paper_scale(facts)
    device = next((fact.needs.device for fact in facts if fact.needs), "a GPU")
    parts = [START.format(count=count, total=total, device=device)]
    for paper, group in groupby(facts, key=lambda fact: fact.name.partition(".")[0] if fact.in_print else ""):
        chosen = list(group)
        parts.append(f"## {paper or 'Studies beside the papers'}\n")
        heads = ("figure", "what", "scale", "claims", "seeds", "training", "still needed")
        parts.append(markdown(heads, _lines(chosen)))
        if numbers := [
            (fact.name, entry.what, entry.number, entry.ours or "-", fact.scale_text)
            for fact in chosen
            for entry in fact.published
        ]:
            parts.append("Numbers printed in the paper, beside ours:\n")
            parts.append(markdown(("figure", "of", "in print", "ours", "scale"), numbers))
    return "\n".join(parts)


def readme(text: str, facts: Sequence[FigureFacts]) -> str:
    """README with its table of results made again."""
    return BLOCK.sub(lambda hit: f"{hit[1]}\n{results_table(facts)}\n{hit[2]}", text)


def results_table(facts: Sequence[FigureFacts]) -> str:
    """A row for each paper: figures and claims at the paper's scale, theorems, and a number in print beside ours."""
    papers = [name.partition(".")[0] for name in theorems()]
    rows = []
    for paper, group in groupby(sorted(facts, key=_paper), key=_paper):
        chosen = list(group)
        if not any(fact.in_print for fact in chosen):
            continue  # studies of our own, of no paper
        judged = [fact for fact in chosen if fact.scale == "paper"]
        counts = Counter({verdict: sum(fact.verdicts[verdict] for fact in judged) for verdict in VERDICTS})
        counts["not run"] += sum(sum(fact.verdicts.values()) for fact in chosen if fact not in judged)
        numbers = [
            f"{_in_words(fact.name)}, {entry.what}: {entry.number} in print, {entry.ours} here"
            for fact in judged
            for entry in fact.published
            if entry.ours
        ]
        measured = "{} of {}".format(*at_paper_scale(chosen))
        link = f"[{paper}](docs/papers/{paper}.md)"
        rows.append((link, measured, counts_text(counts), str(papers.count(paper) or "-"), (*numbers, "-")[0]))
    return markdown(("paper", "figures at the paper's scale", "claims", "theorems checked", "for example"), rows)


def predictors(text: str, results: Path) -> str:
    """The page of the predictors with its comparisons made again."""
    return COMPARED.sub(lambda hit: f"{hit[1]}\n{compared(results / hit[2], hit[3])}\n{hit[4]}", text)


def compared(file: Path, shown: str) -> str:
    """A row for each predictor, best first, ours above them; `shown`: `R2`, which is 1 - loss, or `loss`."""
    table = Table.from_data(json.loads(file.read_text())["table"])
    losses = {series.cell["model"]: series for series in table.where("loss")}
    ours = next(model for model, series in losses.items() if series.seed is not None)
    numbers = {
        model: [1 - value if shown == "R2" else value for value in series.value] for model, series in losses.items()
    }
    others = sorted(set(losses) - {ours}, key=lambda model: (-1 if shown == "R2" else 1) * sum(numbers[model]))
    rows = [(model, *(f"{value:.3f}" for value in numbers[model])) for model in (ours, *others)]
    [margin] = table.where("margin").series
    ahead = [f"{low:.3f} to {high:.3f}" for low, high in zip(margin.low, margin.high, strict=True)]
    [best_on] = table.where("best_on", model=ours).series
    rows.append(("ahead of the best of the others, 90% interval over splits", *ahead))
    rows.append(("share of tables where ours is the best of all", *(f"{value:.0%}" for value in best_on.value)))
    rows.extend(
        ("labels inside the 90% intervals", *(f"{value:.0%}" for value in coverage.value))
        for coverage in table.where("coverage")
    )
    return markdown(("rows to learn from", *map(str, losses[ours].x)), rows)


def tables(text: str, facts: Sequence[FigureFacts], results: Path) -> str:
    """A page with the tables between its marks `table: NAME` made again."""
    makers: dict[str, Callable[[], str]] = {
        "parts": partial(result_tables.parts, results),
        "engines": partial(result_tables.engines, results),
        "rivals": partial(result_tables.rivals, results),
        "loops of tables": partial(result_tables.loops_of_tables, results),
        **{f"published {paper}": partial(result_tables.published, facts, paper) for paper in map(_paper, facts)},
    }
    return TABLE.sub(lambda hit: f"{hit[1]}\n{makers[hit[2]]()}\n{hit[3]}", text)


def _in_words(name: str) -> str:
    """`Figure 10a` for `yang24.fig10a`."""
    return name.partition(".")[2].replace("fig", "Figure ").replace("table", "Table ").strip()


def _paper(fact: FigureFacts) -> str:
    return fact.name.partition(".")[0]


def _lines(facts: Sequence[FigureFacts]) -> Iterable[tuple[str, ...]]:
    for fact in facts:
        drawing = Path("results", "figures", f"{fact.name}.{fact.scale}.png")
        name = f"[{fact.name}](../{drawing})" if (ROOT / drawing).is_file() else fact.name
        claims = counts_text(fact.verdicts)
        yield (
            *(name, fact.title, fact.scale_text, claims, str(fact.seeds or "-"), fact.training_text),
            str(fact.needs or "-"),
        )


if __name__ == "__main__":
    known = facts_of(ROOT / "results")
    PAGE.write_text(page(known))
    README.write_text(readme(README.read_text(), known))
    PREDICTORS.write_text(predictors(PREDICTORS.read_text(), ROOT / "results"))
    for file in (ROOT / "docs").rglob("*.md"):
        if (text := file.read_text()) != (with_tables := tables(text, known, ROOT / "results")):
            file.write_text(with_tables)
