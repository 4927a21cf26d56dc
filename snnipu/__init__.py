"""Spiking neural networks in PyTorch, trained fast: ``import snnipu as snn`` in place of ``import snntorch as snn``."""

from pathlib import Path
from typing import Any, List, Sequence, Tuple

from snnipu import _wait_policy

_wait_policy.wait_briefly()

from snnipu._names import passthrough  # noqa: E402

passthrough.install()

from snnipu import backends, ops, spikes, surrogate  # noqa: E402
from snnipu._version import __version__  # noqa: E402
from snnipu.compiler import auto, compile  # noqa: E402
from snnipu.neurons import (  # noqa: E402
    SLSTM,
    Alpha,
    DeltaLeaky,
    Lapicque,
    Leaky,
    LinearLeaky,
    MultiStep,
    RLeaky,
    RSynaptic,
    SConv2dLSTM,
    SparseConv2d,
    SparseConvLeaky,
    SparseLeaky,
    SparseLinear,
    SparseNetwork,
    SparsePool2d,
    StateLeaky,
    Synaptic,
    neuron,
    run_segments,
)
from snnipu.spikes import SparseSpikes  # noqa: E402

__all__ = [
    "SLSTM",
    "Alpha",
    "DeltaLeaky",
    "Lapicque",
    "Leaky",
    "LinearLeaky",
    "MultiStep",
    "RLeaky",
    "RSynaptic",
    "SConv2dLSTM",
    "SparseConv2d",
    "SparseConvLeaky",
    "SparseLeaky",
    "SparseLinear",
    "SparseNetwork",
    "SparsePool2d",
    "SparseSpikes",
    "StateLeaky",
    "Synaptic",
    "__version__",
    "auto",
    "compile",
    "neuron",
    "ops",
    "run_segments",
    "surrogate",
]

backends.warn_if_slow()


def _network_plan(*network: Any) -> Sequence[int]:
    """What an event-driven network on an IPU is planned with; loaded only where there is one to plan."""
    from snnipu.ipu.mapping import operator_plan
    from snnipu.ipu.targets import TARGETS

    *what, model = network
    return operator_plan(*what, *((TARGETS["mk2"], 1) if model is None else model.machine()))


def _conv_plan(geometry: Any, slots: int, rows: int, dtype: str, training: bool, model: Any) -> Sequence[int]:
    """How a convolution on an IPU is spread over tiles; loaded only where there is one."""
    from snnipu.ipu.convolution import plan_convolution
    from snnipu.ipu.targets import TARGETS

    machine = (TARGETS["mk2"], 1) if model is None else model.machine()
    return plan_convolution(geometry, slots, rows, dtype, training, *machine).attribute


def _state_plan(size: int, model: Any) -> bool:
    """Whether a neuron's states of all steps stay on an IPU until the backward pass."""
    from snnipu.ipu.mapping import keeps_states
    from snnipu.ipu.targets import TARGETS

    return keeps_states(size, *((TARGETS["mk2"], 1) if model is None else model.machine()))


def _operators_library() -> Tuple[Path, str, str]:
    """Where the operators for a real PopTorch are; loaded only where one traces."""
    from snnipu.ipu import build

    return build.library_path(), build.searched(), build.COMMAND


def _bin_events(*arguments: Any, **options: Any) -> SparseSpikes:
    """What ``SparseSpikes.from_events`` does; NumPy's part of it is loaded where there are events."""
    from snnipu.datasets._events import bin_events

    return bin_events(*arguments, **options)


spikes.register(bin_events=_bin_events)
backends.popart.set_library_finder(_operators_library)
backends.popart.set_network_planner(_network_plan)
backends.popart.set_conv_planner(_conv_plan)
backends.popart.set_state_planner(_state_plan)


def __getattr__(name: str) -> Any:
    return passthrough.resolve(name)


def __dir__() -> List[str]:
    return sorted({*globals(), *passthrough.names()})
