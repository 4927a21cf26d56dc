"""Neurons over a sequence on CPU threads: the C interface of csrc/host/neuron.h."""

import ctypes
from ctypes import c_double, c_int32, c_int64, c_uint32, c_void_p
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._generator.neuron import MOST_PARAMETERS, MOST_STATES
from snnipu._layout import SINGLE_STEP, layout
from snnipu.backends import host, memory

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
Tensors = Sequence[Optional[torch.Tensor]]


class Call(ctypes.Structure):
    """``snnipu_neuron_call``."""

    _fields_ = [
        *((name, c_int32) for name in ("neuron", "variant", "dtype", "surrogate")),
        *((name, c_double) for name in ("surrogate_a", "surrogate_b")),
        *((name, c_int32) for name in ("threads", "constant_input")),
        ("grad_constant", c_uint32),
        ("unused", c_int32),
        *((name, c_int64) for name in ("steps", "elements")),
        ("x", c_void_p),
        ("initial", c_void_p * MOST_STATES),
        ("parameters", c_void_p * MOST_PARAMETERS),
        ("parameter_sizes", c_int64 * MOST_PARAMETERS),
        ("spk", c_void_p),
        ("states", c_void_p * MOST_STATES),
        ("final", c_void_p * MOST_STATES),
        ("grad_spk", c_void_p),
        ("grad_states", c_void_p * MOST_STATES),
        ("grad_final", c_void_p * MOST_STATES),
        ("grad_x", c_void_p),
        ("grad_initial", c_void_p * MOST_STATES),
        ("grad_parameters", c_void_p * MOST_PARAMETERS),
    ]


class Kernels(NamedTuple):
    """A neuron's place: a library, and its number there."""

    library: ctypes.CDLL
    number: int


def prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    """``library`` once its functions are known to be of this interface."""
    library.snnipu_neuron_call_size.restype = c_int64
    if library.snnipu_neuron_call_size() != ctypes.sizeof(Call):
        raise host.NativeLibraryError(f"snnipu_neuron_call has another size in the library: {host.BUILD_HINT}")
    for direction in ("forward", "backward"):
        getattr(library, f"snnipu_neuron_{direction}").argtypes = [ctypes.POINTER(Call)]
    return library


if host.library is not None:
    prepared(host.library)


def built(number: int) -> Kernels:
    """Of a neuron that the native library has."""
    assert host.library is not None
    return Kernels(host.library, number)


class _Arguments:
    """A call, and the tensors it points at."""

    def __init__(self, neuron: Kernels, variant: int, x: torch.Tensor, num_steps: Optional[int]) -> None:
        steps, step_shape, _ = layout(x, num_steps)
        self.library = neuron.library
        self.kept: List[torch.Tensor] = []
        self.call = call = Call(neuron.number, variant, _DTYPES[x.dtype])
        call.threads = torch.get_num_threads()
        call.constant_input = num_steps is not None
        call.steps = steps
        call.elements = step_shape.numel()
        call.x = self.pointer(x)

    def pointer(self, tensor: Optional[torch.Tensor]) -> Optional[int]:
        if tensor is None:
            return None
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            self.kept.append(tensor)
        return tensor.data_ptr()

    def connect(self, field: str, tensors: Tensors) -> None:
        array = None
        for place, tensor in enumerate(tensors):
            if tensor is not None:
                if array is None:
                    array = getattr(self.call, field)
                array[place] = self.pointer(tensor)

    def connect_parameters(self, parameters: Sequence[torch.Tensor]) -> None:
        pointers, sizes = self.call.parameters, self.call.parameter_sizes
        for place, parameter in enumerate(parameters):
            pointers[place] = self.pointer(parameter)
            sizes[place] = parameter.numel()

    def run(self, direction: str) -> None:
        status = getattr(self.library, f"snnipu_neuron_{direction}")(ctypes.byref(self.call))
        if status:
            host._check(status, f"neuron_sequence_{direction}")


def forward(
    neuron: Kernels,
    variant: int,
    x: torch.Tensor,
    initial: Tensors,
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    store: Sequence[bool],
    store_final: bool,
) -> Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]:
    """Spikes, states after each step (empty where not stored) and after the last."""
    steps, step_shape, shape = layout(x, num_steps)
    host._check_sizes(steps, step_shape.numel())
    like = parameters[0]
    spk = memory.empty(x, shape)
    states = [memory.empty(x, shape) if stored else x.new_empty(0) for stored in store]
    final = [memory.empty(like, step_shape) for _ in store] if store_final else []
    if steps and step_shape.numel():
        a = _Arguments(neuron, variant, x, num_steps)
        a.connect("initial", initial)
        a.connect_parameters(parameters)
        a.call.spk = spk.data_ptr()
        a.connect("states", [state if stored else None for state, stored in zip(states, store)])
        a.connect("final", final)
        a.run("forward")
    else:
        for state, start in zip(final, initial):
            state.zero_() if start is None else state.copy_(start)
    memory.used(spk, *states)
    return spk, states, final


def backward(
    neuron: Kernels,
    variant: int,
    grad_spk: Optional[torch.Tensor],
    grad_states: Tensors,
    grad_final: Tensors,
    x: Optional[torch.Tensor],
    initial: Tensors,
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_initial: Sequence[bool],
    need_parameters: Sequence[bool],
    states: Optional[Sequence[torch.Tensor]] = None,
) -> Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]:
    """Gradients of x, of the states before the first step and of the parameters, empty where not needed.

    ``states``: those after each step, empty where the adjoint does not read them; None: computed again.
    """
    stored = x if x is not None else next(state for state in states or () if state.numel())
    steps, step_shape, _ = layout(stored, num_steps)
    like = parameters[0]
    grad_x = memory.empty(stored, stored.shape)
    grad_initial = [like.new_empty(step_shape) if needed else None for needed in need_initial]
    grad_parameters = [torch.empty_like(p) if needed else None for p, needed in zip(parameters, need_parameters)]
    if steps and step_shape.numel():
        a = _Arguments(neuron, variant, stored, num_steps)
        if x is None:
            a.call.x = None
        if states is not None:
            a.connect("states", [state if state.numel() else None for state in states])
        a.call.surrogate, a.call.surrogate_a, a.call.surrogate_b = surrogate, surrogate_a, surrogate_b
        a.connect("initial", initial)
        a.connect_parameters(parameters)
        upstream = [host._upstream(grad) for grad in (grad_spk, *grad_states)]
        a.call.grad_constant = sum(1 << place for place, (_, constant) in enumerate(upstream) if constant)
        a.call.grad_spk = a.pointer(upstream[0][0])
        a.connect("grad_states", [grad for grad, _ in upstream[1:]])
        a.connect("grad_final", grad_final)
        a.call.grad_x = grad_x.data_ptr()
        a.connect("grad_initial", grad_initial)
        a.connect("grad_parameters", grad_parameters)
        a.run("backward")
    else:
        for gradient in (grad_x, *grad_parameters):
            if gradient is not None:
                gradient.zero_()
        for gradient, last in zip(grad_initial, grad_final or [None] * len(grad_initial)):
            if gradient is not None:
                gradient.zero_() if last is None or steps else gradient.copy_(last)
    memory.used(grad_x)
    empty = like.new_empty(0)
    return (
        grad_x,
        [empty if gradient is None else gradient for gradient in grad_initial],
        [empty if gradient is None else gradient for gradient in grad_parameters],
    )


class Steps:
    """Single steps, a call each, for neurons between whose steps something else happens.

    Rows are contiguous, as one step of x; those of ``before``, ``after`` and of the states' gradients have the compute
    dtype, and None is zeros. What is written must not be what is read.
    """

    def __init__(self, neuron: Kernels, variant: int, x: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        self._arguments = _Arguments(neuron, variant, x, SINGLE_STEP)
        self._call = self._arguments.call
        self._arguments.connect_parameters(parameters)

    def forward(
        self, x: torch.Tensor, before: Tensors, spk: torch.Tensor, after: Sequence[Optional[torch.Tensor]]
    ) -> None:
        """Writes ``spk`` and the states ``after`` the step."""
        call = self._call
        call.x = x.data_ptr()
        call.spk = spk.data_ptr()
        _point(call.initial, before)
        _point(call.final, after)
        self._arguments.run("forward")

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        """Make it steps backward; each writes the sums of its own to ``grad_parameters``."""
        call = self._call
        call.surrogate, call.surrogate_a, call.surrogate_b = surrogate, surrogate_a, surrogate_b
        _point(call.grad_parameters, grad_parameters)

    def backward(
        self,
        x: Optional[torch.Tensor],
        before: Tensors,
        after: Tensors,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        grad_after: Tensors,
        grad_x: torch.Tensor,
        grad_before: Tensors,
    ) -> None:
        """Writes ``grad_x`` and ``grad_before``.

        ``after``: the states after the step; where one is None, all are computed again. Those that no gradient that is
        asked for depends on may be anything of their size; so may ``x``, which an adjoint may want for others.
        """
        call = self._call
        call.x = None if x is None else x.data_ptr()
        _point(call.initial, before)
        _point(call.states, after)
        call.grad_spk = None if grad_spk is None else grad_spk.data_ptr()
        _point(call.grad_states, grad_states)
        _point(call.grad_final, grad_after)
        call.grad_x = grad_x.data_ptr()
        _point(call.grad_initial, grad_before)
        self._arguments.run("backward")


def _point(array: "ctypes.Array[c_void_p]", tensors: Tensors) -> None:
    for place, tensor in enumerate(tensors):
        array[place] = None if tensor is None else tensor.data_ptr()
