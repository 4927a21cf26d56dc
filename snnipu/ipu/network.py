"""What a plan is made of: layers, batch, time steps, activity and slots of an event-driven network."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from torch import nn

from snnipu.neurons import Leaky, MultiStep, SparseConvLeaky, SparseLeaky, SparseNetwork
from snnipu.neurons.sparse_benchmark import benchmark_slots

DTYPES = {"float32": 4, "float16": 2}
OPTIMIZERS = ("sgd", "adam")
# Of a spike id on an IPU.
ID_BYTES = 4
# Slots for each expected spike where a model has no cap.
HEADROOM = 2.0

Activity = Union[float, Sequence[float]]


@dataclass(frozen=True)
class NetworkSpec:
    """An event-driven network to be mapped. Entries of ``sizes``, ``spikes`` and ``slots``: the input, then each layer.

    Attributes:
        sizes: neurons.
        spikes: expected spikes of a sample and step.
        slots: ids that are sent for a sample and step; neurons that only carry gradient have one, too.
        batch_size: samples that are processed at once.
        steps: time steps.
        dtype: of the weights, ``float32`` or ``float16``; states, sums and gradients are float32.
        delay: steps from layer to layer, 0 or 1. With 1 all layers of a step run at once.
        optimizer: ``sgd`` (no state) or ``adam`` (two states for each weight).
        training: whether there is a backward pass.
        recurrent: for each layer, without the input, whether it reads its own spikes of the step before; empty: none.

    Raises:
        ValueError: the message names the field.
    """

    sizes: Tuple[int, ...]
    spikes: Tuple[float, ...]
    slots: Tuple[int, ...]
    batch_size: int = 48
    steps: int = 100
    dtype: str = "float32"
    delay: int = 1
    optimizer: str = "adam"
    training: bool = True
    recurrent: Tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError(f"sizes must have an entry for the input and one for each layer, got {list(self.sizes)}")
        for name in ("sizes", "slots"):
            for value in getattr(self, name):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ValueError(f"{name} must be positive ints, got {value!r}")
        for name in ("spikes", "slots"):
            if len(getattr(self, name)) != len(self.sizes):
                raise ValueError(f"{name} must have {len(self.sizes)} entries, input first, got {getattr(self, name)}")
        for size, spikes, slots in zip(self.sizes, self.spikes, self.slots):
            if not 0 <= spikes <= slots <= size:
                raise ValueError(
                    f"spikes and slots: at most as many spikes as slots, and slots as neurons, got {spikes:g}, {slots} "
                    f"and {size}"
                )
        for name in ("batch_size", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        for name, allowed in (("dtype", tuple(DTYPES)), ("optimizer", OPTIMIZERS), ("delay", (0, 1))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}")

        if len(self.recurrent) not in (0, self.layers) or any(not isinstance(each, bool) for each in self.recurrent):
            raise ValueError(f"recurrent must have a bool for each of {self.layers} layers, got {self.recurrent!r}")

    def is_recurrent(self, entry: int) -> bool:
        """Whether layer ``entry``, 1 for the first behind the input, reads its own spikes."""
        return bool(self.recurrent) and self.recurrent[entry - 1]

    def reads(self, entry: int) -> List[int]:
        """Neurons whose spikes layer ``entry`` reads: for each of its matrices of weights."""
        return [self.sizes[entry - 1], *([self.sizes[entry]] if self.is_recurrent(entry) else [])]

    def passes_back(self, entry: int) -> List[int]:
        """Slots for whose values layer ``entry`` finds gradients: those of the layer before it, and its own."""
        before = [self.slots[entry - 1]] if entry > 1 else []
        return before + ([self.slots[entry]] if self.is_recurrent(entry) else [])

    @property
    def layers(self) -> int:
        return len(self.sizes) - 1

    @property
    def weight_bytes(self) -> int:
        return DTYPES[self.dtype]

    @property
    def parameters(self) -> int:
        """Weights of all layers."""
        return sum(self.sizes[entry] * inputs for entry in range(1, len(self.sizes)) for inputs in self.reads(entry))

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_sizes(
        cls, sizes: Sequence[int], activity: Activity = 0.02, input_slots: Optional[int] = None, **more: Any
    ) -> "NetworkSpec":
        """A network of the published sparse benchmark: slots by its rule, the last layer's as many as its neurons.

        Args:
            sizes: neurons of the input and of each layer.
            activity: share of the neurons that spike in a step: one number, or one for each entry of ``sizes``.
            input_slots: slots of the input; None: by the rule of the hidden layers.
            more: other fields.

        Raises:
            ValueError: the message names the argument.

        Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
        """
        shares = _activities(activity, len(sizes))
        slots = [benchmark_slots(share, size) for share, size in zip(shares, sizes)]
        slots[-1] = sizes[-1]
        if input_slots is not None:
            slots[0] = min(input_slots, sizes[0])
        spikes = [min(share * size, float(slot)) for share, size, slot in zip(shares, sizes, slots)]
        return cls(tuple(sizes), tuple(spikes), tuple(slots), **more)

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
        shares = _activities(activity, len(sizes))
        slots = [
            min(size, cap) if cap is not None else min(size, max(2, round(HEADROOM * share * size)))
            for size, cap, share in zip(sizes, caps, shares)
        ]
        spikes = [min(share * size, float(slot)) for share, size, slot in zip(shares, sizes, slots)]
        known = {"delay": delay, "recurrent": tuple(recurrent) if any(recurrent) else ()}
        return cls(tuple(sizes), tuple(spikes), tuple(slots), **{**known, **more})


def _activities(activity: Activity, entries: int) -> List[float]:
    values: List[Any] = list(activity) if isinstance(activity, (list, tuple)) else [activity] * entries
    if len(values) != entries:
        raise ValueError(f"activity must be one number, or {entries}: one for each size, got {len(values)}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ValueError(f"activity must be above 0 and up to 1, got {value!r}")
    return [float(value) for value in values]


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
    if len(networks) == 1:
        network = networks[0]
        caps = [network.max_input_spikes, *(layer.max_spikes for layer in network.layers)]
        return list(network.sizes), caps, _recurrent(network.layers), network.delay
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
