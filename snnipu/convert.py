"""``snnipu.to_snntorch``: a copy of a network with snnTorch's own neurons; ``snnipu.from_snntorch``: the way back."""

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
from snnipu.neurons._states import STATE_FUNCTIONS, PlainStates
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
_FUSED = (PlainStates, *_STOCK)
# Attributes that only snnipu's neurons have, states aside.
_PRIVATE = ("_resolved", "_last_step", "_description", "_traced", "_is_listed")
_SAID: Set[type] = set()


def to_snntorch(net: Network) -> Network:
    """Copy a network, with snnTorch's own neurons in place of snnipu's.

    The copy is for tools that know a neuron by its class or its module. It computes the same numbers, where snnTorch's
    are finite; those of ``StateLeaky`` and ``LinearLeaky`` are the same up to rounding.

    Args:
        net: any module. ``copy.deepcopy`` copies its parameters, buffers, states, options, hooks and shared modules.

    Returns:
        The copy; its ``state_dict`` is that of ``net``. Each neuron is of snnTorch's class. Its surrogate is what
        snnTorch's factory gives for the same parameters; ``LSO``, an error in snnTorch 1.0, stays snnipu's.
        ``MultiStep``, ``DelayLinear`` and other modules that are no neurons are kept; ``MultiStep`` runs snnTorch's
        neurons step by step.

    Raises:
        TypeError: ``net`` is no module. Or it contains a neuron that snnTorch does not have: an event-driven layer, a
            neuron of :func:`snnipu.neuron`, an instance of a subclass, a parametrized neuron; or an ``Online``.
    """
    copied, found = _copied(net, "to_snntorch")
    for name, module in found:
        reason = _why_not(module)
        if reason:
            raise TypeError(f"to_snntorch: {name or 'net'} ({type(module).__name__}) {reason}")
    for _, module in found:
        if type(module) in _STOCK:
            _make_stock(module)
    return copied


def from_snntorch(net: Network) -> Network:
    """Copy a network, with snnipu's neurons in place of snnTorch's own: the way back from :func:`to_snntorch`.

    Args:
        net: any module.

    Returns:
        The copy. Neurons that snnipu does not have are kept, and so are instances of subclasses of snnTorch's
        neurons; a warning names each such class once.

    Raises:
        TypeError: ``net`` is no module.
    """
    copied, found = _copied(net, "from_snntorch")
    for name, module in found:
        kind = type(module)
        if kind in _OURS:
            _make_ours(module)
        elif isinstance(module, tuple(_OURS)) and not isinstance(module, _FUSED) and kind not in _SAID:
            _SAID.add(kind)
            warnings.warn(
                f"from_snntorch leaves {name or 'net'} as it is: {kind.__name__} is a subclass of snnTorch's neurons",
                stacklevel=2,
            )
    return copied


def _copied(net: Network, caller: str) -> Tuple[Network, List[Tuple[str, nn.Module]]]:
    """Return a deep copy, and all modules in it with their names; modules outside of ``named_modules`` have none."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"{caller}: net must be a torch.nn.Module, got {type(net).__name__}")
    memo: Dict[int, Any] = {}
    for module in net.modules():
        if isinstance(module, snntorch.SpikingNeuron):
            states = [module._buffers.get(name) for name in module._non_persistent_buffers_set]
            for value in (*vars(module).values(), *states):
                # The autograd graph of the last step cannot be copied.
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(net, memo)
    names = {id(module): name for name, module in copied.named_modules()}
    return copied, [(names.get(id(item), ""), item) for item in memo.values() if isinstance(item, nn.Module)]


def _why_not(module: nn.Module) -> Optional[str]:
    """Return why a module has no twin; None: it has one, or is no neuron."""
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
    """Make one of our neurons snnTorch's, in place."""
    own, ours = neuron.__dict__, type(neuron)
    fused = isinstance(neuron, PlainStates)
    states = {name: own.pop(name) for name in neuron._states()} if fused else {}
    for name in _PRIVATE:
        own.pop(name, None)
    neuron.__class__ = _STOCK[ours]
    if hasattr(neuron, "_init_mem"):
        neuron._init_mem()
    for name, state in states.items():
        (neuron._buffers if name in neuron._buffers else own)[name] = state
    _bind_state_function(neuron, ours)
    if isinstance(neuron.spike_grad, Surrogate):
        neuron.spike_grad = _snntorchs(neuron.spike_grad)
    snntorch.SpikingNeuron.instances.append(neuron)


def _make_ours(neuron: Any) -> None:
    """Make one of snnTorch's neurons ours, in place."""
    theirs = type(neuron)
    reset = neuron.__dict__.pop("reset", None)
    neuron.__class__ = _OURS[theirs]
    if isinstance(neuron, PlainStates):
        neuron._hold_states()
        neuron._take_over()
        if reset is not None:
            neuron.reset = reset  # a property of most
    _bind_state_function(neuron, theirs)
    _instances.hold_weakly()
    snntorch.SpikingNeuron.instances.append(neuron)


def _bind_state_function(neuron: Any, before: type) -> None:
    """Let ``state_function`` be the method of the class that the neuron has now."""
    function = getattr(neuron.__dict__.get("state_function"), "__func__", None)
    for name in STATE_FUNCTIONS:
        if function is not None and function is getattr(before, name, None):
            neuron.state_function = getattr(neuron, name)


def _snntorchs(surrogate: Surrogate) -> Any:
    """Return what snnTorch's factory gives for a surrogate of ours; ours where that does not run."""
    if surrogate.name == "no_gradient":
        return snntorch.SpikingNeuron._surrogate_bypass
    theirs = getattr(snntorch.surrogate, surrogate.name)(*surrogate.parameters.values())
    if surrogate.name == "LSO":
        try:
            theirs(torch.zeros(1))
        except TypeError:  # of snnTorch 1.0, which calls another function
            return surrogate
    return theirs
