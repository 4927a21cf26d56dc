"""Run neurons on CPU threads, over a sequence or step by step (C interface: csrc/host/neuron.h)."""

import ctypes
from array import array
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Sequence

import torch

from snnipu._generator import Neuron
from snnipu._layout import layout
from snnipu._pointers import Size, pointer, pointer_to_read, trusted_pointer
from snnipu.backends import host, memory
from snnipu.ops import _neurons
from snnipu.ops._arguments import compute_dtype
from snnipu.ops._reference import StepBackward
from snnipu.ops.neuron_sequence import (
    BackwardArguments,
    Constants,
    ForwardArguments,
    OperatorResults,
    copy_states,
    new_gradients,
    new_results,
    without_empty,
    zero_gradients,
)

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
Tensors = Sequence[Optional[torch.Tensor]]
Call: Any = host.struct_of("neuron", "neuron.h")
# Calls are filled in as arrays of words: setting the fields of a ctypes structure takes three times as long.
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


class Kernels(NamedTuple):
    """The kernels of a neuron.

    Attributes:
        forward: the library's forward function, which runs all of its neurons.
        backward: its backward function.
        number: number of the neuron in the library.
        states: number of states.
        parameters: number of parameters.
    """

    forward: Any
    backward: Any
    number: int
    states: int
    parameters: int


def declare_functions(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of ``library``, and return it. Raise NativeLibraryError if its interface differs."""
    host.declare(library, "neuron", Call, ("neuron_forward", "neuron_backward"))
    return library


if host.library is not None:
    declare_functions(host.library)


def kernels(library: ctypes.CDLL, number: int, neuron: Neuron) -> Kernels:
    """Return the kernels of the neuron with this number in ``library``, whose functions have been declared."""
    # A neuron without parameters takes a dummy, whose dtype is read.
    counts = len(neuron.states), max(1, len(neuron.parameters))
    return Kernels(library.snnipu_neuron_forward, library.snnipu_neuron_backward, number, *counts)


@lru_cache(maxsize=None)
def built_in_kernels(number: int) -> Kernels:
    """Return the kernels of the neuron with this number in the native library."""
    assert host.library is not None
    return kernels(host.library, number, _neurons.find(list(_neurons.BUILT)[number]))


class NeuronCall:
    """The arguments of a call as an array of words, and copies of tensors that it points to."""

    __slots__ = ("compute", "elements", "keep_alive", "neuron", "storage", "words")

    def __init__(
        self, neuron: Kernels, variant: int, dtype: torch.dtype, steps: int, elements: int, constant_input: bool
    ) -> None:
        self.neuron = neuron
        self.storage, self.compute, self.elements = dtype, compute_dtype(dtype), elements
        self.keep_alive: List[torch.Tensor] = []
        self.words = words = _EMPTY[:]
        words[_NEURON] = neuron.number
        words[_VARIANT] = variant
        words[_DTYPE] = _code(dtype)
        words[_THREADS] = torch.get_num_threads()
        words[_CONSTANT_INPUT] = constant_input
        words[_STEPS] = steps
        words[_ELEMENTS] = elements

    def read(self, place: int, name: str, tensor: Optional[torch.Tensor], dtype: torch.dtype, size: Size) -> None:
        self.words[place] = 0 if tensor is None else pointer_to_read(name, tensor, dtype, size, self.keep_alive)

    def write(self, place: int, name: str, tensor: Optional[torch.Tensor], dtype: torch.dtype, size: Size) -> None:
        self.words[place] = 0 if tensor is None else pointer(name, tensor, dtype, size)

    def read_all(self, place: int, name: str, tensors: Tensors, dtype: torch.dtype, size: Size) -> None:
        _check_count(name, tensors, self.neuron)
        for number, tensor in enumerate(tensors):
            self.read(place + number, name, tensor, dtype, size)

    def write_all(self, place: int, name: str, tensors: Tensors, dtype: torch.dtype, size: Size) -> None:
        _check_count(name, tensors, self.neuron)
        for number, tensor in enumerate(tensors):
            self.write(place + number, name, tensor, dtype, size)

    def read_upstream(self, place: int, bit: int, name: str, grad: Optional[torch.Tensor], shape: Size) -> None:
        """Set the pointer to an upstream gradient ``[T, ...]``.

        If all steps have the same row, as in the gradient of a sum over time, the kernel reads one row and ``bit`` of
        its flags is set.
        """
        if grad is not None and grad.shape == shape and grad.shape[0] > 1 and grad.stride(0) == 0:
            grad, shape = grad[0], grad.shape[1:]
            self.words[_GRAD_CONSTANT] |= 1 << bit
        self.read(place, name, grad, self.storage, shape)

    def read_parameters(self, parameters: Sequence[torch.Tensor]) -> None:
        words, dtype, elements = self.words, self.compute, self.elements
        if len(parameters) != self.neuron.parameters:
            expected = self.neuron.parameters
            raise ValueError(f"parameters must be {expected} tensors for this neuron, got {len(parameters)}")
        if isinstance(parameters, Constants):
            if parameters.dtype is not dtype:
                raise TypeError(f"parameters must be {dtype}, got {parameters.dtype}")
            count = len(parameters)
            words[_PARAMETERS : _PARAMETERS + count] = parameters.pointers
            words[_PARAMETER_SIZES : _PARAMETER_SIZES + count] = parameters.sizes
            return
        for place, parameter in enumerate(parameters):
            size = parameter.numel()
            if size != 1 and (not size or elements % size):
                raise ValueError(f"parameter {place} must have one element, or a divisor of {elements}, got {size}")
            words[_PARAMETERS + place] = pointer_to_read(f"parameter {place}", parameter, dtype, size, self.keep_alive)
            words[_PARAMETER_SIZES + place] = size

    def write_grad_parameters(self, grads: Tensors) -> None:
        if len(grads) > self.neuron.parameters:
            raise ValueError(f"gradients must be at most {self.neuron.parameters} for this neuron, got {len(grads)}")
        for place, grad in enumerate(grads):
            self.write(
                _GRAD_PARAMETERS + place,
                "a parameter's gradient",
                grad,
                self.compute,
                self.words[_PARAMETER_SIZES + place],
            )

    def set_forward(
        self,
        x: torch.Tensor,
        before: Tensors,
        spk: torch.Tensor,
        states: Tensors,
        after: Tensors,
        step: Size,
        all_steps: Size,
    ) -> None:
        """Set the tensors of a forward pass: ``states`` after each step, ``after`` the last step.

        ``step`` is the size of a step, ``all_steps`` that of all steps.
        """
        storage, compute = self.storage, self.compute
        self.read(_X, "x", x, storage, step if self.words[_CONSTANT_INPUT] else all_steps)
        self.read_all(_INITIAL, "initial", before, compute, step)
        self.write(_SPK, "spk", spk, storage, all_steps)
        self.write_all(_STATES, "states", states, storage, all_steps)
        self.write_all(_FINAL, "final", after, compute, step)

    def set_backward(self, a: StepBackward, step: Size, all_steps: Size) -> None:
        """Set the tensors of a backward pass, but for ``a.grad_x``. The sizes are those of :meth:`set_forward`."""
        storage, compute = self.storage, self.compute
        self.read(_X, "x", a.x, storage, step if self.words[_CONSTANT_INPUT] else all_steps)
        self.read_all(_INITIAL, "initial", a.before, compute, step)
        self.read_all(_STATES, "states", a.after, storage, all_steps)
        self.read_upstream(_GRAD_SPK, 0, "grad_spk", a.grad_spk, all_steps)
        _check_count("grad_states", a.grad_states, self.neuron)
        for place, grad in enumerate(a.grad_states):
            self.read_upstream(_GRAD_STATES + place, 1 + place, "grad_states", grad, all_steps)
        self.read_all(_GRAD_FINAL, "grad_final", a.grad_after, compute, step)
        self.write_all(_GRAD_INITIAL, "grad_initial", a.grad_before, compute, step)

    def set_surrogate(self, surrogate: int, a: float, b: float) -> None:
        words = self.words
        words[_SURROGATE], words[_SURROGATE_A], words[_SURROGATE_B] = surrogate, host.float_bits(a), host.float_bits(b)

    def run(self, function: Any, name: str) -> None:
        status = function(self.words.buffer_info()[0])
        self.keep_alive = []
        if status:
            host._check(status, name)


def _code(dtype: torch.dtype) -> int:
    code = _DTYPES.get(dtype)
    if code is None:
        raise TypeError(f"x must be float32, float64, float16 or bfloat16, got {dtype}")
    return code


def _check_count(name: str, tensors: Tensors, neuron: Kernels, needed: bool = False) -> None:
    """Raise ValueError unless there is a tensor for each state, or none and they are not ``needed``."""
    if len(tensors) != neuron.states and (tensors or needed):
        raise ValueError(f"{name} must be {neuron.states} tensors for this neuron, got {len(tensors)}")


def forward(kernels: Kernels, a: ForwardArguments) -> OperatorResults:
    """Run the forward kernel.

    Returns:
        Spikes, the states after each step, and the states after the last step. The former are empty unless their bit
        in ``a.store`` is set.
    """
    _check_count("initial", a.initial, kernels, needed=True)
    steps, step_shape, shape = layout(a.x, a.num_steps)
    elements = step_shape.numel()
    host._check_sizes(steps, elements)
    spk, states, final = new_results(a, memory.empty)
    if steps and elements:
        call = NeuronCall(kernels, a.variant, a.x.dtype, steps, elements, a.num_steps is not None)
        call.read_parameters(a.parameters)
        call.set_forward(a.x, without_empty(a.initial), spk, without_empty(states), final, step_shape, shape)
        call.run(kernels.forward, "neuron_sequence_fwd")
    else:
        copy_states(final, a.initial)
    memory.note_results(spk, *states)
    return spk, states, final


def backward(kernels: Kernels, a: BackwardArguments) -> OperatorResults:
    """Run the backward kernel.

    ``a.states`` are the states after each step, empty if the adjoint does not read them. With None the kernel computes
    them again.

    Returns:
        Gradients of x, of the states before the first step and of the parameters; empty if they are not needed.
    """
    _check_count("initial", a.initial, kernels, needed=True)
    stored = a.stored
    steps, step_shape, shape = layout(stored, a.num_steps)
    gradients = grad_x, grad_initial, grad_parameters = new_gradients(a, memory.empty)
    elements = step_shape.numel()
    if steps and elements:
        call = NeuronCall(kernels, a.variant, stored.dtype, steps, elements, a.num_steps is not None)
        if a.states is not None:
            _check_count("states", a.states, kernels, needed=True)
        _check_count("grad_states", a.grad_states, kernels, needed=True)
        call.set_surrogate(a.surrogate, a.surrogate_a, a.surrogate_b)
        call.read_parameters(a.parameters)
        after, before = without_empty(a.states or ()), without_empty(grad_initial)
        tensors = (a.x, a.grad_spk, a.initial, after, a.grad_states, a.grad_final, grad_x, before)
        call.set_backward(StepBackward(*tensors), step_shape, shape)
        call.write(_GRAD_X, "grad_x", grad_x, call.storage, stored.shape)
        call.write_grad_parameters(without_empty(grad_parameters))
        call.run(kernels.backward, "neuron_sequence_bwd")
    else:
        zero_gradients(a, gradients)
    memory.note_results(grad_x)
    return gradients


class SingleSteps(NeuronCall):
    """Single steps of a neuron, a call for each, for loops that do something else between steps.

    Rows are contiguous and have the elements of one step of x. States and their gradients have the compute dtype; None
    stands for zeros. Outputs must not overlap inputs.
    """

    __slots__ = ("_parameters",)

    _parameters: List[torch.Tensor]

    def __init__(self, neuron: Kernels, variant: int, dtype: torch.dtype) -> None:
        super().__init__(neuron, variant, dtype, 1, 0, True)

    def copy(self, elements: int, parameters: Sequence[torch.Tensor]) -> "SingleSteps":
        """Return a copy for steps of ``elements`` elements with these parameters, in the compute dtype."""
        copied = object.__new__(type(self))
        copied.neuron, copied.storage, copied.compute, copied.elements = (
            self.neuron,
            self.storage,
            self.compute,
            elements,
        )
        copied.words = words = self.words[:]
        words[_THREADS] = torch.get_num_threads()
        words[_ELEMENTS] = elements
        copied.keep_alive = []
        copied.read_parameters(parameters)
        copied._parameters, copied.keep_alive = copied.keep_alive, []
        return copied

    def forward(
        self,
        x: torch.Tensor,
        before: Tensors,
        spk: torch.Tensor,
        after: Sequence[Optional[torch.Tensor]],
        copies: Sequence[Optional[torch.Tensor]] = (),
    ) -> None:
        """Write ``spk``, the states ``after`` the step, and ``copies`` of them in the dtype of x."""
        storage, compute, size = self.storage, self.compute, self.elements
        self.read(_X, "x", x, storage, size)
        self.write(_SPK, "spk", spk, storage, size)
        self.read_all(_INITIAL, "initial", before, compute, size)
        self.write_all(_FINAL, "final", after, compute, size)
        if copies:
            self.write_all(_STATES, "states", copies, storage, size)
        self.run(self.neuron.forward, "neuron_sequence_fwd")

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        """Prepare calls of :meth:`backward`; each overwrites ``grad_parameters`` with its own sums."""
        self.set_surrogate(surrogate, surrogate_a, surrogate_b)
        self.write_grad_parameters(grad_parameters)

    def backward(self, a: StepBackward) -> None:
        """Write ``grad_x`` and ``grad_before``.

        States and inputs that no requested gradient reads may be any tensors of the right size.
        """
        storage, compute, size = self.storage, self.compute, self.elements
        self.read(_X, "x", a.x, storage, size)
        self.read_all(_INITIAL, "initial", a.before, compute, size)
        self.read_all(_STATES, "states", a.after, storage, size)
        self.read(_GRAD_SPK, "grad_spk", a.grad_spk, storage, size)
        self.read_all(_GRAD_STATES, "grad_states", a.grad_states, storage, size)
        self.read_all(_GRAD_FINAL, "grad_final", a.grad_after, compute, size)
        self.write(_GRAD_X, "grad_x", a.grad_x, storage, size)
        self.write_all(_GRAD_INITIAL, "grad_initial", a.grad_before, compute, size)
        self.run(self.neuron.backward, "neuron_sequence_bwd")


class UncheckedSteps(SingleSteps):
    """Single steps that do not check tensors: the caller has compared them with the input, or has just made them."""

    __slots__ = ()

    def read(self, place: int, name: str, tensor: Optional[torch.Tensor], dtype: torch.dtype, size: Size) -> None:
        self.words[place] = 0 if tensor is None else trusted_pointer(tensor)

    def read_all(self, place: int, name: str, tensors: Tensors, dtype: torch.dtype, size: Size) -> None:
        words = self.words
        for number, tensor in enumerate(tensors, place):
            words[number] = 0 if tensor is None else trusted_pointer(tensor)

    write, write_all = read, read_all
