"""Products whose input is mostly zeros: what is zero is not multiplied. The input stays an ordinary tensor."""

import contextlib
import threading
from typing import Any, Iterator, Optional, Tuple

import torch
import torch.nn.functional as F

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import PLAIN, is_autocast, is_differentiated, is_direct
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._slots import AS_NEEDED

# Rows that are looked at to estimate how much of an input is not zero.
_LOOKED_AT = 64
# Multiplications below which finding out takes longer than they do.
_FEWEST_PRODUCTS = 1 << 22
# Up to which share of nonzero inputs events are faster, from so many outputs on: forward and the weight's gradient.
BREAK_EVEN = ((256, 0.35), (128, 0.25), (64, 0.12), (32, 0.06))
# Where a row holds more, slots take as much memory as the tensor.
_LARGEST_ROW = 0.5

_switch = threading.local()


@contextlib.contextmanager
def dense_only() -> Iterator[None]:
    """Inside, ``MultiStep`` and compiled loops multiply zeros, too: PyTorch's own products, in its order of additions.

    .. code-block:: python

        with snn.dense_only():
            out = net(x)
    """
    before = getattr(_switch, "dense", False)
    _switch.dense = True
    try:
        yield
    finally:
        _switch.dense = before


def linear(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    r"""``torch.nn.functional.linear``; on a CPU by events where most of ``x`` is zero.

    .. math::

        y_{no} = \sum_{i : x_{ni} \neq 0} W_{oi} x_{ni} + b_o

    So is the weight's gradient; that of ``x`` is the dense product. The numbers are those of another order of
    additions, the same for the same input. A weight that is infinite or NaN does not reach what its input, being zero,
    has no part in.

    Args:
        x: ``[N, in]``.
        weight: ``[out, in]``.
        bias: ``[out]`` or None.

    Returns:
        ``[N, out]``.
    """
    slots = _slots(x, weight)
    if slots is None:
        return F.linear(x, weight, bias)
    if is_differentiated((x, weight, bias)):
        made: torch.Tensor = _Linear.apply(x, weight, bias, *slots)
        return made
    ids, values, counts = slots
    return torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight.contiguous(), bias)[0]  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        ids: torch.Tensor,
        values: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        need = ctx.needs_input_grad
        kept = (ids, values, counts) if need[1] or need[2] else (None, None, None)
        ctx.save_for_backward(weight if need[0] or need[1] else None, *kept)
        return torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight.contiguous(), bias)[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable("linear on an input that is mostly zeros (snnipu.dense_only() takes PyTorch's)")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        weight, ids, values, counts = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad = grad.contiguous()
        grad_x = grad @ weight if need_x else None
        grad_weight = grad_bias = None
        if need_weight:
            _, grad_weight, grad_bias = torch.ops.snnipu.sparse_linear_bwd(
                grad[None], ids, values, counts, weight.contiguous(), False, True, need_bias
            )
        elif need_bias:
            grad_bias = grad.sum(0)
        return grad_x, grad_weight, grad_bias if need_bias else None, None, None, None


def _slots(x: torch.Tensor, weight: torch.Tensor) -> Optional[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Ids, values and counts of what is not zero, where the product by events is the faster one."""
    if (
        x.dim() != 2
        or weight.dim() != 2
        or x.shape[1] != weight.shape[1]
        or not x.numel()
        or x.shape[0] * weight.numel() < _FEWEST_PRODUCTS
        or getattr(_switch, "dense", False)
        or "CPU" not in _library.REGISTERED["sparse_linear_fwd"]
        or not is_direct(x, dispatched=True)
        or x.dtype not in (torch.float32, torch.float64)
        or type(weight) not in PLAIN
        or weight.dtype != x.dtype
        or is_autocast()
        or _route.on_ipu()
    ):
        return None
    most = next((share for outputs, share in BREAK_EVEN if weight.shape[0] >= outputs), 0.0)
    if not most or _share(x) > most:
        return None
    rows = x.detach().contiguous()[None]
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(rows, AS_NEEDED, False)
    return (ids, values, counts) if ids.shape[2] <= _LARGEST_ROW * x.shape[1] else None


def _share(x: torch.Tensor) -> float:
    """Of elements that are not zero, from rows at equal distances: the same for the same input."""
    rows = x.detach()[:: max(1, x.shape[0] // _LOOKED_AT)]
    return int(rows.count_nonzero()) / max(1, rows.numel())
