"""Shapes are checked in every test: jaxtyping reads the annotations, beartype holds them."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from jaxtyping import install_import_hook

install_import_hook("looped", "shapes.check")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors run fastest on one thread, and two test processes share two cores."""
    torch.set_num_threads(1)
