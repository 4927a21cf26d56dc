"""``to_snntorch`` copies a network with snnTorch's neurons in place of snnipu's; ``from_snntorch`` does the reverse."""

import copy
import warnings
from typing import Any, Dict, List, Optional, Set, Tuple, TypeVar

import snntorch
import torch
from torch import nn
from torch.nn.utils import parametrize

from snnipu import neurons
from snnipu._names.stock import stock
from snnipu.neurons import _instances
from snnipu.neurons._states import STATE_FUNCTIONS, AttributeStates
from snnipu.neurons.own import OwnNeuron
from snnipu.neurons.sparse_leaky import SparseNeurons
from snnipu.online import Online
from snnipu.surrogate import Surrogate

Network = TypeVar("Network", bound=nn.Module)

_STOCK: Dict[type, Any] = {
    getattr(neurons, name): stock(name)
    for name in (
        "Leaky",
        "Synaptic",
        "Alpha",
        "Lapicque",
        "RLeaky",
        "RSynaptic",
        "DeltaLeaky",
        "SLSTM",
        "SConv2dLSTM",
        "StateLeaky",
        "LinearLeaky",
    )
}
_OURS = {theirs: ours for ours, theirs in _STOCK.items()}
_FUSED = (AttributeStates, *_STOCK)
# Attributes that only snnipu's neurons have, apart from states.
_PRIVATE = ("_resolved", "_last_step", "_description", "_traced", "_is_listed")
_WARNED: Set[type] = set()


def to_snntorch(net: Network) -> Network:
    """Copy a network, with snnTorch's neurons in place of snnipu's.

    The copy is for tools that recognise a neuron by its class or its module. It computes the same numbers wherever
    snnTorch's are finite. For ``StateLeaky`` and ``LinearLeaky`` they are equal up to rounding.

    Args:
        net: any module. ``copy.deepcopy`` copies its parameters, buffers, states, options, hooks and shared modules.

    Returns:
        The copy. Its ``state_dict`` equals that of ``net``.

        * Each neuron has the class of snnTorch. Its surrogate is made by snnTorch's factory with the same parameters;
          ``LSO``, which fails in snnTorch 1.0, stays snnipu's.
        * Modules that are not neurons, such as ``MultiStep`` and ``DelayLinear``, are kept. ``MultiStep`` runs
          snnTorch's neurons step by step.

    Raises:
        TypeError: ``net`` is not a module, or it contains an ``Online``, or it contains a neuron without a counterpart
            in snnTorch: an event-driven layer, a neuron of :func:`snnipu.neuron`, an instance of a subclass, or a
            parametrized neuron.
    """
    copied, modules = deep_copy(net, "to_snntorch")
    for name, module in modules:
        reason = _why_not(module)
        if reason:
            raise TypeError(f"to_snntorch: {name or 'net'} ({type(module).__name__}) {reason}")
    for _, module in modules:
        if type(module) in _STOCK:
            _make_stock(module)
    return copied


def from_snntorch(net: Network) -> Network:
    """Copy a network, with snnipu's neurons in place of snnTorch's: the reverse of :func:`to_snntorch`.

    Args:
        net: any module.

    Returns:
        The copy. Neurons that snnipu does not have are kept. Instances of subclasses of snnTorch's neurons are kept,
        too; a warning names each such class once.

    Raises:
        TypeError: ``net`` is not a module.
    """
    copied, modules = deep_copy(net, "from_snntorch")
    for name, module in modules:
        kind = type(module)
        if kind in _OURS:
            _make_ours(module)
        elif isinstance(module, tuple(_OURS)) and not isinstance(module, _FUSED) and kind not in _WARNED:
            _WARNED.add(kind)
            warnings.warn(
                f"from_snntorch leaves {name or 'net'} as it is: {kind.__name__} is a subclass of snnTorch's neurons",
                stacklevel=2,
            )
    return copied


def deep_copy(net: Network, caller: str) -> Tuple[Network, List[Tuple[str, nn.Module]]]:
    """Return a deep copy of ``net`` and the (name, module) pairs of all modules in it.

    Modules that ``named_modules`` does not list, such as those in a plain list, have the name "".
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"{caller}: net must be a torch.nn.Module, got {type(net).__name__}")
    # PyTorch refuses to deep-copy a tensor within a graph, such as the membrane after a training step.
    memo: Dict[int, Any] = {
        id(value): value.detach().clone()
        for module in net.modules()
        for value in (*vars(module).values(), *module._buffers.values())
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    copied = copy.deepcopy(net, memo)
    names = {id(module): name for name, module in copied.named_modules()}
    return copied, [(names.get(id(item), ""), item) for item in memo.values() if isinstance(item, nn.Module)]


def _why_not(module: nn.Module) -> Optional[str]:
    """Return the reason why snnTorch has no counterpart of a module; None if it has one, or if it is not a neuron."""
    if isinstance(module, Online):
        return "learns by rules of snnipu's neurons: convert its .net"
    if isinstance(module, (SparseNeurons, neurons.SparseNetwork)):
        return "is event-driven, as no neuron of snnTorch: its to_dense() gives layers that can be converted"
    if type(module) in _STOCK or not isinstance(module, _FUSED):
        return None
    if parametrize.is_parametrized(module):
        return "is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
    if isinstance(module, OwnNeuron):
        return (
            "is a neuron of one's own, which snnTorch does not have: write it as a subclass of snntorch.SpikingNeuron"
        )
    return "is a subclass of snnipu's neurons: derive it from snnTorch's instead"


def _make_stock(neuron: Any) -> None:
    """Turn a neuron of snnipu into one of snnTorch, in place."""
    attributes, ours = neuron.__dict__, type(neuron)
    fused = isinstance(neuron, AttributeStates)
    states = {name: attributes.pop(name) for name in neuron._states()} if fused else {}
    for name in _PRIVATE:
        attributes.pop(name, None)
    neuron.__class__ = _STOCK[ours]
    if hasattr(neuron, "_init_mem"):
        neuron._init_mem()
    for name, state in states.items():
        (neuron._buffers if name in neuron._buffers else attributes)[name] = state
    _bind_state_function(neuron, ours)
    if isinstance(neuron.spike_grad, Surrogate):
        neuron.spike_grad = _to_stock_surrogate(neuron.spike_grad)
    snntorch.SpikingNeuron.instances.append(neuron)


def _make_ours(neuron: Any) -> None:
    """Turn a neuron of snnTorch into one of snnipu, in place."""
    theirs = type(neuron)
    reset = neuron.__dict__.pop("reset", None)
    neuron.__class__ = _OURS[theirs]
    if isinstance(neuron, AttributeStates):
        neuron._hold_states()
        neuron._take_over()
        if reset is not None:
            neuron.reset = reset  # a property in most classes
    _bind_state_function(neuron, theirs)
    _instances.hold_weakly()
    snntorch.SpikingNeuron.instances.append(neuron)


def _bind_state_function(neuron: Any, before: type) -> None:
    """Rebind ``state_function`` to the method of the neuron's new class; ``before`` is its previous class."""
    function = getattr(neuron.__dict__.get("state_function"), "__func__", None)
    for name in STATE_FUNCTIONS:
        if function is not None and function is getattr(before, name, None):
            neuron.state_function = getattr(neuron, name)


def _to_stock_surrogate(surrogate: Surrogate) -> Any:
    """Return snnTorch's surrogate with the same parameters; ``surrogate`` itself if snnTorch's fails."""
    if surrogate.name == "no_gradient":
        return snntorch.SpikingNeuron._surrogate_bypass
    theirs = getattr(snntorch.surrogate, surrogate.name)(*surrogate.parameters.values())
    if surrogate.name == "LSO":
        try:
            theirs(torch.zeros(1))
        except TypeError:  # LSO of snnTorch 1.0 calls StochasticSpikeOperator, which takes other arguments
            return surrogate
    return theirs
