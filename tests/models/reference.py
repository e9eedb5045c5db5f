"""The published decoders in NumPy, float64, from a state dict under the published names: written from the maths.

yang24's program keeps its layers under `_backbone.transformer.` with weights (out, in); that of Garg et al. under
`_backbone.` with weights (in, out), an unused `wte` and causal mask buffers.
"""

import numpy as np
import torch

PREFIX = {"yang24": "_backbone.transformer.", "garg": "_backbone."}
LAYOUTS = tuple(PREFIX)


def random_model(config, seed=0):
    """A model in float64 whose parameters are all random, biases and LayerNorms too."""
    torch.manual_seed(seed)
    model = config.build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def published_state(layout, *, layers, d, width, positions, seed=0):
    """A state dict as the layout's program saves it, with random biases and LayerNorms that are far from trivial."""
    rng = np.random.default_rng(seed)
    state = {}

    def affine(name, fan_in, fan_out, flipped=False):
        weight = rng.normal(size=(fan_out, fan_in)) / np.sqrt(fan_in)
        state[f"{name}.weight"] = np.ascontiguousarray(weight.T) if flipped else weight
        state[f"{name}.bias"] = 0.3 * rng.normal(size=fan_out)

    def norm(name):
        state[f"{name}.weight"] = rng.uniform(0.4, 1.6, size=width) * rng.choice([-1, 1], size=width)
        state[f"{name}.bias"] = 0.3 * rng.normal(size=width)

    root, conv = PREFIX[layout], layout == "garg"
    affine("_read_in", d, width)
    state[f"{root}wpe.weight"] = 0.5 * rng.normal(size=(positions, width))
    for i in range(layers):
        block = f"{root}h.{i}."
        norm(f"{block}ln_1")
        affine(f"{block}attn.c_attn", width, 3 * width, conv)
        affine(f"{block}attn.c_proj", width, width, conv)
        norm(f"{block}ln_2")
        affine(f"{block}mlp.c_fc", width, 4 * width, conv)
        affine(f"{block}mlp.c_proj", 4 * width, width, conv)
        if conv:
            mask = np.tril(np.ones((positions, positions), dtype=bool))
            state[f"{block}attn.bias"] = mask[None, None]
            state[f"{block}attn.masked_bias"] = np.array(-1e4)
    norm(f"{root}ln_f")
    affine("_read_out", width, 1)
    if conv:
        state[f"{root}wte.weight"] = rng.normal(size=(7, width))
    return state


class Published:
    """A published decoder's forward pass."""

    def __init__(self, state, layout, *, heads):
        self.state, self.root, self.conv, self.heads = state, PREFIX[layout], layout == "garg", heads
        self.layers = sum(name.endswith("ln_1.weight") for name in state)

    def unlooped(self, xs, ys):
        """read_out(ln_f(blocks(P + wpe))) at the x tokens."""
        return self.answers(self.norm("ln_f", self.blocks(self.prompt(xs, ys) + self.positions(xs))))

    def looped(self, xs, ys, loops, inject="add", inside=True):
        """After each loop, Y <- ln_f(blocks(inject(Y, P) + wpe)); outside: positions join P once, ln_f follows once."""
        prompt = self.prompt(xs, ys)
        if not inside:
            prompt = prompt + self.positions(xs)
        y = {"add": np.zeros_like(prompt), "multiply": np.ones_like(prompt), "none": prompt}[inject]
        curve = []
        for _ in range(loops):
            stream = {"add": y + prompt, "multiply": y * prompt, "none": y}[inject]
            y = self.norm("ln_f", self.blocks(stream + self.positions(xs))) if inside else self.blocks(stream)
            curve.append(self.answers(y if inside else self.norm("ln_f", y)))
        return np.stack(curve)

    def prompt(self, xs, ys):
        """Token 2i is x_i, token 2i+1 is (y_i, 0, ..., 0); each is read in."""
        batch, n, d = xs.shape
        tokens = np.zeros((batch, 2 * n, d))
        for i in range(n):
            tokens[:, 2 * i] = xs[:, i]
            tokens[:, 2 * i + 1, 0] = ys[:, i]
        return tokens @ self.state["_read_in.weight"].T + self.state["_read_in.bias"]

    def positions(self, xs):
        return self.state[f"{self.root}wpe.weight"][: 2 * xs.shape[1]]

    def answers(self, stream):
        out = stream @ self.state["_read_out.weight"].T + self.state["_read_out.bias"]
        return out[:, 0::2, 0]

    def blocks(self, stream):
        for i in range(self.layers):
            stream = stream + self.attention(i, self.norm(f"h.{i}.ln_1", stream))
            hidden = self.affine(f"h.{i}.mlp.c_fc", self.norm(f"h.{i}.ln_2", stream))
            gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
            stream = stream + self.affine(f"h.{i}.mlp.c_proj", gelu)
        return stream

    def attention(self, i, stream):
        """Token by token and head by head: softmax over itself and what came before."""
        width = stream.shape[-1]
        head = width // self.heads
        q, k, v = np.split(self.affine(f"h.{i}.attn.c_attn", stream), 3, axis=-1)
        mixed = np.zeros_like(stream)
        for h in range(self.heads):
            part = slice(h * head, (h + 1) * head)
            for t in range(stream.shape[1]):
                scores = np.einsum("bd,bsd->bs", q[:, t, part], k[:, : t + 1, part]) / np.sqrt(head)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                mixed[:, t, part] = np.einsum("bs,bsd->bd", weights, v[:, : t + 1, part])
        return self.affine(f"h.{i}.attn.c_proj", mixed)

    def affine(self, name, stream):
        weight = self.state[f"{self.root}{name}.weight"]
        return stream @ (weight if self.conv else weight.T) + self.state[f"{self.root}{name}.bias"]

    def norm(self, name, stream):
        centred = stream - stream.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return centred / scale * self.state[f"{self.root}{name}.weight"] + self.state[f"{self.root}{name}.bias"]
