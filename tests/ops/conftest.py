"""Fixtures for the tests of the operators."""

import pytest
import torch
from oracle import poison_new_tensors
from support.interpreter import interpreted  # noqa: F401


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    """Fill new memory with NaN, or with a number that is neither a valid id nor a valid count."""
    poison_new_tensors(monkeypatch)
