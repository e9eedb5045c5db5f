"""What people would use instead: Hugging Face's `GPT2Model`, looped through `inputs_embeds`, eager or compiled;
and a training step as the published program takes it.

The mathematics is equal: the same prompts, read-in, positions and final LayerNorm inside every loop, window of loss and
of gradient, clipping and Adam; the same initial weights for the same seed. Adam is fused, like ours; attention is the
model's default, PyTorch's fused kernel; the activation is GPT-2's default.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.experiment import Experiment
from looped.functional.streams import stream
from looped.models.decoder import DecoderConfig, LoopedDecoder, interleave
from looped.prompt import Prompt
from looped.training.importer import IGNORED, rename, renamed

PUBLISHED = "published"
RIVALS = ("gpt2", "gpt2-compile", PUBLISHED)
"""Eager PyTorch, `torch.compile` of the GPT2Model, and eager PyTorch as the published program uses it."""


def transformers() -> Any:
    """The package; without it, an error that says how to install it."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "the rivals need transformers: pip install 'looped[bench]', or leave them out with `--no-rivals`."
        ) from None
    return transformers


class LoopedGPT2(nn.Module):
    """yang24's looped decoder from ready parts; parameters are named as in the published program.

    Y <- GPT2Model(inputs_embeds = Y + P),  Y_0 = 0
    """

    def __init__(self, config: DecoderConfig, *, compiled: bool = False):
        super().__init__()
        if not isinstance(config, DecoderConfig) or config.inject != "add" or not config.inside:
            raise ValueError("the rival is yang24's decoder: it needs `inject='add'` and `inside=true`.")
        package = transformers()
        sizes = {"n_positions": config.positions, "n_embd": config.width, "n_layer": config.layers}
        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        settings = package.GPT2Config(
            vocab_size=1, n_head=config.heads, bos_token_id=0, eos_token_id=0, **sizes, **quiet
        )
        self._read_in = nn.Linear(config.d, config.width)
        self._backbone = package.GPT2Model(settings)
        self._backbone.wte.weight.requires_grad_(False)  # `inputs_embeds` bypasses it
        self._read_out = nn.Linear(config.width, 1)
        self.run = torch.compile(self._backbone, dynamic=False) if compiled else self._backbone

    def forward(
        self, prompt: Prompt, *, loops: int, window: int, half: bool = False
    ) -> Float[Tensor, "window batch n"]:
        """Predictions after each of the last `window` loops, which alone carry gradient; `half`: bf16 autocast."""

        def precision():
            # entered again after the prefix: autocast caches its bf16 weights, and those of no_grad have no gradient
            return torch.autocast(prompt.xs.device.type, torch.bfloat16) if half else contextlib.nullcontext()

        tokens = interleave(prompt)
        with precision():
            embedded = self._read_in(tokens)
            state = torch.zeros_like(embedded)
            with torch.no_grad():
                for _ in range(loops - window):
                    state = self.run(inputs_embeds=state + embedded).last_hidden_state
        answers = []
        with precision():
            for _ in range(window):
                state = self.run(inputs_embeds=state + embedded).last_hidden_state
                answers.append(self._read_out(state[:, ::2]).squeeze(-1))
        return torch.stack(answers).to(prompt.ys.dtype)

    def load(self, ours: LoopedDecoder) -> None:
        """Copy the weights of our decoder; a Conv1D of transformers has shape (in, out)."""
        weights = ours.state_dict()
        with torch.no_grad():
            for name, parameter in self.trained().items():
                value = weights[rename(name)]
                parameter.copy_(value.T if re.search(r"\.c_\w+\.weight$", name) else value)

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if not IGNORED.fullmatch(name) and parameter.requires_grad
        }


class RivalTrainer:
    """The training step as a user of transformers writes it; several models take their steps in turn."""

    def __init__(self, experiment: Experiment, seeds: Sequence[int], device: torch.device, *, compiled: bool = False):
        self.config, self.task, self.loops = experiment.train, experiment.task, experiment.model.loops
        self.half = self.config.dtype == "bfloat16"
        self.dtype = torch.float32 if self.half else getattr(torch, self.config.dtype)
        if (self.config.grad or self.loops) != self.config.window:
            raise ValueError("the rival has one window: `grad` and `window` must agree.")
        if compiled:
            torch.compiler.reset()  # compile each case for its own shapes, without reaching the limit on recompilations
        self.models = [self._build(experiment.model, seed, device, compiled) for seed in seeds]
        self.optimizers = [self._adam(model) for model in self.models]
        self.generators = [torch.Generator(device).manual_seed(stream(seed, "prompts")) for seed in seeds]
        self.loss = torch.zeros(len(seeds), device=device)
        """The loss of the last step, one per model."""

    def step(self, step: int) -> None:
        """Sample, loop, loss, backward, clip, Adam."""
        rate = self.config.optimizer.learning_rate * self.config.optimizer.schedule(step, self.config.steps)
        for index, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            loss = self._loss(model, index)
            loss.backward()
            self.loss[index] = loss.detach()
            if self.config.optimizer.clip is not None:
                nn.utils.clip_grad_norm_(model.trained().values(), self.config.optimizer.clip)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _loss(self, model: LoopedGPT2, index: int) -> Tensor:
        size = {"batch": self.config.batch, "n": self.config.points}
        prompt = self.task.sample(**size, generator=self.generators[index]).to(self.dtype)
        outputs = model(prompt, loops=self.loops, window=self.config.window, half=self.half)
        return self.task.error(outputs, prompt).mean()

    def moments(self) -> list[dict[str, Tensor]]:
        """Adam's running means of the gradients for each model, in the names and layout of our decoder."""
        return [
            renamed({name: adam.state[weight]["exp_avg"] for name, weight in model.trained().items()}, flipped=True)
            for model, adam in zip(self.models, self.optimizers, strict=True)
        ]

    def _adam(self, model: LoopedGPT2) -> torch.optim.Adam:
        options = {"lr": self.config.optimizer.learning_rate, "betas": self.config.optimizer.betas, "fused": True}
        return torch.optim.Adam(model.trained().values(), **options)

    def _build(self, config: Any, seed: int, device: torch.device, compiled: bool) -> LoopedGPT2:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "weights"))
            ours = config.build()
            model = LoopedGPT2(config, compiled=compiled)
        model.load(ours)
        return model.to(device, self.dtype).train()


class PublishedTrainer(RivalTrainer):
    """The step of yang24's published program, as it is described: eager, float32 (TF32 where that is allowed).

    Prompts are drawn on the CPU and copied; the norm of every weight's gradient, and the loss, are read on the host in
    every step; PyTorch's default Adam; no clipping.
    """

    def __init__(self, experiment: Experiment, seeds: Sequence[int], device: torch.device):
        super().__init__(experiment, seeds, device)
        self.device = device
        self.generators = [torch.Generator().manual_seed(stream(seed, "prompts")) for seed in seeds]
        self.norms: dict[str, float] = {}
        """The norms of the last step's gradients, of the last model."""

    def step(self, step: int) -> None:
        """Sample, copy, loop, loss, backward, read norms and loss, Adam."""
        size = {"batch": self.config.batch, "n": self.config.points}
        for index, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            prompt = self.task.sample(**size, generator=self.generators[index]).to(self.device).to(self.dtype)
            optimizer.zero_grad()
            outputs = model(prompt, loops=self.loops, window=self.config.window)
            loss = self.task.error(outputs, prompt).mean()
            loss.backward()
            self.norms = {name: weight.grad.norm().item() for name, weight in model.trained().items()}  # type: ignore[union-attr]
            optimizer.step()
            self.loss[index] = loss.detach().item()

    def _adam(self, model: LoopedGPT2) -> torch.optim.Adam:
        options = {"lr": self.config.optimizer.learning_rate, "betas": self.config.optimizer.betas}
        return torch.optim.Adam(model.trained().values(), **options)
