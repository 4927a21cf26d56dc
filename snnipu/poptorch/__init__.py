"""PopTorch: Graphcore's package if it is installed, else a host runtime with the same names and semantics.

``from snnipu import poptorch`` gives Graphcore's PopTorch if ``import poptorch`` finds it. Otherwise it gives this host
runtime, which runs the same scripts on the CPU with PyTorch.

* Batching, gradient accumulation, replication, output modes, losses and optimizers follow PopTorch 3.4.
* Options that concern only hardware are checked, and have no effect.
* A part of PopTorch that the host runtime lacks raises ``poptorch.Error``.
* ``is_host_runtime`` is True here; Graphcore's PopTorch has no such name.
* ``__version__`` is ``3.4.0+snnipu.host.`` followed by the version of snnipu.

A script can notice three differences:

* ``forward`` runs for every micro-batch, so its Python code has its effects each time. PopTorch traces it once.
* Replicas run one after another, each with its own buffers.
* A weight that is changed on the host is used by the next call.
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
    from snnipu.poptorch._api import _VERSION as __version__
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
