"""Sweeps: trials and their files, every executor, stopped and killed and continued, the table."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from tiny import tiny

from looped.experiment import Adam
from looped.files import locked
from looped.papers import yang24
from looped.tasks.regression import SparseRegression
from looped.training import executors
from looped.training.executors import Executor
from looped.training.folder import checkpoint_path, read_checkpoint
from looped.training.processes import Processes
from looped.training.stopping import Interrupted
from looped.training.sweep import read_sweep, save_sweep, save_tables, sweep, sweep_folders, table, write_table
from looped.training.trainer import Diverged, train
from looped.training.trials import Standing, last_metrics, read_axes, read_file, standing, trial, trials
from looped.training.worker import job_of, work

BASE = tiny("swept", loops=3, steps=12, batch=3, points=4, log_every=2, checkpoint_every=4)
pytestmark = pytest.mark.xdist_group("sweep")  # one sweep of processes for all
GRID = {"model.loops": [2, 3]}


def asked(out, **more):
    return trials(BASE, GRID, seeds=range(2), out=out, **more)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def same_files(one, other):
    for file in (f"checkpoints/step-{one.steps:08d}.safetensors", "metrics.jsonl"):
        assert (one.path / file).read_bytes() == (other.path / file).read_bytes(), file


# -- trials


def test_a_grid_is_every_combination_once_with_the_folder_that_train_would_make(tmp_path):
    axes = {"model.loops": [2, 3, 2], "task": [SparseRegression(d=2, nonzero=1)]}
    found = trials(BASE, axes, seeds=[0, 5], out=tmp_path)
    loops_and_seeds = [(one.experiment.model.loops, one.experiment.train.seed) for one in found]
    assert loops_and_seeds == [(2, 0), (2, 5), (3, 0), (3, 5)]
    assert all(isinstance(one.experiment.task, SparseRegression) for one in found)
    assert [one.path for one in found] == [tmp_path / f"swept-{one.experiment.hash}" for one in found]
    assert found[0].path == train(found[0].experiment, out=tmp_path).path
    assert found[3].fields["model.loops"] == 3
    assert found[3].fields["train.seed"] == 5


def test_fields_that_vary_together_and_sets_of_fields():
    found = trials(
        BASE, {"model.loops,train.window": [[2, 1], [3, 3]]}, field_sets=[{"train.batch": 2}, {"train.batch": 4}]
    )
    made = [(one.experiment.train.batch, one.experiment.model.loops, one.experiment.train.window) for one in found]
    assert made == [(2, 2, 1), (2, 3, 3), (4, 2, 1), (4, 3, 3)]


def test_what_is_refused_names_the_point_or_is_left_out():
    with pytest.raises(ValueError, match=r"`window` must be in .*model.loops=2 train.window=3.*--skip-invalid"):
        trials(BASE, {"model.loops": [2, 3], "train.window": [1, 3]})
    found = trials(BASE, {"model.loops": [2, 3], "train.window": [1, 3]}, skip_invalid=True)
    assert [(one.experiment.model.loops, one.experiment.train.window) for one in found] == [(2, 1), (3, 1), (3, 3)]
    with pytest.raises(ValueError, match="no trial of this sweep can be trained"):
        trials(BASE, {"train.window": [9]}, skip_invalid=True)
    twice = "is given twice; give it once"
    for grid, more, message in (
        ({"model.lops": [1]}, {}, "Did you mean `loops`"),
        ({"model.loops": []}, {}, "one or more values"),
        ({"model.loops": "23"}, {}, "one or more values"),
        ({"model.loops,train.window": [3]}, {}, "a list of 2"),
        ({"model.loops": [2, 3], "train.steps,model.loops": [[3, 2]]}, {}, twice),
        ({"train.seed": [0, 1]}, {"seeds": [7]}, twice),
        ({}, {"field_sets": [{"train.seed": 5}], "seeds": [0, 1]}, twice),
        ({"model.loops": [2]}, {"field_sets": [{"model.loops": 3}]}, twice),
    ):
        with pytest.raises(ValueError, match=message):
            trials(BASE, grid, **more)


def test_axes_are_typed_with_commas_outside_brackets_and_quotes():
    assert read_axes(["a.b=1,2.5,None", 'c={"x": [1,2], "s": "a,\\"b"},null', "d,e=[1,2],[3,4]", "f=x"]) == {
        "a.b": [1, 2.5, None],
        "c": [{"x": [1, 2], "s": 'a,"b'}, None],
        "d,e": [[1, 2], [3, 4]],
        "f": ["x"],
    }
    for wrong, message in ((["a"], "an axis reads"), (["=1"], "an axis reads"), (["a=1", "a=2"], "given twice")):
        with pytest.raises(ValueError, match=message):
            read_axes(wrong)


def test_a_file_says_the_same_as_json_or_toml(tmp_path):
    data = {"recipe": "yang24.linear", "grid": {"model.loops": [2, 3]}, "points": [{"train.batch": 2}], "seeds": [1, 4]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    (tmp_path / "a.toml").write_text(
        'recipe = "yang24.linear"\nseeds = [1, 4]\npoints = [{"train.batch" = 2}]\n[grid]\n"model.loops" = [2, 3]\n'
    )
    assert read_file(tmp_path / "a.json") == read_file(tmp_path / "a.toml") == data


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "cannot be read as JSON"),
        ("a.toml", "= 3", "cannot be read as TOML"),
        ("a.yaml", "a: 1", r"\.json or \.toml"),
        ("a.json", "[1]", "must hold some of recipe"),
        ("a.json", '{"grids": {}}', "must hold some of recipe"),
        ("a.json", '{"seeds": "3"}', "wrong type"),
        ("a.json", '{"grid": {"model.loops": 3}}', "a list of values for each field"),
        ("a.json", '{"points": [3]}', "a list of values for each field"),
        ("a.json", '{"seeds": [1.5]}', "a number of seeds or a list"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_file(tmp_path / name)


def test_a_standing_is_read_from_the_folder_and_a_torn_end_does_not_count(tmp_path):
    one = asked(tmp_path)[0]
    assert standing(one.path) == Standing()
    train(one.experiment, out=tmp_path)
    found = standing(one.path)
    assert (found.status, found.step, found.metrics["step"]) == ("finished", 12, 12)
    last = checkpoint_path(one.path, 12)
    last.write_bytes(last.read_bytes()[:-1])
    assert standing(one.path).status == "stopped"
    (one.path / "metrics.jsonl").write_text('{"step": 2}\n{"step"')
    assert last_metrics(one.path) == {"step": 2}


# -- executors


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """Four trials trained by two local processes."""
    made = asked(tmp_path_factory.mktemp("processes"))
    stands = sweep(made, Executor(kind="processes", workers=2, threads=1))
    assert [one.status for one in stands] == ["finished"] * 4, stands
    return made


def test_processes_give_what_training_alone_gives_bit_for_bit(by_processes, tmp_path):
    for one in by_processes:
        train(one.experiment, out=tmp_path)
        same_files(one, trial(one.experiment, tmp_path))
        facts = json.loads((one.path / "provenance.json").read_text())
        assert facts["threads"] == 1
        assert facts["models_in_one_batch"] == 1


def test_finished_points_are_not_touched_and_new_ones_are_trained(by_processes, tmp_path):
    out = by_processes[0].path.parent
    before = stamps(out)
    assert [one.status for one in sweep(by_processes, Executor(kind="processes", workers=1))] == ["finished"] * 4
    assert [one.status for one in sweep(by_processes)] == ["finished"] * 4
    assert stamps(out) == before


def test_the_stack_equals_processes_up_to_rounding(tmp_path):
    double = replace(BASE, train=replace(BASE.train, dtype="float64"))
    stacked = trials(double, GRID, seeds=range(2), out=tmp_path / "stack")
    alone = [trial(one.experiment, tmp_path / "alone") for one in stacked]
    assert {one.status for one in sweep(stacked)} == {"finished"}
    for one, other in zip(stacked, alone, strict=True):
        train(other.experiment, out=tmp_path / "alone")
        mine, theirs = (read_checkpoint(here.path, 12).part("model") for here in (one, other))
        assert max((mine[name] - theirs[name]).abs().max().item() for name in mine) < 1e-5
        facts = json.loads((one.path / "provenance.json").read_text())
        assert facts["models_in_one_batch"] == 2


def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(tmp_path, by_processes):
    """SIGKILL comes in the middle of a run: the next worker goes on from the last checkpoint, to the same bytes."""
    long = replace(BASE, train=replace(BASE.train, steps=300, log_every=20, checkpoint_every=10))
    made, other = (trials(long, out=tmp_path / name) for name in ("killed", "whole"))
    killed, seen = [], []

    def tell(index, one):
        seen.append((one.lost, one.step))
        if one.status == "running" and one.step >= 10 and not killed:
            owner = int((made[0].path / "lock").read_text().split()[1])
            assert owner != os.getpid()
            os.kill(owner, signal.SIGKILL)
            killed.append(one.step)

    stands = sweep(made, Executor(kind="processes", workers=1), tell=tell)
    assert [(one.status, one.lost) for one in stands] == [("finished", 1)]
    assert min(step for lost, step in seen if lost) >= killed[0]
    train(long, out=tmp_path / "whole")
    same_files(made[0], other[0])


class Dying(executors.Pool):
    """Workers that always die, as told: in the middle of a run, or before it."""

    def __init__(self, made, begins):
        self.made, self.begins, self.given, self.count = made, begins, [], 0

    def room(self):
        return 1 - len(self.given)

    def submit(self, key, job):
        self.given.append((key, job))

    def wait(self, seconds):
        (key, job), self.given = self.given[0], []
        self.count += 1
        assert (job["patience"] > 0) == (self.count > 1)
        if self.begins:
            self.made[key].path.mkdir(exist_ok=True)
            (self.made[key].path / "lock").write_text(str(self.count))
            os.utime(self.made[key].path / "lock", ns=(0, self.count))
        return [(key, {"status": "lost", "message": "the worker died"})]

    def stop(self):
        raise AssertionError

    def close(self):
        self.closed = True


@pytest.mark.parametrize(("begins", "tries"), [(True, 3), (False, 21)])
def test_retries_come_to_an_end(tmp_path, begins, tries, monkeypatch):
    monkeypatch.setattr(executors, "MAX_BACKOFF_S", 0.0)
    made = asked(tmp_path)[:1]
    pool, told = Dying(made, begins), {}
    executors.run_pool(dict(enumerate(made)), Executor(kind="processes", retries=2), told.__setitem__, pool)
    assert (told[0].status, told[0].message, pool.count) == ("failed", "the worker died", tries)
    assert pool.closed


def test_a_process_says_how_it_died():
    pool = Processes(Executor(kind="processes", workers=1))
    try:
        assert pool.room() == 1
        pool.submit(7, {"not": "a job"})
        assert pool.room() == 0
        found = []
        while not found:
            found = pool.wait(1.0)
        [(key, result)] = found
        assert key == 7
        assert "exit code 1: KeyError: 'path'" in result["message"]
        assert pool.room() == 1
    finally:
        pool.close()


def test_what_one_point_meets_is_its_own(tmp_path, monkeypatch):
    made = asked(tmp_path)

    def diverge(experiment, seeds, **options):
        if experiment.model.loops == 2 and 1 in seeds:
            raise Diverged("seed 1 diverged")
        return together(experiment, seeds, **options)

    def alone(experiment, **options):
        if experiment.train.seed == 1:
            raise Diverged("seed 1 diverged")
        return train(experiment, **options)

    together = executors.train_seeds
    monkeypatch.setattr(executors, "train_seeds", diverge)
    monkeypatch.setattr(executors, "train", alone)
    stands = sweep(made)
    assert [one.status for one in stands] == ["finished", "diverged", "finished", "finished"]
    assert stands[1].message == "seed 1 diverged"


def test_a_worker_gives_a_result_whatever_happens(tmp_path):
    one = asked(tmp_path)[0]
    job = job_of(one, device="cpu", threads=1)
    with locked(one.path / "lock", "the run"):
        result = work(job)
    assert result["status"] == "busy"
    assert "is being trained by process" in result["message"]
    assert work({**job, "device": "nowhere"})["status"] == "failed"
    assert work({**job, "hash": "other"})["message"].endswith("Use one version of looped.")
    assert work({**job, "config": {}})["status"] == "failed"
    hot = replace(BASE, train=replace(BASE.train, optimizer=Adam(learning_rate=1e30)))
    assert work(job_of(trial(hot, tmp_path), device="cpu", threads=1))["status"] == "diverged"
    assert work(job)["status"] == "finished"


def test_a_run_that_another_process_trains_is_told_and_the_others_go_on(tmp_path):
    made = asked(tmp_path)
    with locked(made[0].path / "lock", "the run"):
        stands = sweep(made)
    assert [one.status for one in stands] == ["busy", "busy", "finished", "finished"]
    assert [one.status for one in sweep(made)] == ["finished"] * 4


def test_a_stopped_sweep_of_processes_saves_and_goes_on_to_the_same_bytes(tmp_path):
    """SIGTERM to the parent, as Ctrl-C: every worker saves, nothing is left running, and the next sweep goes on."""
    long = replace(BASE, train=replace(BASE.train, steps=300, log_every=10, checkpoint_every=1000))
    made, other = (trials(long, out=tmp_path / name) for name in ("stopped", "whole"))

    def stop(index, one):
        if one.status == "running" and one.metrics.get("step", 0) >= 10:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped with 0 of 1 trials finished.* Go on with the same command"):
        sweep(made, Executor(kind="processes", workers=1), tell=stop)
    left = standing(made[0].path)
    assert left.status == "stopped"
    assert 10 <= left.step < 300
    with locked(made[0].path / "lock", "the run"):  # no worker holds it any more
        pass
    assert [end.status for end in sweep(made, Executor(kind="processes", workers=1))] == ["finished"]
    train(long, out=tmp_path / "whole")
    same_files(made[0], other[0])


def test_a_signal_in_a_stacks_last_step_stops_the_sweep(tmp_path):
    """The stack that was about to end may end; the next one is not begun."""
    two = trials(BASE, GRID, out=tmp_path)
    sent = []

    def tell(index, stands):
        if not sent and stands.status == "running" and stands.step == two[0].steps:
            sent.append(index)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        sweep(two, tell=tell)
    assert [standing(one.path).status for one in two] == ["finished", "waiting"]


def test_a_worker_whose_parent_is_gone_saves_and_ends(tmp_path):
    """The parent is killed: its end of the worker's input closes."""
    long = replace(BASE, train=replace(BASE.train, steps=10**6, checkpoint_every=10**6))
    one = trial(long, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "looped.training.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with worker:
        worker.stdin.write(json.dumps(job_of(one, device="cpu", threads=1)).encode() + b"\n")
        worker.stdin.flush()
        begun = threading.Event()
        end = time.monotonic() + 120
        while not last_metrics(one.path) and time.monotonic() < end:
            begun.wait(0.05)
        worker.stdin.close()
        result = json.loads(worker.stdout.readline())
    assert result["status"] == "stopped"
    assert worker.returncode == 0
    assert standing(one.path).step >= last_metrics(one.path)["step"] > 0


def test_executors_refuse_what_makes_no_sense():
    for options, message in (
        ({"workers": 2}, "this process is one"),
        ({"kind": "processes", "workers": 0}, "at least 1"),
        ({"kind": "processes", "threads": 0}, "at least 1"),
        ({"kind": "processes", "retries": -1}, "at least 0"),
        ({"kind": "processes", "address": "auto"}, "for the executor ray"),
        ({"kind": "ray", "cpus": 0.0}, "above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Executor(**options)


def test_each_worker_gets_the_gpu_with_the_fewest(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    pool = Processes(Executor(kind="processes", device="cuda", workers=3))
    taken = []
    for _ in range(3):
        taken.append(pool._gpu_with_fewest_workers())
        pool.idle.append(type("Worker", (), {"gpu": taken[-1]})())
    assert taken == ["4", "7", "4"]


# -- the table


def test_the_table_has_fields_metrics_status_and_the_whole_config(by_processes, tmp_path):
    import pyarrow.parquet

    fresh = trials(replace(BASE, task=SparseRegression(d=2, nonzero=1)), {"train.window": [1]}, out=tmp_path)
    rows = table([*by_processes, *fresh])
    assert [row["status"] for row in rows] == ["finished"] * 4 + ["waiting"]
    assert [(row["model.loops"], row["seed"]) for row in rows[:4]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert rows[0]["loss"] == last_metrics(by_processes[0].path)["loss"]
    assert rows[0]["hash"] == by_processes[0].experiment.hash
    assert rows[0]["train.optimizer.learning_rate"] == 0.01
    assert rows[0]["train.optimizer.betas"] == "[0.9, 0.999]"
    assert rows[4]["loss"] is None
    for kind in ("csv", "json", "parquet"):
        write_table(tmp_path / f"table.{kind}", rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    read = pyarrow.parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert read == json.loads((tmp_path / "table.json").read_text())
    assert [{key: row.get(key) for key in columns} for row in rows] == read
    with open(tmp_path / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["loss"]) for line in lines[:4]] == [row["loss"] for row in rows[:4]]
    assert lines[4]["task.nonzero"] == "1"
    assert lines[0]["task.nonzero"] == ""
    with pytest.raises(ValueError, match=r"\.parquet, \.csv or \.json"):
        write_table(tmp_path / "table.xls", rows)


def test_the_table_says_what_a_field_is_that_its_config_leaves_out(tmp_path):
    made = trials(yang24.linear("smoke"), field_sets=[{}, {"train.emphasis": 2}], out=tmp_path)
    assert [row["train.emphasis"] for row in table(made)] == [0.0, 2.0]


def test_without_pyarrow_parquet_is_one_line_and_csv_is_written(by_processes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"pip install 'looped\[cluster\]'"):
        write_table(tmp_path / "table.parquet", table(by_processes))
    assert [file.name for file in save_tables(tmp_path, table(by_processes))] == ["table.csv"]


def test_without_ray_it_is_one_line(by_processes, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"the executor ray needs Ray: pip install 'looped\[cluster\]'"):
        sweep(asked(tmp_path), Executor(kind="ray"))


def test_a_saved_sweep_is_found_again_and_cannot_name_other_folders(by_processes):
    folder = save_sweep(by_processes)
    assert save_sweep(list(reversed(by_processes))) == folder  # named by its trials
    assert sweep_folders(folder) == sweep_folders(by_processes[0].path.parent) == [folder]
    assert [(path, one.status) for _, path, one in read_sweep(folder)] == [
        (one.path, "finished") for one in reversed(by_processes)
    ]
    data = json.loads((folder / "sweep.json").read_text())
    for wrong in ("../../etc", "/etc", "..", "a/b", 3):
        (folder / "sweep.json").write_text(json.dumps({**data, "points": [{"run": wrong, "fields": {}}]}))
        with pytest.raises(ValueError, match="damaged"):
            read_sweep(folder)
    save_sweep(by_processes)


def test_what_a_sweep_knows_about_a_point_does_not_grow_with_its_run(tmp_path, monkeypatch):
    """A thousand trials are listed without reading a single weight, and of each metrics file only the end."""
    one = asked(tmp_path)[0]
    train(one.experiment, out=tmp_path)
    line = (one.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with open(one.path / "metrics.jsonl", "ab") as file:
        file.write(line * 20_000)
    size = checkpoint_path(one.path, 12).stat().st_size
    read = []
    monkeypatch.setattr("looped.training.trials.open", lambda *a: read.append(Counted(*a)) or read[-1], raising=False)
    monkeypatch.setattr("looped.files.digest", lambda *a: pytest.fail("the weights were read"))
    found = [standing(one.path) for _ in range(1000)]
    assert {stands.status for stands in found} == {"finished"}
    assert size > 5000
    assert max(file.taken for file in read) <= 4096
    assert len(read) == 1000


class Counted:
    """A file that counts what is read."""

    def __init__(self, *arguments):
        self.file, self.taken = open(*arguments), 0  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def seek(self, *where):
        return self.file.seek(*where)

    def read(self):
        data = self.file.read()
        self.taken += len(data)
        return data
