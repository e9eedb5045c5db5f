"""Function classes with a representation, and sequences: gao24's three tasks."""

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.functional.streams import stream
from looped.prompt import Prompt, Sequence
from looped.tasks.task import NoisyTask, SequenceTask, active_mask

DRAWS = 2**18
"""Draws that estimate a label variance without a formula: good to about 1e-3."""


@dataclass(frozen=True, kw_only=True)
class Representation:
    """Phi, a fixed leaky-ReLU network named by a seed; its last layer is linear, and it has no biases.

        h <- leaky(W h), layer by layer, with W ~ N(0, 2 / ((1 + slope^2) fan-in)) (the first: N(0, 1 / fan-in))

    Ref: gao24, Sec. 5.1, which states neither widths, slope nor initialisation. These keep |h|^2 / width near 1.
    """

    inputs: int
    """Length of its input."""
    features: int
    """Length of its output."""
    hidden: int
    """Width of the hidden layers."""
    layers: int = 3
    """Layers, the last one included."""
    slope: float = 0.01
    """Slope of the leaky ReLU below 0."""
    seed: int = 0
    """Names the network."""

    def __call__(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch features"]:
        """Phi(x)."""
        *first, last = self.weights(x.device, x.dtype)
        for weight in first:
            x = F.leaky_relu(x @ weight.T, self.slope)
        return x @ last.T

    def weights(self, device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """The matrices (out, in) of the layers, drawn on the CPU, so that they are the same on every device."""
        return _weights(self, str(device), dtype)


@functools.lru_cache(maxsize=64)
def _weights(phi: Representation, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(stream(phi.seed, "representation"))
    sizes = [phi.inputs, *[phi.hidden] * (phi.layers - 1), phi.features]
    weights = []
    for layer in range(phi.layers):
        variance = (1.0 if layer == 0 else 2 / (1 + phi.slope**2)) / sizes[layer]
        normal = torch.randn(sizes[layer + 1], sizes[layer], dtype=torch.float64, generator=generator)
        weights.append((normal * variance**0.5).to(device, dtype))
    return tuple(weights)


@dataclass(frozen=True, kw_only=True)
class _FixedNetwork(NoisyTask):
    """A task whose labels are linear in the output of a fixed, unknown network Phi; the paper's sigma is `noise`."""

    features: int | None = None
    """Length of Phi's output; None is d."""
    hidden: int | None = None
    """Width of Phi's hidden layers; None is d."""
    slope: float = 0.01
    """Slope of Phi's leaky ReLU below 0."""
    representation: int = 0
    """The seed that names Phi; a model learns one Phi."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, features=self.features, hidden=self.hidden)

    @property
    def num_inputs(self) -> int:
        """Length of what Phi reads."""
        return self.d

    @cached_property
    def phi(self) -> Representation:
        """Phi."""
        features, hidden = (self.d if width is None else width for width in (self.features, self.hidden))
        return Representation(
            inputs=self.num_inputs, features=features, hidden=hidden, slope=self.slope, seed=self.representation
        )


@dataclass(frozen=True, kw_only=True)
class RepresentationRegression(_FixedNetwork):
    """Linear regression on the output of a fixed, unknown network.

        y = a'Phi(x) + noise,  a ~ N(0, I) for each prompt, Phi the same for all

    Ref: gao24, Sec. 3.1 and 5.1 (noise 0, 0.1 or 1).
    """

    @cached_property
    def label_variance(self) -> float:
        """E|Phi(x)|^2 + noise^2; the first term is a mean over fixed draws of x, good to about 1e-3."""
        x = torch.randn(DRAWS, self.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return float(self.phi(x).square().sum(-1).mean()) + self.noise**2

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, a and noise for every prompt; `dims` zeroes the later coordinates of x."""
        device = generator.device
        xs = torch.randn(batch, n, self.d, generator=generator, device=device) * active_mask(self.d, dims, device)
        a = torch.randn(batch, self.phi.features, generator=generator, device=device)
        ys = torch.einsum("bnf,bf->bn", self.phi(xs), a)
        return Prompt(xs, self.add_noise(ys, generator), truth={"a": a})


@dataclass(frozen=True, kw_only=True)
class AutoRegression(_FixedNetwork, SequenceTask):
    """A series whose next state is linear in a fixed, unknown network's output at the last `order` states.

        x_{t+1} = A Phi([x_{t+1-order}, .., x_t]) + noise,  A_ij ~ N(0, 1) for each prompt, |Phi| = 1

    Ref: gao24, Sec. 3.2 and 5.1. As printed, with Phi not scaled, the series explodes unless Phi is small (with
    PyTorch's default weights it is, and then noise drowns it). Here Phi is divided by its norm, so that the series
    stays finite for any A, with E[x^2] near 1 + noise^2. The first `order` states, which the paper does not mention,
    are drawn with that variance; they cannot be predicted and have weight 0.
    """

    order: int = 3
    """How many states the next one depends on: the paper's q."""
    noise: float = 1.0
    """Standard deviation of the noise added at every t."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, order=self.order)

    @property
    def num_inputs(self) -> int:
        """Length of what Phi reads: `order` states."""
        return self.order * self.d

    @property
    def label_variance(self) -> float:
        """1 + noise^2, since E[(A phi)_i^2] = |phi|^2 = 1 where phi does not depend on A: at the first step.

        Later states lean towards A's large directions: this adds 1% at d=20 and noise 1, 4% at d=5 and noise 0.3.
        """
        return 1 + self.noise**2

    def represent(self, window: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch features"]:
        """Phi of `order` states, oldest first, on the unit sphere."""
        return F.normalize(self.phi(window), dim=-1)

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Sequence:  # type: ignore[override]
        """`n` tokens x_1..x_n with targets x_2..x_{n+1}, a fresh A and fresh noise for every series."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        a = torch.randn(batch, self.d, self.phi.features, generator=generator, device=device)
        normal = torch.randn(batch, max(n + 1, self.order), self.d, generator=generator, device=device) * mask
        states = list((normal[:, : self.order] * self.label_variance**0.5).unbind(1))
        for t in range(self.order, n + 1):
            window = torch.cat(states[-self.order :], -1)
            moved = torch.einsum("bdf,bf->bd", a, self.represent(window)) * mask
            states.append(moved + self.noise * normal[:, t])
        series = torch.stack(states[: n + 1], 1)
        weights = (torch.arange(n, device=device) >= self.order - 1).float().expand(batch, n)
        return Sequence(series[:, :-1], series[:, 1:], weights, {"a": a})


@dataclass(frozen=True, kw_only=True)
class ChainOfThought(SequenceTask):
    """Each example shows a network's states layer by layer; every token asks for the next state.

        tokens x_1, s_1^1 .. s_1^L, x_2, ..;  s^l = leaky(W_l s^{l-1}), s^0 = x ~ N(0, I), W drawn for each prompt

    Ref: gao24, Sec. 3.3 and 5.1, after Li et al. 2023; a point is one example of L+1 tokens. After s^L comes a fresh x,
    which cannot be predicted and has weight 0. W_ij ~ N(0, 2 / ((1 + slope^2) d)), which the paper leaves open, keeps
    E[s^2] at 1 through all layers. States have a mean above 0, so predicting their mean has an error below 1.
    """

    layers: int = 6
    """Layers of the network, that is steps of the chain: the paper's L."""
    slope: float = 0.01
    """Slope of the leaky ReLU below 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, layers=self.layers)

    @property
    def tokens_per_point(self) -> int:
        """x and the state after every layer."""
        return self.layers + 1

    @property
    def label_variance(self) -> float:
        """1: W s has variance 2 |s|^2 / ((1 + slope^2) d), which the leaky ReLU multiplies by (1 + slope^2) / 2."""
        return 1.0

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Sequence:  # type: ignore[override]
        """`n` examples of layers + 1 tokens, one fresh network for every prompt."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        x = torch.randn(batch, n, self.d, generator=generator, device=device) * mask
        std = (2 / ((1 + self.slope**2) * self.d)) ** 0.5
        w = torch.randn(batch, self.layers, self.d, self.d, generator=generator, device=device) * std
        w = w * mask * mask[:, None]
        states = [x]
        for layer in range(self.layers):
            states.append(F.leaky_relu(states[-1] @ w[:, layer].mT, self.slope))
        tokens = torch.stack(states, 2)
        targets = torch.cat((tokens[:, :, 1:], torch.zeros_like(tokens[:, :, :1])), 2)
        weights = torch.ones(self.layers + 1, device=device)
        weights[-1] = 0
        return Sequence(tokens.flatten(1, 2), targets.flatten(1, 2), weights.repeat(n).expand(batch, -1), {"w": w})
