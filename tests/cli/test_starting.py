"""Ctrl-C and SIGTERM at moments where an exception would be lost: while modules are imported, and in a destructor."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import looped

SOURCES = Path(looped.__file__).parents[1]
STOPPED = (1, f"looped: {looped.signals.STOPPED}\n")
SWALLOWED = """
import signal

try:
    signal.raise_signal(signal.{number})
except BaseException:
    pass
"""
RAISED = "import signal\n\nsignal.raise_signal(signal.{number})\n"
DESTRUCTOR = """
import signal

class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.{number})

def theorems():
    Interrupted()
    return {{}}
"""


@pytest.fixture
def interrupted(tmp_path):
    """Run Python where a module brings a signal whose exception is lost; its exit code and what it said."""

    def run(module, *arguments, program=SWALLOWED, number="SIGINT"):
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / f"{module}.py").write_text(program.format(number=number))
        paths = {"PYTHONPATH": f"{tmp_path / 'first'}{os.pathsep}{SOURCES}"}
        command = [sys.executable, *arguments]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | paths)
        finally:
            signal.signal(signal.SIGINT, before)
        return done.returncode, done.stderr

    return run


def console_script(folder):
    """What an installer writes for the entry point of pyproject.toml."""
    scripts = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]["scripts"]
    module, name = scripts["looped"].split(":")
    file = folder / "looped"
    file.write_text(f"import sys\nfrom {module} import {name}\nsys.exit({name}())\n")
    return str(file)


@pytest.mark.parametrize(("how", "module"), [("-m", "torch"), ("script", "torch"), ("script", "typer")])
def test_an_interrupt_during_the_imports_is_one_line(interrupted, tmp_path, module, how):
    start = ["-m", "looped"] if how == "-m" else [console_script(tmp_path)]
    assert interrupted(module, *start, "list") == STOPPED


LATE = """
import looped.theorems.check, sys
sys.argv, sys.orig_argv = ["looped", "list", "theorems"], []
import looped.__main__ as command, looped, signal
signal.signal(signal.{number}, looped.signals.stop_at_once)
{change}
command.main()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("program", "change"),
    [
        (SWALLOWED, "looped.theorems.check.theorems = lambda: __import__('late')"),
        (DESTRUCTOR, "import late; looped.theorems.check.theorems = late.theorems"),
    ],
)
def test_a_signal_whose_exception_would_be_lost_ends_the_command(interrupted, program, change, number):
    start = LATE.format(change=change, number=number)
    assert interrupted("late", "-c", start, program=program, number=number) == STOPPED


@pytest.mark.parametrize("how", [["-c", "import looped; looped.load"], ["-m", "program"]])
def test_an_interrupt_while_a_program_imports_the_library_is_the_programs(interrupted, tmp_path, how, monkeypatch):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text("import looped\n\nlooped.load\n")
    monkeypatch.chdir(tmp_path)
    code, error = interrupted("torch", *how, program=RAISED)
    assert code != 0
    assert error.endswith("KeyboardInterrupt\n")
