"""Damaged files, two processes, full and read-only disks, clocks that jump: one clear line, and nothing is lost."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save
from tiny import assert_same_run, stop_at, tiny

from looped import cli
from looped.files import Busy, digest, locked, read_tensors, write_json, write_tensors
from looped.functional.schedules import Staircase
from looped.training.folder import checkpoint_path
from looped.training.grid import train_grid
from looped.training.run import Run, load
from looped.training.stopping import Interrupted, NotSaved
from looped.training.trainer import Trainer, train, train_seeds

pytestmark = pytest.mark.xdist_group("kill")  # one server for all

EXPERIMENT = tiny("crash", steps=12, checkpoint_every=4)


def changed(**fields):
    return replace(EXPERIMENT, train=replace(EXPERIMENT.train, **fields))


def said(command, capsys):
    """Exit code and the one line on standard error of a `looped` command."""
    with pytest.raises(SystemExit) as caught:
        cli.main(command)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return caught.value.code, lines[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(EXPERIMENT, out=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def stopped(tmp_path):
    """A run at step 9, with its checkpoints of steps 8 and 9."""
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=tmp_path, progress=stop_at(9))
    run = Run.open(tmp_path / f"crash-{EXPERIMENT.hash}")
    assert run.steps == [8, 9]
    return run


def test_a_checkpoint_cut_or_flipped_anywhere_falls_back_on_the_one_before_it(stopped, caplog):
    file = checkpoint_path(stopped.path, 9)
    content = file.read_bytes()
    draw = random.Random(0)
    cuts = [0, 1, 7, 8, 9, len(content) - 1, *(draw.randrange(len(content)) for _ in range(30))]
    places = [draw.randrange(len(content)) for _ in range(20)]
    flips = [content[:i] + bytes([content[i] ^ (1 << draw.randrange(8))]) + content[i + 1 :] for i in places]
    damages = [*(content[:cut] for cut in cuts), *flips]
    expected = Run(stopped.path, EXPERIMENT)
    for damage in damages:
        file.write_bytes(damage)
        caplog.clear()
        assert expected.latest().step == 8
        assert [record.message for record in caplog.records] == [
            f"looped: {file} is damaged; the checkpoint before it, of step 8, is used."
        ]
    file.write_bytes(content)
    caplog.clear()
    assert expected.latest().step == 9
    assert caplog.records == []


def test_training_after_damage_puts_the_file_aside_and_ends_the_same(stopped, whole, caplog):
    file = checkpoint_path(stopped.path, 9)
    os.truncate(file, 100)
    assert_same_run(train(EXPERIMENT, out=stopped.path.parent), whole)
    assert [record.message for record in caplog.records].count(
        f"looped: {file} is damaged (now {file.name}.damaged); the checkpoint before it, of step 8, is used."
    ) == 1
    assert stopped.steps == [8, 12]


def test_the_command_says_it_in_one_line_and_goes_on(stopped, whole):
    """In a process of its own, where nobody has set up logging."""
    file = checkpoint_path(stopped.path, 9)
    os.truncate(file, 100)
    arguments = ["train", "--resume", str(stopped.path), "--quiet", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "looped", *arguments], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"looped: {file} is damaged (now {file.name}.damaged); the checkpoint before it, of step 8")
    assert stopped.latest().finished


def test_with_no_whole_checkpoint_left_the_error_names_the_remedy(stopped, capsys):
    for step in stopped.steps:
        os.truncate(checkpoint_path(stopped.path, step), 50)
    for action in (stopped.latest, lambda: load(stopped.path), lambda: train(EXPERIMENT, out=stopped.path.parent)):
        with pytest.raises(ValueError, match=r"no checkpoint in .* is whole\. .* Restore one from a copy, or remove"):
            action()
    code, line = said(["train", "--resume", str(stopped.path), "--device", "cpu"], capsys)
    assert code == 2
    assert f"remove {stopped.path / 'checkpoints'} to train from the start" in line
    shutil.rmtree(stopped.path / "checkpoints")
    assert train(EXPERIMENT, out=stopped.path.parent).latest().finished


GOOD = {"step": 10, "finished": False, "experiment": EXPERIMENT.hash}


@pytest.mark.parametrize(
    "about",
    [
        {"about": "something else"},
        [1, 2],
        "text",
        None,
        {**GOOD, "step": 9},
        {**GOOD, "step": "10"},
        {**GOOD, "step": None},
        {**GOOD, "finished": "no"},
        {**GOOD, "together": 3},
        {**GOOD, "together": [["x"]]},
        {**GOOD, "experiment": 5},
        {**GOOD, "metrics": []},
    ],
)
def test_a_checkpoint_that_says_it_is_something_else_is_damage(stopped, about, caplog):
    file = checkpoint_path(stopped.path, 10)
    tensors, text = {"answers": torch.zeros(1)}, json.dumps(about)
    file.write_bytes(save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))
    assert stopped.latest().step == 9
    assert caplog.messages == [f"looped: {file} is damaged; the checkpoint before it, of step 9, is used."]


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(stopped, monkeypatch):
    """Too many open files, or a disk that does not answer: nothing is put aside."""

    def refuse(file, mode):
        raise OSError(errno.EMFILE, "Too many open files", str(file))

    monkeypatch.setattr("looped.training.folder.open", refuse, raising=False)
    with pytest.raises(OSError, match="Too many open files"):
        stopped.latest(mend=True)
    monkeypatch.undo()
    assert stopped.steps == [8, 9]
    assert stopped.latest(mend=True).step == 9


def test_a_folder_in_the_place_of_a_checkpoint_is_put_aside(stopped, whole):
    checkpoint_path(stopped.path, 11).mkdir()
    assert_same_run(train(EXPERIMENT, out=stopped.path.parent), whole)


def test_a_config_that_was_changed_is_refused(stopped, caplog):
    data = json.loads((stopped.path / "config.json").read_text())
    data["train"]["batch"] = 3
    write_json(stopped.path / "config.json", data)
    with pytest.raises(ValueError, match=r"does not fit its config: .* Restore config\.json from a copy"):
        train(Run.open(stopped.path).experiment, folder=stopped.path)
    assert caplog.records == []
    load(stopped.path)  # to look at it is no error
    assert caplog.messages == [f"looped: {stopped.path / 'config.json'} is not the one its weights were trained under."]


def test_metrics_that_were_changed_are_a_line_and_training_goes_on(stopped, whole, caplog):
    file = stopped.path / "metrics.jsonl"
    first, second, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, second[:20] + b"#" + second[21:], *rest]))
    train(EXPERIMENT, out=stopped.path.parent)
    assert caplog.messages == [
        f"looped: {file} is not as it was written up to step 9: what is left of it stays. "
        "The training itself loses nothing."
    ]
    assert [line["step"] for line in stopped.metrics()] == [3, 9, 12]
    left, right = stopped.latest().tensors, whole.latest().tensors
    assert all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", '{"train_seconds": "x"}', '{"points": []}', "{", ""])
def test_damaged_provenance_is_one_line(stopped, content, capsys):
    (stopped.path / "provenance.json").write_text(content)
    with pytest.raises(ValueError, match=r"provenance\.json (is damaged|cannot be read).* Restore it from a copy"):
        stopped.provenance()
    code, line = said(["train", "--resume", str(stopped.path), "--device", "cpu"], capsys)
    assert code == 2
    assert "provenance.json" in line


def test_the_best_checkpoint_stays_and_can_be_loaded(tmp_path):
    """Among all that were written the one of the lowest logged loss; the rate rises so that later ones are worse."""
    config = changed(steps=40, log_every=2, checkpoint_every=2, keep_checkpoints=2)
    everything = train(changed(steps=40, log_every=2, checkpoint_every=2, keep_checkpoints=100), out=tmp_path)
    run = train(config, out=tmp_path)
    losses = {line["step"]: line["loss"] for line in run.metrics()}
    best = min(losses, key=lambda step: (losses[step], step))
    assert best < 38  # else this shows nothing
    assert run.steps == [best, 38, 40]
    assert run.best().step == everything.best().step == best
    weights = read_tensors(checkpoint_path(everything.path, best))[0]
    for name, value in load(run.path, best=True).state_dict().items():
        assert torch.equal(value, weights[f"model/{name}"])
    last = run.latest().part("model")
    assert all(torch.equal(value, last[name]) for name, value in load(run.path).state_dict().items())


def test_a_run_that_was_stopped_keeps_the_same_best(tmp_path):
    config = changed(steps=40, log_every=2, checkpoint_every=2, keep_checkpoints=1)
    unbroken = train(config, out=tmp_path / "unbroken")
    for step in (8, 19, 31):
        with pytest.raises(Interrupted):
            train(config, out=tmp_path, progress=stop_at(step))
    run = train(config, out=tmp_path)
    assert_same_run(run, unbroken)
    assert run.steps == unbroken.steps
    assert run.best().step == unbroken.best().step < 40


def test_a_damaged_best_gives_way_to_the_next_best(tmp_path, caplog):
    run = train(changed(steps=40, log_every=2, checkpoint_every=2, keep_checkpoints=100), out=tmp_path)
    losses = {line["step"]: line["loss"] for line in run.metrics()}
    first, second, *_ = sorted(losses, key=lambda step: losses[step])
    os.truncate(checkpoint_path(run.path, first), 99)
    assert run.best().step == second
    assert caplog.messages == [f"looped: {checkpoint_path(run.path, first)} is damaged; the next best is used."]


def test_only_what_was_judged_alike_can_be_best(tmp_path):
    """Before a curriculum's end the prompts are easier: their losses do not compare."""
    ramp = {"dims": Staircase(start=1, stop=2, by=1, every=20), "steps": 30, "log_every": 2, "checkpoint_every": 2}
    run = train(changed(keep_checkpoints=100, **ramp), out=tmp_path)
    assert run.best().step > 20
    rarely = train(changed(steps=12, log_every=100, checkpoint_every=4, keep_checkpoints=100), out=tmp_path)
    assert rarely.best().step == 12  # the only one with a line


def test_a_reader_is_not_misled_by_files_that_vanish(stopped, monkeypatch, caplog):
    """Between the listing and the reading the training process has gone on by two checkpoints."""
    from looped.training import folder as module

    read = module.read_tensors

    def late(path):
        if stopped.steps == [8, 9]:
            tensors, about = read(checkpoint_path(stopped.path, 9))
            for step in (10, 11):
                write_tensors(checkpoint_path(stopped.path, step), tensors, {**about, "step": step})
                checkpoint_path(stopped.path, step - 2).unlink()
        return read(path)

    monkeypatch.setattr(module, "read_tensors", late)
    assert stopped.latest().step == 11
    assert caplog.records == []


def test_a_stack_left_at_different_steps_goes_back_to_the_last_common_one(tmp_path):
    """As a kill between two runs' writes leaves it, in the middle and at the very end."""
    unbroken = train_seeds(changed(keep_checkpoints=1), [0, 1], out=tmp_path / "unbroken")
    for stop in (4, 11):
        out = tmp_path / str(stop)
        kept = {}

        def keep_old(done, line, out=out, kept=kept, stop=stop):
            if done in (4, 8):
                kept.clear()
                kept.update({file: file.read_bytes() for file in out.rglob("step-*.safetensors")})
            if done == stop:
                signal.raise_signal(signal.SIGINT)

        # in the last step the training ends, and then the signal is handed on
        with pytest.raises(Interrupted if stop == 4 else KeyboardInterrupt):
            train_seeds(changed(keep_checkpoints=1), [0, 1], out=out, progress=keep_old)
        first, second = (Run.open(out / run.path.name) for run in unbroken)
        for file, content in kept.items():  # nothing is dropped before all have the new one
            file.write_bytes(content)
        checkpoint_path(second.path, second.steps[-1]).unlink()
        assert first.steps != second.steps
        resumed = train_seeds(changed(keep_checkpoints=1), [0, 1], out=out)
        for one, other in zip(resumed, unbroken, strict=True):
            assert_same_run(one, other)
            assert one.provenance()["models_in_one_batch"] == 2


def test_a_stack_killed_in_its_first_save_begins_anew_together(tmp_path):
    """One run has its first checkpoint and the other none; the start's weights are read again."""
    start = train(changed(seed=5), out=tmp_path)
    config = changed(start=str(start.path), checkpoint_every=6)
    unbroken = train_seeds(config, [0, 1], out=tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        train_seeds(config, [0, 1], out=tmp_path / "parts", progress=stop_at(6))
    first, second = (Run.open(tmp_path / "parts" / run.path.name) for run in unbroken)
    assert first.steps == second.steps == [6]
    checkpoint_path(second.path, 6).unlink()
    for one, other in zip(train_seeds(config, [0, 1], out=tmp_path / "parts"), unbroken, strict=True):
        assert_same_run(one, other)
        assert one.provenance()["models_in_one_batch"] == 2


def test_what_others_have_is_kept_where_somebody_removed_a_run_of_a_stack(tmp_path):
    with pytest.raises(Interrupted):
        train_seeds(EXPERIMENT, [0, 1], out=tmp_path, progress=stop_at(9))
    first, second = (Run.open(config.parent) for config in tmp_path.glob("*/config.json"))
    shutil.rmtree(second.path)
    steps = []
    train_seeds(EXPERIMENT, [0, 1], out=tmp_path, progress=lambda done, line: steps.append(done))
    assert sorted(steps) == sorted([*range(10, 13), *range(1, 13)])
    assert first.latest().finished


def test_a_finished_run_that_was_trained_alone_is_not_taken_back(tmp_path):
    alone = train(changed(seed=0), out=tmp_path)
    files = {file: file.read_bytes() for file in alone.path.rglob("*") if file.is_file()}
    found = train_seeds(EXPERIMENT, [0, 1], out=tmp_path)
    assert {file: file.read_bytes() for file in files} == files
    assert found[1].provenance()["models_in_one_batch"] == 1


@pytest.fixture(scope="module")
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo", "torch.utils.tensorboard"])
    return context


def hold(out, experiment, connection):
    """Train until told to go on, telling every step."""
    torch.set_num_threads(1)

    def tell(done, line):
        connection.send(done)
        if done == 5:
            connection.recv()

    train(experiment, out=out, progress=tell)


@pytest.fixture
def holder(server, tmp_path):
    """Another process that trains the run and stands still at step 5."""
    parent, end = server.Pipe()
    process = server.Process(target=hold, args=(str(tmp_path), EXPERIMENT, end))
    process.start()
    end.close()
    assert [parent.recv() for _ in range(5)] == [1, 2, 3, 4, 5]
    yield process, parent
    process.kill()
    process.join()


def test_two_processes_do_not_train_one_run(holder, tmp_path, whole, capsys):
    process, connection = holder
    path = tmp_path / f"crash-{EXPERIMENT.hash}"
    with pytest.raises(Busy, match=rf"is being trained by process {process.pid} on .*\. Wait until that ends"):
        train(EXPERIMENT, out=tmp_path)
    code, line = said(["train", "--resume", str(path), "--device", "cpu"], capsys)
    assert code == 2
    assert line.startswith(f"looped: {path} is being trained by process {process.pid}")
    assert Run.open(path).latest().step == 4  # readers are not kept out
    load(path)
    connection.send("go on")
    process.join()
    assert process.exitcode == 0
    assert_same_run(train(EXPERIMENT, out=tmp_path), whole)


def test_the_lock_of_a_killed_process_is_free(holder, tmp_path, whole):
    process, _ = holder
    process.kill()
    process.join()
    assert_same_run(train(EXPERIMENT, out=tmp_path), whole)


def fork_and_hold(out, experiment, connection):
    """Train until step 5; a forked child lives on when this process is killed."""
    torch.set_num_threads(1)

    def tell(done, line):
        if done == 5:
            child = os.fork()
            if child == 0:
                signal.pause()
            connection.send(child)
            signal.pause()

    train(experiment, out=out, progress=tell)


def test_a_child_that_outlives_a_killed_process_does_not_keep_its_lock(server, tmp_path, whole):
    parent, end = server.Pipe()
    process = server.Process(target=fork_and_hold, args=(str(tmp_path), EXPERIMENT, end))
    process.start()
    end.close()
    child = parent.recv()
    try:
        with pytest.raises(Busy, match=rf"process {process.pid} "):
            train(EXPERIMENT, out=tmp_path)
        process.kill()
        process.join()
        os.kill(child, 0)  # lives
        assert_same_run(train(EXPERIMENT, out=tmp_path), whole)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_on_a_folder_that_was_just_removed_is_no_lock(tmp_path, monkeypatch):
    from looped import files

    lock = files._lock

    def removed(number):
        lock(number)
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(files, "_lock", removed)
    with pytest.raises(Busy, match=r"RUN was removed just now by another process\. Ask again"):
        locked(tmp_path / "run" / "lock", "RUN").__enter__()


def test_the_same_seed_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`seeds` must differ from each other; got \[0, 1, 0\]"):
        train_seeds(EXPERIMENT, [0, 1, 0], out=tmp_path)


def test_a_grid_trains_what_no_other_process_trains(holder, tmp_path):
    process, connection = holder
    other = replace(EXPERIMENT, model=replace(EXPERIMENT.model, loops=1))
    asked = [EXPERIMENT, other]
    with pytest.raises(Busy, match=rf"all is trained but what another process trains.* process {process.pid}"):
        train_grid(asked, out=tmp_path)
    assert Run.open(tmp_path / f"crash-{other.hash}").latest().finished
    connection.send("go on")
    process.join()
    steps = []
    found = train_grid(asked, out=tmp_path, progress=lambda what, share: steps.append(share))
    assert all(run.latest().finished for run in found)
    assert set(steps) <= {0.0, 0.5, 1.0}  # nothing was trained again


def test_a_disk_without_locks_is_a_line_and_no_end(tmp_path, monkeypatch, caplog):
    from looped import files

    def refuse(number):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_lock", refuse)
    with locked(tmp_path / "lock", "RUN"):
        pass
    (record,) = caplog.records
    assert record.message.endswith("cannot be locked (No locks available): do not train RUN in two processes.")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
        trouble = result.stderr.strip()
    except OSError as error:
        result, trouble = None, str(error)
    if result is None or result.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {trouble}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Leave no byte free."""
    ballast = folder / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(2 << 20))
    return ballast


@pytest.mark.parametrize("at", [5, 6])
def test_a_full_disk_stops_with_a_line_and_the_run_goes_on_exactly(small_disk, whole, at, capfd):
    """Full before a line of metrics (step 6) and before a checkpoint (step 8)."""
    path = small_disk / f"crash-{EXPERIMENT.hash}"

    def fill_at(done, line):
        if done == at:
            fill(small_disk)

    with pytest.raises(NotSaved, match=r"cannot be written: No space left on device; its last checkpoint is of step 4"):
        train(EXPERIMENT, out=small_disk, progress=fill_at)
    run = Run.open(path)
    assert run.latest().step == 4
    assert list(path.rglob(".*")) == []
    with pytest.raises(NotSaved, match=r"Free some space. Go on with the same command"):
        train(EXPERIMENT, out=small_disk)  # still full
    assert run.latest().step == 4
    assert capfd.readouterr().err == ""
    (small_disk / "ballast").unlink()
    assert_same_run(train(EXPERIMENT, out=small_disk), whole)


def test_the_command_on_a_full_disk_exits_1_with_one_line(small_disk, whole, capsys):
    path = small_disk / whole.path.name
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=small_disk, progress=stop_at(6))
    ballast = fill(small_disk)
    code, line = said(["train", "--resume", str(path), "--quiet", "--device", "cpu"], capsys)
    assert code == 1
    assert line.startswith(f"looped: {path} cannot be written: No space left on device")
    ballast.unlink()
    assert_same_run(train(EXPERIMENT, out=small_disk), whole)


@pytest.fixture
def read_only(small_disk, tmp_path):
    """The same disk in a second place, where it cannot be written."""
    folder = tmp_path / "read_only"
    folder.mkdir()
    subprocess.run(["mount", "--bind", str(small_disk), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_folder_that_cannot_be_written_is_one_line_and_can_still_be_read(small_disk, read_only, whole, capsys):
    path = read_only / whole.path.name
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=small_disk, progress=stop_at(6))
    code, line = said(["train", "--resume", str(path), "--quiet", "--device", "cpu"], capsys)
    assert code == 1
    assert "cannot be written: Read-only file system; its last checkpoint is of step 6. Make the folder wri" in line
    load(path)
    assert_same_run(train(EXPERIMENT, out=small_disk), whole)
    assert_same_run(train(EXPERIMENT, out=read_only), whole)  # a finished run is found without writing


@pytest.mark.parametrize(
    "tail",
    [
        b'{"step": 12, "lo',
        b"\xff\xfe\n",
        b"[]\n",
        b"3\n",
        b"[" * 100_000 + b"\n",
        b'{"loss": 1}\n',
        b'{"step": "x"}\n',
        b'{"step": 12}\n',
        b'{"step": 12, "loss": null, "error": 1}\n',
        b"\0" * 50,
    ],
)
def test_whatever_ends_the_metrics_a_resumed_run_writes_them_the_same(stopped, whole, tail):
    with open(stopped.path / "metrics.jsonl", "ab") as file:
        file.write(tail)
    if tail.endswith(b"\n"):
        with pytest.raises(ValueError, match=r"metrics.jsonl is damaged"):
            stopped.metrics()
    else:
        assert [line["step"] for line in stopped.metrics()] == [3, 6, 9]
    assert_same_run(train(EXPERIMENT, out=stopped.path.parent), whole)


def test_clocks_that_jump_change_nothing(tmp_path, whole, monkeypatch):
    """The wall clock runs backwards by days, and the files' times are in disorder."""
    clock = iter(range(2_000_000_000, 0, -100_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=tmp_path, progress=stop_at(9))
    monkeypatch.undo()
    run = Run.open(tmp_path / whole.path.name)
    os.utime(checkpoint_path(run.path, 9), (0, 0))
    os.utime(checkpoint_path(run.path, 8), (4e9, 4e9))
    assert run.latest().step == 9
    assert_same_run(train(EXPERIMENT, out=tmp_path), whole)
    assert run.provenance()["train_seconds"] >= 0


def test_what_a_kill_left_half_written_is_removed(stopped, whole):
    for name in ("checkpoints/.step-00000012.safetensors.0.tmp", ".metrics.jsonl.0.tmp", ".provenance.json.0.tmp"):
        (stopped.path / name).write_bytes(b"half")
    assert_same_run(train(EXPERIMENT, out=stopped.path.parent), whole)
    assert list(stopped.path.rglob(".*")) == []


def test_trouble_that_is_not_the_disk_keeps_its_own_name(tmp_path, monkeypatch):
    def missing(self, step):
        raise FileNotFoundError("data.csv is not here")

    monkeypatch.setattr(Trainer, "step", missing)
    with pytest.raises(FileNotFoundError, match=r"data\.csv"):
        train(EXPERIMENT, out=tmp_path)
