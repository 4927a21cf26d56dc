"""Fixtures and settings of all tests: the repository's folder, and the folder of large data sets."""

import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# Set before PyTorch is imported, as the commands do. Threads that spin while they wait take the processor from pytest's
# other processes: the tests then take ten times as long.
policy = runpy.run_path(str(REPOSITORY / "snnipu" / "_wait_policy.py"))
if not any(name in os.environ for name in policy["VARIABLES"]):
    os.environ["GOMP_SPINCOUNT"] = policy["SPIN_COUNT"]
# Set before snnipu is imported: old values in reused memory must not help a test.
os.environ.setdefault("SNNIPU_POISON_MEMORY", "1")
# A folder apart from the user's. It is reused, as compiling a neuron takes seconds.
os.environ.setdefault(
    "SNNIPU_NEURONS_DIR", str(Path(tempfile.gettempdir()) / f"snnipu-neurons-{getattr(os, 'getuid', int)()}")
)
# Tests neither read nor write the user's cache; the tests of the cache set their own folder.
os.environ["SNNIPU_EVENT_CACHE"] = "0"


# The slowest files start first, so that none runs alone at the end.
LONGEST = (
    "test_neon",
    "test_tutorials",
    "test_torchrun",
    "test_damage",
    "test_train_ranks",
    "test_memory",
    "test_examples",
)


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # pytest-xdist would start with the files that have most tests


def pytest_collection_modifyitems(items):
    names = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: names.get(Path(str(item.fspath)).stem, len(LONGEST)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    """Skip a test whose neuron the installed snnTorch lacks."""
    outcome = yield
    stock = sys.modules.get("snnipu._names.stock")
    if stock is not None and outcome.excinfo is not None and issubclass(outcome.excinfo[0], stock.MissingNeuron):
        outcome.force_exception(pytest.skip.Exception(str(outcome.excinfo[1])))


@pytest.fixture(autouse=True)
def no_neurons_of_other_tests():
    """Forget the neurons of other tests: ``snntorch.utils.reset`` visits all, and fails at a ``DeltaLeaky`` without
    state.
    """
    if "snntorch" in sys.modules:
        sys.modules["snntorch"].SpikingNeuron.instances.clear()


@pytest.fixture
def ipu_target(monkeypatch):
    """Return a function that sets the target of the IPU model."""
    return lambda target: monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", target)


@pytest.fixture
def one_thread():
    """Use one thread: threads with small steps mostly wait for each other, and longer beside other tests."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def process_group(tmp_path):
    """Make a gloo group of this process alone.

    Delete a test's DistributedDataParallel before the group ends. Otherwise PyTorch holds Python's lock while it waits
    for gloo's threads, which wait for that lock.
    """
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="session")
def repository():
    """Return the root of the working tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def torchvision():
    """Return torchvision, made importable where its compiled operators do not load; skip if it is not installed."""
    from support.torchvision_schemas import define_torchvision_schemas

    define_torchvision_schemas()
    return pytest.importorskip("torchvision")


@pytest.fixture(scope="session")
def data_folder():
    """Return the folder that ``SNNIPU_DATA`` names, by default ``../shared/data``; skip if it does not exist."""
    folder = Path(os.environ.get("SNNIPU_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data in {folder} (set SNNIPU_DATA to a folder that holds mnist/MNIST/raw)")
    return folder


@pytest.fixture(scope="session")
def mnist_folder(data_folder, torchvision):
    """Return a folder with MNIST in torchvision's layout; skip if there is none."""
    if not (data_folder / "mnist" / "MNIST" / "raw").is_dir():
        pytest.skip(f"no MNIST in {data_folder / 'mnist'}")
    return data_folder / "mnist"
