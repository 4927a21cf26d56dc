"""A pruned linear layer on spikes, with its synapses as a list: the operators of ``ListedLinear``; not public."""

from typing import Optional, Sequence

import torch

from snnipu import _route
from snnipu.ops import _sparse_currents
from snnipu.ops._arguments import compute_dtype
from snnipu.ops._slots import check_spikes
from snnipu.ops.connections import Listed
from snnipu.spikes import SparseSpikes

OPERATORS = _sparse_currents.define("listed_linear", without=["lags"])


def check_synapses(synapses: object, sizes: Sequence[int]) -> torch.Tensor:
    """Check that ``synapses`` is int ``[2, kept]``: unique pairs of neuron and input within ``sizes``.

    Returns them as int64, in ascending order of (input, neuron). On a GPU the host waits for the check.
    """
    if not isinstance(synapses, torch.Tensor) or synapses.dtype not in (torch.int32, torch.int64):
        kind = synapses.dtype if isinstance(synapses, torch.Tensor) else type(synapses).__name__
        raise TypeError(f"synapses must be an int32 or int64 torch.Tensor, got {kind}")
    if synapses.dim() != 2 or synapses.shape[0] != 2:
        raise ValueError(f"synapses must have shape [2, kept], got {tuple(synapses.shape)}")
    synapses = synapses.detach().long()
    for name, ids, size in zip(("neurons", "inputs"), synapses, sizes):
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
            raise ValueError(f"synapses: {name} must be in [0, {size}), got {int(ids.min())} to {int(ids.max())}")
    places = (synapses[1] * sizes[0] + synapses[0]).sort().values
    if bool((places[1:] == places[:-1]).any()):
        raise ValueError("synapses must not hold a pair of neuron and input twice")
    return torch.stack([places % sizes[0], torch.div(places, sizes[0], rounding_mode="floor")])


def listed_linear(spikes: SparseSpikes, connected: Listed, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Compute :func:`~snnipu.ops.sparse_linear` with a list of synapses; return ``[T, B, neurons]``.

    Args:
        spikes: SparseSpikes of ``connected.inputs`` neurons.
        connected: the connection; its synapses come from :func:`check_synapses`. Weights in float16 and bfloat16 are
            converted to float32.
        bias: ``[neurons]`` or None.
    """
    spikes = check_spikes("spikes", spikes)
    if _route.uses_operator("ListedLinear", "SparseLinear"):
        currents: torch.Tensor = _route.call("sparse_linear", spikes, connected.matrix(), bias)
        return currents
    weight = connected.weight.to(compute_dtype(connected.weight.dtype))
    return _sparse_currents.currents_apply(
        OPERATORS,
        spikes.ids,
        spikes.values.to(weight.dtype),
        spikes.counts,
        weight,
        None if bias is None else bias.to(weight.dtype),
        connected.geometry,
        connected.synapses,
    )
