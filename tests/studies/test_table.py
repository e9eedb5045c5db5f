"""The table: tidy rows, and JSON that gives the same table back."""

import json
import math

import numpy as np
import pytest

from looped.studies.table import Cell, Table


def test_it_survives_json_and_infinity_is_null():
    table = Table()
    table.add(
        Cell(b=20, T=15), "by_loops", [0.5, math.inf], x=[1, 2], seed=3, low=[0.4, math.inf], high=[0.6, math.inf]
    )
    table.add(Cell(model="bound"), "parameters", 12)
    text = json.dumps(table.to_data(), allow_nan=False)
    assert "null" in text
    assert Table.from_data(json.loads(text)).to_data() == table.to_data()
    assert Table.from_data(json.loads(text)).series[0].value == (0.5, math.inf)


def test_a_file_has_seven_digits_and_is_the_same_when_written_again():
    table = Table()
    table.add({"b": 1}, "error", [math.pi, 1e-14 / 3], x=[1, 2], seed=0, draws=[[0.1, 0.2, 1 / 3], [1.0, 2.0, 3.0]])
    data = table.to_data()
    assert data[0]["value"] == [3.141593, 3.333333e-15]
    assert Table.from_data(data).to_data() == data


def test_rows_are_tidy():
    table = Table()
    table.add(Cell(b=20), "by_loops", [0.5, 0.25], x=[1, 2], seed=3, low=[0.4, 0.2], high=[0.6, 0.3])
    first = {"b": 20, "seed": 3, "quantity": "by_loops", "x": 1, "value": 0.5, "low": 0.4, "high": 0.6}
    assert next(table.rows()) == first
    assert len(list(table.rows())) == 2


def test_cells_are_chosen_by_their_labels():
    table = Table()
    for b in (20, 12):
        for seed in (0, 1):
            table.add(Cell(b=b, T=15), "by_loops", [1.0, b / 10 + seed], x=[1, 2], seed=seed)
    assert table.labels("b") == [12, 20]
    assert len(table.where("by_loops", b=12)) == 2
    assert {series.seed: series.value[-1] for series in table.where(b=12)} == {0: 1.2, 1: 2.2}
    assert Cell(b=1, T=2) == Cell(T=2, b=1)
    with pytest.raises(ValueError, match="one for each"):
        table.add(Cell(), "by_loops", [1.0], x=[1, 2])


def test_draws_are_stored_as_bytes_within_half_a_percent_of_their_range():
    numbers = np.random.default_rng(0).normal(1e-3, 1e-4, (3, 200))
    table = Table()
    table.add(Cell(b=1), "error", [1e-3] * 3, x=[1, 2, 3], seed=0, draws=numbers.tolist())
    [data] = json.loads(json.dumps(table.to_data()))
    assert len(json.dumps(data["draws"])) < 1000
    [series] = Table.from_data([data])
    spread = numbers.max(1, keepdims=True) - numbers.min(1, keepdims=True)
    assert (abs(np.array(series.draws) - numbers) / spread).max() < 0.005
    assert series.to_data() == data  # written again, nothing is lost
    # equal draws, and draws that are not finite, come back as they are
    table = Table()
    table.add(Cell(b=1), "error", [2.0, 1.0], x=[1, 2], seed=0, draws=[[2.0, 2.0], [1.0, math.inf]])
    [series] = Table.from_data(json.loads(json.dumps(table.to_data())))
    assert series.draws == ((2.0, 2.0), (1.0, math.inf))
