"""README and docs: their Python runs as written, their commands exist, their files and links are there."""

import contextlib
import importlib.util
import io
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import pytest
import typer

from looped.cli import app
from looped.cli.evaluate import read_shift
from looped.config import override
from looped.recipes import experiment, recipes
from looped.reproduce import select
from looped.theorems.check import select as select_theorems
from looped.training.trials import read_axes, trials

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = {"README.md": ROOT / "README.md", **{str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}}
PAGES = {name: path.read_text() for name, path in FILES.items()}
PRINTED = r"\n\n<!-- printed -->\n```text\n(?P<printed>.*?)```"
BLOCK = re.compile(rf"(?P<mark><!-- not run: .+ -->\n)?```python\n(?P<code>.*?)```(?:{PRINTED})?", re.DOTALL)
GROUP = typer.main.get_command(app)


def prose(text):
    """A page without its fenced code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def commands(text):
    """The `looped ...` lines of a page: indented ones, up to the gap before a remark, and those within a sentence."""
    lines = re.findall(r"^ {4}(?:\S.* -m )?(looped .*?)(?: {3,}|$)", prose(text), re.MULTILINE)
    within = re.findall(r"`(looped [^`]+)`", re.sub(r"^ {4}.*", "", prose(text), flags=re.MULTILINE))
    return [re.sub(r"\[([A-Z]+)(?:\.\.\.)?\]", r"\1", " ".join(line.split())) for line in [*lines, *within]]


def blocks(text):
    return [(match["code"], match["mark"] is None) for match in BLOCK.finditer(text)]


def printed(text):
    """What a page says that each of its blocks prints; None where it does not say."""
    return [match["printed"] for match in BLOCK.finditer(text)]


def words_and_numbers(text):
    """An output cut at its decimal numbers: the words between them, and the numbers."""
    parts = re.split(r"(-?\d+\.\d+(?:e-?\d+)?)", text)
    return parts[::2], [float(number) for number in parts[1::2]]


def agree(output, said):
    """Whether a page shows an output, but for rounding, which differs between machines."""
    (words, numbers), (said_words, said_numbers) = words_and_numbers(output), words_and_numbers(said)
    return words == said_words and numbers == pytest.approx(said_numbers, rel=0.05, abs=2e-5)


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```python" in text])
@pytest.mark.usefixtures("unchecked")  # as a reader runs them
def test_python_blocks_run_as_written(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"page_{Path(page).stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where its dataclasses look themselves up
    for (code, runs), said in zip(blocks(PAGES[page]), printed(PAGES[page]), strict=True):
        compile(code, page, "exec")
        if not runs:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if named := re.match(r"# (\w+)\.py\n", code):  # a file of the user's own, which later blocks may use
                Path(f"{named[1]}.py").write_text(code)
                spec = importlib.util.spec_from_file_location(named[1], f"{named[1]}.py")
                own_file = importlib.util.module_from_spec(spec)
                monkeypatch.setitem(sys.modules, named[1], own_file)
                spec.loader.exec_module(own_file)
                vars(module).update({key: thing for key, thing in vars(own_file).items() if key[:2] != "__"})
            else:
                exec(compile(code, page, "exec"), vars(module))
        if said is not None:
            assert agree(output.getvalue(), said), f"run `python tools/printed_blocks.py` ({page})"


def test_another_output_is_found():
    assert agree("20 loops: 0.0203", "20 loops: 0.0200")
    for other in ("20 loops: 0.0300", "21 loops: 0.0200", "20 loops"):
        assert not agree(other, "20 loops: 0.0200")


def test_few_blocks_are_not_run():
    assert sum(not runs for text in PAGES.values() for _, runs in blocks(text)) <= 3


def test_the_files_on_a_page_work_on_the_command_line(call, monkeypatch, tmp_path):
    page = "own_code.md"
    monkeypatch.chdir(tmp_path)
    written = {match[1]: code for code, _ in blocks(PAGES[page]) if (match := re.match(r"# (\w+)\.py\n", code))}
    for name, code in written.items():
        Path(f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    asked = {name for command in commands(PAGES[page]) for name in command.split() if ".py:" in name}
    for name in sorted(name for name in asked if name.partition(".")[0] in written):
        command = "reproduce" if "study" in name else "train"
        code, _, error = call(command, name, "--scale", "smoke", "--device", "cpu", "--quiet")
        assert code == 0, (name, error)
    for name in written:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if commands(text)])
def test_commands_exist_with_their_options_and_names(page):
    for command in commands(PAGES[page]):
        _, name, *arguments = shlex.split(command)
        assert name in GROUP.commands, command
        try:
            context = GROUP.commands[name].make_context(name, arguments)
        except Exception as error:
            if type(error).__name__ != "MissingParameter":  # a sentence may name a command without its arguments
                raise AssertionError(f"{page}: `{command}`: {error}") from error
        else:
            check_names(name, context.params)


def check_names(command, given):
    """The recipes, fields, figures, theorems and shifts that a command names are there; placeholders pass."""
    recipe = given.get("recipe")
    if command == "bench":
        assert {*(recipe or ())} <= {*recipes()}
    elif recipe in recipes():
        base = override(experiment(recipe, given["scale"]), given.get("set_") or [])
        if command == "sweep":
            trials(base, read_axes([field for field in given["fields"] or [] if "." in field]))
    elif recipe is not None:
        assert recipe.isupper() or ".py" in recipe or "=" in recipe
    if command == "reproduce":
        select([name for name in given["names"] if not name.isupper() and ".py" not in name])
    if command == "verify":
        select_theorems([name for name in given["names"] or [] if not name.isupper()])
    for shift in given.get("shift") or []:
        read_shift(shift)


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_at_most_100_columns(page):
    # a row of a table, a picture and an indented command cannot be broken
    lines = [line for line in prose(PAGES[page]).splitlines() if not line.startswith(("|", "!", "    "))]
    assert [line for line in lines if len(line) > 100] == []


PLACES = ("", "src/looped/", "docs/", "examples/", *(f"src/looped/papers/{paper}/" for paper in
          ("yang24", "gao24", "cheng24", "gatmiry24")))  # fmt: skip


@pytest.mark.parametrize("page", [name for name in PAGES if name != "upgrading.md"])
def test_files_that_a_page_names_are_there(page):
    named = set(re.findall(r"`([a-z]\w*(?:/\w+)*\.(?:py|md))`", prose(PAGES[page])))
    there = {name for name in named for place in PLACES if (ROOT / place / name).is_file()}
    assert {name for name in named - there if not name.startswith("my_")} == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", prose(PAGES[page])):
        assert (FILES[page].parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    sections = tomllib.loads((DOCS / "navigation.toml").read_text())["section"]
    assert sorted(PAGES) == sorted(["README.md", *(name for section in sections for name in section["pages"])])


def test_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 130
