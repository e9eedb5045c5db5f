import math
from dataclasses import replace

import numpy as np
import pytest

from looped.constructions.compiler import Limits
from looped.constructions.gao24 import cases
from looped.theorems.check import select
from looped.theorems.gao24 import limit

SMALL = cases.lemma_a2(5, 3, 20, seed=1)
DEMANDED = {"gao24.lemA.2": 1e-7, "gao24.thm4.1": 1e-6}


@pytest.mark.parametrize("name", DEMANDED)
def test_plots_show_error_against_c_over_five_decades_down_to_rounding(name):
    limited, slopes = select([name])[0]()[:2]
    assert limited.measured <= limited.bound == DEMANDED[name]
    assert "fitted slopes" in slopes.instance
    plot = limited.plot
    assert plot is not None
    assert math.log10(max(plot.x) / min(plot.x)) >= 5
    symmetric, paper = (np.array(plot.lines[line]) for line in ("measured", "the paper's heads, +c and 0"))
    assert symmetric.argmin() < len(plot.x) - 2  # rounding is seen at the smallest c
    assert symmetric[-1] > 10 * symmetric.min()
    assert symmetric.min() < paper.min() < 1e-3 * paper[0]
    # where rounding rules, both kinds of heads are as bad
    assert 0.1 < symmetric[-1] / paper[-1] < 10


def test_a_slope_is_not_fitted_to_rounding():
    exact = [c**2 for c in limit.TEMPERATURES]
    assert limit.slope(exact) == pytest.approx(2)
    rounded = [c**2 + 1e-14 / c for c in limit.TEMPERATURES]
    assert limit.slope(rounded) == pytest.approx(2, abs=0.02)
    assert math.isnan(limit.slope([0.5] * len(limit.TEMPERATURES)))


def test_a_slope_that_cannot_be_fitted_fails():
    wrong = [replace(case, expected=case.expected * 1.001) for case in (SMALL, SMALL)]
    limited, slopes = limit.in_the_limit(wrong, 1e-7)
    assert not limited.holds
    assert not slopes.holds


def test_the_papers_own_heads_stop_where_rounding_meets_c():
    """Heads at +c and 0 cannot reach Lemma A.2's 1e-7 in float64: c and rounding / c meet above it."""
    errors = [SMALL.error(Limits(temperature=c, symmetric=False)) for c in limit.TEMPERATURES]
    assert 1e-8 < min(errors) < 1e-5
