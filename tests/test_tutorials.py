import importlib
import os
import re
import shutil

import pytest
from support.operators import needs_library
from support.versions import needs_compile

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

TUTORIALS = [
    "00_first_network",
    "01_leaky_mnist_poptorch",
    "02_sparse_nmnist",
    "03_ipu_model",
    "04_compile_a_loop",
    "05_event_driven_convolutions",
    "06_learn_online",
    "07_delays",
    "08_eventprop",
]


def notebook_of(repository, name):
    return nbformat.read(repository / "tutorials" / f"{name}.ipynb", as_version=4)


def test_every_tutorial_is_tested(repository):
    assert sorted(path.stem for path in (repository / "tutorials").glob("*.ipynb")) == TUTORIALS
    assert sorted(path.stem for path in (repository / "tutorials").glob("*.py")) == TUTORIALS


@pytest.mark.parametrize("name", TUTORIALS)
def test_notebook_and_script_are_in_step(repository, name):
    """After a change to the script: ``make notebooks NOTEBOOKS=NAME``, or ``jupytext --sync tutorials/NAME.py``."""
    notebook = notebook_of(repository, name)
    script = jupytext.read(repository / "tutorials" / f"{name}.py")
    assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ]


@pytest.mark.parametrize("name", TUTORIALS)
def test_notebook_is_kept_with_what_it_shows(repository, name, monkeypatch):
    """After a change to the output or the figures: ``make notebooks NOTEBOOKS=NAME``."""
    path = repository / "tutorials" / f"{name}.ipynb"
    assert path.stat().st_size < 400_000
    notebook = notebook_of(repository, name)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not re.search(r"/tmp/|/home/|/root/", str(outputs))  # a path of this machine
    monkeypatch.syspath_prepend(repository / "docs")
    picture_of = importlib.import_module("notebooks").picture_of
    assert (repository / "docs" / "tutorials" / f"{name}.png").read_bytes() == picture_of(notebook)


@pytest.mark.parametrize("name", TUTORIALS)
def test_links_lead_somewhere(repository, name):
    text = "\n".join(cell.source for cell in notebook_of(repository, name).cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert "://" in link or (repository / "tutorials" / link).is_file(), link


@pytest.fixture
def outputs_of(repository, tmp_path, monkeypatch):
    """Return a function that runs a notebook with settings, and returns its printed text and the number of figures."""
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")

    def run(name, data=None, **settings):
        variables = {f"SNNIPU_TUTORIAL_{setting.upper()}": value for setting, value in settings.items()}
        if data is not None:
            variables["SNNIPU_DATA"] = data
        paths = repository, repository / "tests" / "support", os.environ.get("PYTHONPATH", "")
        variables |= {"IPYTHONDIR": tmp_path, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))
        notebook = notebook_of(repository, name)
        nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        pictures = sum("image/png" in output.get("data", {}) for output in outputs)
        return "".join(output.get("text", "") for output in outputs), pictures

    return run


@pytest.fixture
def one_thread_each(monkeypatch):
    """A few hundred neurons are too little work for several threads, which wait for each other on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def folder_of(request, tmp_path):
    """Return a function from a source to a data set's folder, or to an empty one; skip without the files."""

    def find(source, name, part):
        if source != name:
            return tmp_path / "nothing"
        folder = request.getfixturevalue("data_folder")
        if not (folder / part).is_dir():
            pytest.skip(f"no {name} in {folder / part}")
        return folder

    return find


def numbers(pattern, text):
    return [float(number) for number in re.findall(pattern, text)]


def percent_behind(words, text):
    return float(text.split(words)[1].split(" %")[0])


@pytest.mark.slow
@needs_compile
@pytest.mark.usefixtures("one_thread_each")
def test_first_network_runs(outputs_of):
    pytest.importorskip("sklearn")
    text, pictures = outputs_of("00_first_network")
    assert percent_behind("test accuracy: ", text) > 90
    assert "equal spikes: True" in text
    losses = numbers(r"epoch \d: loss ([\d.]+)", text)
    assert len(losses) == 4
    assert losses[:2] == pytest.approx(losses[2:], abs=0.01)
    assert pictures == 2


@pytest.mark.slow
def test_leaky_mnist_poptorch_runs(repository, outputs_of):
    pytest.importorskip("sklearn")
    data = os.environ.get("SNNIPU_DATA", repository.parent / "shared" / "data")
    text, pictures = outputs_of("01_leaky_mnist_poptorch", data, samples=400, epochs=30, hidden=100)
    assert "400 training" in text
    assert percent_behind("equal spikes: ", text) > 99.9
    assert percent_behind("test accuracy: ", text) > 70
    speeds = [line for line in text.splitlines() if line.endswith("x snnTorch's speed")]
    assert len(speeds) == 3
    assert pictures == 3


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread_each")
@pytest.mark.parametrize("source", ["nmnist", "randman"])
def test_sparse_nmnist_runs(source, outputs_of, folder_of):
    """Run on recordings, if there are any, and on the synthetic replacement."""
    data = folder_of(source, "nmnist", "nmnist/Train")
    text, pictures = outputs_of("02_sparse_nmnist", data, samples=240, epochs=6, hidden=200)
    assert f"{source}: 240 training" in text
    assert ("Going on with Randman" in text) == (source == "randman")
    assert percent_behind("equal spikes: ", text) > 99.9
    accuracies = numbers(r"training accuracy ([\d.]+) %", text)
    assert len(accuracies) == 6
    assert accuracies[-1] > max(20, accuracies[0])
    assert percent_behind("test accuracy: ", text) > (30 if source == "nmnist" else 10)
    assert len(re.findall(r"x the dense layer's speed", text)) == 7
    assert "[0.9, 0.8]" in text
    assert pictures == 8


@pytest.mark.slow
@needs_library
def test_ipu_model_runs(outputs_of):
    pytest.importorskip("sklearn")
    text, pictures = outputs_of("03_ipu_model", samples=400, epochs=4, hidden=60)
    if "CXX" in os.environ or shutil.which("g++") or shutil.which("clang++"):
        assert "--- sound\n11 22 33 44" in text
        assert '--- unmapped\nvariable "y" (float{4}) is mapped to no tile' in text
        assert '--- racing\na race in compute set "add"' in text
    losses = text.split("largest difference of the losses: ")[1].split()[0]
    assert float(losses) < 0.1
    host, model = numbers(r"24 batches in .* training accuracy ([\d.]+) %", text)
    assert abs(host - model) < 2
    assert model > 60
    assert "NeuronSequence (gradient), 60 neurons" in text
    assert "IpuModelError: IPU model, NeuronSequence: graph_memory_allocation_error: tile 0 needs" in text
    assert "RuntimeError: Leaky cannot run on an IPU" in text
    phases = re.findall(r"counted +([\d,]+), predicted +([\d,]+) cycles a time step", text)
    assert len(phases) == 6
    for counted, predicted in phases:
        assert 0.6 < float(predicted.replace(",", "")) / float(counted.replace(",", "")) < 1.6
    assert "bound by: compute" in text
    assert pictures == 5


@pytest.mark.slow
@needs_library
@pytest.mark.usefixtures("one_thread_each")
@pytest.mark.parametrize(("source", "samples", "epochs"), [("nmnist", 32, 1), ("moving bars", 64, 3)])
def test_event_driven_convolutions_run(source, samples, epochs, outputs_of, folder_of):
    data = folder_of(source, "nmnist", "nmnist/Train")
    text, pictures = outputs_of("05_event_driven_convolutions", data, samples=samples, epochs=epochs)
    assert f"{source}: {samples} training and {samples} test recordings of (2, 34, 34) neurons" in text
    assert ("Going on with moving bars" in text) == (source == "moving bars")
    losses = numbers(r"epoch \d/\d: loss ([\d.]+), training accuracy", text)
    assert len(losses) == epochs
    if epochs > 1:
        assert losses[2] < 0.9 * losses[0]
        assert percent_behind("test accuracy: ", text) > 40
    assert len(re.findall(r"input activity .* dense .* ms, event-driven .* ms", text)) == 3
    assert percent_behind("equal spikes: ", text) > 99.5
    assert pictures == 6


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread_each")
@pytest.mark.parametrize("source", ["spoken_digits", "made-up words"])
def test_delays_run(source, outputs_of, folder_of):
    data = folder_of(source, "spoken_digits", "fsdd")
    text, pictures = outputs_of("07_delays", data, samples=300, epochs=5)
    assert f"{source}: 300 training" in text
    without, learnt = numbers(r"parameters, loss .* test accuracy ([\d.]+) %", text)
    assert learnt > without + (30 if source == "made-up words" else 0)
    assert percent_behind("with rounded delays ", text) > learnt - 5
    assert float(text.split("between pieces and the whole: ")[1].split()[0]) < 1e-5
    assert re.findall(r"spikes at \[(6?)\]", text) == ["", "6", "6"]
    assert pictures == 3


@pytest.mark.slow
@needs_compile
def test_compile_a_loop_runs(outputs_of):
    text, pictures = outputs_of("04_compile_a_loop", hidden=50)
    assert "compiled and MultiStep: the same bits" in text
    assert len(re.findall(r"Leaky +\S+ +25 +one operator", text)) == 2
    assert len(re.findall(r"linear +\S+ +25 +1\b", text)) == 2
    assert len(re.findall(r" ms +[\d.]+ x", text)) == 4
    assert pictures == 1


@pytest.mark.slow
def test_learn_online_runs(outputs_of):
    """Half a minute of the stream: it is not learnt yet, but memory is already flat."""
    text, pictures = outputs_of("06_learn_online", minutes=0.5)
    assert "30,000 steps, 0.5 min of a stream" in text
    first, last = numbers(r"([\d.]+) % in the (?:first|last) tenth", text)
    assert last > first + 10
    assert float(re.findall(r"the process grew by (-?[\d.]+) MiB", text)[0]) < 5
    assert "the same gradients after the pause: True" in text
    assert pictures == 4


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread_each")
def test_eventprop_runs(outputs_of):
    text, pictures = outputs_of("08_eventprop", steps=120)
    assert text.count("equal to the package's: True") == 2
    errors = numbers(r"relative error of the gradient ([\d.]+) %", text)
    assert len(errors) == 5
    assert all(longer > 3 * shorter for longer, shorter in zip(errors, errors[1:]))
    distances = dict(re.findall(r"(\w+): mean distance from the targets ([\d.]+)", text))
    assert float(distances["EventProp"]) < 0.005 < float(distances["surrogate"]) < 0.05
    assert "EventProp: norm of the gradient 0.0e+00, outputs that spike after training: 0 of 5" in text
    assert re.search(r"surrogate: norm of the gradient .*: [1-5] of 5", text)
    assert pictures == 6
