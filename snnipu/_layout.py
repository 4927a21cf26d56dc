"""Shapes and memory layout of a sequence operator's input, states and outputs."""

from typing import Any, Optional, Sequence, Tuple

import torch

# The value of num_steps for a single step: x and the outputs have no time dimension.
SINGLE_STEP = 0


def layout(x: torch.Tensor, num_steps: Optional[int]) -> Tuple[int, torch.Size, torch.Size]:
    """Return the number of steps, the shape of a step and the shape of the outputs.

    ``num_steps`` None: ``x`` is ``[T, ...]``. A number: ``x`` is one step, held constant for that many steps.
    """
    if num_steps is None:
        return x.shape[0], x.shape[1:], x.shape
    if num_steps == SINGLE_STEP:
        return 1, x.shape, x.shape
    return num_steps, x.shape, torch.Size((num_steps, *x.shape))


def memory_order(x: torch.Tensor, num_steps: Optional[int]) -> Optional[Tuple[int, ...]]:
    """Return the dimensions of a step of ``x`` in the order of memory, largest stride first.

    None: the step is contiguous, or no order of its dimensions makes it dense.
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


def broadcasts_to(argument: object, step_shape: torch.Size) -> bool:
    """Return True if ``argument`` broadcasts to a step, or is no tensor and is checked elsewhere."""
    if not isinstance(argument, torch.Tensor):
        return True
    sizes = zip(reversed(argument.shape), reversed(step_shape))
    return argument.dim() <= len(step_shape) and all(size in (1, step_size) for size, step_size in sizes)


def permute_step(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a view whose last dimensions, a step, are permuted by ``order``."""
    first = tensor.dim() - len(order)
    return tensor.permute(*range(first), *(first + dim for dim in order))


def permute_argument(argument: Any, order: Sequence[int]) -> Any:
    """Return a view of a state or parameter for steps whose dimensions are permuted by ``order``."""
    if not isinstance(argument, torch.Tensor) or argument.dim() == 0:
        return argument
    return permute_step(argument.reshape((1,) * (len(order) - argument.dim()) + argument.shape), order)


def upstream_rows(grad: Optional[torch.Tensor], steps: int) -> Sequence[Optional[torch.Tensor]]:
    """Return the row of an upstream gradient for each step, contiguous.

    A gradient with stride 0 over time, for example that of a sum, is copied once for all steps.
    """
    if grad is None:
        return [None] * steps
    if steps > 1 and grad.stride(0) == 0:
        return [grad[0].contiguous()] * steps
    return [row.contiguous() for row in grad.unbind()]
