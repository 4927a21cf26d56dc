"""``SparseSpikes``: a batch of spike trains, stored as the ids of the neurons that spiked."""

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
# The attributes that are saved; the first five are the arguments of ``_check_types``.
_STATE = ("ids", "values", "counts", "num_neurons", "dropped", "outside", "map_shape")
# Files of versions without maps lack these attributes.
_LATER_STATE = ("map_shape",)


# Operators that the methods call, by name. The operators' modules import this one, so they register themselves.
_operators: Dict[str, Callable[..., Any]] = {}


def register(**operators: Callable[..., Any]) -> None:
    """Register the operators that the methods of ``SparseSpikes`` call."""
    _operators.update(operators)


class SpikeTotals(NamedTuple):
    """The numbers of spikes without the spikes: ``counts`` and ``dropped`` of a :class:`SparseSpikes`."""

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


# DistributedDataParallel finds the tensors in dataclasses.
@dataclasses.dataclass(init=False, repr=False, eq=False)
class SparseSpikes:
    r"""Spikes of ``num_neurons`` neurons over ``T`` time steps and ``B`` samples, as ids in ``S`` slots a step.

    At step ``t`` of sample ``b``, with ``spikes, carried = counts[t, b]``:

    * slots ``[0, spikes)`` hold the neurons that spiked. The value of a spike is 1, or a graded spike's;
    * slots ``[spikes, carried)`` are gradient-only, with value 0. Their neurons did not spike, but the membrane was
      above the second threshold (``grad_threshold``);
    * slots from ``carried`` on are padding and are never read.

    The slots ``[0, carried)`` are called the carried slots. Gradients between layers flow through ``values``, at every
    carried slot.

    The constructor checks its arguments. The check of tensors on a GPU makes the host wait. Spikes that are loaded from
    a file are checked, too; results of operators are not. ``torch.load(..., weights_only=True)`` accepts spikes from
    PyTorch 2.4 on. The class is registered as a node of PyTorch's pytrees; its tensors are the leaves.

    Args:
        ids: int32 ``[T, B, S]``, each in ``[0, num_neurons)``, no id twice in a step of a sample.
        values: float32 or float64 ``[T, B, S]``.
        counts: int32 ``[T, B, 2]``: the numbers of spikes and of carried slots, at most ``S``.
        num_neurons: the number of neurons N.
        dropped: int32 ``[T, B, 2]``: the spikes and the carried slots that did not fit into ``S``. None: all fitted.
        outside: the number of events outside the time window that :meth:`from_events` dropped.
        map_shape: ``(C, H, W)`` if the neurons are those of ``C`` maps: neuron ``(c * H + y) * W + x`` is at ``y, x``
            of map ``c``. None: the neurons are a row. Convolutions and pools set and read the shape.
        times: times of the spikes in steps, ``[T, B, S]``, with a gradient: a layer with ``gradient="eventprop"`` makes
            them. Copies, parts of the batch and pools keep them; parts of the steps and other selections do not.

    Raises:
        TypeError, ValueError: a shape, dtype, device, count or id is wrong; the message names the argument.
    """

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    num_neurons: int
    dropped: Optional[torch.Tensor]
    outside: int = 0
    map_shape: MapShape = None
    times: Optional[torch.Tensor] = None

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
        times: Optional[torch.Tensor] = None,
    ) -> None:
        _check_types(ids, values, counts, num_neurons, dropped)
        _check_outside(outside)
        if times is not None and (times.shape, times.dtype) != (values.shape, values.dtype):
            expected, got = f"{values.dtype} {tuple(values.shape)}", f"{times.dtype} {tuple(times.shape)}"
            raise ValueError(f"times must be {expected}, as values, got {got}")
        map_shape = check_map_shape(map_shape, num_neurons)
        _check_contents(ids, counts, num_neurons)
        self.ids, self.values, self.counts = ids, values, counts
        self.num_neurons, self.dropped, self.outside, self.map_shape = num_neurons, dropped, outside, map_shape
        self.times = times

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
        """Return spikes made of the results of an operator of this package, without checks."""
        spikes = cls.__new__(cls)
        spikes.ids, spikes.values, spikes.counts = ids, values, counts
        spikes.num_neurons, spikes.dropped, spikes.outside, spikes.map_shape = num_neurons, dropped, outside, map_shape
        return spikes

    def _replace(self, **changed: Any) -> "SparseSpikes":
        """Return these spikes with some attributes replaced; nothing is checked. Times need the same slots."""
        times = changed.pop("times", None if "ids" in changed else self.times)
        spikes = self._trusted(**{**{name: getattr(self, name) for name in _STATE}, **changed})
        spikes.times = times
        return spikes

    # ---- saving and copying

    def __getstate__(self) -> Dict[str, Any]:
        state = {name: getattr(self, name) for name in _STATE}
        for name in ("ids", "counts", "dropped"):  # a PopART operator returns them as floats
            if state[name] is not None and state[name].is_floating_point():
                state[name] = state[name].to(torch.int32)
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        # A file may be damaged or forged, and kernels do not check ids.
        if not isinstance(state, dict) or set(state) | set(_LATER_STATE) != set(_STATE):
            names = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"saved SparseSpikes must hold {list(_STATE)}, got {names}")
        _check_types(*(state[name] for name in _STATE[:5]))
        _check_outside(state["outside"])
        state = {**state, "map_shape": check_map_shape(state.get("map_shape"), state["num_neurons"])}
        _check_contents(state["ids"], state["counts"], state["num_neurons"])
        vars(self).update(state)

    def __copy__(self) -> "SparseSpikes":
        return self._map_tensors(lambda tensor: tensor)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "SparseSpikes":
        return self._map_tensors(lambda tensor: copy.deepcopy(tensor, memo))

    # ---- from and to other forms

    @classmethod
    def from_dense(
        cls, x: torch.Tensor, max_spikes: Optional[int] = None, *, overflow: str = "lowest"
    ) -> "SparseSpikes":
        """Return the nonzero elements of ``x`` ``[T, B, N]``, with their values.

        The arguments and errors are those of :func:`snnipu.ops.dense_to_sparse`.
        """
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
        """Bin events, such as those of event cameras and spike recordings, into time steps.

        An event at time ``τ`` falls into step ``floor(τ / step)``. Events need not be sorted. The work is done on the
        CPU. The result is on the CPU, even if the events are on a GPU.

        Args:
            times: the time of each event, at least 0, in any unit: a tensor, an array or a list.
            units: the neuron of each event, in ``[0, num_neurons)``, likewise.
            samples: the sample of each event, in ``[0, batch_size)``, likewise. None: all events are of one sample.
            num_steps: the number of time steps T.
            num_neurons: the number of neurons N.
            batch_size: the number of samples B. None: the highest of ``samples``, plus 1.
            step: the length of a time step in the unit of ``times``.
            max_spikes: the number of slots. None: as many as the busiest step needs.
            overflow: the order in which spikes are dropped, see :func:`snnipu.ops.select_spikes`.
            values: the value of a spike made of several events of one neuron in one step. ``"binary"``: 1;
                ``"count"``: the number of events.
            outside: the treatment of events at or after ``num_steps * step``. ``"raise"``: an error; ``"drop"``: they
                are dropped, and ``.outside`` is their number.

        Raises:
            TypeError, ValueError: an argument is wrong: ids out of range, negative or NaN times, arrays of different
                lengths. The message names the argument.
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
        """Return the spikes as a dense tensor ``[T, B, N]``, differentiable in ``values``.

        See :func:`snnipu.ops.sparse_to_dense`.
        """
        return _operators["sparse_to_dense"](self)

    def spike_count(self) -> torch.Tensor:
        """Return the sum of each neuron's spikes over time, ``[B, N]``, differentiable in ``values``."""
        if self.ids.is_floating_point():  # a PopART operator returns ids as floats
            return self.to_dense().sum(0)
        return _operators["spike_count"](self)

    # ---- properties

    @property
    def shape(self) -> torch.Size:
        """Shape of the dense form: ``[T, B, N]``."""
        return torch.Size([*self.ids.shape[:2], self.num_neurons])

    @property
    def num_steps(self) -> int:
        """Number of time steps T."""
        return self.ids.shape[0]

    @property
    def batch_size(self) -> int:
        """Number of samples B."""
        return self.ids.shape[1]

    @property
    def capacity(self) -> int:
        """Number of slots S."""
        return self.ids.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of ``values``."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @property
    def requires_grad(self) -> bool:
        return self.values.requires_grad

    @property
    def num_spikes(self) -> int:
        """Number of spikes of all steps and samples."""
        return self._totals().num_spikes

    @property
    def activity(self) -> float:
        """Mean spikes per neuron and step, 0 to 1; 0 for an empty batch."""
        return self._totals().activity

    @property
    def overflow(self) -> int:
        """Number of spikes that did not fit into the slots and were dropped."""
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
        """Select time steps and samples; both dimensions stay.

        Examples: ``spikes[:50]``, ``spikes[:, 2:4]``, ``spikes[:, [0, 5]]``.
        """
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) > 2:
            raise IndexError(f"SparseSpikes has two dimensions to index, time and batch, got {len(parts)} indices")
        ids, values, counts, dropped, times = self.ids, self.values, self.counts, self.dropped, self.times
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
            if times is not None:  # they count the steps of the whole sequence
                times = times[at] if dim or (isinstance(part, slice) and part == slice(None)) else None
        return self._replace(ids=ids, values=values, counts=counts, dropped=dropped, outside=0, times=times)

    def _map_tensors(self, change: Any) -> "SparseSpikes":
        names = ("ids", "values", "counts", "dropped", "times")
        tensors = {name: getattr(self, name) for name in names}
        return self._replace(**{name: each if each is None else change(each) for name, each in tensors.items()})

    def with_maps(self, map_shape: MapShape) -> "SparseSpikes":
        """Return the same spikes with this ``map_shape``: maps ``(C, H, W)``, or None for a row of neurons."""
        return self._replace(map_shape=check_map_shape(map_shape, self.num_neurons))

    def to(self, *args: Any, **kwargs: Any) -> "SparseSpikes":
        """Like ``torch.Tensor.to``: move all tensors to a device, or convert ``values`` to a floating dtype."""
        values = self.values.to(*args, **kwargs)
        if values.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype of SparseSpikes must be float32 or float64, got {values.dtype}")
        non_blocking = bool(kwargs.get("non_blocking", False))
        moved = self._map_tensors(lambda tensor: tensor.to(values.device, non_blocking=non_blocking))
        moved.values = values
        return moved

    def cpu(self) -> "SparseSpikes":
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> "SparseSpikes":
        return self.to("cuda" if device is None else torch.device("cuda", device), non_blocking=non_blocking)

    def pin_memory(self) -> "SparseSpikes":
        """Return a copy in page-locked memory; ``DataLoader(pin_memory=True)`` calls this method."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def detach(self) -> "SparseSpikes":
        return self._replace(values=self.values.detach(), times=None if self.times is None else self.times.detach())

    def _totals(self) -> SpikeTotals:
        return SpikeTotals(self.counts, self.num_neurons, self.dropped)

    def clone(self) -> "SparseSpikes":
        return self._map_tensors(torch.clone)

    def requires_grad_(self, requires_grad: bool = True) -> "SparseSpikes":
        self.values.requires_grad_(requires_grad)
        return self

    def trim(self) -> "SparseSpikes":
        """Return the same spikes in as many slots as the busiest step needs."""
        most = int(self.counts[..., 1].max()) if self.counts.numel() else 0
        return self._replace(ids=self.ids[..., :most].contiguous(), values=self.values[..., :most].contiguous())

    def limit(self, max_spikes: int, *, overflow: str = "lowest") -> "SparseSpikes":
        """Return the spikes in at most ``max_spikes`` slots.

        Args:
            max_spikes: the number of slots, 0 or more.
            overflow: the order in which spikes are dropped, see :func:`snnipu.ops.select_spikes`. They are counted in
                ``dropped``.
        """
        ids, slots, counts, dropped = _operators["limit"](self, max_spikes, overflow)
        values = self.values.gather(2, slots)
        if self.dropped is not None:
            dropped = dropped + self.dropped
        return self._replace(ids=ids, values=values, counts=counts, dropped=dropped)

    @classmethod
    def cat(cls, parts: Sequence["SparseSpikes"]) -> "SparseSpikes":
        """Concatenate batches along the batch dimension.

        Raises:
            TypeError: ``parts`` is empty or holds something else than SparseSpikes.
            ValueError: the parts differ in time steps, neurons or maps.
        """
        parts = list(parts)
        if not parts or not all(isinstance(part, SparseSpikes) for part in parts):
            raise TypeError(f"parts must be one or more SparseSpikes, got {[type(part).__name__ for part in parts]}")
        sizes = sorted({(part.num_steps, part.num_neurons) for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"parts must agree in time steps and neurons, got {sizes}")
        map_shapes = sorted({part.map_shape for part in parts if part.map_shape is not None})
        if len(map_shapes) > 1:
            raise ValueError(f"parts must agree in map_shape, got {map_shapes}")
        slots = max(part.capacity for part in parts)

        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(tensor, (0, slots - tensor.shape[2]))

        dropped = None
        if any(part.dropped is not None for part in parts):
            drops = [torch.zeros_like(part.counts) if part.dropped is None else part.dropped for part in parts]
            dropped = torch.cat(drops, 1)
        return cls._trusted(
            torch.cat([widened(part.ids) for part in parts], 1),
            torch.cat([widened(part.values) for part in parts], 1),
            torch.cat([part.counts for part in parts], 1),
            parts[0].num_neurons,
            dropped,
            sum(part.outside for part in parts),
            map_shapes[0] if map_shapes else None,
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


def _flatten(spikes: SparseSpikes) -> Tuple[List[Any], Tuple[Any, ...]]:
    maps = None if spikes.map_shape is None else tuple(spikes.map_shape)
    return [spikes.ids, spikes.values, spikes.counts, spikes.dropped], (spikes.num_neurons, spikes.outside, maps)


def _unflatten(leaves: Iterable[Any], context: Any) -> SparseSpikes:
    # Leaves need not be tensors: tree_map calls this function with any function's results.
    ids, values, counts, dropped = leaves
    num_neurons, outside, *maps = context
    # A context that was saved as JSON has lists in place of tuples.
    map_shape = tuple(maps[0]) if maps and maps[0] is not None else None
    return SparseSpikes._trusted(ids, values, counts, num_neurons, dropped, outside, map_shape)


def _flatten_with_keys(spikes: SparseSpikes) -> Tuple[List[Any], Tuple[Any, ...]]:
    """Return :func:`_flatten` with a name for each leaf, for ``torch.export``."""
    leaves, context = _flatten(spikes)
    names = ("ids", "values", "counts", "dropped")
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves)], context


def _register() -> None:
    """Register SparseSpikes with PyTorch: as a node of pytrees, and as a class that ``weights_only`` may load."""
    if hasattr(pytree, "register_pytree_node"):
        keywords = inspect.signature(pytree.register_pytree_node).parameters
        pytree.register_pytree_node(
            SparseSpikes,
            _flatten,
            _unflatten,
            serialized_type_name="snnipu.SparseSpikes",
            to_dumpable_context=list,
            from_dumpable_context=tuple,
            **({"flatten_with_keys_fn": _flatten_with_keys} if "flatten_with_keys_fn" in keywords else {}),
        )
    else:  # before PyTorch 2.2
        pytree._register_pytree_node(SparseSpikes, _flatten, _unflatten)
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([SparseSpikes])
    # Spikes that pass between the processes of a DataLoader need no check.
    ForkingPickler.register(SparseSpikes, lambda spikes: (_unflatten, _flatten(spikes)))


_register()


def check_num_neurons(num_neurons: object) -> None:
    """Check that ``num_neurons`` is a positive int that fits int32, the dtype of ids."""
    if isinstance(num_neurons, bool) or not isinstance(num_neurons, int):
        raise TypeError(f"num_neurons must be an int, got {num_neurons!r}")
    if not 1 <= num_neurons < 2**31:
        raise ValueError(f"num_neurons must be from 1 to 2**31 - 1, got {num_neurons}")


def check_map_shape(map_shape: object, num_neurons: int) -> MapShape:
    """Check that ``map_shape`` is None or three positive ints whose product is ``num_neurons``; return it."""
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
    tensors = {"ids": ids, "values": values, "counts": counts, **({} if dropped is None else {"dropped": dropped})}
    for name, tensor in tensors.items():
        dtypes = (torch.float32, torch.float64) if name == "values" else (torch.int32,)
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
    for name, tensor in tensors.items():
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
        # Each slot of padding gets another negative number: no two are equal, and none equals an id.
        marked = torch.where(used, ids.long(), -1 - torch.arange(slots, device=ids.device)).sort(-1).values
        repeated = (marked[..., 1:] == marked[..., :-1]).any(-1)
        if bool(repeated.any()):
            t, b = repeated.nonzero()[0].tolist()
            raise ValueError(f"ids must not name a neuron twice in a step: step {t}, sample {b}")


def check_ids(ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> None:
    """Check that 0 <= spikes <= carried <= slots in each step, and that ids of carried slots are neurons.

    Raises:
        ValueError: the message names the step, the sample and the slot.
    """
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


# The input of event-driven layers.
DenseOrSparse = Union[torch.Tensor, SparseSpikes]

__all__ = ["SparseSpikes", "collate"]
