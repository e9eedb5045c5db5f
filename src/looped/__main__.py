"""`python -m looped` is the `looped` command."""

import gc
import signal
import sys
from types import FrameType

from looped.signals import STOPPED, importing, stop_at_once

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run the command; whenever Ctrl-C or SIGTERM comes, it ends with one line."""
    from looped.cli import main as run

    caught: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if importing(frame):  # the library may swallow an exception, and then lack a part
            stop_at_once()
        raise KeyboardInterrupt

    def listen() -> None:
        for number in SIGNALS:
            if signal.getsignal(number) is stop_at_once:  # not SIG_IGN, as in a job in the background
                signal.signal(number, hear)
        sys.unraisablehook = _unraisable
        gc.freeze()  # what was imported stays: a listing of thousands makes the collector look at all of it

    try:
        try:
            run(imported=listen)  # until then `looped/__init__.py` has a handler that ends at once
        finally:  # the result is out; what is left is Python's own end
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (caught and not isinstance(error, SystemExit)):
            sys.exit(f"looped: {STOPPED}")
        raise


def _unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """End here where the interrupt came in a destructor, out of which Python lets no exception."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        stop_at_once()
    sys.__unraisablehook__(lost)


if __name__ == "__main__":
    main()
