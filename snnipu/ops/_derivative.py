"""An error for second derivatives: backward passes that kernels compute cannot be differentiated."""

import functools
from typing import Any, Callable, Optional, Tuple

import torch

from snnipu.ops._arguments import is_compiling

Gradients = Any


class _Refusal(torch.autograd.Function):
    """The identity on gradients; differentiating it raises ``message``.

    ``anchor`` requires a gradient, so that autograd records this function. ``torch.autograd.grad`` skips functions that
    do not lead to its inputs, so ``upstream`` is an argument, too.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: torch.Tensor, message: str, upstream: int, *tensors: Optional[torch.Tensor]
    ) -> Tuple[Optional[torch.Tensor], ...]:
        ctx.message = message
        return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in tensors[upstream:])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(ctx.message)


_MESSAGE = (
    "a second derivative through snnipu's {} was asked for (create_graph=True), and there is none: its gradient comes "
    "from a kernel. Where one is needed, use PyTorch's own operations on dense tensors: torch.nn.Linear with "
    "snntorch.Leaky, or with snnipu.Leaky and a Python function as spike_grad, such as "
    "`lambda u: snnipu.surrogate.atan()(u)`"
)


def once_differentiable(operator: Optional[str]) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Decorate the backward pass of a fused ``operator``: a second derivative raises an error with its name.

    PyTorch's decorator of this name has no such message. It also treats a penalty on the gradient of a sum as a
    constant. ``operator`` None: the forward pass sets ``ctx.operator``.
    """

    def mark(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @functools.wraps(backward)
        def marked(ctx: Any, *upstream: Any) -> Gradients:
            if not torch.is_grad_enabled():
                return backward(ctx, *upstream)
            with torch.no_grad():
                gradients = backward(ctx, *upstream)
            # PyTorch itself raises an error for a second derivative of a compiled graph.
            if is_compiling():
                return gradients
            anchor = torch.zeros((), requires_grad=True)
            message = _MESSAGE.format(operator or ctx.operator)
            if isinstance(gradients, tuple):
                return _Refusal.apply(anchor, message, len(upstream), *upstream, *gradients)
            return _Refusal.apply(anchor, message, len(upstream), *upstream, gradients)[0]

        return marked

    return mark
