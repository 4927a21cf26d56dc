"""Commands that refuse their arguments."""

import pytest


def refusal(capsys, call):
    """Return what a command prints on standard error; it must end with the status of a wrong argument."""
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    return capsys.readouterr().err
