"""yang24's Table 2: the machinery on tables made here, the baseline against scikit-learn, judges that can fail."""

import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from looped.evaluation.claims import Settings
from looped.papers.yang24.table2 import PUBLISHED, correct, leave_out, logistic, measure, table2

from looped.papers.yang24 import table2 as module
from looped.prompt import Prompt
from looped.tasks.tables import OPENML, Tables


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Tables under the names of the paper: linear, with noise."""
    rng = np.random.default_rng(0)
    (tmp_path / "openml").mkdir()
    for name in OPENML[:2]:
        features = rng.normal(size=(60, 4))
        labels = features @ rng.normal(size=4) + 0.5 * rng.normal(size=60) > 0
        rows = [",".join([*map(repr, map(float, row)), str(int(y))]) for row, y in zip(features, labels, strict=True)]
        text = "\n".join(["a,b,c,d,label", *rows])
        (tmp_path / "openml" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    return tmp_path


def run_smoke(folder):
    heard = []
    settings = Settings(scale="smoke", progress=lambda what, share: heard.append(share), runs=folder / "runs")
    data = measure(table2.settings["smoke"], settings)
    assert heard == sorted(heard)
    assert 0 <= heard[0] <= heard[-1] <= 1
    return data


def test_smoke_measures_draws_and_uses_finished_runs_again(made, monkeypatch):
    from matplotlib.figure import Figure

    data = run_smoke(made)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert [row["table"] for row in data["rows"]] == list(OPENML[:2])
    for row in data["rows"]:
        for name in ("looped", "transformer", "logistic"):
            assert 0 <= row[name]["low"] <= row[name]["mean"] <= row[name]["high"] <= 1
        assert row["differences"]["logistic"]["mean"] == pytest.approx(row["looped"]["mean"] - row["logistic"]["mean"])
    assert len(list((made / "runs").iterdir())) == 4
    before = {path: path.stat().st_mtime_ns for path in (made / "runs").rglob("*.safetensors")}
    assert run_smoke(made) == data
    assert {path: path.stat().st_mtime_ns for path in (made / "runs").rglob("*.safetensors")} == before
    figure = Figure(layout="constrained")
    table2.draw(figure, data)
    assert len(figure.axes[0].get_xticks()) == 2
    assert all(one.verdict == "not judged" for one in table2.judge(data, "smoke"))


def test_smoke_runs_on_the_real_tables(data_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_DATA", str(data_folder))
    rows = run_smoke(tmp_path)["rows"]
    assert [row["table"] for row in rows] == list(OPENML[:2])


def test_strength_is_chosen_on_the_other_tables_only(made, monkeypatch):
    """Each table prefers its own strength here; the one used must be the other table's."""
    own = {OPENML[0]: 0.1, OPENML[1]: 10.0}

    def tuning(*_):
        return {name: [float(c == own[name]) for c in module.STRENGTHS] for name in own}

    monkeypatch.setattr(module, "_tuning", tuning)
    found = {row["table"]: row["strength"] for row in run_smoke(made)["rows"]}
    assert found == {OPENML[0]: 10.0, OPENML[1]: 0.1}


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("kind", ["looped", "transformer"])
def test_the_tested_table_is_never_trained_on(scale, kind):
    for table in OPENML:
        one = leave_out(table, scale, kind)
        assert isinstance(one.task, Tables)
        assert set(one.task.names) == set(OPENML) - {table}
        assert one.task.flip
        assert one.task.rows == "train"
        assert one.train.points * 2 <= one.model.positions


def test_paper_scale_is_the_papers():
    looped, layers = (leave_out("847_wind", "paper", kind) for kind in ("looped", "transformer"))
    assert (looped.model.loops, looped.train.window, looped.model.width, looped.model.heads) == (30, 15, 256, 8)
    assert (layers.model.layers, layers.model.loops, layers.train.depth) == (12, 1, None)
    assert set(PUBLISHED) == set(OPENML)


def test_logistic_regression_minimises_its_own_loss(generator):
    """Against the optimum found by SciPy, on prompts with padding, and the class alone where only one was seen."""
    from scipy.optimize import minimize

    xs = torch.randn(12, 15, 4, generator=generator, dtype=torch.float64)
    xs[..., 3] = 0
    noise = torch.randn(12, 15, generator=generator, dtype=torch.float64)
    prompt = Prompt(xs, (xs @ torch.tensor([1.0, -2.0, 0.5, 0.0]).double() + noise).sign())
    prompt.ys[0, :-1] = -1.0
    found = logistic(prompt, 0.7)
    assert found[0] == -1
    for index in range(1, 12):
        x, y = xs[index].numpy(), prompt.ys[index].numpy()

        def loss(w, x=x, y=y):
            return 0.7 * np.logaddexp(0, -y[:-1] * (x[:-1] @ w[:-1] + w[-1])).sum() + w[:-1] @ w[:-1] / 2

        w = minimize(loss, np.zeros(5), tol=1e-12).x
        assert found[index] == np.sign(x[-1] @ w[:-1] + w[-1])


def test_correct_reads_the_sign_at_the_last_pair():
    def predict(prompt):
        return torch.cat([-prompt.ys[:, :-1], 0.1 * prompt.xs[:, -1:, 0]], 1)

    xs = torch.zeros(300, 3, 1)
    xs[:, -1, 0] = torch.tensor([2.0, -2.0, 0.0]).repeat(100)
    ys = torch.ones(300, 3)
    assert torch.equal(correct(predict, Prompt(xs, ys)), torch.tensor([1.0, 0.0, 0.0]).double().repeat(100))


def interval(mean, half=0.02):
    return {"mean": mean, "low": mean - half, "high": mean + half}


@pytest.fixture
def good():
    """Data in which every claim holds."""
    rows = []
    for name in OPENML:
        looped = 0.5 if name == "871_pollen" else 0.7
        rows.append(
            {
                "table": name,
                "strength": 1.0,
                "looped": interval(looped),
                "transformer": interval(0.69),
                "logistic": interval(0.75),
                "differences": {"transformer": interval(0.01), "logistic": interval(looped - 0.75)},
            }
        )
    return {"rows": rows, "prompts": 100, "examples": 10}


def verdicts(data):
    return {one.id.rpartition(".")[2]: one.verdict for one in table2.judge(data, "cpu")}


def test_every_claim_can_hold_and_can_fail(good):
    assert set(verdicts(good).values()) == {"holds"}
    bad = copy.deepcopy(good)
    bad["rows"][3]["looped"] = interval(0.4)
    assert verdicts(bad)["not_below_chance"] == "fails"
    bad = copy.deepcopy(good)
    for row in bad["rows"][:5]:
        row["looped"] = interval(0.51)
    assert verdicts(bad)["learns"] == "fails"
    bad = copy.deepcopy(good)
    bad["rows"][8]["looped"] = interval(0.6)
    assert verdicts(bad)["pollen_is_noise"] == "fails"
    bad = copy.deepcopy(good)
    for row in bad["rows"]:
        row["differences"]["transformer"] = interval(-0.05)
    assert verdicts(bad)["comparable"] == "fails"


def test_what_was_not_measured_is_not_judged(good):
    for row in good["rows"]:
        del row["transformer"], row["differences"]["transformer"]
    good["rows"] = [row for row in good["rows"] if row["table"] != "871_pollen"]
    found = verdicts(good)
    assert found["comparable"] == found["pollen_is_noise"] == "not judged"


def test_the_note_is_the_table(good):
    note = next(one.note for one in table2.judge(good, "cpu") if one.id.endswith("not_below_chance"))
    for name, published in PUBLISHED.items():
        assert f"{name}: looped" in note
        assert f"published {published['looped']:g}" in note


def test_no_folder_of_this_machine_is_in_the_settings():
    assert str(Path.home()) not in json.dumps(table2.settings)
