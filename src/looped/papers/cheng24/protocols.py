"""The data of cheng24's experiments, in the paper's settings and in those of the released program.

Drawing K_+ takes an eigendecomposition a prompt, far more than a training step. So Gram matrices and their roots are
drawn once into a pool; every minibatch has fresh labels and, the kernels being rotation invariant, a fresh rotation.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from looped.baselines.gaussian_process import posterior_mean
from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.functional.streams import stream
from looped.prompt import Prompt
from looped.tasks.gaussian_process import SPREAD, GaussianProcess, MixedProcess, Part

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

    protocol: str
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
        return replace(TASKS[self.protocol][self.data], rotation=self.seed)

    def generators(self, device: torch.device) -> list[torch.Generator]:
        """The streams of its minibatches, on the device and on the host, the same for everyone who asks."""
        seed = stream(self.seed, f"train/labels/{self.n}")
        return [torch.Generator(place).manual_seed(seed) for place in (device, "cpu")]


class Pool:
    """Gram matrices of a source's prompts with their roots; it never changes, so families may share it."""

    def __init__(self, source: Source, size: int, *, device: torch.device, purpose: str = "train"):
        self.source, self.device, self.purpose = source, device, purpose
        # on the host, so that every device has the same pool
        generator = torch.Generator().manual_seed(stream(source.seed, f"{purpose}/{source.data}/{source.n}"))
        xi = torch.randn(size, source.n + 1, D, generator=generator, dtype=torch.float64)
        self.xi = (xi / xi.norm(dim=-1, keepdim=True)).to(device)
        self.exact = self.xi
        if source.data != "linear":
            values, vectors = torch.linalg.eigh(source.task.raw_gram(self.xi))
            self.exact = vectors * values.abs().sqrt()[..., None, :]
        self.points, self.root = self.xi.float(), self.exact.float()
        self.sigma = source.task.root.to(device, torch.float32)

    def sample(self, batch: int, generator: torch.Generator, host: torch.Generator) -> Prompt:
        """A minibatch; `host` is a generator on the CPU.

        x = Sigma^{1/2} O xi,  y = R z,  R R' = K_+,  z ~ N(0, I), O a rotation common to the minibatch
        """
        rows = torch.randint(len(self.xi), (batch,), generator=generator, device=self.device)
        turn = self.sigma
        if self.source.data != "mixed":
            turn = torch.linalg.qr(torch.randn(D, D, generator=host))[0].to(self.device) @ self.sigma
        return Prompt(self.points[rows] @ turn, self._labels(self.root[rows], generator))

    def all(self) -> Prompt:
        """Every prompt of the pool once, with one draw of labels."""
        generator = torch.Generator(self.device).manual_seed(stream(self.source.seed, f"{self.purpose}/all"))
        return Prompt(self.points @ self.sigma, self._labels(self.root, generator))

    def bayes(self, prompt: Prompt) -> float:
        """The mean squared error of the Bayes estimator on the prompts of `all`."""
        guess = posterior_mean(prompt, self.exact @ self.exact.mT)[:, -1]
        return float((guess - prompt.ys[:, -1]).square().mean())

    def _labels(self, root: Tensor, generator: torch.Generator) -> Tensor:
        normal = torch.randn(len(root), root.shape[-1], 1, generator=generator, device=self.device)
        return (root @ normal)[..., 0]
