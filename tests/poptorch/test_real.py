"""``snnipu.poptorch`` is Graphcore's PopTorch if it is installed."""

import os

import pytest
from support.commands import python

PRINTS = "from snnipu import poptorch; import sys; print(poptorch.__name__, poptorch.__version__, "
PRINTS += "sys.modules['snnipu.poptorch'] is poptorch, hasattr(poptorch, 'is_host_runtime'))"


def output(code, *path, status=0):
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONWARNINGS": "ignore"}
    done = python("-c", code, status=status, env=environment)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_an_installed_poptorch_comes_first(repository, tmp_path):
    (tmp_path / "poptorch").mkdir()
    (tmp_path / "poptorch" / "__init__.py").write_text("__version__ = '9.9'\n")
    assert output(PRINTS, repository, tmp_path) == "poptorch 9.9 True False\n"
    script = tmp_path / "script.py"
    script.write_text("import poptorch; print(poptorch.__version__)")
    code = f"from snnipu.cli import run; run.main([{str(script)!r}])"
    assert output(code, repository, tmp_path) == "9.9\n"


@pytest.mark.slow
def test_an_installed_poptorch_that_fails_raises(repository, tmp_path):
    (tmp_path / "poptorch.py").write_text("raise ImportError('the SDK is not enabled')\n")
    assert "the SDK is not enabled" in output(PRINTS, repository, tmp_path, status=1)


@pytest.mark.slow
def test_a_folder_of_that_name_is_no_poptorch(repository, tmp_path):
    (tmp_path / "poptorch").mkdir()
    assert output(PRINTS, repository, tmp_path).startswith("snnipu.poptorch 3.4.0+snnipu.host.")
