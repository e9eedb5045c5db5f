"""The data of cheng24's experiments, in the paper's settings and in those of the released program.

Drawing K_+ takes an eigendecomposition a prompt, far more than a training step. So Gram matrices and their roots are
drawn once into a pool; every minibatch has fresh labels and, the kernels being rotation invariant, a fresh rotation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.gaussian_process import posterior_mean
from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.prompt import Prompt
from looped.tasks.gaussian_process import SPREAD, GaussianProcess, MixedProcess, Part
from looped.training.trainer import stream

D = 5
HEADS: dict[str, Kernel] = {"linear": kernels.linear, "relu": kernels.relu, "exp": kernels.exp, "softmax": softmax}
"""h, Eq. (12)."""
HALF = Part(kernel=kernels.exp, scales=(0.5**0.5,) * D)
"""exp(<u, v> / 2)."""
TASKS: dict[str, dict[str, GaussianProcess]] = {
    "paper": {
        "linear": GaussianProcess(kernel=kernels.linear),
        "relu": GaussianProcess(kernel=kernels.relu),
        "exp": GaussianProcess(kernel=kernels.exp),
        "mixed": MixedProcess(),
    },
    "released": {
        "linear": GaussianProcess(kernel=kernels.linear, eigenvalues=(1.0,) * D),
        "relu": GaussianProcess(kernel=kernels.relu, eigenvalues=(1.0,) * D),
        "exp": MixedProcess(parts=(HALF,), eigenvalues=(1.0,) * D),
        "mixed": MixedProcess(eigenvalues=(1.0,) * D),
    },
}
"""K by name: `paper` has D = (1, 1, .25, 2.25, 1) and exp(<u, v>), `released` D = I and exp(<u, v> / 2)."""
assert TASKS["paper"]["exp"].eigenvalues == SPREAD


@dataclass(frozen=True, kw_only=True)
class Source:
    """What one seed's prompts are drawn from."""

    world: str
    """paper or released."""
    data: str
    """K: linear, relu, exp or mixed."""
    n: int
    """Examples a prompt."""
    seed: int
    """Names U, the pool and the stream of prompts; all h and depths see the same ones."""

    @property
    def task(self) -> GaussianProcess:
        """The task with this seed's rotation U."""
        return replace(TASKS[self.world][self.data], rotation=self.seed)

    @property
    def root(self) -> Float[Tensor, "d d"]:
        """Sigma^{1/2}."""
        return self.task.root


class Pool:
    """Prompts of a source: fixed Gram matrices, fresh labels and rotations."""

    def __init__(self, source: Source, size: int, *, device: torch.device, purpose: str = "prompts"):
        self.source, self.device = source, device
        # on the host: a device's own generator gives other numbers
        self.generator = torch.Generator().manual_seed(stream(source.seed, f"{purpose}/{source.data}/{source.n}"))
        xi = torch.randn(size, source.n + 1, D, generator=self.generator, dtype=torch.float64)
        self.xi = (xi / xi.norm(dim=-1, keepdim=True)).to(device)
        if source.data == "linear":
            root = self.xi
        else:
            values, vectors = torch.linalg.eigh(source.task.raw_gram(self.xi))
            root = vectors * values.abs().sqrt()[..., None, :]
        self.exact = root
        self.root, self.points = root.float(), self.xi.float()
        self.sigma = source.root.to(device, torch.float32)
        self.gpu = (
            torch.Generator(device).manual_seed(stream(source.seed, f"{purpose}/labels"))
            if device.type == "cuda"
            else self.generator
        )

    def sample(self, batch: int) -> Prompt:
        """A minibatch of fresh labels; its Gram matrices are drawn from the pool.

        x = Sigma^{1/2} O xi,  y = R z,  R R' = K_+,  z ~ N(0, I), O a rotation common to the minibatch
        """
        rows = torch.randint(len(self.xi), (batch,), generator=self.gpu, device=self.device)
        turn = self.sigma
        if self.source.data != "mixed":
            normal = torch.randn(D, D, generator=self.generator)
            turn = torch.linalg.qr(normal)[0].to(self.device) @ self.sigma
        root = self.root[rows]
        normal = torch.randn(batch, root.shape[-1], 1, generator=self.gpu, device=self.device)
        return Prompt(self.points[rows] @ turn, (root @ normal)[..., 0])

    def all(self) -> Prompt:
        """Every prompt of the pool once, with one draw of labels."""
        normal = torch.randn(len(self.xi), self.exact.shape[-1], 1, generator=self.gpu, device=self.device)
        return Prompt(self.points @ self.sigma, (self.root @ normal)[..., 0])

    def bayes(self, prompt: Prompt) -> float:
        """The mean squared error of the Bayes estimator on the prompts of `all`."""
        guess = posterior_mean(prompt, self.exact @ self.exact.mT)[:, -1]
        return float((guess - prompt.ys[:, -1]).square().mean())


def describe(world: str) -> dict[str, Any]:
    """The settings as data, for the figure's record."""
    spread = list(TASKS[world]["linear"].eigenvalues)
    return {"eigenvalues": spread, "exp": "exp(<u,v>)" if world == "paper" else "exp(<u,v>/2)"}
