"""A wheel in a separate environment: its user's commands, in a clone without native libraries and elsewhere.

``make test-wheel`` builds and installs it, and sets ``SNNIPU_WHEEL_PYTHON`` to that environment's Python.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import ROOT

from snnipu._version import __version__

PYTHON = os.environ.get("SNNIPU_WHEEL_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="SNNIPU_WHEEL_PYTHON is not set: for make test-wheel")


@pytest.fixture(scope="module")
def site():
    """Return the folder of the wheel's package."""
    return Path(run(["-c", "import snnipu; print(snnipu.__path__[0])"], Path(PYTHON).parent).stdout.strip())


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Make a fresh clone without built libraries."""
    root = tmp_path_factory.mktemp("wheel") / "clone"
    ignored = shutil.ignore_patterns("_native", "__pycache__", "*.so", "*.egg-info")
    for name in ("snnipu", "csrc", "custom_ops"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    return root


@pytest.fixture(params=["clone", "elsewhere"])
def folder(request, tmp_path, clone):
    return clone if request.param == "clone" else tmp_path


def run(arguments, folder, **environment):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SNNIPU_"))}
    command = [PYTHON, *arguments]
    done = subprocess.run(command, cwd=str(folder), env={**variables, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def readme_commands():
    """Return the commands of README's section on the two commands, except make and pip."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two commands")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    commands = [line.split("#")[0].strip() for line in lines]
    return [command for command in commands if command.startswith("python ")]


def test_info(folder, site, clone):
    done = run(["-m", "snnipu", "info", "--json", "-"], folder)
    assert "RuntimeWarning" not in done.stderr
    document = json.loads(done.stdout)
    assert document["native"]["folder"] == str(site / "_native")
    assert document["native"]["in_use"] in document["native"]["instruction_sets"]
    assert document["backends"]["host"] == {"available": True, "reason": None}
    assert document["backends"]["ipu-model"] == {"available": True, "reason": None}
    assert {where["cpu"] for where in document["ops"].values()} == {"host"}
    shown = str(site / "_native").replace(os.path.expanduser("~") + os.sep, f"~{os.sep}")
    assert re.search(rf"folder +{re.escape(shown)}\n", run(["-m", "snnipu", "info"], folder).stdout)
    package = run(["-c", "import snnipu; print(snnipu.__path__[0])"], folder).stdout.strip()
    assert package == str((clone if folder == clone else site.parent) / "snnipu")


def test_the_bill_of_materials(site):
    """The installed files have the digests of the bill of materials."""
    (path,) = site.parent.glob("snnipu-*.dist-info/sboms/snnipu.cdx.json")
    bill = json.loads(path.read_text(encoding="utf-8"))
    assert bill["metadata"]["component"]["version"] == __version__
    files = {part["name"]: part["hashes"][0]["content"] for part in bill["components"] if part["type"] == "file"}
    assert files == {
        f"snnipu/_native/{library.name}": hashlib.sha256(library.read_bytes()).hexdigest()
        for library in (site / "_native").glob("libsnnipu*")
    }
    needed = {part["name"] for part in bill["components"] if part["type"] == "library"}
    assert {"numpy", "snntorch>=0.9", "torch>=2.0", "tqdm"} == needed


def test_the_commands_of_the_readme(folder):
    commands = readme_commands()
    assert any("snnipu train" in command for command in commands)
    for command in commands:
        arguments = shlex.split(command)[1:]
        if "train" in arguments:
            arguments += ["--epochs", "1"]
        done = run(arguments, folder)
        assert "RuntimeWarning" not in done.stderr, command
        assert "reference" not in done.stderr, command
        assert done.stdout.strip(), command


def test_a_clone_of_other_sources_says_so(clone, site, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(clone, other)
    with (other / "csrc" / "host" / "snnipu.h").open("a") as file:
        file.write("/* another interface */\n")
    done = run(["-c", "import snnipu"], other)
    assert f"{site / '_native'} was built from other sources than those in {other}" in done.stderr


def test_the_sources_of_the_ipu_operators_are_in_it(site):
    assert (site / "_ipu_sources" / "custom_ops" / "Makefile").is_file()


def test_a_neuron_of_ones_own_is_compiled(folder, tmp_path):
    """The headers are the wheel's or the clone's."""
    script = tmp_path / "own.py"
    script.write_text(
        "import torch, snnipu as snn\n"
        "@snn.neuron(states=('mem',), parameters={'beta': 0.5})\n"
        "def Own(x, mem, *, beta, spike):\n"
        "    mem = beta * mem + x\n"
        "    return spike(mem - 1), mem\n"
        "print(Own().sequence(torch.ones(3, 1, 2))[1][-1].tolist())\n"
    )
    code = f"exec(compile(open({str(script)!r}).read(), {str(script)!r}, 'exec'))"
    done = run(["-c", code], folder, SNNIPU_NEURONS_DIR=str(tmp_path / "neurons"))
    assert done.stdout == "[[1.75, 1.75]]\n"
    assert "compiled Own for float32" in done.stderr
    assert "reference" not in done.stderr


def test_it_is_a_wheel_of_this_version(site):
    code = "from importlib import metadata; d = metadata.distribution('snnipu'); print(d.version, d.read_text('WHEEL'))"
    output = run(["-c", code], site.parent).stdout
    assert output.startswith(__version__)
    assert "Tag: py3-none-" in output
