"""`python -m looped` is the `looped` command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while its modules are still being imported is one line too, as it is later."""
    try:
        from looped.cli import main as run
    except KeyboardInterrupt:
        sys.exit("looped: stopped.")
    run()


if __name__ == "__main__":
    main()
