"""How a training step is run: plainly, or captured once as CUDA graphs and replayed.

    plain   every operation launched from Python; any device
    graph   the step as a few CUDA graphs: no launches from Python, nothing waits for the device
    fused   the same with kernels of our own (`models/gpu`): all loops of a one-block decoder, or block by block

All three do the same mathematics with the same random numbers. A captured step reads what changes from step to step
(the rate, active dims and points, the average's decay) from a table on the device, at a counter on the device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from looped.experiment import TrainConfig
from looped.models.base import LoopedModel
from looped.models.fusing import blocks_obstacle, obstacle
from looped.models.loop import leaves, tree_map
from looped.prompt import AnyPrompt
from looped.training.batches import Now
from looped.training.passes import ExtraLoss, Passes

if TYPE_CHECKING:
    from looped.training.trainer import Trainer

ENGINES = ("plain", "graph", "fused")
"""By name, slowest first."""
MAX_GRAPHS = 16
"""A training that needs more captured graphs has too fine a schedule: every graph holds memory."""


class Plain:
    """Runs every operation as Python reaches it."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def step(self, step: int) -> None:
        """Sample, loop, learn."""
        trainer, batches = self.trainer, self.trainer.batches
        now = batches.now(step)
        trainer.passes.refresh()
        whole = batches.draw(now, batches.num_pairs(step))
        prompt = trainer.team.rows(whole, stacked=trainer.stacked)
        loops, windows = batches.loops(step)
        trainer.learn(prompt, trainer.passes.finish(prompt, loops=loops, **windows), now, whole)


class Graphs:
    """A step as three kinds of CUDA graph: draw and begin; one loop without gradient; the rest, with the update.

    Each kind is captured once for every shape it meets: the first is replayed once a step, the second as often as there
    are loops before the gradient's window, so that a new number of loops needs no new capture.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.stream = torch.cuda.Stream(trainer.device)
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.graphs: dict[Hashable, Any] = {}
        self.warm: set[Hashable] = set()
        self.saved_tensors: dict[int | None, Any] = {}
        self.counter = torch.zeros((), dtype=torch.int64, device=trainer.device)
        self.next = 0
        self.table: Tensor | None = None
        self.draws = trainer.config.pool is None and not trainer.task.captured
        """Whether prompts are drawn outside the graphs, and copied to where the graphs read them."""

    def step(self, step: int) -> None:
        """Replay the step; the first one of a new shape runs plainly, the second is captured."""
        trainer = self.trainer
        if self.table is None:
            self.table = self._table()
        if step != self.next:
            self.counter.fill_(step)
        self.next = step + 1
        cut = trainer.batches.num_pairs(step)
        loops, windows = trainer.batches.loops(step)
        # where a model draws, all loops read one context, whose draws the loops ahead must share
        low = trainer.passes.low
        steady = low.steady and not (trainer.config.dropout or low.draws or trainer.random)
        ahead, last = split(loops, windows, steady=steady)
        begin, loop, finish = ("begin", cut), ("loop", cut), ("finish", cut, ahead > 0, last, *windows.values())
        keys = [begin, *([loop] if ahead else []), finish]
        if not self.warm.issuperset(keys):
            self._on_stream(lambda: self._plainly(cut, ahead, last, windows))
            self.warm.update(keys)
            return
        if self.draws:
            self._put(cut, trainer.batches.draw(self._now(), cut))
        elif trainer.config.depth is None:  # the number of loops never changes: one graph for the whole step
            self._replay(("step", cut), lambda: self._plainly(cut, ahead, last, windows))
            return
        self._replay(begin, lambda: self._begin(cut))
        for _ in range(ahead):
            self._replay(loop, lambda: self._loop(cut))
        self._replay(finish, lambda: self._finish(cut, ahead, last, windows))

    def _plainly(self, cut: int | None, ahead: int, last: int, windows: dict[str, Any]) -> None:
        passes = self.trainer.passes
        passes.refresh()
        now = self._now()
        prompt = self.trainer.batches.draw(now, cut)
        self._learn(prompt, passes.whole(prompt, ahead=ahead, loops=last, **windows), now)

    def _begin(self, cut: int | None) -> None:
        """Draw and embed, under capture; the other graphs of this prompt length read the tensors where they lie."""
        passes = self.trainer.passes
        passes.refresh()
        prompt = self.saved_tensors[cut][0] if self.draws else self.trainer.batches.draw(self._now(), cut)
        context, state = passes.begin(prompt)
        self.saved_tensors[cut] = (prompt, context, tree_map(torch.clone, state))

    def _loop(self, cut: int | None) -> None:
        _, context, state = self.saved_tensors[cut]
        for old, new in zip(leaves(state), leaves(self.trainer.passes.loop(state, context)), strict=True):
            if new is not old:
                old.copy_(new)

    def _finish(self, cut: int | None, ahead: int, last: int, windows: dict[str, Any]) -> None:
        prompt, _, state = self.saved_tensors[cut]
        outputs = self.trainer.passes.finish(prompt, state if ahead else None, loops=last, **windows)
        self._learn(prompt, outputs, self._now())

    def _learn(self, prompt: AnyPrompt, outputs: Tensor, now: Now) -> None:
        self.trainer.learn(prompt, outputs, now)
        self.counter += 1

    def _now(self) -> Now:
        assert self.table is not None
        rate, dims, points, decay = self.table.index_select(0, self.counter.view(1))[0].unbind()
        config = self.trainer.config
        # a plain number where no schedule changes it: nothing is then computed on the device
        points = config.points if config.active_points is None else points
        return Now(self.counter, rate, None if config.dims is None else dims, points, decay)

    def _table(self) -> Tensor:
        """The numbers of all steps, on the device: nothing is copied there while training runs."""
        every = map(self.trainer.batches.now, range(self.trainer.config.steps))
        numbers = [(now.rate, now.dims or 0, now.points, now.decay) for now in every]
        return torch.tensor(numbers, dtype=torch.float32, device=self.trainer.device)

    def _replay(self, key: Hashable, body: Callable[[], None]) -> None:
        if key not in self.graphs and len(self.graphs) == MAX_GRAPHS:
            raise ValueError(
                f"this training needs more than {MAX_GRAPHS} captured graphs: too many different windows or prompt "
                "lengths. Make its schedules coarser, or use --engine plain."
            )
        if key not in self.graphs:
            self.graphs[key] = self._capture(body)
        self.graphs[key].replay()

    def _capture(self, body: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        for generator in self.trainer.batches.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self.trainer.device)
        collects = gc.isenabled()
        gc.disable()  # the graphs of a finished training could be collected now, and destroying them breaks a capture
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                body()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"this step cannot be captured as a CUDA graph ({reason}). Use --engine plain.") from error
        finally:
            if collects:
                gc.enable()
        return graph

    def _on_stream(self, body: Callable[[], None]) -> None:
        """Run the steps before a capture on the stream of the capture."""
        current = torch.cuda.current_stream(self.trainer.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            body()
        current.wait_stream(self.stream)

    def _put(self, cut: int | None, prompt: AnyPrompt) -> None:
        if cut not in self.saved_tensors:
            self.saved_tensors[cut] = (prompt.clone(), None, None)
        else:
            for old, new in zip(self.saved_tensors[cut][0].tensors(), prompt.tensors(), strict=True):
                old.copy_(new)


def split(loops: int, windows: dict[str, Any], *, steady: bool) -> tuple[int, int]:
    """How many of `loops` run ahead, without gradient and not in the loss, and how many are left."""
    grad, keep = windows["grad"], windows["keep"] or 1
    last = loops if grad is None or not steady else max(grad, keep)
    return loops - last, last


def check_engine(name: str) -> None:
    """Refuse a name that is no engine's."""
    if name not in ("auto", *ENGINES):
        raise ValueError(f"`engine` must be auto, {', '.join(ENGINES[:-1])} or {ENGINES[-1]}; got {name!r}.")


def choose(trainer: Trainer, name: str) -> tuple[Plain | Graphs, Passes]:
    """The engine of this name and the passes it runs; `auto` is the fastest for this model on this device."""
    check_engine(name)
    on_gpu = trainer.device.type == "cuda"
    dtype = getattr(torch, trainer.config.dtype)
    if not on_gpu and (name in ("graph", "fused") or dtype is torch.bfloat16):
        what = f"engine `{name}`" if dtype is not torch.bfloat16 else "`dtype=bfloat16`"
        raise ValueError(f"{what} needs a GPU; this run is on {trainer.device}. Use --engine plain and float32.")
    if trainer.team.joined and name in ("graph", "fused"):
        raise ValueError(f"engine `{name}` is for one process; a torchrun job trains with --engine plain.")
    if trainer.team.joined and trainer.config.dropout:
        raise ValueError(f"a torchrun job trains without dropout; got {trainer.config.dropout}. Use one process.")
    if trainer.team.joined and (trainer.model.draws or trainer.random or trainer.config.jacobian):
        raise ValueError(
            "a torchrun job trains no model that draws random numbers, and without `jacobian`. Use one process."
        )
    plainly = ExtraLoss.needed(trainer.model, trainer.config)
    if plainly and name in ("graph", "fused"):
        raise ValueError(f"engine `{name}` has no gradient rules, penalties and learned halting. Use --engine plain.")
    if not on_gpu or name == "plain" or trainer.team.joined or plainly:
        return Plain(trainer), Passes(trainer.model, dtype)
    if name == "graph":
        return Graphs(trainer), Passes(trainer.model, dtype)
    whole = fusible(trainer.model, trainer.config)
    if whole is None:
        from looped.training.fused import FusedPasses

        return Graphs(trainer), FusedPasses(trainer.model, dtype)
    reason = "it is trained with dropout" if trainer.config.dropout else blocks_obstacle(trainer.model)
    if name == "fused" and reason:
        raise ValueError(f"engine `fused` has no kernels for this model: {reason}. Use --engine graph.")
    if reason:
        return Graphs(trainer), Passes(trainer.model, dtype)
    from looped.training.fused_blocks import FusedBlocks

    return Graphs(trainer), FusedBlocks(trainer.model, dtype)


def fusible(model: LoopedModel, config: TrainConfig) -> str | None:
    """Why our kernels cannot train this model as one-block decoder; None where they can."""
    reason = obstacle(model)
    if reason is None and config.grad is not None and config.grad < config.window:
        return f"its loss reads {config.window} loops and its gradient {config.grad}"
    if reason is None and config.dropout:
        return "it is trained with dropout"
    return "it is trained in float64" if reason is None and config.dtype == "float64" else reason
