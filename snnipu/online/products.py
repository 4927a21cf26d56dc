"""Products with separate gradients of the input and of the parameters.

Online rules derive the two from different gradients of the result; autograd computes both from one.
"""

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
    """A linear layer or a convolution of rows ``[N, ...]``, outside autograd.

    Args:
        layer: the module.
        x: its input.
        needs: True for each of weight and bias that needs a gradient.
        need_x: True if the input needs a gradient.
    """

    def __init__(self, layer: Any, x: torch.Tensor, needs: Sequence[bool], need_x: bool = True) -> None:
        self.layer, self.shape, self.needs = layer, x.shape, needs
        self.is_usual = _is_usual(layer.weight, layer.bias)
        with torch.no_grad():
            self.events = _events(layer, x, learns_alone=needs[0] and not need_x)
        self._dense: Optional[torch.Tensor] = None
        self._operands: List[torch.Tensor] = []

    @classmethod
    def for_layer(cls, layer: Any, x: torch.Tensor) -> "Product":
        learns = torch.is_grad_enabled()
        return cls(layer, x, [learns and t is not None and t.requires_grad for t in (layer.weight, layer.bias)])

    def run(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if self.events is not None:
            with torch.no_grad():  # the layer's own weight tensor, for which a packed copy may be cached
                return self.events.forward(weight, bias)
        operands = [
            None if t is None else t.detach().requires_grad_(need) for t, need in zip((weight, bias), self.needs)
        ]
        with torch.enable_grad():
            self._dense = _dense(self.layer, x.detach(), operands[0], operands[1])
        self._operands = [t for t in operands if t is not None]
        return self._dense.detach()

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Linear):
            return grad @ self.layer.weight
        layer = self.layer
        sizes = (layer.stride, layer.padding, layer.dilation, layer.groups)
        gradient: torch.Tensor = gradients.conv2d_input(self.shape, self.layer.weight, grad, *sizes)
        return gradient

    def parameter_gradients(
        self, grad: torch.Tensor, sums: Sequence[Sequence[torch.Tensor]] = ()
    ) -> List[Optional[torch.Tensor]]:
        """Return the gradients of weight and bias; None for one that needs none.

        ``sums`` adds terms for a linear layer. A term has a weighted sum of inputs ``[B, in]``, or of each output ``[B,
        1, out, 1, in]``; the sum of the weights; and the gradient of the layer's output for it ``[B, out]``.
        """
        weight, bias = self._row_gradients(grad)
        for inputs, ones, of_sum in sums:
            if weight is not None and inputs.dim() == 2:
                weight.addmm_(of_sum.t(), inputs)
            elif weight is not None:
                weight += torch.einsum("bo,bok->ok", of_sum, inputs[:, 0, :, 0])
            if bias is not None:
                bias += (of_sum * ones.reshape(-1, bias.numel()) if ones.dim() else of_sum * ones).sum(0)
        return [weight, bias]

    def _row_gradients(self, grad: torch.Tensor) -> List[Optional[torch.Tensor]]:
        need_weight, need_bias = self.needs
        if self.events is not None and need_weight:
            weight, bias = self.events.backward(grad, self.layer.weight, need_bias)
            return [weight, bias if need_bias else None]
        if self.events is not None:
            return [None, grad.flatten(2).sum((0, 2)) if grad.dim() > 2 else grad.sum(0)] if need_bias else [None, None]
        learnable = [t for t in self._operands if t.requires_grad]
        grads = iter(torch.autograd.grad(self._dense, learnable, grad) if self._dense is not None and learnable else ())
        return [next(grads) if need else None for need in self.needs]


def _is_usual(weight: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Return True if the kernels support weight and bias. PyTorch rejects or broadcasts all others."""
    if weight.is_neg():  # a lazily negated view stores the opposite signs
        return False
    if bias is None:
        return True
    is_like_weight = bias.shape == weight.shape[:1] and bias.dtype == weight.dtype and bias.device == weight.device
    return is_like_weight and not bias.is_neg()


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
    """Return True if :class:`Product` computes the same as the module."""
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


class Direction:
    """The gradients that a backward pass through autograd must compute, and the first product.

    Autograd does not tell an autograd function which gradients are requested.
    """

    to_input = False
    product: Optional[Product] = None


class _ProductFunction(torch.autograd.Function):
    """The autograd function of a :class:`Product` that other modules follow."""

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
        down = ctx.direction.to_input
        grad_x = ctx.product.input_gradient(grad) if down or not ctx.is_first else None
        return (None, None, None, grad_x, *([None, None] if down else ctx.product.parameter_gradients(grad)))


class _EventProductFunction(torch.autograd.Function):
    """:class:`_ProductFunction` for spikes, by the operators of event-driven layers."""

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
        record = CurrentsForward._make((x.ids, values, x.counts, weight, bias, geometry, None, None))
        current: torch.Tensor = operators.forward(record, weight, values, bias, x.ids, x.counts, None, None)
        return current

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        ids, values, counts, weight = ctx.saved_tensors
        down = ctx.direction.to_input
        need = [needed and place == (not down) for needed, place in zip(ctx.needs_input_grad[4:], (False, True, True))]
        record = CurrentsBackward._make(
            (grad.contiguous(), ids, values, counts, weight, ctx.geometry, *need, None, None)
        )
        gradients = ctx.operators.backward(record, weight, grad, values, ids, counts, None, None)
        return (None, None, None, None, *(g if needed else None for g, needed in zip(gradients, need)))


def event_product(layer: Any, x: SparseSpikes, direction: Direction) -> torch.Tensor:
    """Apply a linear layer or a convolution to spikes: ``[T, B, ...]``."""
    if isinstance(layer, nn.Linear):
        weight = weight_argument("weight", layer.weight, x)
        bias = bias_argument(layer.bias, weight)
        return _EventProductFunction.apply(direction, LINEAR, None, x, x.values, weight, bias)
    weight = conv_weight_argument(layer.weight, x, layer.groups)
    bias = bias_argument(layer.bias, weight)
    sizes = conv_argument(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    current = _EventProductFunction.apply(direction, CONVOLUTION, as_list(sizes), x, x.values, weight, bias)
    return current.reshape(*current.shape[:2], *sizes.out_shape)  # type: ignore[no-any-return]


def product_with_autograd(direction: Direction, layer: Any, is_first: bool, x: torch.Tensor) -> torch.Tensor:
    """Apply a module for which :func:`has_product` is True to rows, under autograd."""
    current: torch.Tensor = _ProductFunction.apply(direction, layer, is_first, x, layer.weight, layer.bias)
    return current
