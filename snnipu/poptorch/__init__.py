"""PopTorch: the real one where it is installed, else a host runtime with the same names and semantics.

``from snnipu import poptorch`` gives Graphcore's PopTorch wherever ``import poptorch`` would. Elsewhere it gives this
runtime, which runs the same scripts on the host with PyTorch: batching, gradient accumulation, replication, output
modes, losses and optimizers follow PopTorch 3.4, options that concern only hardware are checked and accepted, and
what is not available raises a ``poptorch.Error`` that says so. ``is_host_runtime`` is True here and absent from the
real one; ``__version__`` is ``3.4.0+snnipu.host.`` and snnipu's version.

Differences that a script can notice: ``forward`` runs for every micro-batch instead of being traced once, so that its
Python code has its effects each time; replicas run one after another, each with its own buffers; weights changed on the
host count at once.
"""

import importlib
import sys
from typing import Any

from snnipu._names import is_installed

if is_installed("poptorch"):
    sys.modules[__name__] = importlib.import_module("poptorch")
else:
    from snnipu.poptorch import _torch_ops as _torch_ops
    from snnipu.poptorch import custom_ops, enums, ops, optim, options, poptorch_core, profiling, testing
    from snnipu.poptorch._api import *  # noqa: F403
    from snnipu.poptorch._api import VERSION as __version__
    from snnipu.poptorch._api import __all__ as _public
    from snnipu.poptorch._errors import not_available
    from snnipu.poptorch.ops import print_module as print

    is_host_runtime = True

    __all__ = [
        *_public,
        "__version__",
        "custom_ops",
        "enums",
        "is_host_runtime",
        "ops",
        "optim",
        "options",
        "poptorch_core",
        "print",
        "profiling",
        "testing",
    ]

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module 'snnipu.poptorch' has no attribute {name!r}")
        raise not_available(f"poptorch.{name}")
