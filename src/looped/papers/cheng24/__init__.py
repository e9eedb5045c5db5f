"""cheng24, Transformers Implement Functional Gradient Descent: recipes; the figures are in `figures`.

A recipe is one line of Figure 1 or 4 as an ordinary training run: three layers, 14 examples, labels from a Gaussian
process. The figures train whole families at once, with data that several models share; see `families`.
"""

from dataclasses import replace

from looped.experiment import Adam, Experiment, Scale, TrainConfig
from looped.functional import kernels
from looped.functional.attention import softmax as masked_softmax
from looped.functional.kernels import Kernel
from looped.functional.schedules import Trapezoid
from looped.models.kernel_transformer import functional
from looped.papers.cheng24.protocols import TASKS, D
from looped.tasks.gaussian_process import GaussianProcess

CPU = TrainConfig(
    steps=600,
    batch=256,
    points=15,
    optimizer=Adam(learning_rate=0.02, betas=(0.9, 0.99), clip=1.0, schedule=Trapezoid(decay=0.9)),
    log_every=20,
    checkpoint_every=200,
)
"""Adam with clipping, as App. H.1 says; it states neither rate nor steps."""
SIZES = {
    "smoke": replace(CPU, steps=20, batch=16, log_every=5),
    "cpu": CPU,
    "paper": replace(CPU, steps=2000, batch=30_000, log_every=50, checkpoint_every=500),
}


def linear(scale: Scale = "cpu") -> Experiment:
    """Linear attention on linear labels, three layers, n = 14 (Fig. 1a)."""
    return _experiment("linear", TASKS["paper"]["linear"], kernels.linear, scale)


def relu(scale: Scale = "cpu") -> Experiment:
    """ReLU attention on labels from a ReLU process, three layers, n = 14 (Fig. 1b)."""
    return _experiment("relu", TASKS["paper"]["relu"], kernels.relu, scale)


def exp(scale: Scale = "cpu") -> Experiment:
    """Exponential attention on labels from an exponential process, three layers, n = 14 (Fig. 1c)."""
    return _experiment("exp", TASKS["paper"]["exp"], kernels.exp, scale)


def softmax(scale: Scale = "cpu") -> Experiment:
    """Softmax attention on labels from an exponential process, three layers, n = 14 (Fig. 1c and 3)."""
    return _experiment("softmax", TASKS["paper"]["exp"], masked_softmax, scale)


def two_heads(scale: Scale = "cpu") -> Experiment:
    """A linear and an exponential head on labels from the mixed process, three layers, n = 14 (Fig. 4c)."""
    return _experiment("two_heads", TASKS["paper"]["mixed"], (kernels.linear, kernels.exp), scale)


def _experiment(name: str, task: GaussianProcess, kernel: Kernel | tuple[Kernel, ...], scale: Scale) -> Experiment:
    # a sum over n examples has A and r of the order of 1/n; the softmax is a mean already
    model = functional(d=D, loops=3, layers=3, kernel=kernel, mean=kernel is not masked_softmax)
    return Experiment(name=f"cheng24.{name}", task=task, model=model, train=SIZES[scale])
