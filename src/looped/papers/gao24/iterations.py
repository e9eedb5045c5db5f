"""gao24's Figure 5: linear regression, trained AlgoFormers loop by loop against gradient descent and Newton's method.

The text gives no axis. Here it is iterations, and the error is that at the last pair of a prompt, whose x is the query
with all pairs before it as examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from looped.experiment import Scale
from looped.functional.descent import gradient_descent, newton_inverse
from looped.papers import gao24
from looped.papers.gao24.figures import BY_LOOPS, GRID, PointCurves
from looped.papers.gao24.trainings import in_a_grid
from looped.papers.gao24.variants import with_loops
from looped.prompt import Prompt
from looped.studies import Cell, Context, Learned, Panels, Published, Study, Table, at, claim, curve, last
from looped.studies.claims import Claim
from looped.studies.expressions import Curve
from looped.studies.measures import tasks_of
from looped.studies.study import Cells
from looped.tasks.regression import LinearRegression

NOISES = (0.0, 0.1, 1.0)
"""The paper's sigma, where w and x are standard normal in d=20."""
TRAINED = {"smoke": ((3, 2), (2, 2)), "cpu": ((4, 3), (3, 3)), "paper": ((20, 15), (10, 10))}
"""(T, dT) of the two AlgoFormers."""
DESCENT, NEWTON = "gradient descent", "Newton's method"
EARLY = 2
"""The iteration that counts as a beginning stage."""


@dataclass(frozen=True, kw_only=True)
class IterationCurves(PointCurves):
    """Error by loops of AlgoFormers, and by iterations of both algorithms, on the same prompts."""

    def add_baselines(self, table: Table, cells: Cells, context: Context) -> None:
        """The algorithms, and the best known predictor by examples."""
        super().add_baselines(table, cells, context)
        for labels, experiment in tasks_of(cells):
            generator = torch.Generator().manual_seed(self.prompt_seed)
            prompt = experiment.task.sample(batch=self.prompts, n=experiment.train.points, generator=generator)
            prompt = prompt.to(torch.float64)
            for name, answers in iterates(prompt, self.loops).items():
                errors = experiment.task.error(answers[..., None], prompt).mean((-1, -2)).tolist()
                table.add({**labels, "model": name}, "by_loops", errors, x=range(1, self.loops + 1))


def iterates(prompt: Prompt, steps: int) -> dict[str, Tensor]:
    """Predictions (steps, batch) for the last pair after 1, 2, .. iterations on those before it.

        gradient descent: w <- w - X'(X w - y) / |X'X|;  Newton: M <- 2 M - M S M, M_0 = S / |S|^2, w = M X'y

    Ref: gao24, Eq. (4), whose M_0 is Newton's iterate 0; so after 1 iteration both have used the data once more.
    """
    xs, ys, query = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1]
    squares = xs.mT @ xs
    largest = torch.linalg.eigvalsh(squares)[:, -1]
    descended = gradient_descent(xs, ys, steps=steps, rate=(1 / largest)[None])[1:]
    inverses = newton_inverse(squares, steps=steps, alpha=1 / largest.square())[1:]
    newton = torch.einsum("kbij,bnj,bn->kbi", inverses, xs, ys)
    return {DESCENT: (descended * query).sum(-1), NEWTON: (newton * query).sum(-1)}


def noisy_linear(scale: Scale) -> Cells:
    """Two AlgoFormers at every noise."""
    base = in_a_grid(gao24.linear(scale), "fig5", scale)
    return {
        Cell(noise=noise, T=loops, dT=window): with_loops(
            replace(base, task=LinearRegression(d=base.task.d, noise=noise)), loops, window
        )
        for noise in NOISES
        for loops, window in TRAINED[scale]
    }


def ahead_of_both(name: str, statement: str, *, loops: int | Curve, noise: float) -> Iterator[Claim]:
    """The claims that after as many iterations the AlgoFormer of the larger T is ahead of each algorithm."""
    for short, algorithm in (("gradient", DESCENT), ("newton", NEWTON)):
        ratio = at(loops, "by_loops", noise=noise, T=max) / at(loops, "by_loops", noise=noise, model=algorithm)
        yield claim(f"{name}_{short}", statement.format(algorithm), ratio < 1)


FIG5 = Study(
    name="gao24.fig5",
    title="Linear regression: AlgoFormer against gradient descent and Newton's method, by iteration",
    cells=noisy_linear,
    measure=lambda scale: IterationCurves(**vars(GRID[scale])),
    panels=Panels(y="by_loops", axis=replace(BY_LOOPS, floor=1e-6), column="noise", title="σ = {noise}", colour="T"),
    # it is compared with algorithms that end at the best predictor: halfway there a training has only begun
    learned=Learned(zero="without_examples", way=0.75),
    claims=(
        *ahead_of_both(
            "early_beats",
            "Without noise the AlgoFormer is ahead of {} in the beginning stages (Section 5.4).",
            loops=EARLY,
            noise=0.0,
        ),
        claim(
            "newton_ends_at_zero",
            "Without noise Newton's method reaches nearly zero later, the AlgoFormer about 1e-3 (Section 5.4).",
            last("by_loops", noise=0.0, model=NEWTON) / curve("by_loops", noise=0.0, T=max).least() < 1e-3,
            published=[
                Published(
                    what="AlgoFormer, sigma = 0",
                    number="around 1e-3",
                    ours=at(curve("trained_loops", noise=0.0, T=max), "by_loops", noise=0.0, T=max),
                )
            ],
            remark="the paper does not say what its error is divided by; here predicting zero has 1",
        ),
        *ahead_of_both(
            "noisy_beats",
            "With noise 1 the AlgoFormer does better than {} (Section 5.4).",
            loops=curve("trained_loops", noise=1.0, T=max),
            noise=1.0,
        ),
    ),
)
