"""Runs in real processes, killed at random moments and at every dangerous one, and resumed.

The processes are forked off one server that has imported torch already, so that each costs milliseconds.
"""

import multiprocessing
import os
import random
import signal
import stat
import sys
from dataclasses import replace

import pytest
import torch
from tiny import assert_same_run, tiny

from looped.experiment import Adam, Muon
from looped.functional.schedules import RandomDepth
from looped.training.family import train_family
from looped.training.folder import Folder
from looped.training.rollback import Rollback
from looped.training.run import Run
from looped.training.trainer import train

pytestmark = pytest.mark.xdist_group("kill")  # one server for all

EXPERIMENT = tiny(
    "killed",
    steps=40,
    depth=RandomDepth(low=-1, high=1),
    optimizer=Muon(learning_rate=0.01, clip=1.0),
    average=0.9,
    checkpoint_every=2,
)


@pytest.fixture(scope="module")
def server():
    """Starts processes from a server with everything imported; they see neither pytest nor its type checker."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo", "torch.utils.tensorboard"])
    return context


def child(out, fatal_write, connection):
    """Train and tell every step; with `fatal_write`, die in the middle of that write to the disk."""
    torch.set_num_threads(1)
    if fatal_write is not None:
        die_at_write(fatal_write)
    train(EXPERIMENT, out=out, progress=lambda done, line: connection.send(done))
    connection.send("finished")


def die_at_write(count):
    """Kill this process at the `count`-th moment of danger: half a file written, not yet renamed, or just renamed."""
    moments = iter(range(count + 1))
    fsync, rename = os.fsync, os.replace

    def danger():
        if next(moments) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    def torn_fsync(number):
        size, kind = os.fstat(number).st_size, os.fstat(number).st_mode
        if stat.S_ISREG(kind) and next(moments) == count:  # the other kind is a folder, after a rename
            os.ftruncate(number, size - size // 3)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(number)

    def guarded_rename(*paths):
        danger()
        rename(*paths)
        danger()

    os.fsync, os.replace = torn_fsync, guarded_rename


def start(server, out, fatal_write=None, target=child):
    parent, end = server.Pipe()
    process = server.Process(target=target, args=(str(out), fatal_write, end))
    process.start()
    end.close()
    return process, parent


def steps_told(connection, most=None):
    """The steps a process tells, up to `most` of them or until it ends."""
    told = []
    try:
        while most is None or len(told) < most:
            told.append(connection.recv())
    except EOFError:
        pass
    return told


def run_to_the_end(server, out):
    process, connection = start(server, out)
    told = steps_told(connection)
    process.join()
    assert process.exitcode == 0
    assert told[-1] == "finished"
    return told


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """The run that nobody interrupts, in a process of the same kind."""
    out = tmp_path_factory.mktemp("whole")
    told = run_to_the_end(server, out)
    assert told == [*range(1, EXPERIMENT.train.steps + 1), "finished"]
    run = Run.open(out / f"killed-{EXPERIMENT.hash}")
    assert run.latest().finished
    return run


def test_ten_kills_at_random_moments_change_nothing(server, whole, tmp_path):
    draw = random.Random(0)
    kills, out = 0, tmp_path
    run = Run(out / whole.path.name, EXPERIMENT)
    while kills < 10:
        process, connection = start(server, out)
        told = steps_told(connection, draw.randint(1, 6))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL and "finished" not in told:
            kills += 1
        else:  # ten kills fit into one run only if few steps lie between them; else begin another
            assert_same_run(run, whole)
            out = tmp_path / str(kills)
            run = Run(out / whole.path.name, EXPERIMENT)
    run_to_the_end(server, out)
    assert_same_run(run, whole)


def test_a_kill_at_any_moment_of_a_save_changes_nothing(server, whole, tmp_path):
    """Each process dies a little later in its writes than the one before, in all kinds of files."""
    run = Run(tmp_path / whole.path.name, EXPERIMENT)
    deaths = 0
    for moment in range(60):
        process, connection = start(server, tmp_path, fatal_write=moment)
        steps_told(connection)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
    assert deaths >= 10
    assert process.exitcode == 0
    assert_same_run(run, whole)


def test_what_a_kill_leaves_can_be_read(server, tmp_path):
    process, connection = start(server, tmp_path)
    told = steps_told(connection, 7)
    process.kill()
    process.join()
    run = Run.open(tmp_path / f"killed-{EXPERIMENT.hash}")
    assert run.latest().step >= 6
    assert run.metrics()[0]["step"] == 3
    assert told == list(range(1, 8))
    run.model()


def family_child(folder, fatal_write, connection):
    """Train a family under a rollback rule, a checkpoint after every step; tell every step."""
    torch.set_num_threads(1)
    if fatal_write is not None:
        die_at_write(fatal_write)
    generator = torch.Generator().manual_seed(3)
    train_family(
        {"w": torch.linspace(-1, 1, 6).view(3, 2)},
        lambda family, batch: 1 + (family["w"] - 0.1 * batch).square().sum(1),
        folder=folder,
        identity={"what": "killed"},
        steps=30,
        optimizer=Adam(learning_rate=0.05),
        rollback=Rollback(),
        draw=lambda step: torch.randn(3, 2, generator=generator),
        every=4,
        generators=[generator],
        checkpoint_seconds=0,
        watch=lambda family: family["w"].norm(dim=1),
        progress=connection.send,
    )
    connection.send("finished")


def test_kills_of_a_family_at_any_moment_change_nothing(server, tmp_path):
    """Killed after a few steps, then each time a little later in a write; then left alone."""

    def start_family(folder, fatal_write=None):
        return start(server, tmp_path / folder, fatal_write, family_child)

    process, connection = start_family("whole")
    assert steps_told(connection)[-1] == "finished"
    process.join()
    process, connection = start_family("killed")
    assert steps_told(connection, 6) == [1, 2, 3, 4, 5, 6]
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not Folder(tmp_path / "killed", "").latest().finished
    for moment in (1, 4, 8, 13, 21):
        process, connection = start_family("killed", moment)
        told = steps_told(connection)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert 1 not in told  # it went on
    process, connection = start_family("killed")
    assert steps_told(connection)[-1] == "finished"
    process.join()
    whole, killed = (Folder(tmp_path / name, "").latest() for name in ("whole", "killed"))
    assert killed.finished
    assert killed.tensors.keys() == whole.tensors.keys()
    for name, value in whole.tensors.items():
        assert torch.equal(killed.tensors[name], value), name
    assert all(Folder(tmp_path / name, "").provenance()["train_seconds"] > 0 for name in ("whole", "killed"))


def command(arguments, stderr, connection):
    """`looped train` with its standard error in a file, telling every step."""
    from looped.cli import main
    from looped.training.trainer import Trainer

    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    step = Trainer.step

    def telling(self, number):
        step(self, number)
        connection.send(number)

    Trainer.step = telling
    main(arguments)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_real_process_saves_and_says_how_to_resume(server, tmp_path, number):
    parent, end = server.Pipe()
    stderr = tmp_path / "stderr"
    settings = ["--set", "train.steps=100000", "--out", str(tmp_path), "--quiet", "--device", "cpu"]
    arguments = ["train", "yang24.linear", "--scale", "smoke", *settings]
    process = server.Process(target=command, args=(arguments, str(stderr), end))
    process.start()
    end.close()
    assert steps_told(parent, 3) == [0, 1, 2]
    os.kill(process.pid, number)
    stopped = 1 + max([2, *steps_told(parent)])
    process.join()
    assert process.exitcode == 1
    (line,) = stderr.read_text().splitlines()
    (folder,) = tmp_path.glob("yang24.linear-*")
    assert line.startswith(f"looped: stopped at step {stopped} of 100000; saved in {folder}. ")
    assert line.endswith(f"looped train --resume {folder}")
    run = Run.open(folder)
    assert run.latest().step == stopped
    assert not run.latest().finished
    assert replace(run.experiment.train, steps=20).steps == 20
