"""Ready-made constructions and the algorithms that they run: what `looped construct` offers.

Each takes the dimension, the number of examples before the query, and the number of loops. Where it is a model of a
task, it chooses rates that are safe for the task's prompts, with some slack: for x ~ N(0, I) the eigenvalues of X'X are
about n (1 +- sqrt(d/n))^2 (Marchenko and Pastur), for other tasks they are those of prompts drawn beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.constructions import gradient_descent, newton, vector_generation
from looped.constructions.compiler import construct
from looped.constructions.gao24 import cases, gradient, newton_regression, prefix_descent
from looped.constructions.gao24.cases import Case
from looped.constructions.gao24.gradient import Dense
from looped.functional import descent, kernels
from looped.functional.kernels import Kernel
from looped.functional.polynomials import chebyshev_roots
from looped.models.algoformer import given
from looped.models.base import LoopedModel
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.gaussian_process import GaussianProcess, MixedProcess, Part
from looped.tasks.regression import LinearRegression
from looped.tasks.sequences import RepresentationRegression
from looped.tasks.task import Task
from looped.tasks.vector_generation import VectorGeneration

SLACK = 1.4
"""How far, as a factor, the eigenvalues of finite prompts may lie outside the limiting interval."""
PROMPTS = 4
"""Prompts of a task on which a construction is compared with its algorithm."""


@dataclass(frozen=True, kw_only=True)
class Construction:
    """A theorem's weights, and prompts with the answers of the algorithm that these weights run."""

    model: LoopedModel
    """The weights, in float64."""
    algorithm: str
    """The algorithm in one line."""
    prompt: AnyPrompt
    """What both are asked."""
    expected: Float[Tensor, "loops *answers"]
    """The algorithm's answers after every loop, computed without a transformer."""
    compared: slice = field(default_factory=lambda: slice(None))
    """The positions of the model's answers that are compared."""
    task: Task | None = None
    """The task whose prompts it answers; None: it reads tokens that no task samples."""

    @torch.no_grad()
    def answers(self) -> Float[Tensor, "loops *answers"]:
        """The model's answers after every loop."""
        loops = len(self.expected)
        return self.model(self.prompt, loops=loops, keep=loops)[:, :, self.compared]

    def errors(self, answers: Float[Tensor, "loops *answers"] | None = None) -> Float[Tensor, " loops"]:
        """The largest difference from the algorithm after every loop, relative to the largest of its answers."""
        answers = self.answers() if answers is None else answers
        largest = self.expected.abs().flatten(1).amax(1)
        return (answers - self.expected).abs().flatten(1).amax(1) / largest.where(largest > 0, 1.0)


def check_more_examples(d: int, examples: int) -> None:
    """Raise unless there are more examples than dimensions."""
    if examples <= d:
        raise ValueError(f"`examples` must be above d={d}, or X'X is nearly singular; got {examples}.")


def spectrum(d: int, examples: int) -> tuple[float, float]:
    """The interval that holds the eigenvalues of X'X for almost every prompt of `examples` pairs."""
    check_more_examples(d, examples)
    ratio = (d / examples) ** 0.5
    low = examples * max(1 - ratio, 0.1) ** 2
    return low / SLACK, SLACK * examples * (1 + ratio) ** 2


def gatmiry24_thm5(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent as a loop of linear attention (gatmiry24, Thm. 5)."""
    rate = 2 / sum(spectrum(d, examples))
    model = gradient_descent.looped_descent(d=d, n=examples, loops=loops, rate=rate)
    algorithm = f"gradient descent, w <- w - {rate:.3g} X'(X w - y) from w = 0"
    return _descent(model, LinearRegression(d=d), examples, rate=rate, algorithm=algorithm)


def gatmiry24_thm2(d: int, examples: int, loops: int) -> Construction:
    """Chebyshev's method as layers of linear attention (gatmiry24, Thm. 2); more loops than layers make no sense."""
    low, high = spectrum(d, examples)
    model = gradient_descent.chebyshev_descent(d=d, n=examples, loops=loops, low=low, high=high)
    algorithm = f"gradient descent from w = 0 whose rates are 1 / the roots of Chebyshev's polynomial of degree {loops}"
    rates = 1 / chebyshev_roots(loops, low, high)[:, None]
    return _descent(model, LinearRegression(d=d), examples, rate=rates, algorithm=algorithm)


def gatmiry24_thm4(d: int, examples: int, loops: int) -> Construction:
    """Newton's method as a loop of linear attention (gatmiry24, Thm. 4, corrected)."""
    alpha = 1 / spectrum(d, examples)[1] ** 2
    model = newton.newton_loop(d=d, n=examples, loops=loops, alpha=alpha)
    return _newton(model, d, examples, alpha=alpha, num_before=newton.NUM_BEFORE)


def chen24_thm4_2(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent from any start as a causal loop of linear attention (chen24, Thm. 4.2)."""
    task, model = VectorGeneration(d=d), vector_generation.gaussian_generator(d, examples, loops)
    rate, prompt = vector_generation.safe_rate(d, examples), _draw(task, examples)
    # the task's q is 0; the theorem allows any
    prompt.xs[:, -1] = torch.randn(PROMPTS, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alpha = prompt.ys[:, -1:]
    xs, ys, start = prompt.xs[:, :-1], prompt.ys[:, :-1], -prompt.xs[:, -1] / alpha
    thetas = descent.gradient_descent(xs, ys, steps=loops, rate=rate, start=start)[1:]
    algorithm = f"alpha theta, theta <- theta - {rate:.3g} X'(X theta - y) from theta = -q / alpha"
    return Construction(model=model, algorithm=algorithm, prompt=prompt, expected=alpha * thetas, task=task)


def cheng24_prop3_1(d: int, examples: int, loops: int) -> Construction:
    """Functional gradient descent as a loop of kernel attention with one head (cheng24, Prop. 3.1)."""
    task = GaussianProcess(d=d, kernel=kernels.exp, eigenvalues=(1.0,) * d, whiten=False)
    identity = torch.eye(d, dtype=torch.float64)
    return _functional_descent(task, (kernels.exp,), [identity], examples, loops, kernel="K = exp<u, v>")


def cheng24_propD_1(d: int, examples: int, loops: int) -> Construction:
    """Functional gradient descent as a loop of two heads with different kernels (cheng24, Prop. D.1)."""
    if d < 2:
        raise ValueError(f"`d` must be at least 2, since the two heads read different coordinates; got {d}.")
    half = d // 2
    scales = ((1.0,) * half + (0.0,) * (d - half), (0.0,) * half + (1.0,) * (d - half))
    heads = (kernels.linear, kernels.exp)
    parts = tuple(Part(kernel=kernel, scales=scale) for kernel, scale in zip(heads, scales, strict=True))
    task = MixedProcess(d=d, parts=parts, eigenvalues=(1.0,) * d, whiten=False)
    maps = [torch.tensor(scale, dtype=torch.float64).diag() for scale in scales]
    kernel = f"K = linear on x_1..x_{half} + exp on x_{half + 1}..x_{d}"
    return _functional_descent(task, heads, maps, examples, loops, kernel=kernel)


def gao24_thm3_1(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent on a representation of x as an AlgoFormer with softmax attention (gao24, Thm. 3.1)."""
    task = RepresentationRegression(d=d)
    *hidden, last = (weight.numpy() for weight in task.phi.weights(torch.device("cpu")))
    phi = [Dense(weight, np.zeros(len(weight)), task.slope) for weight in hidden]
    phi.append(Dense(last, np.zeros(len(last)), 1.0))
    features = task.phi(_draw(task, examples, prompts=64, seed=1).xs[:, :-1])
    eta = examples * _safe_rate(features.mT @ features)
    model = construct(gradient.theorem_31(phi, outputs=1, num_examples=examples, eta=eta), loops=loops)
    algorithm = f"gradient descent, a <- a - {eta:.3g} / n sum_j (a'Phi(x_j) - y_j) Phi(x_j) from a = 0"
    return _descent(model, task, examples, rate=eta / examples, algorithm=algorithm, features=task.phi)


def gao24_thm3_2(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent on AR(3) with a representation as an AlgoFormer (gao24, Thm. 3.2)."""
    case = cases.theorem_32(d, 3, (2 * d, d), examples, steps=loops)
    algorithm = (
        "A <- A - eta / n sum_t (A Phi_t - x_(t+1)) Phi_t' from A = 0, Phi of 2 layers, eta safe for these prompts"
    )
    return _from_case(case, algorithm)


def gao24_thm3_3(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent on chains of thought, asked in the middle of one, as an AlgoFormer (gao24, Thm. 3.3)."""
    case = cases.theorem_33(d, 3, examples, place=1, steps=loops)
    fitted = f"leaky(W s) at s = s^1, W by gradient descent from W = 0 on {examples} chains of 3 steps"
    return _from_case(case, f"{fitted}, eta safe for these prompts; labels pass the inverse activation")


def gao24_thm4_1(d: int, examples: int, loops: int) -> Construction:
    """Newton's method as an AlgoFormer with softmax attention (gao24, Thm. 4.1)."""
    alpha = 1 / spectrum(d, examples)[1] ** 2
    program = newton_regression.theorem_41(d=d, num_examples=examples, alpha=alpha)
    return _newton(construct(program, loops=loops), d, examples, alpha=alpha)


def gao24_thm4_2(d: int, examples: int, loops: int) -> Construction:
    """Gradient descent as a causal AlgoFormer with softmax attention (gao24, Thm. 4.2)."""
    # the i-th prefix averages over i-1 pairs, so the rate is limited by the first one, whose |x|^2 is d on average
    rate = 1 / (SLACK * (d + 2 * d**0.5))
    task = LinearRegression(d=d)
    prompt = _draw(task, examples)
    xs = prompt.xs.numpy()
    w = cases.decoder_weights(xs, prompt.ys.numpy(), np.zeros_like(xs), eta=rate, steps=loops)
    return Construction(
        model=construct(prefix_descent.theorem_42(d=d, num_pairs=examples + 1, eta=rate), loops=loops),
        algorithm=f"at every x_i, w <- w - {rate:.3g} / (i-1) sum_(j<i) (<w, x_j> - y_j) x_j from w = 0",
        prompt=prompt,
        expected=torch.from_numpy((w * xs).sum(-1)),
        task=task,
    )


def gao24_lemA_2(d: int, examples: int, loops: int) -> Construction:
    """The layer of two softmax heads that takes a gradient step on two outputs (gao24, Lemma A.2)."""
    case = cases.lemma_a2(d, 2, examples, steps=loops)
    return _from_case(case, "A <- A - eta / n sum_j (A x_j - y_j) x_j' from a random A, eta = n / |X'X|, at every x")


def gao24_lemA_3(d: int, examples: int, loops: int) -> Construction:
    """The layer of three softmax heads that copies the previous three tokens (gao24, Lemma A.3)."""
    case = cases.lemma_a3(d, 3, examples, steps=loops)
    return _from_case(case, "x_(t-1), x_(t-2), x_(t-3) at every token t, 0 before the start; each loop adds them again")


def gao24_lemA_4(d: int, examples: int, loops: int) -> Construction:
    """The layer of two softmax heads that takes a Newton step (gao24, Lemma A.4)."""
    check_more_examples(d, examples)
    case = cases.lemma_a4(d, examples, kappa=10, steps=loops)
    return _from_case(case, "M x_i, M <- 2 M - M S M from M = S, S = X'X of norm 1 and condition number 10")


def gao24_lemA_5(d: int, examples: int, loops: int) -> Construction:
    """The causal layer of two softmax heads that takes a gradient step at every x (gao24, Lemma A.5)."""
    case = cases.lemma_a5(d, examples + 1, steps=loops)
    step = "w^i <- w^i - eta / (i-1) sum_(j<i) (<w^i, x_j> - y_j) x_j"
    return _from_case(case, f"{step} from random w^i, eta safe for every prefix of these prompts")


READY: dict[str, Callable[[int, int, int], Construction]] = {
    "chen24.thm4.2": chen24_thm4_2,
    "cheng24.prop3.1": cheng24_prop3_1,
    "cheng24.propD.1": cheng24_propD_1,
    "gao24.lemA.2": gao24_lemA_2,
    "gao24.lemA.3": gao24_lemA_3,
    "gao24.lemA.4": gao24_lemA_4,
    "gao24.lemA.5": gao24_lemA_5,
    "gao24.thm3.1": gao24_thm3_1,
    "gao24.thm3.2": gao24_thm3_2,
    "gao24.thm3.3": gao24_thm3_3,
    "gao24.thm4.1": gao24_thm4_1,
    "gao24.thm4.2": gao24_thm4_2,
    "gatmiry24.thm2": gatmiry24_thm2,
    "gatmiry24.thm4": gatmiry24_thm4,
    "gatmiry24.thm5": gatmiry24_thm5,
}
"""The constructions by the name of their theorem; each takes d, the number of examples, and the number of loops."""


def _draw(task: Task, examples: int, *, prompts: int = PROMPTS, seed: int = 0) -> Prompt:
    """Prompts of that many examples and a query, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return task.sample(batch=prompts, n=examples + 1, generator=generator).to(torch.float64)


def _safe_rate(gram: Float[Tensor, "batch m m"]) -> float:
    """A rate below 1 / the norm of almost every such matrix."""
    return 1 / (SLACK * float(torch.linalg.matrix_norm(gram, 2).max()))


def _descent(
    model: LoopedModel,
    task: Task,
    examples: int,
    *,
    rate: float | Tensor,
    algorithm: str,
    features: Callable[[Tensor], Tensor] = lambda xs: xs,
) -> Construction:
    """A model that runs gradient descent from 0 on linear regression over `features` of x."""
    prompt = _draw(task, examples)
    phi = features(prompt.xs)
    w = descent.gradient_descent(phi[:, :-1], prompt.ys[:, :-1], steps=model.config.loops, rate=rate)[1:]
    expected = (w * phi[:, -1]).sum(-1, keepdim=True)
    return Construction(model=model, algorithm=algorithm, prompt=prompt, expected=expected, task=task)


def _newton(model: LoopedModel, d: int, examples: int, *, alpha: float, num_before: int = 0) -> Construction:
    """A model whose answer is that of M_t after `num_before` + t loops."""
    task, loops = LinearRegression(d=d), model.config.loops
    prompt = _draw(task, examples)
    xs, ys, query = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1]
    inverses = descent.newton_inverse(xs.mT @ xs, steps=loops, alpha=alpha)
    answers = torch.einsum("tbij,bnj,bn,bi->tb", inverses, xs, ys, query)[..., None]
    expected = torch.cat([torch.zeros_like(answers[:num_before]), answers])[1 : loops + 1]
    note = f"; loop {num_before} computes M_0" if num_before else ""
    algorithm = f"x_q'M X'y, M <- 2 M - M S M from M_0 = {alpha:.3g} S, S = X'X{note}"
    return Construction(model=model, algorithm=algorithm, prompt=prompt, expected=expected, task=task)


def _functional_descent(
    task: GaussianProcess, heads: tuple[Kernel, ...], maps: list[Tensor], examples: int, loops: int, *, kernel: str
) -> Construction:
    """Kernel attention, one head for each kernel, that runs descent in the function space of their sum."""

    def total(left: Tensor, right: Tensor) -> Tensor:
        grams = [head(left @ through.T, right @ through.T) for head, through in zip(heads, maps, strict=True)]
        return torch.stack(grams).sum(0)

    before = _draw(task, examples, prompts=64, seed=1).xs[:, :-1]
    rate, prompt = _safe_rate(total(before, before)), _draw(task, examples)
    xs, ys, queries = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1:]
    return Construction(
        model=gradient_descent.functional_descent(d=task.d, rates=[rate], kernel=heads, maps=maps, loops=loops),
        algorithm=f"f <- f + {rate:.3g} sum_i (y_i - f(x_i)) K(x_i, .) from f = 0, {kernel}",
        prompt=prompt,
        expected=descent.functional_descent(xs, ys, queries, kernel=total, steps=loops, rate=rate)[1:],
        task=task,
    )


def _from_case(case: Case, algorithm: str) -> Construction:
    """A case of the theorem's check, with the default limits."""
    prompt, expected = given(torch.from_numpy(case.tokens)), torch.from_numpy(case.expected)
    return Construction(
        model=case.model(), algorithm=algorithm, prompt=prompt, expected=expected, compared=case.compared
    )
