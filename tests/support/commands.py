"""Commands that refuse their arguments."""

import pytest


def refusal(capsys, call):
    """Check that a command ends with the status of a wrong argument, and return its standard error."""
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    return capsys.readouterr().err
