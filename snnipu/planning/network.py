"""The description of an event-driven network from which a plan is made: layers, batch, steps, activity and slots."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, TypeVar, Union

DTYPES = {"float32": 4, "float16": 2}
# Ids of neurons are 32-bit integers, below this number.
_NO_ID = 2**31
OPTIMIZERS = ("sgd", "adam")
# Bytes on an IPU of a spike id, of a number in computations, and of a row's counts.
ID_BYTES, FLOAT, COUNTS_BYTES = 4, 4, 8

Activity = Union[float, Sequence[float]]
_Spec = TypeVar("_Spec", bound="BaseNetworkSpec")


@dataclass(frozen=True, eq=False)
class BaseNetworkSpec:
    """An event-driven network to plan. Entries of ``sizes``, ``spikes`` and ``slots``: the input, then each layer.

    Attributes:
        sizes: number of neurons.
        spikes: expected spikes of a sample in a step.
        slots: ids that are sent for a sample in a step; neurons that only carry gradient also need a slot.
        batch_size: samples that are processed together.
        steps: time steps.
        dtype: format of the weights, ``float32`` or ``float16``; states, sums and gradients are float32.
        delay: steps from layer to layer, 0 or 1. With 1 all layers of a step run in parallel.
        optimizer: ``sgd`` (no state) or ``adam`` (two states for each weight).
        training: True if there is a backward pass.
        recurrent: for each layer, without the input, True if it reads its spikes of the previous step; empty: no layer
            does.

    Raises:
        ValueError: a field is wrong; the message names it.
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
                _check_int(name, value)
        for name in ("spikes", "slots"):
            if len(getattr(self, name)) != len(self.sizes):
                raise ValueError(f"{name} must have {len(self.sizes)} entries, input first, got {getattr(self, name)}")
        for size, spikes, slots in zip(self.sizes, self.spikes, self.slots):
            if not 0 <= spikes <= slots <= size:
                raise ValueError(
                    f"spikes and slots: at most as many spikes as slots, and slots as neurons, got {spikes:g} spikes, "
                    f"{slots} slots and {size} neurons"
                )
        for name in ("batch_size", "steps"):
            _check_int(name, getattr(self, name))
        for name, allowed in (("dtype", tuple(DTYPES)), ("optimizer", OPTIMIZERS), ("delay", (0, 1))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}")

        if len(self.recurrent) not in (0, self.layers) or any(not isinstance(each, bool) for each in self.recurrent):
            raise ValueError(f"recurrent must have a bool for each of {self.layers} layers, got {self.recurrent!r}")

    # Descriptions with equal fields are equal, also if one of them is of the subclass ``snnipu.ipu.NetworkSpec``.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseNetworkSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def is_recurrent(self, entry: int) -> bool:
        """Return True if layer ``entry``, counted from 1, reads its own spikes."""
        return bool(self.recurrent) and self.recurrent[entry - 1]

    def input_sizes(self, entry: int) -> List[int]:
        """Return the number of inputs of each weight matrix of layer ``entry``; a recurrent layer has two."""
        return [self.sizes[entry - 1], *([self.sizes[entry]] if self.is_recurrent(entry) else [])]

    def gradient_slots(self, entry: int) -> List[int]:
        """Return the slots for which layer ``entry`` computes gradients: the previous layer's, and its recurrent."""
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
        """Number of weights of all layers."""
        return sum(
            self.sizes[entry] * inputs for entry in range(1, len(self.sizes)) for inputs in self.input_sizes(entry)
        )

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_sizes(
        cls: Type[_Spec],
        sizes: Sequence[int],
        activity: Activity = 0.02,
        input_slots: Optional[int] = None,
        **more: Any,
    ) -> _Spec:
        """Describe a network with the slots of the published sparse benchmark, see :func:`benchmark_slots`.

        The last layer has a slot for each neuron.

        Args:
            sizes: neurons of the input and of each layer.
            activity: share of the neurons that spike in a step: one number, or one for each entry of ``sizes``.
            input_slots: slots of the input; None: as many as in a hidden layer of its size.
            more: other fields.

        Raises:
            ValueError: an argument is wrong; the message names it.

        Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
        """
        shares = activities(activity, len(sizes))
        slots = [benchmark_slots(share, size) for share, size in zip(shares, sizes)]
        slots[-1] = sizes[-1]
        if input_slots is not None:
            slots[0] = min(input_slots, sizes[0])
        spikes = [min(share * size, float(slot)) for share, size, slot in zip(shares, sizes, slots)]
        return cls(tuple(sizes), tuple(spikes), tuple(slots), **more)


def activities(activity: Activity, entries: int) -> List[float]:
    """Return the activity of each entry; raise ValueError for a number of values other than 1 and ``entries``."""
    values: List[Any] = list(activity) if isinstance(activity, (list, tuple)) else [activity] * entries
    if len(values) != entries:
        raise ValueError(f"activity must be one number, or {entries}: one for each size, got {len(values)}")
    return [_check_activity(value) for value in values]


def _check_activity(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"activity must be above 0 and up to 1, got {value!r}")
    return float(value)


def _check_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < _NO_ID:
        raise ValueError(f"{name} must be an int from 1 to 2**31 - 1, got {value!r}")


def benchmark_slots(activity: float, num_neurons: int) -> int:
    r"""Return the slots of a hidden layer of n neurons at activity a: :math:`2 \lfloor a n / 2 \rfloor`.

    The number is even, as two float16 values form one word of an IPU, and at least 2, so that a layer always has slots.

    Args:
        activity: share of the neurons that have a slot, above 0 and up to 1.
        num_neurons: neurons of the layer.

    Raises:
        ValueError: an argument is out of range; the message starts with its name.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """
    _check_activity(activity)
    _check_int("num_neurons", num_neurons)
    # The small number corrects rounding: 0.29 * 200 / 2 is slightly below 29 in floating point.
    return min(max(2 * math.floor(activity * num_neurons / 2 + 1e-9), 2), num_neurons)
