"""Networks as graphs of the Neuromorphic Intermediate Representation (NIR, https://neuroir.org): ``export_to_nir``."""

import warnings
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import snntorch
import torch
from torch import nn

from snnipu._extras import LEAST_NIR, require
from snnipu._nir_table import LOOP, RESET, TABLE, Settings
from snnipu.import_nir import DEFAULT_DT
from snnipu.neurons._hooks import is_hooked
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.multistep import MultiStep, _in_turn
from snnipu.neurons.nir_nodes import Integrator, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay

Shape = Tuple[int, ...]
_Seen = Tuple[str, nn.Module, torch.Tensor, torch.Tensor]  # name, module, input, output
# What keeps something from step to step, and gives a step of its input's shape.
_KEEP_STATE = (snntorch.SpikingNeuron, Integrator, SynapticDelay)
_TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class _Call(NamedTuple):
    """A module's call, without the batch's dimension."""

    name: str
    module: nn.Module
    source: str  # the name of the call whose output it takes; "" is the network's input
    shape: Shape
    out_shape: Shape


def _nodes(call: _Call, settings: Settings) -> Dict[str, Any]:
    """The nodes in series that a module is, by suffix of their names; LOOP is beside them."""
    kind = snntorch.SpikingNeuron if isinstance(call.module, snntorch.SpikingNeuron) else type(call.module)
    write = next((row.write for row in TABLE if row.module is kind), None)
    if write is None:
        raise _refused(call.name, call.module, "NIR has no node for it")
    try:
        written = write(call.module, call.shape, settings)
    except Unsupported as error:
        raise _refused(call.name, call.module, str(error)) from None
    nodes = written if isinstance(written, dict) else {"": written}
    # nir infers not all shapes.
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


def _refused(name: str, module: nn.Module, why: str) -> Unsupported:
    return Unsupported(f"module {name or 'itself'} ({type(module).__name__}) cannot be written to NIR: {why}")


def _is_leaf(module: nn.Module) -> bool:
    return isinstance(module, (snntorch.SpikingNeuron, Integrator)) or not any(True for _ in module.children())


def _chain(module: nn.Module, sample: torch.Tensor) -> List[_Seen]:
    """The calls of a sequence of modules, of which no neuron is run."""
    seen: List[_Seen] = []
    x = sample
    with torch.no_grad():
        for name, part in _in_turn(module):
            if isinstance(part, _TRANSPARENT):
                continue
            if not _is_leaf(part):
                raise _refused(name, part, f"it has modules of its own, inside {type(module).__name__}")
            if isinstance(part, DelayLinear):
                out = x.new_zeros(len(x), part.out_features)
            else:
                out = x if isinstance(part, _KEEP_STATE) else part(x)
            if not isinstance(out, torch.Tensor):
                raise _refused(name, part, "it returns no tensor")
            seen.append((name, part, x, out))
            x = out
    return seen


def _trace(module: nn.Module, sample: torch.Tensor, arguments: Sequence[Any]) -> List[_Seen]:
    """The calls that a forward pass makes, the first of each module."""
    seen: List[_Seen] = []
    names = {part: name for name, part in module.named_modules() if _is_leaf(part)}
    for part in list(names):
        for inner in part.children():  # a neuron's own
            for own in inner.modules():
                names.pop(own, None)

    def see(part: nn.Module, inputs: Any, out: Any) -> None:
        out = out[0] if isinstance(out, tuple) else out
        if not inputs or not isinstance(inputs[0], torch.Tensor) or not isinstance(out, torch.Tensor):
            raise _refused(names[part], part, "it takes no tensor")
        seen.append((names[part], part, inputs[0], out))

    states = [(values, values.copy()) for part in module.modules() for values in (part.__dict__, part._buffers)]
    handles = [part.register_forward_hook(see) for part in names]
    try:
        with torch.no_grad():
            module(sample, *arguments)
    finally:
        for handle in handles:
            handle.remove()
        for values, before in states:
            values.clear()
            values.update(before)
    order = [name for name, *_ in seen]
    first = list(dict.fromkeys(order))
    if not first:
        raise Unsupported(f"{type(module).__name__} cannot be written to NIR: its forward calls no module")
    if order != first * (len(order) // len(first)):
        raise Unsupported(
            f"{type(module).__name__} cannot be written to NIR: its forward must call each module once, or all in "
            f"the same order in each step, got {', '.join(order[:20])}"
        )
    return seen[: len(first)]


def _calls(seen: List[_Seen], sample: torch.Tensor) -> List[_Call]:
    calls: List[_Call] = []
    known: Dict[int, Tuple[str, torch.Tensor]] = {sample.data_ptr(): ("", sample)}
    for name, part, x, out in seen:
        if x.data_ptr() not in known:
            raise _refused(
                name,
                part,
                "its input is no module's output as it is; use modules (nn.Flatten, say) for what is done in between",
            )
        source, value = known[x.data_ptr()]
        # A loop in forward gives the first module a step of the input; time is its first or its second dimension.
        bases = [value] if source or value.dim() < 3 else [value, value[0], value[:, 0]]
        if all(base.shape != x.shape for base in bases):
            base = next((base for base in bases if base.flatten(1).shape == x.shape), None)
            if base is None:
                where = f"module {source}" if source else "sample_data"
                why = f"its input, {tuple(x.shape)}, is another shape than {where} has, {tuple(value.shape)}"
                raise _refused(name, part, why)
            flatten = f"{name}.flatten"
            calls.append(_Call(flatten, nn.Flatten(), source, tuple(base.shape[1:]), tuple(x.shape[1:])))
            source = flatten
        if not isinstance(part, _TRANSPARENT):
            calls.append(_Call(name, part, source, tuple(x.shape[1:]), tuple(out.shape[1:])))
            source = name
        known[out.data_ptr()] = (source, out)
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
        sample_data = sample_data[0] if over_time else sample_data
        seen = _chain(module, sample_data)
    elif _is_leaf(module):
        seen = _chain(nn.Sequential(OrderedDict({model_name: module})), sample_data)
    else:
        seen = _trace(module, sample_data, model_fwd_args)
    calls = _calls(seen, sample_data)
    if not calls:
        raise Unsupported(f"{type(module).__name__} has no module that could be written to NIR")
    return _graph(calls, Settings(nir, float(dt)))


def _graph(calls: List[_Call], settings: Settings) -> Any:
    nir = settings.nir
    nodes: Dict[str, Any] = {"input": nir.Input(np.array(calls[0].shape))}
    edges: List[Tuple[str, str]] = []
    last = {"": "input"}  # the node that gives a call's output
    other_resets = []
    for call in calls:
        if not call.source and call.shape != calls[0].shape:
            raise Unsupported(f"module {call.name} takes another part of the input than module {calls[0].name}")
        parts = _nodes(call, settings)
        names = {suffix: f"{call.name}.{suffix}" if suffix else call.name for suffix in parts}
        if {"input", "output"} & {*names.values()}:
            raise Unsupported("modules called 'input' or 'output': these are names of NIR's own nodes")
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
            "snnipu reads from the graph's metadata (reset_mechanism='zero' with reset_delay=False is NIR's)",
            stacklevel=3,
        )
    return nir.NIRGraph(nodes, edges, metadata={"snnipu_dt": settings.dt}, type_check=False)
