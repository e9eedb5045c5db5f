"""Shapes are checked in every test: jaxtyping reads the annotations, beartype holds them."""

import os
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import jaxtyping

jaxtyping.install_import_hook("looped", "shapes.check")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def unchecked():
    """What a user meets, who has no shape checker in front of our own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


torch.set_num_threads(1)  # for fixtures of a module, which are set up before those of a test


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors run fastest on one thread, and two test processes share two cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the OpenML tables and of Multi30k: `LOOPED_DATA`, or shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("LOOPED_DATA") or beside)
    if not (folder / "openml").is_dir():
        pytest.skip("the data files are not here: set LOOPED_DATA to the folder that holds openml/ and translation/")
    return folder


@pytest.fixture
def call(capsys):
    """Run a command in this process, as a user would type it: exit code, standard output and standard error."""
    from looped.cli import main

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run
