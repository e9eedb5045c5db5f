"""Which models our GPU kernels can run. The kernels are in `models/gpu`, imported only where there is a GPU."""

import torch

from looped.models.algoformer import AlgoFormer
from looped.models.base import LoopedModel
from looped.models.blocks import MLP, Attention, Block, LayerNorm, gelu
from looped.models.decoder import DecoderConfig, LoopedDecoder

HEAD_WIDTHS = (16, 32, 64)
"""The widths of a head that the attention kernels are written for."""
LAYER_NORM_EPS = 1e-5
"""torch's default, which the kernels of the norms have built in."""


def obstacle(model: LoopedModel) -> str | None:
    """Why the kernels of the one-block decoder cannot run this model; None where they can."""
    if not isinstance(model, LoopedDecoder):
        return f"this is a {type(model).__name__}"
    return shape_obstacle(model.config)


def shape_obstacle(shape: DecoderConfig) -> str | None:
    """Why they cannot run a decoder of this shape; None where they can."""
    if type(shape) is not DecoderConfig:
        return f"it is shaped by a {type(shape).__name__}"
    if shape.layers != 1:
        return f"it has {shape.layers} blocks a loop"
    if shape.inject != "add" or not shape.inside:
        return "its prompt is not added inside every loop"
    if shape.width // shape.heads not in HEAD_WIDTHS:
        return f"its heads are {shape.width // shape.heads} wide, not {' or '.join(map(str, HEAD_WIDTHS))}"
    return None


def blocks_obstacle(model: LoopedModel) -> str | None:
    """Why the kernels can run no block of this model; None where they run at least one."""
    if type(model) not in (LoopedDecoder, AlgoFormer):  # a subclass may read its states otherwise
        return f"this is a {type(model).__name__}"
    reasons = [block_obstacle(block) for block in model.modules() if isinstance(block, Block)]
    return None if None in reasons else reasons[0]


def block_obstacle(block: Block) -> str | None:
    """Why the kernels cannot run this block; None where they can."""
    attention, norms = block.attention, (block.norm_1, block.norm_2)
    if type(block) is not Block:
        return f"this is a {type(block).__name__}"
    if (kinds := (type(attention), type(block.mlp))) != (Attention, MLP):
        return f"it is made of {' and '.join(kind.__name__ for kind in kinds)}"
    if any(type(norm) not in (LayerNorm, torch.nn.Identity) for norm in norms):
        return f"its norm is a {type(norms[0]).__name__}"
    if any(isinstance(norm, LayerNorm) and norm.eps != LAYER_NORM_EPS for norm in norms):
        return f"the eps of its LayerNorm is not {LAYER_NORM_EPS}"
    if block.mlp.activation is not gelu:
        return f"its activation is {getattr(block.mlp.activation, '__name__', 'no function')}, not gelu"
    if not attention.causal:
        return "its attention is not causal"
    if attention.head_width not in HEAD_WIDTHS:
        return f"its heads are {attention.head_width} wide, not {' or '.join(map(str, HEAD_WIDTHS))}"
    if attention.qkv.weight.dtype is torch.float64:
        return "it is in float64"
    return None
