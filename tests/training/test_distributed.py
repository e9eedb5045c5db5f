"""Two real ranks under torchrun: equal to one process; a rank that dies is one clear line, and the run goes on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ranks
import torch

from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression
from looped.training.distributed import ALONE, LostRank, Onlooker, Team, join, launched, leads
from looped.training.folder import checkpoint_path
from looped.training.run import Run
from looped.training.trainer import Trainer, train, train_seeds

pytestmark = pytest.mark.xdist_group("ranks")


def torchrun(*arguments, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([str(one) for one in command], env=known, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A `looped train` whose rank 1 dies in step 31; the folder it left, and what was said."""
    folder = tmp_path_factory.mktemp("ranks")
    what = f"{ranks.__file__}:recipe"
    done = torchrun("-m", "looped", "train", what, "--device", "cpu", "--out", folder / "killed", DIE_AT_STEP="30")
    run = folder / "killed" / f"ranks-{ranks.EXPERIMENT.hash}"
    return done, run, Run.open(run).steps, folder


@pytest.fixture(scope="module")
def trained(killed):
    """The folder with all that ranks.py trains, the killed run among it, and what the two ranks heard."""
    folder = killed[-1]
    done = torchrun(ranks.__file__, folder)
    assert done.returncode == 0, done.stderr
    return folder, [json.loads((folder / f"heard-{rank}.json").read_text()) for rank in (0, 1)]


def run_of(experiment, folder):
    return Run(folder / f"ranks-{experiment.hash}", experiment)


def furthest(one, other):
    """The largest difference between all that two runs' checkpoints hold."""
    left, right = one.latest().tensors, other.latest().tensors
    assert left.keys() == right.keys()
    return max(float((value.double() - right[name].double()).abs().max()) for name, value in left.items())


def test_a_killed_rank_ends_the_job_with_one_clear_line(killed):
    done, run, steps, _ = killed
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("looped:")]
    assert lines == [
        f"looped: rank 0 of 2 stops: another rank ended. {run} is whole; its last checkpoint is of step 20. "
        "Go on with the same command."
    ]
    assert steps == [20]
    assert "src/looped/" not in done.stderr.replace(str(run), "")  # the traceback is torchrun's own, none of it is ours


def test_two_ranks_equal_one_process(trained, tmp_path):
    folder, heard = trained
    assert [one["size"] for one in heard] == [2, 2]
    alone = train(ranks.EXPERIMENT, out=tmp_path)
    two = run_of(ranks.EXPERIMENT, folder / "whole")
    assert two.latest().step == 50
    assert furthest(alone, two) < 1e-9
    assert two.provenance()["ranks"] == 2
    assert alone.provenance()["ranks"] == 1
    for left, right in zip(alone.metrics(), two.metrics(), strict=True):
        assert left == pytest.approx(right, rel=1e-9)


def test_two_ranks_equal_one_process_in_single_precision(trained, tmp_path):
    """Predictions, losses and every weight."""
    alone, two = train(ranks.SINGLE, out=tmp_path), run_of(ranks.SINGLE, trained[0] / "whole")
    prompt = LinearRegression(d=2).sample(batch=16, n=4, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(alone.model()(prompt), two.model()(prompt), rtol=0, atol=1e-6)
    left, right = (run.latest().part("model") for run in (alone, two))
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=0, atol=1e-6, msg=name)
    for one, other in zip(alone.metrics(), two.metrics(), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("where", ["killed", "stopped"])
def test_a_job_that_goes_on_equals_an_unbroken_one_bit_for_bit(trained, where):
    folder, _ = trained
    broken, whole = (run_of(ranks.EXPERIMENT, folder / name) for name in (where, "whole"))
    assert furthest(broken, whole) == 0.0
    assert (broken.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()


def test_a_signal_to_one_rank_stops_all_at_the_same_step(trained):
    _, heard = trained
    assert heard[0]["stopped"] == heard[1]["stopped"]
    assert "stopped at step 30 of 50" in heard[0]["stopped"]


def test_curricula_averages_pools_and_muon_are_the_same_too(trained, tmp_path):
    assert furthest(train(ranks.MUON, out=tmp_path), run_of(ranks.MUON, trained[0] / "whole")) < 1e-8


def test_a_stack_of_seeds_is_split_by_its_rows(trained, tmp_path):
    for run in train_seeds(ranks.STACK, [3, 4, 5], out=tmp_path):
        assert furthest(run, run_of(run.experiment, trained[0] / "whole")) < 1e-9


def test_a_batch_smaller_than_the_team_is_refused_by_every_rank(trained):
    folder, heard = trained
    for one in heard:
        assert one["small"] == "`batch` must be at least the number of ranks, 2; got 1. Use fewer ranks."
    assert not list((folder / "small").glob("*/checkpoints/*"))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lists who listens where in /proc")
def test_ranks_of_one_machine_listen_at_loopback_alone(trained):
    for one in trained[1]:
        assert set(one["listening"]) <= {"0100007F"}  # 127.0.0.1


def test_each_row_belongs_to_one_rank(generator):
    prompt = LinearRegression(d=2).sample(batch=7, n=3, generator=generator)
    parts = [Team(rank, 3).rows(prompt) for rank in range(3)]
    assert [len(part.xs) for part in parts] == [2, 2, 3]
    torch.testing.assert_close(torch.cat([part.xs for part in parts]), prompt.xs, rtol=0, atol=0)
    stacked = Prompt(torch.stack([prompt.xs] * 2), torch.stack([prompt.ys] * 2))
    parts = [Team(rank, 3).rows(stacked, stacked=True) for rank in range(3)]
    assert [tuple(part.xs.shape) for part in parts] == [(2, 2, 3, 2), (2, 2, 3, 2), (2, 3, 3, 2)]


def test_the_ranks_shares_of_a_weighted_loss_add_up(tmp_path, generator):
    """Also where a rank has no scored position at all: its own mean would be 0 / 0."""
    trainer = Trainer([Run(tmp_path, ranks.EXPERIMENT)], torch.device("cpu"))
    prompt = LinearRegression(d=2).sample(batch=6, n=3, generator=generator)
    weights = torch.rand(6, 3, generator=generator)
    weights[:2] = 0
    error = torch.rand(2, 6, 3, generator=generator)
    expected = float((error * weights).sum() / (2 * weights.sum()))
    whole = replace(prompt, weights=weights)
    assert float(trainer._weighted(error, whole, whole)) == pytest.approx(expected)
    shares = [
        float(trainer._weighted(error[:, 2 * rank : 2 * rank + 2], Team(rank, 3).rows(whole), whole))
        for rank in range(3)
    ]
    assert shares[0] == 0.0
    assert sum(shares) == pytest.approx(expected)


def test_an_onlooker_sees_a_run_and_changes_nothing(tmp_path):
    run = train(ranks.changed(steps=4, checkpoint_every=2), out=tmp_path)
    checkpoint_path(run.path, 4).write_bytes(b"torn")
    files = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    seen = Onlooker(run.path, run.experiment)
    found = seen.latest(mend=True)
    assert found is not None
    assert found.step == 2
    seen.save(replace(found, step=3))
    seen.prune(4, keep=0)
    seen.append_metrics({"step": 5})
    seen.rewind_metrics(0)
    seen.save_provenance("cpu", 1.0)
    seen.tidy()
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == files


def test_without_torchrun_a_process_is_alone():
    assert not launched()
    assert leads()
    assert join("cpu") is ALONE
    assert ALONE.any(True)
    assert not ALONE.any(False)


def test_a_lost_rank_says_where_the_run_stands(tmp_path):
    run = Run.create(tmp_path / "run", ranks.EXPERIMENT)
    said = r"gone\. .*run is whole; it has no checkpoint yet\. Go on with the same command"
    with pytest.raises(LostRank, match=said), ALONE.reporting([run]):
        raise LostRank("gone.")
