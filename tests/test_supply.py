"""What development installs is pinned: a list that is checked without a network, against constraints.txt."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

Requirement = pytest.importorskip("packaging.requirements").Requirement
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    """Package to version, as constraints.txt says."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    for line in filter(None, lines):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), f"{line} names no single version"
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if name}


def needed():
    """Everything that the package and its extras `dev` and `docs` lead to, as far as it is installed."""
    extras = PROJECT["optional-dependencies"]
    left = [Requirement(text) for text in (*PROJECT["dependencies"], *extras["dev"], *extras["docs"])]
    versions, seen = {}, set()
    while left:
        asked = left.pop()
        key = (canonical(asked.name), frozenset(asked.extras))
        if key in seen:
            continue
        seen.add(key)
        if key[0] == "looped":
            left += [Requirement(text) for extra in asked.extras for text in extras[extra]]
            continue
        try:
            installed = metadata.distribution(asked.name)
        except metadata.PackageNotFoundError:  # an extra that this machine did not install
            continue
        versions[key[0]] = installed.version
        for need in map(Requirement, installed.requires or []):
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras))
            left += [need] if wanted else []
    return versions


def test_what_is_installed_for_development_is_pinned_at_its_version():
    pinned, versions = pins(), needed()
    assert {"torch", "pytest", "numpy", "markupsafe"} <= set(versions), "the walk over the requirements is broken"
    public = {name: version.partition("+")[0] for name, version in versions.items()}  # 2.13.0+cpu is 2.13.0
    assert {name: (version, pinned.get(name)) for name, version in public.items() if pinned.get(name) != version} == {}


def test_every_requirement_is_met_by_its_pin():
    pinned, extras = pins(), PROJECT["optional-dependencies"]
    for need in map(Requirement, (*PROJECT["dependencies"], *extras["dev"], *extras["docs"])):
        if canonical(need.name) != "looped":
            assert need.specifier.contains(pinned[canonical(need.name)]), need


def test_packages_come_from_the_index_by_name():
    """No address, no file and no branch stands where a name should."""
    every = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    assert not [text for text in every if Requirement(text).url]
    options = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip().startswith("-")]
    assert not options


def test_results_name_no_folder_of_one_machine():
    commands = [
        line.strip()
        for path in (ROOT / "results").rglob("*.json")
        for line in path.read_text().splitlines()
        if re.match(r'\s*"(command|run)": ', line)
    ]
    assert commands
    assert [line for line in commands if re.search(r'[ "=]/\w', line)] == []


def test_every_place_that_names_the_version_names_this_one():
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src" / "looped" / "__init__.py").read_text())[1]
    places = {
        "CITATION.cff": r"(?m)^version: (.*)$",
        "README.md": r"note   = \{Version (.*)\}",
        "CHANGELOG.md": r"# Changelog\n\n## (\S*) - ",
    }
    named = {file: re.search(pattern, (ROOT / file).read_text())[1] for file, pattern in places.items()}
    assert named == dict.fromkeys(places, version)
    released = re.search(r"(?m)^date-released: (.*)$", (ROOT / "CITATION.cff").read_text())[1]
    assert f"## {version} - {released}\n" in (ROOT / "CHANGELOG.md").read_text()
