"""Checkpoints of the published programs become run folders; only this module opens a .pt file, for its weights."""

import re
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.run import Run, save_model

BLOCK_NAMES = {
    "ln_1": "norm_1",
    "ln_2": "norm_2",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.proj",
    "mlp.c_fc": "mlp.fc",
    "mlp.c_proj": "mlp.proj",
}
"""A block's parts in the published programs, and here."""

IGNORED = re.compile(r"_backbone\.(transformer\.)?(wte\.weight|h\.\d+\.attn\.(bias|masked_bias))")
"""Tensors that the files hold and neither program uses: token embeddings and causal masks."""


def import_checkpoint(
    file: str | Path,
    out: str | Path,
    *,
    heads: int,
    loops: int | None = None,
    inject: Literal["add", "multiply", "none"] | None = None,
) -> tuple[Run, str]:
    """Write a run folder from a checkpoint of yang24's or Garg et al.'s program; also return how it was read.

    The file has neither heads nor loops: a yang24 file with one layer is read as looped (20 loops unless `loops` says
    otherwise), any other as unlooped.
    """
    state = read_state(Path(file))
    yang = any(name.startswith("_backbone.transformer.") for name in state)
    try:
        weights = renamed(state, flipped=not yang)
        # count the blocks: a large number in a name must not decide how many are built
        layers = len({match[1] for name in weights if (match := re.match(r"blocks\.(\d+)\.", name))})
        if not layers:
            raise KeyError("block")
        loops = 20 if loops is None and yang and layers == 1 else loops
        config = DecoderConfig(
            d=weights["read_in.weight"].shape[1],
            width=weights["read_in.weight"].shape[0],
            heads=heads,
            layers=layers,
            positions=weights["positions"].shape[0],
            loops=1 if loops is None else loops,
            inject=inject or "add",
        )
        model = config.build().to(weights["positions"].dtype)
        model.load_state_dict(weights)
    except (KeyError, IndexError, RuntimeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[-1].strip(" \t.")
        raise ValueError(f"{file} does not hold a decoder of yang24 or Garg et al.: {reason[:200]}.") from None
    name = re.sub(r"[^\w.-]", "_", Path(file).stem)
    run = save_model(out, model, LinearRegression(d=config.d), name=name, imported_from=Path(file).name)
    layout = "yang24" if yang else "Garg et al."
    looped = f"{loops} loops of {layers} layer(s), injection {config.inject}"
    taken = f"unlooped, {layers} layer(s)" if loops is None else looped
    return run, f"{layout} layout, taken as {taken}, {heads} heads"


def read_state(file: Path) -> dict[str, Tensor]:
    """The state dict in a .pt file, bare or under `model` or `model_state_dict`, by torch's weights-only reader."""
    if not file.is_file():
        raise ValueError(f"{file} is not a file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader raises many types on hostile or damaged files, UnpicklingError among them
        said = str(error).strip().splitlines() or [type(error).__name__]
        reason = textwrap.shorten(said[0], 120, placeholder=" ...")
        raise ValueError(f"{file} is not a weights-only .pt file and will not be unpickled ({reason}).") from None
    for key in ("model_state_dict", "model"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
    if not isinstance(data, Mapping) or not all(isinstance(value, Tensor) for value in data.values()):
        raise ValueError(f"{file} holds no state dict, bare or under `model` or `model_state_dict`.")
    names = {str(name).replace("_orig_mod.", ""): tensor for name, tensor in data.items()}  # torch.compile's prefix
    if len(names) < len(data):
        raise ValueError(f"{file} holds weights twice, with and without torch.compile's prefix `_orig_mod.`.")
    state = {name: tensor for name, tensor in names.items() if not IGNORED.fullmatch(name)}
    if "_read_in.weight" not in state:
        raise ValueError(f"{file} holds no decoder of yang24 or Garg et al.: it has no `_read_in.weight`.")
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{file} holds weights that are not floating-point, in `{name}`.")
        if not tensor.isfinite().all():
            raise ValueError(f"{file} holds weights that are not finite, in `{name}`.")
    return state


def renamed(state: Mapping[str, Tensor], *, flipped: bool) -> dict[str, Tensor]:
    """The state dict under our names; `flipped` if it holds Conv1D weights, (in, out), which we store as (out, in)."""
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        new = rename(name)
        if new in weights:
            raise RuntimeError(f"it holds `{name}` twice, under two names")
        inner = re.fullmatch(r"blocks\.\d+\.(attention|mlp)\..*weight", new)
        weights[new] = tensor.T.contiguous() if flipped and inner and tensor.ndim == 2 else tensor
    return weights


def rename(name: str) -> str:
    """The name in our decoder of a published parameter; an unknown name stays, and is refused later."""
    name = name.replace("_backbone.transformer.", "_backbone.")
    if name == "_backbone.wpe.weight":
        return "positions"
    name = re.sub(r"^_backbone\.ln_f\.", "norm.", name)
    name = re.sub(r"^_read_(in|out)\.", r"read_\1.", name)
    match = re.fullmatch(r"_backbone\.h\.(\d+)\.(.+)\.(weight|bias)", name)
    if match and match[2] in BLOCK_NAMES:
        return f"blocks.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"
    return name
