"""Commands run in this process, as a user would type them."""

import pytest


@pytest.fixture
def refused(call):
    """Run a command that must be refused: exit 2, nothing on standard output, one line on standard error."""

    def run(*arguments):
        code, out, error = call(*arguments)
        assert (code, out) == (2, ""), error
        assert error.startswith("looped: ")
        assert error.count("\n") == 1
        assert "Traceback" not in error
        return error

    return run
