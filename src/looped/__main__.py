"""`python -m looped` is the `looped` command."""

import signal
import sys


def main() -> None:
    """Run the command; whenever Ctrl-C comes, it ends with one line."""
    from looped.cli import main as run

    caught: list[int] = []

    def hear(number: int, frame: object) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    def listen() -> None:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in a job in the background
            signal.signal(signal.SIGINT, hear)

    try:
        try:
            run(imported=listen)  # until then `looped/__init__.py` has a handler that ends at once
        finally:  # the result is out; what is left is Python's own end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:
        # a library that is imported late may swallow the interrupt, and then lack a part
        if isinstance(error, KeyboardInterrupt) or (caught and not isinstance(error, SystemExit)):
            sys.exit("looped: stopped.")
        raise


if __name__ == "__main__":
    main()
