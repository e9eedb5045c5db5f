"""What `looped --help` and `import looped` cost: no torch, and the same words as the commands' own."""

import subprocess
import sys

import typer

import looped
from looped.cli import COMMANDS, app


def fresh(program):
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_help_and_version_do_not_import_torch():
    run = """
import sys
from looped.cli import main
try:
    main([sys.argv[1]])
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
    for option in ("--help", "--version"):
        program = run.replace("sys.argv[1]", repr(option))
        shown, end = fresh(program).rstrip().rsplit("\n", 1)
        assert end == "0 False"
        assert shown.startswith(f"looped {looped.__version__}") or all(name in shown for name in COMMANDS)


def test_help_says_what_the_commands_say(capsys):
    group = typer.main.get_command(app)
    assert list(group.commands) == list(COMMANDS)
    group(["--help"], prog_name="looped", standalone_mode=False)
    whole = capsys.readouterr().out
    assert fresh("from looped.cli import main\nmain(['--help'])") == whole


def test_every_name_can_be_imported_and_others_cannot():
    lazy = {"InContextClassifier", "InContextRegressor"}
    names = [*looped.__all__, *lazy]
    assert [name for name in names if not hasattr(looped, name)] == []
    assert set(names) == {name for group in looped.PLACES.values() for name in group}
    assert set(names) <= set(dir(looped)) | lazy
    assert not hasattr(looped, "nonsense")
    assert fresh("import looped, sys; print('torch' in sys.modules)").strip() == "False"
