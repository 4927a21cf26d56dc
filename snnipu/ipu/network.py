"""What a model is as an event-driven network, to be planned."""

from typing import Any, List, Optional, Sequence, Tuple

from torch import nn

from snnipu.neurons import Leaky, MultiStep, SparseConvLeaky, SparseLeaky, SparseNetwork
from snnipu.neurons.sparse_leaky import SparseNeurons
from snnipu.planning import network
from snnipu.planning.network import Activity, activities

# Slots for each expected spike where a model has no cap.
HEADROOM = 2.0


class NetworkSpec(network.NetworkSpec):
    __doc__ = network.NetworkSpec.__doc__

    @classmethod
    def from_module(cls, module: nn.Module, activity: Activity = 0.02, **more: Any) -> "NetworkSpec":
        """What a model is, as an event-driven network.

        Takes a :class:`snnipu.SparseNetwork`, or a module that holds exactly one; a stack of
        :class:`snnipu.SparseLeaky`, recurrent ones too; a stack of ``nn.Linear`` and :class:`snnipu.Leaky`, which is
        planned as its event-driven twin. Layers without ``max_spikes`` get two slots for each expected spike.

        Raises:
            TypeError: the module holds none of these; the message says what it holds.
            ValueError: ``activity`` does not fit.
        """
        sizes, caps, recurrent, delay = _layers_of(module)
        shares = activities(activity, len(sizes))
        slots = [
            min(size, cap) if cap is not None else min(size, max(2, round(HEADROOM * share * size)))
            for size, cap, share in zip(sizes, caps, shares)
        ]
        spikes = [min(share * size, float(slot)) for share, size, slot in zip(shares, sizes, slots)]
        known = {"delay": delay, "recurrent": tuple(recurrent) if any(recurrent) else ()}
        return cls(tuple(sizes), tuple(spikes), tuple(slots), **{**known, **more})


_Layers = Tuple[List[int], List[Optional[int]], List[bool], int]


def _layers_of(module: nn.Module) -> _Layers:
    """Sizes, caps (input first), which layers are recurrent, and delay."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(module).__name__}")
    networks = [child for child in module.modules() if isinstance(child, SparseNetwork)]
    if any(isinstance(child, SparseConvLeaky) for child in module.modules()):
        raise TypeError(
            "model: layers on maps are no part of such a plan; python -m snnipu profile counts them by themselves"
        )
    for child in module.modules():
        if isinstance(child, SparseNeurons) and not isinstance(child, SparseLeaky):
            raise TypeError(f"model: such a plan is of leaky neurons, and a {type(child).__name__} has others")
        if isinstance(child, SparseLeaky) and child.max_delay is not None:
            raise TypeError(
                "model: such a plan is of layers without max_delay; python -m snnipu profile counts them by themselves"
            )
    if len(networks) == 1:
        only = networks[0]
        caps = [only.max_input_spikes, *(layer.max_spikes for layer in only.layers)]
        return list(only.sizes), caps, _recurrent(only.layers), only.delay
    if len(networks) > 1:
        raise TypeError(f"model: it holds {len(networks)} SparseNetworks, and a plan is of one")
    leaves = [child for child in module.modules() if isinstance(child, (SparseLeaky, nn.Linear, Leaky))]
    sparse = [leaf for leaf in leaves if isinstance(leaf, SparseLeaky)]
    linear = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
    neurons = [leaf for leaf in leaves if isinstance(leaf, Leaky)]
    found = ", ".join(sorted({type(child).__name__ for child in module.modules() if not list(child.children())}))
    if sparse and not linear and not neurons:
        sizes = [sparse[0].in_features, *(layer.out_features for layer in sparse)]
        inputs = [layer.in_features for layer in sparse]
        return _checked(sizes, inputs, [None, *(layer.max_spikes for layer in sparse)], _recurrent(sparse))
    if linear and not sparse and len(linear) == len(neurons) and leaves[::2] == linear:
        sizes = [linear[0].in_features, *(layer.out_features for layer in linear)]
        return _checked(sizes, [layer.in_features for layer in linear], [None] * len(sizes), [False] * len(linear))
    kind = MultiStep.__name__
    raise TypeError(
        f"model: expected a SparseNetwork, a stack of SparseLeaky, or a {kind} of nn.Linear and Leaky in turn; "
        f"{type(module).__name__} holds {found or 'no layers'}"
    )


def _recurrent(layers: Sequence[SparseLeaky]) -> List[bool]:
    return [layer.recurrent_weight is not None for layer in layers]


def _checked(sizes: List[int], inputs: List[int], caps: List[Optional[int]], recurrent: List[bool]) -> _Layers:
    if sizes[:-1] != inputs:
        raise TypeError(f"model: its layers do not follow one another: inputs {inputs}, outputs {sizes[1:]}")
    return sizes, caps, recurrent, 0
