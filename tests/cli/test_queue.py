"""`looped queue`: what figures lack, once each; worked on, stopped, carried home, and never run again."""

import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace

import pytest
import torch

from looped.experiment import training
from looped.files import read_json, write_json
from looped.queue import parcels
from looped.queue import work as working
from looped.queue.missing import Entry, can_start, figures, missing
from looped.queue.predictions import Predictions, gain
from looped.queue.work import fitting_first, time_limit, work
from looped.recipes import experiment as recipe_at
from looped.reproduce import select
from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import train

CPU = torch.device("cpu")


def smoke(folder, *names):
    return figures(select(names), "smoke", runs=folder / "runs", results=folder / "results")


def bring_record(home, fresh):
    """Take the record of what is at home along to another machine."""
    fresh.runs.mkdir(parents=True, exist_ok=True)
    shutil.copy(home.home_file, fresh.home_file)


pytestmark = pytest.mark.xdist_group("queue")  # one set of trainings for all


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """Figure 4 as another machine has trained and measured it, and the lines that were printed."""
    asked, lines = smoke(tmp_path_factory.mktemp("away"), "yang24.fig4"), []

    def measure(study, *options):
        lines.append(f"{len(list((asked.runs / 'readings').iterdir()))} readings were made before")
        return measured(study, *options)

    with pytest.MonkeyPatch.context() as patch:
        measured = working._measure
        patch.setattr(working, "_measure", measure)
        working.work(asked, Predictions(asked, CPU), minutes=5, beside=2, device=CPU, tell=lines.append)
    return asked, lines


def weights(path):
    return Run.open(path).model().state_dict()


def test_a_training_of_two_figures_is_listed_once_in_order_and_nothing_is_written(call, tmp_path):
    where = ("--scale", "smoke", "--device", "cpu", "--runs", tmp_path / "runs", "--out", tmp_path / "results")
    code, out, error = call("queue", "yang24.fig12", "yang24.fig4", "gatmiry24.fig1a", *where, "--json")
    assert (code, error) == (0, "")
    rows = json.loads(out)["entries"]
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names) == 11
    measured = [name for name in names if name.startswith("looped reproduce")]
    assert measured == [f"looped reproduce {name}" for name in ("yang24.fig4", "yang24.fig12", "gatmiry24.fig1a")]
    assert [row["figures"] for row in rows[:4]] == [["yang24.fig4", "yang24.fig12"]] * 4
    assert [row["status"] for row in rows if row["name"] in measured] == ["waiting", "waiting", "ready"]
    first = call("queue", "yang24.fig4", *where)[1].splitlines()[0]
    assert first.startswith("4 trainings and 1 measurements are left")
    assert not any(tmp_path.iterdir())


def test_what_is_finished_is_measured_packed_put_back_and_never_run_again(call, away, tmp_path):
    asked, lines = away
    assert sum("finished" in line for line in lines) == 4
    assert "4 readings were made before" in lines[-2]
    assert "yang24.fig4 measured" in lines[-1]
    assert missing(asked) == []
    assert len(parcels.pack(asked, tmp_path / "parcel")) == 9  # a result, and a reading and a folder of each training
    where = ("--scale", "smoke", "--device", "cpu", "--runs", tmp_path / "runs", "--out", tmp_path / "results")
    code, out, _ = call("queue", "yang24.fig4", *where, "--unpack", tmp_path / "parcel")
    assert (code, out) == (0, "Nothing is left.\n")
    home = smoke(tmp_path, "yang24.fig4")
    assert read_json(home.results / "yang24.fig4.smoke.json") == read_json(asked.results / "yang24.fig4.smoke.json")
    for run in home.trainings(home.studies[0]):
        torch.testing.assert_close(weights(home.runs / run.folder), weights(asked.runs / run.folder), rtol=0, atol=0)
    assert parcels.pack(home, tmp_path / "again") == []
    # another machine has the record alone, and leaves the trainings of Figure 12 that are at home
    fresh = smoke(tmp_path / "fresh", "yang24.fig12")
    bring_record(home, fresh)
    assert [entry.name.partition("-")[0] for entry in missing(fresh)] == ["yang24.sparse"] * 4 + ["yang24.fig12"]
    assert missing(fresh)[-1].message == "4 at home, 4 to train"


def test_where_weights_have_no_room_readings_alone_come_home_and_the_figure_is_measured(away, tmp_path, monkeypatch):
    asked, lines = away[0], []
    files = [path for path in asked.runs.glob("*/*") if path.is_file() and path.parent.name != "results"]
    room = sum(path.stat().st_size + 2048 for path in files) + 4 * 2048 + 20_000
    monkeypatch.setattr(parcels, "PIECE_BYTES", room)
    monkeypatch.setattr(parcels, "MAX_PIECES", 1)
    shutil.copytree(asked.runs, tmp_path / "away" / "runs", ignore=shutil.ignore_patterns("results"))
    parcels.pack(smoke(tmp_path / "away", "yang24.fig4"), tmp_path / "parcel")
    home = smoke(tmp_path / "home", "yang24.fig4")
    parcels.unpack(tmp_path / "parcel", home)
    runs = home.trainings(home.studies[0])
    assert not any(Run.open(home.runs / run.folder).steps for run in runs)
    assert [entry.status for entry in missing(home)] == ["ready"]
    record = home.home()
    assert {run.folder for run in runs} == record.keys()
    assert all(facts["weights"] is False and facts["side_by_side"] in (1, 2) for facts in record.values())
    assert all(facts["train_seconds"] > 0 and len(facts["readings"]) == 1 for facts in record.values())
    # a machine that has the record alone trains what figures read from them otherwise, and nothing for this one
    fresh = smoke(tmp_path / "fresh", "yang24.fig4")
    fresh.runs.mkdir(parents=True)
    for readings, message in (({}, "4 at home"), ({"readings": ["0123456789"]}, "4 to train")):
        write_json(fresh.home_file, {run: {**facts, **readings} for run, facts in record.items()})
        assert missing(fresh)[-1].message == message
    work(home, Predictions(home, CPU), minutes=5, device=CPU, tell=lines.append)
    assert len(lines) == 1
    assert "yang24.fig4 measured" in lines[0]
    name = "yang24.fig4.smoke.json"
    assert read_json(home.results / name)["table"] == read_json(asked.results / name)["table"]
    # weights that come later are recorded
    monkeypatch.undo()
    bring_record(home, smoke(tmp_path / "away", "yang24.fig4"))
    names = parcels.pack(smoke(tmp_path / "away", "yang24.fig4"), tmp_path / "later")
    assert {*names} == record.keys()
    parcels.unpack(tmp_path / "later", home)
    assert all("weights" not in facts and facts["readings"] for facts in home.home().values())


def test_what_finished_without_a_reading_is_read_though_its_figure_is_not_ready(away, tmp_path):
    asked = smoke(tmp_path, "yang24.fig4")
    first, *others = asked.trainings(asked.studies[0])
    shutil.copytree(away[0].runs / first.folder, asked.runs / first.folder)
    for run in others:
        (asked.runs / run.folder).mkdir()
        (asked.runs / run.folder / "diverged").write_text("the loss was not finite\n")
    lines: list[str] = []
    work(asked, Predictions(asked, CPU), minutes=5, device=CPU, tell=lines.append)
    assert [path.name.partition("-")[0] for path in (asked.runs / "readings").iterdir()] == [first.hash]
    assert [line.partition(":")[0] for line in lines] == [f"{first.folder} read"]


def test_large_weights_travel_as_float16_in_pieces_and_a_lost_piece_is_noticed(away, tmp_path, monkeypatch):
    monkeypatch.setattr(parcels, "HALF_FROM", 10)
    monkeypatch.setattr(parcels, "PIECE_BYTES", 30_000)
    monkeypatch.setattr(parcels, "MAX_PIECES", 20)
    asked, parcel, home = away[0], tmp_path / "parcel", smoke(tmp_path, "yang24.fig4")
    parcels.pack(asked, parcel)
    files = sorted(parcel.iterdir())
    assert len(files) > 1
    assert max(file.stat().st_size for file in files) <= 30_000
    names = parcels.unpack(parcel, home)
    run = next(run for run in home.trainings(home.studies[0]) if run.folder in names)
    there, here = weights(asked.runs / run.folder), weights(home.runs / run.folder)
    assert {value.dtype for value in here.values()} == {torch.float32}
    assert all(torch.equal(here[name], value.half().float()) for name, value in there.items())
    assert "float16" in read_json(home.runs / run.folder / "provenance.json")["weights"]
    files[1].unlink()
    with pytest.raises(ValueError, match="does not hold all"):
        parcels.unpack(parcel, home)


def test_a_stopped_training_travels_too_and_goes_on_as_if_nothing_had_happened(tmp_path):
    away, home = smoke(tmp_path / "away", "yang24.fig4"), smoke(tmp_path / "home", "yang24.fig4")
    experiment = away.trainings(away.studies[0])[0]

    def stop(done, line):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(experiment, out=away.runs, progress=stop)
    [entry, *_] = missing(away)
    assert entry.status == "stopped"
    assert 3 <= entry.step < experiment.train.steps
    assert parcels.pack(away, tmp_path / "parcel") == [experiment.folder]
    assert parcels.unpack(tmp_path / "parcel", home) == [experiment.folder]
    assert home.home() == {}
    resumed, whole = train(experiment, out=home.runs), train(experiment, out=tmp_path / "whole")
    assert resumed.metrics() == whole.metrics()
    torch.testing.assert_close(weights(resumed.path), weights(whole.path), rtol=0, atol=0)
    parcels.unpack(tmp_path / "parcel", home)  # older than what is there by now
    assert Run.open(resumed.path).steps == resumed.steps


def test_one_that_diverged_is_left_alone_until_its_note_is_removed(tmp_path):
    asked, lines = smoke(tmp_path, "yang24.fig4"), []
    for run in asked.trainings(asked.studies[0]):
        (asked.runs / run.folder).mkdir(parents=True)
        (asked.runs / run.folder / "diverged").write_text("the loss was not finite\n")
    work(asked, Predictions(asked, CPU), minutes=5, device=CPU, tell=lines.append)
    assert lines == []
    *trainings, figure = missing(asked)
    assert {(entry.status, entry.message) for entry in trainings} == {("diverged", "the loss was not finite")}
    assert figure.status == "waiting"


def test_the_minutes_end_what_is_inside_and_a_stop_by_somebody_else_is_told_apart():
    before = signal.getsignal(signal.SIGTERM)
    reached = False
    with time_limit(1e-4):
        threading.Event().wait(60)
        reached = True
    assert not reached
    with time_limit(10, reserve=lambda: 600):
        threading.Event().wait(60)
        reached = True
    assert not reached
    with pytest.raises(Interrupted, match="saved"), time_limit(10):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_seconds_are_those_of_like_trainings_scaled_to_the_steps_left(away, tmp_path):
    asked = smoke(tmp_path, "yang24.fig4")
    run = asked.trainings(asked.studies[0])[0]
    entry = Entry(name="new", figures=(), what=training(run, steps=50, seed=9), status="waiting")
    assert Predictions(asked, CPU).of(entry) is None
    shutil.copytree(away[0].runs / run.folder, asked.runs / run.folder)
    facts = {"device": "Some CPU, 2 cores", "train_seconds": 12.0}
    write_json(asked.runs / run.folder / "provenance.json", facts)
    predictions = Predictions(asked, CPU)
    per_step = 12.0 / run.train.steps
    assert predictions.device == "Some CPU, 2 cores"
    assert predictions.of(entry) == pytest.approx(50 * per_step)
    assert predictions.of(replace(entry, step=30)) == pytest.approx(20 * per_step)
    assert predictions.of(replace(entry, what=training(run, batch=4 * run.train.batch))) > 2 * 12.0
    # nothing was trained in float64: the seconds of what was
    assert predictions.of(replace(entry, what=training(run, dtype="float64"))) == pytest.approx(12.0)
    assert Predictions(asked, torch.device("cuda")).of(entry) is None
    write_json(asked.runs / run.folder / "provenance.json", {**facts, "side_by_side": 4})
    assert Predictions(asked, CPU).of(entry) == pytest.approx(50 * per_step * 1.7 / 4)
    # what our kernels train gains little: the heads of the smoke models are too narrow for them
    assert [gain(4, recipe_at("yang24.linear", scale)) for scale in ("smoke", "paper")] == [1.7, 1.1]
    entries = [replace(entry, step=step) for step in (0, 20, 10)]
    known = Predictions(asked, CPU)
    assert [entry.step for entry in fitting_first(entries, known, 1.1 * known.of(entries[1]))] == [20, 0, 10]
    # of two at once each takes longer: only the shortest ends within the seconds
    seconds = 2.1 * known.of(entries[1], 2)
    assert [entry.step for entry in fitting_first(entries, known, seconds, 2)] == [20, 0, 10]


def test_a_second_part_waits_until_the_first_is_finished_here(tmp_path):
    asked = figures(select(["yang24.fig10b"]), "paper", runs=tmp_path / "runs", results=tmp_path / "results")
    first, second = [entry for entry in missing(asked) if "12_layers" in entry.name]
    assert second.message == f"waits for {first.name}"
    # at home, its weights are not here: they are trained here too
    asked.runs.mkdir()
    write_json(asked.home_file, {first.name: {"device": "NVIDIA H200", "train_seconds": 500.0}})
    assert [entry.status for entry in missing(asked)[:2]] == ["waiting", "waiting"]
    # a part of the first is not enough
    steps = asked.runs / first.name / "checkpoints"
    steps.mkdir(parents=True)
    (steps / "step-000020000.safetensors").write_bytes(b"")
    assert not can_start(second.what, asked.runs)


def test_short_memory_costs_a_figure_and_neither_the_others_nor_the_trainings(call, away, tmp_path, monkeypatch):
    shutil.copytree(away[0].runs, tmp_path / "runs", ignore=shutil.ignore_patterns("results", "readings"))

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("looped.studies.measures.Curves.add_model", out_of_memory)
    where = ("--runs", tmp_path / "runs", "--out", tmp_path / "results", "--device", "cpu")
    code, _, told = call("queue", "yang24.fig4", "--scale", "smoke", "--minutes", "1", "--pack", tmp_path / "p", *where)
    assert code == 0
    assert "yang24.fig4 could not be measured: CUDA out of memory" in told
    assert "4 trainings, readings and results are packed" in told


def test_what_is_finished_is_packed_also_where_the_work_is_stopped(call, away, tmp_path, monkeypatch):
    shutil.copytree(away[0].runs, tmp_path / "runs", ignore=shutil.ignore_patterns("results"))

    def stopped(*_, **__):
        raise Interrupted("stopped")

    monkeypatch.setattr(sys.modules["looped.cli.queue"], "work", stopped)
    where = ("--runs", tmp_path / "runs", "--out", tmp_path / "results", "--device", "cpu")
    code, *_ = call("queue", "yang24.fig4", "--scale", "smoke", "--minutes", "1", "--pack", tmp_path / "p", *where)
    assert code != 0
    assert len(parcels.unpack(tmp_path / "p", smoke(tmp_path / "home", "yang24.fig4"))) == 8


def test_an_older_result_and_a_damaged_reading_replace_nothing_and_a_divergence_is_told(away, tmp_path, caplog):
    asked = smoke(tmp_path / "away", "yang24.fig4")
    shutil.copytree(away[0].runs, asked.runs)
    first, second, *_ = asked.trainings(asked.studies[0])
    (asked.runs / first.folder / "diverged").write_text("the loss was not finite\n")
    shutil.rmtree(asked.runs / first.folder / "checkpoints")
    [reading] = (asked.runs / "readings").glob(f"{second.hash}-*")
    reading.write_bytes(b"damaged")
    parcels.pack(asked, tmp_path / "parcel")
    home = smoke(tmp_path / "home", "yang24.fig4")
    home.results.mkdir(parents=True)
    result = {**read_json(away[0].results / "yang24.fig4.smoke.json"), "newer": True}
    write_json(home.results / "yang24.fig4.smoke.json", result)
    parcels.unpack(tmp_path / "parcel", home)
    assert read_json(home.results / "yang24.fig4.smoke.json")["newer"]
    assert f"the reading {reading.name} cannot be used" in caplog.text
    assert len(list((home.runs / "readings").iterdir())) == 3
    assert (home.runs / first.folder / "diverged").read_text() == "the loss was not finite\n"
    assert Run.open(home.runs / second.folder).steps


def test_a_result_that_was_not_copied_is_copied_by_the_next_call(away, tmp_path):
    asked = smoke(tmp_path, "yang24.fig4")
    shutil.copytree(away[0].runs, asked.runs)
    work(asked, Predictions(asked, CPU), minutes=1, device=CPU, tell=pytest.fail)
    assert read_json(asked.results / "yang24.fig4.smoke.json") == read_json(away[0].results / "yang24.fig4.smoke.json")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--scale", "large"], "`--scale` must be"),
        (["--minutes", "0"], "`--minutes` must be above 0"),
        (["--minutes", "nan"], "`--minutes` must be above 0"),
        (["--minutes", "1", "--beside", "0"], "`--beside` must be at least 1"),
        (["--beside", "2"], "without `--minutes` nothing is trained"),
        (["--unpack", "nowhere"], "holds no files"),
        (["yang24.fig99"], "no figure is called"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    code, out, error = call("queue", *words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert reason in error
    assert not any(tmp_path.iterdir())
