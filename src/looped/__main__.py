"""`python -m looped` is the `looped` command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C during its imports ends with one line, as it does later."""
    try:
        from looped.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit("looped: stopped.")


if __name__ == "__main__":
    main()
