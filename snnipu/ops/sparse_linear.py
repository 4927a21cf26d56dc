"""A linear layer on spike ids: public function, schema, meta, autograd, reference."""

from typing import Any, Optional, Tuple

import torch

from snnipu import _route
from snnipu.ops import _library
from snnipu.ops._arguments import DTYPES, compute_dtype
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._slots import check_ids, check_spikes, gather, scatter
from snnipu.spikes import SparseSpikes

_SCHEMA_FWD = "sparse_linear_fwd(Tensor ids, Tensor values, Tensor counts, Tensor weight, Tensor? bias) -> Tensor"
_SCHEMA_BWD = (
    "sparse_linear_bwd(Tensor grad, Tensor ids, Tensor values, Tensor counts, Tensor weight, bool need_values, "
    "bool need_weight, bool need_bias) -> (Tensor grad_values, Tensor grad_weight, Tensor grad_bias)"
)


def sparse_linear_fwd_reference(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
) -> torch.Tensor:
    """What ``snnipu::sparse_linear_fwd`` computes, in plain PyTorch."""
    check_ids(ids, counts, weight.shape[1])
    return torch.nn.functional.linear(spikes_only(values, ids, counts, weight.shape[1]), weight, bias)


def spikes_only(values: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """Dense ``[T, B, N]`` of the slots that hold spikes."""
    return scatter(values, ids, counts[..., :1].expand(-1, -1, 2), num_neurons)


def sparse_linear_bwd_reference(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``snnipu::sparse_linear_bwd`` computes, in plain PyTorch; empty where not needed."""
    check_ids(ids, counts, weight.shape[1])
    flat = grad.reshape(-1, grad.shape[-1])
    # No two outputs may be the same tensor.
    grad_values, grad_weight, grad_bias = (weight.new_empty(0) for _ in range(3))
    if need_values:
        grad_values = gather(grad @ weight, ids, counts)
    if need_weight:
        grad_weight = flat.t() @ spikes_only(values, ids, counts, weight.shape[1]).reshape(-1, weight.shape[1])
    return grad_values, grad_weight, flat.sum(0) if need_bias else grad_bias


def _fwd_meta(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
) -> torch.Tensor:
    return weight.new_empty((*ids.shape[:2], weight.shape[0]))


def _bwd_meta(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        weight.new_empty(ids.shape if need_values else 0),
        weight.new_empty(weight.shape if need_weight else 0),
        weight.new_empty(weight.shape[0] if need_bias else 0),
    )


_library.define(_SCHEMA_FWD, reference=sparse_linear_fwd_reference, meta=_fwd_meta)
_library.define(_SCHEMA_BWD, reference=sparse_linear_bwd_reference, meta=_bwd_meta)


class SparseLinear(torch.autograd.Function):
    """Autograd around ``snnipu::sparse_linear_fwd`` and ``snnipu::sparse_linear_bwd``."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        ids: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight, ids, counts)
        return torch.ops.snnipu.sparse_linear_fwd(ids, values, counts, weight, bias)

    @staticmethod
    @once_differentiable("sparse_linear")
    def backward(  # type: ignore[override]
        ctx: Any, grad: torch.Tensor
    ) -> Tuple[Optional[torch.Tensor], ...]:
        values, weight, ids, counts = ctx.saved_tensors
        need = ctx.needs_input_grad[:3]
        grads = torch.ops.snnipu.sparse_linear_bwd(grad.contiguous(), ids, values, counts, weight, *need)
        return (*(g if needed else None for g, needed in zip(grads, need)), None, None)


def sparse_linear(spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    r"""A linear layer on spikes: the weights of the neurons that spiked, added up.

    .. math::

        y_{tbo} = \sum_{s < \text{spikes}_{tb}} v_{tbs} W_{o, i_{tbs}} + b_o

    Gradients: of the weight, from the spikes; of ``spikes.values``, at every carried slot,
    :math:`\partial L / \partial v_{tbs} = \sum_o W_{o, i_{tbs}} \, \partial L / \partial y_{tbo}`.

    Args:
        spikes: SparseSpikes of ``in`` neurons.
        weight: ``[out, in]``, as ``nn.Linear``'s. float16 and bfloat16 are converted to float32.
        bias: ``[out]`` or None.

    Returns:
        ``[T, B, out]``: float64 for float64 weights, else float32.

    Raises:
        TypeError, ValueError: a shape, dtype or device that does not fit, an id or count out of range; the message
            names the argument. On CUDA ids and counts are not looked at, as the host would have to wait for them: those
            out of range are left out.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    spikes = check_spikes("spikes", spikes)
    given = weight
    weight = weight_argument("weight", weight, spikes)
    bias = bias_argument(bias, weight)
    if _route.uses_operator("sparse_linear", "SparseLinear"):
        return _route.call("sparse_linear", spikes, given, bias)
    return SparseLinear.apply(spikes.values.to(weight.dtype), weight, bias, spikes.ids, spikes.counts)


def weight_argument(name: str, weight: object, spikes: SparseSpikes) -> torch.Tensor:
    """``weight`` in the compute dtype; it is ``[out, in]`` for the neurons of ``spikes`` and on their device."""
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(weight).__name__}")
    if weight.dtype not in DTYPES:
        raise TypeError(f"{name} must be float32, float64, float16 or bfloat16, got {weight.dtype}")
    if weight.dim() != 2 or weight.shape[1] != spikes.num_neurons or weight.shape[0] == 0:
        raise ValueError(
            f"{name} must have shape [out, {spikes.num_neurons}], for spikes of {spikes.num_neurons} neurons, got "
            f"{tuple(weight.shape)}"
        )
    if weight.device != spikes.device:
        raise ValueError(f"{name} must be on the device of the spikes, {spikes.device}, got {weight.device}")
    return weight.to(compute_dtype(weight.dtype))


def bias_argument(bias: object, weight: torch.Tensor) -> Optional[torch.Tensor]:
    """``bias`` in the dtype of ``weight``: None or ``[out]``."""
    if bias is None:
        return None
    if not isinstance(bias, torch.Tensor) or not bias.dtype.is_floating_point:
        raise TypeError(f"bias must be a floating torch.Tensor or None, got {bias!r}")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape {(weight.shape[0],)}, as weight says, got {tuple(bias.shape)}")
    if bias.device != weight.device:
        raise ValueError(f"bias must be on the device of weight, {weight.device}, got {bias.device}")
    return bias.to(weight.dtype)
