"""Call the C functions of the event-driven operators and of pools (C interface: csrc/host/sparse.h).

``SIGNATURES`` has the shape of each tensor that a function reads or writes: :func:`run` checks all of them.
"""

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
# Calls are filled in as arrays of words: setting the fields of a ctypes structure takes three times as long.
_PLACES = {name: getattr(Call, name).offset // 8 for name in _TYPES}
_WHOLE, _REAL, _POINTERS = (
    {name: _PLACES[name] for name in _TYPES if _TYPES[name] is kind} for kind in (c_int64, c_double, c_void_p)
)
_DTYPE, _THREADS, _MOST, _OUTPUT_SLOTS, _ROOM_PLACE = (
    _PLACES[name] for name in ("dtype", "threads", "most", "output_slots", "room")
)
_EMPTY = array("q", bytes(ctypes.sizeof(Call)))


class DelayGeometry(NamedTuple):
    """The geometry of ``delay_linear``.

    Attributes:
        span: steps from a spike to the last tap of any synapse, plus one.
        taps: taps of each synapse.
    """

    span: int
    taps: int


# ---- the tensors of each function

_Sizes = Dict[str, int]
_Number = Union[str, int, Callable[[_Sizes], int]]  # the name of a size, a number, or a function of the sizes
# A shape; or a number of elements, for tensors of any shape.
_Size = Union[_Number, Tuple[_Number, ...]]


class Signature(NamedTuple):
    """The tensors of a C function.

    Attributes:
        reads: name -> size of each tensor that it reads.
        writes: name -> size of each tensor that it writes.
        geometry: the named tuple whose numbers its field ``geometry`` contains; None if there is none.
    """

    reads: Mapping[str, _Size]
    writes: Mapping[str, _Size]
    geometry: Optional[Callable[..., Any]] = None


def _packed(neurons: int, inputs: int) -> int:
    """Return the number of elements of a weight that ``pack_weight`` has packed."""
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
_DTYPES_OF = {**dict.fromkeys(_INT32, torch.int32), "which": torch.uint8}  # other tensors have the dtype of the call

_ROWS = ("steps", "batch")
_PAIRS, _SLOTS, _OUT, _BITS = (*_ROWS, 2), (*_ROWS, "slots"), (*_ROWS, "output_slots"), (*_ROWS, _words)
_NEURONS, _INPUTS = (*_ROWS, "neurons"), (*_ROWS, "inputs")
_MATRIX, _TAPS, _LAGS = ("neurons", "inputs"), ("inputs", "neurons", "taps"), ("inputs", "neurons")
_KERNELS = ("out_channels", _channels_of_group, "kernel_height", "kernel_width")
_MAPS, _WINDOWS = ("neurons", "height", "width"), ("neurons", "out_height", "out_width")
_CELLS = ("cells", "neurons")

_CARRIED: Dict[str, _Size] = {"ids": _SLOTS, "counts": _PAIRS}
_SPIKES: Dict[str, _Size] = {**_CARRIED, "values": _SLOTS}
_OUT_CARRIED: Dict[str, _Size] = {"ids_out": _OUT, "counts_out": _PAIRS}
_OUT_SPIKES: Dict[str, _Size] = {**_OUT_CARRIED, "values_out": _OUT, "dropped": _PAIRS}
_NEURON: Dict[str, _Size] = {"beta": "beta_size", "threshold": "threshold_size"}


def _currents(weight: _Size, grad_weight: _Size, bias: _Size, geometry: Any) -> Tuple[Signature, Signature]:
    """Return the forward and the backward function of currents, which are sums of weighted spikes."""
    forward = Signature({**_SPIKES, "weight": weight, "bias": bias}, {"out": _NEURONS}, geometry)
    reads = {**_SPIKES, "weight": weight, "grad": _NEURONS}
    return forward, Signature(reads, {"grad_values": _SLOTS, "grad_weight": grad_weight, "grad_bias": bias}, geometry)


def _layer(weight: _Size, grad_weight: _Size, bias: _Size, mem: _Size, geometry: Any) -> Tuple[Signature, Signature]:
    """Return the forward and the backward function of a layer of neurons."""
    both = {**_SPIKES, **_NEURON, "weight": weight, "recurrent_weight": _packed_recurrent}
    outputs = {**_OUT_SPIKES, "slot_mem": _OUT, "source": _OUT, "neuron_counts": _PAIRS, "fired": _BITS, "mem": mem}
    reads = {**both, **_OUT_CARRIED, "grad": _OUT, "slot_mem": _OUT, "fired": _BITS, "mem": mem}
    reads["neuron_threshold"] = _one_or_each
    writes: Dict[str, _Size] = {"grad_values": _SLOTS, "grad_weight": grad_weight, "grad_bias": bias}
    writes.update({"grad_recurrent": ("neurons", "neurons"), "grad_current": mem})
    writes.update({f"grad_{name}": size for name, size in _NEURON.items()})
    return Signature({**both, "bias": bias}, outputs, geometry), Signature(reads, writes, geometry)


def _delays() -> Dict[str, Signature]:
    both: Dict[str, _Size] = {"lags": _LAGS, "weight": _TAPS}
    with_grad: Dict[str, _Size] = {**both, "grad": _NEURONS}
    return {
        "delay_linear_fwd": Signature({**_SPIKES, **both, "bias": ("neurons",)}, {"out": _NEURONS}, DelayGeometry),
        "delay_linear_bwd": Signature({**_SPIKES, **with_grad}, {"grad_weight": _TAPS}, DelayGeometry),
        "delay_linear_input_bwd": Signature(with_grad, {"grad_x": _INPUTS}, DelayGeometry),
    }


def _dense_pools() -> Dict[str, Signature]:
    return {
        "max_pool2d_fwd": Signature({"x": _MAPS}, {"out": _WINDOWS, "which": _WINDOWS}, Windows),
        "max_pool2d_bwd": Signature({"grad": _WINDOWS, "which": _WINDOWS}, {"grad_x": _MAPS}, Windows),
        "avg_pool2d_fwd": Signature({"x": _MAPS}, {"out": _WINDOWS}, Windows),
        "avg_pool2d_bwd": Signature({"grad": _WINDOWS}, {"grad_x": _MAPS}, Windows),
    }


def _by_name(name: str, pair: Tuple[Signature, Signature]) -> Dict[str, Signature]:
    return {f"{name}_fwd": pair[0], f"{name}_bwd": pair[1]}


# Sizes of the weight, of its gradient, and of the bias.
_CONVOLUTION = (_KERNELS, _KERNELS, ("out_channels",))
_LINEAR = (_packed_weight, _MATRIX, ("neurons",))
SIGNATURES: Dict[str, Signature] = {
    **_by_name("sparse_linear", _currents(*_LINEAR, None)),
    **_by_name("sparse_conv2d", _currents(*_CONVOLUTION, Geometry)),
    **_by_name("sparse_lif_sequence", _layer(*_LINEAR, _NEURONS, None)),
    **_by_name("sparse_conv_lif_sequence", _layer(*_CONVOLUTION, (*_ROWS, _positions, "out_channels"), Geometry)),
    "pack_weight": Signature({"weight": _MATRIX}, {"out": _packed_weight}),
    "above": Signature({"x": _NEURONS, "threshold": "threshold_size"}, {"fired": _BITS, "carried": _BITS}),
    "select_spikes_fwd": Signature({"fired": _BITS, "carried": _BITS}, _OUT_SPIKES),
    "select_spikes_bwd": Signature(
        {**_OUT_CARRIED, "grad": _OUT, "slot_mem": _OUT, "threshold": "threshold_size"}, {"grad_values": _OUT}
    ),
    "eventprop_bwd": Signature(
        {
            **_OUT_CARRIED,
            **dict.fromkeys(("grad", "early", "late"), _OUT),
            **dict.fromkeys(("alpha", "beta", "threshold"), ("neurons",)),
            "mem": _NEURONS,
            "recurrent_weight": ("neurons", "neurons"),
        },
        {"grad_current": _NEURONS, "out": _NEURONS},
    ),
    "dense_to_sparse_fwd": Signature({"x": _NEURONS}, _OUT_SPIKES),
    "sparse_to_dense_fwd": Signature(_SPIKES, {"out": _CELLS}),
    "sparse_to_dense_bwd": Signature({**_CARRIED, "x": _CELLS}, {"values_out": _SLOTS}),
    "sparse_pool2d_fwd": Signature(_SPIKES, {**_OUT_SPIKES, "source": _OUT}, PoolGeometry),
    "sparse_pool2d_bwd": Signature(
        {**_CARRIED, **_OUT_CARRIED, "grad": _OUT, "source": _OUT}, {"grad_values": _SLOTS}, PoolGeometry
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


def declare_functions(library: ctypes.CDLL) -> None:
    """Declare the functions of ``library``. Raise NativeLibraryError if its interface differs."""
    host.declare(library, "sparse", Call, SIGNATURES)
    library.snnipu_packed_size.argtypes = [c_int64, c_int64]
    library.snnipu_packed_size.restype = c_int64


if host.library is not None:
    declare_functions(host.library)


# Geometry -> a function that returns True if its numbers are consistent.
CHECKS: Dict[Any, Callable[[Any], bool]] = {
    Geometry: is_convolution,
    PoolGeometry: is_pool,
    Windows: is_window_geometry,
    DelayGeometry: lambda geometry: 0 < geometry.taps <= geometry.span,
}


@lru_cache(maxsize=1024)
def _geometry(kind: Callable[..., Any], numbers: Sequence[int]) -> _Sizes:
    """Return the sizes of a geometry by name. Raise ValueError unless they are those of a valid ``kind``."""
    try:
        geometry = kind(*numbers)
    except TypeError:
        raise ValueError(f"geometry must be {', '.join(kind._fields)}, got {list(numbers)}") from None  # type: ignore[attr-defined]
    if not CHECKS[kind](geometry):
        raise ValueError(f"geometry must be sizes that fit together, got {geometry}")
    return geometry._asdict()  # type: ignore[no-any-return]


def _fill(
    words: "array[int]",
    function: Signature,
    fields: Mapping[str, Any],
    sizes: _Sizes,
    dtype: torch.dtype,
    keep_alive: List[torch.Tensor],
) -> None:
    for name, value in fields.items():
        kind = type(value)
        if kind is int or kind is bool:
            words[_WHOLE[name]] = value
        elif value is None:
            continue
        elif kind is float:
            words[_REAL[name]] = host.float_bits(value)
        elif kind is list or kind is tuple:
            numbers = _numbers(tuple(value))
            keep_alive.append(numbers)  # another thread may evict it from the cache during the call
            words[_POINTERS[name]] = pointer(name, numbers, torch.int64, len(value))
        elif name in function.reads:
            expected, size = _DTYPES_OF.get(name, dtype), _size(function.reads[name], sizes)
            words[_POINTERS[name]] = pointer_to_read(name, value, expected, size, keep_alive)
        else:
            expected, size = _DTYPES_OF.get(name, dtype), _size(function.writes[name], sizes)
            words[_POINTERS[name]] = pointer(name, value, expected, size)


def run(
    name: str,
    dtype: torch.dtype,
    fields: Mapping[str, Any],
    room: Optional[Callable[[int], Mapping[str, Any]]] = None,
) -> int:
    """Call ``snnipu_<name>`` and return the field ``most`` of the call.

    Args:
        name: name of the function.
        dtype: float32 or float64, the dtype of its tensors.
        fields: fields of the call by name. They are tensors, lists of sizes, or numbers of the field's type. None
            leaves out a field. Tensors that the function reads need not be contiguous.
        room: a function that allocates the results: number of slots -> further fields. The C function calls it when it
            has counted the spikes.

    Raises:
        TypeError: a tensor has another dtype than in :data:`SIGNATURES`; the message names it.
        ValueError: a tensor has another shape than in :data:`SIGNATURES`; the message names it.
    """
    if dtype not in _DTYPES:
        raise TypeError(f"snnipu_{name} takes float32 and float64, got {dtype}")
    function, words = SIGNATURES[name], _EMPTY[:]
    keep_alive: List[torch.Tensor] = []
    words[_DTYPE], words[_THREADS] = _DTYPES[dtype], torch.get_num_threads()
    sizes = {field: value for field, value in fields.items() if type(value) is int}
    if function.geometry is not None:
        sizes.update(_geometry(function.geometry, tuple(fields["geometry"])))
    _fill(words, function, fields, sizes, dtype, keep_alive)
    failed: List[BaseException] = []
    if room is not None:

        def called(_: Any) -> None:
            try:
                sizes["output_slots"] = words[_OUTPUT_SLOTS]
                _fill(words, function, room(words[_OUTPUT_SLOTS]), sizes, dtype, keep_alive)
                words[_MOST] = 1
            except BaseException as error:  # an exception must not pass through the C function
                failed.append(error)

        callback = _ROOM(called)
        words[_ROOM_PLACE] = c_void_p.from_buffer(callback).value or 0
    status = getattr(host.library, f"snnipu_{name}")(words.buffer_info()[0])
    if status:
        if status == _NO_ROOM:
            # A signal may raise before the first line of `called`. ctypes prints that exception and returns to C.
            raise failed[0] if failed else KeyboardInterrupt(f"snnipu_{name}: interrupted")
        if status == _BAD_SPIKES and "ids" in fields:
            check_ids(fields["ids"], fields["counts"], fields.get("inputs", fields.get("neurons")))  # names the place
        host._check(status, name)
    return words[_MOST]
