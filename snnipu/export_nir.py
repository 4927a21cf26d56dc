"""Networks as graphs of the Neuromorphic Intermediate Representation (NIR, https://neuroir.org): ``export_to_nir``."""

import warnings
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np
import snntorch
import torch
from torch import nn

from snnipu._extras import LEAST_NIR, require
from snnipu.import_nir import DEFAULT_DT
from snnipu.neurons._hooks import is_hooked
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import MultiStep, _in_turn
from snnipu.neurons.nir_nodes import Integrator, Scale, Threshold, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay

Shape = Tuple[int, ...]
_NEURON_PARTS = ("forward", "fire", "mem_reset", "state_function", "_base_state_function", "_base_sub", "_base_zero")
# What keeps something from step to step, and gives a step of its input's shape.
_KEEP_STATE = (snntorch.SpikingNeuron, Integrator, SynapticDelay)
_TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class _Part(NamedTuple):
    """What a module is in the graph: nodes, the edges between them, and the names of the first and the last."""

    nodes: Dict[str, Any]
    edges: List[Tuple[str, str]]
    first: str
    last: str


class _Call(NamedTuple):
    """A module's call, without the batch's dimension."""

    name: str
    module: nn.Module
    shape: Shape
    out_shape: Shape


def _array(value: torch.Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


def _spread(value: Any, shape: Shape) -> np.ndarray:
    """A parameter for each neuron, in float64: time constants made of it give it back."""
    array = np.asarray(_array(value) if isinstance(value, torch.Tensor) else value, dtype=np.float64)
    return np.broadcast_to(array, shape).copy()


def _typed(node: Any, shape: Shape, out_shape: Shape) -> Any:
    """The node with both of its shapes: nir infers not all of them."""
    node.input_type = {"input": np.array(shape, dtype=np.int64)}
    node.output_type = {"output": np.array(out_shape, dtype=np.int64)}
    return node


class _Writer:
    """Makes nodes of modules."""

    def __init__(self, nir: Any, dt: float) -> None:
        self.nir = nir
        self.dt = dt
        self.other_resets: List[str] = []  # neurons whose reset is not NIR's

    def part(self, call: _Call) -> _Part:
        module, name = call.module, call.name
        if isinstance(module, (snntorch.SpikingNeuron, Integrator)):
            return self._neuron(call)
        if type(module) is DelayLinear:
            return self._delay_linear(call, module)
        node = self._stateless(call)
        return _Part({name: _typed(node, call.shape, call.out_shape)}, [], name, name)

    def _stateless(self, call: _Call) -> Any:
        nir, module, kind = self.nir, call.module, type(call.module)
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            if len(call.shape) != 1:
                raise self._refused(call, f"NIR's Linear takes steps of one dimension, got {call.shape}")
            weight = _array(module.weight)
            return nir.Linear(weight) if module.bias is None else nir.Affine(weight, _array(module.bias))
        if isinstance(module, (nn.Conv1d, nn.Conv2d)) and kind in (nn.Conv1d, nn.Conv2d):
            return self._convolution(call, module)
        if isinstance(module, nn.AvgPool2d) and kind is nn.AvgPool2d:
            padded = any(_pair(module.padding))
            if (
                module.ceil_mode
                or (padded and not module.count_include_pad)
                or module.divisor_override not in (None, 1)
            ):
                raise self._refused(call, "with ceil_mode, count_include_pad=False or a divisor of its own")
            sizes = [np.array(_pair(value)) for value in (module.kernel_size, module.stride, module.padding)]
            return (nir.AvgPool2d if module.divisor_override is None else nir.SumPool2d)(*sizes)
        if isinstance(module, nn.LPPool2d) and kind is nn.LPPool2d and module.norm_type == 1 and not module.ceil_mode:
            stride = module.kernel_size if module.stride is None else module.stride
            return nir.SumPool2d(np.array(_pair(module.kernel_size)), np.array(_pair(stride)), np.array((0, 0)))
        if isinstance(module, nn.Flatten) and kind is nn.Flatten:
            dims = len(call.shape) + 1
            start, end = module.start_dim % dims, module.end_dim % dims
            if start == 0:
                raise self._refused(call, "start_dim=0 flattens the batch, which NIR does not have")
            return nir.Flatten(np.array(call.shape), start - 1, -1 if end == dims - 1 else end - 1)
        if isinstance(module, Scale):
            return nir.Scale(_spread(module.scale, call.shape))
        if isinstance(module, Threshold):
            return nir.Threshold(_spread(module.threshold, call.shape))
        if type(module) is SynapticDelay:
            return self._delay(call, module, call.shape)
        raise self._refused(call, "NIR has no node for it")

    def _delay(self, call: _Call, module: Union[SynapticDelay, DelayLinear], shape: Shape) -> Any:
        """The Delay of ``shape``."""
        if module.kernel != "linear":
            raise self._refused(call, f"kernel {module.kernel!r}; NIR's Delay is of one time")
        if module.delay.numel() not in (1, *shape[:1]):
            raise self._refused(call, f"it is of {module.delay.numel()} channels, and its input has the shape {shape}")
        delay = module.delay.detach().clamp(0, module.max_delay).reshape(-1, *[1] * (len(shape) - 1))
        node = self.nir.Delay(_spread(delay, shape) * self.dt)
        node.metadata = {"snnipu_max_delay": module.max_delay}
        return _typed(node, shape, shape)

    def _delay_linear(self, call: _Call, module: DelayLinear) -> _Part:
        """Delays of the inputs stand in front of the weights, those of the outputs behind them."""
        sizes = tuple(module.delay.shape) if module.delay.numel() > 1 else (1, 1)
        if len(call.shape) != 1 or 1 not in sizes:
            raise self._refused(
                call, "NIR's Delay is of a channel, not of a synapse: delay must be of each input, or of each output"
            )
        weight, bias = _array(module.weight), None if module.bias is None else _array(module.bias)
        by_input = sizes[0] == 1
        has_own_bias = bias is not None and not by_input  # a bias is not delayed
        weighted = self.nir.Linear(weight) if bias is None or has_own_bias else self.nir.Affine(weight, bias)
        nodes = {
            f"{call.name}.delay": self._delay(call, module, call.shape if by_input else call.out_shape),
            f"{call.name}.weight": _typed(weighted, call.shape, call.out_shape),
        }
        names = list(nodes) if by_input else list(nodes)[::-1]
        if has_own_bias:
            names.append(f"{call.name}.bias")
            own = self.nir.Affine(np.eye(module.out_features, dtype=weight.dtype), bias)
            nodes[names[-1]] = _typed(own, call.out_shape, call.out_shape)
        return _Part({name: nodes[name] for name in names}, list(zip(names, names[1:])), names[0], names[-1])

    def _convolution(self, call: _Call, module: Any) -> Any:
        dims = module.weight.dim() - 2
        if module.padding_mode != "zeros":
            raise self._refused(call, f"padding_mode {module.padding_mode!r}; NIR pads with zeros")
        bias = np.zeros(module.out_channels, np.float32) if module.bias is None else _array(module.bias)
        sizes = [value if isinstance(value, str) else tuple(value) for value in (
            module.stride, module.padding, module.dilation)]  # fmt: skip
        if dims == 1:
            sizes = [value if isinstance(value, str) else value[0] for value in sizes]
        stride, padding, dilation = sizes
        kind = self.nir.Conv1d if dims == 1 else self.nir.Conv2d
        node = kind(None, _array(module.weight), stride, padding, dilation, module.groups, bias)
        node.input_shape = call.shape[1] if dims == 1 else tuple(call.shape[1:])
        return node

    def _neuron(self, call: _Call) -> _Part:
        module: Any = call.module
        if isinstance(module, Integrator):
            return self._single(call, self._integrator(call, module.neuron, _spread(module.v_leak, call.shape)))
        self._check_neuron(call)
        recurrent = isinstance(module, (snntorch.RLeaky, snntorch.RSynaptic))
        threshold = _spread(module.threshold, call.shape)
        if module.reset_mechanism == "none":
            if recurrent:
                raise self._refused(call, "reset_mechanism='none' of a recurrent neuron")
            first, last = call.name + ".membrane", call.name + ".threshold"
            nodes = {
                first: self._integrator(call, module, np.zeros(call.shape)),
                last: self.nir.Threshold(threshold),
            }
            return self._finish(call, _Part(nodes, [(first, last)], first, last))
        node = self._spiking(call, threshold)
        at_once = getattr(module, "resets_at_once", not module.reset_delay)
        if module.reset_mechanism != "zero" or not at_once:
            self.other_resets.append(call.name)
            node.metadata = {
                "snnipu_reset_mechanism": module.reset_mechanism,
                "snnipu_reset_delay": not at_once,
            }
        if not recurrent:
            return self._single(call, node)
        name, weights = call.name + ".lif", call.name + ".w_rec"
        nodes = {name: node, weights: self._weights(call)}
        return self._finish(call, _Part(nodes, [(name, weights), (weights, name)], name, name))

    def _single(self, call: _Call, node: Any) -> _Part:
        return self._finish(call, _Part({call.name: node}, [], call.name, call.name))

    def _finish(self, call: _Call, part: _Part) -> _Part:
        """Spikes of another size, where the neuron has such, and the nodes' shapes."""
        factor = getattr(call.module, "graded_spikes_factor", None)
        if factor is not None and bool((factor != 1).any()):
            if part.edges and part.first == part.last:
                raise self._refused(call, "graded_spikes_factor of a recurrent neuron")
            last = call.name + ".graded"
            nodes = {**part.nodes, last: self.nir.Scale(_spread(factor, call.shape))}
            part = _Part(nodes, [*part.edges, (part.last, last)], part.first, last)
        for node in part.nodes.values():
            _typed(node, call.shape, call.shape)
        return part

    def _check_neuron(self, call: _Call) -> None:
        module: Any = call.module
        if not isinstance(module, (snntorch.Leaky, snntorch.Synaptic, snntorch.RLeaky, snntorch.RSynaptic)):
            raise self._refused(call, "NIR has no node for it")
        for own in type(module).__mro__:
            if own.__module__.split(".")[0] in ("snntorch", "snnipu", "torch"):
                break
            for part in _NEURON_PARTS:
                if part in vars(own):
                    raise self._refused(call, f"{own.__name__} has its own {part}")
        replaced = [part for part in _NEURON_PARTS if part in module.__dict__ and part != "state_function"]
        replaced += getattr(module, "_replaced", list)()
        if replaced:
            raise self._refused(call, f"its {replaced[0]} is replaced")
        for option in ("inhibition", "state_quant"):
            if getattr(module, option):
                raise self._refused(call, f"{option} has no place in NIR")

    def _time_constant(self, call: _Call, parameter: str, value: torch.Tensor) -> np.ndarray:
        decay = np.clip(_spread(value, call.shape), 0, 1)
        if (decay == 1).any():
            raise self._refused(call, f"{parameter} of 1 has no finite time constant")
        return self.dt / (1 - decay)

    def _never_decays(self, call: _Call, neuron: Any) -> bool:
        return not hasattr(neuron, "alpha") and bool((np.clip(_spread(neuron.beta, call.shape), 0, 1) == 1).all())

    def _spiking(self, call: _Call, threshold: np.ndarray) -> Any:
        """LIF, CubaLIF or IF whose input counts as it is: ``k R = 1``."""
        nir, dt, neuron = self.nir, self.dt, call.module
        if not (threshold > 0).all():
            raise self._refused(call, "threshold must be above 0, to which NIR's neuron is reset")
        reset = np.zeros(call.shape)
        if self._never_decays(call, neuron):
            return nir.IF(r=np.full(call.shape, 1 / dt), v_threshold=threshold, v_reset=reset)
        return self._leaky(call, neuron, reset, v_threshold=threshold, v_reset=reset)

    def _integrator(self, call: _Call, neuron: Any, v_leak: np.ndarray) -> Any:
        """LI, CubaLI or I."""
        if self._never_decays(call, neuron):
            if v_leak.any():
                raise self._refused(call, "v_leak of an integrator that does not leak")
            return self.nir.I(r=np.full(call.shape, 1 / self.dt))
        return self._leaky(call, neuron, v_leak)

    def _leaky(self, call: _Call, neuron: Any, v_leak: np.ndarray, **spiking: np.ndarray) -> Any:
        nir, dt = self.nir, self.dt
        tau = self._time_constant(call, "beta", neuron.beta)
        if not hasattr(neuron, "alpha"):
            return (nir.LIF if spiking else nir.LI)(tau=tau, r=tau / dt, v_leak=v_leak, **spiking)
        tau_syn = self._time_constant(call, "alpha", neuron.alpha)
        kind = nir.CubaLIF if spiking else nir.CubaLI
        return kind(tau_syn=tau_syn, tau_mem=tau, r=tau / dt, v_leak=v_leak, w_in=tau_syn / dt, **spiking)

    def _weights(self, call: _Call) -> Any:
        module: Any = call.module
        if len(call.shape) != 1:
            raise self._refused(call, f"recurrent weights of steps of one dimension only, got {call.shape}")
        if not module.all_to_all:
            return self.nir.Linear(np.diag(_spread(module.recurrent.V, call.shape)))
        if type(module.recurrent) is not nn.Linear:
            raise self._refused(call, f"recurrent weights must be an nn.Linear, got {type(module.recurrent).__name__}")
        weight, bias = module.recurrent.weight, module.recurrent.bias
        return self.nir.Linear(_array(weight)) if bias is None else self.nir.Affine(_array(weight), _array(bias))

    def _refused(self, call: _Call, why: str) -> Unsupported:
        return Unsupported(
            f"module {call.name or 'itself'} ({type(call.module).__name__}) cannot be written to NIR: {why}"
        )


def _pair(value: Any) -> Tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _is_leaf(module: nn.Module) -> bool:
    return isinstance(module, (snntorch.SpikingNeuron, Integrator)) or not any(True for _ in module.children())


def _chain(module: nn.Module, sample: torch.Tensor) -> Tuple[List[_Call], Dict[str, str]]:
    """The calls of a sequence of modules, of which no neuron is run; of each the source."""
    calls: List[_Call] = []
    sources: Dict[str, str] = {}
    last, x = "", sample
    with torch.no_grad():
        for name, part in _in_turn(module):
            if isinstance(part, _TRANSPARENT):
                continue
            if not _is_leaf(part):
                raise Unsupported(
                    f"module {name} ({type(part).__name__}) cannot be written to NIR inside {type(module).__name__}"
                )
            out = x.new_zeros(len(x), part.out_features) if isinstance(part, DelayLinear) else x
            if not isinstance(part, (*_KEEP_STATE, DelayLinear)):
                out = part(x)
            if not isinstance(out, torch.Tensor):
                raise Unsupported(
                    f"module {name} ({type(part).__name__}) cannot be written to NIR: it returns no tensor"
                )
            calls.append(_Call(name, part, tuple(x.shape[1:]), tuple(out.shape[1:])))
            sources[name] = last
            last, x = name, out
    return calls, sources


def _trace(module: nn.Module, sample: torch.Tensor, arguments: Sequence[Any]) -> Tuple[List[_Call], Dict[str, str]]:
    """The calls that a forward pass makes, the first of each module; of each the source."""
    seen: List[Tuple[str, nn.Module, torch.Tensor, torch.Tensor]] = []
    names = {part: name for name, part in module.named_modules() if _is_leaf(part)}
    for part in list(names):
        for inner in part.children():  # a neuron's own
            for own in inner.modules():
                names.pop(own, None)

    def see(part: nn.Module, inputs: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if not inputs or not isinstance(inputs[0], torch.Tensor) or not isinstance(out, torch.Tensor):
            raise Unsupported(
                f"module {names[part]} ({type(part).__name__}) cannot be written to NIR: it takes no tensor"
            )
        seen.append((names[part], part, inputs[0], out))

    neurons = [part for part in module.modules() if isinstance(part, (*_KEEP_STATE, DelayLinear))]
    states = [(part, part.__dict__.copy(), part._buffers.copy()) for part in neurons]
    handles = [part.register_forward_hook(see) for part in names]
    try:
        with torch.no_grad():
            module(sample, *arguments)
    finally:
        for handle in handles:
            handle.remove()
        for part, attributes, buffers in states:
            part.__dict__.clear()
            part.__dict__.update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
    order = [name for name, *_ in seen]
    first = list(dict.fromkeys(order))
    if not first:
        raise Unsupported(f"{type(module).__name__} cannot be written to NIR: its forward calls no module")
    if order != first * (len(order) // len(first)):
        raise Unsupported(
            f"{type(module).__name__} cannot be written to NIR: its forward must call each module once, or all in "
            f"the same order in each step, got {', '.join(order[:20])}"
        )
    calls: List[_Call] = []
    sources: Dict[str, str] = {}
    made: Dict[int, Tuple[str, torch.Tensor]] = {sample.data_ptr(): ("", sample)}
    for name, part, x, out in seen[: len(first)]:
        source, known = made.get(x.data_ptr(), (None, x))
        if source is None:
            raise Unsupported(
                f"module {name} ({type(part).__name__}) cannot be written to NIR: its input is no module's output as "
                "it is; use modules (nn.Flatten, say) for what is done in between"
            )
        # A loop in forward gives the first module a step of the input; time is its first or its second dimension.
        bases = [known] if source or known.dim() < 3 else [known, known[0], known[:, 0]]
        base = next((b for b in bases if b.shape == x.shape), None)
        if base is None:
            base = next((b for b in bases if b.flatten(1).shape == x.shape), None)
            if base is None:
                raise Unsupported(
                    f"module {name} ({type(part).__name__}) cannot be written to NIR: its input, {tuple(x.shape)}, is "
                    f"another shape than {f'module {source}' if source else 'sample_data'} has, {tuple(known.shape)}"
                )
            flatten = f"{name}.flatten"
            calls.append(_Call(flatten, nn.Flatten(), tuple(base.shape[1:]), tuple(x.shape[1:])))
            sources[flatten], source = source, flatten
        if isinstance(part, _TRANSPARENT):
            made[out.data_ptr()] = (source, out)
            continue
        calls.append(_Call(name, part, tuple(x.shape[1:]), tuple(out.shape[1:])))
        sources[name] = source
        made[out.data_ptr()] = (name, out)
    return calls, sources


def export_to_nir(
    module: nn.Module,
    sample_data: torch.Tensor,
    model_name: str = "snntorch",
    model_fwd_args: Sequence[Any] = (),
    ignore_dims: Sequence[int] = (),
    *,
    dt: float = DEFAULT_DT,
) -> Any:
    r"""The graph of NIR that a network is.

    A decay is ``tau = dt / (1 - beta)``, with ``r = tau / dt``, so that a step of Euler's method by ``dt`` is the
    neuron's step; ``beta`` of 1 is an IF, or an I. Every parameter has the shape of its layer. Time constants are
    float64, which gives back the same float32 decays.

    ``Leaky``, ``Synaptic``, ``RLeaky`` and ``RSynaptic`` become LIF, CubaLIF, and these with Linear or Affine weights
    from their spikes back to them; ``reset_mechanism="none"`` becomes LI or CubaLI with a Threshold,
    ``graded_spikes_factor`` a Scale, a ``SynapticDelay`` a Delay, and a ``DelayLinear`` a Delay in front of its
    weights or behind them, where its delays are of its inputs or its outputs. NIR's neurons are reset to a potential,
    at once: ``reset_mechanism="zero"`` with ``reset_delay=False``. Any other reset is written as metadata, which
    ``import_from_nir`` reads, and a warning names the layers, for other tools will reset them to 0.

    Sequences of modules (``nn.Sequential``, ``MultiStep``) are read as they stand. Of any other network one forward
    pass is watched: each module's input must be another's output, or a flattened one.

    Args:
        module: the network, or one layer.
        sample_data: an input, ``[B, ...]``; ``[T, B, ...]`` for a ``MultiStep``. Its values do not matter.
        model_name: name of the node where the network is one module.
        model_fwd_args: further arguments of the network's ``forward``.
        ignore_dims: dimensions of ``sample_data`` that are no part of a step, the batch's and time's. They are known
            here: this only checks them.
        dt: time step of the graph, in seconds.

    Raises:
        MissingExtra: the package nir is not installed.
        TypeError: ``module`` is no module; ``sample_data`` no tensor.
        Unsupported: what NIR cannot express; a ValueError and a NotImplementedError.
        ValueError: ``dt`` not positive; ``sample_data`` without a batch; other ``ignore_dims``.
    """
    nir = require("nir", "nir", "export_to_nir", LEAST_NIR)
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    if not isinstance(sample_data, torch.Tensor):
        raise TypeError(f"sample_data must be a torch.Tensor, got {type(sample_data).__name__}")
    if not dt > 0:
        raise ValueError(f"dt must be positive, got {dt}")
    over_time = isinstance(module, MultiStep)
    dims = 2 if over_time else 1
    if sample_data.dim() < dims:
        raise ValueError(f"sample_data must have shape {'[T, B, ...]' if over_time else '[B, ...]'}")
    if not {int(dim) for dim in ignore_dims} <= {0, 1, -sample_data.dim(), 1 - sample_data.dim()}:
        raise ValueError(f"ignore_dims must be the dimensions of batch and time, got {list(ignore_dims)}")
    for name, part in module.named_modules():
        if is_hooked(part):
            raise Unsupported(f"module {name} ({type(part).__name__}) cannot be written to NIR: it has hooks")

    if type(module) in (nn.Sequential, MultiStep):
        calls, sources = _chain(module, sample_data[0] if over_time else sample_data)
    elif _is_leaf(module):
        chain = nn.Sequential()
        chain.add_module(model_name, module)
        calls, sources = _chain(chain, sample_data)
    else:
        calls, sources = _trace(module, sample_data, model_fwd_args)
    if not calls:
        raise Unsupported(f"{type(module).__name__} has no module that could be written to NIR")
    return _graph(nir, calls, sources, dt)


def _graph(nir: Any, calls: List[_Call], sources: Dict[str, str], dt: float) -> Any:
    writer = _Writer(nir, dt)
    parts = {call.name: writer.part(call) for call in calls}
    nodes: Dict[str, Any] = {"input": nir.Input(np.array(calls[0].shape))}
    edges: List[Tuple[str, str]] = []
    taken = {name for part in parts.values() for name in part.nodes}
    ends = [call for call in calls if call.name not in sources.values()]
    for call in calls:
        part, source = parts[call.name], sources[call.name]
        if not source and call.shape != calls[0].shape:
            raise Unsupported(f"module {call.name} takes another part of the input than module {calls[0].name}")
        nodes.update(part.nodes)
        edges += [(parts[source].last if source else "input", part.first), *part.edges]
    for call in ends:
        name = "output" if len(ends) == 1 else f"output_{call.name}"
        nodes[name] = nir.Output(np.array(call.out_shape))
        edges.append((parts[call.name].last, name))
    if taken & {"input", "output"}:
        raise Unsupported("modules called 'input' or 'output': these are names of NIR's own nodes")
    if writer.other_resets:
        warnings.warn(
            f"NIR resets to a potential, at once; the reset of {', '.join(writer.other_resets)} is another, which only "
            "snnipu reads from the graph's metadata (reset_mechanism='zero' with reset_delay=False is NIR's)",
            stacklevel=3,
        )
    return nir.NIRGraph(nodes, edges, metadata={"snnipu_dt": float(dt)}, type_check=False)
