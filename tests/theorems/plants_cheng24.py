"""Planted failures of cheng24's theorems."""

from functools import partial

import torch
from theorem_plants import Plant

HERE = "looped.theorems.cheng24"


def rates_times(factor):
    """A change of `functional_descent` that makes every step longer by a factor."""

    def change(construct):
        return lambda *, rates, **fields: construct(rates=factor * torch.as_tensor(rates), **fields)

    return change


PLANTS: list[Plant] = [
    Plant(
        theorem="cheng24.eq58",
        rows=(1,),
        target="looped.models.kernel_transformer.KernelHead.forward",
        change=lambda forward: lambda self, rows, layer: 1.01 * forward(self, rows, layer),
        why="a head adds 1% more than V Z M h",
    ),
    Plant(
        theorem="cheng24.ex5",
        rows=(0, 1),
        target=f"{HERE}.assumptions.mixture",
        change=lambda mixture: (
            lambda means, noise, clusters: mixture(means + torch.eye(means.shape[-1]).double()[0], noise, clusters)
        ),
        why="the clusters' means scatter around a fixed point other than 0",
    ),
    Plant(
        theorem="cheng24.ex5",
        rows=(0, 1),
        target=f"{HERE}.assumptions.mixture",
        change=lambda mixture: (
            lambda means, noise, clusters: mixture(means * torch.tensor([1.0, 2.0, 1.0]).double(), noise, clusters)
        ),
        why="the means' distribution is not round",
    ),
    Plant(
        theorem="cheng24.ex7",
        rows=(1,),
        target="looped.tasks.gaussian_process.GaussianProcess.gram",
        change=lambda gram: lambda self, xs: gram(self, xs @ torch.linalg.inv(self.root)),
        why="K reads Sigma^-1 x",
    ),
    Plant(
        theorem="cheng24.ex8",
        rows=(0, 2),
        target="looped.functional.kernels.arc_cosine",
        change=lambda kernel: lambda left, right: kernel(left + 0.1, right + 0.1),
        why="the network reads x + .1",
    ),
    Plant(
        theorem="cheng24.lemA.1",
        rows=(0,),
        target="looped.models.kernel_transformer.KernelHead.forward",
        change=lambda forward: (
            lambda self, rows, layer: forward(self, torch.cat([rows, rows[..., -1:, :]], -2), layer)[..., :-1, :]
        ),
        why="the mask lets the query in as an example",
    ),
    Plant(
        theorem="cheng24.lemG.3",
        rows=(0, 2),
        target=f"{HERE}.structure.descent_weights",
        change=lambda weights: lambda errors: weights(errors**3),
        why="the descent is that of the fourth powers of the errors",
    ),
    *(
        Plant(
            theorem=f"cheng24.{name}",
            rows=(0,),
            target=f"{HERE}.functional_descent.transformer",
            change=rates_times(1.01),
            why="the steps are 1% too long",
        )
        for name in ("prop3.1", "propD.1", "sec3.1.2")
    ),
    *(
        Plant(
            theorem=f"cheng24.{name}",
            rows=rows,
            target=f"{HERE}.kernel_prompts.functional_descent",
            change=rates_times(1.5),
            why="the steps are half as long again, some above 2/|K|",
        )
        for name, rows in (("prop3.4", (0, 3)), ("propD.1", (1,)))
    ),
    Plant(
        theorem="cheng24.sec3.1.2",
        rows=(1,),
        target=f"{HERE}.functional_descent.normal_prompts",
        change=lambda prompts: lambda *sizes, sphere=False: prompts(*sizes),
        why="points are not on the sphere",
    ),
    *(
        Plant(
            theorem=f"cheng24.{name}",
            rows=rows,
            target=f"{HERE}.stationary.Landscape.through",
            change=lambda _: property(lambda self: self.task.root),
            why="B and C are multiples of Sigma^1/2",
        )
        for name, rows in (("thm4.6", (0,)), ("propE.3", (0, 2)), ("propF.3", (0,)))
    ),
    *(
        Plant(
            theorem=f"cheng24.{name}",
            rows=(0,),
            target=f"{HERE}.{module}.GaussianProcess",
            change=lambda task: partial(task, whiten=False),
            why="labels are those of Definition 3.3",
        )
        for name, module in (("thm4.5", "stationary"), ("propE.3", "slopes"))
    ),
    Plant(
        theorem="cheng24.thm4.5",
        rows=(1,),
        target=f"{HERE}.stationary.plane_process",
        change=lambda process: partial(process, whiten=True),
        why="labels are those of Example 7, so a point of the form is stationary",
    ),
    *(
        Plant(
            theorem=f"cheng24.{name}",
            rows=rows,
            target=f"{HERE}.slopes.form_direction",
            change=lambda direction: lambda matrix, along, root: direction("B" if matrix == "A" else "A", along, root),
            why="R~ is that of A for B and C, and that of B for A",
        )
        for name, rows in (("propF.3", (0,)), ("propF.4", (0, 2)))
    ),
]
