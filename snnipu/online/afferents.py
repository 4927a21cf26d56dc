"""The modules before a neuron, as an online rule uses them: their output, its gradients, and their map of a trace."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from snnipu.neurons._computed_weights import LAYERS, is_computed
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import _as_one_batch, is_random, is_stateless, runs_as_one_batch
from snnipu.online.events import DenseOrSparse, EventLayer, dense_steps, takes_spikes
from snnipu.online.products import Direction, Product, event_product, has_product, product_with_autograd
from snnipu.ops._arguments import is_autocast
from snnipu.ops.sparse_input import Slots
from snnipu.spikes import SparseSpikes

# Elementwise modules and modules that only change the shape.
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
# Modules that are the same affine function of the input at every step.
_AFFINE = (
    *LAYERS,
    *_BY_NUMBER,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.ZeroPad2d,
    nn.PixelShuffle,
    nn.Upsample,
)
Named = Tuple[str, nn.Module]


class WeightTrace(NamedTuple):
    """The trace of one state for one of the neuron's inputs: weighted sums over time of the inputs, and of ones."""

    inputs: torch.Tensor
    ones: torch.Tensor


class BodyOutput(NamedTuple):
    """The output ``out`` ``[T, B, ...]`` of a body for ``inputs``.

    ``is_alone``: True if the body is a single product, computed without autograd.
    """

    inputs: DenseOrSparse
    out: torch.Tensor
    direction: Direction
    is_alone: bool

    @property
    def slots(self) -> Optional[Slots]:
        """The slots of the nonzero inputs of the first product; None if it was computed densely."""
        product = self.direction.product
        return None if product is None or product.events is None else product.events.slots

    def leaf_gradient(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Return the gradient of ``leaf``, from which ``inputs`` was computed."""
        product, inputs = self.direction.product, self.inputs
        if self.is_alone and product is not None and isinstance(inputs, torch.Tensor):
            grad_inputs = product.input_gradient(grad.flatten(0, 1)).reshape(inputs.shape)
            if inputs is leaf:
                return grad_inputs
            return torch.autograd.grad(inputs, leaf, grad_inputs, retain_graph=True)[0]
        self.direction.to_input = True
        try:
            return torch.autograd.grad(self.out, leaf, grad, retain_graph=True)[0]
        finally:
            self.direction.to_input = False


class Afferents:
    """The modules before a neuron, run on all steps as one batch.

    ``head`` are the modules before the first one with parameters, ``body`` the others. If the body begins with an
    event-driven layer, its linear map reads spikes.
    """

    def __init__(self, modules: Sequence[Named]) -> None:
        first = next((i for i, (_, m) in enumerate(modules) if any(True for _ in m.parameters())), len(modules))
        self.head, self.body = list(modules[:first]), list(modules[first:])
        self.events: Optional[EventLayer] = None
        if self.body and isinstance(self.body[0][1], EventLayer):
            self.events = self.body[0][1]
            self.body[0] = (self.body[0][0], self.events.linear)
        # Shape of a step of the first body module's output, without the batch.
        self.first_shape: Tuple[int, ...] = ()

    def parameters(self) -> List[nn.Parameter]:
        return [p for _, module in self.body for p in module.parameters() if p.requires_grad]

    @property
    def delays(self) -> int:
        """The longest delay of the body's input, in steps."""
        return max([m.max_delay for _, m in self.body if isinstance(m, DelayLinear)], default=0)

    def check(self, rule: str, history: bool, is_first: bool) -> None:
        """Check that the rule supports the modules.

        Args:
            rule: name of the rule.
            history: True if the rule has traces.
            is_first: True for the modules of the first layer.

        Raises:
            TypeError, ValueError: an unsupported module, by name.
        """
        for name, module in (*self.head, *self.body):
            if isinstance(module, EventLayer):
                raise TypeError(
                    f"module {name} ({type(module.layer).__name__}) follows other weights without neurons in between, "
                    "but reads spikes: put a neuron in front of it"
                )
            kind = type(module).__name__
            if takes_spikes(module) and any(module is other for _, other in self.head):
                continue
            if type(module) is DelayLinear and is_plain(module):
                if history:
                    raise TypeError(
                        f'module {name} ({kind}): rule "{rule}" has no traces of inputs that arrive later; use "sltt"'
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
                        f"module {name} ({kind}) is in training, or has no running statistics: it mixes samples, which "
                        f"no online rule can treat; call .eval() on it, or leave it out"
                    )
                raise TypeError(f"module {name} ({kind}) cannot learn online: {unsupported_reason(module)}")
        for name, module in self.body if history else ():
            if not _is_affine(module):
                raise TypeError(
                    f"module {name} ({type(module).__name__}) stands between weights and their neurons, and is not the "
                    f'same linear function at every step: rule "{rule}" cannot carry traces through it; put it in '
                    'front of the weights, without parameters of its own, or use rule "sltt"'
                )

    def check_linear(self) -> None:
        """Check that the derivative of the head is the same at every step, so that e-prop can send errors back."""
        for name, module in self.head:
            if not _is_affine(module):
                raise TypeError(
                    f"module {name} ({type(module).__name__}) stands between neurons and the next weights, and is not "
                    'the same linear function at every step: rule "eprop" cannot carry through it what its readout '
                    "remembers; use low_pass=False, or leave it out"
                )

    def run_head(self, u: DenseOrSparse) -> DenseOrSparse:
        """Return the input of the body: ``[T, B, ...]`` or spikes."""
        for named in self.head:
            if takes_spikes(named[1]):
                u = named[1](u)
            else:
                u = run_steps(named, u.to_dense() if isinstance(u, SparseSpikes) else u)
        if self.events is not None:
            return self.events.prepare_input(u)
        return u.to_dense() if isinstance(u, SparseSpikes) else u

    def run_body(self, inputs: DenseOrSparse) -> BodyOutput:
        direction, u, is_alone = Direction(), inputs, False
        for place, (name, module) in enumerate(self.body):
            if isinstance(u, SparseSpikes):
                u = event_product(module, u, direction)
            elif _is_product(module, u):
                is_alone = len(self.body) == 1
                rows, steps = u.flatten(0, 1), u.shape[:2]
                if is_alone:
                    direction.product = Product.for_layer(module, rows)
                    u = direction.product.run(rows).unflatten(0, steps)
                else:
                    u = product_with_autograd(direction, module, not place, rows).unflatten(0, steps)
            else:
                u = module.sequence(u) if isinstance(module, DelayLinear) else run_steps((name, module), u)
                continue
            self.first_shape = self.first_shape if place else tuple(u.shape[2:])
        assert isinstance(u, torch.Tensor)
        return BodyOutput(inputs, u, direction, is_alone)

    def parameter_gradients(
        self,
        output: BodyOutput,
        grad: torch.Tensor,
        carried: Sequence[Tuple[WeightTrace, torch.Tensor]],
        constant: Optional[torch.Tensor],
        parameters: Sequence[nn.Parameter],
    ) -> List[Optional[torch.Tensor]]:
        """Return the gradients of ``parameters``.

        Args:
            output: the body's output for the chunk.
            grad: its gradient.
            carried: traces from before the chunk, each with the gradient of its state.
            constant: gradient of the body's output for zeros; traces then exclude the bias. None: they include it.
            parameters: the body's parameters.
        """
        product = output.direction.product if output.is_alone else None
        pairs = [] if product is not None else [(output.out, grad)]
        # Gradients of a linear layer through its traces are matrix products, too: no autograd.
        is_linear = product is not None and type(product.layer) is nn.Linear and constant is None and product.is_usual
        with torch.enable_grad():
            if constant is not None:
                pairs.append((self.body_constant(output.inputs), constant))
            for trace, of_state in [] if is_linear else carried:
                ones = trace.ones if constant is None else torch.zeros_like(trace.ones)
                run_body_on_trace = self.run_body_on_weight_traces if trace.ones.dim() else self.run_body_on_trace
                pairs.append((run_body_on_trace(trace.inputs, ones).reshape(of_state.shape), of_state))
        pairs = [(out, grad_out) for out, grad_out in pairs if out.requires_grad]
        gradients: List[Optional[torch.Tensor]] = [None] * len(parameters)
        if pairs:
            outputs, grads = [out for out, _ in pairs], [grad_out for _, grad_out in pairs]
            gradients = list(torch.autograd.grad(outputs, parameters, grads, allow_unused=True))
        if product is None:
            return gradients
        product_gradients = product.parameter_gradients(grad.flatten(0, 1), [(*t, g) for t, g in carried if is_linear])
        of_product = {id(product.layer.weight): product_gradients[0], id(product.layer.bias): product_gradients[1]}
        for place, parameter in enumerate(parameters):
            chunk_grad, other = of_product.get(id(parameter)), gradients[place]
            gradients[place] = chunk_grad if other is None else other if chunk_grad is None else chunk_grad.add_(other)
        return gradients

    # ---- traces

    def run_body_on_trace(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Apply the body to a trace: weighted sum of the inputs ``[B, ...]`` and sum of the weights."""
        return apply_affine(self.body, trace, ones)

    def body_constant(self, u: DenseOrSparse) -> torch.Tensor:
        """Return the body's output for one step of zeros ``[B, ...]``."""
        rows = torch.zeros_like(dense_steps(u[:1]))
        for named in self.body:
            rows = run_steps(named, rows)
        return rows[0]

    def check_weight_traces(self, rule: str, advice: str) -> None:
        """Check that the body supports a trace for each weight and neuron."""
        if not self.body:
            return
        (name, first), others = self.body[0], self.body[1:]
        if type(first) is nn.Linear or (has_product(first) and type(first) is nn.Conv2d):
            unsupported = next((named for named in others if type(named[1]) not in _BY_NUMBER), None)
            if unsupported is None:
                return
            name, first = unsupported
        raise TypeError(
            f'module {name} ({type(first).__name__}): rule "{rule}" needs a trace for each weight and neuron, and '
            f"has them for a linear layer or a Conv2d with normalisation, flattening or dropout after it; {advice}"
        )

    def check_rows(self, rule: str, u: DenseOrSparse, advice: str) -> None:
        """Check that steps ``u`` have the dimensions that a trace for each weight and neuron needs."""
        if not self.body or not isinstance(u, torch.Tensor) or u.dim() == 3:
            return
        name, first = self.body[0]
        if type(first) is nn.Linear:
            raise ValueError(
                f'module {name} (Linear): rule "{rule}" needs a trace for each weight and neuron, and has them for '
                f"steps of shape [B, {first.in_features}], not {tuple(u.shape[1:])}; put nn.Flatten() in front of it, "
                f"or {advice}"
            )

    def patches(self, u: torch.Tensor) -> torch.Tensor:
        """Return the inputs of each neuron's weights: ``[T, B, groups, weights, positions]``."""
        m: Any = self.body[0][1]
        if isinstance(m, nn.Linear):
            return u.reshape(*u.shape[:2], 1, u.shape[2], 1)
        columns = F.unfold(u.flatten(0, 1), m.kernel_size, m.dilation, m.padding, m.stride)
        return columns.reshape(*u.shape[:2], m.groups, columns.shape[1] // m.groups, columns.shape[2])

    def run_body_on_weight_traces(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Apply the body to traces for each weight and neuron: ``[B, groups, outputs, positions, weights]``."""
        m: Any = self.body[0][1]
        weight = m.weight.reshape(trace.shape[1], trace.shape[2], -1)
        current = torch.einsum("bgopk,gok->bgop", trace, weight)
        if m.bias is not None:
            current = current + ones * m.bias.expand(m.weight.shape[0]).reshape(*trace.shape[1:3], 1)
        shape = (current.shape[0], *self.first_shape)
        return apply_affine(self.body[1:], current.reshape(shape), ones.reshape(shape))


def apply_affine(modules: Sequence[Named], trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """Apply an affine function f to a weighted sum of steps ``[B, ...]``: ``f(trace) + (ones - 1) f(0)``.

    ``ones`` is the sum of the weights: a scalar, one for each sample, or one for each result.
    """
    if not modules:
        return trace
    rows = torch.cat([trace, trace.new_zeros(1, *trace.shape[1:])]).unsqueeze(0)
    for named in modules:
        rows = run_steps(named, rows)
    weighted, constant = rows[0].split([trace.shape[0], 1])
    if ones.dim():
        ones = ones.reshape(weighted.shape if ones.numel() == weighted.numel() else (-1, *[1] * (weighted.dim() - 1)))
    return weighted + (ones - 1) * constant


def _is_affine(module: nn.Module) -> bool:
    """Return True if the module is the same affine function at every step."""
    return type(module) in _AFFINE and is_stateless(module)


def _is_product(module: nn.Module, u: torch.Tensor) -> bool:
    return (
        has_product(module)
        and runs_as_one_batch(module, u.dim() - 1)
        and (type(module) is not nn.Linear or u.dim() == 3)
        and not is_autocast(u.device.type)  # autograd must differentiate the casts of the operands
    )


def unsupported_reason(module: nn.Module) -> str:
    """Return the reason why no rule supports the module, and a remedy."""
    if is_computed(module):
        return (
            "its weights are computed at each call, which only PyTorch's linear layers and convolutions may do; make "
            "it a plain layer, for example by torch.nn.utils.parametrize.remove_parametrizations"
        )
    if hasattr(module, "to_dense"):
        return "use its to_dense(), which skips zeros as well"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "it has no weights yet; run the network once"
    if is_hooked(module):
        return "it has hooks, or there are hooks for all modules; remove them"
    return (
        "only neurons of snnipu and those modules of PyTorch that MultiStep runs as one batch can; replace it, or move "
        "it in front of the network"
    )


def run_steps(named: Named, x: torch.Tensor) -> torch.Tensor:
    """Run a module on steps ``[T, B, ...]``."""
    name, module = named
    if not runs_as_one_batch(module, x.dim() - 1):
        raise ValueError(
            f"module {name} ({type(module).__name__}) does not take steps of shape {tuple(x.shape[1:])}, [B, ...]"
        )
    # An in-place module must not change a tensor that the backward pass reads.
    return _as_one_batch(module, x.clone() if getattr(module, "inplace", False) else x)
