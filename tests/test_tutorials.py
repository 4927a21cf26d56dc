import os

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

TUTORIALS = ["01_leaky_mnist_poptorch"]


def notebook_of(repository, name):
    return nbformat.read(repository / "tutorials" / f"{name}.ipynb", as_version=4)


def test_every_tutorial_is_tested(repository):
    assert sorted(path.stem for path in (repository / "tutorials").glob("*.ipynb")) == TUTORIALS
    assert sorted(path.stem for path in (repository / "tutorials").glob("*.py")) == TUTORIALS


@pytest.mark.parametrize("name", TUTORIALS)
def test_notebook_and_script_are_in_step(repository, name):
    """After a change to the script: ``jupytext --sync tutorials/NAME.py``."""
    notebook = notebook_of(repository, name)
    script = jupytext.read(repository / "tutorials" / f"{name}.py")
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ]


@pytest.mark.parametrize("name", TUTORIALS)
def test_notebook_is_kept_without_outputs(repository, name):
    notebook = notebook_of(repository, name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_leaky_mnist_poptorch_runs(repository, tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    data = os.environ.get("SNNIPU_DATA", str(repository.parent / "shared" / "data"))
    settings = {"SNNIPU_TUTORIAL_SAMPLES": "400", "SNNIPU_TUTORIAL_EPOCHS": "30", "SNNIPU_TUTORIAL_HIDDEN": "100"}
    for variable, value in {**settings, "SNNIPU_DATA": data, "IPYTHONDIR": str(tmp_path)}.items():
        monkeypatch.setenv(variable, value)
    path = os.pathsep.join([str(repository), str(repository / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    notebook = notebook_of(repository, "01_leaky_mnist_poptorch")
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "400 training" in text
    equal = float(text.split("equal spikes: ")[1].split(" %")[0])
    assert equal > 99.9
    accuracy = float(text.split("test accuracy: ")[1].split(" %")[0])
    assert accuracy > 70
    speeds = [line for line in text.splitlines() if line.endswith("x snnTorch's speed")]
    assert len(speeds) == 3
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
