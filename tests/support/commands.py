"""Commands that refuse their arguments."""

import pytest


def refusal(capsys, call):
    """What a command says on standard error as it ends with the status of a wrong argument."""
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    return capsys.readouterr().err
