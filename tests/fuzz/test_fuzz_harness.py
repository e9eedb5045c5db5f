"""The harness itself: it tells an answer from a refusal, and finds what it is there to find."""

import random
import warnings

import numpy as np
import pytest
import torch

from fuzz import commands, harness
from fuzz.harness import Case, check_finite, command, run_example


def outcome(act, tmp_path):
    return run_example("planted", lambda draw, folder: Case("planted", act), 0, 0, tmp_path)


def fails():
    raise KeyError("a traceback")


def two_lines():
    raise ValueError("one\ntwo")


def one_line():
    raise ValueError("`d` must be at least 1; got 0.")


def warns():
    warnings.warn("divide by zero", RuntimeWarning, stacklevel=1)


def loops_for_ever():
    while True:
        pass


@pytest.mark.parametrize(
    ("act", "kind", "reason"),
    [
        (lambda: None, "answered", ""),
        (one_line, "refused", "`d` must be at least 1"),
        (fails, "failed", "KeyError"),
        (two_lines, "failed", "must be one line"),
        (warns, "failed", "RuntimeWarning"),
        (lambda: check_finite("it", {"a": [1.0, float("nan")]}), "failed", "a silent nan"),
        (lambda: check_finite("it", torch.tensor([1.0, -np.inf])), "failed", "a silent -inf"),
        (lambda: command(["list", "no such thing"]), "refused", "there is no list"),
        (lambda: command(["--version"]), "answered", ""),
    ],
)
def test_planted_behaviour_is_told_apart(act, kind, reason, tmp_path):
    found = outcome(act, tmp_path)
    assert found.kind == kind, found.reason
    assert reason in found.reason
    assert list(tmp_path.iterdir()) == []


def test_a_hang_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "LIMIT", 0.1)
    found = outcome(loops_for_ever, tmp_path)
    assert (found.kind, found.reason[:6]) == ("failed", "a hang")


@pytest.mark.parametrize("text", ["error nan [0, 1]", "\033[31mnan\033[0m"])
def test_a_nan_that_a_command_prints_is_found(text, monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "main", lambda arguments: (print(text), exit(0)))
    assert "a silent nan" in outcome(lambda: command(["evaluate"]), tmp_path).reason


def test_an_example_is_a_function_of_its_name(tmp_path):
    told = [commands.recipe_file(random.Random("runs 0 17"), tmp_path).told for _ in range(2)]
    assert told[0] == told[1]
