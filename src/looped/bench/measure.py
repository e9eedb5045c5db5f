"""Time a training step, from sampling to the optimiser, or a prediction: the median over many, without set-up."""

import contextlib
import ctypes
import gc
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from looped.bench.cases import Case, Dtype
from looped.bench.rivals import PUBLISHED, RIVALS, LoopedGPT2, PublishedTrainer, RivalTrainer
from looped.experiment import training
from looped.files import one_line
from looped.functional.precision import tf32_products
from looped.training.engine import ENGINES
from looped.training.run import Run
from looped.training.trainer import Trainer

WARM_UP = {"cpu": 2, "cuda": 10}
"""Steps before the first timed one, in which compilation, capture and clock rates settle."""
MIN_STEPS = {"cpu": 5, "cuda": 20}
MAX_STEPS, MAX_SECONDS = {"cpu": 50, "cuda": 200}, 2.0
"""Where the number of steps is not given: at least MIN_STEPS, then on until MAX_STEPS or MAX_SECONDS."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The cost of a training step, or of a prediction."""

    case: Case
    """What was measured."""
    ms: float | None
    """Median milliseconds per step; None if the case cannot run here."""
    spread: tuple[float, float] | None
    """The 10th and the 90th percentile of the milliseconds."""
    steps: int
    """How many steps were timed."""
    setup_seconds: float | None
    """From nothing to the first timed step: building, compiling, capturing, warming up."""
    memory: int | None
    """Peak bytes: on a GPU all that torch allocated, on a CPU what the timed steps added; None where it is unknown."""
    rate: float
    """TFLOP/s of a large matrix product in the same precision."""
    note: str = ""
    """Why there are no numbers."""

    @property
    def tflops(self) -> float | None:
        """TFLOP/s, counting `Case.flops` and nothing else."""
        return None if self.ms is None else self.case.flops / self.ms / 1e9

    @property
    def share(self) -> float | None:
        """TFLOP/s as a share of the device's measured matrix rate."""
        return None if self.tflops is None else self.tflops / self.rate

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        data = asdict(self)
        return {**data.pop("case"), **data, "flops": self.case.flops, "tflops": self.tflops, "share": self.share}


class Predictor:
    """Predictions of all labels of one batch, as `model.predict` gives them; or by GPT2Model."""

    def __init__(self, case: Case, device: torch.device):
        if case.engine not in ("plain", *RIVALS[:2]):
            raise ValueError(f"`{case.engine}` trains; predictions are by plain, {' and '.join(RIVALS[:2])}.")
        experiment = case.experiment()
        dtype = torch.float32 if case.dtype == "tf32" else getattr(torch, case.dtype)
        config: Any = experiment.model
        gpt2 = case.engine in RIVALS
        model: Any = LoopedGPT2(config, compiled=case.engine == RIVALS[1]) if gpt2 else config.build()
        model = model.to(device, dtype).eval()
        options = {"loops": case.loops}
        self.predict = (
            (lambda prompt: model(prompt, window=1, **options)[0]) if gpt2 else partial(model.predict, **options)
        )
        generator = torch.Generator(device).manual_seed(0)
        self.prompt = experiment.task.sample(batch=case.batch, n=case.points, generator=generator).to(dtype)

    def step(self, step: int) -> torch.Tensor:
        """Predict; the number of the step does not matter."""
        with torch.no_grad():
            return self.predict(self.prompt)


def stepper(
    case: Case, device: torch.device, *, steps: int, clip: float | None = 1.0, rate: float = 1e-4
) -> Trainer | RivalTrainer:
    """The engine or rival of a case, ready for the first of `steps` steps; ValueError if it cannot run here."""
    if case.dtype in ("tf32", "bfloat16") and device.type != "cuda":
        raise ValueError(f"`{case.dtype}` needs a GPU; this is a CPU. Use float32.")
    experiment = case.experiment(steps=steps, clip=clip, rate=rate)
    seeds = range(case.packed)
    if case.engine == PUBLISHED:
        if case.dtype == "bfloat16":
            raise ValueError("the published program computes in float32 or TF32. Use --dtype tf32.")
        return PublishedTrainer(experiment, seeds, device)
    if case.engine in RIVALS:
        return RivalTrainer(experiment, seeds, device, compiled=case.engine == "gpt2-compile")
    if case.engine not in ENGINES:
        raise ValueError(f"there is no engine `{case.engine}`. Use one of {', '.join((*ENGINES, *RIVALS))}.")
    # these runs are never saved, so the folder is never used
    runs = [Run(Path("bench"), training(experiment, seed=seed)) for seed in seeds]
    return Trainer(runs, device, engine=case.engine)


def ready(case: Case, device: torch.device, *, steps: int) -> Trainer | RivalTrainer | Predictor:
    """What is timed, ready for the first of `steps` steps or predictions; ValueError if it cannot run here."""
    return Predictor(case, device) if case.predicts else stepper(case, device, steps=steps)


def obstacle(case: Case, device: torch.device) -> str:
    """Why a case cannot run here; empty if it can."""
    try:
        stepper(case, device, steps=1)
    except ValueError as error:
        return one_line(error)
    return ""


def measure(case: Case, device: torch.device, *, rate: float, steps: int | None = None) -> Measured:
    """Build, warm up, then time `steps` steps one by one; a case that cannot run here says so in its `note`."""
    cuda = device.type == "cuda"
    warm_up = WARM_UP[device.type]
    unable = Measured(case=case, ms=None, spread=None, steps=0, setup_seconds=None, memory=None, rate=rate)
    release(device)
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    started = time.perf_counter()
    try:
        with precision(case.dtype):
            subject = ready(case, device, steps=warm_up + (steps or MAX_STEPS[device.type]))
            for step in range(warm_up):
                subject.step(step)
            if cuda:
                torch.cuda.synchronize(device)
            setup = time.perf_counter() - started
            peak = _cpu_peak() if not cuda else None
            times = timed(lambda step: subject.step(warm_up + step), device, steps=steps)
    except torch.OutOfMemoryError:
        return replace(unable, note="out of memory")
    except ValueError as error:
        return replace(unable, note=one_line(error))
    memory = torch.cuda.max_memory_allocated(device) - before if cuda else peak() if peak is not None else None
    ranks = statistics.quantiles(times, n=10) if len(times) > 1 else [times[0], times[0]]
    return replace(
        unable,
        ms=statistics.median(times),
        spread=(ranks[0], ranks[-1]),
        steps=len(times),
        setup_seconds=setup,
        memory=memory,
    )


def timed(step: Callable[[int], object], device: torch.device, *, steps: int | None) -> list[float]:
    """Milliseconds of each step, between events on a GPU's stream or by the clock of a CPU; None: MIN_STEPS or more."""
    least, limit = (MIN_STEPS[device.type], MAX_STEPS[device.type]) if steps is None else (steps, steps)
    started = time.perf_counter()
    marks: list[Any] = [_mark(device)]
    for index in range(limit):
        step(index)
        marks.append(_mark(device))
        if index + 1 >= least and time.perf_counter() - started > MAX_SECONDS and steps is None:
            break
    pairs = itertools.pairwise(marks)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return [start.elapsed_time(end) for start, end in pairs]
    return [1e3 * (end - start) for start, end in pairs]


def matrix_rate(device: torch.device, dtype: Dtype) -> float:
    """TFLOP/s of a large product of square matrices: the best that the device can do in this precision."""
    size = 8192 if device.type == "cuda" else 1024
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    with precision(dtype):
        # the first products choose a kernel and raise the clock rate
        times = timed(lambda _: left @ right, device, steps=10)[3:]
    return 2 * size**3 / statistics.median(times) / 1e9


@contextlib.contextmanager
def precision(dtype: Dtype) -> Iterator[None]:
    """Allow TF32 products for `tf32` only."""
    with tf32_products(allowed=dtype == "tf32"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # torch.compile's advice
        yield


def release(device: torch.device) -> None:
    """Free the memory of earlier cases."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _cpu_peak() -> Callable[[], int] | None:
    """Start watching this process's memory; call the result for how much its peak rose. None except on Linux."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

    try:
        # free memory that the allocator has in reserve would hide what the steps need
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = status("VmRSS:")
        status("VmHWM:")
    except (OSError, AttributeError, StopIteration):
        return None
    return lambda: max(0, status("VmHWM:") - before)
