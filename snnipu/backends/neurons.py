"""Neurons over a sequence on CPU threads: the C interface of csrc/host/neuron.h."""

import ctypes
import struct
from array import array
from ctypes import c_double, c_int64, c_void_p
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._generator.neuron import MOST_PARAMETERS, MOST_STATES
from snnipu._layout import layout
from snnipu.backends import host, memory
from snnipu.ops.neuron_sequence import BackwardArguments, Constants, ForwardArguments

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
Tensors = Sequence[Optional[torch.Tensor]]


class Call(ctypes.Structure):
    """``snnipu_neuron_call``."""

    _fields_ = [
        *((name, c_int64) for name in ("neuron", "variant", "dtype", "threads", "constant_input", "surrogate")),
        *((name, c_double) for name in ("surrogate_a", "surrogate_b")),
        *((name, c_int64) for name in ("grad_constant", "steps", "elements")),
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


# A call is filled in as an array of words, which takes a third of the time of a structure's fields.
_EMPTY = array("q", bytes(ctypes.sizeof(Call)))
(
    _NEURON,
    _VARIANT,
    _DTYPE,
    _THREADS,
    _CONSTANT_INPUT,
    _SURROGATE,
    _SURROGATE_A,
    _SURROGATE_B,
    _GRAD_CONSTANT,
    _STEPS,
    _ELEMENTS,
    _X,
    _INITIAL,
    _PARAMETERS,
    _PARAMETER_SIZES,
    _SPK,
    _STATES,
    _FINAL,
    _GRAD_SPK,
    _GRAD_STATES,
    _GRAD_FINAL,
    _GRAD_X,
    _GRAD_INITIAL,
    _GRAD_PARAMETERS,
) = (getattr(Call, name).offset // 8 for name in (field[0] for field in Call._fields_))


@lru_cache(maxsize=256)
def _bits(number: float) -> int:
    """A double as a word."""
    word: int = struct.unpack("q", struct.pack("d", number))[0]
    return word


class Kernels(NamedTuple):
    """A neuron's place: a library's functions, and its number there."""

    forward: Any
    backward: Any
    number: int


def prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    """``library`` once its functions are known to be of this interface."""
    host.declare(library, "neuron", Call, ("neuron_forward", "neuron_backward"))
    return library


if host.library is not None:
    prepared(host.library)


def kernels(library: ctypes.CDLL, number: int) -> Kernels:
    """The neuron of this number in a library that has been prepared."""
    return Kernels(library.snnipu_neuron_forward, library.snnipu_neuron_backward, number)


@lru_cache(maxsize=None)
def built(number: int) -> Kernels:
    """Of a neuron that the native library has."""
    assert host.library is not None
    return kernels(host.library, number)


class _Arguments:
    """A call, and the tensors it points at."""

    def __init__(
        self, neuron: Kernels, variant: int, dtype: torch.dtype, steps: int, elements: int, constant_input: bool
    ) -> None:
        self.neuron = neuron
        self.kept: List[torch.Tensor] = []
        self.words = words = _EMPTY[:]
        words[_NEURON] = neuron.number
        words[_VARIANT] = variant
        words[_DTYPE] = _DTYPES[dtype]
        words[_THREADS] = torch.get_num_threads()
        words[_CONSTANT_INPUT] = constant_input
        words[_STEPS] = steps
        words[_ELEMENTS] = elements

    def connect(self, place: int, tensor: Optional[torch.Tensor]) -> None:
        if tensor is not None:
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
                self.kept.append(tensor)
            self.words[place] = tensor.data_ptr()

    def connect_all(self, place: int, tensors: Tensors) -> None:
        for tensor in tensors:
            if tensor is not None:
                self.connect(place, tensor)
            place += 1

    def connect_parameters(self, parameters: Sequence[torch.Tensor]) -> None:
        if isinstance(parameters, Constants):
            count = len(parameters)
            self.words[_PARAMETERS : _PARAMETERS + count] = parameters.pointers
            self.words[_PARAMETER_SIZES : _PARAMETER_SIZES + count] = parameters.sizes
            return
        for place, parameter in enumerate(parameters):
            self.connect(_PARAMETERS + place, parameter)
            self.words[_PARAMETER_SIZES + place] = parameter.numel()

    def set_surrogate(self, surrogate: int, a: float, b: float) -> None:
        words = self.words
        words[_SURROGATE], words[_SURROGATE_A], words[_SURROGATE_B] = surrogate, _bits(a), _bits(b)

    def run(self, function: Any, name: str) -> None:
        status = function(self.words.buffer_info()[0])
        if status:
            host._check(status, name)


def forward(kernels: Kernels, a: ForwardArguments) -> Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]:
    """Spikes, states after each step (empty where not stored, by the bits of ``store``) and after the last."""
    steps, step_shape, shape = layout(a.x, a.num_steps)
    elements = step_shape.numel()
    host._check_sizes(steps, elements)
    like = a.parameters[0]
    spk = memory.empty(a.x, shape)
    states = [memory.empty(a.x, shape) if a.store >> place & 1 else a.x.new_empty(0) for place in range(len(a.initial))]
    final = [memory.empty(like, step_shape) for _ in a.initial] if a.store_final else []
    if steps and elements:
        call = _Arguments(kernels, a.variant, a.x.dtype, steps, elements, a.num_steps is not None)
        call.connect(_X, a.x)
        call.connect_all(_INITIAL, [state if state is not None and state.numel() else None for state in a.initial])
        call.connect_parameters(a.parameters)
        call.connect(_SPK, spk)
        call.connect_all(_STATES, [state if state.numel() else None for state in states])
        call.connect_all(_FINAL, final)
        call.run(kernels.forward, "neuron_sequence_fwd")
    else:
        for state, start in zip(final, a.initial):
            state.zero_() if start is None or not start.numel() else state.copy_(start)
    memory.used(spk, *states)
    return spk, states, final


def backward(kernels: Kernels, a: BackwardArguments) -> Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]:
    """Gradients of x, of the states before the first step and of the parameters, empty where not needed.

    ``states``: those after each step, empty where the adjoint does not read them; None: computed again.
    """
    stored = a.stored
    steps, step_shape, _ = layout(stored, a.num_steps)
    like = a.parameters[0]
    grad_x = memory.empty(stored, stored.shape)
    grad_initial = [like.new_empty(step_shape) if needed else None for needed in a.need_initial]
    grad_parameters = [torch.empty_like(p) if needed else None for p, needed in zip(a.parameters, a.need_parameters)]
    elements = step_shape.numel()
    if steps and elements:
        call = _Arguments(kernels, a.variant, stored.dtype, steps, elements, a.num_steps is not None)
        call.connect(_X, a.x)
        if a.states is not None:
            call.connect_all(_STATES, [state if state.numel() else None for state in a.states])
        call.set_surrogate(a.surrogate, a.surrogate_a, a.surrogate_b)
        call.connect_all(_INITIAL, a.initial)
        call.connect_parameters(a.parameters)
        for bit, grad in enumerate((a.grad_spk, *a.grad_states)):
            if grad is not None:
                if grad.shape[0] > 1 and grad.stride(0) == 0:  # of a sum over time, say: the same at all steps
                    grad = grad[0]
                    call.words[_GRAD_CONSTANT] |= 1 << bit
                call.connect(_GRAD_STATES + bit - 1 if bit else _GRAD_SPK, grad)
        call.connect_all(_GRAD_FINAL, a.grad_final)
        call.connect(_GRAD_X, grad_x)
        call.connect_all(_GRAD_INITIAL, grad_initial)
        call.connect_all(_GRAD_PARAMETERS, grad_parameters)
        call.run(kernels.backward, "neuron_sequence_bwd")
    else:
        for gradient in (grad_x, *grad_parameters):
            if gradient is not None:
                gradient.zero_()
        for gradient, last in zip(grad_initial, a.grad_final or [None] * len(grad_initial)):
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

    __slots__ = ("_kept", "_neuron", "_words")

    def __init__(self, neuron: Kernels, variant: int, dtype: torch.dtype) -> None:
        self._neuron = neuron
        self._words = _Arguments(neuron, variant, dtype, 1, 0, True).words
        self._kept: Sequence[torch.Tensor] = ()

    def copy(self, elements: int, parameters: Sequence[torch.Tensor]) -> "Steps":
        """Return steps of another size with these parameters, in the compute dtype."""
        copied = object.__new__(Steps)
        copied._neuron = self._neuron
        copied._words = words = self._words[:]
        words[_THREADS] = torch.get_num_threads()
        words[_ELEMENTS] = elements
        if isinstance(parameters, Constants):
            count = len(parameters)
            words[_PARAMETERS : _PARAMETERS + count] = parameters.pointers
            words[_PARAMETER_SIZES : _PARAMETER_SIZES + count] = parameters.sizes
        else:
            parameters = [parameter.contiguous() for parameter in parameters]
            for place, parameter in enumerate(parameters):
                words[_PARAMETERS + place] = parameter.data_ptr()
                words[_PARAMETER_SIZES + place] = parameter.numel()
        copied._kept = parameters
        return copied

    def forward(
        self,
        x: torch.Tensor,
        before: Tensors,
        spk: torch.Tensor,
        after: Sequence[Optional[torch.Tensor]],
        copies: Sequence[Optional[torch.Tensor]] = (),
    ) -> None:
        """Writes ``spk``, the states ``after`` the step, and ``copies`` of them in x's dtype."""
        words = self._words
        words[_X] = x.data_ptr()
        words[_SPK] = spk.data_ptr()
        _point(words, _INITIAL, before)
        _point(words, _FINAL, after)
        if copies:
            _point(words, _STATES, copies)
        status = self._neuron.forward(words.buffer_info()[0])
        if status:
            host._check(status, "neuron_sequence_fwd")

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        """Make it steps backward; each writes the sums of its own to ``grad_parameters``."""
        words = self._words
        words[_SURROGATE], words[_SURROGATE_A], words[_SURROGATE_B] = surrogate, _bits(surrogate_a), _bits(surrogate_b)
        _point(words, _GRAD_PARAMETERS, grad_parameters)

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
        words = self._words
        words[_X] = 0 if x is None else x.data_ptr()
        _point(words, _INITIAL, before)
        _point(words, _STATES, after)
        words[_GRAD_SPK] = 0 if grad_spk is None else grad_spk.data_ptr()
        _point(words, _GRAD_STATES, grad_states)
        _point(words, _GRAD_FINAL, grad_after)
        words[_GRAD_X] = grad_x.data_ptr()
        _point(words, _GRAD_INITIAL, grad_before)
        status = self._neuron.backward(words.buffer_info()[0])
        if status:
            host._check(status, "neuron_sequence_bwd")


def _point(words: "array[int]", place: int, tensors: Tensors) -> None:
    for tensor in tensors:
        words[place] = 0 if tensor is None else tensor.data_ptr()
        place += 1
