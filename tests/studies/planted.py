"""Tables for which a claim holds and for which it fails, searched for at random."""

import math
import random
from dataclasses import replace

from looped.studies.claims import Claim
from looped.studies.table import Series, Table

DRAWS = 400


def verdicts(claim: Claim, table: Table) -> set[str]:
    """Which of holds and fails the claim can have on tables of this form, with other numbers in the cells it reads."""
    quantities = {leaf.of for leaf in claim.check.leaves()} - {"trained_loops"}
    seen: set[str] = set()
    for draw in range(DRAWS):
        planted = Table(_other(series, draw) if series.quantity in quantities else series for series in table)
        verdicts = {condition.verdict(condition.quantity.value(planted)) for condition in claim.check.conditions}
        seen.add("fails" if "fails" in verdicts else "holds" if verdicts == {"holds"} else "undecided")
        if {"holds", "fails"} <= seen:
            break
    return seen & {"holds", "fails"}


def _other(series: Series, draw: int) -> Series:
    """The same numbers for all seeds of a cell, up or down by a factor and a slope along the axis, without spread."""
    source = random.Random(f"{draw} {series.cell} {series.quantity}")
    width = (0.05, 0.5, 3.0)[draw % 3]
    factor, slope = source.gauss(0, width), source.gauss(0, width)
    start = source.choice((1.0, 0.1)) if draw % 2 else abs(series.value[0]) or 1.0
    count = max(1, len(series.value) - 1)
    sign = source.choice((1, -1)) if min(series.value) < 0 or draw % 4 == 3 else 1
    values = tuple(sign * start * math.exp(factor + slope * index / count) for index in range(len(series.value)))
    return replace(series, value=values, low=None, high=None)
