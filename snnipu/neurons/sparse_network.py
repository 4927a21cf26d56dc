"""``snnipu.SparseNetwork``: a stack of event-driven layers, fully connected or convolutional."""

import math
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from snnipu import ops
from snnipu._checks import check_int
from snnipu.backends import popart
from snnipu.neurons._hooks import is_plain
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.sparse_conv import ConvolutionalNeurons, SparseConvLeaky, SparsePool2d
from snnipu.neurons.sparse_leaky import Parameter, SparseLeaky
from snnipu.neurons.sparse_linear import check_path, choose_path
from snnipu.neurons.sparse_synaptic import SparseConvSynaptic, SparseSynaptic
from snnipu.ops._arguments import is_compiling, learnt_decay, reset_code
from snnipu.ops._break_even import CONVOLUTION_AND_POOL
from snnipu.ops._maps import reached
from snnipu.ops._slots import check_max_spikes, overflow_code
from snnipu.ops._spike_gradient import fused
from snnipu.spikes import DenseOrSparse, SparseSpikes, SpikeTotals
from snnipu.surrogate import SpikeGrad

if TYPE_CHECKING:
    from snnipu.planning.mapping import Plan

PerLayer = Union[Parameter, Sequence[Parameter]]
Part = Union[int, str, Tuple[int, int, int]]

# The suffix of a convolution or pool: a stride and a padding, in any order.
_BEHIND = r"(?=(?:.*S(?P<stride>\d+))?)(?=(?:.*P(?P<padding>\d+))?)(?:S\d+|P\d+|S\d+P\d+|P\d+S\d+)?"
_CONV = re.compile(rf"(\d+)C(\d+){_BEHIND}")
_POOL = re.compile(rf"([MAS])P(\d+){_BEHIND}")
_POOLS = {"M": "max", "A": "average", "S": "sum"}


class _ConvSpec(NamedTuple):
    in_shape: Tuple[int, int, int]
    out_shape: Tuple[int, int, int]
    kernel: int
    stride: int
    padding: int


class _LayerSpec(NamedTuple):
    """The description of a spiking layer: its convolution (None: fully connected), and the pools after it."""

    inputs: int
    neurons: int
    conv: Optional[_ConvSpec]
    pools: List[Tuple[str, int, int, int]]
    # The pools' output: a number of neurons, or channels, height and width.
    out: Union[int, Tuple[int, int, int]]


def _split_entries(sizes: Sequence[Any]) -> List[Any]:
    """Return the entries of a description, with strings split at their hyphens."""
    parts: List[Any] = []
    for entry in sizes:
        parts += entry.split("-") if isinstance(entry, str) else [entry]
    return parts


def _parse_sizes(sizes: Sequence[Any]) -> Tuple[int, List[_LayerSpec]]:
    """Return the neurons of the input, and the layers; raise if the description is invalid."""
    first, *others = _split_entries(sizes)
    shape: Union[int, Tuple[int, int, int]]
    if isinstance(first, (tuple, list)):
        if len(first) != 3:
            raise ValueError(f"sizes must begin with a number of neurons or (channels, height, width), got {first!r}")
        shape = (
            check_int("sizes", first[0]),
            check_int("sizes", first[1]),
            check_int("sizes", first[2]),
        )
    else:
        shape = check_int("sizes", first)
    inputs = shape if isinstance(shape, int) else math.prod(shape)
    layers: List[_LayerSpec] = []
    for part in others:
        text = part if isinstance(part, str) else ""
        conv, pool = _CONV.fullmatch(text), _POOL.fullmatch(text)
        if conv is None and pool is None:
            full = re.fullmatch(r"(?:FC)?(\d+)", text)
            if text and full is None:
                raise ValueError(
                    f"sizes: {text!r} is no layer: expected an entry such as '12C5', '32C3S2P1', 'MP2', 'FC10' or 10"
                )
            neurons = check_int("sizes", int(full[1]) if full is not None else part)
            before = shape if isinstance(shape, int) else math.prod(shape)
            shape = neurons
            layers.append(_LayerSpec(before, neurons, None, [], shape))
            continue
        if isinstance(shape, int):
            raise ValueError(
                f"sizes: {text!r} needs maps before it, (channels, height, width) or a layer of maps, got {shape}"
            )
        if pool is not None:
            kernel = int(pool[2])
            stride, padding = int(pool["stride"] or kernel), int(pool["padding"] or 0)
            if not layers:
                raise ValueError(f"sizes: {text!r} stands before the first layer: pool the input by a SparsePool2d")
            last = layers[-1]
            shape = (shape[0], *_window_output(text, shape, kernel, stride, padding))
            pools = [*last.pools, (_POOLS[pool[1]], kernel, stride, padding)]
            layers[-1] = last._replace(pools=pools, out=shape)
            continue
        assert conv is not None
        kernel, stride, padding = int(conv[2]), int(conv["stride"] or 1), int(conv["padding"] or 0)
        out = (check_int("sizes", int(conv[1])), *_window_output(text, shape, kernel, stride, padding))
        layers.append(
            _LayerSpec(math.prod(shape), math.prod(out), _ConvSpec(shape, out, kernel, stride, padding), [], out)
        )
        shape = out
    return inputs, layers


def _window_output(text: str, shape: Tuple[int, int, int], kernel: int, stride: int, padding: int) -> Tuple[int, int]:
    """Return height and width of the output of a window of this size."""
    if kernel < 1 or stride < 1:
        raise ValueError(f"sizes: {text!r} must have a window and a stride of at least 1")
    height, width = (reached(size, kernel, stride, padding) for size in shape[1:])
    if height < 1 or width < 1:
        raise ValueError(f"sizes: {text!r} does not fit into the maps before it, {shape[1]} x {shape[2]}")
    return height, width


def _pools_of(layer: _LayerSpec) -> Iterator[SparsePool2d]:
    """Yield the pools of a layer, with the sizes of their maps, so that the first call runs as all others do."""
    assert layer.conv is not None
    shape = layer.conv.out_shape
    for mode, kernel, stride, padding in layer.pools:
        pool = SparsePool2d(kernel, stride, padding, mode=mode, input_size=shape)
        yield pool
        shape = (shape[0], *_window_output(str(pool), shape, kernel, stride, padding))


class SparseNetwork(nn.Module):
    r"""Event-driven layers of leaky integrate-and-fire neurons, fully connected or convolutional.

    :class:`SparseLeaky` and :class:`SparseConvLeaky` define the equations of a layer. With ``delay=0`` a layer receives
    the spikes of the layer before in the same step. With ``delay=1`` it receives those of the step before, so that all
    layers of a step can run at once. The first layer receives the input of the same step in both cases.

    .. code-block:: python

        net = snn.SparseNetwork([2312, 1466, 1466, 10], beta=0.95, max_spikes=[64, 30, 30, 10], grad_threshold=0.9)
        out = net(x)                                 # x: SparseSpikes or a dense [T, B, 2312]
        loss = torch.nn.functional.cross_entropy(out.spike_count(), labels)
        net.activity, net.overflow                   # one number for each layer

    A network on maps begins with ``(channels, height, width)``. Strings describe its layers:

    .. code-block:: python

        net = snn.SparseNetwork([(2, 34, 34), "12C5", "MP2", "32C5", "MP2", 10], beta=0.95, grad_threshold=0.9)

    Args:
        sizes: the input and the layers, at least two entries. Input: a number of neurons, or ``(channels, height,
            width)``. Fully connected layer: ``10`` or ``"FC10"``. Convolution: ``"12C5"`` has 12 channels and kernels
            of 5 x 5; ``S2`` appends a stride, ``P1`` a padding. Pool: ``"MP2"``, ``"AP2"`` or ``"SP2"`` for maximum,
            average or sum, with ``S`` and ``P`` as before. One string may hold several entries with hyphens between:
            ``"12C5-MP2"``.
        beta: decay of the membrane per step, clamped to [0, 1]: a number for all layers, or one entry for each layer.
            An entry is a number, or a tensor of one element or one for each neuron (for each channel of a convolution).
        max_spikes: slots of a step, for spikes and gradient-only neurons together: None (as many as needed), an int for
            input and layers, or one entry for the input and for each layer. Pools have no entry.
        grad_threshold: second threshold, below ``threshold``: a neuron whose membrane is above it carries gradient.
            None (every neuron), a number for all layers, or one entry for each layer.
        delay: time steps between two layers, 0 or 1.
        threshold: membrane above which a neuron spikes; as ``beta``.
        reset_mechanism: change of the membrane in the step after a spike: ``"zero"`` sets it to 0, ``"subtract"``
            subtracts the threshold, ``"none"`` keeps it.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            of ``mem - threshold`` whose gradient is used. None: ``atan()``.
        bias: if True, each layer has a learnable bias.
        learn_beta: if True, ``beta`` of each layer is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` of each layer is an ``nn.Parameter``, otherwise a buffer.
        input_scale: factor of the weighted spikes, not 0; a number for all layers, or one entry for each layer.
        overflow: which neurons get a slot if there are too few: ``"lowest"`` ids first, or ``"rotate"``, where the
            first id moves with the time step. :func:`snnipu.ops.select_spikes` defines both.
        path: ``"sparse"``: products of spikes; ``"dense"``: one matrix product or convolution over all time steps;
            ``"auto"``: the faster one at the measured activity. See :class:`SparseLeaky`.
        max_delay: the longest delay of a synapse in time steps, in addition to ``delay``: None (no delays), a number
            for all layers, or one entry for each layer; None for convolutions. The delays are drawn uniformly from [0,
            ``max_delay``].
        learn_delay: if True, the delays of the synapses are learnt.
        neuron: ``"leaky"``, or ``"synaptic"``: the layers are :class:`SparseSynaptic` and :class:`SparseConvSynaptic`.
        alpha: decay of the synaptic current per step, with ``neuron="synaptic"``; as ``beta``.
        gradient: ``"surrogate"``, or ``"eventprop"`` with ``neuron="synaptic"``; see :class:`SparseSynaptic`.

    Attributes:
        sizes: neurons of the input and of each layer, without pools.
        layers: the :class:`SparseLeaky`, :class:`SparseConvLeaky`, :class:`SparseSynaptic` or
            :class:`SparseConvSynaptic` layers.
        pools: the pools after a layer, by the layer's number as a string; empty without pools.
        activity: mean spikes per neuron and step in the last forward pass, from 0 to 1, one float for each layer; None
            before the first.
        overflow: spikes without a slot in the last forward pass, one int for each layer; None before the first.
        input_activity, input_overflow: the same numbers of the input.
        ipu_plan: tiles of the layers on an IPU: a :class:`snnipu.ipu.Plan` of this network. None: the plan that
            :func:`snnipu.ipu.plan` makes if all slots are in use. The tiles change results by the order of additions.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(
        self,
        sizes: Sequence[Part],
        *,
        beta: PerLayer,
        max_spikes: Union[int, Sequence[Optional[int]], None] = None,
        grad_threshold: Union[float, Sequence[Optional[float]], None] = None,
        delay: int = 1,
        threshold: PerLayer = 1.0,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: Union[float, Sequence[float]] = 1.0,
        overflow: str = "lowest",
        path: str = "auto",
        max_delay: Union[int, Sequence[Optional[int]], None] = None,
        learn_delay: bool = True,
        neuron: str = "leaky",
        alpha: Optional[PerLayer] = None,
        gradient: str = "surrogate",
    ) -> None:
        super().__init__()
        if neuron not in ("leaky", "synaptic"):
            raise ValueError(f"neuron must be 'leaky' or 'synaptic', got {neuron!r}")
        if (alpha is None) != (neuron == "leaky"):
            raise ValueError(f"alpha must be {'None' if alpha is not None else 'given'} with neuron={neuron!r}")
        if gradient != "surrogate" and neuron == "leaky":
            raise ValueError(f"gradient must be 'surrogate' with neuron='leaky', got {gradient!r}")
        if isinstance(sizes, (str, int)) or not isinstance(sizes, Sequence):
            raise TypeError(f"sizes must be a sequence of ints, got {sizes!r}")
        if len(sizes) < 2:
            raise ValueError(f"sizes must have an entry for the input and one for each layer, got {list(sizes)}")
        inputs, described = _parse_sizes(sizes)
        self.description = [tuple(part) if isinstance(part, list) else part for part in sizes]
        self.sizes = [inputs, *(layer.neurons for layer in described)]
        if isinstance(delay, bool) or delay not in (0, 1):
            raise ValueError(f"delay must be 0 or 1, got {delay!r}")
        self.delay = int(delay)
        path = check_path(path)
        self.path = "sparse" if gradient == "eventprop" else path
        layers = len(self.sizes) - 1
        slots = _per_entry("max_spikes", max_spikes, layers + 1, "one for the input and for each layer")
        per_layer: Dict[str, Any] = {
            "beta": beta,
            "threshold": threshold,
            "grad_threshold": grad_threshold,
            "max_delay": max_delay,
            "input_scale": input_scale,
        }
        shared: Dict[str, Any] = {
            "reset_mechanism": reset_mechanism,
            "spike_grad": spike_grad,
            "bias": bias,
            "learn_beta": learn_beta,
            "learn_threshold": learn_threshold,
            "overflow": overflow,
            "path": path,
        }
        kinds: Any = SparseLeaky, SparseConvLeaky
        if neuron == "synaptic":
            kinds = SparseSynaptic, SparseConvSynaptic
            per_layer["alpha"], shared["gradient"] = alpha, gradient
        entries = {name: _per_entry(name, value, layers, "one for each layer") for name, value in per_layer.items()}
        entries["max_spikes"] = slots[1:]
        check_max_spikes(slots[0])
        self.max_input_spikes: Optional[int] = slots[0]
        self.overflow_order = overflow
        modules: List[nn.Module] = []
        for i, layer in enumerate(described):
            options = {**shared, **{name: values[i] for name, values in entries.items()}}
            conv = layer.conv
            if conv is None:
                modules.append(kinds[0](layer.inputs, layer.neurons, **options, learn_delay=learn_delay))
                continue
            if options.pop("max_delay") is not None:
                raise ValueError(
                    f"max_delay must be None for layer {i}, a convolution, which has no delays: give one entry for "
                    f"each layer, got {max_delay!r}"
                )
            ins, outs = conv.in_shape[0], conv.out_shape[0]
            sizes_of: Dict[str, Any] = {"stride": conv.stride, "padding": conv.padding, "input_size": conv.in_shape[1:]}
            modules.append(kinds[1](ins, outs, conv.kernel, **sizes_of, **options))
        self.layers: Sequence[Any] = nn.ModuleList(modules)  # type: ignore[assignment]
        pools = {str(i): nn.Sequential(*_pools_of(layer)) for i, layer in enumerate(described) if layer.pools}
        self.pools: Any = nn.ModuleDict(pools) if pools else {}
        self._input: Optional[SpikeTotals] = None
        self.ipu_plan: Optional[Plan] = None

    def forward(self, x: DenseOrSparse, *, all_layers: bool = False) -> Union[SparseSpikes, List[SparseSpikes]]:
        """Run all time steps of a batch through all layers.

        Args:
            x: SparseSpikes of ``sizes[0]`` neurons, or a dense ``[T, B, sizes[0]]`` of any real dtype. For a network on
                maps also ``[T, B, C, H, W]``.
            all_layers: if True, return the spikes of every layer, before its pools.

        Returns:
            SparseSpikes of the last layer, after its pools; with ``all_layers`` a list, one entry for each layer.

        Raises:
            TypeError, ValueError: wrong type, shape or device of ``x``; the message names it.
        """
        first = self._limited(x)
        self._input = first._totals() if isinstance(first, SparseSpikes) else None
        out: DenseOrSparse = first
        every: List[SparseSpikes] = []
        if isinstance(first, SparseSpikes) and self._runs_as_operator():
            every = self._on_ipu(first)
            return every if all_layers else every[-1]
        layers = [*self.layers]
        for index in range(len(layers)):
            out, spikes = self._run_layer(layers, index, out, self.delay if index else 0, all_layers)
            every += [] if spikes is None else [spikes]
        if all_layers:
            return every
        assert isinstance(out, SparseSpikes)
        return out

    def _run_layer(
        self, layers: List[Any], index: int, x: DenseOrSparse, delay: int, all_layers: bool
    ) -> Tuple[DenseOrSparse, Optional[SparseSpikes]]:
        """Run a layer and its pools; return their output, and the layer's spikes (None if one operator pools them)."""
        layer = layers[index]
        pool = None if all_layers or is_compiling() or popart.on_ipu() else self._fusable_pool(layers, index)
        if pool is not None:
            following = layers[index + 1] if index + 1 < len(layers) else None
            next_takes_maps = layer.grad_threshold is None and layer.path == getattr(following, "path", None) == "dense"
            x = layer.chosen(x, CONVOLUTION_AND_POOL)
            if isinstance(x, SparseSpikes):
                return layer.pooled_sparsely(x, pool, delay), None
            if next_takes_maps and x.numel():
                return layer.pooled_densely(x, pool, delay), None
        if isinstance(x, torch.Tensor) and index and not isinstance(layer, ConvolutionalNeurons):
            x = x.flatten(2)
        spikes: SparseSpikes = layer(x, delay=delay)
        return self.pooled(index, spikes), spikes

    def _fusable_pool(self, layers: List[Any], index: int) -> Optional[SparsePool2d]:
        """Return the pool that can run with its layer as one operator, or None."""
        layer, pools = layers[index], self._pools(index)
        if not isinstance(layer, SparseConvLeaky) or len(pools) != 1 or not is_plain(pools):
            return None
        return pools[0] if layer.pools_in_one(pools[0]) else None

    def _pools(self, index: int) -> Any:
        """Return the pools after a layer."""
        if str(index) in self.pools:
            return self.pools[str(index)]
        return ()

    def pooled(self, index: int, spikes: SparseSpikes) -> SparseSpikes:
        """Return the spikes of a layer after its pools."""
        pooled: SparseSpikes = self.pools[str(index)](spikes) if str(index) in self.pools else spikes
        return pooled

    def pooled_densely(self, index: int, spikes: torch.Tensor) -> torch.Tensor:
        """Return dense spikes ``[T, B, ...]`` of a layer after its pools, as ``[T, B, N]``."""
        maps = spikes.flatten(0, 1)
        for pool in self._pools(index):
            maps = pool.to_dense()(maps)
        return maps.unflatten(0, spikes.shape[:2]).flatten(2)

    @property
    def on_maps(self) -> bool:
        """True if a layer is convolutional."""
        return any(isinstance(layer, ConvolutionalNeurons) for layer in self.layers)

    def _runs_as_operator(self) -> bool:
        """Return True if the network runs as one PopART operator; otherwise each layer is an operator."""
        if self.on_maps or not (self.delay == 1 and popart.uses_operator("SparseNetwork", "SparseLinear")):
            return False
        # A layer with hooks or replaced methods must be called as a module.
        if not all(isinstance(layer, SparseLeaky) and is_plain(layer) for layer in self.layers):
            return False
        if any(layer.max_delay is not None for layer in self.layers):
            return False
        if not all(type(layer).forward is SparseLeaky.forward for layer in self.layers):
            return False
        same = {(layer.reset_mechanism, layer.overflow_order, layer.bias is None) for layer in self.layers}
        kernels = {fused(layer.spike_grad)[0] for layer in self.layers}
        return len(same) == len(kernels) == 1 and popart.has_operator("SparseNetwork")

    def _on_ipu(self, spikes: SparseSpikes) -> List[SparseSpikes]:
        """Run all layers as one operator."""
        first = self.layers[0]
        layers = [
            popart.NetworkLayer(
                layer.weight,
                learnt_decay(layer.beta.float()),
                layer.threshold,
                layer.bias,
                popart.static_slots(layer.max_spikes, layer.out_features),
                layer.grad_threshold,
                layer.input_scale,
                layer.recurrent_weight,
            )
            for layer in self.layers
        ]
        every = popart.call_sparse_network(
            spikes,
            layers,
            reset_code(first.reset_mechanism),
            overflow_code(first.overflow_order),
            fused(first.spike_grad)[0],
            None if self.ipu_plan is None else self.ipu_plan.attribute(),
        )
        for layer, layer_spikes in zip(self.layers, every):
            layer._last = layer_spikes._totals()
        return every

    def _limited(self, x: DenseOrSparse) -> DenseOrSparse:
        """Return the input in at most ``max_spikes[0]`` slots."""
        limit = self.max_input_spikes
        if isinstance(x, SparseSpikes):
            return x if limit is None or x.capacity <= limit else x.limit(limit, overflow=self.overflow_order)
        first = self.layers[0]
        if isinstance(first, ConvolutionalNeurons):
            if limit is None:
                return x
            if isinstance(x, torch.Tensor) and x.dim() == 5:
                x = x.flatten(2)
            if isinstance(x, torch.Tensor) and not (x.is_floating_point() or x.is_complex()):
                x = x.float()
            return ops.dense_to_sparse(x, limit, overflow=self.overflow_order)
        chosen = choose_path(x, first.weight, self.path if limit is None else "dense", first._measured)
        if limit is not None and isinstance(chosen, torch.Tensor):
            return ops.dense_to_sparse(chosen, limit, overflow=self.overflow_order)
        return chosen

    @property
    def activity(self) -> Optional[List[float]]:
        """Mean spikes per neuron and step of each layer in the last forward pass, 0 to 1; None before the first."""
        numbers = [layer.activity for layer in self.layers]
        return None if None in numbers else [float(each) for each in numbers if each is not None]

    @property
    def overflow(self) -> Optional[List[int]]:
        """Spikes of each layer without a slot in the last forward pass; None before the first."""
        numbers = [layer.overflow for layer in self.layers]
        return None if None in numbers else [int(each) for each in numbers if each is not None]

    @property
    def input_activity(self) -> Optional[float]:
        """Mean spikes per neuron and step of the last forward pass's input; None for a dense tensor."""
        return self._input.activity if self._input is not None and self._input.has_data else None

    @property
    def input_overflow(self) -> int:
        """Input spikes without a slot in the last forward pass: by ``max_spikes[0]``, or by the input's own count."""
        return self._input.overflow if self._input is not None and self._input.has_data else 0

    # ---- to and from a stack of nn.Linear + Leaky

    def dense_state_dict(self) -> Dict[str, torch.Tensor]:
        """Return the ``state_dict`` of the dense network ``MultiStep(nn.Linear, Leaky, nn.Linear, Leaky, ...)``."""
        return dict(MultiStep(*self._dense_modules()).state_dict())

    def _dense_places(self) -> List[int]:
        """Return the place of each layer's ``nn.Linear`` or ``nn.Conv2d`` among the dense network's modules."""
        places, at = [], 0
        for flattens, _, pools in self._dense_parts():
            places.append(at + flattens)
            at += flattens + 2 + len(pools)
        return places

    def _dense_parts(self) -> Iterator[Tuple[bool, Any, Any]]:
        """Yield for each layer: True if the dense network needs ``nn.Flatten`` before it, the layer, its pools."""
        maps_before = False
        for index, layer in enumerate(self.layers):
            on_maps = isinstance(layer, ConvolutionalNeurons)
            yield maps_before and not on_maps, layer, self._pools(index)
            maps_before = on_maps

    def load_dense_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Load the parameters of a dense network, the inverse of :meth:`dense_state_dict`.

        Args:
            state: the ``state_dict`` of ``MultiStep(nn.Linear, Leaky, ...)``, as of :meth:`to_dense`.

        Raises:
            ValueError: names or shapes do not fit; no parameter is then changed.
        """
        places = self._dense_places()
        known = {place + module for place in places for module in (0, 1)}
        unknown = sorted(name for name in state if _module_number(name) not in known)
        if unknown:
            numbers = f"0 to {max(known)}" if len(known) == max(known) + 1 else str(sorted(known))
            raise ValueError(f"state must have the modules {numbers}, got {unknown}")
        every = []
        for index, (first, layer) in enumerate(zip(places, self.layers)):
            part = {
                f"{_module_number(name) - first}.{name.partition('.')[2]}": value
                for name, value in state.items()
                if _module_number(name) in (first, first + 1)
            }
            try:
                every.append(layer._own_state(part))
            except ValueError as error:
                raise ValueError(f"layer {index}: {error}") from None
        # Change parameters only after the states of all layers have been checked.
        for layer, layer_state in zip(self.layers, every):
            layer._load_state(layer_state)

    def to_dense(self) -> MultiStep:
        """Return ``MultiStep(nn.Linear, Leaky, ...)`` with the same parameters.

        It computes the same if the slots suffice and every neuron carries gradient.

        Raises:
            ValueError: ``delay=1``: ``MultiStep`` passes spikes to the next layer within a step.
        """
        if self.delay and len(self.layers) > 1:
            raise ValueError("to_dense: MultiStep passes spikes on within a step, and this network has delay=1")
        return MultiStep(*self._dense_modules())

    def _dense_modules(self) -> List[nn.Module]:
        """Return the modules of the dense twin."""
        modules: List[nn.Module] = []
        for flattens, layer, pools in self._dense_parts():
            modules += [nn.Flatten()] if flattens else []
            modules += [*layer.to_dense(), *(pool.to_dense() for pool in pools)]
        return modules

    def extra_repr(self) -> str:
        return f"sizes={self.description}, delay={self.delay}"

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        state["_input"] = None
        return state


def _module_number(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isdigit() else -1


def _per_entry(name: str, value: Any, count: int, meaning: str) -> List[Any]:
    """Return ``count`` entries: ``value`` itself for each, or the entries of a list or tuple."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} must have {count} entries, {meaning}, got {len(value)}")
    return list(value)
