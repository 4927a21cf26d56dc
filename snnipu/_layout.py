"""Shapes of a sequence operator's input and outputs."""

from typing import Any, Optional, Sequence, Tuple

import torch

# As num_steps: x is one step, and so are the outputs, without a time dimension.
SINGLE_STEP = 0


def layout(x: torch.Tensor, num_steps: Optional[int]) -> Tuple[int, torch.Size, torch.Size]:
    """Number of steps, shape of a step, shape of the outputs.

    ``num_steps`` None: ``x`` is ``[T, ...]``; a number: ``x`` is one step, held constant for so many.
    """
    if num_steps is None:
        return x.shape[0], x.shape[1:], x.shape
    if num_steps == SINGLE_STEP:
        return 1, x.shape, x.shape
    return num_steps, x.shape, torch.Size((num_steps, *x.shape))


def memory_order(x: torch.Tensor, num_steps: Optional[int]) -> Optional[Tuple[int, ...]]:
    """The dimensions of a step of ``x`` in the order in which it lies in memory, the slowest first.

    None where that is their own order, or where a step has gaps or its elements lie in no order of dimensions.
    """
    if x.is_contiguous():
        return None
    first = 1 if num_steps is None else 0
    sizes, strides = x.shape[first:], x.stride()[first:]
    order = tuple(sorted(range(len(sizes)), key=lambda dim: -strides[dim]))
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1:
            if strides[dim] != expected:
                return None
            expected *= sizes[dim]
    if first and x.shape[0] > 1 and x.stride(0) != expected:
        return None
    return order


def fits(argument: object, step_shape: torch.Size) -> bool:
    """Whether a tensor broadcasts to a step; what is not a tensor is checked elsewhere."""
    if not isinstance(argument, torch.Tensor):
        return True
    sizes = zip(reversed(argument.shape), reversed(step_shape))
    return argument.dim() <= len(step_shape) and all(size in (1, wanted) for size, wanted in sizes)


def in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A view with the dimensions of a step, the last ones, in another order."""
    first = tensor.dim() - len(order)
    return tensor.permute(*range(first), *(first + dim for dim in order))


def permuted(argument: Any, order: Sequence[int]) -> Any:
    """A state or parameter for steps whose dimensions are in another order."""
    if not isinstance(argument, torch.Tensor) or argument.dim() == 0:
        return argument
    return in_order(argument.reshape((1,) * (len(order) - argument.dim()) + argument.shape), order)


def upstream_rows(grad: Optional[torch.Tensor], steps: int) -> Sequence[Optional[torch.Tensor]]:
    """The rows of an upstream gradient, each in one piece; one that is the same at all steps, as of a sum, once."""
    if grad is None:
        return [None] * steps
    if steps > 1 and grad.stride(0) == 0:
        return [grad[0].contiguous()] * steps
    return [row.contiguous() for row in grad.unbind()]
