"""Set how long idle OpenMP threads spin, in snnipu's commands. This module is imported before PyTorch.

GCC's OpenMP, which PyTorch uses on Linux, lets idle threads spin 300,000 times before they sleep. If other processes
use the processors, spinning threads take the time of the working ones: small networks train up to 80 times slower.
Threads that never spin (OMP_WAIT_POLICY=passive) are slow to wake on an idle machine. A short spin avoids both;
docs/how-to/slow-layers.md has the measurement. OpenMP reads the variable once, when it is loaded.
"""

import os
import sys
from pathlib import Path

SPIN_COUNT = "1000"
# If the user has set one of these, it stays in force.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def is_snnipu_command() -> bool:
    """Return True if this process is ``python -m snnipu`` or ``snnipu``, not a program that imports the package."""
    if sys.argv[:1] == ["-m"]:  # Python is still looking for the module: another one may import this package
        words = getattr(sys, "orig_argv", ["-m", "snnipu"])  # orig_argv exists from Python 3.10 on
        return ("-m", "snnipu") in zip(words, words[1:])
    return Path(sys.argv[0] if sys.argv else "").stem == "snnipu"


def set_spin_count() -> None:
    """Set ``GOMP_SPINCOUNT`` in a command of snnipu, unless the user has set it or PyTorch is already loaded."""
    if is_snnipu_command() and "torch" not in sys.modules and not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
