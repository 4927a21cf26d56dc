"""Where the tests find the repository, and data sets that are too large for it."""

import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# Before PyTorch is imported, and as the commands have it: threads that spin for long while they wait, those of dense
# PyTorch too, take the processor from pytest's other processes, and the tests ten times as long.
policy = runpy.run_path(str(REPOSITORY / "snnipu" / "_wait_policy.py"))
if not any(name in os.environ for name in policy["VARIABLES"]):
    os.environ["GOMP_SPINCOUNT"] = policy["SPIN_COUNT"]
# Before snnipu is imported: what is left of a result must not help a test.
os.environ.setdefault("SNNIPU_POISON_MEMORY", "1")
# Not the user's own folder; kept, as compiling a neuron takes seconds.
os.environ.setdefault(
    "SNNIPU_NEURONS_DIR", str(Path(tempfile.gettempdir()) / f"snnipu-neurons-{getattr(os, 'getuid', int)()}")
)
# Tests write nothing into the user's cache, and take nothing from there; those of the cache name their own.
os.environ["SNNIPU_EVENT_CACHE"] = "0"


# Files that take longest: begun first, they do not run alone at the end.
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
        config.option.loadscopereorder = False  # of pytest-xdist, which would begin with the files of most tests


def pytest_collection_modifyitems(items):
    names = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: names.get(Path(str(item.fspath)).stem, len(LONGEST)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    """A neuron that the installed snnTorch does not have is not tested."""
    outcome = yield
    stock = sys.modules.get("snnipu._names.stock")
    if stock is not None and outcome.excinfo is not None and issubclass(outcome.excinfo[0], stock.MissingNeuron):
        outcome.force_exception(pytest.skip.Exception(str(outcome.excinfo[1])))


@pytest.fixture(autouse=True)
def no_neurons_of_other_tests():
    """``snntorch.utils.reset`` goes through all living neurons, and fails at a ``DeltaLeaky`` without a state."""
    if "snntorch" in sys.modules:
        sys.modules["snntorch"].SpikingNeuron.instances.clear()


@pytest.fixture
def process_group(tmp_path):
    """A group of gloo with this process alone. A test's DistributedDataParallel is gone when it ends: otherwise PyTorch
    may wait for gloo's threads with Python's lock held, which they wait for."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="session")
def repository():
    """The root of the working tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def torchvision():
    """torchvision, made importable where its compiled operators do not load; skips where it is not installed."""
    from support.torchvision_schemas import define_torchvision_schemas

    define_torchvision_schemas()
    return pytest.importorskip("torchvision")


@pytest.fixture(scope="session")
def data_folder():
    """The folder that ``SNNIPU_DATA`` names, ``../shared/data`` beside the repository by default; skips without it."""
    folder = Path(os.environ.get("SNNIPU_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data in {folder} (set SNNIPU_DATA to a folder that holds mnist/MNIST/raw)")
    return folder


@pytest.fixture(scope="session")
def mnist_folder(data_folder, torchvision):
    """A folder with MNIST in torchvision's layout; skips without one."""
    if not (data_folder / "mnist" / "MNIST" / "raw").is_dir():
        pytest.skip(f"no MNIST in {data_folder / 'mnist'}")
    return data_folder / "mnist"
