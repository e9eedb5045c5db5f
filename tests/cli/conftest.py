"""Commands run in this process, as a user would type them."""

import os
import stat

import pytest

RAW = ("Traceback", "embedded null", "Overflow when unpacking", "invalid literal for int()")
"""What Python and torch say, and no person understands."""


@pytest.fixture
def refused(call, tmp_path):
    """Run a command that must be refused: exit 2, one line on standard error, no file written, changed or removed."""

    def files():
        return {path: os.lstat(path)[stat.ST_SIZE] for path in tmp_path.rglob("*") if not path.is_dir()}

    def run(*arguments):
        before = files()
        code, out, error = call(*arguments)
        assert (code, out) == (2, ""), error
        assert error.startswith("looped: ")
        assert error.count("\n") == 1
        assert [words for words in RAW if words in error] == []
        assert files() == before
        return error

    return run
