"""Constructions that are ready: their weights run the algorithm that is named, and a wrong weight shows."""

from dataclasses import replace

import pytest
import torch

from looped.constructions.ready import READY


@pytest.mark.parametrize("name", READY)
def test_one_percent_in_what_the_loop_writes_shows_from_the_loop_on(name):
    construction = READY[name](3, 7, 4)
    right = construction.errors()
    state = construction.model.state_dict()
    written = [key for key in ("loop.0.attention.proj.weight", "heads.0.label", "heads.0.value") if key in state]
    with torch.no_grad():
        # linear attention of gatmiry24's restricted form has no value of its own: its score holds the rate
        state[written[0] if written else "heads.0.score"].mul_(1.01)
    wrong = construction.errors()
    assert wrong[-1] > 1e-4 > 100 * right.max()


def test_answers_are_compared_at_every_loop_by_the_largest_answer():
    construction = READY["chen24.thm4.2"](2, 5, 3)
    shifted = construction.expected.clone()
    shifted[1, 2, 0] += 0.5 * shifted[1].abs().max()
    assert replace(construction, expected=shifted).errors()[1] > 0.3
    assert construction.errors()[1] < 1e-14
