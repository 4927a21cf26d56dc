"""The PopART backend: which operators go through ``poptorch.custom_op``, and what stands for them without PopART.

While a real PopTorch traces a model, or the host runtime runs one on the IPU model (``Options.useIpuModel``), a module
of this package calls the PopART operator of its op. An op without such an operator is refused there: as plain PyTorch
it would lose the surrogate gradient without a word.

Environment: ``SNNIPU_POPART_LIBRARY``, the operators' library for a real PopTorch; default: ``libsnnipu_popart.so`` in
the folder of the native libraries.
"""

import contextlib
import ctypes
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

import torch

from snnipu._dropin import is_installed
from snnipu._layout import SINGLE_STEP, layout
from snnipu.backends import host
from snnipu.surrogate import Kernel

if TYPE_CHECKING:
    from snnipu.ipu.model import IpuModel

DOMAIN = "ai.snnipu"
VERSION = 1
LIBRARY = "libsnnipu_popart.so"
_POPTORCH_INSTALLED = is_installed("poptorch")
_running = threading.local()
_loaded: Dict[Path, ctypes.CDLL] = {}


@contextlib.contextmanager
def running_on(model: "Optional[IpuModel]") -> Iterator[None]:
    """The context in which modules call the operators of ``model``; None: nothing changes."""
    before = getattr(_running, "model", None)
    _running.model = model if model is not None else before
    try:
        yield
    finally:
        _running.model = before


def _tracing_poptorch() -> Optional[ModuleType]:
    """The real PopTorch while it traces, else None."""
    if not _POPTORCH_INSTALLED:
        return None
    poptorch = sys.modules.get("poptorch")
    traces = poptorch is not None and poptorch.isRunningOnIpu() and not hasattr(poptorch, "is_host_runtime")
    return poptorch if traces else None


def library_path() -> Path:
    """Where the operators' library for a real PopTorch is looked for."""
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    return Path(override) if override else host.native_folder() / LIBRARY


def _load_operators(op: str) -> None:
    path = library_path()
    if path in _loaded:
        return
    if not path.is_file():
        raise RuntimeError(
            f"{op} cannot run on an IPU: there are no PopART operators of snnipu in {path}, and without them the "
            "gradient of the spikes would be lost silently. They are built from custom_ops with the Poplar SDK; "
            "SNNIPU_POPART_LIBRARY names the library. Or run the model without PopTorch, or on a machine without it, "
            "where snnipu.poptorch runs the same script on the host."
        )
    try:
        _loaded[path] = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(f"{op} cannot run on an IPU: {path} cannot be loaded: {error}") from None


def uses_operator(op: str, operator: Optional[str] = None) -> bool:
    """Whether ``op`` must go through the PopART operator of this name, by :func:`call`.

    Args:
        op: for messages.
        operator: of domain ``ai.snnipu``; None: there is none.

    Raises:
        RuntimeError: it must, and there is no such operator.
    """
    model = getattr(_running, "model", None)
    if model is not None:
        if operator is None or (DOMAIN, operator, VERSION) not in model.operators():
            raise RuntimeError(
                f"{op} cannot run on the IPU model: there are no PopART operators of snnipu for it yet. Without "
                "Options.useIpuModel and POPTORCH_IPU_MODEL it runs on the host."
            )
        return True
    if _tracing_poptorch() is None:
        return False
    if operator is None:
        raise RuntimeError(
            f"{op} cannot run on an IPU yet: there are no PopART operators of snnipu for it, and without them the "
            "gradient of the spikes would be lost silently. Run the model without PopTorch, or on a machine without "
            "it, where snnipu.poptorch runs the same script on the host."
        )
    _load_operators(op)
    return True


def refuse_tracing(op: str) -> None:
    """Raise RuntimeError where an op that has no PopART operator would run on an IPU or its model."""
    uses_operator(op)


def call(
    operator: str, inputs: Sequence[torch.Tensor], examples: Sequence[torch.Tensor], attributes: Dict[str, Any]
) -> List[torch.Tensor]:
    """``poptorch.custom_op`` of an operator of this package; ``examples`` have the shapes and types of its outputs."""
    from snnipu import poptorch

    made: List[torch.Tensor] = poptorch.custom_op(
        list(inputs), operator, DOMAIN, VERSION, example_outputs=list(examples), attributes=attributes
    )
    return made


_NOT_NATIVE = (
    "spike_grad cannot run on an IPU: an operator takes the surrogates of snnipu.surrogate whose gradient is native, "
    "not a Python function, and not SSO or custom_surrogate"
)


def _surrogate_attributes(kernel: Optional[Kernel]) -> Dict[str, Any]:
    """Raises RuntimeError for a surrogate that is not native: an operator cannot call Python."""
    if kernel is None:
        raise RuntimeError(_NOT_NATIVE)
    return {"surrogate": kernel.id, "surrogate_a": float(kernel.a), "surrogate_b": float(kernel.b)}


def call_surrogate_spike(u: torch.Tensor, kernel: Optional[Kernel]) -> torch.Tensor:
    """``SurrogateSpike``: float32 spikes of ``u``, of its shape."""
    attributes = _surrogate_attributes(kernel)
    return call("SurrogateSpike", [u], [torch.empty_like(u)], attributes)[0].float()


def call_lif_sequence(
    x: torch.Tensor,
    mem: Optional[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    kernel: Optional[Kernel],
) -> List[torch.Tensor]:
    """``LifSequence``: spikes and membranes, of the shapes that :func:`snnipu._layout.layout` tells.

    ``parameters``: beta, threshold and graded_spikes_factor, each one value, or one for each element of the trailing
    dimensions. Raises RuntimeError for a surrogate that is not native.
    """
    surrogate = _surrogate_attributes(kernel)
    steps, step_shape, shape = layout(x, num_steps)
    if num_steps == SINGLE_STEP:
        x = x.unsqueeze(0)
    elif num_steps is not None:
        x = x.unsqueeze(0).expand(steps, *step_shape)
    first = x.new_zeros(step_shape, dtype=parameters[0].dtype) if mem is None else mem
    attributes = {"reset": reset, "reset_delay": int(reset_delay), **surrogate}
    made = call("LifSequence", [x, first, *parameters], [torch.empty_like(x)] * 2, attributes)
    return [out.reshape(shape) for out in made]


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
