"""Products whose gradients of the input and of their own parameters are computed apart: online rules take each from
another gradient of the result, which autograd would compute together."""

from typing import Any, List, Optional, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn import grad as gradients

from snnipu.ops import sparse_input
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import as_list
from snnipu.ops._records import Operators
from snnipu.ops._sparse_currents import CurrentsBackward, CurrentsForward
from snnipu.ops.sparse_conv2d import OPERATORS as CONVOLUTION
from snnipu.ops.sparse_conv2d import conv_argument, conv_weight_argument
from snnipu.ops.sparse_linear import OPERATORS as LINEAR
from snnipu.ops.sparse_linear import bias_argument, weight_argument
from snnipu.spikes import SparseSpikes


class Product:
    """A linear layer or a convolution of rows ``[N, ...]``; autograd knows nothing of it."""

    def __init__(self, layer: Any, x: torch.Tensor, needs: Sequence[bool], need_x: bool = True) -> None:
        self.layer, self.shape, self.needs = layer, x.shape, needs
        self.is_usual = _is_usual(layer.weight, layer.bias)
        with torch.no_grad():
            self.events = _events(layer, x, learns_alone=needs[0] and not need_x)
        self._dense: Optional[torch.Tensor] = None
        self._own: List[torch.Tensor] = []

    @classmethod
    def of(cls, layer: Any, x: torch.Tensor) -> "Product":
        learns = torch.is_grad_enabled()
        return cls(layer, x, [learns and t is not None and t.requires_grad for t in (layer.weight, layer.bias)])

    def run(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if self.events is not None:
            with torch.no_grad():  # the layer's own weight, which may be packed already
                return self.events.forward(weight, bias)
        own = [None if t is None else t.detach().requires_grad_(need) for t, need in zip((weight, bias), self.needs)]
        with torch.enable_grad():
            self._dense = _dense(self.layer, x.detach(), own[0], own[1])
        self._own = [t for t in own if t is not None]
        return self._dense.detach()

    def of_input(self, grad: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Linear):
            return grad @ self.layer.weight
        layer = self.layer
        sizes = (layer.stride, layer.padding, layer.dilation, layer.groups)
        made: torch.Tensor = gradients.conv2d_input(self.shape, self.layer.weight, grad, *sizes)
        return made

    def of_own(self, grad: torch.Tensor, sums: Sequence[Sequence[torch.Tensor]] = ()) -> List[Optional[torch.Tensor]]:
        """Of weight and bias; None: not needed.

        ``sums``: of a linear layer, what is added: weighted sums of inputs ``[B, in]`` or of each output ``[B, 1, out,
        1, in]``, the sums of their weights, and the gradients of what the layer makes of them ``[B, out]``.
        """
        weight, bias = self._of_rows(grad)
        for inputs, ones, of_sum in sums:
            if weight is not None and inputs.dim() == 2:
                weight.addmm_(of_sum.t(), inputs)
            elif weight is not None:
                weight += torch.einsum("bo,bok->ok", of_sum, inputs[:, 0, :, 0])
            if bias is not None:
                bias += (of_sum * ones.reshape(-1, bias.numel()) if ones.dim() else of_sum * ones).sum(0)
        return [weight, bias]

    def _of_rows(self, grad: torch.Tensor) -> List[Optional[torch.Tensor]]:
        need_weight, need_bias = self.needs
        if self.events is not None and need_weight:
            weight, bias = self.events.backward(grad, self.layer.weight, need_bias)
            return [weight, bias if need_bias else None]
        if self.events is not None:
            return [None, grad.flatten(2).sum((0, 2)) if grad.dim() > 2 else grad.sum(0)] if need_bias else [None, None]
        wanted = [t for t in self._own if t.requires_grad]
        made = iter(torch.autograd.grad(self._dense, wanted, grad) if self._dense is not None and wanted else ())
        return [next(made) if need else None for need in self.needs]


def _is_usual(weight: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Return True if the kernels take weight and bias. PyTorch refuses or broadcasts any others."""
    if weight.is_neg():  # the memory of a lazily negated view holds the opposite signs
        return False
    if bias is None:
        return True
    like = bias.shape == weight.shape[:1] and bias.dtype == weight.dtype and bias.device == weight.device
    return like and not bias.is_neg()


def _events(layer: Any, x: torch.Tensor, learns_alone: bool) -> Optional[sparse_input.InputEvents]:
    weight, bias = layer.weight, layer.bias
    if isinstance(layer, nn.Linear):
        return sparse_input.linear_events(x, weight, bias)
    sizes = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return sparse_input.convolution_events(x, weight, bias, weight, *sizes, learns_alone=learns_alone)


def _dense(layer: Any, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight, bias)
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def has_product(module: nn.Module) -> bool:
    """Whether :class:`Product` is what the module computes."""
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


class Direction:
    """Which gradients a backward pass under autograd computes: PyTorch cannot tell it. And the first product."""

    down = False
    product: Optional[Product] = None


class _Product(torch.autograd.Function):
    """:class:`Product` with others behind it, under autograd."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        direction: Direction,
        layer: Any,
        is_first: bool,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
    ) -> torch.Tensor:
        ctx.direction, ctx.is_first = direction, is_first
        ctx.product = Product(layer, x, ctx.needs_input_grad[4:], ctx.needs_input_grad[3])
        if is_first:
            direction.product = ctx.product
        return ctx.product.run(x)

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        down = ctx.direction.down
        grad_x = ctx.product.of_input(grad) if down or not ctx.is_first else None
        return (None, None, None, grad_x, *([None, None] if down else ctx.product.of_own(grad)))


class _EventProduct(torch.autograd.Function):
    """:class:`_Product` of spikes, by the operators of event-driven layers."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        direction: Direction,
        operators: Operators,
        geometry: Any,
        x: SparseSpikes,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
    ) -> torch.Tensor:
        ctx.direction, ctx.operators, ctx.geometry = direction, operators, geometry
        ctx.save_for_backward(x.ids, values, x.counts, weight)
        given = CurrentsForward._make((x.ids, values, x.counts, weight, bias, geometry, None, None))
        made: torch.Tensor = operators.forward(given, weight, values, bias, x.ids, x.counts, None, None)
        return made

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        ids, values, counts, weight = ctx.saved_tensors
        down = ctx.direction.down
        need = [needed and place == (not down) for needed, place in zip(ctx.needs_input_grad[4:], (False, True, True))]
        given = CurrentsBackward._make(
            (grad.contiguous(), ids, values, counts, weight, ctx.geometry, *need, None, None)
        )
        made = ctx.operators.backward(given, weight, grad, values, ids, counts, None, None)
        return (None, None, None, None, *(g if needed else None for g, needed in zip(made, need)))


def of_spikes(layer: Any, x: SparseSpikes, direction: Direction) -> torch.Tensor:
    """A linear layer or a convolution of spikes: ``[T, B, ...]``."""
    if isinstance(layer, nn.Linear):
        weight = weight_argument("weight", layer.weight, x)
        bias = bias_argument(layer.bias, weight)
        return _EventProduct.apply(direction, LINEAR, None, x, x.values, weight, bias)
    weight = conv_weight_argument(layer.weight, x, layer.groups)
    bias = bias_argument(layer.bias, weight)
    sizes = conv_argument(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    made = _EventProduct.apply(direction, CONVOLUTION, as_list(sizes), x, x.values, weight, bias)
    return made.reshape(*made.shape[:2], *sizes.out_shape)  # type: ignore[no-any-return]


def under_autograd(direction: Direction, layer: Any, is_first: bool, x: torch.Tensor) -> torch.Tensor:
    """A module that :func:`has_product`, of rows."""
    made: torch.Tensor = _Product.apply(direction, layer, is_first, x, layer.weight, layer.bias)
    return made
