"""Networks from the Neuromorphic Intermediate Representation (NIR, https://neuroir.org): ``import_from_nir``."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import snntorch
import torch
from torch import nn

from snnipu import neurons
from snnipu._extras import LEAST_NIR, require
from snnipu.neurons.nir_nodes import Integrator, ModuleGraph, Scale, Threshold, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.surrogate import SpikeGrad

DEFAULT_DT = 1e-4  # snnTorch's

Value = Union[float, np.ndarray]
Edges = List[Tuple[str, str]]


class RSynaptic(neurons.RSynaptic):  # type: ignore[misc,valid-type]
    """``RSynaptic`` that is reset to zero in the step of its spike; snnTorch's takes the spike of the step before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_delay: bool
        self.mem: torch.Tensor
        self.resets_at_once = not self.reset_delay and self.reset_mechanism == "zero"
        if self.resets_at_once:
            self.reset_delay = True  # snnTorch's own code for it is left out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        if not self.resets_at_once:
            return out
        self.mem = self.mem - (self.spk / self.graded_spikes_factor - self.reset) * self.mem
        return (*out[:-1], self.mem) if isinstance(out, tuple) else out


def reset(net: nn.Module) -> None:
    """Let every neuron and delay in ``net`` start from zeros; ``utils.reset`` sees neurons of its own modules only."""
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()
        if isinstance(module, SynapticDelay):
            module.reset_delay()


class _Settings(NamedTuple):
    nir: Any
    dt: float
    spike_grad: Optional[SpikeGrad]


class _Response(NamedTuple):
    """A neuron's parameters in steps of ``dt``, its membrane counted from ``v_leak``."""

    options: Dict[str, Any]  # beta, and alpha with synapses
    gain: Value  # of the input
    v_leak: Value


def _array(value: Any) -> np.ndarray:
    return np.array(value.detach().cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float64)


def _uniform(value: np.ndarray) -> Value:
    """One number where all are the same."""
    return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else value


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(_array(value)).to(torch.get_default_dtype())


def _rate(name: str, field: str, tau: Any, dt: float) -> np.ndarray:
    """``dt / tau``: the part of the distance to its rest that a state goes in a step."""
    tau = _array(tau)
    if not (tau > 0).all():
        raise ValueError(f"node {name}: {field} must be positive, got {tau.min()}")
    if (tau < dt * (1 - 1e-6)).any():
        raise ValueError(
            f"node {name}: {field} = {tau.min():g} is shorter than the time step dt = {dt:g}: pass the graph's dt, in "
            "its unit of time (norse's exporter writes time constants multiplied by its dt: there dt is its dt squared)"
        )
    return np.minimum(dt / tau, 1.0)


def _precision(*values: Any) -> float:
    """Of the least precise of the values as they are stored."""
    kinds = [np.asarray(v.detach().cpu() if isinstance(v, torch.Tensor) else v).dtype for v in values]
    return max(4 * float(np.finfo(kind).eps) if kind.kind == "f" else 0.0 for kind in kinds)


def _gain(gain: np.ndarray, *written: Any) -> Value:
    """1 where it is 1 up to the rounding of what it was computed from."""
    return 1.0 if np.allclose(gain, 1.0, rtol=0, atol=max(_precision(*written), 1e-12)) else _uniform(gain)


def _response(name: str, node: Any, settings: _Settings) -> _Response:
    """Euler's steps of NIR's equations, the new current going into the membrane.

    ``tau v' = v_leak - v + R I``: ``v += k (v_leak - v + R I)`` with ``k = dt / tau``, which for ``mem = v - v_leak``
    is ``mem = (1 - k) mem + k R I``. Synapses, ``tau_syn I' = -I + w_in S``, are ``syn = k R I``.
    """
    nir, dt = settings.nir, settings.dt
    if isinstance(node, (nir.IF, nir.I)):
        r = _array(node.r)
        # What norse, sinabs and snnTorch write and read: an input of 1 is a membrane of 1, whatever dt is.
        per_step = isinstance(node, nir.IF) and (r == 1).all()
        return _Response({"beta": 1.0}, 1.0 if per_step else _gain(dt * r, node.r), 0.0)
    if isinstance(node, (nir.LIF, nir.LI)):
        k = _rate(name, "tau", node.tau, dt)
        gain = _gain(k * _array(node.r), node.tau, node.r)
        return _Response({"beta": _uniform(1 - k)}, gain, _uniform(_array(node.v_leak)))
    k_syn = _rate(name, "tau_syn", node.tau_syn, dt)
    k_mem = _rate(name, "tau_mem", node.tau_mem, dt)
    gain = k_syn * _array(node.w_in) * k_mem * _array(node.r)
    return _Response(
        {"alpha": _uniform(1 - k_syn), "beta": _uniform(1 - k_mem)},
        _gain(gain, node.tau_syn, node.tau_mem, node.w_in, node.r),
        _uniform(_array(node.v_leak)),
    )


def _options(values: Dict[str, Any]) -> Dict[str, Any]:
    return {key: _tensor(value) if isinstance(value, np.ndarray) else value for key, value in values.items()}


def _spiking_options(name: str, node: Any, response: _Response, settings: _Settings) -> Dict[str, Any]:
    """The keywords of a neuron that spikes."""
    threshold, v_reset = _array(node.v_threshold), _array(node.v_reset)
    reset = v_reset - response.v_leak
    if not np.allclose(reset, 0, atol=1e-6 * max(1.0, float(np.abs(threshold).max(initial=0)))):
        raise Unsupported(
            f"node {name} ({type(node).__name__}): v_reset {_uniform(v_reset)} must be v_leak {response.v_leak}, for "
            "neurons are reset to their rest"
        )
    threshold = threshold - response.v_leak
    if not (threshold > 0).all():
        raise Unsupported(f"node {name} ({type(node).__name__}): v_threshold must be above v_reset")
    metadata = node.metadata if isinstance(node.metadata, dict) else {}
    mechanism = metadata.get("snnipu_reset_mechanism", "zero")
    return {
        "threshold": _uniform(threshold),
        "reset_mechanism": mechanism.decode() if isinstance(mechanism, bytes) else str(mechanism),
        "reset_delay": bool(metadata.get("snnipu_reset_delay", False)),
        "spike_grad": settings.spike_grad,
        "init_hidden": True,
    }


def _neuron(name: str, node: Any, settings: _Settings) -> List[nn.Module]:
    nir = settings.nir
    response = _response(name, node, settings)
    before: List[nn.Module] = [] if _is_one(response.gain) else [Scale(_tensor(response.gain))]
    make: Any = neurons.Synaptic if "alpha" in response.options else neurons.Leaky
    if isinstance(node, (nir.LIF, nir.IF, nir.CubaLIF)):
        return [*before, make(**_options({**response.options, **_spiking_options(name, node, response, settings)}))]
    neuron = make(**_options(response.options), reset_mechanism="none", init_hidden=True)
    return [*before, Integrator(neuron, _tensor(response.v_leak))]


def _is_one(gain: Value) -> bool:
    return isinstance(gain, float) and gain == 1.0


def _recurrent(name: str, node: Any, weights: Any, settings: _Settings) -> List[nn.Module]:
    """A neuron whose spikes come back to it by ``weights``: the gain of its input is theirs, too."""
    weight = _array(weights.weight)
    bias = _array(weights.bias) if isinstance(weights, settings.nir.Affine) else None
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        raise Unsupported(f"node {name}: recurrent weights must be square, got shape {weight.shape}")
    response = _response(name, node, settings)
    options = {**response.options, **_spiking_options(name, node, response, settings)}
    gain = np.broadcast_to(np.asarray(response.gain), weight.shape[:1])
    weight = gain[:, None] * weight
    make: Any = RSynaptic if "alpha" in response.options else neurons.RLeaky
    before: List[nn.Module] = [] if _is_one(response.gain) else [Scale(_tensor(response.gain))]
    if bias is None and np.array_equal(weight, np.diag(np.diag(weight))):
        return [*before, make(**_options(options), all_to_all=False, V=_tensor(np.diag(weight)))]
    neuron = make(**_options(options), all_to_all=True, linear_features=weight.shape[0])
    with torch.no_grad():
        neuron.recurrent.weight.copy_(_tensor(weight))
        neuron.recurrent.bias.copy_(_tensor(np.zeros(weight.shape[0]) if bias is None else gain * bias))
    return [*before, neuron]


def _linear(name: str, node: Any, bias: Optional[Any]) -> nn.Module:
    weight = _tensor(node.weight)
    if weight.dim() != 2:
        raise Unsupported(f"node {name} ({type(node).__name__}): weight must be [out, in], got {tuple(weight.shape)}")
    linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(linear, weight, bias)


def _filled(module: Any, weight: torch.Tensor, bias: Optional[Any]) -> nn.Module:
    values = None if bias is None else _tensor(bias)
    if values is not None and values.shape != module.bias.shape:
        raise ValueError(f"bias must have shape {tuple(module.bias.shape)}, got {tuple(values.shape)}")
    with torch.no_grad():
        module.to(weight.dtype)
        module.weight.copy_(weight)
        if values is not None:
            module.bias.copy_(values)
    return module


def _sizes(field: str, value: Any, dims: int, least: int = 1) -> Any:
    """NIR's number, array or word as PyTorch's."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        return value
    sizes = [int(size) for size in np.asarray(value).reshape(-1)]
    if len(sizes) not in (1, dims) or min(sizes) < least:
        raise ValueError(f"{field} must be 1 or {dims} numbers of at least {least}, got {sizes}")
    return tuple(sizes * dims) if len(sizes) == 1 else tuple(sizes)


def _convolution(name: str, node: Any, dims: int) -> nn.Module:
    weight, groups = _tensor(node.weight), int(node.groups)
    if weight.dim() != dims + 2:
        raise ValueError(f"weight must have {dims + 2} dimensions, got shape {tuple(weight.shape)}")
    kind = nn.Conv1d if dims == 1 else nn.Conv2d
    convolution = nn.utils.skip_init(
        kind,
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        stride=_sizes("stride", node.stride, dims),
        padding=_sizes("padding", node.padding, dims, least=0),
        dilation=_sizes("dilation", node.dilation, dims),
        groups=groups,
        bias=node.bias is not None,
    )
    return _filled(convolution, weight, node.bias)


def _delay(name: str, node: Any, settings: _Settings) -> SynapticDelay:
    """A delay for each channel, in steps; whole numbers where they are some up to rounding."""
    seconds = _array(node.delay)
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError(f"node {name}: delay must be 0 or more and finite, got {seconds.min():g} to {seconds.max():g}")
    steps = seconds / settings.dt
    whole = np.rint(steps)
    steps = np.where(np.isclose(steps, whole, rtol=max(_precision(node.delay), 1e-12), atol=0), whole, steps)
    by_channel = steps.reshape(steps.shape[0], -1) if steps.ndim else steps.reshape(1, 1)
    if (by_channel != by_channel[:, :1]).any():
        raise Unsupported(f"node {name} (Delay): its delays must be the same in all places of a channel")
    metadata = node.metadata if isinstance(node.metadata, dict) else {}
    longest = max(int(metadata.get("snnipu_max_delay", 0)), int(np.ceil(steps.max(initial=0))))
    return SynapticDelay(longest, _tensor(by_channel[:, 0]))


def _modules(name: str, node: Any, settings: _Settings) -> List[nn.Module]:
    """The modules, one after the other, that a node is."""
    nir = settings.nir
    if isinstance(node, (nir.Linear, nir.Affine)):
        return [_linear(name, node, node.bias if isinstance(node, nir.Affine) else None)]
    if isinstance(node, (nir.Conv1d, nir.Conv2d)):
        return [_convolution(name, node, 1 if isinstance(node, nir.Conv1d) else 2)]
    if isinstance(node, (nir.SumPool2d, nir.AvgPool2d)):
        divisor = 1 if isinstance(node, nir.SumPool2d) else None
        kernel_size, stride = (_sizes(field, getattr(node, field), 2) for field in ("kernel_size", "stride"))
        padding = _sizes("padding", node.padding, 2, least=0)
        return [nn.AvgPool2d(kernel_size, stride, padding, divisor_override=divisor)]
    if isinstance(node, nir.Flatten):
        # NIR's shapes have no batch.
        start, end = int(node.start_dim), int(node.end_dim)
        return [nn.Flatten(start + 1 if start >= 0 else start, end + 1 if end >= 0 else end)]
    if isinstance(node, nir.Scale):
        return [Scale(_tensor(node.scale))]
    if isinstance(node, nir.Threshold):
        return [Threshold(_tensor(node.threshold), settings.spike_grad)]
    if isinstance(node, (nir.LIF, nir.IF, nir.LI, nir.I, nir.CubaLIF, nir.CubaLI)):
        return _neuron(name, node, settings)
    if isinstance(node, nir.Delay):
        return [_delay(name, node, settings)]
    raise Unsupported(f"node {name}: {type(node).__name__} of NIR has no module in snnipu")


def _made(name: str, node: Any, weights: Optional[Any], settings: _Settings) -> List[nn.Module]:
    """As :func:`_modules`; ``weights``: the node by which its spikes come back to it. Every error names the node."""
    try:
        return _modules(name, node, settings) if weights is None else _recurrent(name, node, weights, settings)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(f"node {name}"):
            raise
        raise ValueError(f"node {name} ({type(node).__name__}): {error}") from error


def _flat(graph: Any, nir: Any, prefix: str = "") -> Tuple[Dict[str, Any], Edges]:
    """Nodes and edges, those of graphs inside it in their place."""
    nodes: Dict[str, Any] = {}
    edges = [(prefix + a, prefix + b) for a, b in graph.edges]
    for key, node in graph.nodes.items():
        name = prefix + key
        if not isinstance(node, nir.NIRGraph):
            nodes[name] = node
            continue
        inner, inner_edges = _flat(node, nir, name + ".")
        ends = {kind: [key for key, end in inner.items() if isinstance(end, kind)] for kind in (nir.Input, nir.Output)}
        for kind, found in ends.items():
            if len(found) != 1:
                raise Unsupported(f"node {name}: a graph inside a graph must have one {kind.__name__}")
        edges = [(ends[nir.Output][0] if a == name else a, ends[nir.Input][0] if b == name else b) for a, b in edges]
        nodes.update(inner)
        edges += inner_edges
    if prefix:
        return nodes, edges
    # Inputs and outputs of inner graphs are joints: what goes in comes out.
    for name in [n for n, node in nodes.items() if "." in n and isinstance(node, (nir.Input, nir.Output))]:
        before, after = [a for a, b in edges if b == name], [b for a, b in edges if a == name]
        if not (before and after):
            continue
        edges = [edge for edge in edges if name not in edge] + [(a, b) for a in before for b in after]
        del nodes[name]
    return nodes, list(dict.fromkeys(edges))


def _close_loops(nodes: Dict[str, Any], edges: Edges, nir: Any) -> Tuple[Dict[str, Any], Edges]:
    """Take the recurrent weights out of the graph: of each neuron that has some, by its name."""
    loops: Dict[str, Any] = {}
    for name, node in list(nodes.items()):
        if not isinstance(node, (nir.Linear, nir.Affine)):
            continue
        before, after = [a for a, b in edges if b == name], [b for a, b in edges if a == name]
        if len(before) == 1 and before == after and isinstance(nodes[before[0]], (nir.LIF, nir.IF, nir.CubaLIF)):
            if before[0] in loops:
                raise Unsupported(f"node {before[0]}: more than one recurrent connection")
            loops[before[0]] = nodes.pop(name)
            edges = [edge for edge in edges if name not in edge]
    return loops, edges


def _in_order(nodes: Dict[str, Any], edges: Edges) -> List[str]:
    """The nodes' names, each behind those it gets something from."""
    waiting = {name: {a for a, b in edges if b == name} for name in nodes}
    order: List[str] = []
    while waiting:
        ready = [name for name, sources in waiting.items() if not sources & waiting.keys()]
        if not ready:
            raise Unsupported(
                f"the graph has a loop through nodes {', '.join(sorted(waiting))}: a recurrent connection must be one "
                "Linear or Affine from a neuron that spikes to itself"
            )
        order += ready
        for name in ready:
            del waiting[name]
    return order


def import_from_nir(graph: Any, *, dt: Optional[float] = None, spike_grad: Optional[SpikeGrad] = None) -> nn.Module:
    r"""A network of fused neurons from a graph of NIR.

    .. code-block:: python

        net = import_from_nir(nir.read("network.nir"))
        spk = net(x)                       # one step, x [B, ...]; neurons keep their states
        spk = snn.MultiStep(net)(x)        # all steps, x [T, B, ...]
        reset(net)                         # from zeros again

    NIR's equations are solved in steps of ``dt`` by Euler's method: ``k = dt / tau``,

    .. math::
        v_{t+1} = v_t + k (v_{leak} - v_t + R I_{t+1}), \qquad \beta = 1 - k

    and the input is multiplied by ``k R`` (a :class:`~snnipu.neurons.nir_nodes.Scale` before the neuron, unless that is
    1). For ``CubaLIF`` and ``CubaLI``, ``alpha = 1 - dt / tau_syn`` and the input's factor has ``w_in dt / tau_syn``
    besides. Membranes are counted from ``v_leak``. ``IF`` with ``r = 1`` adds its input in each step, whatever ``dt``
    is: so norse, sinabs and snnTorch write and read it; other ``r`` are multiplied by ``dt``.

    A Delay is a ``SynapticDelay`` of ``delay / dt`` steps; between two steps a spike arrives at both.

    Linear, Affine, Conv1d, Conv2d, SumPool2d, AvgPool2d, Flatten, Scale and Threshold are PyTorch's modules and small
    ones of ours; LIF and IF are ``Leaky``, CubaLIF is ``Synaptic``, LI, I and CubaLI give their membranes; LIF and
    CubaLIF with a Linear or Affine from their spikes back to them are ``RLeaky`` and ``RSynaptic``. Graphs in graphs
    are put in their place.

    Args:
        graph: a ``nir.NIRGraph``.
        dt: time step, in the graph's unit of time; None: what snnipu's ``export_to_nir`` wrote, else snnTorch's 1e-4.
        spike_grad: the neurons' surrogate gradient; None: snnTorch's default.

    Returns:
        An ``nn.Sequential`` where the graph is a chain, else a module that sums what comes together. Modules are named
        after their nodes, dots replaced.

    Raises:
        MissingExtra: the package nir is not installed.
        TypeError: ``graph`` is no graph of NIR.
        Unsupported: a node that cannot be expressed; a ValueError and a NotImplementedError.
        ValueError: a time constant shorter than ``dt``; ``dt`` not positive.
    """
    nir = require("nir", "nir", "import_from_nir", LEAST_NIR)
    if not isinstance(graph, nir.NIRGraph):
        raise TypeError(f"graph must be a nir.NIRGraph, got {type(graph).__name__}")
    if dt is None:
        metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
        try:
            dt = float(metadata.get("snnipu_dt", DEFAULT_DT))
        except (TypeError, ValueError):
            raise ValueError(f"the graph's snnipu_dt must be a number, got {metadata['snnipu_dt']!r}") from None
    if not dt > 0:
        raise ValueError(f"dt must be positive, got {dt}")
    settings = _Settings(nir, float(dt), spike_grad)
    nodes, edges = _flat(graph, nir)
    for a, b in edges:
        for end in (a, b):
            if end not in nodes:
                raise ValueError(f"graph has the edge {(a, b)}, and no node {end!r}")
    loops, edges = _close_loops(nodes, edges, nir)
    inputs = [name for name, node in nodes.items() if isinstance(node, nir.Input)]
    outputs = [name for name, node in nodes.items() if isinstance(node, nir.Output)]
    if len(inputs) != 1 or not outputs:
        raise Unsupported(f"the graph must have one Input and an Output, got {len(inputs)} and {len(outputs)}")

    modules: Dict[str, nn.Module] = {}
    sources: Dict[str, Tuple[Optional[str], ...]] = {}
    last: Dict[str, Optional[str]] = {inputs[0]: None}  # the module that gives a node's output
    found: Dict[str, Optional[str]] = {}  # what each Output gives
    for name in _in_order(nodes, edges):
        before = tuple(last[a] for a, b in edges if b == name)
        node = nodes[name]
        if name == inputs[0]:
            continue
        if not before:
            raise Unsupported(f"node {name} has no input")
        if isinstance(node, nir.Output) and len(before) == 1:
            found[name] = before[0]
            continue
        made = [nn.Identity()] if isinstance(node, nir.Output) else _made(name, node, loops.get(name), settings)
        for position, module in enumerate(made):
            key = name.replace(".", "_") + ("_scale" if position < len(made) - 1 else "")
            while key in modules:
                key += "_"
            modules[key], sources[key] = module, before
            before = (key,)
        last[name] = before[0]
        if isinstance(node, nir.Output):
            found[name] = before[0]
    results = [found[name] for name in outputs]
    keys: List[Optional[str]] = list(modules)
    is_chain = results == keys[-1:] and all(
        sources[key] == (keys[i - 1] if i else None,) for i, key in enumerate(modules)
    )
    if is_chain:
        chain = nn.Sequential()
        for key, module in modules.items():
            chain.add_module(key, module)
        return chain
    return ModuleGraph(modules, sources, tuple(results))
