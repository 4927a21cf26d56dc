"""``SparseSpikes``: a batch of spike trains as the ids of the neurons that spiked."""

import copy
import dataclasses
import inspect
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.utils._pytree as pytree

from snnipu._checks import check_device

Index = Union[slice, Sequence[int], torch.Tensor]
MapShape = Optional[Tuple[int, int, int]]
_TIME_MAJOR = "[T, B, S]"
# What is saved, in the order of ``SparseSpikes._set``.
_STATE = ("ids", "values", "counts", "num_neurons", "dropped", "outside", "map_shape")
# Not in files of versions that had no maps.
_LATER_STATE = ("map_shape",)


# What some methods are short for, by the operator's name: operators import this module.
_operators: Dict[str, Callable[..., Any]] = {}


def register(**operators: Callable[..., Any]) -> None:
    """Hand ``SparseSpikes`` the operators that its methods call."""
    _operators.update(operators)


class SpikeTotals(NamedTuple):
    """How many spikes there were, without the spikes: ``counts`` and ``dropped`` of a :class:`SparseSpikes`."""

    counts: torch.Tensor
    num_neurons: int
    dropped: Optional[torch.Tensor]

    @property
    def num_spikes(self) -> int:
        return int(self.counts[..., 0].sum())

    @property
    def activity(self) -> float:
        cells = self.counts.shape[0] * self.counts.shape[1] * self.num_neurons
        return self.num_spikes / cells if cells else 0.0

    @property
    def overflow(self) -> int:
        return 0 if self.dropped is None else int(self.dropped[..., 0].sum())

    @property
    def has_data(self) -> bool:
        return self.counts.device.type != "meta"


# A dataclass, so that DistributedDataParallel finds the tensors in it.
@dataclasses.dataclass(init=False, repr=False, eq=False)
class SparseSpikes:
    r"""Spikes of ``num_neurons`` neurons over ``T`` time steps and ``B`` samples, as ids in ``S`` slots a step.

    At step ``t`` of sample ``b``, with ``spikes, carried = counts[t, b]``:

    * slots ``[0, spikes)`` hold the neurons that spiked, with the value of the spike (1 unless told otherwise);
    * slots ``[spikes, carried)`` hold neurons that did not spike but carry gradient, with value 0: the membrane was
      above the second threshold (``grad_threshold``);
    * slots from ``carried`` on are padding and are never read.

    Gradients between layers flow through ``values``, at every carried slot.

    What is passed in is checked, for which the host waits where it is on a GPU, and so is what is loaded from a file;
    what operators return is not. ``torch.load(..., weights_only=True)`` takes spikes from PyTorch 2.4 on. To PyTorch's
    pytrees spikes are a node, with their tensors as its leaves.

    Args:
        ids: int32 ``[T, B, S]``, each in ``[0, num_neurons)``, no id twice in a step of a sample.
        values: float32 or float64 ``[T, B, S]``.
        counts: int32 ``[T, B, 2]``: spikes, and spikes + slots that only carry gradient; at most ``S``.
        num_neurons: how many neurons there are.
        dropped: int32 ``[T, B, 2]``: spikes, and spikes + gradient slots, that did not fit into ``S``; None: none.
        map_shape: ``(C, H, W)`` where the neurons are those of ``C`` maps, neuron ``(c * H + y) * W + x`` at ``y, x``
            of map ``c``; None: they are a row. Layers on maps tell it, and read it.

    Attributes:
        outside: events outside the time window that :meth:`from_events` left out on request.

    Raises:
        TypeError, ValueError: a shape, dtype, device, count or id that does not fit; the message names it.
    """

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    num_neurons: int
    dropped: Optional[torch.Tensor]
    outside: int = 0
    map_shape: MapShape = None

    def __init__(
        self,
        ids: torch.Tensor,
        values: torch.Tensor,
        counts: torch.Tensor,
        num_neurons: int,
        *,
        dropped: Optional[torch.Tensor] = None,
        outside: int = 0,
        map_shape: MapShape = None,
    ) -> None:
        _check_types(ids, values, counts, num_neurons, dropped)
        _check_outside(outside)
        map_shape = check_map_shape(map_shape, num_neurons)
        _check_contents(ids, counts, num_neurons)
        self.ids, self.values, self.counts = ids, values, counts
        self.num_neurons, self.dropped, self.outside, self.map_shape = num_neurons, dropped, outside, map_shape

    @classmethod
    def _trusted(
        cls,
        ids: torch.Tensor,
        values: torch.Tensor,
        counts: torch.Tensor,
        num_neurons: int,
        dropped: Optional[torch.Tensor] = None,
        outside: int = 0,
        map_shape: MapShape = None,
    ) -> "SparseSpikes":
        """What an op of this package returned: nothing is checked."""
        spikes = cls.__new__(cls)
        spikes.ids, spikes.values, spikes.counts = ids, values, counts
        spikes.num_neurons, spikes.dropped, spikes.outside, spikes.map_shape = num_neurons, dropped, outside, map_shape
        return spikes

    def _with(self, **changed: Any) -> "SparseSpikes":
        """Return these spikes with some attributes replaced; nothing is checked."""
        return self._trusted(**{**{name: getattr(self, name) for name in _STATE}, **changed})

    # ---- saving and copying

    def __getstate__(self) -> Dict[str, Any]:
        state = {name: getattr(self, name) for name in _STATE}
        for name in ("ids", "counts", "dropped"):  # floats of a PopART operator
            if state[name] is not None and state[name].is_floating_point():
                state[name] = state[name].to(torch.int32)
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        # A file may be damaged or forged, and kernels trust ids.
        if not isinstance(state, dict) or set(state) | set(_LATER_STATE) != set(_STATE):
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"saved SparseSpikes must hold {list(_STATE)}, got {found}")
        _check_types(*(state[name] for name in _STATE[:5]))
        _check_outside(state["outside"])
        state = {**state, "map_shape": check_map_shape(state.get("map_shape"), state["num_neurons"])}
        _check_contents(state["ids"], state["counts"], state["num_neurons"])
        vars(self).update(state)

    def __copy__(self) -> "SparseSpikes":
        return self._map(lambda tensor: tensor)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "SparseSpikes":
        return self._map(lambda tensor: copy.deepcopy(tensor, memo))

    # ---- from and to other forms

    @classmethod
    def from_dense(
        cls, x: torch.Tensor, max_spikes: Optional[int] = None, *, overflow: str = "lowest"
    ) -> "SparseSpikes":
        """The nonzero elements of ``x`` ``[T, B, N]``, with their values: :func:`snnipu.ops.dense_to_sparse`."""
        return _operators["dense_to_sparse"](x, max_spikes, overflow=overflow)

    @classmethod
    def from_events(
        cls,
        times: Any,
        units: Any,
        samples: Any = None,
        *,
        num_steps: int,
        num_neurons: int,
        batch_size: Optional[int] = None,
        step: float = 1,
        max_spikes: Optional[int] = None,
        overflow: str = "lowest",
        values: str = "binary",
        outside: str = "raise",
    ) -> "SparseSpikes":
        """Events, as event cameras and spike recordings give them, binned into time steps.

        An event at time ``τ`` falls into step ``floor(τ / step)``. Events need not be sorted. The work is done on the
        CPU, and the result is there, wherever the events are.

        Args:
            times: time of each event, from 0; any unit. A tensor, an array or a list, as are the next two.
            units: which neuron, in ``[0, num_neurons)``.
            samples: which sample of the batch, in ``[0, batch_size)``; None: all of one sample.
            num_steps: time steps T of the window.
            num_neurons: how many neurons there are.
            batch_size: samples; None: the highest of ``samples`` + 1.
            step: length of a time step in the unit of ``times``.
            max_spikes: slots; None: as many as the busiest step needs.
            overflow: what is dropped where a step has more: see :func:`snnipu.ops.select_spikes`.
            values: of several events of one unit in one step: ``"binary"``, one spike of value 1; ``"count"``, one
                spike whose value is their number.
            outside: of events at or behind ``num_steps * step``: ``"raise"`` an error, or ``"drop"`` them; how many
                were dropped is told by ``.outside``.

        Raises:
            TypeError, ValueError: the message names the argument; so for ids out of range, negative or NaN times,
                arrays of different lengths.
        """
        return _operators["bin_events"](
            times,
            units,
            samples,
            num_steps=num_steps,
            num_neurons=num_neurons,
            batch_size=batch_size,
            step=step,
            max_spikes=max_spikes,
            overflow=overflow,
            values=values,
            outside=outside,
        )

    def to_dense(self) -> torch.Tensor:
        """``[T, B, N]``, differentiable in ``values``: :func:`snnipu.ops.sparse_to_dense`."""
        return _operators["sparse_to_dense"](self)

    def spike_count(self) -> torch.Tensor:
        """Sum of each neuron's spikes over time, ``[B, N]``, differentiable in ``values``."""
        if self.ids.is_floating_point():  # of a PopART operator
            return self.to_dense().sum(0)
        return _operators["spike_count"](self)

    # ---- what it holds

    @property
    def shape(self) -> torch.Size:
        """Of the dense form: ``[T, B, N]``."""
        return torch.Size([*self.ids.shape[:2], self.num_neurons])

    @property
    def num_steps(self) -> int:
        """Time steps T."""
        return self.ids.shape[0]

    @property
    def batch_size(self) -> int:
        """Samples B."""
        return self.ids.shape[1]

    @property
    def capacity(self) -> int:
        """Slots S."""
        return self.ids.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Of ``values``."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @property
    def requires_grad(self) -> bool:
        return self.values.requires_grad

    @property
    def num_spikes(self) -> int:
        """Spikes in all."""
        return self._totals().num_spikes

    @property
    def activity(self) -> float:
        """Mean spikes per neuron and step, 0 to 1; 0 for an empty batch."""
        return self._totals().activity

    @property
    def overflow(self) -> int:
        """Spikes that did not fit into the slots and were dropped."""
        return self._totals().overflow

    def __len__(self) -> int:
        return self.num_steps

    def __repr__(self) -> str:
        steps, batch, neurons = self.shape
        maps = "" if self.map_shape is None else "={}x{}x{}".format(*self.map_shape)
        text = f"SparseSpikes(T={steps}, B={batch}, N={neurons}{maps}, slots={self.capacity}"
        if self.device.type == "meta":
            return text + ", device=meta)"
        text += f", {self.num_spikes} spikes, activity {100 * self.activity:.3g} %"
        carried = int(self.counts[..., 1].sum()) - self.num_spikes
        text += f", {carried} gradient-only slots" if carried else ""
        text += f", overflow {self.overflow}" if self.overflow else ""
        text += f", {self.outside} events outside" if self.outside else ""
        text += f", dtype={self.dtype}" if self.dtype != torch.float32 else ""
        text += f", device={self.device}" if self.device.type != "cpu" else ""
        return text + (", requires_grad=True)" if self.requires_grad else ")")

    # ---- parts and copies

    def __getitem__(self, index: Union[Index, Tuple[Index, ...]]) -> "SparseSpikes":
        """Time steps and samples: ``spikes[:50]``, ``spikes[:, 2:4]``, ``spikes[:, [0, 5]]``; both dimensions stay."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) > 2:
            raise IndexError(f"SparseSpikes has two dimensions to index, time and batch, got {len(parts)} indices")
        ids, values, counts, dropped = self.ids, self.values, self.counts, self.dropped
        for dim, part in enumerate(parts):
            if isinstance(part, int):
                raise TypeError(f"SparseSpikes keeps its dimensions: use {part}:{part + 1} in place of {part}")
            if isinstance(part, (list, tuple)):
                part = torch.as_tensor(part, dtype=torch.int64 if not part else None)
            if not isinstance(part, (slice, torch.Tensor)):
                raise TypeError(f"SparseSpikes takes slices, lists and tensors as indices, got {type(part).__name__}")
            if isinstance(part, torch.Tensor) and part.dim() != 1:
                raise TypeError(f"SparseSpikes takes tensors of one dimension as indices, got {part.dim()}")
            at = (slice(None),) * dim + (part,)
            ids, values, counts = ids[at], values[at], counts[at]
            dropped = None if dropped is None else dropped[at]
        return self._with(ids=ids, values=values, counts=counts, dropped=dropped, outside=0)

    def _map(self, change: Any) -> "SparseSpikes":
        dropped = None if self.dropped is None else change(self.dropped)
        return self._with(ids=change(self.ids), values=change(self.values), counts=change(self.counts), dropped=dropped)

    def with_maps(self, map_shape: MapShape) -> "SparseSpikes":
        """The same spikes, of neurons that are those of maps ``(C, H, W)``; None: of a row of neurons."""
        return self._with(map_shape=check_map_shape(map_shape, self.num_neurons))

    def to(self, *args: Any, **kwargs: Any) -> "SparseSpikes":
        """As ``torch.Tensor.to``: a device moves all, a floating dtype changes ``values``."""
        values = self.values.to(*args, **kwargs)
        if values.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype of SparseSpikes must be float32 or float64, got {values.dtype}")
        non_blocking = bool(kwargs.get("non_blocking", False))
        moved = self._map(lambda tensor: tensor.to(values.device, non_blocking=non_blocking))
        moved.values = values
        return moved

    def cpu(self) -> "SparseSpikes":
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> "SparseSpikes":
        return self.to("cuda" if device is None else torch.device("cuda", device), non_blocking=non_blocking)

    def pin_memory(self) -> "SparseSpikes":
        """A copy in page-locked memory, as ``DataLoader(pin_memory=True)`` asks for."""
        return self._map(lambda tensor: tensor.pin_memory())

    def detach(self) -> "SparseSpikes":
        return self._with(values=self.values.detach())

    def _totals(self) -> SpikeTotals:
        return SpikeTotals(self.counts, self.num_neurons, self.dropped)

    def clone(self) -> "SparseSpikes":
        return self._map(torch.clone)

    def requires_grad_(self, requires_grad: bool = True) -> "SparseSpikes":
        self.values.requires_grad_(requires_grad)
        return self

    def trim(self) -> "SparseSpikes":
        """With as many slots as the busiest step needs."""
        most = int(self.counts[..., 1].max()) if self.counts.numel() else 0
        return self._with(ids=self.ids[..., :most].contiguous(), values=self.values[..., :most].contiguous())

    def limit(self, max_spikes: int, *, overflow: str = "lowest") -> "SparseSpikes":
        """In at most ``max_spikes`` slots; what does not fit is dropped in the order of ``overflow`` and counted."""
        ids, slots, counts, dropped = _operators["limit"](self, max_spikes, overflow)
        values = self.values.gather(2, slots)
        if self.dropped is not None:
            dropped = dropped + self.dropped
        return self._with(ids=ids, values=values, counts=counts, dropped=dropped)

    @classmethod
    def cat(cls, parts: Sequence["SparseSpikes"]) -> "SparseSpikes":
        """The samples of several batches of the same length and number of neurons, one behind the other."""
        parts = list(parts)
        if not parts or not all(isinstance(part, SparseSpikes) for part in parts):
            raise TypeError(f"parts must be one or more SparseSpikes, got {[type(part).__name__ for part in parts]}")
        sizes = sorted({(part.num_steps, part.num_neurons) for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"parts must agree in time steps and neurons, got {sizes}")
        known = sorted({part.map_shape for part in parts if part.map_shape is not None})
        if len(known) > 1:
            raise ValueError(f"parts must agree in map_shape, got {known}")
        slots = max(part.capacity for part in parts)

        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(tensor, (0, slots - tensor.shape[2]))

        dropped = None
        if any(part.dropped is not None for part in parts):
            none = [torch.zeros_like(part.counts) if part.dropped is None else part.dropped for part in parts]
            dropped = torch.cat(none, 1)
        return cls._trusted(
            torch.cat([widened(part.ids) for part in parts], 1),
            torch.cat([widened(part.values) for part in parts], 1),
            torch.cat([part.counts for part in parts], 1),
            parts[0].num_neurons,
            dropped,
            sum(part.outside for part in parts),
            known[0] if known else None,
        )


def collate(batch: List[Any]) -> Any:
    """``collate_fn`` for a ``DataLoader`` over samples that hold :class:`SparseSpikes`, alone or in tuples and dicts.

    Spikes are joined over the batch dimension; everything else goes through PyTorch's ``default_collate``.
    """
    first = batch[0]
    if isinstance(first, SparseSpikes):
        return SparseSpikes.cat(batch)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate(list(column)) for column in zip(*batch)))
    if isinstance(first, (tuple, list)):
        if any(len(sample) != len(first) for sample in batch):
            raise ValueError(f"batch must hold samples of one length, got {sorted({len(s) for s in batch})}")
        return [collate(list(column)) for column in zip(*batch)]
    if isinstance(first, dict):
        return {key: collate([sample[key] for sample in batch]) for key in first}
    return torch.utils.data.default_collate(batch)


def _flattened(spikes: SparseSpikes) -> Tuple[List[Any], Tuple[Any, ...]]:
    maps = None if spikes.map_shape is None else tuple(spikes.map_shape)
    return [spikes.ids, spikes.values, spikes.counts, spikes.dropped], (spikes.num_neurons, spikes.outside, maps)


def _unflattened(leaves: Iterable[Any], context: Any) -> SparseSpikes:
    # Not only tensors: whatever a function made of them.
    ids, values, counts, dropped = leaves
    num_neurons, outside, *maps = context
    # A context that was written to a file has lists for tuples.
    map_shape = tuple(maps[0]) if maps and maps[0] is not None else None
    return SparseSpikes._trusted(ids, values, counts, num_neurons, dropped, outside, map_shape)


def _flattened_with_keys(spikes: SparseSpikes) -> Tuple[List[Any], Tuple[Any, ...]]:
    """As :func:`_flattened`, each leaf with its name: ``torch.export`` asks for it."""
    leaves, context = _flattened(spikes)
    names = ("ids", "values", "counts", "dropped")
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves)], context


def _register() -> None:
    """Make spikes known to PyTorch: as a pytree's node, and as a class that a file of weights may hold."""
    if hasattr(pytree, "register_pytree_node"):
        known = inspect.signature(pytree.register_pytree_node).parameters
        pytree.register_pytree_node(
            SparseSpikes,
            _flattened,
            _unflattened,
            serialized_type_name="snnipu.SparseSpikes",
            to_dumpable_context=list,
            from_dumpable_context=tuple,
            **({"flatten_with_keys_fn": _flattened_with_keys} if "flatten_with_keys_fn" in known else {}),
        )
    else:  # before PyTorch 2.2
        pytree._register_pytree_node(SparseSpikes, _flattened, _unflattened)
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([SparseSpikes])
    # From one process of a DataLoader to another nothing is checked.
    ForkingPickler.register(SparseSpikes, lambda spikes: (_unflattened, _flattened(spikes)))


_register()


def check_num_neurons(num_neurons: object) -> None:
    """``num_neurons`` is a positive int that an int32 id can name."""
    if isinstance(num_neurons, bool) or not isinstance(num_neurons, int):
        raise TypeError(f"num_neurons must be an int, got {num_neurons!r}")
    if not 1 <= num_neurons < 2**31:
        raise ValueError(f"num_neurons must be from 1 to 2**31 - 1, got {num_neurons}")


def check_map_shape(map_shape: object, num_neurons: int) -> MapShape:
    """``map_shape`` is None or three positive ints whose product is ``num_neurons``."""
    if map_shape is None:
        return None
    if not isinstance(map_shape, (tuple, list)) or len(map_shape) != 3:
        raise TypeError(f"map_shape must be (C, H, W) or None, got {map_shape!r}")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in map_shape):
        raise TypeError(f"map_shape must hold three positive ints, got {map_shape!r}")
    channels, height, width = map_shape
    if channels * height * width != num_neurons:
        raise ValueError(
            f"map_shape must be of num_neurons={num_neurons} neurons, got {tuple(map_shape)}, which are "
            f"{channels * height * width}"
        )
    return channels, height, width


def _check_types(ids: object, values: object, counts: object, num_neurons: object, dropped: object) -> None:
    check_num_neurons(num_neurons)
    wanted = [("ids", ids, (torch.int32,)), ("values", values, (torch.float32, torch.float64))]
    wanted += [("counts", counts, (torch.int32,))] + ([] if dropped is None else [("dropped", dropped, (torch.int32,))])
    for name, tensor, dtypes in wanted:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype not in dtypes:
            names = " or ".join(str(dtype).replace("torch.", "") for dtype in dtypes)
            raise TypeError(f"{name} must be {names}, got {tensor.dtype}")
    assert isinstance(ids, torch.Tensor)
    if ids.dim() != 3:
        raise ValueError(f"ids must have shape {_TIME_MAJOR}, got {tuple(ids.shape)}")
    pair = (*ids.shape[:2], 2)
    shapes = {"ids": tuple(ids.shape), "values": tuple(ids.shape), "counts": pair, "dropped": pair}
    for name, tensor, _ in wanted:
        assert isinstance(tensor, torch.Tensor)
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name} must have shape {shapes[name]}, as ids says, got {tuple(tensor.shape)}")
        check_device(name, tensor, "ids", ids.device)


def _check_outside(outside: object) -> None:
    if isinstance(outside, bool) or not isinstance(outside, int) or outside < 0:
        raise ValueError(f"outside must be an int of 0 or more, got {outside!r}")


def _check_contents(ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> None:
    if ids.device.type == "meta" or counts.numel() == 0:
        return
    check_ids(ids, counts, num_neurons)
    slots = ids.shape[2]
    if slots > 1:
        used = torch.arange(slots, device=ids.device) < counts[..., 1:]
        # Padding gets numbers of its own, below every id.
        marked = torch.where(used, ids.long(), -1 - torch.arange(slots, device=ids.device)).sort(-1).values
        twice = (marked[..., 1:] == marked[..., :-1]).any(-1)
        if bool(twice.any()):
            t, b = twice.nonzero()[0].tolist()
            raise ValueError(f"ids must not name a neuron twice in a step: step {t}, sample {b}")


def check_ids(ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> None:
    """Counts are ordered and within the slots, ids within the neurons; else a ValueError that says where."""
    slots = ids.shape[2]
    spikes, carried = counts[..., 0], counts[..., 1]
    wrong = (spikes < 0) | (carried < spikes) | (carried > slots)
    if bool(wrong.any()):
        t, b = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"counts must satisfy 0 <= spikes <= carried <= {slots} slots, got {counts[t, b].tolist()} at step {t}, "
            f"sample {b}"
        )
    used = torch.arange(slots, device=ids.device) < counts[..., 1:]
    outside = used & ((ids < 0) | (ids >= num_neurons))
    if bool(outside.any()):
        t, b, s = outside.nonzero()[0].tolist()
        raise ValueError(
            f"ids must be from 0 to {num_neurons - 1}, got {int(ids[t, b, s])} at step {t}, sample {b}, slot {s}"
        )


__all__ = ["SparseSpikes", "collate"]
