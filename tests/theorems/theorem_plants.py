"""Planted failures of theorems: a change to weights, data or a model under which a row must fail.

A paper's plants lie in `plants_PAPER.py`; `test_theorem_contract.py` asks for one for every row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A change under which some rows of a theorem fail."""

    theorem: str
    """Its name."""
    rows: tuple[int, ...]
    """Which of its rows fail, counted from 0."""
    target: str
    """Dotted path of the function or attribute that is changed, such as `looped.theorems.cheng24.structure.draw`."""
    change: Callable[[Any], Any]
    """The original -> what stands in its place."""
    why: str
    """What is wrong then, in a few words."""
