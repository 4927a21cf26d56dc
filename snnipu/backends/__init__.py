"""Backends run the operators: C++ vertices on CPU threads, Triton kernels on CUDA, PopART operators on IPUs.

If no backend has kernels for a device, the plain PyTorch reference of the operator runs.
"""

import warnings
from typing import Optional

import torch

from snnipu import ops
from snnipu.backends import compiled, host, kernels, popart, triton
from snnipu.backends.memory import kept_memory, release_memory
from snnipu.ops import _library, _neurons
from snnipu.ops.step_operators import at_trace_time

# Ops that call the operator of another op.
_SPECIAL_CASES = {"lif_step": "neuron_sequence", "lif_sequence": "neuron_sequence"}


def backend_for(op: str, device: torch.device) -> str:
    """Return the backend that runs ``snnipu.ops.<op>`` for tensors on ``device``.

    Args:
        op: name of the op.
        device: device of the tensors.

    Returns:
        ``host``, ``triton`` or ``reference``; ``ipu-model`` while modules call the PopART operators of an IPU model.

    Raises:
        ValueError: there is no such op.
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
    """Return the reason why the reference runs for tensors on ``device``; None if kernels run.

    Args:
        device: device of the tensors.
    """
    if device.type == "cpu":
        return host.unavailable_reason
    if device.type == "cuda":
        return triton.unavailable_reason(device)
    return f"snnipu {host.__version__} has no kernels for {device.type} devices"


@at_trace_time
def has_kernels(device: torch.device) -> bool:
    """Return True if generated neurons have kernels for tensors on ``device``.

    A CPU counts even if a neuron cannot be compiled: a warning is given then, and the reference runs.

    Args:
        device: device of the tensors.
    """
    return device.type == "cpu" or (device.type == "cuda" and triton.unavailable_reason(device) is None)


def why_not_compiled(neuron: str, device: torch.device) -> Optional[str]:
    """Compile a generated neuron, and return the reason if it has no kernels for float32 tensors on ``device``.

    Args:
        neuron: name of the neuron.
        device: device of the tensors.

    Returns:
        The reason; None if there are kernels.
    """
    if device.type == "cpu":
        return compiled.why_not(neuron, _neurons.find(neuron), torch.float32)
    return why_reference(device)


def warn_if_slow() -> None:
    """Warn at import if the slow reference will run on the CPU."""
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
