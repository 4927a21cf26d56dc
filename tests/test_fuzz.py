"""The readers of `make fuzz` without atheris: seeds, damaged copies, and inputs that fuzzing found."""

import importlib.util

import pytest
from support import fuzz_readers
from support.damage import variants
from support.torchvision_schemas import define_torchvision_schemas

# Inputs that ended in an undocumented error.
FOUND = {
    "nir": [b"\x02\x01\x00\x01\x01\x010\x02", b"\x03\x01\x0c\x00\x01\x01\x01\x01\x01\x00\x00\x00\x00"],
    "profile": [b"10,3333212,4030,22166660616666060,3333212,46666060"],
}
NEEDS = {"nir": "nir", "mnist": "torchvision", "shd": "h5py"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", fuzz_readers.READERS)
def test_a_file_is_read_or_refused(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    define_torchvision_schemas()
    read, seeds = fuzz_readers.READERS[name]
    for seed in [*seeds(), *FOUND.get(name, [])]:
        read(seed)
        for _, damaged in variants(seed, 2 if name == "shd" else 30, seed=0):  # each starts a process
            read(damaged)
