"""Spiking neural networks in PyTorch, trained fast: ``import snnipu as snn`` in place of ``import snntorch as snn``."""

from typing import TYPE_CHECKING, Any, List

from snnipu import _interpreter, _wait_policy

_interpreter.require_main_interpreter()
_wait_policy.set_spin_count()

from snnipu._names import passthrough  # noqa: E402

passthrough.install()

if TYPE_CHECKING:
    # For editors and type checkers: the names that passthrough resolves. snnipu's names, below, replace snnTorch's.
    from snntorch import *  # noqa: F403
    from snntorch import backprop, spikegen, spikeplot, spikevision  # noqa: F401

    from snnipu import export_nir, functional, import_nir, utils  # noqa: F401

from snnipu import backends, ops, surrogate  # noqa: E402
from snnipu._version import __version__  # noqa: E402
from snnipu.compiler import auto, compile  # noqa: E402
from snnipu.convert import from_snntorch, to_snntorch  # noqa: E402
from snnipu.diagnose import diagnose  # noqa: E402
from snnipu.neurons import *  # noqa: E402, F403
from snnipu.neurons import __all__ as _neurons  # noqa: E402
from snnipu.online import Online  # noqa: E402
from snnipu.ops._fixed import fixed_weights  # noqa: E402
from snnipu.ops.sparse_input import dense_only  # noqa: E402
from snnipu.spikes import SparseSpikes  # noqa: E402

__all__ = [
    *_neurons,
    "Online",
    "SparseSpikes",
    "__version__",
    "auto",
    "compile",
    "dense_only",
    "diagnose",
    "fixed_weights",
    "from_snntorch",
    "ops",
    "surrogate",
    "to_snntorch",
]

backends.warn_if_slow()


def __getattr__(name: str) -> Any:
    return passthrough.resolve(name)


def __dir__() -> List[str]:
    return sorted({*globals(), *passthrough.names()})
