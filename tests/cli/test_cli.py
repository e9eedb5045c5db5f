"""The commands, mostly within this process; every bad input is one line on standard error and exit 2."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from looped import Run, load
from looped.cli import app, main
from looped.files import write_json
from looped.papers import yang24

COMMANDS = [command.name for command in app.registered_commands]
SMOKE = ["yang24.linear", "--scale", "smoke", "--set", "train.steps=3", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder of the smallest recipe; tests that change one take a copy."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.raises(SystemExit) as ended:
        main(["train", *SMOKE, "--out", str(out), "--quiet"])
    assert ended.value.code == 0
    (folder,) = out.iterdir()
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / trained.name)


def published(d=3, width=8, layers=1, positions=16):
    """A state dict in the layout of yang24's program."""
    draw = torch.Generator().manual_seed(0)
    prefix = "_backbone.transformer."
    shapes = {"_read_in.weight": (width, d), "_read_in.bias": (width,), "_read_out.weight": (1, width)}
    shapes |= {"_read_out.bias": (1,), f"{prefix}wpe.weight": (positions, width)}
    shapes |= {f"{prefix}ln_f.weight": (width,), f"{prefix}ln_f.bias": (width,)}
    parts = {"attn.c_attn": (3, 1), "attn.c_proj": (1, 1), "mlp.c_fc": (4, 1), "mlp.c_proj": (1, 4)}
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{prefix}h.{layer}.{norm}.{kind}": (width,) for kind in ("weight", "bias")}
        for part, (rows, columns) in parts.items():
            shapes[f"{prefix}h.{layer}.{part}.weight"] = (rows * width, columns * width)
            shapes[f"{prefix}h.{layer}.{part}.bias"] = (rows * width,)
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


# help, version, usage


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(call, command):
    code, out, error = call(command, "--help")
    assert (code, error) == (0, "")
    assert f"Example: looped {command}" in " ".join(out.split())
    assert "--json" in out
    assert "--quiet" in out


def test_help_and_version(call):
    code, out, _ = call("--help")
    assert code == 0
    assert {"demo", "list", "train", "import", "evaluate", "verify", "report"} <= set(COMMANDS)
    assert all(command in out for command in COMMANDS)
    code, out, _ = call("--version")
    assert (code, out.split()[0]) == (0, "looped")


def test_no_command_shows_the_help(call):
    code, out, error = call()
    assert code == 2
    assert "Commands" in out + error
    assert "looped: " not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainn"], "trainn"),
        (["train", "--stpes", "3"], "--stpes"),
        (["train", "yang24.linear", "extra"], "extra"),
        (["--wrong"], "--wrong"),
        (["evaluate"], "Missing argument"),
        (["train", "yang24.linear", "--seed", "one"], "--seed"),
        (["import", "file.pt", "--out", "x"], "--heads"),
        (["import", "file.pt", "--heads", "8"], "--out"),
        (["import", "file.pt", "--out", "x", "--heads", "8", "--inject", "divide"], "divide"),
    ],
)
def test_a_wrong_command_line_is_one_line(refused, arguments, message):
    error = refused(*arguments)
    assert message in error
    assert "looped --help" in error


# what succeeds


def test_train_prints_one_json_document(call, tmp_path):
    code, out, error = call("train", *SMOKE, "--seed", 1, "--out", tmp_path, "--json")
    assert (code, error) == (0, "")
    told = json.loads(out)
    assert told.keys() >= {"run", "name", "step", "loss", "error", "parameters", "train_seconds"}
    assert (told["name"], told["step"]) == ("yang24.linear", 3)
    run = Run.open(told["run"])
    assert run.experiment.train.seed == 1
    assert run.experiment.train.steps == 3
    again = json.loads(call("train", *SMOKE, "--seed", 1, "--out", tmp_path, "--json")[1])
    assert again == told


def test_results_go_to_standard_output_and_progress_to_standard_error(call, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    code, out, error = call("train", *SMOKE, "--out", tmp_path)
    (folder,) = tmp_path.iterdir()
    assert code == 0
    assert out.startswith(f"{folder}: loss ")
    assert out.endswith("after 3 steps.\n")
    assert "looped evaluate" in error
    assert "3/3" in error
    code, out, error = call("evaluate", folder, "--prompts", 4)
    assert code == 0
    assert "least squares" in out
    assert all(len(line) > 80 for line in out.splitlines() if "averaging" in line), "a table in a file is not wrapped"
    assert error.startswith("Saved in ")
    for arguments in (["train", *SMOKE, "--out", tmp_path], ["evaluate", folder, "--prompts", 4]):
        assert call(*arguments, "--quiet") == (0, "", "")


def test_several_seeds_are_several_runs(call, tmp_path):
    code, out, _ = call("train", *SMOKE, "--seed", 4, "--seeds", 2, "--out", tmp_path, "--json")
    assert code == 0
    assert [Run.open(one["run"]).experiment.train.seed for one in json.loads(out)] == [4, 5]


def test_start_takes_the_weights_of_another_run(call, trained, tmp_path):
    code, out, _ = call("train", *SMOKE, "--start", trained, "--out", tmp_path, "--json")
    assert code == 0
    assert Run.open(json.loads(out)["run"]).experiment.train.start == str(trained)


@pytest.mark.parametrize("kind", [None, "recipes", "tasks", "shifts", "architectures", "models", "theorems"])
def test_list_prints_names_with_a_line_each(call, kind):
    arguments = [] if kind is None else [kind]
    code, out, error = call("list", *arguments, "--json")
    assert (code, error) == (0, "")
    told = json.loads(out)
    assert set(told) == {kind} if kind else set(told) >= {"recipes", "tasks", "architectures", "models", "theorems"}
    assert all(line for entries in told.values() for line in entries.values())
    if kind == "recipes":
        names = {f"yang24.{name}" for name in ("linear", "linear_12_layers", "sparse", "tied")}
        assert names <= told["recipes"].keys()
        assert call("list", kind, "--quiet")[1].split()[1:] == list(told["recipes"])


def test_evaluate_prints_one_json_document_and_saves_it(call, folder):
    code, out, error = call("evaluate", folder, "--prompts", 8, "--json")
    assert (code, error) == (0, "")
    told = json.loads(out)
    assert told["name"] == "as trained, 8 prompts"
    assert [curve["label"] for curve in told["by_examples"]][1:] == ["least squares", "averaging"]
    assert told["by_loops"]["x"] == list(range(1, 17))
    assert json.loads(Path(told["saved"]).read_text())["prompts"] == 8


def test_evaluate_on_other_tasks(call, folder):
    def told(*arguments):
        code, out, error = call("evaluate", folder, "--prompts", 8, "--json", *arguments)
        assert (code, error) == (0, "")
        return json.loads(out)

    noisy = told("--set", "task.noise=1")
    assert noisy["task"] == "LinearRegression(d=3, noise=1.0)"
    assert "ridge (optimal)" in [curve["label"] for curve in noisy["by_examples"]]
    sparse = told("--task", "yang24.sparse", "--scale", "smoke", "--set", "task.nonzero=2")
    assert sparse["task"] == "SparseRegression(d=3, noise=0.0, nonzero=2)"
    sized = told("--points", 5, "--loops", 7, "--max-loops", 9, "--name", "sized", "--seed", 3)
    assert (sized["loops"], sized["name"]) == (7, "sized")
    assert len(sized["by_loops"]["x"]) == 9
    assert len(sized["by_examples"][0]["x"]) == 5
    assert len(list((folder / "evaluations").iterdir())) == 3


def test_another_evaluation_does_not_replace_the_usual_one(call, folder, refused, tmp_path):
    def name(*arguments):
        code, out, _ = call("evaluate", folder, "--json", *arguments)
        assert code == 0
        return json.loads(out)["name"]

    trained = Run.open(folder).experiment
    points, loops = trained.train.points, trained.model.loops
    usual = ("--points", points, "--loops", loops, "--max-loops", 4 * loops, "--prompts", 1280, "--seed", 0)
    assert name() == name(*usual) == "as trained"
    sizes = ("--points", 5, "--loops", 7, "--max-loops", 9, "--prompts", 8, "--seed", 3)
    assert name(*sizes) == "as trained, 5 points, 7 loops, up to 9 loops, 8 prompts, seed 3"
    assert name("--prompts", 8, "--set", "task.noise=1") == "task.noise=1, 8 prompts"
    files = sorted((folder / "evaluations").iterdir())
    assert [json.loads(file.read_text())["prompts"] for file in files] == [1280, 8, 8]
    assert "an evaluation needs a `name`" in refused("evaluate", folder, "--prompts", 8, "--name", "")
    assert "`--scale` is that of the recipe in `--task`" in refused("evaluate", folder, "--scale", "cpu")
    assert sorted((folder / "evaluations").iterdir()) == files
    assert call("report", folder, "--out", tmp_path / "page.html", "--quiet")[0] == 0
    assert "as trained, 5 points" in (tmp_path / "page.html").read_text()


def test_errors_that_are_not_finite_are_null_in_json(call, folder):
    run = Run.open(folder)
    latest = run.latest()
    latest.tensors["model/read_out.weight"].fill_(1e38)
    run.save(latest)
    code, out, _ = call("evaluate", folder, "--prompts", 4, "--json")
    assert code == 0
    assert json.loads(out)["by_loops"]["mean"][0] is None


def test_report_over_runs(call, folder, tmp_path):
    call("evaluate", folder, "--prompts", 8, "--quiet")
    code, out, error = call("report", tmp_path, "--out", tmp_path / "page.html", "--json")
    assert (code, error) == (0, "")
    page = str(tmp_path / "page.html")
    assert json.loads(out) == {"report": page, "runs": [str(folder)], "runs_left_out": 0, "sweeps": []}
    assert "<html" in (tmp_path / "page.html").read_text()


def test_verify_exits_by_verdict_and_prints_rows(call):
    code, out, error = call("verify", "gatmiry24.lem3", "--json")
    assert (code, error) == (0, "")
    first = json.loads(out)[0]
    assert first["name"] == "gatmiry24.lem3"
    _, table, _ = call("verify", "gatmiry24.lem3")
    assert all(word in table for word in first["statement"].split()[:6])  # and which side of the bound it asks for
    assert (">=" if first["at_least"] else "<=") in table


@pytest.mark.parametrize("nested", [None, "model", "model_state_dict"])
def test_import_makes_a_run_that_predicts(call, tmp_path, nested, generator):
    state = published()
    torch.save(state if nested is None else {nested: state, "step": 3}, tmp_path / "state.pt")
    out = tmp_path / "run"
    code, told, error = call("import", tmp_path / "state.pt", "--out", out, "--heads", 2, "--json")
    assert (code, error) == (0, "")
    assert "20 loops" in json.loads(told)["taken_as"]
    model = load(out)
    prompt = yang24.linear("smoke").task.sample(batch=2, n=4, generator=generator)
    assert model.predict(prompt, loops=5).shape == (2, 4)
    assert call("evaluate", out, "--prompts", 4, "--loops", 2, "--max-loops", 3, "--quiet")[0] == 0


def test_import_says_how_the_file_was_taken(call, tmp_path):
    torch.save(published(layers=2), tmp_path / "state.pt")
    file = tmp_path / "state.pt"
    _, out, _ = call("import", file, "--out", tmp_path / "a", "--heads", 2)
    assert "unlooped, 2 layer(s)" in out
    _, out, _ = call("import", file, "--out", tmp_path / "b", "--heads", 2, "--loops", 3, "--inject", "none")
    assert "3 loops of 2 layer(s), injection none" in out
    assert load(tmp_path / "b").config.inject == "none"


@pytest.mark.parametrize("command", ["evaluate", "diagnose", "identify"])
def test_the_best_weights_can_be_judged_instead_of_the_last(call, tmp_path, command):
    often = ("--set", "train.checkpoint_every=1", "--set", "train.log_every=1", "--set", "train.keep_checkpoints=3")
    assert call("train", *SMOKE, *often, "--out", tmp_path / "runs", "--quiet")[0] == 0
    [run] = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, loss in zip(lines, (0.5, 0.1, 0.9), strict=True):
        line["loss"] = loss
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    few = ("--loops", 1, "--max-steps", 1) if command == "identify" else ()
    judge = (command, run, "--prompts", 8, *few, "--device", "cpu", "--json")
    found = {step: json.loads(call(*judge, *options)[1]) for step, options in {2: ["--best"], 3: []}.items()}
    told = ("name", "saved", "weights", "run")
    (run / "checkpoints" / "step-00000003.safetensors").unlink()  # now the second step's are the last
    alone = json.loads(call(*judge)[1])
    best, last, alone = (
        [number for key in one if key not in told for number in numbers(one[key])]
        for one in (found[2], found[3], alone)
    )
    assert alone == pytest.approx(best, rel=1e-6, nan_ok=True)
    assert last != pytest.approx(best, rel=1e-6, nan_ok=True)


def test_best_weights_are_refused_where_no_loss_was_logged(call, refused, tmp_path):
    where = ("--out", tmp_path / "run", "--d", 2, "--examples", 6, "--loops", 2)
    assert call("construct", "gatmiry24.thm5", *where, "--quiet")[0] == 0
    for command in ("evaluate", "diagnose", "identify"):
        assert "has none" in refused(command, tmp_path / "run", "--best", "--prompts", 8, "--device", "cpu")


def numbers(data):
    """Every number in JSON data, in order."""
    if isinstance(data, (dict, list)):
        return [one for part in (data.values() if isinstance(data, dict) else data) for one in numbers(part)]
    return [data] if type(data) in (int, float) else []


# what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["yang24.linearr"], "no recipe is called `yang24.linearr`. Did you mean `yang24.linear`?"),
        (["zzz"], "no recipe is called `zzz`. Valid: "),
        ([*SMOKE, "--set", "train.stepz=3"], "unknown field `train.stepz`. Did you mean `steps`?"),
        ([*SMOKE, "--set", "train.window=25"], "`window` must be in [1, loops=4]; got 25."),
        ([*SMOKE, "--set", "train.grad=5"], "`grad` must be in [1, loops=4]; got 5."),
        ([*SMOKE, "--set", "task.d=0", "--set", "model.d=0"], "`d` must be at least 1; got 0."),
        ([*SMOKE, "--set", "task.d=4"], "`task.d` and `model.d` must agree; got 4 and 3."),
        ([*SMOKE, "--set", "train.steps=many"], "`train.steps` must be int; got 'many'."),
        ([*SMOKE, "--set", "train.steps"], "an override reads `field=value`"),
        ([*SMOKE, "--set", "task.type=os:system"], "names code outside looped"),
        ([*SMOKE, "--set", "train=null"], "`train` must be an object with the fields of TrainConfig; got None."),
        ([*SMOKE, "--seeds", "0"], "`--seeds` must be at least 1; got 0."),
        ([*SMOKE, "--start", "nowhere"], "there is no run folder nowhere"),
        ([*SMOKE[:-1], "tpu"], "`--device` must be cpu, cuda or auto; got `tpu`."),
        (["yang24.linear", "--scale", "smok"], "Did you mean `smoke`?"),
        ([], "say what to train"),
        (["yang24.linear", "--resume", "x"], "say what to train"),
        (["--resume", "nowhere"], "nowhere is not a run folder"),
        (["--resume", "nowhere", "--seed", "1"], "a resumed run keeps its config"),
    ],
)
def test_train_refuses(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", *arguments, "--out", tmp_path / "runs")


def test_a_refused_training_leaves_no_folder(refused, tmp_path):
    assert "needs a GPU" in refused("train", *SMOKE, "--engine", "fused", "--out", tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    refused("train", *SMOKE, "--engine", "fused", "--out", tmp_path / "mine" / "new" / "deep")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_prompts_too_long_for_the_model_are_refused(refused, tmp_path):
    assert "at most 8 examples" in refused("train", *SMOKE, "--set", "train.points=50", "--out", tmp_path)


def damage(folder, how):
    (latest,) = (folder / "checkpoints").iterdir()
    whole = latest.read_bytes()
    latest.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "corrupt": whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:],
            "pickle": pickle.dumps({"model": [1, 2, 3]}),
            "empty": b"",
            "text": b"not a checkpoint",
        }[how]
    )


@pytest.mark.parametrize("how", ["truncated", "corrupt", "pickle", "empty", "text"])
def test_a_damaged_checkpoint_is_refused(refused, folder, how):
    damage(folder, how)
    for arguments in (["evaluate", folder], ["train", "--resume", folder], ["train", *SMOKE, "--out", folder.parent]):
        assert "step-00000003.safetensors is" in refused(*arguments)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', "\x00", '{"format": 1, "task": 3}'])
def test_a_damaged_config_is_refused(refused, folder, content):
    (folder / "config.json").write_text(content)
    for arguments in (["evaluate", folder], ["train", "--resume", folder], ["report", folder]):
        refused(*arguments)


def test_a_config_of_a_newer_version_is_refused(refused, folder):
    data = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**data, "format": 99, "new_field": True})
    for arguments in (["evaluate", folder], ["train", "--resume", folder], ["report", folder]):
        assert "newer looped (format 99;" in refused(*arguments)


def test_a_config_that_names_other_code_is_refused(refused, folder):
    data = json.loads((folder / "config.json").read_text())
    data["task"]["type"] = "os:system"
    write_json(folder / "config.json", data)
    assert "names code outside looped, `os:system`" in refused("evaluate", folder)


@pytest.mark.parametrize("command", [["evaluate"], ["train", "--resume"]])
def test_a_folder_that_is_no_run_is_refused(refused, tmp_path, command):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        assert "is not a run folder" in refused(*command, path)


def test_a_run_without_a_checkpoint_is_refused(refused, folder):
    shutil.rmtree(folder / "checkpoints")
    assert "has no checkpoint" in refused("evaluate", folder)


def test_an_unwritable_output_is_refused(refused, folder, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    torch.save(published(), tmp_path / "state.pt")
    below = file / "below"
    refused("train", *SMOKE, "--out", below)
    refused("train", *SMOKE, "--out", below, "--json")
    refused("import", tmp_path / "state.pt", "--out", below, "--heads", 2)
    refused("report", folder, "--out", below / "page.html")
    (folder / "evaluations").write_text("")
    refused("evaluate", folder, "--prompts", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "task.d=4"], "this model reads x of dimension 3; got 4"),
        (["--task", "yang24.sparse", "--scale", "cpu"], "this model reads x of dimension 3; got 5"),
        (["--set", "train.steps=3"], "evaluation can change the task only"),
        (["--set", "task.nosie=1"], "Did you mean `noise`?"),
        (["--task", "yang24.spars"], "Did you mean `yang24.sparse`?"),
        (["--points", "50"], "at most 8 examples"),
        (["--points", "0"], "`--points` must be at least 1"),
        (["--prompts", "1"], "`prompts` must be at least 2"),
        (["--loops", "0"], "`loops` must be at least 1; got 0"),
        (["--loops", "-3"], "`loops` must be at least 1; got -3"),
        (["--loops", "9", "--max-loops", "8"], "`max_loops` must be at least loops=9"),
        (["--name", " "], "needs a `name`"),
        (["--device", "tpu"], "`--device` must be cpu, cuda or auto"),
        (["--code", "none.py"], "none.py is not a file"),
    ],
)
def test_evaluate_refuses(refused, trained, arguments, message):
    assert message in refused("evaluate", trained, "--prompts", 4, *arguments)


def import_cases():
    state = published()
    missing = {name: value for name, value in state.items() if "ln_f" not in name}
    return {
        "nan": ({**state, "_read_in.bias": torch.full((8,), torch.nan)}, "not finite, in `_read_in.bias`"),
        "missing": (missing, "does not hold a decoder"),
        "foreign": ({"weight": torch.zeros(2)}, "no `_read_in.weight`"),
        "no state dict": ([1, 2], "holds no state dict"),
        "a whole model": (torch.nn.Linear(2, 2), "will not be unpickled"),
    }


@pytest.mark.parametrize("case", import_cases())
def test_import_refuses_what_is_no_checkpoint(refused, tmp_path, case):
    content, message = import_cases()[case]
    torch.save(content, tmp_path / "state.pt")
    assert message in refused("import", tmp_path / "state.pt", "--out", tmp_path / "run", "--heads", 2)
    assert not (tmp_path / "run").exists()


def test_import_refuses_other_files(refused, folder, tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"a": 1}))
    (latest,) = (folder / "checkpoints").iterdir()
    for file in (tmp_path / "text.pt", tmp_path / "pickle.pt", tmp_path / "none.pt", tmp_path, latest):
        refused("import", file, "--out", tmp_path / "out", "--heads", 2)
    torch.save(published(), tmp_path / "state.pt")
    for heads in (0, 3, -1):
        refused("import", tmp_path / "state.pt", "--out", tmp_path / "out", "--heads", heads)
    error = refused("import", tmp_path / "state.pt", "--out", folder, "--heads", 2)
    assert "holds another experiment" in error


def test_an_imported_run_cannot_be_resumed(call, refused, tmp_path):
    torch.save(published(), tmp_path / "state.pt")
    assert call("import", tmp_path / "state.pt", "--out", tmp_path / "run", "--heads", 2, "--quiet") == (0, "", "")
    assert "nothing to train" in refused("train", "--resume", tmp_path / "run")


def test_list_verify_and_report_refuse(refused, tmp_path):
    assert "Did you mean `recipes`?" in refused("list", "recipe")
    assert "nearest is `gatmiry24.thm2" in refused("verify", "gatmiry24.thm22")
    assert "is not a run folder" in refused("report", tmp_path / "nowhere")
    (tmp_path / "rows.json").write_text("{")
    assert "cannot be read as JSON" in refused("report", tmp_path, "--theorems", tmp_path / "rows.json")


def test_a_run_that_diverges_exits_1(call, tmp_path):
    rate = ["--set", 'train.optimizer={"type": "Adam", "learning_rate": 1e38}']
    code, out, error = call("train", *SMOKE, *rate, "--set", "train.checkpoint_every=1", "--out", tmp_path, "--json")
    assert (code, out) == (1, "")
    assert error.startswith("looped: the ")
    assert "not finite" in error
    assert error.count("\n") == 1


# real processes


def process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "looped", *map(str, arguments)], capture_output=True, text=True, **options
    )


def test_a_real_process_trains_under_the_same_name(tmp_path, trained):
    done = process("train", *SMOKE, "--out", tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["run"] == str(tmp_path / trained.name)
    for name, value in Run.open(trained).latest().part("model").items():
        torch.testing.assert_close(Run.open(told["run"]).latest().part("model")[name], value, rtol=1e-4, atol=1e-5)


def test_a_real_process_refuses_in_one_line():
    done = process("train", "yang24.linearr")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "looped: no recipe is called `yang24.linearr`. Did you mean `yang24.linear`?\n"
