"""Figures and theorems as parts of pages: drawings as files beside the site, verdicts as tables."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from looped.figure_facts import FigureFacts, kept_result
from looped.report.drawing import adaptive, save_figure
from looped.report.numbers import number
from looped.report.plots import bound_figure
from looped.report.sections import CLAIM_VERDICTS, VERDICTS


def figures_of(paper: str, facts: Sequence[FigureFacts], results: Path, assets: Path) -> str:
    """Every figure of a paper that has a result: its drawing, numbers in print beside ours, and its claims."""
    chosen = [fact for fact in facts if fact.name.partition(".")[0] == paper]
    shown = "\n\n".join(_figure(fact, results, assets) for fact in chosen if fact.scale)
    missing = [f"| `{fact.name}` | {_text(fact.title)} | {fact.needs or '-'} |" for fact in chosen if not fact.scale]
    if not missing:
        return shown
    table = "\n".join(["| figure | what | what it needs |", "| --- | --- | --- |", *missing])
    return f"{shown}\n\n### Not measured yet\n\n{table}"


def _figure(fact: FigureFacts, results: Path, assets: Path) -> str:
    name = f"{fact.name}.{fact.scale}.svg"
    source = results / "figures" / name
    parts = [f"### {fact.name}: {fact.title} {{#{fact.name.replace('.', '-')}}}"]
    if source.is_file():
        (assets / name).write_text(adaptive(source.read_text()))
        parts.append(_image(assets / name, fact.title))
    scale = "the paper's scale" if fact.scale == "paper" else f"`{fact.scale}` scale: a preview, claims are not judged"
    trained = "" if fact.training_text == "none" else f"; training: {fact.training_text}"
    parts.append(f"Measured at {scale}; seeds or trials: {fact.seeds}{trained}.")
    if fact.published:
        rows = [f"| {_text(entry.what)} | {entry.number} | {entry.ours or '-'} |" for entry in fact.published]
        parts.append("\n".join(["| number in print | printed | ours |", "| --- | --- | --- |", *rows]))
    kept = kept_result([results], fact.name, str(fact.scale))
    if kept and kept[1]["claims"]:
        parts.append(_rows("Claim", "Spread", [_claim(claim) for claim in kept[1]["claims"]]))
    return "\n\n".join(parts)


def _claim(claim: Mapping[str, Any]) -> str:
    low, high, value = claim["low"], claim["high"], claim["value"]
    spread = f"{number(low)} to {number(high)}" if None not in (low, high) and low != high else ""
    notes = [f"Holds if: {claim['asked']}", claim["note"]]
    return _row(
        claim["id"],
        claim["statement"],
        notes,
        ("Measured", "" if value is None else number(value)),
        ("Spread", spread),
        (CLAIM_VERDICTS[claim["verdict"]], claim["verdict"]),
    )


def theorems(rows: Sequence[Mapping[str, Any]], assets: Path) -> str:
    """The rows of `looped verify --json` by paper, each with its plot."""
    papers: dict[str, list[str]] = {}
    for index, row in enumerate(rows):
        form = "" if row["form"] == "as stated" else f" <span class='soft'>{row['form']}</span>"
        bound = {True: "≥ ", False: "≤ "}[row["at_least"]] + number(row["bound"])
        papers.setdefault(row["paper"], []).append(
            _row(
                row["name"],
                row["statement"],
                [row["instance"], row["remark"]],
                ("Measured", number(row["measured"])),
                ("Bound", bound),
                (VERDICTS[row["verdict"]], row["verdict"]),
                form=form,
                picture=_plot(row, index, assets),
            )
        )
    sections = [f"## {paper}\n\n{_rows('Result', 'Bound', lines, pictures=True)}" for paper, lines in papers.items()]
    return "\n\n".join(sections)


def _plot(row: Mapping[str, Any], index: int, assets: Path) -> str:
    if not row["plot"]:
        return ""
    file = save_figure(bound_figure(row["plot"]), assets / f"theorem-{index}.svg")
    file.write_text(adaptive(file.read_text()))
    title = f"{row['name']}: {row['plot']['y_label']} by {row['plot']['x_label']}, measured and bound"
    return _image(file, title)


def _image(file: Path, title: str) -> str:
    """A drawing that is loaded when it comes into view; its size is known before, so that nothing moves then."""
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', file.read_text()[:3000])
    return (
        f'<img class="figure" src="@assets/{file.name}" alt="{html.escape(title)}" loading="lazy" '
        f'width="{float(width):.0f}" height="{float(height):.0f}" style="--drawn: {float(width):.0f}px">'
    )


def _rows(first: str, third: str, rows: Sequence[str], *, pictures: bool = False) -> str:
    heads = "".join(f"<th>{head}</th>" for head in (first, "Measured", third, "Verdict"))
    kind = "verdicts pictures" if pictures else "verdicts"
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _row(
    name: str,
    statement: str,
    notes: Sequence[str],
    second: tuple[str, str],
    third: tuple[str, str],
    verdict: tuple[str, str],
    *,
    form: str = "",
    picture: str = "",
) -> str:
    small = "".join(f"<p class='soft'>{_words(note)}</p>" for note in notes if note)
    details = f"<details><summary>what was measured, and how</summary>{small}</details>" if small else ""
    numbers = "".join(f'<td class="number" data-label="{label}">{text}</td>' for label, text in (second, third))
    return (
        f'<tr><td><code class="name">{name}</code>{form}<p>{_words(statement)}</p>{details}</td>{numbers}'
        f'<td class="is"><span class="verdict {verdict[0]}">{verdict[1]}</span></td>'
        + (f'<td class="picture">{picture}</td></tr>' if picture else "</tr>")
    )


def _words(text: str) -> str:
    """A sentence as HTML, with names in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _text(text: str) -> str:
    return text.replace("|", "\\|")
