"""Trackers of a run's metrics: TensorBoard always; Weights & Biases and MLflow on request, both without a network.

RUN/tensorboard/    TensorBoard
RUN/wandb/          `--track wandb`: offline unless WANDB_MODE says otherwise; `wandb sync RUN/wandb/offline-*` uploads
RUN/mlflow.db       `--track mlflow`: a store of its own unless MLFLOW_TRACKING_URI names one
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from looped.config import encode, flat
from looped.files import log, one_line
from looped.training.distributed import Onlooker
from looped.training.run import Run


class Board(Protocol):
    """A tracker of a run's metrics."""

    def add_scalar(self, key: str, value: float, step: int, /) -> Any:
        """Record one number of one step."""
        ...

    def close(self) -> None:
        """End the record."""
        ...


@contextlib.contextmanager
def boards(run: Run, step: int, track: Sequence[str] = ()) -> Iterator[list[Board]]:
    """Open TensorBoard and the trackers named in `track` for a run that goes on from `step`."""
    check(track)
    if isinstance(run, Onlooker):
        yield []
        return
    with contextlib.ExitStack() as files:
        # trackers first: a missing package must end the run before anything is written
        others = [files.enter_context(contextlib.closing(_Guarded(name, run))) for name in dict.fromkeys(track)]
        yield [files.enter_context(_tensorboard(run, step)), *others]


def check(track: Sequence[str]) -> None:
    """Refuse names that are not trackers."""
    for name in track:
        if name not in TRACKERS:
            raise ValueError(f"`--track` takes {' or '.join(TRACKERS)} (TensorBoard is always on); got `{name}`.")


class _Guarded:
    """A tracker that is dropped with a warning when it fails: the metrics are in metrics.jsonl too."""

    def __init__(self, name: str, run: Run):
        self.name, self.failed = name, False
        try:
            self.tracker = TRACKERS[name](run)
        except ImportError as error:
            raise ValueError(
                f"`--track {name}` needs {error.name}. Install it: pip install 'looped[{name}]'."
            ) from None
        except Exception as error:  # every package has its own error classes
            raise ValueError(f"{name} cannot follow {run.path}: {_line(error)}. Leave out `--track {name}`.") from None

    def add_scalar(self, key: str, value: float, step: int, /) -> None:
        self._try(lambda: self.tracker.add_scalar(key, value, step))

    def close(self) -> None:
        self._try(self.tracker.close)

    def _try(self, act: Callable[[], Any]) -> None:
        if self.failed:
            return
        try:
            act()
        except Exception as error:
            self.failed = True
            log.warning(f"looped: {self.name} failed ({_line(error)}); training goes on without it.")


class _Wandb:
    """A run of Weights & Biases named like the folder."""

    def __init__(self, run: Run):
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would send its own errors too
        import wandb  # type: ignore[import-not-found]

        name = run.path.resolve().name
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "looped"),
            name=name,
            id=name,
            dir=str(run.path),
            config=run.experiment.to_data(complete=True),
            mode=mode,
            resume="allow",
            reinit="create_new",  # seeds of one stack are runs side by side
            settings=wandb.Settings(silent=True, console="off"),
        )

    def add_scalar(self, key: str, value: float, step: int, /) -> None:
        self.run.log({key: value}, step=step)

    def close(self) -> None:
        self.run.finish()


class _Mlflow:
    """A run of MLflow named like the folder; a resumed run goes on in the same one."""

    def __init__(self, run: Run):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on import
        from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]

        folder, name = run.path.resolve(), run.path.resolve().name
        given = os.environ.get("MLFLOW_TRACKING_URI")
        files = {} if given else {"artifact_location": (folder / "mlartifacts").as_uri()}  # else the current folder
        self.client = MlflowClient(tracking_uri=given or f"sqlite:///{folder / 'mlflow.db'}")
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "looped")
        known = self.client.get_experiment_by_name(title)
        group = self.client.create_experiment(title, **files) if known is None else known.experiment_id
        same = self.client.search_runs([group], filter_string=f"tags.looped = '{name}'", max_results=1)
        if same:
            self.id = same[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        self.id = self.client.create_run(group, tags={"looped": name}, run_name=name).info.run_id
        for key, value in flat(encode(run.experiment, without="defaults")).items():
            self.client.log_param(self.id, key, value)

    def add_scalar(self, key: str, value: float, step: int, /) -> None:
        self.client.log_metric(self.id, key, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.id)


TRACKERS: dict[str, Callable[[Run], Board]] = {"wandb": _Wandb, "mlflow": _Mlflow}
"""By the name for `--track`, which is also the name of the extra that installs it."""


def _line(error: Exception) -> str:
    return (one_line(error) or type(error).__name__)[:200].rstrip(".")


@contextlib.contextmanager
def _tensorboard(run: Run, step: int) -> Iterator[Board]:
    from torch.utils.tensorboard import SummaryWriter

    hook = threading.excepthook

    def quiet(args: threading.ExceptHookArgs) -> None:
        # on a full disk TensorBoard's thread prints a traceback; our next write raises the same error anyway
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard")):
            hook(args)

    threading.excepthook = quiet
    try:
        writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1)
        try:
            yield writer
        finally:
            with contextlib.suppress(OSError):  # the metrics are in metrics.jsonl too
                writer.close()
    finally:
        threading.excepthook = hook
