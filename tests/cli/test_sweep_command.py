"""`looped sweep`: from the command line or a file, listed, repeated, reported; bad input is one line."""

import json

import pytest

from looped.cli import main
from looped.cli.sweep import _headers, _picture
from looped.papers import yang24
from looped.training.trials import Standing, trial

TINY = ["train.steps=4", "train.batch=2", "model.width=8", "model.heads=2", "train.log_every=2"]


def run(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == code, capsys.readouterr().err
    return capsys.readouterr()


def test_a_grid_is_trained_once_listed_and_reported(capsys, tmp_path):
    command = ["sweep", "yang24.linear", "train.window=1,2", *TINY, "--seeds", 2, "--scale", "smoke"]
    command += ["--out", tmp_path / "runs", "--device", "cpu", "--prompts", 8]
    before = json.loads(run(capsys, *command, "--list", "--json").out)
    assert [row["status"] for row in before] == ["waiting"] * 4
    assert not (tmp_path / "runs").exists()
    rows = json.loads(run(capsys, *command, "--json", "--table", tmp_path / "own.parquet").out)
    assert [(row["train.window"], row["seed"], row["status"]) for row in rows] == [
        (1, 0, "finished"), (1, 1, "finished"), (2, 0, "finished"), (2, 1, "finished"),
    ]  # fmt: skip
    assert all(0 < row["loss"] < 100 for row in rows)
    assert (tmp_path / "own.parquet").is_file()
    [folder] = (tmp_path / "runs" / "sweeps").iterdir()
    assert {file.name for file in folder.iterdir()} == {
        "sweep.json",
        "table.csv",
        "table.parquet",
        "results.json",
        "errors.png",
    }
    stamps = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*.safetensors")}
    assert json.loads(run(capsys, *command, "--json").out) == rows
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*.safetensors")} == stamps
    listed = run(capsys, *command, "--list")
    assert "4 points: 4 finished" in listed.out
    assert rows[0]["hash"] in listed.out
    shown = json.loads(run(capsys, "report", folder, "--out", tmp_path / "page.html", "--json").out)
    assert (shown["runs"], shown["sweeps"]) == ([], [str(folder)])
    page = (tmp_path / "page.html").read_text()
    assert "4 points: 4 finished" in page
    assert all(row["hash"] in page for row in rows)


def test_the_table_is_whole_at_80_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    axes = ["model.loops,train.window=[4,2],[8,4]", "train.optimizer.learning_rate=0.001,0.00025", "task.noise=0,0.5"]
    asked = ["sweep", "yang24.linear", *axes, "--seeds", 2, "--scale", "smoke", "--out", tmp_path, "--list"]
    waiting = run(capsys, *asked).out
    rows = json.loads(run(capsys, *asked, "--json").out)
    for row in rows:
        [line] = [line.split() for line in waiting.splitlines() if row["hash"] in line]
        fields = ("model.loops", "train.window", "train.optimizer.learning_rate", "task.noise", "seed")
        assert [float(word) for word in line[1:6]] == [row[name] for name in fields]
        assert line[6:] == ["waiting", f"0/{row['train.steps']}"]
    assert "…" not in waiting
    assert max(map(len, waiting.splitlines())) <= 80


def test_finished_points_have_no_steps_and_fields_that_end_alike_their_whole_names():
    assert _headers(["model.loops", "train.window", "a.b.learning_rate"]) == ["loops", "window", "learning_\nrate"]
    assert _headers(["model.width", "other.width"]) == ["model.\nwidth", "other.\nwidth"]
    done = Standing(status="finished", step=5, metrics={"loss": 0.5, "error": 0.25})
    shown = [column.header for column in _picture([trial(yang24.linear("smoke"))], [done], [], 1).columns]
    assert shown == ["run", "status", "loss", "error"]


def test_a_file_names_recipe_fields_and_seeds_and_the_command_line_adds(capsys, tmp_path):
    file = tmp_path / "sweep.json"
    file.write_text(
        json.dumps({"recipe": "yang24.linear", "scale": "smoke", "grid": {"train.window": [1, 2]}, "seeds": [3, 5]})
    )
    rows = json.loads(run(capsys, "sweep", "train.batch=2,4", "--file", file, "--list", "--json").out)
    found = [(row["train.window"], row["train.batch"], row["seed"]) for row in rows]
    assert found == [(window, batch, seed) for window in (1, 2) for batch in (2, 4) for seed in (3, 5)]
    one = json.loads(run(capsys, "sweep", "--file", file, "--seed", 7, "--seeds", 1, "--list", "--json").out)
    assert {row["seed"] for row in one} == {7}


def test_points_that_do_not_finish_are_one_line_and_exit_1(capsys, tmp_path):
    said = run(
        capsys, "sweep", "yang24.linear", "train.optimizer.learning_rate=0.001,1e30", *TINY, "--scale", "smoke",
        "--out", tmp_path, "--json", "--device", "cpu", code=1,
    )  # fmt: skip
    assert [row["status"] for row in json.loads(said.out)] == ["finished", "diverged"]
    assert said.err.startswith("looped: 1 of 2 points did not finish; the first is ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep"], "say what to sweep"),
        (["sweep", "yang24.linear", "model.lops=2"], "unknown field `model.lops`"),
        (["sweep", "yang24.linear", "model.loops"], "an axis reads"),
        (["sweep", "yang24.linear", "--seeds", "0"], "`--seeds` must be at least 1"),
        (["sweep", "yang24.linear", "train.seed=1,2", "--seeds", "2"], "`train.seed` is given twice"),
        (["sweep", "yang24.linear", "--table", "a.xls"], "`--table` must end in"),
        (["sweep", "yang24.linear", "--workers", "2"], "this process is one"),
        (["sweep", "yang24.linear", "--executor", "processes", "--gpus", "1"], "for the executor ray"),
        (["sweep", "--file", "missing.json"], "there is no file missing.json."),
        (["sweep", "--file", "missing.toml"], "there is no file missing.toml."),
        (["sweep", "yang24.linear", "--executor", "cloud"], "cloud"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    said = run(capsys, *arguments, code=2)
    assert message in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_points_are_judged_on_held_out_prompts_and_fields_can_be_set(capsys, tmp_path):
    settings = [part for field in TINY for part in ("--set", field)]
    command = ["sweep", "yang24.linear", "train.window=1,2", *settings, "--seeds", 2, "--scale", "smoke"]
    command += ["--out", tmp_path / "runs", "--device", "cpu", "--prompts", 16]
    said = run(capsys, *command).out
    assert "16 held-out prompts" in said
    assert "best" in said
    [folder] = (tmp_path / "runs" / "sweeps").iterdir()
    data = json.loads((folder / "results.json").read_text())
    assert [(point["fields"], point["seeds"]) for point in data["points"]] == [
        ({"train.window": window}, [0, 1]) for window in (1, 2)
    ]
    assert (folder / "errors.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "page.html"
    assert run(capsys, "report", folder, "--out", page, "--quiet").out == ""
    assert "Errors of the points of the sweep" in page.read_text()
    error = run(capsys, *command, "--set", "train.window=2", code=2).err
    assert "`--set train.window=2` is swept as well" in error
