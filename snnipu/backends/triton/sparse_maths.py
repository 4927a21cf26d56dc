"""What the kernels of the sparse operators share: numbers and parameters as arguments, block sizes."""

import struct
from typing import Union

import torch
import triton
import triton.language as tl

from snnipu.backends.triton.neuron_maths import _clamp
from snnipu.backends.triton.neurons import generated
from snnipu.ops import _neurons
from snnipu.ops._arguments import RESET_MECHANISMS
from snnipu.ops._spike_gradient import IDENTITY


def block_of(size: int, least: int, most: int) -> int:
    """The power of two that holds ``size``, from ``least`` to ``most``."""
    block = least
    while block < min(size, most):
        block *= 2
    return block


def number(value: float, dtype: torch.dtype) -> Union[float, int]:
    """``value`` as a kernel's argument: Triton makes float32 of a float, so a float64 travels as its bits."""
    if dtype != torch.float64:
        return float(value)
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


@triton.jit
def scalar(argument, DOUBLE: tl.constexpr):
    """The inverse of :func:`number`."""
    if DOUBLE:
        argument = argument.to(tl.int64).to(tl.float64, bitcast=True)
    return argument


# The neuron's step and adjoint are the generated ones of Leaky.
_leaky_step, _leaky_adjoint = generated("leaky").leaky_step, generated("leaky").leaky_adjoint
# Its variants with a delayed reset are twice the code of the reset mechanism.
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
    """The membrane after a step; ``storage`` points to what it is stored in."""
    _, after = _leaky_step(x, state, threshold, decay, threshold, storage, 2 * RESET)
    return after


@triton.jit
def membrane_adjoint(through, carry, before, decay, threshold, storage, RESET: tl.constexpr):
    """Gradients of a step's current, of the membrane before it, and of the decay and the threshold: from what has
    passed the spike function, and from the step after. Spikes are not graded, and nothing else reads the membrane."""
    grad, grad_before, of_threshold, of_decay, _ = _leaky_adjoint(
        carry, before, carry, threshold, decay, 1.0, through, carry, -0.0, storage, 1.0, 0.0, 2 * RESET, _PASSED, True
    )
    return grad, grad_before, of_decay, of_threshold


@triton.jit
def where_all(mask, condition):
    """``mask & condition`` for a condition that is one number; Triton's interpreter cannot spread a bool."""
    return tl.where(condition, mask, False)


@triton.jit
def per_neuron(pointer, cols, mask, PER_NEURON: tl.constexpr):
    """A parameter: one number, or one for each neuron."""
    if PER_NEURON:
        value = tl.load(pointer + cols, mask=mask, other=0.0)
    else:
        value = tl.load(pointer)
    return value
