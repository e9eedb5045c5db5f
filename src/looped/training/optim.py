"""Adam, AdamW, and a short Muon; clipping model by model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from looped.experiment import OptimizerConfig
from looped.models.blocks import Block


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix as the update.

        B <- beta B + G;  W <- W - lr sqrt(max(1, rows/cols)) orthogonal(G + beta B)

    Batched over matrices and over a leading axis of models; runs in the weights' own precision and takes a tensor
    learning rate. `split` cuts a parameter's rows into that many matrices first: q, k and v are orthogonalised apart.
    torch's own Muon is the test's reference.
    """

    def __init__(self, groups: list[dict], *, lr: float | Tensor, momentum: float = 0.95, iterations: int = 5):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "iterations": iterations, "split": 1})

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        """One update of every parameter that has a gradient; matrices of one shape go through one iteration."""
        found = [
            (parameter, self._direction(parameter, group), group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for shape in dict.fromkeys(_wide(direction).shape[-2:] for _, direction, _ in found):
            same = [one for one in found if _wide(one[1]).shape[-2:] == shape]
            stacks = [_wide(direction).reshape(-1, *shape) for _, direction, _ in same]
            iterations = same[0][2]["iterations"]
            updates = orthogonal(torch.cat(stacks), iterations=iterations).split([len(one) for one in stacks])
            for (parameter, direction, group), update in zip(same, updates, strict=True):
                rows, columns = direction.shape[-2:]
                turned = update.mT if rows > columns else update
                factor = group["lr"] * max(1.0, rows / columns) ** 0.5
                parameter.sub_(turned.reshape(parameter.shape) * factor)

    def _direction(self, parameter: Tensor, group: dict) -> Tensor:
        """The gradient with its momentum, as (..., matrices, rows, columns)."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
        return (parameter.grad + group["momentum"] * state["momentum"]).unflatten(-2, (group["split"], -1))


def orthogonal(matrices: Tensor, *, iterations: int = 5) -> Tensor:
    """Push all singular values towards 1 by a quintic iteration, batched over leading axes.

    X <- a X + (b A + c A^2) X,  A = X X',  (a, b, c) = (3.4445, -4.7750, 2.0315)
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = _wide(matrices).reshape(-1, *_wide(matrices).shape[-2:])
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(iterations):
        gram = torch.bmm(x, x.mT)
        factor = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, factor, x, beta=3.4445)
    return (x.mT if tall else x).reshape(matrices.shape)


def _wide(matrices: Tensor) -> Tensor:
    """With rows for columns where there are more rows."""
    return matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices


class Optimizers:
    """The optimisers of one run, stepped together; their state is a flat dict of tensors."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, captured: bool = False):
        """With `captured` the rates lie on the device, where a captured step can change them."""
        self.config = config
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        matrices = block_matrices(model) if config.kind == "muon" else []
        claimed = {id(parameter) for parameter, _ in matrices}
        others = [parameter for parameter in model.parameters() if id(parameter) not in claimed]
        adam = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
        decay = config.weight_decay if config.kind == "adamw" else 0.0
        first = adam(others, lr=config.learning_rate, betas=config.betas, weight_decay=decay, fused=True)
        self.rated: list[tuple[torch.optim.Optimizer, float]] = [(first, config.learning_rate)]
        if matrices:
            counts = sorted({split for _, split in matrices})
            groups = [{"params": [p for p, split in matrices if split == n], "split": n} for n in counts]
            self.rated.append((Muon(groups, lr=config.muon_learning_rate), config.muon_learning_rate))
        self.captured = captured
        if captured:
            device = next(model.parameters()).device
            for optimizer, rate in self.rated:
                lr = torch.tensor(rate, device=device)
                for group in optimizer.param_groups:
                    group["lr"], group["capturable"] = lr, True

    def step(self, factor: float | Tensor) -> None:
        """One update at `factor` times the configured rates."""
        for optimizer, rate in self.rated:
            for group in optimizer.param_groups:
                if self.captured:
                    group["lr"].copy_(factor * rate)
                else:
                    group["lr"] = rate * factor
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Everything the optimisers remember, as `parameter/key`."""
        return {
            f"{self.names[parameter]}/{key}": value
            for optimizer, _ in self.rated
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {id(p): opt for opt, _ in self.rated for group in opt.param_groups for p in group["params"]}
        for name, value in tensors.items():
            parameter = parameters[name.partition("/")[0]]
            owners[id(parameter)].state[parameter][name.partition("/")[2]] = value


def block_matrices(model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The weight matrices inside the model's blocks, each with the number of matrices it holds (q, k, v: 3)."""
    found = [
        (parameter, 3 if name.endswith("qkv.weight") else 1)
        for block in model.modules()
        if isinstance(block, Block)
        for name, parameter in block.named_parameters()
        if name.endswith(".weight") and "norm" not in name
    ]
    if not found:
        raise ValueError("Muon needs a model made of `looped.models.blocks.Block`; this one has none. Use adam.")
    return found


def clip_gradients(model: nn.Module, largest: float | None, *, stacked: bool = False) -> Tensor:
    """Scale gradients down to norm `largest` where above it, each model of a stack by itself; give back the norms."""
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if stacked:
        norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    else:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()  # pyright: ignore[reportPrivateImportUsage]
    if largest is not None:
        scale = (largest / (norm + 1e-6)).clamp(max=1.0)
        each = [scale.view(-1, *[1] * (g.ndim - 1)) for g in gradients] if stacked else [scale] * len(gradients)
        # not in place: two weights may have been given one gradient
        for weight, gradient in zip(weights, torch._foreach_mul(gradients, each), strict=True):  # pyright: ignore[reportPrivateImportUsage]
            weight.grad = gradient
    return norm
