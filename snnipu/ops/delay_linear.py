"""A linear layer whose synapses have delays: the operators of ``DelayLinear``; not public."""

from typing import Any, Optional, Tuple

import torch

from snnipu.ops import _sparse_currents
from snnipu.ops._records import define
from snnipu.ops._slots import capacity_argument
from snnipu.ops.connections import Delayed
from snnipu.spikes import DenseOrSparse, SparseSpikes

OPERATORS = _sparse_currents.define("delay_linear", without=["synapses"])
KERNELS = ("linear", "gaussian")


def delay_linear_input_bwd_reference(
    grad: torch.Tensor, weight: torch.Tensor, lags: torch.Tensor, span: int
) -> torch.Tensor:
    """Compute ``snnipu::delay_linear_input_bwd`` in plain PyTorch: the gradient of a dense input."""
    grad_input = Delayed(weight, lags, span).adjoint(grad, None)[0]
    assert grad_input is not None
    return grad_input


def _input_bwd_meta(grad: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:2], weight.shape[0]))


define(delay_linear_input_bwd_reference, _input_bwd_meta)


def shares(delay: torch.Tensor, max_delay: int, kernel: str, sigma: float) -> Tuple[torch.Tensor, torch.Tensor]:
    """Distribute each delay over whole steps; return the shares and the first step.

    Delays are clamped to ``[0, max_delay]``, with gradient 0 outside.

    Args:
        delay: ``[...]`` in steps.
        max_delay: longest delay in steps.
        kernel: ``"linear"``: two neighbouring steps; ``"gaussian"``: all steps, normalised to 1.
        sigma: width of the Gaussian in steps.

    Returns:
        The share of each tap, ``[..., taps]``, differentiable in ``delay``; and the step of the first tap, ``[...]``,
        a whole number in the same dtype.
    """
    delay = delay.clamp(0, max_delay)
    if kernel == "linear":
        behind, first = _between(delay, max_delay)
        return torch.stack([1 - behind, behind], -1), first
    steps = torch.arange(max_delay + 1, device=delay.device, dtype=delay.dtype)
    # Softmax subtracts the largest exponent, so the sum is at least 1 even for a tiny sigma.
    exponents = -((steps - delay.unsqueeze(-1)) ** 2) / (2 * sigma**2)
    return exponents.softmax(-1), torch.zeros_like(delay)


def _between(delay: torch.Tensor, max_delay: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Split clamped delays into a differentiable fraction and a whole step; NaN gives (NaN, 0)."""
    unknown = torch.isnan(delay.detach())
    first = torch.where(unknown, 0, delay.detach()).floor()
    return torch.where(unknown | (first < max_delay), delay - first, 0), first


def taps(weight: torch.Tensor, delay: torch.Tensor, max_delay: int, kernel: str, sigma: float) -> Delayed:
    """Return the connection of weights ``[out, in]`` and delays that broadcast to them, differentiable in both."""
    weight, delay = weight.t().contiguous(), delay.to(weight.dtype)
    delay = delay.t().contiguous() if delay.dim() == 2 else delay
    if kernel == "linear":
        behind, first = _between(delay.clamp(0, max_delay), max_delay)
        late = weight * behind
        arriving = torch.stack([weight - late, late], -1)
    else:
        parts, first = shares(delay, max_delay, kernel, sigma)
        arriving = (weight.unsqueeze(-1) * parts).contiguous()
    lags = first.to(torch.int32).expand(weight.shape).contiguous()
    return Delayed(arriving, lags, max_delay + (2 if kernel == "linear" else 1))


def append_silent_steps(x: DenseOrSparse, steps: int) -> DenseOrSparse:
    """Return the input followed by ``steps`` steps without spikes."""

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros(steps, *tensor.shape[1:])])

    return x._map_tensors(padded) if isinstance(x, SparseSpikes) else padded(x)


def delay_linear(x: DenseOrSparse, connected: Delayed, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Return the currents ``[T, B, neurons]`` of spikes, or of a dense ``[T, B, inputs]`` in the weights' dtype."""
    connected = within_steps(connected, x.shape[0])
    weight, lags, geometry = connected.weight, connected.lags, connected.geometry
    if isinstance(x, SparseSpikes):
        values = x.values.to(weight.dtype)
        return _sparse_currents.currents_apply(OPERATORS, x.ids, values, x.counts, weight, bias, geometry, lags=lags)
    dense = x.detach().contiguous()
    capacity = capacity_argument(None, dense.shape[2], x)
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(dense, capacity, False)
    return _sparse_currents.currents_apply(OPERATORS, ids, values, counts, weight, bias, geometry, lags=lags, dense=x)


def delay_linear_dense(
    x: torch.Tensor, connected: Delayed, longest: int, bias: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Compute :func:`delay_linear` of a dense tensor in plain PyTorch, for compilers of graphs.

    It needs one product for each lag up to ``longest``.
    """
    steps, total = x.shape[0], None
    for lag in range(min(longest + 1, steps)):
        taps_then = [(connected.lags + tap == lag).to(x.dtype) for tap in range(connected.weight.shape[2])]
        weight = sum(connected.weight[..., tap] * then for tap, then in enumerate(taps_then))
        arriving = x[: steps - lag] @ weight
        if lag:
            arriving = torch.cat([arriving.new_zeros(lag, *arriving.shape[1:]), arriving])
        total = arriving if total is None else total + arriving
    assert total is not None
    return total if bias is None else total + bias


def within_steps(connected: Delayed, steps: int) -> Delayed:
    """Return the connection with lags clamped to ``steps``: later arrivals have no effect, and kernels buffer ``span``
    steps."""
    last = steps + connected.weight.shape[2]
    return connected if connected.span <= last else Delayed(connected.weight, connected.lags.clamp(max=steps), last)
