"""Functions that the kernels of the sparse operators share: numbers and parameters as arguments, block sizes."""

import struct
from typing import Union

import torch
import triton
import triton.language as tl

from snnipu.backends.triton.neuron_maths import _clamp
from snnipu.backends.triton.neurons import step_functions
from snnipu.ops import _neurons
from snnipu.ops._arguments import RESET_MECHANISMS
from snnipu.ops._spike_gradient import IDENTITY


def block_of(size: int, least: int, most: int) -> int:
    """Return the smallest power of two that is at least ``size``, limited to ``least`` and ``most``."""
    block = least
    while block < min(size, most):
        block *= 2
    return block


def number(value: float, dtype: torch.dtype) -> Union[float, int]:
    """Return ``value`` as an argument of a kernel; for float64 its bits, because Triton passes floats as float32."""
    if dtype != torch.float64:
        return float(value)
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


@triton.jit
def scalar(argument, DOUBLE: tl.constexpr):
    """Return the value of an argument that :func:`number` has made."""
    if DOUBLE:
        argument = argument.to(tl.int64).to(tl.float64, bitcast=True)
    return argument


# The step and the adjoint of the neuron are those generated for Leaky.
_leaky_step, _leaky_adjoint = step_functions("leaky").leaky_step, step_functions("leaky").leaky_adjoint
# The variants with a delayed reset have twice the number of the reset mechanism.
assert [_neurons.plan("leaky", {"reset_mechanism": m, "reset_delay": True}).variant for m in RESET_MECHANISMS] == [
    0,
    2,
    4,
]
_PASSED = tl.constexpr(IDENTITY.id)


@triton.jit
def clamp_unit(beta):
    return _clamp(beta, 0.0, 1.0)


@triton.jit
def next_membrane(state, x, decay, threshold, storage, RESET: tl.constexpr):
    """Return the membrane after a step, rounded to the dtype that ``storage`` points to."""
    _, after = _leaky_step(x, state, threshold, decay, threshold, storage, 2 * RESET)
    return after


@triton.jit
def membrane_adjoint(through, carry, before, decay, threshold, storage, RESET: tl.constexpr):
    """Return the gradients of a step's current, of the membrane before it, of the decay and of the threshold.

    ``through`` is the gradient that has passed the spike function; ``carry`` that of the membrane from the next step.
    Spikes are not graded, and nothing else reads the membrane.
    """
    grad, grad_before, of_threshold, of_decay, _ = _leaky_adjoint(
        carry, before, carry, threshold, decay, 1.0, through, carry, -0.0, storage, 1.0, 0.0, 2 * RESET, _PASSED, True
    )
    return grad, grad_before, of_decay, of_threshold


@triton.jit
def where_all(mask, condition):
    """Return ``mask & condition`` for a scalar condition, which Triton's interpreter cannot broadcast."""
    return tl.where(condition, mask, False)


@triton.jit
def per_neuron(pointer, cols, mask, PER_NEURON: tl.constexpr):
    """Load a parameter: one number, or one for each neuron."""
    if PER_NEURON:
        value = tl.load(pointer + cols, mask=mask, other=0.0)
    else:
        value = tl.load(pointer)
    return value
