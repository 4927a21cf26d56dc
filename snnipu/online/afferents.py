"""The modules in front of a neuron, as an online rule takes them: what they make of an input, and of its trace."""

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn import grad as gradients

from snnipu.neurons._hooks import is_plain
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import _as_one_batch, is_random, is_stateless, runs_as_one_batch
from snnipu.online.events import DenseOrSparse, Events, dense, takes_spikes
from snnipu.ops import sparse_input
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._maps import as_list
from snnipu.ops._sparse_currents import Currents, CurrentsBackward, CurrentsForward
from snnipu.ops.sparse_conv2d import OPERATORS as CONVOLUTION
from snnipu.ops.sparse_conv2d import conv_argument, conv_weight_argument
from snnipu.ops.sparse_linear import OPERATORS as LINEAR
from snnipu.ops.sparse_linear import bias_argument, weight_argument
from snnipu.spikes import SparseSpikes

# The same linear function of the parameters and of the input at every step, up to a constant.
_AFFINE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
    nn.ZeroPad2d,
    nn.PixelShuffle,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)
# Of these, those that take each number by itself.
_BY_NUMBER = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)
Named = Tuple[str, nn.Module]


class Direction:
    """Which gradients a product's backward pass computes: PyTorch cannot tell it. And the slots of the first one."""

    down = False
    slots: Optional[sparse_input.Slots] = None


class _Product(torch.autograd.Function):
    """A linear layer or a convolution that computes either the gradient of its input or those of its own."""

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
        ctx.direction, ctx.layer, ctx.is_first, ctx.shape, ctx.weight = direction, layer, is_first, x.shape, weight
        with torch.enable_grad():
            own = [
                None if t is None else t.detach().requires_grad_(need)
                for t, need in zip((weight, bias), ctx.needs_input_grad[4:])
            ]
            ctx.own, ctx.out = own, _product(layer, x.detach(), *own)
        if is_first:
            direction.slots = sparse_input.slots_of(ctx.out)
        return ctx.out.detach()

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        grad_x = None
        if ctx.direction.down or not ctx.is_first:
            grad_x = _of_input(ctx.layer, ctx.shape, ctx.weight, grad)
        own: List[Any] = [None, None]
        if not ctx.direction.down:
            wanted = [t for t in ctx.own if t is not None and t.requires_grad]
            made = iter(torch.autograd.grad(ctx.out, wanted, grad) if wanted else ())
            own = [next(made) if t is not None and t.requires_grad else None for t in ctx.own]
        return (None, None, None, grad_x, *own)


def _of_input(layer: Any, shape: torch.Size, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, nn.Linear):
        return grad @ weight
    made: torch.Tensor = gradients.conv2d_input(
        shape, weight, grad, layer.stride, layer.padding, layer.dilation, layer.groups
    )
    return made


def _product(layer: Any, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    if isinstance(layer, nn.Linear):
        return sparse_input.linear(x, weight, bias)
    return sparse_input.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _has_own_product(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


class _OfTrace(torch.autograd.Function):
    """A linear layer of a trace: nobody reads the result, its gradients alone are computed."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, trace: torch.Tensor, ones: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(trace, ones)
        return trace.new_zeros(()).expand(*trace.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        trace, ones = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        weight = rows.t() @ trace.reshape(-1, trace.shape[-1]) if ctx.needs_input_grad[2] else None
        return None, None, weight, ones * rows.sum(0) if ctx.needs_input_grad[3] else None


class _EventProduct(torch.autograd.Function):
    """:class:`_Product` of spikes, by the operators of event-driven layers."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        direction: Direction,
        operators: Currents,
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


def _of_spikes(layer: Any, x: SparseSpikes, direction: Direction) -> torch.Tensor:
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


class Afferents:
    """``modules`` in turn, of all steps as one batch: ``head``, without parameters, and ``body``, from the first on.

    The first of the body may be an event-driven layer: its linear map, which takes spikes.
    """

    def __init__(self, modules: Sequence[Named]) -> None:
        first = next((i for i, (_, m) in enumerate(modules) if any(True for _ in m.parameters())), len(modules))
        self.head, self.body = list(modules[:first]), list(modules[first:])
        self.events: Optional[Events] = None
        if self.body and isinstance(self.body[0][1], Events):
            self.events = self.body[0][1]
            self.body[0] = (self.body[0][0], self.events.linear)
        # Of a step of what the first of the body makes, without the batch.
        self.own_shape: Tuple[int, ...] = ()

    def parameters(self) -> List[nn.Parameter]:
        return [p for _, module in self.body for p in module.parameters() if p.requires_grad]

    @property
    def delays(self) -> int:
        """Earlier steps of its input that the body takes."""
        return max([m.max_delay for _, m in self.body if isinstance(m, DelayLinear)], default=0)

    def check(self, rule: str, history: bool, is_first: bool) -> None:
        """Raise for what the rule cannot treat, by name; with ``history`` it takes traces."""
        for name, module in (*self.head, *self.body):
            if isinstance(module, Events):
                raise TypeError(
                    f"module {name} ({type(module.layer).__name__}) stands behind other weights without neurons "
                    "between: spikes are what it reads"
                )
            kind = type(module).__name__
            if takes_spikes(module) and any(module is other for _, other in self.head):
                continue
            if type(module) is DelayLinear and is_plain(module):
                if history:
                    raise TypeError(
                        f'module {name} ({kind}): rule "{rule}" has no traces of inputs that arrive later; take "sltt"'
                    )
                if not is_first or module is not self.body[0][1]:
                    raise TypeError(
                        f"module {name} ({kind}) sends errors back to earlier steps, which online rules leave out: it "
                        "can only stand before all other layers with parameters"
                    )
                continue
            if not (is_stateless(module) or is_random(module)):
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    raise ValueError(
                        f"module {name} ({kind}) is in training: it mixes samples, which no online rule can treat; "
                        f"call .eval() on it, or leave it out"
                    )
                raise TypeError(
                    f"module {name} ({kind}) cannot learn online: neurons of snnipu and PyTorch's stateless modules can"
                    f"{dense_twin(module)}"
                )
        for name, module in self.body if history else ():
            if type(module) in _AFFINE and is_stateless(module):
                continue
            raise TypeError(
                f"module {name} ({type(module).__name__}) stands between weights and their neurons, and is not the "
                f'same linear function at every step: rule "{rule}" cannot carry traces through it; put it in front '
                'of the weights, or take rule "sltt"'
            )

    def of_input(self, u: DenseOrSparse) -> DenseOrSparse:
        """What the body gets: ``[T, B, ...]``, or spikes."""
        for _, module in self.head:
            if takes_spikes(module):
                u = module(u)
            else:
                u = _steps(module, u.to_dense() if isinstance(u, SparseSpikes) else u)
        if self.events is not None:
            return self.events.received(u)
        return u.to_dense() if isinstance(u, SparseSpikes) else u

    def of_body(self, u: DenseOrSparse, direction: Optional[Direction] = None) -> torch.Tensor:
        for place, (_, module) in enumerate(self.body):
            m: Any = module
            if isinstance(u, SparseSpikes):
                u = _of_spikes(m, u, Direction() if direction is None else direction)
                self.own_shape = tuple(u.shape[2:])
                continue
            if direction is not None and _has_own_product(module) and runs_as_one_batch(module, u.dim() - 1):
                rows = u.flatten(0, 1)
                if not isinstance(module, nn.Linear) or rows.dim() == 2:
                    made = _Product.apply(direction, module, not place, rows, m.weight, m.bias)
                    u = made.unflatten(0, u.shape[:2])
                    self.own_shape = self.own_shape if place else tuple(u.shape[2:])
                    continue
            u = module.sequence(u) if isinstance(module, DelayLinear) else _steps(module, u)
        assert isinstance(u, torch.Tensor)
        return u

    # ---- traces

    def of_trace(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Weighted steps of what the body makes, from the inputs' weighted sum ``[B, ...]`` and the weights' sum."""
        only: Any = self.body[0][1] if len(self.body) == 1 else None
        if type(only) is nn.Linear:
            return _OfTrace.apply(trace, ones, only.weight, only.bias)
        return _affine(self.body, trace, ones)

    def of_zeros(self, u: DenseOrSparse) -> torch.Tensor:
        """What the body makes of one step of zeros: its constant ``[B, ...]``."""
        return self.of_body(torch.zeros_like(dense(u[:1])))[0]

    def check_own(self, rule: str) -> None:
        """Raise where the neurons' traces are not those of their inputs and the body is too much for them."""
        if not self.body:
            return
        (name, first), rest = self.body[0], self.body[1:]
        if type(first) is nn.Linear or (_has_own_product(first) and type(first) is nn.Conv2d):
            found = next((named for named in rest if type(named[1]) not in _BY_NUMBER), None)
            if found is None:
                return
            name, first = found
        raise TypeError(
            f'module {name} ({type(first).__name__}): rule "{rule}" needs a trace for each weight and neuron, and '
            "has them for a linear layer or a Conv2d with normalisation, flattening or dropout behind it"
        )

    def patches(self, u: torch.Tensor) -> torch.Tensor:
        """What each neuron's weights see of steps: ``[T, B, groups, weights, places]``."""
        m: Any = self.body[0][1]
        if isinstance(m, nn.Linear):
            return u.reshape(*u.shape[:2], 1, -1, 1)
        made = F.unfold(u.flatten(0, 1), m.kernel_size, m.dilation, m.padding, m.stride)
        return made.reshape(*u.shape[:2], m.groups, -1, made.shape[-1])

    def of_own_traces(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """As :meth:`of_trace` where every neuron has its own: ``[B, groups, outputs, places, weights]``."""
        m: Any = self.body[0][1]
        weight = m.weight.reshape(trace.shape[1], trace.shape[2], -1)
        made = torch.einsum("bgopk,gok->bgop", trace, weight)
        if m.bias is not None:
            made = made + ones * m.bias.reshape(*trace.shape[1:3], 1)
        shape = (made.shape[0], *self.own_shape)
        return _affine(self.body[1:], made.reshape(shape), ones.reshape(shape))


def _affine(modules: Sequence[Named], trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """An affine function of a weighted sum, its constant by the sum of the weights: ``f(u) + (ones - 1) f(0)``."""
    if not modules:
        return trace
    zeros = torch.zeros_like(trace if ones.dim() else trace[:1])
    rows = torch.cat([trace, zeros]).unsqueeze(0)
    for _, module in modules:
        rows = _steps(module, rows)
    made, constant = rows[0].split([trace.shape[0], zeros.shape[0]])
    return made + ((ones.reshape(constant.shape) if ones.dim() else ones) - 1) * constant


def dense_twin(module: nn.Module) -> str:
    """Of an event-driven module, what an error says to take instead."""
    return "; its to_dense() can, and leaves out zeros, too" if hasattr(module, "to_dense") else ""


def _steps(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if not runs_as_one_batch(module, x.dim() - 1):
        raise ValueError(f"{type(module).__name__} does not take steps of shape {tuple(x.shape[1:])}")
    return _as_one_batch(module, x)
