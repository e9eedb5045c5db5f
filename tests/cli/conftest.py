"""Commands run in this process, as a user would type them."""

import pytest

from looped.cli import main


@pytest.fixture
def call(capsys):
    """Run a command: its exit code, standard output and standard error."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


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
