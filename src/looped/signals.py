"""Ctrl-C and SIGTERM before and around what a command does; imported first, so nothing heavy is imported here."""

import contextlib
import os
import signal
import sys
from types import FrameType

STOPPED = "stopped. What it saved is whole, and the same command goes on from there."
"""What a command says that a signal ended, where no training says more."""


def stop_at_once(*_: object) -> None:
    """End the command in one line, wherever it is; what it saved is whole, since files are written whole or not."""
    with contextlib.suppress(OSError):  # nobody reads it
        ends_bar = b"\x1b[?25h\n" if os.isatty(2) else b""  # a progress bar hides the cursor
        os.write(2, ends_bar + f"looped: {STOPPED}\n".encode())
    os._exit(1)


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: the library may swallow an exception there, and then lack a part."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def answer_signals() -> None:
    """In a command that still imports torch, end at once: an exception may be swallowed and leave torch in pieces."""
    # `python -m looped` has not set sys.argv[0] by then
    name, _ = os.path.splitext(os.path.basename(sys.argv[0]))
    if name != "looped" and sys.orig_argv[1:3] != ["-m", "looped"]:
        return
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:  # a job in the background ignores SIGINT
            signal.signal(number, stop_at_once)
