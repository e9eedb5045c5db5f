"""Adam, AdamW, and a short Muon; clipping model by model."""

# pyright: reportPrivateImportUsage=false

import itertools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from looped.experiment import Adam, AdamW, Muon, OptimizerConfig
from looped.models.base import LoopedModel
from looped.training.pieces import pieces


class MuonOptimizer(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix as the update.

        B <- beta B + G;  W <- W - lr sqrt(max(1, rows/cols)) orthogonal(G + beta B)

    Batched over matrices and over a leading axis of models; the learning rate may be a tensor. `split` cuts a
    parameter's rows into that many matrices first: q, k and v are orthogonalised separately. In bfloat16 (`dtype`)
    the iteration is several times as fast on a GPU, and the update differs by 4 to 17 percent (docs/log.md).
    """

    momentum = 0.95

    def __init__(self, groups: list[dict], *, lr: float | Tensor, dtype: torch.dtype | None = None):
        super().__init__(groups, {"lr": lr, "split": 1})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        """Update every parameter that has a gradient; matrices of one shape go through one batched iteration."""
        every = [(weight, group) for group in self.param_groups for weight in group["params"]]
        trained = [(weight, group) for weight, group in every if weight.grad is not None]
        if not trained:
            return
        for weight, _ in trained:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight, _ in trained]
        gradients = [weight.grad for weight, _ in trained]
        # in a captured step alone: cutting takes the host longer than launching a few more kernels
        captured = isinstance(trained[0][1]["lr"], Tensor)
        parts, added = pieces(momenta, gradients) if captured else (momenta, gradients)
        torch._foreach_mul_(parts, self.momentum)
        torch._foreach_add_(parts, added)
        momenta, gradients = (
            [
                _wide(tensor.unflatten(-2, (group["split"], -1)))
                for tensor, (_, group) in zip(tensors, trained, strict=True)
            ]
            for tensors in (momenta, gradients)
        )
        for shape in dict.fromkeys(momentum.shape[-2:] for momentum in momenta):
            same = [i for i, momentum in enumerate(momenta) if momentum.shape[-2:] == shape]
            directions, last = (torch.cat([some[i].reshape(-1, *shape) for i in same]) for some in (momenta, gradients))
            directions.mul_(self.momentum).add_(last)
            updates = orthogonal(directions, dtype=self.dtype)
            for i, update in zip(same, updates.split([momenta[i].shape[:-2].numel() for i in same]), strict=True):
                _apply(*trained[i], update)


def _apply(parameter: Tensor, group: dict, update: Tensor) -> None:
    """W <- W - lr sqrt(max(1, rows/cols)) update; the update is transposed where W has more rows than columns."""
    rows, columns = parameter.shape[-2] // group["split"], parameter.shape[-1]
    update = (update.mT if rows > columns else update).reshape(parameter.shape)
    factor = max(1.0, rows / columns) ** 0.5
    if isinstance(group["lr"], Tensor):  # one kernel of a captured step in place of three
        parameter.addcmul_(update, group["lr"], value=-factor)
    else:
        parameter.sub_(update * (group["lr"] * factor))


def orthogonal(matrices: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Push all singular values towards 1 by 5 quintic iterations in `dtype` (None: as is), batched over leading axes.

    X <- a X + (b A + c A^2) X,  A = X X',  (a, b, c) = (3.4445, -4.7750, 2.0315)
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = _wide(matrices).reshape(-1, *_wide(matrices).shape[-2:])
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)).to(dtype or x.dtype)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        factor = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, factor, x, beta=3.4445)
    return (x.mT if tall else x).reshape(matrices.shape).to(matrices.dtype)


def _wide(matrices: Tensor) -> Tensor:
    """Transposed where there are more rows than columns."""
    return matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices


@torch.no_grad()
def _adam_in_pieces(adam: torch.optim.Adam) -> None:
    """The same as `adam.step()`, bit for bit and with the same state, by kernels that fill the GPU."""
    update: Any = torch._fused_adamw_ if isinstance(adam, torch.optim.AdamW) else torch._fused_adam_
    for group in adam.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        for weight in weights:
            if not adam.state[weight]:
                adam.state[weight] |= {
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }
        states = [adam.state[weight] for weight in weights]
        cut = [
            pieces([weight], [weight.grad.contiguous()], [state["exp_avg"]], [state["exp_avg_sq"]])
            for weight, state in zip(weights, states, strict=True)
        ]
        lists = [[piece for lists_of_weight in cut for piece in lists_of_weight[kind]] for kind in range(4)]
        # all pieces of a weight share its step count
        steps = [state["step"] for (parts, *_), state in zip(cut, states, strict=True) for _ in parts]
        options = {key: group[key] for key in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
        if weights:
            torch._foreach_add_([state["step"] for state in states], 1)
            update(*lists, [], steps, beta1=group["betas"][0], beta2=group["betas"][1], **options)


class Optimizers:
    """The optimisers of one run, stepped together; their state is a flat dict of tensors."""

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        *,
        captured: bool = False,
        dtype: torch.dtype | None = None,
        stacked: bool = False,
    ):
        """With `captured` the rates are tensors on the device, so that a captured step can change them.

        `dtype` is the precision of the passes, in which Muon iterates too. `stacked`: weights have an axis of models.
        """
        self.config = config
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        matrices = muon_matrices(model, stacked=stacked) if isinstance(config, Muon) else []
        claimed = {id(parameter) for parameter, _ in matrices}
        others = [parameter for parameter in model.parameters() if id(parameter) not in claimed]
        how: Any = {"lr": config.learning_rate, "betas": config.betas, "fused": True}
        if isinstance(config, AdamW):
            adam = torch.optim.AdamW(others, weight_decay=config.weight_decay, **how)
        elif isinstance(config, (Adam, Muon)):
            adam = torch.optim.Adam(others, **how)
        else:
            raise ValueError(f"no optimiser is known for {type(config).__name__}. Add it to `Optimizers`.")
        self.rated: list[tuple[torch.optim.Optimizer, float]] = [(adam, config.learning_rate)]
        if isinstance(config, Muon):
            counts = sorted({split for _, split in matrices})
            groups = [{"params": [p for p, split in matrices if split == n], "split": n} for n in counts]
            muon = MuonOptimizer(groups, lr=config.muon_learning_rate, dtype=dtype)
            self.rated.append((muon, config.muon_learning_rate))
        self.captured = captured
        if captured:
            device = next(model.parameters()).device
            for optimizer, rate in self.rated:
                lr = torch.tensor(rate, device=device)
                for group in optimizer.param_groups:
                    group["lr"] = lr

    def step(self, factor: float | Tensor) -> None:
        """Update the weights at `factor` times the configured rates."""
        for optimizer, rate in self.rated:
            if self.captured:  # the groups share one rate
                torch.mul(factor, rate, out=optimizer.param_groups[0]["lr"])
            else:
                for group in optimizer.param_groups:
                    group["lr"] = rate * factor
            if self.captured and isinstance(optimizer, torch.optim.Adam):
                _adam_in_pieces(optimizer)
            else:
                optimizer.step()

    def clip(self, model: nn.Module, *, stacked: bool) -> Tensor:
        """Scale gradients down to the configured norm; return their norm before, of each model in a stack."""
        clip = clip_in_pieces if self.captured else clip_gradients
        return clip(model, self.config.clip, stacked=stacked)

    def tensors(self) -> dict[str, Tensor]:
        """The state of all optimisers, as `parameter/key`."""
        return {
            f"{self.names[parameter]}/{key}": value
            for optimizer, _ in self.rated
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned; a KeyError or RuntimeError names what is missing or does not fit."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {id(p): opt for opt, _ in self.rated for group in opt.param_groups for p in group["params"]}
        for name, value in tensors.items():
            parameter = parameters[name.partition("/")[0]]
            if value.ndim and value.shape != parameter.shape:
                raise RuntimeError(f"`optimizer/{name}` has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
            owners[id(parameter)].state[parameter][name.partition("/")[2]] = value
        for optimizer, _ in self.rated:  # a weight that the loss does not read has no state at all
            keys = ("momentum",) if isinstance(optimizer, MuonOptimizer) else ("step", "exp_avg", "exp_avg_sq")
            for parameter, key in itertools.product(optimizer.state, keys):
                if key not in optimizer.state[parameter]:
                    raise KeyError(f"optimizer/{self.names[parameter]}/{key}")

    def check_complete(self, fresh: Mapping[str, Tensor]) -> None:
        """A KeyError that names a weight which has no state and yet is not as `fresh`, so that it has been trained."""
        stated = {parameter for optimizer, _ in self.rated for parameter in optimizer.state}
        for parameter, name in self.names.items():
            if parameter not in stated and not torch.equal(parameter, fresh[name]):
                raise KeyError(f"optimizer/{name}")


def muon_matrices(model: nn.Module, *, stacked: bool = False) -> list[tuple[nn.Parameter, int]]:
    """The matrices that Muon trains, each with the number of matrices it holds (q, k, v: 3).

    All but tables of embeddings, those with a single row or column, and those that `left_to_adam` of the model names.
    """
    pattern = re.compile(getattr(model, "left_to_adam", LoopedModel.left_to_adam))
    matrices = []
    for name, parameter in model.named_parameters():
        shape = parameter.shape[stacked:]
        owner = model.get_submodule(name.rpartition(".")[0])
        if len(shape) == 2 and min(shape) > 1 and not isinstance(owner, nn.Embedding) and not pattern.search(name):
            matrices.append((parameter, _matrices_in(name, owner, shape[0])))
    if not matrices:
        raise ValueError(
            f"Muon trains matrices, and this {type(model).__name__} has none but those that `left_to_adam` names. Use "
            "Adam, or override `left_to_adam`."
        )
    return matrices


def _matrices_in(name: str, owner: nn.Module, rows: int) -> int:
    """How many matrices one parameter holds, below each other: q, k and v, or the gates of a recurrent layer."""
    if isinstance(owner, (nn.RNNBase, nn.RNNCellBase)):
        return rows // owner.hidden_size
    return 3 if name.endswith(("qkv.weight", "in_proj_weight")) else 1


def clip_gradients(model: nn.Module, largest: float | None, *, stacked: bool = False) -> Tensor:
    """Scale gradients down to norm `largest`, each model of a stack separately; return the norms before."""
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if stacked:
        norm = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0).sqrt()
    else:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if largest is not None:
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        factors = [factor.view(-1, *[1] * (g.ndim - 1)) for g in gradients] if stacked else [factor] * len(gradients)
        # not in place: two weights may share one gradient tensor
        for weight, gradient in zip(weights, torch._foreach_mul(gradients, factors), strict=True):
            weight.grad = gradient
    return norm


def clip_in_pieces(model: nn.Module, largest: float | None, *, stacked: bool = False) -> Tensor:
    """`clip_gradients` up to rounding, in the few kernels of a captured step; the gradients are scaled in place."""
    by_address: dict[int, Tensor] = {}
    for weight in model.parameters():
        if weight.grad is not None:
            if weight.grad.data_ptr() in by_address:  # two weights share one gradient tensor
                weight.grad = weight.grad.clone()
            by_address[weight.grad.data_ptr()] = weight.grad
    gradients = [*by_address.values()]
    num_models = len(gradients[0]) if stacked else 0
    models = [pieces([g[i] for g in gradients])[0] for i in range(num_models)] if stacked else pieces(gradients)
    norms = torch.stack(torch._foreach_norm([piece for model in models for piece in model]))
    norm = torch.linalg.vector_norm(norms.view(len(models), -1), dim=1)
    if largest is not None:
        divisors = ((norm + 1e-6) / largest).clamp(min=1.0)
        for parts, divisor in zip(models, divisors.unbind(), strict=True):
            torch._foreach_div_(parts, divisor)
    return norm if stacked else norm[0]
