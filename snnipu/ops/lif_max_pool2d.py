"""Neurons of maps and the maximum of their spikes' windows, in one pass: schema, meta, autograd, reference.

Not public: layers of an event-driven network whose convolutions run densely hand each other dense spikes by it. What
carries gradient is what would have had a slot: with a second threshold, the first neuron of a window that fires, else
the first above that threshold.
"""

from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch

from snnipu.ops._arguments import learnt_decay
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._reference import ReferenceStep, leaky_adjoint, leaky_step
from snnipu.ops.max_pool2d import Windows, max_pool2d_bwd_reference, max_pool2d_fwd_reference, windows
from snnipu.surrogate import Kernel, surrogate_gradient

# In the place of a place in a window: no neuron of it carries gradient.
NOWHERE = 255

ForwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
BackwardResult = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ForwardArguments(NamedTuple):
    """Of ``lif_max_pool2d_fwd``, in the order of its schema."""

    x: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    geometry: List[int]
    grad_threshold: Optional[float]
    reset: int


class BackwardArguments(NamedTuple):
    """Of ``lif_max_pool2d_bwd``, in the order of its schema."""

    grad: torch.Tensor
    x: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    which: torch.Tensor
    geometry: List[int]
    reset: int
    surrogate: int
    surrogate_a: float
    surrogate_b: float
    need_beta: bool
    need_threshold: bool


class Pooled(NamedTuple):
    """``maps [T, B, C, h, w]``, spikes; ``counts [T, B, 2]`` of neurons in front of the pool that fire and that carry
    gradient; ``spikes``, how many there are behind it."""

    maps: torch.Tensor
    counts: torch.Tensor
    spikes: torch.Tensor


def fits(kernel: Tuple[int, int], stride: Tuple[int, int], padding: Tuple[int, int]) -> bool:
    """Whether there is a kernel for such windows: side by side, and not too large."""
    return stride == kernel and padding == (0, 0) and kernel[0] * kernel[1] < NOWHERE


def _per_map(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.reshape(-1, 1, 1)


def _step(a: Union[ForwardArguments, BackwardArguments]) -> ReferenceStep:
    maps = a.x.shape[2:]
    return leaky_step(_per_map(a.beta).expand(maps), _per_map(a.threshold).expand(maps), a.reset, a.x.shape[1:])


def _membranes(x: torch.Tensor, neurons: ReferenceStep) -> torch.Tensor:
    """``[T + 1, B, C, H, W]``, from zeros before the first step."""
    made = [torch.zeros_like(x[0])]
    for step in x:
        made.append(neurons(step, [made[-1]])[1])
    return torch.stack(made)


def _reduced(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return (total.sum() if like.numel() == 1 else total.sum((0, 1, 3, 4))).reshape(like.shape)


def lif_max_pool2d_fwd_reference(*arguments: Any) -> ForwardResult:
    """What ``snnipu::lif_max_pool2d_fwd`` computes, in plain PyTorch."""
    a = ForwardArguments(*arguments)
    neurons = _step(a)
    mem = _membranes(a.x, neurons)[1:]
    fired = mem - _per_map(a.threshold) > 0
    carried = torch.ones_like(fired) if a.grad_threshold is None else fired | (mem > a.grad_threshold)
    rank = fired.to(a.x.dtype) + carried.to(a.x.dtype)
    best, which = max_pool2d_fwd_reference(rank.flatten(0, 1), a.geometry)
    which = torch.where(best > 0, which, torch.full_like(which, NOWHERE))
    out = (best > 1).to(a.x.dtype).unflatten(0, a.x.shape[:2])
    counts = torch.stack([fired.flatten(2).sum(2), carried.flatten(2).sum(2)], 2).int()
    return out, which.unflatten(0, a.x.shape[:2]), counts, out.sum().long()


def lif_max_pool2d_bwd_reference(*arguments: Any) -> BackwardResult:
    """What ``snnipu::lif_max_pool2d_bwd`` computes, in plain PyTorch; empty where not needed.

    The gradient of beta is 0 outside of [0, 1], and not at the bounds: see ``learnt_decay``.
    """
    a = BackwardArguments(*arguments)
    kernel = Kernel(a.surrogate, a.surrogate_a, a.surrogate_b)
    places, nowhere = a.which.flatten(0, 1), a.which.flatten(0, 1) == NOWHERE
    upstream = a.grad.flatten(0, 1).masked_fill(nowhere, 0)
    at_spikes = max_pool2d_bwd_reference(upstream, places.masked_fill(nowhere, 0), a.geometry).reshape(a.x.shape)
    neurons = _step(a)
    mem = _membranes(a.x, neurons)
    distance = mem - _per_map(a.threshold)
    through, above = surrogate_gradient(kernel, distance[1:], at_spikes), (distance > 0).to(a.x.dtype)
    carry = torch.zeros_like(a.x[0])
    made = []
    for t in reversed(range(a.x.shape[0])):
        grad_x, carry, *own = leaky_adjoint(neurons, through[t], carry, mem[t], above[t])
        made.append((grad_x, *own))
    grad_x, of_beta, of_threshold = (torch.stack(rows) for rows in zip(*reversed(made)))
    inside = torch.where((a.beta >= 0) & (a.beta <= 1), torch.ones_like(a.beta), torch.zeros_like(a.beta))
    return (
        grad_x,
        _reduced(of_beta, a.beta) * inside if a.need_beta else a.x.new_empty(0),
        _reduced(of_threshold, a.threshold) if a.need_threshold else a.x.new_empty(0),
    )


def _fwd_meta(*arguments: Any) -> ForwardResult:
    a = ForwardArguments(*arguments)
    out = a.x.new_empty((*a.x.shape[:3], *a.geometry[6:]))
    counts = a.x.new_empty((*a.x.shape[:2], 2), dtype=torch.int32)
    return out, torch.empty_like(out, dtype=torch.uint8), counts, a.x.new_empty((), dtype=torch.int64)


def _bwd_meta(*arguments: Any) -> BackwardResult:
    a = BackwardArguments(*arguments)
    return (
        torch.empty_like(a.x),
        a.beta.new_empty(a.beta.shape if a.need_beta else 0),
        a.threshold.new_empty(a.threshold.shape if a.need_threshold else 0),
    )


_fwd = define(
    lif_max_pool2d_fwd_reference,
    _fwd_meta,
    "(Tensor out, Tensor which, Tensor counts, Tensor pooled)",
    ForwardArguments,
)
_bwd = define(
    lif_max_pool2d_bwd_reference,
    _bwd_meta,
    "(Tensor grad_x, Tensor grad_beta, Tensor grad_threshold)",
    BackwardArguments,
)


class _LifMaxPool2d(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        beta: torch.Tensor,
        threshold: torch.Tensor,
        w: Windows,
        grad_threshold: Optional[float],
        reset: int,
        kernel: Kernel,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out, which, counts, pooled = _fwd(x, beta, threshold, w, grad_threshold, reset)
        ctx.save_for_backward(x, beta, threshold, which)
        ctx.options = w, reset, *kernel
        ctx.mark_non_differentiable(counts, pooled)
        ctx.set_materialize_grads(False)
        return out, counts, pooled

    @staticmethod
    @once_differentiable("lif_max_pool2d")
    def backward(  # type: ignore[override]
        ctx: Any, grad: Optional[torch.Tensor], *_: None
    ) -> Tuple[Optional[torch.Tensor], ...]:
        if grad is None:
            return (None,) * 7
        need = ctx.needs_input_grad[:3]
        grads = _bwd(grad.contiguous(), *ctx.saved_tensors, *ctx.options, *need[1:])
        return (*(g if needed else None for g, needed in zip(grads, need)), *(None,) * 4)


def lif_max_pool2d(
    x: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    kernel_size: Tuple[int, int],
    grad_threshold: Optional[float],
    reset: int,
    kernel: Kernel,
) -> Pooled:
    """Of currents ``x [T, B, C, H, W]``; ``beta`` and ``threshold`` have one element or one of each channel."""
    w = windows(x.shape[3:], kernel_size, kernel_size)
    assert w is not None
    return Pooled(*_LifMaxPool2d.apply(x.contiguous(), learnt_decay(beta), threshold, w, grad_threshold, reset, kernel))
