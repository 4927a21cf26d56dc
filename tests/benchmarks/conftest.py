"""Fixtures for the tests of ``benchmarks``.

``benchmarks`` is a package of the checkout, not of the wheel. It is appended to the path, so that the installed
snnipu is tested.
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.case import Case, Check, Contender, Workload


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture
def make_contender():
    """Return a function that makes contenders of 4 KiB per step, which count their steps in the list ``steps``."""

    def contender(name, peer="", passed=True, raises=None, steps=None, **fields):
        def build():
            if raises is not None:
                raise raises

            def step():
                if steps is not None:
                    steps.append(name)
                return torch.empty(1024)

            return Workload(step, lambda: Check(passed, "a reference", f"detail of {name}"))

        return Contender(name, f"label of {name}", build, peer, **fields)

    return contender


@pytest.fixture
def make_case():
    """Return a function that makes a case of these contenders, with one table per number of steps."""

    def case(*contenders, **fields):
        values = {"sizes": {"steps": (1, 2)}, "quick": {"steps": 1}, "axes": ("steps",), **fields}
        return Case("a summary", "The work.", lambda settings: f"T={settings.steps}", lambda _: contenders, **values)

    return case
