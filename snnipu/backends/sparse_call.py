"""Calls of the event-driven operators and of pools: the C interface of csrc/host/sparse.h."""

import ctypes
from array import array
from ctypes import c_double, c_int64, c_void_p
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from snnipu._pointers import pointer, pointer_to_read
from snnipu.backends import host
from snnipu.ops._maps import Geometry, PoolGeometry, is_convolution, is_pool
from snnipu.ops._sparse_layers import words as words_of
from snnipu.ops.dense_pool2d import Windows, is_window_geometry
from snnipu.spikes import check_ids

_DTYPES = {torch.float32: 0, torch.float64: 1}
_BAD_SPIKES, _NO_ROOM = 3, 4
Call: Any = host.struct_of("sparse", "sparse.h")
_TYPES: Dict[str, Any] = {field[0]: field[1] for field in Call._fields_}
_ROOM = _TYPES["room"]
# A call is filled in as an array of words, which takes a third of the time of a structure's fields.
_PLACES = {name: getattr(Call, name).offset // 8 for name in _TYPES}
_WHOLE, _REAL, _POINTERS = (
    {name: _PLACES[name] for name in _TYPES if _TYPES[name] is kind} for kind in (c_int64, c_double, c_void_p)
)
_DTYPE, _THREADS, _MOST, _OUTPUT_SLOTS, _ROOM_PLACE = (
    _PLACES[name] for name in ("dtype", "threads", "most", "output_slots", "room")
)
_EMPTY = array("q", bytes(ctypes.sizeof(Call)))


class Taps(NamedTuple):
    """The geometry of ``delay_linear``: steps to the last tap of any synapse and one; taps."""

    span: int
    taps: int


# ---- the tensors of each function

_Sizes = Dict[str, int]
_Number = Union[str, int, Callable[[_Sizes], int]]  # the name of a size, or a number made of sizes
# A shape, or a number of elements in any shape.
_Size = Union[_Number, Tuple[_Number, ...]]


class Function(NamedTuple):
    """The sizes of the tensors that a function reads and writes, and what the numbers of its ``geometry`` are."""

    reads: Mapping[str, _Size]
    writes: Mapping[str, _Size]
    geometry: Optional[Callable[..., Any]] = None


def _packed(neurons: int, inputs: int) -> int:
    """Length of a matrix as pack_weight gives it."""
    return int(host.library.snnipu_packed_size(neurons, inputs))  # type: ignore[union-attr]


def _packed_weight(sizes: _Sizes) -> int:
    return _packed(sizes["neurons"], sizes["inputs"])


def _packed_recurrent(sizes: _Sizes) -> int:
    return _packed(sizes["neurons"], sizes["neurons"])


def _words(sizes: _Sizes) -> int:
    return words_of(sizes["neurons"])


def _one_or_each(sizes: _Sizes) -> int:
    return 1 if sizes["threshold_size"] == 1 else sizes["neurons"]


def _channels_of_group(sizes: _Sizes) -> int:
    return sizes["in_channels"] // sizes["groups"]


def _positions(sizes: _Sizes) -> int:
    return sizes["out_height"] * sizes["out_width"]


_INT32 = ("lags", "ids", "counts", "ids_out", "counts_out", "dropped", "source", "neuron_counts", "fired", "carried")
_DTYPES_OF = {**dict.fromkeys(_INT32, torch.int32), "which": torch.uint8}  # others: the call's

_ROWS = ("steps", "batch")
_PAIRS, _SLOTS, _OWN, _BITS = (*_ROWS, 2), (*_ROWS, "slots"), (*_ROWS, "output_slots"), (*_ROWS, _words)
_NEURONS, _INPUTS = (*_ROWS, "neurons"), (*_ROWS, "inputs")
_MATRIX, _TAPS, _LAGS = ("neurons", "inputs"), ("inputs", "neurons", "taps"), ("inputs", "neurons")
_KERNELS = ("out_channels", _channels_of_group, "kernel_height", "kernel_width")
_MAPS, _WINDOWS = ("neurons", "height", "width"), ("neurons", "out_height", "out_width")
_CELLS = ("cells", "neurons")

_CARRIED: Dict[str, _Size] = {"ids": _SLOTS, "counts": _PAIRS}
_SPIKES: Dict[str, _Size] = {**_CARRIED, "values": _SLOTS}
_OWN_CARRIED: Dict[str, _Size] = {"ids_out": _OWN, "counts_out": _PAIRS}
_OWN_SPIKES: Dict[str, _Size] = {**_OWN_CARRIED, "values_out": _OWN, "dropped": _PAIRS}
_NEURON: Dict[str, _Size] = {"beta": "beta_size", "threshold": "threshold_size"}


def _currents(weight: _Size, grad_weight: _Size, bias: _Size, geometry: Any) -> Tuple[Function, Function]:
    """The forward and the backward function of weighted spikes."""
    forward = Function({**_SPIKES, "weight": weight, "bias": bias}, {"out": _NEURONS}, geometry)
    reads = {**_SPIKES, "weight": weight, "grad": _NEURONS}
    return forward, Function(reads, {"grad_values": _SLOTS, "grad_weight": grad_weight, "grad_bias": bias}, geometry)


def _layer(weight: _Size, grad_weight: _Size, bias: _Size, mem: _Size, geometry: Any) -> Tuple[Function, Function]:
    """Likewise of a layer."""
    both = {**_SPIKES, **_NEURON, "weight": weight, "recurrent_weight": _packed_recurrent}
    made = {**_OWN_SPIKES, "slot_mem": _OWN, "source": _OWN, "neuron_counts": _PAIRS, "fired": _BITS, "mem": mem}
    reads = {**both, **_OWN_CARRIED, "grad": _OWN, "slot_mem": _OWN, "fired": _BITS, "mem": mem}
    reads["neuron_threshold"] = _one_or_each
    writes: Dict[str, _Size] = {"grad_values": _SLOTS, "grad_weight": grad_weight, "grad_bias": bias}
    writes.update({"grad_recurrent": ("neurons", "neurons"), "grad_current": mem})
    writes.update({f"grad_{name}": size for name, size in _NEURON.items()})
    return Function({**both, "bias": bias}, made, geometry), Function(reads, writes, geometry)


def _delays() -> Dict[str, Function]:
    both: Dict[str, _Size] = {"lags": _LAGS, "weight": _TAPS}
    with_grad: Dict[str, _Size] = {**both, "grad": _NEURONS}
    return {
        "delay_linear_fwd": Function({**_SPIKES, **both, "bias": ("neurons",)}, {"out": _NEURONS}, Taps),
        "delay_linear_bwd": Function({**_SPIKES, **with_grad}, {"grad_weight": _TAPS}, Taps),
        "delay_linear_input_bwd": Function(with_grad, {"grad_x": _INPUTS}, Taps),
    }


def _dense_pools() -> Dict[str, Function]:
    return {
        "max_pool2d_fwd": Function({"x": _MAPS}, {"out": _WINDOWS, "which": _WINDOWS}, Windows),
        "max_pool2d_bwd": Function({"grad": _WINDOWS, "which": _WINDOWS}, {"grad_x": _MAPS}, Windows),
        "avg_pool2d_fwd": Function({"x": _MAPS}, {"out": _WINDOWS}, Windows),
        "avg_pool2d_bwd": Function({"grad": _WINDOWS}, {"grad_x": _MAPS}, Windows),
    }


def _by_name(name: str, pair: Tuple[Function, Function]) -> Dict[str, Function]:
    return {f"{name}_fwd": pair[0], f"{name}_bwd": pair[1]}


_OF_CHANNELS = (_KERNELS, _KERNELS, ("out_channels",))
_OF_A_MATRIX = (_packed_weight, _MATRIX, ("neurons",))
FUNCTIONS: Dict[str, Function] = {
    **_by_name("sparse_linear", _currents(*_OF_A_MATRIX, None)),
    **_by_name("sparse_conv2d", _currents(*_OF_CHANNELS, Geometry)),
    **_by_name("sparse_lif_sequence", _layer(*_OF_A_MATRIX, _NEURONS, None)),
    **_by_name("sparse_conv_lif_sequence", _layer(*_OF_CHANNELS, (*_ROWS, _positions, "out_channels"), Geometry)),
    "pack_weight": Function({"weight": _MATRIX}, {"out": _packed_weight}),
    "above": Function({"x": _NEURONS, "threshold": "threshold_size"}, {"fired": _BITS, "carried": _BITS}),
    "select_spikes_fwd": Function({"fired": _BITS, "carried": _BITS}, _OWN_SPIKES),
    "select_spikes_bwd": Function(
        {**_OWN_CARRIED, "grad": _OWN, "slot_mem": _OWN, "threshold": "threshold_size"}, {"grad_values": _OWN}
    ),
    "dense_to_sparse_fwd": Function({"x": _NEURONS}, _OWN_SPIKES),
    "sparse_to_dense_fwd": Function(_SPIKES, {"out": _CELLS}),
    "sparse_to_dense_bwd": Function({**_CARRIED, "x": _CELLS}, {"values_out": _SLOTS}),
    "sparse_pool2d_fwd": Function(_SPIKES, {**_OWN_SPIKES, "source": _OWN}, PoolGeometry),
    "sparse_pool2d_bwd": Function(
        {**_CARRIED, **_OWN_CARRIED, "grad": _OWN, "source": _OWN}, {"grad_values": _SLOTS}, PoolGeometry
    ),
    **_dense_pools(),
    **_delays(),
}


def _number(number: _Number, sizes: _Sizes) -> int:
    if isinstance(number, str):
        return sizes[number]
    return number if isinstance(number, int) else number(sizes)


def _size(size: _Size, sizes: _Sizes) -> Union[int, Tuple[int, ...]]:
    if isinstance(size, tuple):
        return tuple([_number(number, sizes) for number in size])
    return _number(size, sizes)


@lru_cache(maxsize=1024)
def _numbers(numbers: Sequence[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def prepared(library: ctypes.CDLL) -> None:
    """``library``'s functions are of this interface."""
    host.declare(library, "sparse", Call, FUNCTIONS)
    library.snnipu_packed_size.argtypes = [c_int64, c_int64]
    library.snnipu_packed_size.restype = c_int64


if host.library is not None:
    prepared(host.library)


# Whether the numbers of a geometry fit together.
CHECKS: Dict[Any, Callable[[Any], bool]] = {
    Geometry: is_convolution,
    PoolGeometry: is_pool,
    Windows: is_window_geometry,
    Taps: lambda made: 0 < made.taps <= made.span,
}


@lru_cache(maxsize=1024)
def _geometry(kind: Callable[..., Any], numbers: Sequence[int]) -> _Sizes:
    """The sizes by their names; raises where they are not those of ``kind``."""
    try:
        made = kind(*numbers)
    except TypeError:
        raise ValueError(f"geometry must be {', '.join(kind._fields)}, got {list(numbers)}") from None  # type: ignore[attr-defined]
    if not CHECKS[kind](made):
        raise ValueError(f"geometry must be sizes that fit together, got {made}")
    return made._asdict()  # type: ignore[no-any-return]


def _fill(
    words: "array[int]",
    function: Function,
    fields: Mapping[str, Any],
    sizes: _Sizes,
    dtype: torch.dtype,
    kept: List[torch.Tensor],
) -> None:
    for name, value in fields.items():
        kind = type(value)
        if kind is int or kind is bool:
            words[_WHOLE[name]] = value
        elif value is None:
            continue
        elif kind is float:
            words[_REAL[name]] = host.word(value)
        elif kind is list or kind is tuple:
            numbers = _numbers(tuple(value))
            kept.append(numbers)  # another thread may make the cache drop it
            words[_POINTERS[name]] = pointer(name, numbers, torch.int64, len(value))
        elif name in function.reads:
            expected, size = _DTYPES_OF.get(name, dtype), _size(function.reads[name], sizes)
            words[_POINTERS[name]] = pointer_to_read(name, value, expected, size, kept)
        else:
            expected, size = _DTYPES_OF.get(name, dtype), _size(function.writes[name], sizes)
            words[_POINTERS[name]] = pointer(name, value, expected, size)


def run(
    name: str,
    dtype: torch.dtype,
    fields: Mapping[str, Any],
    room: Optional[Callable[[int], Mapping[str, Any]]] = None,
) -> int:
    """``snnipu_<name>`` with these fields of the call, by their names; returns its ``most``.

    Fields are tensors (read where they are not contiguous, too), lists of sizes, numbers of the field's type, or None,
    which leaves one out. ``room``: of how many slots, to the fields of the results.

    Raises:
        TypeError, ValueError: a tensor that is not what :data:`FUNCTIONS` says of it; the message names it.
    """
    if dtype not in _DTYPES:
        raise TypeError(f"snnipu_{name} takes float32 and float64, got {dtype}")
    function, words = FUNCTIONS[name], _EMPTY[:]
    kept: List[torch.Tensor] = []
    words[_DTYPE], words[_THREADS] = _DTYPES[dtype], torch.get_num_threads()
    sizes = {field: value for field, value in fields.items() if type(value) is int}
    if function.geometry is not None:
        sizes.update(_geometry(function.geometry, tuple(fields["geometry"])))
    _fill(words, function, fields, sizes, dtype, kept)
    failed: List[BaseException] = []
    if room is not None:

        def called(_: Any) -> None:
            try:
                sizes["output_slots"] = words[_OUTPUT_SLOTS]
                _fill(words, function, room(words[_OUTPUT_SLOTS]), sizes, dtype, kept)
                words[_MOST] = 1
            except BaseException as error:  # nothing may pass through C
                failed.append(error)

        callback = _ROOM(called)
        words[_ROOM_PLACE] = c_void_p.from_buffer(callback).value or 0
    status = getattr(host.library, f"snnipu_{name}")(words.buffer_info()[0])
    if status:
        if status == _NO_ROOM:
            # That of a signal may come before the first line of `called`; ctypes prints it, and goes on.
            raise failed[0] if failed else KeyboardInterrupt(f"snnipu_{name}: interrupted")
        if status == _BAD_SPIKES and "ids" in fields:
            check_ids(fields["ids"], fields["counts"], fields.get("inputs", fields.get("neurons")))  # says where
        host._check(status, name)
    return words[_MOST]
