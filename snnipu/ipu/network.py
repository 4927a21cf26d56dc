"""``NetworkSpec.from_module``: the description of a module as an event-driven network, for plans."""

from typing import Any, List, Optional, Tuple

from torch import nn

from snnipu.neurons import Leaky, SparseConvLeaky, SparseLeaky, SparseNetwork
from snnipu.neurons.sparse_leaky import SparseNeurons
from snnipu.planning import network
from snnipu.planning.network import Activity, activities

# Slots for each expected spike of a layer without a cap.
HEADROOM = 2.0


class NetworkSpec(network.BaseNetworkSpec):
    __doc__ = network.BaseNetworkSpec.__doc__

    @classmethod
    def from_module(cls, module: nn.Module, activity: Activity = 0.02, **more: Any) -> "NetworkSpec":
        """Describe a module as an event-driven network.

        Args:
            module: a :class:`snnipu.SparseNetwork`, or a module that holds exactly one; or a stack of
                :class:`snnipu.SparseLeaky`, recurrent or not; or a stack of ``nn.Linear`` and :class:`snnipu.Leaky`,
                which is planned as its event-driven equivalent. Layers without ``max_spikes`` get two slots for each
                expected spike.
            activity: share of the neurons that spike in a step: one number, or one for the input and one per layer.
            more: other fields.

        Raises:
            TypeError: the module holds none of these; the message lists its layers.
            ValueError: ``activity`` is not in (0, 1], or has another number of entries.
        """
        sizes, caps, recurrent, delay = _layers_of(module)
        shares = activities(activity, len(sizes))
        slots = [
            min(size, cap) if cap is not None else min(size, max(2, round(HEADROOM * share * size)))
            for size, cap, share in zip(sizes, caps, shares)
        ]
        spikes = [min(share * size, float(slot)) for share, size, slot in zip(shares, sizes, slots)]
        fields = {"delay": delay, "recurrent": tuple(recurrent) if any(recurrent) else ()}
        return cls(tuple(sizes), tuple(spikes), tuple(slots), **{**fields, **more})


_Layers = Tuple[List[int], List[Optional[int]], List[bool], int]


def _layers_of(module: nn.Module) -> _Layers:
    """Return (sizes, caps, recurrent, delay); sizes and caps begin with the input."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(module).__name__}")
    networks = [child for child in module.modules() if isinstance(child, SparseNetwork)]
    if any(isinstance(child, SparseConvLeaky) for child in module.modules()):
        raise TypeError(
            "model: a plan cannot hold layers on maps; python -m snnipu profile counts their operators one by one"
        )
    for child in module.modules():
        if isinstance(child, SparseNeurons) and not isinstance(child, SparseLeaky):
            raise TypeError(f"model: a plan consists of leaky neurons, and a {type(child).__name__} has others")
        if isinstance(child, SparseLeaky) and child.max_delay is not None:
            raise TypeError(
                "model: a plan needs layers without max_delay; python -m snnipu profile counts their operators one "
                "by one"
            )
    if len(networks) > 1:
        raise TypeError(f"model: expected one SparseNetwork, and it holds {len(networks)}")
    stack = networks[0] if networks else module
    layers: List[Any] = [child for child in stack.modules() if isinstance(child, (SparseLeaky, nn.Linear, Leaky))]
    weighted = [layer for layer in layers if not isinstance(layer, Leaky)]
    is_sparse = all(isinstance(layer, SparseLeaky) for layer in layers)
    in_turn = layers[::2] == weighted and len(layers) == 2 * len(weighted)
    if not layers or not (is_sparse or (in_turn and all(isinstance(layer, nn.Linear) for layer in weighted))):
        kinds = ", ".join(sorted({type(child).__name__ for child in module.modules() if not list(child.children())}))
        raise TypeError(
            "model: expected a SparseNetwork, a stack of SparseLeaky, or a MultiStep of nn.Linear and Leaky in turn; "
            f"{type(module).__name__} holds {kinds or 'no layers'}"
        )
    sizes = [weighted[0].in_features, *(layer.out_features for layer in weighted)]
    inputs = [layer.in_features for layer in weighted]
    if sizes[:-1] != inputs:
        raise TypeError(f"model: the layers' inputs {inputs} do not match the outputs before them, {sizes[:-1]}")
    caps = [getattr(stack, "max_input_spikes", None), *(getattr(layer, "max_spikes", None) for layer in weighted)]
    recurrent = [getattr(layer, "recurrent_weight", None) is not None for layer in weighted]
    return sizes, caps, recurrent, networks[0].delay if networks else 0
