"""How the threads of a command of ours wait for each other; imported before PyTorch.

GCC's OpenMP, PyTorch's on Linux, has threads look for work in a loop, 300,000 times, before they sleep. Where other
processes use the processors, too, the thread that all wait for gets no turn meanwhile: small networks train up to 80
times slower then. Threads that sleep at once (OMP_WAIT_POLICY=passive) are slow to wake on an idle machine. A short
look is the better of both: docs/how-to/speed-up.md has the measurement. The library asks once, when it is loaded.
"""

import os
import sys
from pathlib import Path

SPIN_COUNT = "1000"
# The user's own choice.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def is_own_command() -> bool:
    """Whether this process runs ``python -m snnipu`` or ``snnipu``, and does not just import the package."""
    if sys.argv[:1] == ["-m"]:  # while Python looks for the module, which may be another that imports this package
        words = getattr(sys, "orig_argv", ["-m", "snnipu"])  # before Python 3.10 it does not tell
        return ("-m", "snnipu") in zip(words, words[1:])
    return Path(sys.argv[0] if sys.argv else "").stem == "snnipu"


def wait_briefly() -> None:
    """Set ``GOMP_SPINCOUNT`` for a command of ours, where the user has set nothing and it is not too late."""
    if is_own_command() and "torch" not in sys.modules and not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
