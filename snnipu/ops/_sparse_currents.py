"""Input currents of spikes for any connection: records, schemas, meta, autograd, reference.

A current is the sum of the weights of the neurons that spiked. ``snnipu.ops.connections`` has the connections.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import Operator, Operators
from snnipu.ops._slots import gather, scatter
from snnipu.ops.connections import Connection, connection
from snnipu.spikes import check_ids


class CurrentsForward(NamedTuple):
    """Arguments of ``snnipu::<name>_fwd``, which returns currents ``[T, B, neurons]``.

    ``geometry``: see :func:`snnipu.ops.connections.connection`; ``synapses`` are those of a list, ``lags`` those of
    delays.
    """

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    geometry: List[int]
    synapses: Optional[torch.Tensor] = None
    lags: Optional[torch.Tensor] = None

    @property
    def connection(self) -> Connection:
        return connection(self.weight, self.geometry, self.synapses, self.lags)


class CurrentsBackward(NamedTuple):
    """Arguments of ``snnipu::<name>_bwd``."""

    grad: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    weight: torch.Tensor
    geometry: List[int]
    need_values: bool
    need_weight: bool
    need_bias: bool
    synapses: Optional[torch.Tensor] = None
    lags: Optional[torch.Tensor] = None

    @property
    def connection(self) -> Connection:
        return connection(self.weight, self.geometry, self.synapses, self.lags)


class CurrentsGradients(NamedTuple):
    """Results of ``snnipu::<name>_bwd``; None if not needed."""

    grad_values: Optional[torch.Tensor]
    grad_weight: Optional[torch.Tensor]
    grad_bias: Optional[torch.Tensor]


def spikes_only(values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """Return a dense ``[T, B, N]`` of the slots that hold spikes."""
    return scatter(values, ids, counts[..., :1].expand(-1, -1, 2), num_neurons)


def forward_reference(a: CurrentsForward) -> torch.Tensor:
    """Compute ``snnipu::<name>_fwd`` in plain PyTorch."""
    check_ids(a.ids, a.counts, a.connection.inputs)
    return a.connection.currents(spikes_only(a.values, a.ids, a.counts, a.connection.inputs), a.bias)


def backward_reference(a: CurrentsBackward) -> CurrentsGradients:
    """Compute ``snnipu::<name>_bwd`` in plain PyTorch."""
    check_ids(a.ids, a.counts, a.connection.inputs)
    dense = spikes_only(a.values, a.ids, a.counts, a.connection.inputs) if a.need_weight else None
    grad_dense, grad_weight = a.connection.adjoint(a.grad, dense, a.need_values)
    return CurrentsGradients(
        None if grad_dense is None else gather(grad_dense, a.ids, a.counts),
        grad_weight,
        a.connection.per_parameter(a.grad) if a.need_bias else None,
    )


def _forward_meta(a: CurrentsForward) -> torch.Tensor:
    return a.weight.new_empty((*a.ids.shape[:2], a.connection.neurons))


def gradients_meta(a: Any) -> CurrentsGradients:
    """Return empty gradients for a record with the fields of :class:`CurrentsBackward`."""
    return CurrentsGradients(
        a.weight.new_empty(a.ids.shape) if a.need_values else None,
        a.weight.new_empty(a.weight.shape) if a.need_weight else None,
        a.weight.new_empty(a.connection.parameters) if a.need_bias else None,
    )


def define(name: str, without: Sequence[str]) -> Operators:
    """Define ``snnipu::<name>_fwd`` and ``snnipu::<name>_bwd``; their records lack the fields ``without``."""
    operators = Operators(
        name,
        Operator(f"{name}_fwd", CurrentsForward, None, without),
        Operator(f"{name}_bwd", CurrentsBackward, CurrentsGradients, without),
    )
    operators.forward.define(forward_reference, _forward_meta)
    operators.backward.define(backward_reference, gradients_meta)
    return operators


class SparseCurrents(torch.autograd.Function):
    """The autograd function of the two operators."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        operators: Operators,
        geometry: Optional[List[int]],
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        ids: torch.Tensor,
        counts: torch.Tensor,
        synapses: Optional[torch.Tensor],
        lags: Optional[torch.Tensor],
        dense: Optional[torch.Tensor],
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight, ids, counts, synapses, lags)
        ctx.operators, ctx.geometry, ctx.operator = operators, geometry, operators.name
        record = CurrentsForward._make((ids, values, counts, weight, bias, geometry, synapses, lags))
        currents: torch.Tensor = operators.forward(record, weight, values, bias, ids, counts, synapses, lags)
        return currents

    @staticmethod
    @once_differentiable(None)
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor
    ) -> Tuple[Optional[torch.Tensor], ...]:
        values, weight, ids, counts, synapses, lags = ctx.saved_tensors
        need = ctx.needs_input_grad[2:5]
        tensors = (grad.contiguous(), ids, values, counts, weight)
        record = CurrentsBackward._make((*tensors, ctx.geometry, *need, synapses, lags))
        grads = ctx.operators.backward(record, weight, grad, values, ids, counts, synapses, lags)
        grad_dense = None
        if ctx.needs_input_grad[9]:
            input_bwd = getattr(torch.ops.snnipu, f"{ctx.operator}_input_bwd")
            grad_dense = input_bwd(tensors[0], weight, lags, ctx.geometry[0])
        gradients = (g if needed else None for g, needed in zip(grads, need))
        return (None, None, *gradients, None, None, None, None, grad_dense)


def currents_apply(
    operators: Operators,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    geometry: Optional[List[int]] = None,
    synapses: Optional[torch.Tensor] = None,
    lags: Optional[torch.Tensor] = None,
    dense: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Return the currents ``[T, B, neurons]`` of checked arguments, differentiable."""
    currents: torch.Tensor = SparseCurrents.apply(
        operators, geometry, values, weight, bias, ids, counts, synapses, lags, dense
    )
    return currents
