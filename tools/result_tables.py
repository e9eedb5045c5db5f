"""The tables of docs/ that `tools/figures_page.py` makes of results: a function for each, by the name in its mark."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from looped.figure_facts import FigureFacts
from looped.files import read_json
from looped.papers.parts import COMPARED, PARTS, PLAIN, B
from looped.report.numbers import number
from looped.studies import at, curve
from looped.studies.table import Table

RIVALS = {
    "fused": "`looped`, fused",
    "graph": "`looped`, graph",
    "gpt2-compile": "GPT2Model, looped, torch.compile",
    "gpt2": "GPT2Model, looped, eager",
}
"""The engines and rivals of `looped bench` in words."""


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def parts(results: Path) -> str:
    """A row for each part of looped models: errors after b and 4b loops, and whether it helped."""
    content = read_json(results / "parts.compared.cpu.json")
    table = Table.from_data(content["table"])
    claims = {claim["id"].rpartition(".")[2]: claim for claim in content["claims"]}
    rows = []
    for part, recipe in PARTS.items():
        after_b, after_4b = (at(loops, "by_loops", part=part) for loops in (B, 4 * B))
        numbers = [quantity.value(table).mean for quantity in (after_b, after_4b, after_4b / after_b)]
        seconds = curve("seconds", part=part).value(table).mean
        ratio, verdict = "1", ""
        if part != PLAIN:
            claim = claims[recipe.__name__]
            ratio = f"{number(claim['value'])} [{number(claim['low'])}, {number(claim['high'])}]"
            verdict = {"holds": "yes", "fails": "no"}.get(claim["verdict"], claim["verdict"])
        rows.append((part, *map(number, numbers), ratio, f"{seconds:.0f}", verdict))
    heads = ("part", "error at b", "at 4b", "at 4b over at b", "error over plain's, by seed", "seconds", "it helped")
    assert len(rows) == len(COMPARED.claims) + 1
    return markdown(heads, rows)


def loops_of_tables(results: Path) -> str:
    """What the predictor for numbers explains after more and more loops, on the first split."""
    table = Table.from_data(read_json(results / "tables.development.cpu.json")["table"])
    series = table.where("loss_by_loops").series
    rows = [
        (str(curve.cell["rows"]), *(f"{1 - loss:.3f}" for loss in curve.value))
        for curve in sorted(series, key=lambda curve: curve.cell["rows"])
    ]
    return markdown(("rows to learn from", *(f"{loops:g} loops" for loops in series[0].x)), rows)


def published(facts: Sequence[FigureFacts], paper: str) -> str:
    """The numbers that a paper prints, beside ours at its scale."""
    rows = [
        (fact.name, entry.what, entry.number, entry.ours)
        for fact in facts
        for entry in fact.published
        if fact.name.partition(".")[0] == paper and fact.scale == "paper" and entry.ours
    ]
    return markdown(("figure", "of", "in print", "ours"), rows)


def engines(results: Path) -> str:
    """Milliseconds of a step by two engines, of recipes that run block by block."""
    cases = read_json(results / "bench" / "blocks.json")["cases"]
    times = {(case["recipe"], case["batch"], case["engine"]): case["ms"] for case in cases}
    rows = [
        (recipe, str(batch), number(times[recipe, batch, "graph"]), number(times[recipe, batch, "fused"]))
        for recipe, batch in dict.fromkeys(key[:2] for key in times)
    ]
    return markdown(("recipe at `paper` scale", "batch", "graph", "fused"), rows)


def rivals(results: Path) -> str:
    """Milliseconds of a step at the paper's size, ours and the rivals', all of one run."""
    cases = read_json(results / "bench" / "rivals.json")["cases"]
    times = {case["engine"]: case["ms"] for case in cases if case["batch"] == 64}
    return markdown(("what", "ms a step"), [(words, number(times[name])) for name, words in RIVALS.items()])
