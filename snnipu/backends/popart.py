"""The PopART backend's operator interface, and what stands for it on machines without PopART."""

import sys
from typing import Any, Dict, List, Sequence

import torch

from snnipu._dropin import is_installed
from snnipu.surrogate import Kernel

_POPTORCH_INSTALLED = is_installed("poptorch")


def refuse_tracing(op: str) -> None:
    """Raise RuntimeError where a real PopTorch is tracing: it would drop the surrogate gradient without a word."""
    if _POPTORCH_INSTALLED:
        poptorch = sys.modules.get("poptorch")
        if poptorch is not None and poptorch.isRunningOnIpu() and not hasattr(poptorch, "is_host_runtime"):
            from snnipu import __version__

            raise RuntimeError(
                f"{op} cannot run on an IPU yet: snnipu {__version__} has no PopART operators, and without them the "
                "gradient of the spikes would be lost silently. Run the model without PopTorch, or on a machine "
                "without it, where snnipu.poptorch runs the same script on the host."
            )


def lif_sequence(inputs: List[torch.Tensor], attributes: Dict[str, Any]) -> Sequence[torch.Tensor]:
    """``ai.snnipu.LifSequence``, version 1, on the host.

    Args:
        inputs: x ``[T, B, ...]``, mem0 ``[B, ...]``, beta, threshold, graded_spikes_factor (each one value, or one for
            each element of the trailing dimensions, flattened).
        attributes: ``reset`` (0 subtract, 1 zero, 2 none), ``reset_delay`` (0 or 1), ``surrogate`` (see
            ``enum snnipu_surrogate``), ``surrogate_a``, ``surrogate_b``.

    Returns:
        spk, mem ``[T, B, ...]``; differentiable in every input.
    """
    from snnipu.ops.lif_sequence import LifSequence

    expected = {"reset", "reset_delay", "surrogate", "surrogate_a", "surrogate_b"}
    if len(inputs) != 5:
        raise ValueError(f"LifSequence takes 5 inputs (x, mem0, beta, threshold, graded), got {len(inputs)}")
    if set(attributes) != expected:
        raise ValueError(f"LifSequence takes the attributes {sorted(expected)}, got {sorted(attributes)}")
    kernel = Kernel(attributes["surrogate"], attributes["surrogate_a"], attributes["surrogate_b"])
    return LifSequence.apply(
        *inputs, None, attributes["reset"], bool(attributes["reset_delay"]), kernel, None, True, False
    )
