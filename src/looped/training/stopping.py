"""How training ends before its last step: by a signal, or because the disk is full."""

import contextlib
import errno
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from looped.signals import importing
from looped.training.distributed import LostRank, Team
from looped.training.folder import Folder

CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `timeout`, a scheduler or torchrun sends."""


class Interrupted(Exception):
    """Training was asked to stop; everything up to then is saved."""


class NotSaved(Interrupted):
    """The disk could not be written; everything up to the last checkpoint is saved."""


class Stop(threading.Event):
    """Set by Ctrl-C and SIGTERM."""

    heard: int | None = None
    """The signal that set it."""
    nothing_to_save = False
    """Whether a signal ends the work at once: no step is done that could be saved."""

    def listen(self) -> None:
        """Install the handlers again; Triton may have replaced them. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in CAUGHT:
                signal.signal(number, _hear)


def _hear(number: int, frame: FrameType | None) -> None:
    """Ask all trainings to stop; a second Ctrl-C does not wait for the step, of which a large model has long ones."""
    again = number == signal.SIGINT and all(stop.is_set() for stop in _listening)
    for stop in _listening:
        stop.heard = number
        stop.set()
    # an import may swallow the exception and lack a part then: what is imported now is imported first
    if _listening and (again or (_listening[-1].nothing_to_save and not importing(frame))):
        raise KeyboardInterrupt


_listening: list[Stop] = []
"""The main thread's, the outermost first."""


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """An event that Ctrl-C and SIGTERM set.

    A signal sets all nested events: the inner training ends, and what surrounds it knows that it should stop. One that
    begins inside one that is set begins set: a signal may come while a model is built. Signals reach the main thread
    alone, so another thread shares its outermost event: setting that stops the threads too. Where the training ends as
    if there had been no signal, because it was in its last step, the signal is handed on to what surrounds it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _listening[0] if _listening else Stop()
        return
    event = Stop()
    before = [signal.getsignal(number) or signal.SIG_DFL for number in CAUGHT]
    _listening.append(event)
    if any(stop.is_set() for stop in _listening):
        event.set()
    event.listen()
    lost = ended = False
    try:
        yield event
        ended = True
    except LostRank:
        lost = True  # torchrun now ends this rank too, by SIGTERM; it says why first
        raise
    finally:
        _listening.remove(event)
        for number, handler in zip(CAUGHT, before, strict=True):
            signal.signal(number, signal.SIG_IGN if lost and number == signal.SIGTERM else handler)
    if ended and event.heard is not None and not _listening:
        signal.raise_signal(event.heard)


@contextlib.contextmanager
def nothing_to_save(team: Team, where: str) -> Iterator[None]:
    """While a model is built, and in a first step, a signal ends the training at once: both may take minutes.

    `where` says where the training stands. Ranks of a team stop together, after the step.
    """
    stop = _listening[-1] if _listening and threading.current_thread() is threading.main_thread() else None
    if stop is None or team.size > 1:
        yield
        return
    stop.nothing_to_save = True
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(where) from None
    finally:
        stop.nothing_to_save = False


@contextlib.contextmanager
def writing(folder: Folder) -> Iterator[None]:
    """Turn a disk that is full or cannot be written into one line: where the training stands, and what to do."""
    try:
        yield
    except OSError as error:
        remedies = {errno.ENOSPC: "Free some space", errno.EDQUOT: "Free some space"}
        remedy = remedies.get(error.errno or 0, "Make the folder writable")
        raise NotSaved(
            f"{folder.path} cannot be written: {error.strerror or error}; {folder.progress}. {remedy}. {folder.resume}"
        ) from None
