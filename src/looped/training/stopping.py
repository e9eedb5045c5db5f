"""How training ends before its last step: by a signal, or because the disk takes no more."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from collections.abc import Iterator

from looped.training.distributed import LostRank
from looped.training.run import Run

CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `timeout`, a scheduler or torchrun sends."""


class Interrupted(Exception):
    """Training was asked to stop; everything up to then is saved."""


class NotSaved(Interrupted):
    """The disk took no more; everything up to the last checkpoint is saved."""


class Stop(threading.Event):
    """Set by Ctrl-C and SIGTERM, in the main thread; elsewhere there are no signals to hear."""

    def listen(self) -> None:
        """Hear them, from now on or still: a library that compiles kernels may have put its own handlers in place."""
        if threading.current_thread() is threading.main_thread():
            for number in CAUGHT:
                signal.signal(number, lambda *_: [one.set() for one in _listening])


_listening: list[Stop] = []


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """An event that Ctrl-C and SIGTERM set.

    One inside another sets both: what ends just then may end, and what is around it hears that it should stop. One
    that begins inside one that is set begins set: a signal may come while a model is built.
    """
    event = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = [signal.getsignal(number) or signal.SIG_DFL for number in CAUGHT]
    _listening.append(event)
    if any(one.is_set() for one in _listening):
        event.set()
    event.listen()
    lost = False
    try:
        yield event
    except LostRank:
        lost = True  # torchrun now ends this rank too, by SIGTERM; it says why first
        raise
    finally:
        _listening.remove(event)
        for number, handler in zip(CAUGHT, before, strict=True):
            signal.signal(number, signal.SIG_IGN if lost and number == signal.SIGTERM else handler)


@contextlib.contextmanager
def writing(run: Run) -> Iterator[None]:
    """A disk that is full or cannot be written is one line that says where the run stands and what to do."""
    try:
        yield
    except OSError as error:
        remedies = {errno.ENOSPC: "Free some space", errno.EDQUOT: "Free some space"}
        remedy = remedies.get(error.errno or 0, "Make the folder writable")
        where = f"its last checkpoint is of step {run.steps[-1]}" if run.steps else "it has no checkpoint yet"
        raise NotSaved(
            f"{run.path} cannot be written: {error.strerror or error}; {where}. {remedy}, then go on with the same "
            f"command, or: looped train --resume {run.path}"
        ) from None
