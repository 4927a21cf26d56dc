"""Calls of the event-driven operators and of pools: the C interface of csrc/host/sparse.h."""

import ctypes
import struct
from array import array
from ctypes import c_double, c_int64, c_void_p
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch

from snnipu.backends import host
from snnipu.spikes import check_ids

_DTYPES = {torch.float32: 0, torch.float64: 1}
_BAD_SPIKES, _NO_ROOM = 3, 4
FUNCTIONS = (
    *(f"sparse_{operator}" for operator in ("linear_fwd", "linear_bwd", "conv2d_fwd", "conv2d_bwd")),
    *("sparse_lif_sequence_fwd", "sparse_lif_sequence_bwd"),
    *("sparse_conv_lif_sequence_fwd", "sparse_conv_lif_sequence_bwd"),
    *("pack_weight", "above", "select_spikes_fwd", "select_spikes_bwd"),
    *("dense_to_sparse_fwd", "sparse_to_dense_fwd", "sparse_to_dense_bwd"),
    *("sparse_pool2d_fwd", "sparse_pool2d_bwd", "max_pool2d_fwd", "max_pool2d_bwd"),
    *("lif_max_pool2d_fwd", "lif_max_pool2d_bwd", "avg_pool2d_fwd", "avg_pool2d_bwd"),
    *("delay_linear_fwd", "delay_linear_bwd", "delay_linear_input_bwd"),
)


class Call(ctypes.Structure):
    """``snnipu_sparse_call``."""

    _fields_ = [
        *((name, c_int64) for name in ("dtype", "threads", "steps", "batch", "slots", "inputs", "neurons")),
        ("own_slots", c_int64),
        *((name, c_void_p) for name in ("geometry", "window", "lags", "ids", "values", "counts")),
        *((name, c_void_p) for name in ("weight", "recurrent_weight", "bias", "beta", "threshold", "neuron_threshold")),
        *((name, c_int64) for name in ("beta_size", "threshold_size")),
        ("second_threshold", c_double),
        ("has_second_threshold", c_int64),
        ("input_scale", c_double),
        *((name, c_int64) for name in ("reset", "delay", "rotate", "mode", "surrogate")),
        *((name, c_double) for name in ("surrogate_a", "surrogate_b")),
        ("room", ctypes.CFUNCTYPE(None, c_void_p)),
        *((name, c_void_p) for name in ("ids_out", "values_out", "counts_out", "dropped", "slot_mem", "source")),
        *((name, c_void_p) for name in ("neuron_counts", "fired", "carried", "mem")),
        ("most", c_int64),
        *((name, c_void_p) for name in ("x", "out", "which")),
        ("cells", c_int64),
        *((name, c_void_p) for name in ("grad", "grad_x", "grad_values", "grad_weight", "grad_bias")),
        *((name, c_void_p) for name in ("grad_recurrent", "grad_beta", "grad_threshold", "grad_current")),
    ]


_TYPES: Dict[str, Any] = {field[0]: field[1] for field in Call._fields_}
_ROOM = _TYPES["room"]
# A call is filled in as an array of words, which takes a third of the time of a structure's fields.
_PLACES = {name: getattr(Call, name).offset // 8 for name in _TYPES}
_WHOLE, _REAL, _POINTERS = (
    {name: _PLACES[name] for name in _TYPES if _TYPES[name] is kind} for kind in (c_int64, c_double, c_void_p)
)
_DTYPE, _THREADS, _MOST, _OWN_SLOTS, _ROOM_PLACE = (
    _PLACES[name] for name in ("dtype", "threads", "most", "own_slots", "room")
)
# What is always written, never read.
_RESULTS = {name for name in _TYPES if name.startswith("grad_")} | {"out", "values_out", "dropped", "neuron_counts"}
_EMPTY = array("q", bytes(ctypes.sizeof(Call)))


def prepared(library: ctypes.CDLL) -> None:
    """``library``'s functions are of this interface."""
    host.declare(library, "sparse", Call, FUNCTIONS)
    library.snnipu_packed_size.argtypes = [c_int64, c_int64]
    library.snnipu_packed_size.restype = c_int64


if host.library is not None:
    prepared(host.library)


@lru_cache(maxsize=256)
def _bits(number: float) -> int:
    """A double as a word."""
    word: int = struct.unpack("q", struct.pack("d", number))[0]
    return word


@lru_cache(maxsize=1024)
def _sizes(numbers: Sequence[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _fill(words: "array[int]", fields: Mapping[str, Any], kept: List[torch.Tensor]) -> None:
    for name, value in fields.items():
        kind = type(value)
        if kind is int or kind is bool:
            words[_WHOLE[name]] = value
        elif value is None:
            continue
        elif kind is float:
            words[_REAL[name]] = _bits(value)
        elif kind is list or kind is tuple:
            sizes = _sizes(tuple(value))
            kept.append(sizes)  # another thread may make the cache drop it
            words[_POINTERS[name]] = sizes.data_ptr()
        else:
            if not value.is_contiguous():
                if name in _RESULTS:
                    raise ValueError(f"{name} must be contiguous: it is written")
                value = value.contiguous()
                kept.append(value)
            words[_POINTERS[name]] = value.data_ptr()


def run(
    name: str,
    dtype: torch.dtype,
    fields: Mapping[str, Any],
    room: Optional[Callable[[int], Mapping[str, Any]]] = None,
) -> int:
    """``snnipu_<name>`` with these fields of the call, by their names; returns its ``most``.

    Fields are tensors (read where they are not contiguous, too), lists of sizes, numbers of the field's type, or None,
    which leaves one out. ``room``: of how many slots, to the fields of the results.
    """
    words = _EMPTY[:]
    kept: List[torch.Tensor] = []
    words[_DTYPE], words[_THREADS] = _DTYPES[dtype], torch.get_num_threads()
    _fill(words, fields, kept)
    failed: List[BaseException] = []
    if room is not None:

        def called(_: Any) -> None:
            try:
                _fill(words, room(words[_OWN_SLOTS]), kept)
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
