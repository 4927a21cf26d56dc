"""Parts of a release agree: versions, dependencies, and the calls of the workflow."""

import re
import shutil
import subprocess

import pytest
from support.commands import ROOT

from snnipu._version import __version__


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version():
    assert re.findall(r"^version: (.*)$", text_of("CITATION.cff"), re.M) == [__version__]
    assert re.findall(r'set version = "(.*)"', text_of(".conda/meta.yaml")) == [__version__]
    assert re.findall(r"^## (\S+)", text_of("CHANGELOG.md"), re.M)[0] == __version__


def test_the_recipe_needs_what_the_package_needs():
    project = text_of("pyproject.toml")
    (needed,) = re.findall(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)
    required = {
        name.replace("torch>", "pytorch>") if name.startswith("torch>") else name
        for name in re.findall(r'"(.*?)"', needed)
    }
    required.add("python" + re.findall(r'requires-python = "(.*)"', project)[0])
    (run,) = re.findall(r"^  run:\n((?:    - .*\n)+)", text_of(".conda/meta.yaml"), re.M)
    assert {line[len("    - ") :].replace(" ", "") for line in run.splitlines()} == required


def test_the_workflow_calls_what_there_is():
    workflow = text_of(".github/workflows/ci.yml")
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.M))
    called = re.findall(r"run: make ([\w-]+)", workflow)
    assert "- run: .ci/run\n" in workflow
    assert called == ["wheel"]
    assert set(called) <= targets
    for folder in re.findall(r"\.\./(tests/\w+)", workflow):
        assert (ROOT / folder).is_dir()


def test_the_changelog_is_short():
    entries = re.findall(r"^- .*(?:\n  .*)*", text_of("CHANGELOG.md"), re.M)
    assert [entry.splitlines()[0] for entry in entries if len(entry.splitlines()) > 2] == []


def test_the_lint_tools_are_pinned():
    project = text_of("pyproject.toml")
    tools = re.findall(r'"([\w-]+)', re.findall(r"^lint = \[(.*)\]", project, re.M)[0])
    pinned = re.findall(
        r"^([\w-]+)==\S+.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", text_of(".ci/lint-tools.txt"), re.M
    )
    lines = [line for line in text_of(".ci/lint-tools.txt").splitlines() if not line.startswith(("#", " "))]
    assert len(pinned) == len(lines)
    assert set(tools) <= {name for name, _ in pinned}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("folder", [ROOT, ROOT.parent / "before it was moved"])
def test_a_moved_clone_is_installed_again(folder, tmp_path):
    """An editable installation leads to the folder of its clone."""
    for stamp in (".torch", ".snnipu", ".data"):
        (tmp_path / stamp).write_text(f"{folder}\n")
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m snnipu train" in planned
    assert ("--editable ." in planned) == (folder != ROOT)
