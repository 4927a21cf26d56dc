"""Where an op runs: the C++ vertices on the host's threads, Triton kernels on CUDA, or the PyTorch reference."""

import warnings
from typing import Optional

import torch

from snnipu import ops
from snnipu.backends import compiled, host, kernels, popart, triton
from snnipu.backends.memory import kept_memory, release_memory
from snnipu.ops import _library, _neurons
from snnipu.ops.step_operators import at_trace_time

# An op that is a special case of an operator.
_SPECIAL_CASES = {"lif_step": "neuron_sequence", "lif_sequence": "neuron_sequence"}


def backend_for(op: str, device: torch.device) -> str:
    """What runs ``snnipu.ops.<op>`` for tensors on ``device``: ``host``, ``triton``, ``reference`` or ``ipu-model``.

    ``ipu-model`` is for layers: their ops' PopART operators, where the modules call an IPU model's.

    Raises ValueError for an op that does not exist.
    """
    if op not in ops.__all__:
        raise ValueError(f"op must be one of {sorted(ops.__all__)}, got {op!r}")
    if popart.on_ipu_model():
        return "ipu-model"
    if device.type == "cpu" and host.library is not None:
        return "host"
    has_kernel = "CUDA" in _library.REGISTERED[f"{_SPECIAL_CASES.get(op, op)}_fwd"]
    if device.type == "cuda" and has_kernel and triton.unavailable_reason(device) is None:
        return "triton"
    return "reference"


def why_reference(device: torch.device) -> Optional[str]:
    """Why the reference runs for tensors on ``device``, or None where it does not."""
    if device.type == "cpu":
        return host.unavailable_reason
    if device.type == "cuda":
        return triton.unavailable_reason(device)
    return f"snnipu {host.__version__} has no kernels for {device.type} devices"


@at_trace_time
def has_kernels(device: torch.device) -> bool:
    """Whether there are kernels of generated neurons for tensors on ``device``; where a CPU has none, that is said."""
    return device.type == "cpu" or (device.type == "cuda" and triton.unavailable_reason(device) is None)


def why_not_compiled(neuron: str, device: torch.device) -> Optional[str]:
    """Why a generated neuron has no kernels for float32 tensors on ``device``, or None where it has them now."""
    if device.type == "cpu":
        return compiled.why_not(neuron, _neurons.find(neuron), torch.float32)
    return why_reference(device)


def warn_if_slow() -> None:
    """Say once, at import, that the reference will run."""
    if host.library is None:
        warnings.warn(
            f"snnipu runs its slow PyTorch reference on the CPU: {host.unavailable_reason}",
            RuntimeWarning,
            stacklevel=3,
        )


__all__ = [
    "backend_for",
    "has_kernels",
    "kept_memory",
    "kernels",
    "release_memory",
    "warn_if_slow",
    "why_not_compiled",
    "why_reference",
]
