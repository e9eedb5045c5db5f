"""A signal ends training with everything saved, whatever was compiled meanwhile."""

import signal
import subprocess
import sys

from looped.training.run import Run

SCRIPT = """
import ctypes, os, signal, sys
from looped.papers.yang24 import linear
from looped.training.stopping import Interrupted
from looped.training.trainer import train
from dataclasses import replace

base = linear("smoke")
made = replace(base, train=replace(base.train, steps=20, log_every=20))

def meddle(step, line):
    if step == 1:  # what a compiler's signal handling does, behind Python's back
        ctypes.CDLL(None).signal(int(sys.argv[2]), 0)
    if step == 4:
        os.kill(os.getpid(), int(sys.argv[2]))

try:
    train(made, folder=sys.argv[1], progress=meddle)
except Interrupted as error:
    print(error)
"""


def test_a_handler_that_was_put_in_front_of_ours_is_replaced(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(signal.SIGTERM.value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stopped at step 5 of 20" in done.stdout
    assert Run.open(tmp_path / "run").steps == [5]
