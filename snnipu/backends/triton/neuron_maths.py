"""Elementwise functions of generated kernels with the values of PyTorch's: csrc/neuron/functions.hpp in Triton."""

import triton
import triton.language as tl


@triton.jit
def _heaviside(u):
    return (u > 0.0).to(u.dtype)


@triton.jit
def _stored(value, storage):
    """Round a value to the dtype that ``storage`` points to, and return it in its own dtype."""
    return value.to(storage.dtype.element_ty).to(value.dtype)


@triton.jit
def _sign(value):
    return tl.where(value > 0.0, 1.0, 0.0).to(value.dtype) - tl.where(value < 0.0, 1.0, 0.0).to(value.dtype)


@triton.jit
def _clamp(value, low, high):
    raised = tl.where(value < low, low, value)
    return tl.where(raised > high, high, raised)


@triton.jit
def _relu(value):
    return tl.where(value < 0.0, 0.0, value)


@triton.jit
def _minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def _maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _sigmoid(value):
    return 1.0 / (1.0 + tl.exp(-value))


@triton.jit
def _tanh(value):
    e = tl.exp(-2.0 * tl.abs(value))
    large = (1.0 - e) / (1.0 + e)
    square = value * value
    # The series, for small values where 1 - e would lose digits.
    small = tl.abs(value) * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    size = tl.where(tl.abs(value) < 0.05, small, large)
    return tl.where(value < 0.0, -size, size)


# Generated modules import these names.
__all__ = [
    "_clamp",
    "_heaviside",
    "_maximum",
    "_minimum",
    "_relu",
    "_sigmoid",
    "_sign",
    "_stored",
    "_tanh",
]
