"""The name of the command in its usage."""

import pytest

from snnipu.cli import COMMANDS, main


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize(
    ("program", "name"),
    [("/usr/bin/snnipu", "snnipu"), ("snnipu.exe", "snnipu"), ("/lib/snnipu/__main__.py", "python -m snnipu")],
)
def test_usage_names_the_command_as_it_was_called(monkeypatch, capsys, program, name, command):
    monkeypatch.setattr("sys.argv", [program])
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {name} {command}".rstrip() + " [")
