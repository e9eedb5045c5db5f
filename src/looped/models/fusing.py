"""Which models our GPU kernels can run. The kernels are in `models/gpu`, imported only where there is a GPU."""

from looped.models.base import LoopedModel
from looped.models.decoder import LoopedDecoder

HEAD_WIDTHS = (16, 32, 64)
"""The widths of a head that the attention kernels are written for."""


def obstacle(model: LoopedModel) -> str | None:
    """Why the kernels cannot run this model; None where they can."""
    if not isinstance(model, LoopedDecoder):
        return f"this is a {type(model).__name__}"
    shape = model.config
    if shape.layers != 1:
        return f"it has {shape.layers} blocks a loop"
    if shape.inject != "add" or not shape.inside:
        return "its prompt is not added inside every loop"
    if shape.width // shape.heads not in HEAD_WIDTHS:
        return f"its heads are {shape.width // shape.heads} wide, not {' or '.join(map(str, HEAD_WIDTHS))}"
    return None
