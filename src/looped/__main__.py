"""`python -m looped` is the `looped` command."""

from looped.cli import main

if __name__ == "__main__":
    main()
