"""``export_to_nir`` writes a network as a graph of the Neuromorphic Intermediate Representation (NIR).

See https://neuroir.org for the format, and ``snnipu.import_nir`` for the reverse.
"""

import warnings
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import snntorch
import torch
from torch import nn

from snnipu._extras import LEAST_NIR, require
from snnipu._nir_table import LOOP, RESET, TABLE, NirSettings
from snnipu.convert import deep_copy
from snnipu.import_nir import DEFAULT_DT
from snnipu.neurons._hooks import is_hooked
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import MultiStep, _flat_modules
from snnipu.neurons.nir_nodes import Integrator, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay

Shape = Tuple[int, ...]
_Observed = Tuple[str, nn.Module, torch.Tensor, torch.Tensor]  # name, module, input, output
# Modules with a state. They are not run, because their output has the shape of their input.
_STATEFUL = (snntorch.SpikingNeuron, Integrator, SynapticDelay)
_TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class _ModuleCall(NamedTuple):
    """A call of a module in the forward pass.

    Attributes:
        name: name of the module in the network.
        module: the module.
        source: name of the call whose output is the input; "" is the network's input.
        shape: shape of the input, without the batch.
        out_shape: shape of the output, without the batch.
    """

    name: str
    module: nn.Module
    source: str
    shape: Shape
    out_shape: Shape


def _nodes(call: _ModuleCall, settings: NirSettings) -> Dict[str, Any]:
    """Return the nodes of a module by suffix of their names, in series. A node ``LOOP`` is not in the series."""
    kind = snntorch.SpikingNeuron if isinstance(call.module, snntorch.SpikingNeuron) else type(call.module)
    write = next((row.write for row in TABLE if row.module is kind), None)
    if write is None:
        raise _unsupported(call.name, call.module, "NIR has no node for it")
    try:
        written = write(call.module, call.shape, settings)
    except Unsupported as error:
        raise _unsupported(call.name, call.module, str(error)) from None
    nodes = written if isinstance(written, dict) else {"": written}
    # The package nir does not infer the shapes of all nodes.
    shape = call.shape
    *_, last = (suffix for suffix in nodes if suffix != LOOP)
    for suffix, node in nodes.items():
        node.input_type = {"input": np.array(shape, dtype=np.int64)}
        if suffix == last:
            shape = call.out_shape
        elif isinstance(node, settings.nir.Linear):
            shape = node.weight.shape[:1]
        node.output_type = {"output": np.array(shape, dtype=np.int64)}
    return nodes


def _unsupported(name: str, module: nn.Module, why: str) -> Unsupported:
    return Unsupported(f"module {name or 'itself'} ({type(module).__name__}) cannot be written to NIR: {why}")


def _is_leaf(module: nn.Module) -> bool:
    return isinstance(module, (snntorch.SpikingNeuron, Integrator)) or not any(True for _ in module.children())


def _chain(module: nn.Module, sample: torch.Tensor) -> List[_Observed]:
    """Return the calls of modules in series. Neurons and delays are not run."""
    observed: List[_Observed] = []
    x = sample
    with torch.no_grad():
        for name, part in _flat_modules(module):
            if isinstance(part, _TRANSPARENT):
                continue
            if not _is_leaf(part):
                raise _unsupported(name, part, f"it has modules of its own, inside {type(module).__name__}")
            if isinstance(part, DelayLinear):
                out = x.new_zeros(len(x), part.out_features)
            else:
                out = x if isinstance(part, _STATEFUL) else part(x)
            if not isinstance(out, torch.Tensor):
                raise _unsupported(name, part, "it returns no tensor")
            observed.append((name, part, x, out))
            x = out
    return observed


def _trace(module: nn.Module, sample: torch.Tensor, arguments: Sequence[Any]) -> List[_Observed]:
    """Run a forward pass of a copy, and return the first call of each module."""
    observed: List[_Observed] = []
    module, _ = deep_copy(module, "export_to_nir")
    names = {part: name for name, part in module.named_modules() if _is_leaf(part)}
    for part in list(names):
        for child in part.children():  # modules inside a neuron
            for inner in child.modules():
                names.pop(inner, None)

    def observe(part: nn.Module, inputs: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if not inputs or not isinstance(inputs[0], torch.Tensor) or not isinstance(out, torch.Tensor):
            raise _unsupported(names[part], part, "it takes no tensor")
        observed.append((names[part], part, inputs[0], out))

    for part in names:
        part.register_forward_hook(observe)
    with torch.no_grad():
        module(sample, *arguments)
    order = [name for name, *_ in observed]
    first = list(dict.fromkeys(order))
    if not first:
        raise Unsupported(f"{type(module).__name__} cannot be written to NIR: its forward calls no module")
    if order != first * (len(order) // len(first)):
        raise Unsupported(
            f"{type(module).__name__} cannot be written to NIR: its forward must call each module once, or all in "
            f"the same order in each step, got {', '.join(order[:20])}"
        )
    return observed[: len(first)]


def _calls(observed: List[_Observed], sample: torch.Tensor) -> List[_ModuleCall]:
    calls: List[_ModuleCall] = []
    produced: Dict[int, Tuple[str, torch.Tensor]] = {sample.data_ptr(): ("", sample)}
    for name, part, x, out in observed:
        if x.data_ptr() not in produced:
            raise _unsupported(
                name,
                part,
                "its input is not the output of another module; use modules, such as nn.Flatten, for what is done in "
                "between",
            )
        source, value = produced[x.data_ptr()]
        # If forward loops over time, the first module's input is one step; time is dimension 0 or 1 of sample_data.
        bases = [value] if source or value.dim() < 3 else [value, value[0], value[:, 0]]
        if all(base.shape != x.shape for base in bases):
            base = next((base for base in bases if base.flatten(1).shape == x.shape), None)
            if base is None:
                where = f"module {source}" if source else "sample_data"
                why = f"its input has the shape {tuple(x.shape)}, but {where} has {tuple(value.shape)}"
                raise _unsupported(name, part, why)
            flatten = f"{name}.flatten"
            calls.append(_ModuleCall(flatten, nn.Flatten(), source, tuple(base.shape[1:]), tuple(x.shape[1:])))
            source = flatten
        if not isinstance(part, _TRANSPARENT):
            calls.append(_ModuleCall(name, part, source, tuple(x.shape[1:]), tuple(out.shape[1:])))
            source = name
        produced[out.data_ptr()] = (source, out)
    return calls


def export_to_nir(
    module: nn.Module,
    sample_data: torch.Tensor,
    model_name: str = "snntorch",
    model_fwd_args: Sequence[Any] = (),
    ignore_dims: Sequence[int] = (),
    *,
    dt: float = DEFAULT_DT,
) -> Any:
    r"""Return a network as a graph of NIR.

    A decay ``beta`` becomes the time constant ``tau = dt / (1 - beta)`` with ``r = tau / dt``. A step of Euler's method
    by ``dt`` then equals the step of the neuron. ``beta = 1`` becomes an IF, or an I. Every parameter has the shape of
    its layer. Time constants are float64, from which the same float32 decays can be computed.

    ============================  ====================================================================
    module                        nodes
    ============================  ====================================================================
    ``Leaky``, ``Synaptic``       LIF, CubaLIF
    ``RLeaky``, ``RSynaptic``     LIF or CubaLIF, with Linear or Affine weights from its spikes to its input
    ``reset_mechanism="none"``    LI or CubaLI, then a Threshold
    ``graded_spikes_factor``      a Scale after the neuron
    ``SynapticDelay``             a Delay
    ``DelayLinear``               a Delay before the weights if its delays are per input, after them if per output
    ============================  ====================================================================

    NIR's neurons reset to a potential in the step of the spike: ``reset_mechanism="zero"`` with
    ``reset_delay=False``. Any other reset is written as metadata, which :func:`import_from_nir
    <snnipu.import_nir.import_from_nir>` reads. Other tools will reset these layers to 0; a warning names them.

    An ``nn.Sequential`` or ``MultiStep`` is converted module by module. For any other network one forward pass is
    observed. The input of each module must then be the output of another module, or that output flattened.

    Args:
        module: the network, or one layer.
        sample_data: an input, ``[B, ...]``; ``[T, B, ...]`` for a ``MultiStep``. Its values do not matter.
        model_name: name of the node, if the network is a single module.
        model_fwd_args: further arguments of the network's ``forward``.
        ignore_dims: dimensions of ``sample_data`` that are not part of a step: those of the batch and of time. They
            are checked, but not needed.
        dt: time step of the graph, in seconds.

    Returns:
        A ``nir.NIRGraph``.

    Raises:
        MissingExtra: the package nir is not installed.
        TypeError: ``module`` is not a module, or ``sample_data`` is not a tensor.
        Unsupported: NIR cannot express the network. It is a ValueError and a NotImplementedError.
        ValueError: ``dt`` is not positive, ``sample_data`` has no batch, or ``ignore_dims`` are other dimensions.
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
        sample_data = sample_data[0] if over_time else sample_data
        observed = _chain(module, sample_data)
    elif _is_leaf(module):
        observed = _chain(nn.Sequential(OrderedDict({model_name: module})), sample_data)
    else:
        observed = _trace(module, sample_data, model_fwd_args)
    calls = _calls(observed, sample_data)
    if not calls:
        raise Unsupported(f"{type(module).__name__} has no module that could be written to NIR")
    return _graph(calls, NirSettings(nir, float(dt)))


def _graph(calls: List[_ModuleCall], settings: NirSettings) -> Any:
    nir = settings.nir
    nodes: Dict[str, Any] = {"input": nir.Input(np.array(calls[0].shape))}
    edges: List[Tuple[str, str]] = []
    last = {"": "input"}  # name of a call -> its last node, whose output is the output of the call
    other_resets = []
    for call in calls:
        if not call.source and call.shape != calls[0].shape:
            raise Unsupported(f"module {call.name} takes another part of the input than module {calls[0].name}")
        parts = _nodes(call, settings)
        names = {suffix: f"{call.name}.{suffix}" if suffix else call.name for suffix in parts}
        if {"input", "output"} & {*names.values()}:
            raise Unsupported("modules called 'input' or 'output': NIR's Input and Output nodes have these names")
        nodes.update((names[suffix], node) for suffix, node in parts.items())
        series = [last[call.source], *(name for suffix, name in names.items() if suffix != LOOP)]
        edges += zip(series, series[1:])
        last[call.name] = series[-1]
        if LOOP in parts:
            edges += [(series[-1], names[LOOP]), (names[LOOP], series[-1])]
        if any(RESET in node.metadata for node in parts.values()):
            other_resets.append(call.name)
    sources = {call.source for call in calls}
    ends = [call for call in calls if call.name not in sources]
    for call in ends:
        name = "output" if len(ends) == 1 else f"output_{call.name}"
        nodes[name] = nir.Output(np.array(call.out_shape))
        edges.append((last[call.name], name))
    if other_resets:
        warnings.warn(
            f"NIR resets to a potential, at once; the reset of {', '.join(other_resets)} is another, which only "
            "snnipu reads from the graph's metadata. NIR's reset is reset_mechanism='zero' with reset_delay=False",
            stacklevel=3,
        )
    return nir.NIRGraph(nodes, edges, metadata={"snnipu_dt": settings.dt}, type_check=False)
