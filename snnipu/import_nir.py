"""Networks from the Neuromorphic Intermediate Representation (NIR, https://neuroir.org): ``import_from_nir``."""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import snntorch
from torch import nn

from snnipu._extras import LEAST_NIR, require
from snnipu._nir_table import TABLE, Settings
from snnipu._nir_table import RSynaptic as RSynaptic
from snnipu.neurons.nir_nodes import ModuleGraph, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.surrogate import SpikeGrad

DEFAULT_DT = 1e-4  # snnTorch's

Edges = List[Tuple[str, str]]


def reset(net: nn.Module) -> None:
    """Let every neuron and delay in ``net`` start from zeros; ``utils.reset`` sees neurons of its own modules only."""
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()
        if isinstance(module, SynapticDelay):
            module.reset_delay()


def _modules(node: Any, settings: Settings) -> List[nn.Module]:
    """The modules, one after the other, that a node is. Every error names the node."""
    name, kind = settings.name, type(node).__name__
    nir = settings.nir
    read = next((row.read for row in TABLE if isinstance(node, tuple(getattr(nir, kind) for kind in row.nodes))), None)
    if read is None:
        raise Unsupported(f"node {name}: {kind} of NIR has no module in snnipu")
    try:
        return read(node, settings)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(f"node {name}"):
            raise
        error_type = Unsupported if isinstance(error, Unsupported) else ValueError
        raise error_type(f"node {name} ({kind}): {error}") from error


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
        first, last = (_only(inner, kind, name) for kind in (nir.Input, nir.Output))
        edges = [(last if a == name else a, first if b == name else b) for a, b in edges] + inner_edges
        nodes.update(inner)
        for joint in (first, last):  # gives what it gets
            before, after = _around(joint, edges)
            if before and after:
                edges = [edge for edge in edges if joint not in edge] + [(a, b) for a in before for b in after]
                del nodes[joint]
    return nodes, list(dict.fromkeys(edges))


def _only(nodes: Dict[str, Any], kind: Any, name: str) -> str:
    names = [key for key, node in nodes.items() if isinstance(node, kind)]
    if len(names) != 1:
        raise Unsupported(f"node {name}: a graph inside a graph must have one {kind.__name__}")
    return names[0]


def _around(name: str, edges: Edges) -> Tuple[List[str], List[str]]:
    return [a for a, b in edges if b == name], [b for a, b in edges if a == name]


def _close_loops(nodes: Dict[str, Any], edges: Edges, nir: Any) -> Tuple[Dict[str, Any], Edges]:
    """Take the recurrent weights out of the graph: of each neuron that has some, by its name."""
    loops: Dict[str, Any] = {}
    for name, node in list(nodes.items()):
        if not isinstance(node, (nir.Linear, nir.Affine)):
            continue
        before, after = _around(name, edges)
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
    settings = Settings(nir, float(dt), spike_grad)
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
    for name in _in_order(nodes, edges):
        before = tuple(last[a] for a, b in edges if b == name)
        node = nodes[name]
        if name == inputs[0]:
            continue
        if not before:
            raise Unsupported(f"node {name} has no input")
        if not isinstance(node, nir.Output):
            layers = _modules(node, settings._replace(name=name, weights=loops.get(name)))
        else:
            layers = [nn.Identity()] if len(before) > 1 else []
        for position, module in enumerate(layers):
            key = name.replace(".", "_") + ("_scale" if position < len(layers) - 1 else "")
            while key in modules:
                key += "_"
            modules[key], sources[key] = module, before
            before = (key,)
        last[name] = before[0]
    results = [last[name] for name in outputs]
    keys: List[Optional[str]] = list(modules)
    is_chain = results == keys[-1:] and list(sources.values()) == [(key,) for key in (None, *keys[:-1])]
    return nn.Sequential(OrderedDict(modules)) if is_chain else ModuleGraph(modules, sources, tuple(results))
