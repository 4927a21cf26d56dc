"""A layer's step as it was the last time: to see that nothing of it has changed takes less than to find it out anew."""

import ctypes
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.backends.neuron_step import Step, derived
from snnipu.neurons._states import MEM_RESET

_CELLS = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
_MISSING = object()


class _Number(NamedTuple):
    """A parameter that is one number and does not learn. ``data`` keeps its memory from being used by others."""

    name: str
    tensor: torch.Tensor
    data: torch.Tensor
    pointer: int
    cell: Any
    bits: int


class KeptStep:
    """The kernels' step of a layer, and what of the layer it depends on, to be compared.

    A layer's attributes, methods and parameters may be exchanged between any two steps, and a number may be written
    into its buffer, which PyTorch does not count where it is done through ``.data``.
    """

    __slots__ = ("_fixed", "_kind", "_numbers", "_own", "_parts", "_plain", "_shape", "_tensors", "step")

    def __init__(
        self, layer: Any, step: Step, shape: torch.Size, attributes: Sequence[str], parameters: Mapping[str, Any]
    ) -> None:
        own = layer.__dict__
        self.step, self._kind, self._shape = step, type(layer), shape
        self._own = [(name, own.get(name, _MISSING)) for name in attributes]
        self._parts = list(layer.stock_parts.items())
        # Where the class has nothing of these names, they are the layer's own.
        self._plain = (*layer.state_names, *layer.parameter_names)
        found = [(name, tensor) for name, tensor in parameters.items() if _find(own, name) is tensor]
        self._fixed = {name: tensor for name, tensor in parameters.items() if _find(own, name) is not tensor}
        self._tensors: List[Tuple[str, torch.Tensor, torch.Size]] = []
        if step.constants is None:
            self._tensors = [(name, tensor, tensor.shape) for name, tensor in found]
        self._numbers: List[_Number] = []
        if step.constants is not None:
            for name, tensor in found:
                pointer = tensor.data_ptr()
                cell = _CELLS[tensor.element_size()].from_address(pointer)
                self._numbers.append(_Number(name, tensor, tensor.detach(), pointer, cell, cell.value))

    @staticmethod
    def fits(layer: Any, attributes: Sequence[str], parameters: Mapping[str, Any], one: torch.Tensor) -> bool:
        """Whether all that a step depends on is where :meth:`parameters` looks: a hook may set a plain attribute anew
        before each call. Nobody writes into ``one``."""
        own = layer.__dict__
        return all(name in own for name in attributes) and all(
            tensor is one or _find(own, name) is tensor for name, tensor in parameters.items()
        )

    def parameters(self, layer: Any, x: torch.Tensor) -> Optional[Sequence[torch.Tensor]]:
        """What :attr:`step` takes for the parameters; None where something is not what it was."""
        own, kind = layer.__dict__, type(layer)
        if kind is not self._kind:
            return None
        for name, value in self._own:
            if own.get(name) is not value:
                return None
        surrogate = layer._resolved[1]
        if surrogate is None or surrogate.kernel is not self.step.kernel:
            return None
        for name, part in self._parts:
            if name in own or getattr(kind, name) is not part:
                return None
        if layer.stock.mem_reset is not MEM_RESET:
            return None
        for name in self._plain:
            if getattr(kind, name, None) is not None:
                return None
        buffers, learnt = own["_buffers"], own["_parameters"]
        for number in self._numbers:
            tensor = number.tensor
            if buffers.get(number.name) is not tensor and learnt.get(number.name) is not tensor:
                return None
            if tensor.data_ptr() != number.pointer or number.cell.value != number.bits or tensor.requires_grad:
                return None
        if not self._tensors:
            return ()
        if x.shape != self._shape:
            return None
        values = dict(self._fixed)
        for name, tensor, shape in self._tensors:
            if buffers.get(name) is not tensor and learnt.get(name) is not tensor:
                return None
            if tensor.shape != shape or tensor.dtype != x.dtype or tensor.device != x.device:
                return None
            values[name] = tensor
        return derived(self.step.plan, values, x)


def _find(own: Any, name: str) -> Any:
    found = own["_buffers"].get(name)
    return own["_parameters"].get(name) if found is None else found
