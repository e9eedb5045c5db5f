"""Studies: a grid of cells, a tidy table, and claims that are expressions over it."""

from looped.studies.claims import Learned, Published, claim
from looped.studies.measures import Curves
from looped.studies.panels import Axis, Panels
from looped.studies.quantities import (
    along,
    area,
    at,
    average,
    best,
    curve,
    drift,
    gap,
    last,
    loops_to,
    mean,
    share,
    within_factor,
    worst,
)
from looped.studies.study import Context, Study
from looped.studies.table import Cell, Table

__all__ = [
    "Axis",
    "Cell",
    "Context",
    "Curves",
    "Learned",
    "Panels",
    "Published",
    "Study",
    "Table",
    "along",
    "area",
    "at",
    "average",
    "best",
    "claim",
    "curve",
    "drift",
    "gap",
    "last",
    "loops_to",
    "mean",
    "share",
    "within_factor",
    "worst",
]
