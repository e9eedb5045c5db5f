import json

from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.run import save_model

OWN = '''
from dataclasses import dataclass

import torch

import looped
from looped.papers import yang24


@dataclass(frozen=True, kw_only=True)
class LeakyConfig(looped.DecoderConfig):
    def build(self):
        return Leaky(self)


class Leaky(looped.LoopedDecoder):
    """Reads y at the token of x: its own label."""

    def embed(self, prompt):
        prompt = looped.Prompt(torch.cat((prompt.xs[..., :-1], prompt.ys[..., None]), -1), prompt.ys)
        return super().embed(prompt)


def leaky():
    base = yang24.linear("smoke")
    model = LeakyConfig(d=base.task.d, width=8, heads=2, loops=2, positions=40)
    return looped.Setup(name="leaky", task=base.task, model=model)
'''


def test_a_recipe_without_fault_exits_0(call):
    code, out, _ = call("check", "yang24.tied", "--scale", "smoke")
    assert code == 0
    lines = out.splitlines()
    assert lines[-1].startswith("0 faults in ")
    assert any(line.startswith("property prompt: ") for line in lines)
    assert {line.split()[0] for line in lines[:-1]} == {"fine", "property"}


def test_a_fault_in_a_file_of_ones_own_exits_1_with_its_remedy(call, tmp_path):
    (tmp_path / "leaky_models.py").write_text(OWN)
    code, out, error = call("check", f"{tmp_path / 'leaky_models.py'}:leaky", "--points", 7)
    assert (code, error) == (1, "")
    [fault] = [line for line in out.splitlines() if line.startswith("fault")]
    assert "own label" in fault
    code, out, _ = call("check", f"{tmp_path / 'leaky_models.py'}:leaky", "--points", 7, "--json")
    data = json.loads(out)
    assert code == 1
    assert [found["check"] for found in data["findings"] if found["verdict"] == "fault"] == ["label"]


def test_a_run_is_checked_with_its_weights(call, tmp_path, refused):
    model = DecoderConfig(d=3, width=8, heads=2, loops=2, positions=20).build()
    run = save_model(tmp_path / "run", model, LinearRegression(d=3), name="small").path
    code, out, _ = call("check", run)
    assert code == 0
    assert "about small." in out
    assert call("check", run, "--quiet") == (0, "", "")
    assert "no recipe is called" in refused("check", "yang24.none")
