"""Independent random streams from one seed, and torch's global generators, from which a model of your own may draw."""

import contextlib
import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor


def stream(seed: int, purpose: str) -> int:
    """The seed of one of a run's independent random streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:7], "big")


@contextlib.contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Seed torch's global generators, on the CPU and on all GPUs; afterwards they are as they were.

    As a decorator, `@seeded(0, "evaluation")`, it makes a function give the same numbers at every call.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(stream(seed, purpose))
        yield


class GlobalStream:
    """A stream of its own for code that draws from torch's global generators, such as `randn_like` and `nn.Dropout`."""

    def __init__(self, seed: int, purpose: str, device: torch.device):
        self.device = device
        with seeded(seed, purpose):
            self.first = self.state = self._read()

    @property
    def drawn(self) -> dict[str, Tensor]:
        """Its state, to be saved; empty where nothing was drawn yet."""
        return {} if all(torch.equal(self.first[place], state) for place, state in self.state.items()) else self.state

    def go_on(self, drawn: dict[str, Tensor]) -> None:
        """Go on from a saved state; what was saved on another device has none of this one."""
        self.state = {place: drawn.get(place, state) for place, state in self.first.items()}

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Let the global generators be this stream, and go on with it the next time."""
        before = self._read()
        self._write(self.state)
        try:
            yield
        finally:
            self.state = self._read()
            self._write(before)

    def _write(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.device)

    def _read(self) -> dict[str, Tensor]:
        on_gpu = {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state(), **on_gpu}
