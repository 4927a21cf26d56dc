"""Short runs of the loops of `make soak`, with disturbed steps."""

import sys

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("looks into /proc", allow_module_level=True)

from support import soak
from support.versions import needs_backend


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_backend if name == "compiled" else ()) for name in soak.LOOPS if "two" not in name],
)
def test_a_disturbed_step_leaves_nothing_behind(name):
    result, wrong = soak.soak(name, 0.2, mebibytes=64)
    assert wrong == []
    assert result["steps"] >= soak.FEWEST
    # A signal may come after a step's end.
    assert [way for way, times in result["disturbed"].items() if not times and way != "signal"] == []
