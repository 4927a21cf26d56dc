"""The modules in front of a neuron, as an online rule takes them: what they make of an input, and of its trace."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import _as_one_batch, is_random, is_stateless, runs_as_one_batch
from snnipu.online.events import DenseOrSparse, Events, dense, takes_spikes
from snnipu.online.products import Direction, Product, has_product, of_spikes, under_autograd
from snnipu.online.weights import LAYERS, is_computed
from snnipu.ops._arguments import is_autocast
from snnipu.ops.sparse_input import Slots
from snnipu.spikes import SparseSpikes

# Layers that take each number by itself.
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
# Layers that are the same linear function of the parameters and of the input at every step, up to a constant.
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


class Trace(NamedTuple):
    """Of one state and one of the neurons' inputs: the weighted sum of the steps' inputs, and that of ones."""

    inputs: torch.Tensor
    ones: torch.Tensor


class Made(NamedTuple):
    """What a body made of a chunk ``given``: ``out``, ``[T, B, ...]``.

    ``is_alone``: by one product, of which autograd knows nothing.
    """

    given: DenseOrSparse
    out: torch.Tensor
    direction: Direction
    is_alone: bool

    @property
    def slots(self) -> Optional[Slots]:
        """Of what of ``given`` is not zero; None: the first product has not made any."""
        product = self.direction.product
        return None if product is None or product.events is None else product.events.slots

    def of_leaf(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of what ``given`` was made of."""
        product, given = self.direction.product, self.given
        if self.is_alone and product is not None and isinstance(given, torch.Tensor):
            of_given = product.of_input(grad.flatten(0, 1)).reshape(given.shape)
            if given is leaf:
                return of_given
            return torch.autograd.grad(given, leaf, of_given, retain_graph=True)[0]
        self.direction.down = True
        try:
            return torch.autograd.grad(self.out, leaf, grad, retain_graph=True)[0]
        finally:
            self.direction.down = False


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
                        f"module {name} ({kind}) is in training, or has no running statistics: it mixes samples, which "
                        f"no online rule can treat; call .eval() on it, or leave it out"
                    )
                raise TypeError(f"module {name} ({kind}) cannot learn online: {why_not(module)}")
        for name, module in self.body if history else ():
            if not _is_affine(module):
                raise TypeError(
                    f"module {name} ({type(module).__name__}) stands between weights and their neurons, and is not the "
                    f'same linear function at every step: rule "{rule}" cannot carry traces through it; put it in '
                    'front of the weights, without parameters of its own, or take rule "sltt"'
                )

    def check_linear(self) -> None:
        """Raise for a module of the head whose derivative differs from step to step: e-prop cannot carry it."""
        for name, module in self.head:
            if not _is_affine(module):
                raise TypeError(
                    f"module {name} ({type(module).__name__}) stands between neurons and the next weights, and is not "
                    'the same linear function at every step: rule "eprop" cannot carry through it what its readout '
                    "remembers; take low_pass=False, or leave it out"
                )

    def of_input(self, u: DenseOrSparse) -> DenseOrSparse:
        """What the body gets: ``[T, B, ...]``, or spikes."""
        for named in self.head:
            if takes_spikes(named[1]):
                u = named[1](u)
            else:
                u = run_steps(named, u.to_dense() if isinstance(u, SparseSpikes) else u)
        if self.events is not None:
            return self.events.received(u)
        return u.to_dense() if isinstance(u, SparseSpikes) else u

    def of_body(self, given: DenseOrSparse) -> Made:
        direction, u, is_alone = Direction(), given, False
        for place, (name, module) in enumerate(self.body):
            if isinstance(u, SparseSpikes):
                u = of_spikes(module, u, direction)
            elif _is_product(module, u):
                is_alone = len(self.body) == 1
                rows, steps = u.flatten(0, 1), u.shape[:2]
                if is_alone:
                    direction.product = Product.of(module, rows)
                    u = direction.product.run(rows).unflatten(0, steps)
                else:
                    u = under_autograd(direction, module, not place, rows).unflatten(0, steps)
            else:
                u = module.sequence(u) if isinstance(module, DelayLinear) else run_steps((name, module), u)
                continue
            self.own_shape = self.own_shape if place else tuple(u.shape[2:])
        assert isinstance(u, torch.Tensor)
        return Made(given, u, direction, is_alone)

    def of_own(
        self,
        made: Made,
        grad: torch.Tensor,
        carried: Sequence[Tuple[Trace, torch.Tensor]],
        constant: Optional[torch.Tensor],
        parameters: Sequence[nn.Parameter],
    ) -> List[Optional[torch.Tensor]]:
        """The gradients of ``parameters``: by that of the chunk's result, and of ``carried`` traces by theirs.

        ``constant``: what steps of zeros get; traces have no part in the body's constant then. None: they have.
        """
        product = made.direction.product if made.is_alone else None
        pairs = [] if product is not None else [(made.out, grad)]
        # A linear layer's own gradients of traces are products, too.
        is_linear = product is not None and type(product.layer) is nn.Linear and constant is None and product.is_usual
        with torch.enable_grad():
            if constant is not None:
                pairs.append((self.of_zeros(made.given), constant))
            for trace, of_state in [] if is_linear else carried:
                ones = trace.ones if constant is None else torch.zeros_like(trace.ones)
                of_trace = self.of_own_traces if trace.ones.dim() else self.of_trace
                pairs.append((of_trace(trace.inputs, ones).reshape(of_state.shape), of_state))
        pairs = [(out, of_out) for out, of_out in pairs if out.requires_grad]
        found: List[Optional[torch.Tensor]] = [None] * len(parameters)
        if pairs:
            outputs, grads = [out for out, _ in pairs], [of_out for _, of_out in pairs]
            found = list(torch.autograd.grad(outputs, parameters, grads, allow_unused=True))
        if product is None:
            return found
        own = product.of_own(grad.flatten(0, 1), [(*pair[0], pair[1]) for pair in carried if is_linear])
        of_product = {id(product.layer.weight): own[0], id(product.layer.bias): own[1]}
        for place, parameter in enumerate(parameters):
            of_chunk, other = of_product.get(id(parameter)), found[place]
            found[place] = of_chunk if other is None else other if of_chunk is None else of_chunk.add_(other)
        return found

    # ---- traces

    def of_trace(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """Weighted steps of what the body makes, from the inputs' weighted sum ``[B, ...]`` and the weights' sum."""
        return affine(self.body, trace, ones)

    def of_zeros(self, u: DenseOrSparse) -> torch.Tensor:
        """What the body makes of one step of zeros: its constant ``[B, ...]``."""
        rows = torch.zeros_like(dense(u[:1]))
        for named in self.body:
            rows = run_steps(named, rows)
        return rows[0]

    def check_own(self, rule: str, advice: str) -> None:
        """Raise if the body is not one for which each weight of each neuron can have a trace."""
        if not self.body:
            return
        (name, first), rest = self.body[0], self.body[1:]
        if type(first) is nn.Linear or (has_product(first) and type(first) is nn.Conv2d):
            found = next((named for named in rest if type(named[1]) not in _BY_NUMBER), None)
            if found is None:
                return
            name, first = found
        raise TypeError(
            f'module {name} ({type(first).__name__}): rule "{rule}" needs a trace for each weight and neuron, and '
            f"has them for a linear layer or a Conv2d with normalisation, flattening or dropout behind it; {advice}"
        )

    def check_rows(self, rule: str, u: DenseOrSparse, advice: str) -> None:
        """Raise if steps ``u`` have too many dimensions for a trace of each weight of each neuron."""
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
        """What each neuron's weights see of steps: ``[T, B, groups, weights, places]``."""
        m: Any = self.body[0][1]
        if isinstance(m, nn.Linear):
            return u.reshape(*u.shape[:2], 1, u.shape[2], 1)
        made = F.unfold(u.flatten(0, 1), m.kernel_size, m.dilation, m.padding, m.stride)
        return made.reshape(*u.shape[:2], m.groups, made.shape[1] // m.groups, made.shape[2])

    def of_own_traces(self, trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        """As :meth:`of_trace` where every neuron has its own: ``[B, groups, outputs, places, weights]``."""
        m: Any = self.body[0][1]
        weight = m.weight.reshape(trace.shape[1], trace.shape[2], -1)
        made = torch.einsum("bgopk,gok->bgop", trace, weight)
        if m.bias is not None:
            made = made + ones * m.bias.expand(m.weight.shape[0]).reshape(*trace.shape[1:3], 1)
        shape = (made.shape[0], *self.own_shape)
        return affine(self.body[1:], made.reshape(shape), ones.reshape(shape))


def affine(modules: Sequence[Named], trace: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """An affine function of a weighted sum ``[B, ...]``, its constant by the sum of the weights: ``f(u) + (ones - 1)
    f(0)``. ``ones`` is one for all, for each sample or for each of the results."""
    if not modules:
        return trace
    rows = torch.cat([trace, trace.new_zeros(1, *trace.shape[1:])]).unsqueeze(0)
    for named in modules:
        rows = run_steps(named, rows)
    made, constant = rows[0].split([trace.shape[0], 1])
    if ones.dim():
        ones = ones.reshape(made.shape if ones.numel() == made.numel() else (-1, *[1] * (made.dim() - 1)))
    return made + (ones - 1) * constant


def _is_affine(module: nn.Module) -> bool:
    """Return True if the module is the same linear function at every step, up to a constant."""
    return type(module) in _AFFINE and is_stateless(module)


def _is_product(module: nn.Module, u: torch.Tensor) -> bool:
    return (
        has_product(module)
        and runs_as_one_batch(module, u.dim() - 1)
        and (type(module) is not nn.Linear or u.dim() == 3)
        and not is_autocast(u.device.type)  # the operands are casts, which autograd has to know of
    )


def why_not(module: nn.Module) -> str:
    """Return the reason why no rule takes a module, and what to do."""
    if is_computed(module):
        return (
            "its weights are computed at each call, which only PyTorch's linear layers and convolutions may do; make "
            "it a plain layer, for example by torch.nn.utils.parametrize.remove_parametrizations"
        )
    if hasattr(module, "to_dense"):
        return "take its to_dense(), which leaves out zeros, too"
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
    # A module must not change a tensor that the backward pass reads.
    return _as_one_batch(module, x.clone() if getattr(module, "inplace", False) else x)
