"""Ctrl-C before a command has begun, while its modules are being imported."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import looped

SOURCES = Path(looped.__file__).parents[1]
INTERRUPT = "import signal\n\nsignal.raise_signal(signal.SIGINT)\n"


@pytest.fixture
def interrupted(tmp_path):
    """Run Python where importing a module brings a real SIGINT; its exit code and what it said."""

    def run(module, *arguments):
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / f"{module}.py").write_text(INTERRUPT)
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
    assert interrupted(module, *start, "list") == (1, "looped: stopped.\n")


@pytest.mark.parametrize("how", [["-c", "import looped; looped.load"], ["-m", "program"]])
def test_an_interrupt_while_a_program_imports_the_library_is_the_programs(interrupted, tmp_path, how, monkeypatch):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text("import looped\n\nlooped.load\n")
    monkeypatch.chdir(tmp_path)
    code, error = interrupted("torch", *how)
    assert code != 0
    assert error.endswith("KeyboardInterrupt\n")
