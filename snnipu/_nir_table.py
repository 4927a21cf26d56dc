"""The table of NIR's nodes and the modules that correspond to them, for export and import.

``TABLE`` has a row for each kind of module: a function that writes the module as nodes, and one that reads a node.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type, Union

import numpy as np
import snntorch
import torch
from torch import nn

from snnipu import neurons
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.nir_nodes import Integrator, Scale, Threshold, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.surrogate import SpikeGrad

Shape = Tuple[int, ...]
# Keys of a node's metadata.
RESET, RESET_DELAY, MAX_DELAY = "snnipu_reset_mechanism", "snnipu_reset_delay", "snnipu_max_delay"
LOOP = "w_rec"  # suffix of the node of recurrent weights, from a neuron's spikes to its input
# NIR's time constant -> the decay of snnTorch's neurons.
_DECAYS = {"tau": "beta", "tau_syn": "alpha", "tau_mem": "beta"}
_NEURON_PARTS = ("forward", "fire", "mem_reset", "state_function", "_base_state_function", "_base_sub", "_base_zero")


class RSynaptic(neurons.RSynaptic):  # type: ignore[misc,valid-type]
    """An ``RSynaptic`` that resets to zero in the step of its spike; snnTorch's resets one step later."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_delay: bool
        self.mem: torch.Tensor
        self.resets_at_once = not self.reset_delay and self.reset_mechanism == "zero"
        if self.resets_at_once:
            self.reset_delay = True  # `forward` below does the reset in place of snnTorch's code

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        if not self.resets_at_once:
            return out
        self.mem = self.mem - (self.spk / self.graded_spikes_factor - self.reset) * self.mem
        return (*out[:-1], self.mem) if isinstance(out, tuple) else out


class NirSettings(NamedTuple):
    """Settings of an export or import that the functions of ``TABLE`` read.

    Attributes:
        nir: the package nir.
        dt: time step, in seconds.
        spike_grad: the surrogate of imported neurons.
        name: name of the node that is being read.
        weights: node of the recurrent weights of the neuron that is being read; None if it has none.
    """

    nir: Any
    dt: float
    spike_grad: Optional[SpikeGrad] = None
    name: str = ""
    weights: Any = None


class NodeMapping(NamedTuple):
    """A row of ``TABLE``: one kind of module and the nodes of NIR that correspond to it.

    Both functions raise ``Unsupported`` or ``ValueError``. Their callers add the name of the module or node.

    Attributes:
        module: the type of the modules. Subclasses do not match, except for neurons.
        nodes: names of the node classes in the package nir.
        write: (module, shape of a step's input, settings) -> a node; or suffix of the name -> node, in series. A node
            with the suffix ``LOOP`` is not in the series.
        read: (node, settings) -> the modules to call in series.
    """

    module: Type[nn.Module]
    nodes: Tuple[str, ...]
    write: Callable[[Any, Shape, NirSettings], Any]
    read: Optional[Callable[[Any, NirSettings], List[nn.Module]]] = None


def _stored(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def _array(value: Any) -> np.ndarray:
    return np.array(_stored(value), dtype=np.float64)


def _broadcast_to_neurons(value: Any, shape: Shape) -> np.ndarray:
    """Return a parameter with the shape of the neurons, in float64.

    A float32 decay survives the conversion to a float64 time constant and back.
    """
    return np.broadcast_to(_array(value), shape).copy()


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(_array(value)).to(torch.get_default_dtype())


def _uniform(value: np.ndarray) -> Union[float, torch.Tensor]:
    """Return a float if all values are equal, else a tensor."""
    return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else _tensor(value)


def _precision(*values: Any) -> float:
    """Return a relative tolerance: four times the largest epsilon of the values' dtypes, at least 1e-12."""
    dtypes = [_stored(value).dtype for value in values]
    return max([1e-12, *(4 * float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind == "f")])


def _metadata(node: Any) -> Dict[str, Any]:
    return node.metadata if isinstance(node.metadata, dict) else {}


# Layers.


def _write_weights(module: Any, shape: Shape, settings: NirSettings) -> Any:
    if len(shape) != 1:
        raise Unsupported(f"NIR's Linear takes steps of one dimension, got {shape}")
    weight, bias = _stored(module.weight), module.bias
    return settings.nir.Linear(weight) if bias is None else settings.nir.Affine(weight, _stored(bias))


def _read_weights(node: Any, settings: NirSettings) -> List[nn.Module]:
    weight = _tensor(node.weight)
    if weight.dim() != 2:
        raise Unsupported(f"weight must be [out, in], got {tuple(weight.shape)}")
    return _make_layer(nn.Linear, weight, getattr(node, "bias", None), weight.shape[1], weight.shape[0])


def _make_layer(kind: Any, weight: torch.Tensor, bias: Any, *sizes: Any, **options: Any) -> List[nn.Module]:
    """Return a layer of class ``kind`` with this weight and bias, in a list."""
    module: Any = nn.utils.skip_init(kind, *sizes, bias=bias is not None, **options).to(weight.dtype)
    with torch.no_grad():
        module.weight.copy_(weight)
        if bias is not None:
            values = _tensor(bias)
            if values.shape != module.bias.shape:
                raise ValueError(f"bias must have shape {tuple(module.bias.shape)}, got {tuple(values.shape)}")
            module.bias.copy_(values)
    return [module]


def _write_convolution(module: Any, shape: Shape, settings: NirSettings) -> Any:
    one_dim = module.weight.dim() == 3
    if module.padding_mode != "zeros":
        raise Unsupported(f"padding_mode {module.padding_mode!r}; NIR pads with zeros")
    bias = np.zeros(module.out_channels, np.float32) if module.bias is None else _stored(module.bias)
    sizes = [
        value[0] if one_dim and not isinstance(value, str) else value
        for value in (module.stride, module.padding, module.dilation)
    ]
    kind = settings.nir.Conv1d if one_dim else settings.nir.Conv2d
    node = kind(None, _stored(module.weight), *sizes, module.groups, bias)
    node.input_shape = shape[1] if one_dim else shape[1:]
    return node


def _read_convolution(node: Any, settings: NirSettings) -> List[nn.Module]:
    weight, groups = _tensor(node.weight), int(node.groups)
    kind, dims = (nn.Conv1d, 1) if isinstance(node, settings.nir.Conv1d) else (nn.Conv2d, 2)
    if weight.dim() != dims + 2:
        raise ValueError(f"weight must have {dims + 2} dimensions, got shape {tuple(weight.shape)}")
    return _make_layer(
        kind,
        weight,
        node.bias,
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        stride=_sizes(node, "stride", dims),
        padding=_sizes(node, "padding", dims, least=0),
        dilation=_sizes(node, "dilation", dims),
        groups=groups,
    )


def _sizes(node: Any, field: str, dims: int, least: int = 1) -> Any:
    """Return a size of a convolution or pool, which NIR has as a number, an array or a word, as PyTorch takes it."""
    value = getattr(node, field)
    if isinstance(value, (str, bytes)):
        return value.decode() if isinstance(value, bytes) else value
    sizes = [int(size) for size in np.asarray(value).reshape(-1)]
    if len(sizes) not in (1, dims) or min(sizes) < least:
        raise ValueError(f"{field} must be 1 or {dims} numbers of at least {least}, got {sizes}")
    return tuple(sizes * dims) if len(sizes) == 1 else tuple(sizes)


def _pairs(*values: Any) -> List[np.ndarray]:
    return [np.array(value if isinstance(value, (tuple, list)) else (value, value)) for value in values]


def _write_pool(module: Any, shape: Shape, settings: NirSettings) -> Any:
    padded = _pairs(module.padding)[0].any() and not module.count_include_pad
    if module.ceil_mode or padded or module.divisor_override not in (None, 1):
        raise Unsupported("NIR's pools have no ceil_mode, count_include_pad=False or divisor_override")
    kind = settings.nir.AvgPool2d if module.divisor_override is None else settings.nir.SumPool2d
    return kind(*_pairs(module.kernel_size, module.stride, module.padding))


def _write_power_pool(module: Any, shape: Shape, settings: NirSettings) -> Any:
    if module.norm_type != 1 or module.ceil_mode:
        raise Unsupported("NIR has no node for it")
    stride = module.kernel_size if module.stride is None else module.stride
    return settings.nir.SumPool2d(*_pairs(module.kernel_size, stride, 0))


def _read_pool(node: Any, settings: NirSettings) -> List[nn.Module]:
    divisor = 1 if isinstance(node, settings.nir.SumPool2d) else None
    sizes = (_sizes(node, "kernel_size", 2), _sizes(node, "stride", 2), _sizes(node, "padding", 2, least=0))
    return [nn.AvgPool2d(*sizes, divisor_override=divisor)]


def _write_flatten(module: Any, shape: Shape, settings: NirSettings) -> Any:
    dims = len(shape) + 1  # NIR's shapes have no batch
    start, end = module.start_dim % dims, module.end_dim % dims
    if start == 0:
        raise Unsupported("start_dim=0 flattens the batch, which NIR does not have")
    return settings.nir.Flatten(np.array(shape), start - 1, -1 if end == dims - 1 else end - 1)


# Delays.


def _write_delay(module: Any, shape: Shape, settings: NirSettings) -> Any:
    if module.kernel != "linear":
        raise Unsupported(f"kernel {module.kernel!r}: NIR's Delay has one delay time; use kernel='linear'")
    if module.delay.numel() not in (1, *shape[:1]):
        raise Unsupported(f"it has delays for {module.delay.numel()} channels, its input has the shape {shape}")
    delay = module.delay.detach().clamp(0, module.max_delay).reshape(-1, *[1] * (len(shape) - 1))
    node = settings.nir.Delay(_broadcast_to_neurons(delay, shape) * settings.dt)
    node.metadata = {MAX_DELAY: module.max_delay}
    return node


def _read_delay(node: Any, settings: NirSettings) -> List[nn.Module]:
    """Return a ``SynapticDelay`` with a delay for each channel, in steps.

    Delays that differ from a whole number of steps by rounding alone are rounded.
    """
    seconds = _array(node.delay)
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError(
            f"node {settings.name}: delay must be 0 or more and finite, got {seconds.min():g} to {seconds.max():g}"
        )
    steps = seconds / settings.dt
    whole = np.rint(steps)
    steps = np.where(np.isclose(steps, whole, rtol=_precision(node.delay), atol=0), whole, steps)
    by_channel = steps.reshape(steps.shape[0], -1) if steps.ndim else steps.reshape(1, 1)
    if (by_channel != by_channel[:, :1]).any():
        raise Unsupported("its delays must be the same in all places of a channel")
    longest = max(int(_metadata(node).get(MAX_DELAY, 0)), int(np.ceil(steps.max(initial=0))))
    return [SynapticDelay(longest, _tensor(by_channel[:, 0]))]


def _write_delay_linear(module: DelayLinear, shape: Shape, settings: NirSettings) -> Dict[str, Any]:
    """Return the nodes of a ``DelayLinear``, in series.

    A Delay of the inputs precedes the weights. A Delay of the outputs follows them, and precedes the bias.
    """
    sizes = tuple(module.delay.shape) if module.delay.numel() > 1 else (1, 1)
    if len(shape) != 1 or 1 not in sizes:
        raise Unsupported(
            "NIR's Delay is of a channel, not of a synapse: delay must be of each input, or of each output"
        )
    if sizes[0] == 1:
        delay = _write_delay(module, shape, settings)
        return {"delay": delay, "weight": _write_weights(module, shape, settings)}
    weight = _stored(module.weight)
    delay = _write_delay(module, (module.out_features,), settings)
    nodes = {"weight": settings.nir.Linear(weight), "delay": delay}
    if module.bias is not None:
        nodes["bias"] = settings.nir.Affine(np.eye(len(weight), dtype=weight.dtype), _stored(module.bias))
    return nodes


# Neurons.


def _write_neuron(module: Any, shape: Shape, settings: NirSettings) -> Dict[str, Any]:
    if not isinstance(module, (snntorch.Leaky, snntorch.Synaptic, snntorch.RLeaky, snntorch.RSynaptic)):
        raise Unsupported("NIR has no node for it")
    _check_neuron(module)
    nir, zeros, threshold = settings.nir, np.zeros(shape), _broadcast_to_neurons(module.threshold, shape)
    recurrent = isinstance(module, (snntorch.RLeaky, snntorch.RSynaptic))
    if module.reset_mechanism == "none":
        if recurrent:
            raise Unsupported("reset_mechanism='none' of a recurrent neuron")
        nodes = {"membrane": _write_membrane(module, zeros, settings), "threshold": nir.Threshold(threshold)}
    else:
        if not (threshold > 0).all():
            raise Unsupported("threshold must be above 0, to which NIR's neuron is reset")
        node = _write_membrane(module, zeros, settings, v_threshold=threshold, v_reset=zeros)
        late = isinstance(module, snntorch.RSynaptic) or module.reset_delay  # snnTorch's RSynaptic ignores its option
        at_once = getattr(module, "resets_at_once", not late)
        if module.reset_mechanism != "zero" or not at_once:
            node.metadata = {RESET: module.reset_mechanism, RESET_DELAY: not at_once}
        nodes = {"lif": node, LOOP: _write_loop(module, shape, settings)} if recurrent else {"": node}
    factor = getattr(module, "graded_spikes_factor", None)
    if factor is not None and bool((factor != 1).any()):
        if recurrent:
            raise Unsupported("graded_spikes_factor of a recurrent neuron")
        nodes["graded"] = nir.Scale(_broadcast_to_neurons(factor, shape))
    return nodes


def _check_neuron(module: Any) -> None:
    for base in type(module).__mro__:
        if base.__module__.split(".")[0] in ("snntorch", "snnipu", "torch"):
            break
        for part in _NEURON_PARTS:
            if part in vars(base):
                raise Unsupported(f"{base.__name__} has its own {part}")
    replaced = [part for part in _NEURON_PARTS if part in module.__dict__ and part != "state_function"]
    replaced += getattr(module, "_replaced", list)()
    if replaced:
        raise Unsupported(f"its {replaced[0]} is replaced")
    for option in ("inhibition", "state_quant"):
        if getattr(module, option):
            raise Unsupported(f"{option} has no place in NIR")


def _write_membrane(neuron: Any, v_leak: np.ndarray, settings: NirSettings, **spiking: np.ndarray) -> Any:
    """Return a neuron's node, with ``R`` such that the input is added unscaled: ``R dt / tau = 1``.

    The node is a LIF, CubaLIF or IF if ``spiking`` has the parameters of spikes, else an LI, CubaLI or I.
    """
    nir, dt, shape = settings.nir, settings.dt, v_leak.shape
    has_current = hasattr(neuron, "alpha")
    if not has_current and (_decay(neuron.beta, shape) == 1).all():
        if v_leak.any():
            raise Unsupported("v_leak of an integrator that does not leak")
        return (nir.IF if spiking else nir.I)(r=np.full(shape, 1 / dt), **spiking)
    taus = {}
    for tau in ("tau_syn", "tau_mem") if has_current else ("tau",):
        decay = _decay(getattr(neuron, _DECAYS[tau]), shape)
        if (decay == 1).any():
            raise Unsupported(f"{_DECAYS[tau]} of 1 has no finite time constant")
        taus[tau] = dt / (1 - decay)
    if not has_current:
        return (nir.LIF if spiking else nir.LI)(**taus, r=taus["tau"] / dt, v_leak=v_leak, **spiking)
    kind = nir.CubaLIF if spiking else nir.CubaLI
    return kind(**taus, r=taus["tau_mem"] / dt, v_leak=v_leak, w_in=taus["tau_syn"] / dt, **spiking)


def _decay(value: Any, shape: Shape) -> np.ndarray:
    return np.clip(_broadcast_to_neurons(value, shape), 0, 1)


def _write_loop(module: Any, shape: Shape, settings: NirSettings) -> Any:
    if len(shape) != 1:
        raise Unsupported(f"recurrent weights of steps of one dimension only, got {shape}")
    if not module.all_to_all:
        return settings.nir.Linear(np.diag(_broadcast_to_neurons(module.recurrent.V, shape)))
    if type(module.recurrent) is not nn.Linear:
        raise Unsupported(f"recurrent weights must be an nn.Linear, got {type(module.recurrent).__name__}")
    return _write_weights(module.recurrent, shape, settings)


def _read_neuron(node: Any, settings: NirSettings) -> List[nn.Module]:
    """Return the neuron of a node, after a Scale if its input has a gain other than 1.

    NIR's equations are solved by Euler's method. ``tau v' = v_leak - v + R I`` becomes
    ``v += k (v_leak - v + R I)`` with ``k = dt / tau``. For ``mem = v - v_leak`` this is
    ``mem = (1 - k) mem + k R I``. A synapse, ``tau_syn I' = -I + w_in S``, is solved likewise for ``syn = k R I``; the
    membrane reads the new current.
    """
    values = vars(node)
    rates = {tau: _rate(tau, values[tau], settings) for tau in _DECAYS if tau in values}
    options: Dict[str, Any] = {_DECAYS[tau]: _uniform(1 - rate) for tau, rate in rates.items()} or {"beta": 1.0}
    r, v_leak, has_current = _array(node.r), _array(values.get("v_leak", 0.0)), "tau_syn" in rates
    if has_current:
        gain = rates["tau_syn"] * _array(node.w_in) * rates["tau_mem"] * r
    else:
        gain = rates.get("tau", settings.dt) * r
    # An IF with r = 1 adds its input to the membrane whatever dt is: norse, sinabs and snnTorch write and read it so.
    per_step = isinstance(node, settings.nir.IF) and (r == 1).all()
    rounding = _precision(*(values[name] for name in (*_DECAYS, "r", "w_in") if name in values))
    if per_step or np.allclose(gain, 1.0, rtol=0, atol=rounding):
        gain = np.ones(())
    before: List[nn.Module] = [] if (gain == 1).all() else [Scale(_uniform(gain))]
    make: Any = neurons.Synaptic if has_current else neurons.Leaky
    if not hasattr(node, "v_threshold"):
        return [*before, Integrator(make(**options, reset_mechanism="none", init_hidden=True), _uniform(v_leak))]
    options.update(_spiking_options(node, v_leak, settings))
    if settings.weights is None:
        return [*before, make(**options)]
    weight, bias = _array(settings.weights.weight), getattr(settings.weights, "bias", None)
    if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        raise Unsupported(f"recurrent weights must be square, got shape {weight.shape}")
    make = RSynaptic if has_current else neurons.RLeaky
    gain = np.broadcast_to(gain, weight.shape[:1])  # the gain of the input applies to recurrent currents, too
    weight = gain[:, None] * weight
    if bias is None and np.array_equal(weight, np.diag(np.diag(weight))):
        return [*before, make(**options, all_to_all=False, V=_tensor(np.diag(weight)))]
    neuron = make(**options, all_to_all=True, linear_features=weight.shape[0])
    with torch.no_grad():
        neuron.recurrent.weight.copy_(_tensor(weight))
        neuron.recurrent.bias.copy_(_tensor(np.zeros_like(gain) if bias is None else gain * _array(bias)))
    return [*before, neuron]


def _rate(name: str, value: Any, settings: NirSettings) -> np.ndarray:
    """Return ``dt / tau``, the fraction of the distance to its rest by which a state decays in a step."""
    tau, dt = _array(value), settings.dt
    if not (tau > 0).all():
        raise ValueError(f"node {settings.name}: {name} must be positive, got {tau.min()}")
    if (tau < dt * (1 - 1e-6)).any():
        raise ValueError(
            f"node {settings.name}: {name} = {tau.min():g} is shorter than the time step dt = {dt:g}: pass the "
            "graph's dt, in its unit of time (norse's exporter writes time constants multiplied by its dt: there dt is "
            "its dt squared)"
        )
    return np.minimum(dt / tau, 1.0)


def _spiking_options(node: Any, v_leak: np.ndarray, settings: NirSettings) -> Dict[str, Any]:
    """Return the keyword arguments of a neuron that spikes. Its membrane is relative to ``v_leak``."""
    threshold, v_reset = _array(node.v_threshold), _array(node.v_reset)
    if not np.allclose(v_reset - v_leak, 0, atol=1e-6 * max(1.0, float(np.abs(threshold).max(initial=0)))):
        raise Unsupported(
            f"v_reset {_uniform(v_reset)} must be v_leak {_uniform(v_leak)}, for neurons are reset to their rest"
        )
    if not (threshold > v_leak).all():
        raise Unsupported("v_threshold must be above v_reset")
    mechanism = _metadata(node).get(RESET, "zero")
    return {
        "threshold": _uniform(threshold - v_leak),
        "reset_mechanism": mechanism.decode() if isinstance(mechanism, bytes) else str(mechanism),
        "reset_delay": bool(_metadata(node).get(RESET_DELAY, False)),
        "spike_grad": settings.spike_grad,
        "init_hidden": True,
    }


TABLE = (
    NodeMapping(nn.Linear, ("Linear", "Affine"), _write_weights, _read_weights),
    NodeMapping(nn.Conv1d, ("Conv1d",), _write_convolution, _read_convolution),
    NodeMapping(nn.Conv2d, ("Conv2d",), _write_convolution, _read_convolution),
    NodeMapping(nn.AvgPool2d, ("AvgPool2d", "SumPool2d"), _write_pool, _read_pool),
    NodeMapping(nn.LPPool2d, (), _write_power_pool),
    NodeMapping(
        nn.Flatten,
        ("Flatten",),
        _write_flatten,
        lambda node, settings: [
            nn.Flatten(*(dim + 1 if dim >= 0 else dim for dim in map(int, (node.start_dim, node.end_dim))))
        ],
    ),
    NodeMapping(
        Scale,
        ("Scale",),
        lambda module, shape, settings: settings.nir.Scale(_broadcast_to_neurons(module.scale, shape)),
        lambda node, settings: [Scale(_tensor(node.scale))],
    ),
    NodeMapping(
        Threshold,
        ("Threshold",),
        lambda module, shape, settings: settings.nir.Threshold(_broadcast_to_neurons(module.threshold, shape)),
        lambda node, settings: [Threshold(_tensor(node.threshold), settings.spike_grad)],
    ),
    NodeMapping(SynapticDelay, ("Delay",), _write_delay, _read_delay),
    NodeMapping(DelayLinear, (), _write_delay_linear),
    NodeMapping(
        Integrator,
        ("LI", "CubaLI", "I"),
        lambda module, shape, settings: _write_membrane(
            module.neuron, _broadcast_to_neurons(module.v_leak, shape), settings
        ),
        _read_neuron,
    ),
    NodeMapping(snntorch.SpikingNeuron, ("LIF", "CubaLIF", "IF"), _write_neuron, _read_neuron),
)
