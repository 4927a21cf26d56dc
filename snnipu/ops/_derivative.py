"""An error for second derivatives: backward passes that kernels compute cannot be differentiated."""

import functools
from typing import Any, Callable, Optional, Tuple

import torch

from snnipu.ops._arguments import is_compiling

Gradients = Any


class _Refusal(torch.autograd.Function):
    """The identity on gradients; differentiating it raises ``message``.

    ``anchor`` requires a gradient, so that autograd records this function. ``torch.autograd.grad`` skips functions that
    do not lead to its inputs, so the first ``read`` of the tensors are those on which the gradients depend.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: torch.Tensor, message: str, read: int, *tensors: Optional[torch.Tensor]
    ) -> Tuple[Optional[torch.Tensor], ...]:
        ctx.message = message
        return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in tensors[read:])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(ctx.message)


class _ReadOnce:
    """A context whose saved tensors are read at most once, as ``torch.utils.checkpoint`` demands."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @functools.cached_property
    def saved_tensors(self) -> Tuple[Optional[torch.Tensor], ...]:
        tensors: Tuple[Optional[torch.Tensor], ...] = self._ctx.saved_tensors
        return tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


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
            context = _ReadOnce(ctx)
            with torch.no_grad():
                gradients = backward(context, *upstream)
            # PyTorch itself raises an error for a second derivative of a compiled graph.
            if is_compiling():
                return gradients
            anchor = torch.zeros((), requires_grad=True)
            message = _MESSAGE.format(operator or ctx.operator)
            read = (*upstream, *vars(context).get("saved_tensors", ()))
            if isinstance(gradients, tuple):
                return _Refusal.apply(anchor, message, len(read), *read, *gradients)
            return _Refusal.apply(anchor, message, len(read), *read, gradients)[0]

        return marked

    return mark
