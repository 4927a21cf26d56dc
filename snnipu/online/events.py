"""Event-driven layers as online rules use them: a linear map of spikes, neurons, and the selection of spikes."""

from typing import Any, Iterator, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from snnipu.neurons._hooks import is_plain
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.fused import FusedNeuron
from snnipu.neurons.multistep import _flat_modules
from snnipu.neurons.sparse_conv import ConvolutionalNeurons, SparseConv2d, SparseConvLeaky, SparsePool2d
from snnipu.neurons.sparse_leaky import SparseLeaky, SparseNeurons
from snnipu.neurons.sparse_linear import SparseLinear, choose_path
from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.neurons.sparse_synaptic import SparseConvSynaptic, SparseSynaptic
from snnipu.neurons.zoo import RLeaky
from snnipu.ops._arguments import compute_dtype
from snnipu.ops._break_even import convolution_share
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._slots import scatter
from snnipu.ops.sparse_input import Slots
from snnipu.spikes import SparseSpikes, SpikeTotals

DenseOrSparse = Union[torch.Tensor, SparseSpikes]
Named = Tuple[str, Any]
_NEURONS = (SparseLeaky, SparseSynaptic, SparseConvLeaky, SparseConvSynaptic)
_MAPS = (SparseLinear, SparseConv2d)
# Attributes of an event-driven layer that its linear map and its neurons copy.
_OPTIONS = (
    "spike_grad",
    "reset_mechanism",
    *("in_features", "out_features", "max_delay", "kernel", "sigma"),
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
)
# Rules that send errors only to neurons with a slot.
RULES = ("sltt", "ottt")


def modules_in_order(net: nn.Module) -> Iterator[Named]:
    """Yield the names and modules of ``net``, with event-driven networks replaced by their modules."""
    if isinstance(net, SparseNetwork):
        yield from _network_modules(net, "")
        return
    for name, module in _flat_modules(net):
        if isinstance(module, SparseNetwork):
            yield from _network_modules(module, f"{name}.")
        else:
            yield name, module


def _network_modules(net: SparseNetwork, prefix: str) -> Iterator[Named]:
    network_name = prefix[:-1] or type(net).__name__
    if type(net) is not SparseNetwork or not is_plain(net):
        raise TypeError(
            f"module {network_name} ({type(net).__name__}) cannot learn online: it has hooks, or is a subclass"
        )
    if net.delay and len(net.layers) > 1:
        raise ValueError(
            f"module {network_name}: with delay=1 layers send errors back to earlier steps, which online rules leave "
            "out; use delay=0"
        )
    if net.max_input_spikes is not None:
        _check_order(network_name, net.max_input_spikes, net.overflow_order)
        yield f"{prefix}max_spikes", InputSlots(net)
    for index, layer in enumerate(net.layers):
        yield f"{prefix}layers.{index}", layer
        pools = net.pools[str(index)] if str(index) in net.pools else ()  # noqa: SIM401 - a ModuleDict has no get
        for number, pool in enumerate(pools):
            yield f"{prefix}pools.{index}.{number}", pool


def _check_order(name: str, slots: Optional[int], overflow: str) -> None:
    if slots is not None and overflow == "rotate":
        raise ValueError(
            f'module {name}: with overflow="rotate" the selected spikes depend on the division into chunks; use '
            '"lowest"'
        )


class InputSlots(nn.Module):
    """The limit of a network's input to its slots, ``max_spikes[0]``."""

    def __init__(self, net: SparseNetwork) -> None:
        super().__init__()
        self._net = (net,)  # in a tuple, so that it is not a submodule

    def forward(self, x: DenseOrSparse) -> DenseOrSparse:
        return self._net[0]._limited(x)


def takes_spikes(module: nn.Module) -> bool:
    """Return True if the module maps spikes to spikes in front of an event-driven layer."""
    return type(module) in (SparsePool2d, InputSlots) and is_plain(module)


def is_event_driven(module: nn.Module) -> bool:
    """Return True if :class:`EventLayer` supports the module."""
    return type(module) in (*_NEURONS, *_MAPS)


class EventLayer:
    """An event-driven layer split into its linear map and its neurons, which share its parameters."""

    def __init__(self, name: str, layer: Any, rule: str) -> None:
        kind = type(layer).__name__
        self.layer, self.name = layer, name
        # True if a dense input is the output of another layer, all of whose neurons need a gradient.
        self.has_layer_below = False
        if rule not in RULES:
            raise TypeError(
                f'module {name} ({kind}): rule "{rule}" gives errors to neurons without a slot; event-driven layers '
                f"use {' or '.join(map(repr, RULES))}, and to_dense() makes a layer for all rules"
            )
        if getattr(layer, "gradient", "surrogate") != "surrogate":
            raise ValueError(f'module {name} ({kind}): online rules need gradient="surrogate", got {layer.gradient!r}')
        if not is_plain(layer):
            raise TypeError(f"module {name} ({kind}) cannot learn online: it has hooks or a forward of its own")
        self._built_identity = self._identity()
        # A view of a learnable parameter belongs to the graph of one call.
        self._has_views = False
        with torch.random.fork_rng(devices=()):  # their random initial weights are replaced
            self.linear = self._linear()
            self.neuron = self._neuron() if isinstance(layer, SparseNeurons) else None

    def _identity(self) -> Sequence[Any]:
        """Return the identity of the layer's tensors and the values of its options."""
        layer: Any = self.layer
        tensors = [*layer.parameters(), *layer.buffers()]
        views = [(id(t), t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tensors]
        return [views, *(layer.__dict__.get(name) for name in _OPTIONS)]

    def matches(self, layer: Any) -> bool:
        """Return True if this split is valid for ``layer``: the same parameters and options."""
        return (
            layer is self.layer and is_plain(layer) and not self._has_views and self._identity() == self._built_identity
        )

    @property
    def is_map(self) -> bool:
        return isinstance(self.layer, (SparseConv2d, ConvolutionalNeurons))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters of the linear map."""
        return self.linear.parameters()

    def _linear(self) -> nn.Module:
        """Return the linear map of spikes, as a PyTorch module or a :class:`DelayLinear`."""
        layer: Any = self.layer
        linear: Any
        if self.is_map:
            sizes = (layer.in_channels, layer.out_channels, layer.kernel_size)
            geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
            linear = nn.Conv2d(*sizes, *geometry, bias=False, device="meta")
        elif getattr(layer, "max_delay", None) is not None:
            learns = isinstance(layer.delay, nn.Parameter)
            kernel = {"kernel": layer.kernel, "sigma": layer.sigma}
            linear = DelayLinear(
                layer.in_features, layer.out_features, layer.max_delay, delay=0.0, learn_delay=learns, **kernel
            )
            linear.delay = layer.delay
        else:
            linear = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        # Shared parameters, not copies.
        linear.weight, linear.bias = layer.weight, layer.bias
        return linear  # type: ignore[no-any-return]

    def _neuron(self) -> FusedNeuron:
        layer: Any = self.layer
        values = layer._parameter_values()
        neuron: Any
        options = {"spike_grad": layer.spike_grad, "reset_mechanism": layer.reset_mechanism}
        recurrent = getattr(layer, "recurrent_weight", None)
        if recurrent is None:
            neuron = layer.neuron(**dict.fromkeys(values, 0.5), **options)
        else:
            if not isinstance(layer, SparseLeaky):
                raise ValueError(
                    f"module {self.name} ({type(layer).__name__}): of recurrent event-driven layers, SparseLeaky alone "
                    "learns online"
                )
            if layer.max_spikes is not None or layer.input_scale != 1:
                raise ValueError(
                    f"module {self.name} ({type(layer).__name__}): a recurrent layer learns online without max_spikes "
                    "and input_scale"
                )
            if layer.reset_mechanism == "zero":  # RLeaky's reset to zero also clears the current of the step.
                raise ValueError(
                    f"module {self.name} ({type(layer).__name__}): a recurrent layer whose membrane is reset to zero "
                    'cannot learn online; use reset_mechanism="subtract" or "none"'
                )
            neuron = RLeaky(**dict.fromkeys(values, 0.5), **options, linear_features=layer.out_features)
            neuron.recurrent = nn.Linear(layer.out_features, layer.out_features, bias=False, device="meta")
            neuron.recurrent.weight = recurrent
        for name, value in values.items():
            neuron._parameters.pop(name, None)
            neuron._buffers.pop(name, None)
            spread = layer._per_neuron(value)
            if isinstance(spread, nn.Parameter):
                neuron.register_parameter(name, spread)
            else:
                neuron.register_buffer(name, spread)
                self._has_views = self._has_views or value.requires_grad
        return neuron  # type: ignore[no-any-return]

    def check(self) -> None:
        if self.neuron is not None:
            _check_order(self.name, self.layer.max_spikes, self.layer.overflow_order)

    # ---- input

    def prepare_input(self, x: DenseOrSparse) -> DenseOrSparse:
        """Return the input in the form, dense or sparse, that the layer's product reads."""
        layer: Any = self.layer
        if self.has_layer_below and isinstance(x, torch.Tensor) and x.requires_grad:
            x = x if self.is_map else x.flatten(2)
        elif isinstance(layer, SparseConv2d):
            x = layer.chosen(x, convolution_share(layer.out_channels // layer.groups))
        elif isinstance(layer, ConvolutionalNeurons):
            x = layer.chosen(x)
        elif isinstance(self.linear, DelayLinear):
            x = x.to_dense() if isinstance(x, SparseSpikes) else x
        else:
            x = x.with_maps(None) if isinstance(x, SparseSpikes) else x.flatten(2) if x.dim() > 3 else x
            x = choose_path(x, layer.weight, layer.path, layer._measured)
        scale, dtype = getattr(layer, "input_scale", 1.0), layer.weight.dtype
        if isinstance(x, SparseSpikes):
            values = x.values.to(compute_dtype(dtype))
            return with_values(x, values if scale == 1 else values * scale)
        x = x.to(dtype)
        return x if scale == 1 else x * scale

    # ---- output

    def select_output(self, spk: torch.Tensor, states: Sequence[torch.Tensor], as_spikes: bool) -> DenseOrSparse:
        """Return the spikes that have a slot, and the slots of neurons near their threshold for the gradient.

        The result is dense if every neuron has a slot, unless ``as_spikes``.
        """
        layer: Any = self.layer
        if not as_spikes and layer.max_spikes is None and layer.grad_threshold is None:
            counts = torch.count_nonzero(spk.detach().flatten(2), 2).int()[..., None].expand(-1, -1, 2)
            layer._last = SpikeTotals(counts, spk.shape[2:].numel(), None)
            return spk
        with torch.no_grad():
            chosen = layer.selected(states[-1].detach())
        layer._last = chosen._totals()
        return with_values(chosen, _SelectedValues.apply(spk, chosen)) if spk.requires_grad else chosen


class _SelectedValues(torch.autograd.Function):
    """The values of selected spikes; their gradient goes to the dense spikes."""

    @staticmethod
    def forward(ctx: Any, spk: torch.Tensor, chosen: SparseSpikes) -> torch.Tensor:  # type: ignore[override]
        ctx.shape = spk.shape
        ctx.save_for_backward(chosen.ids, chosen.counts)
        return chosen.values

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        ids, counts = ctx.saved_tensors
        return scatter(grad, ids, counts, ctx.shape[2:].numel()).reshape(ctx.shape), None


def with_values(x: SparseSpikes, values: torch.Tensor) -> SparseSpikes:
    """Return the spikes with other values."""
    return SparseSpikes._trusted(x.ids, values, x.counts, x.num_neurons, x.dropped, x.outside, x.map_shape)


def dense_steps(x: DenseOrSparse) -> torch.Tensor:
    """Return steps as a tensor ``[T, B, ...]``; maps keep their dimensions."""
    if isinstance(x, torch.Tensor):
        return x
    dense = x.to_dense()
    return dense if x.map_shape is None else dense.unflatten(2, x.map_shape)


def spikes_of_slots(slots: Slots, x: torch.Tensor) -> SparseSpikes:
    """Return steps ``x`` ``[T, B, ...]`` as spikes, from the slots of its rows ``[T * B, ...]``."""
    ids, values, counts = (part.reshape(*x.shape[:2], -1) for part in slots)
    maps = (x.shape[2], x.shape[3], x.shape[4]) if x.dim() == 5 else None
    return SparseSpikes._trusted(ids, values, counts, x.shape[2:].numel(), map_shape=maps)


def weighted_sum(weights: torch.Tensor, x: DenseOrSparse) -> torch.Tensor:
    """Return the sum of the steps, each times its weight: ``[B, ...]``."""
    if isinstance(x, torch.Tensor):
        return (weights @ x.flatten(1)).reshape(x.shape[1:])
    total = with_values(x, x.values * weights.to(x.dtype)[:, None, None]).spike_count()
    return total.reshape(total.shape[0], *(x.map_shape or (x.num_neurons,)))


def make_leaf(x: DenseOrSparse, learns: bool) -> Tuple[torch.Tensor, DenseOrSparse]:
    """Return the differentiable values of the input as a leaf, and the input that contains the leaf."""
    values = x.values if isinstance(x, SparseSpikes) else x
    leaf = values.detach().requires_grad_(learns and values.requires_grad)
    return leaf, with_values(x, leaf) if isinstance(x, SparseSpikes) else leaf
