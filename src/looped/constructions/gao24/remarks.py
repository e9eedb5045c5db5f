"""gao24's remarks as weights: ridge regression in the loop (Section 3.1), an AlgoFormer as one looped layer (2.2)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.constructions.gao24 import cases
from looped.constructions.gao24.cases import BATCH, Array, Case
from looped.constructions.gao24.gradient import IS_X, Dense, descent_layer, represent, theorem_31
from looped.constructions.language import Layer, Program, Put, Stream
from looped.models.algoformer import AlgoFormer, AlgoFormerConfig, Part, pairs
from looped.models.blocks import Block, relu

GATE = 1e6
"""What is subtracted from a hidden unit of a part that is not at work; it must exceed every value there."""


def ridge_layer(*, eta: float, penalty: float) -> Layer:
    """One gradient step on 1/2N sum_j |A f_j - y_j|^2 + penalty/2 |A|^2, as its effect on every A f_i.

        A_{k+1} = (1 - eta penalty) A_k - eta / N sum_j (A_k f_j - y_j) f_j'

    The heads take a step that is longer by 1 / (1 - eta penalty); the MLP then shrinks `prediction`, which is A f_i,
    and takes as much from `residual`.
    """
    shrink = 1.0 - eta * penalty
    step = descent_layer("residual", "prediction", eta=eta / shrink, unless=IS_X)
    decay = Put(value={"prediction": 1.0 - shrink}, to={"prediction": -1.0, "residual": -1.0}, unless=(("is_y", 0),))
    return replace(step, mlp=(*step.mlp, decay))


def ridge_31(phi: Sequence[Dense], *, outputs: int, num_examples: int, eta: float, penalty: float) -> Program:
    """Theorem 3.1 with ridge regression: the same pre and post, the loop's layer is `ridge_layer`.

    Ref: gao24, remark after Theorem 3.1. The paper gives no weights for it, there or in Section 4.
    """
    plain = theorem_31(phi, outputs=outputs, num_examples=num_examples, eta=eta)
    stream = Stream({**plain.stream.spaces, "prediction": outputs})
    return replace(plain, stream=stream, loop=(ridge_layer(eta=eta, penalty=penalty),))


def ridge_case(
    sizes: Sequence[int], outputs: int, n: int, *, penalty: float, seed: int = 0, steps: int = 20
) -> tuple[Case, Float[Array, "batch 1 outputs"]]:
    """Regression with a representation by descent on the ridge loss; and ridge's solution, to which it tends."""
    draws = np.random.default_rng(seed)
    phi = cases.random_phi(sizes, draws)
    xs = draws.normal(size=(BATCH, n + 1, sizes[0]))
    ys = draws.normal(size=(BATCH, n + 1, outputs))
    features, labels = represent(phi, xs)[:, :-1], ys[:, :-1]
    query = represent(phi, xs)[:, -1:]
    squares = features.swapaxes(1, 2) @ features / n + penalty * np.eye(sizes[-1])
    right = features.swapaxes(1, 2) @ labels / n
    eta = float(1.0 / np.linalg.norm(squares, 2, axis=(1, 2)).max())
    weights, iterates = np.zeros_like(right), []
    for _ in range(steps):
        weights = weights - eta * (squares @ weights - right)
        iterates.append(query @ weights)
    program = ridge_31(phi, outputs=outputs, num_examples=n, eta=eta, penalty=penalty)
    tokens = pairs(torch.from_numpy(xs), torch.from_numpy(ys)).numpy()
    return Case(program, tokens, np.stack(iterates)), query @ np.linalg.solve(squares, right)


def random_algoformer(*, d: int, width: int, hidden: int, seq: int, loops: int, seed: int) -> AlgoFormer:
    """An AlgoFormer whose parts have one layer of one head, as in Equation (1): ReLU, full attention, no norm."""
    part = Part(layers=1, heads=1, hidden=hidden)
    config = AlgoFormerConfig(
        d=d, width=width, positions=seq, tokens="given", query="every", loops=loops,
        pre=part, loop=part, post=part, norm=False, activation=relu, causal=False,
    )  # fmt: skip
    model = config.build().double()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64))
            parameter.mul_(0.7 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3)
    return model


def fuse(model: AlgoFormer, *, heads: int = 4) -> AlgoFormer:
    """A looped transformer of one layer that gives post(loop^T(pre(X))) after T + 2 loops.

    Ref: gao24, Section 2.2. Heads 1 to 3 are those of pre, loop and post; each writes into a space of its own. The MLP
    has the units of all three parts, and GATE switches off two of them. It also counts loops, and sets the three
    indicators `idle`, 0 for the part that is at work. So the fourth head, "the head selection", has nothing to do.
    """
    config, width = model.config, model.config.width
    parts = [part[0] for part in (model.pre, model.loop, model.post)]
    hidden = config.loop.hidden or 4 * width
    # x, what the three heads write, `idle`, the count of loops, the constant 1
    idle, count, constant = range(4 * width, 4 * width + 3), 4 * width + 3, 4 * width + 4
    part = Part(layers=1, heads=heads, head_width=width, hidden=3 * (hidden + 1 + 4 * width) + 6)
    nothing = Part(layers=0)
    wide = replace(config, width=constant + 1, loops=config.loops + 2, pre=nothing, loop=part, post=nothing)
    fused, unit = wide.build().double(), torch.eye(constant + 1, dtype=torch.float64)
    block = fused.loop[0]
    assert isinstance(block, Block)
    with torch.no_grad():
        for parameter in fused.parameters():
            parameter.zero_()
        for into, source in ((fused.read_in, model.read_in), (fused.read_out, model.read_out)):
            assert into is not None
            assert source is not None
            rows, columns = source.weight.shape
            into.weight[:rows, :columns], into.bias[:rows] = source.weight, source.bias
        fused.positions[:, :width] = model.positions
        fused.positions[:, [idle[1], idle[2], constant]] = 1.0  # pre comes first
        attention, units = block.attention, _Units(block)
        qkv, biases = (tensor.view(3, heads, width, -1) for tensor in (attention.qkv.weight, attention.qkv.bias))
        out = attention.proj.weight.view(-1, heads, width)
        for index, layer in enumerate(parts):
            assert isinstance(layer, Block)
            space = slice((index + 1) * width, (index + 2) * width)
            qkv[:, index, :, :width] = layer.attention.qkv.weight.view(3, width, width)
            biases[:, index] = layer.attention.qkv.bias.view(3, width, 1)
            out[space, index] = layer.attention.proj.weight
            attention.proj.bias[space] = layer.attention.proj.bias
            both = unit[:width] + unit[space]  # X + what the part's head gives
            units.add(layer.mlp.fc.weight @ both, unit[:, :width] @ layer.mlp.proj.weight, idle[index])
            block.mlp.fc.bias[units.filled - hidden : units.filled] = layer.mlp.fc.bias
            units.add(unit[[constant]], unit[:, :width] @ layer.mlp.proj.bias[:, None], idle[index])
            for sign in (1.0, -1.0):  # v = relu(v) - relu(-v): add what the head gives to X, and clear its space
                units.add(sign * unit[space], sign * unit[:, :width], idle[index])
                units.add(sign * unit[space], -sign * unit[:, space])
        # at `count` = 0 pre ends, at T the loop does; |c - s| < 1 only there: relu(c-s+1) - 2 relu(c-s) + relu(c-s-1)
        for end, before in ((0, 0), (config.loops, 1)):
            change = unit[:, [idle[before]]] - unit[:, [idle[before + 1]]]
            for shift, factor in ((1, 1.0), (0, -2.0), (-1, 1.0)):
                units.add(unit[[count]] + (shift - end) * unit[[constant]], factor * change)
        block.mlp.proj.bias[count] = 1.0
    return fused


class _Units:
    """Fills the hidden units of a block's MLP one after the other."""

    def __init__(self, block: Block):
        self.mlp, self.filled = block.mlp, 0

    def add(self, reads: Tensor, writes: Tensor, unless: int | None = None) -> None:
        """Units relu(reads z), switched off where the coordinate `unless` is 1."""
        rows = slice(self.filled, self.filled + len(reads))
        self.mlp.fc.weight[rows] = reads
        if unless is not None:
            self.mlp.fc.weight[rows, unless] -= GATE
        self.mlp.proj.weight[:, rows] = writes
        self.filled = rows.stop
