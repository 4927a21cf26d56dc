"""``import_from_nir`` makes a network from a graph of the Neuromorphic Intermediate Representation (NIR).

See https://neuroir.org for the format, and ``snnipu.export_nir`` for the reverse.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import snntorch
from torch import nn

from snnipu._extras import LEAST_NIR, require
from snnipu._nir_table import TABLE, NirSettings
from snnipu._nir_table import RSynaptic as RSynaptic
from snnipu.neurons.nir_nodes import ModuleGraph, Unsupported
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.surrogate import SpikeGrad

DEFAULT_DT = 1e-4  # the default of snnTorch, in seconds

Edges = List[Tuple[str, str]]


def reset(net: nn.Module) -> None:
    """Reset every neuron and delay in ``net`` to zeros, at any depth. ``utils.reset`` may miss nested neurons.

    Args:
        net: a network of :func:`import_from_nir`, or a module that contains some.
    """
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron) and hasattr(module, "reset_mem"):
            module.reset_mem()
        if isinstance(module, SynapticDelay):
            module.reset_delay()


def _modules(node: Any, settings: NirSettings) -> List[nn.Module]:
    """Return the modules of a node, in series. Every error names the node."""
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


def _flatten(graph: Any, nir: Any, prefix: str = "") -> Tuple[Dict[str, Any], Edges]:
    """Return nodes and edges of a graph, with inner graphs replaced by their nodes and edges."""
    nodes: Dict[str, Any] = {}
    edges = [(prefix + a, prefix + b) for a, b in graph.edges]
    for key, node in graph.nodes.items():
        name = prefix + key
        if not isinstance(node, nir.NIRGraph):
            nodes[name] = node
            continue
        inner, inner_edges = _flatten(node, nir, name + ".")
        first, last = (_single_node(inner, kind, name) for kind in (nir.Input, nir.Output))
        edges = [(last if a == name else a, first if b == name else b) for a, b in edges] + inner_edges
        nodes.update(inner)
        for identity in (first, last):
            before, after = _neighbours(identity, edges)
            if before and after:
                edges = [edge for edge in edges if identity not in edge] + [(a, b) for a in before for b in after]
                del nodes[identity]
    return nodes, list(dict.fromkeys(edges))


def _single_node(nodes: Dict[str, Any], kind: Any, name: str) -> str:
    names = [key for key, node in nodes.items() if isinstance(node, kind)]
    if len(names) != 1:
        raise Unsupported(f"node {name}: a graph inside a graph must have one {kind.__name__}")
    return names[0]


def _neighbours(name: str, edges: Edges) -> Tuple[List[str], List[str]]:
    """Return the nodes with an edge to node ``name``, and those with an edge from it."""
    return [a for a, b in edges if b == name], [b for a, b in edges if a == name]


def _remove_loops(nodes: Dict[str, Any], edges: Edges, nir: Any) -> Tuple[Dict[str, Any], Edges]:
    """Remove the nodes of recurrent weights from ``nodes``.

    Returns:
        Name of the neuron -> node of its recurrent weights, and the remaining edges.
    """
    loops: Dict[str, Any] = {}
    for name, node in list(nodes.items()):
        if not isinstance(node, (nir.Linear, nir.Affine)):
            continue
        before, after = _neighbours(name, edges)
        if len(before) == 1 and before == after and isinstance(nodes[before[0]], (nir.LIF, nir.IF, nir.CubaLIF)):
            if before[0] in loops:
                raise Unsupported(f"node {before[0]}: more than one recurrent connection")
            loops[before[0]] = nodes.pop(name)
            edges = [edge for edge in edges if name not in edge]
    return loops, edges


def _in_order(nodes: Dict[str, Any], edges: Edges) -> List[str]:
    """Return the names of the nodes in topological order."""
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
    r"""Make a network of fused neurons from a graph of NIR.

    .. code-block:: python

        net = import_from_nir(nir.read("network.nir"))
        spk = net(x)                       # one step, x [B, ...]; neurons keep their states
        spk = snn.MultiStep(net)(x)        # all steps, x [T, B, ...]
        reset(net)                         # start from zeros again

    NIR's equations are solved by Euler's method in steps of ``dt``, with ``k = dt / tau``:

    .. math::
        v_{t+1} = v_t + k (v_{leak} - v_t + R I_{t+1}), \qquad \beta = 1 - k

    The input is multiplied by ``k R``, by a :class:`~snnipu.neurons.nir_nodes.Scale` before the neuron unless the
    factor is 1. ``CubaLIF`` and ``CubaLI`` have ``alpha = 1 - dt / tau_syn``, and the further factor
    ``w_in dt / tau_syn``. Membranes are relative to ``v_leak``. An ``IF`` with ``r = 1`` adds its input in each step
    whatever ``dt`` is, because norse, sinabs and snnTorch write and read it so. Any other ``r`` is multiplied by
    ``dt``.

    A Delay becomes a ``SynapticDelay`` of ``delay / dt`` steps. A spike that arrives between two steps is split
    between them. Other nodes become these modules:

    ================================================  ======================================================
    nodes                                             module
    ================================================  ======================================================
    Linear, Affine, Conv1d, Conv2d, AvgPool2d,        PyTorch's
    SumPool2d, Flatten
    Scale, Threshold                                  those of ``snnipu.neurons.nir_nodes``
    LIF, IF                                           ``Leaky``
    CubaLIF                                           ``Synaptic``
    LIF or CubaLIF, with a Linear or Affine from its  ``RLeaky``, ``RSynaptic``
    spikes to its input
    LI, I, CubaLI                                     an ``Integrator``, which returns its membrane
    ================================================  ======================================================

    An inner graph is replaced by its nodes.

    Args:
        graph: a ``nir.NIRGraph``.
        dt: time step, in the graph's unit of time. None: the ``dt`` that snnipu's ``export_to_nir`` has stored, else
            snnTorch's default, 1e-4.
        spike_grad: surrogate gradient of the neurons; None: snnTorch's default.

    Returns:
        An ``nn.Sequential`` if the graph is a chain. Else a module that adds up the inputs of each node. Modules have
        the names of their nodes, with "_" in place of dots.

    Raises:
        MissingExtra: the package nir is not installed.
        TypeError: ``graph`` is not a graph of NIR.
        Unsupported: a node has no module in snnipu. It is a ValueError and a NotImplementedError.
        ValueError: a time constant is shorter than ``dt``, or ``dt`` is not positive.
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
    settings = NirSettings(nir, float(dt), spike_grad)
    nodes, edges = _flatten(graph, nir)
    for a, b in edges:
        for end in (a, b):
            if end not in nodes:
                raise ValueError(f"graph has the edge {(a, b)}, and no node {end!r}")
    loops, edges = _remove_loops(nodes, edges, nir)
    inputs = [name for name, node in nodes.items() if isinstance(node, nir.Input)]
    outputs = [name for name, node in nodes.items() if isinstance(node, nir.Output)]
    if len(inputs) != 1 or not outputs:
        raise Unsupported(f"the graph must have one Input and an Output, got {len(inputs)} and {len(outputs)}")

    modules: Dict[str, nn.Module] = {}
    sources: Dict[str, Tuple[Optional[str], ...]] = {}
    last: Dict[str, Optional[str]] = {inputs[0]: None}  # node -> its last module, whose output is that of the node
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
