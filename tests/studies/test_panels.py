"""Panels of a row."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from looped.studies import Axis, Cell, Panels, Table
from looped.studies.panels import draw

ROW = Panels(y="loss", axis=Axis(x="n", y="loss", log=True), column="K", colour="h")


@pytest.mark.parametrize("share", [True, False])
def test_a_shared_axis_shows_all_of_every_panel(share):
    table = Table()
    for data, losses in {"linear": [1.0, 0.5], "exp": [4.0, 8.0]}.items():
        table.add(Cell(K=data, h="relu"), "loss", losses, x=[2, 14], seed=0)
    figure = Figure()
    draw(figure, table, [replace(ROW, share_y=share)])
    limits = [ax.get_ylim() for ax in figure.axes]
    assert (limits[0] == limits[1]) == share
    lows, highs = zip(*limits, strict=True)
    assert max(lows) <= 0.5 or not share
    assert min(highs) >= 8.0 or not share
