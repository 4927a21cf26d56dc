"""Binning of events into time steps, without a dense tensor."""

from typing import Any, Optional, Tuple

import numpy as np
import torch

from snnipu.ops._slots import check_max_spikes, overflow_code
from snnipu.spikes import SparseSpikes, check_num_neurons

_INT64 = np.iinfo(np.int64)


def bin_events(
    times: Any,
    units: Any,
    samples: Any,
    *,
    num_steps: int,
    num_neurons: int,
    batch_size: Optional[int],
    step: float,
    max_spikes: Optional[int],
    overflow: str,
    values: str,
    outside: str,
) -> SparseSpikes:
    """Bin events; the arguments are those of :meth:`snnipu.SparseSpikes.from_events`."""
    check_num_neurons(num_neurons)
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 0:
        raise ValueError(f"num_steps must be an int of 0 or more, got {num_steps!r}")
    if not step > 0 or step == float("inf"):
        raise ValueError(f"step must be a number above 0, got {step!r}")
    for name, value, allowed in (("values", values, ("binary", "count")), ("outside", outside, ("raise", "drop"))):
        if value not in allowed:
            raise ValueError(f"{name} must be {allowed[0]!r} or {allowed[1]!r}, got {value!r}")
    overflow_code(overflow)
    check_max_spikes(max_spikes)
    when = _array("times", times, integer=False)
    unit = _array("units", units, integer=True)
    sample = None if samples is None else _array("samples", samples, integer=True)
    lengths = [len(when), len(unit), len(when) if sample is None else len(sample)]
    if len(set(lengths)) > 1:
        raise ValueError(f"times, units and samples must be of one length, got {', '.join(map(str, lengths))}")
    if batch_size is None:
        batch_size = max(int(sample.max()) + 1, 0) if sample is not None and len(sample) else 1
    elif isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 0:
        raise ValueError(f"batch_size must be an int of 0 or more, got {batch_size!r}")
    _in_range("units", unit, num_neurons)
    if sample is not None:
        _in_range("samples", sample, batch_size)
    elif len(when) and not batch_size:
        raise ValueError(f"batch_size must be 1 or more where there are events, got {batch_size}")
    row, late = _steps(when, step, num_steps)
    left_out = 0 if late is None else int(np.count_nonzero(late))
    if late is not None:
        if outside == "raise":
            first = int(late.argmax())
            raise ValueError(
                f"times must be below num_steps * step = {num_steps * step:g}, got {when[first]:g} (event "
                f'{first}); outside="drop" leaves such events out'
            )
        unit, sample = unit[~late], None if sample is None else sample[~late]
    if batch_size != 1:
        row = row * batch_size
    if sample is not None:
        row = row + sample
    cells, number = _tally(row * num_neurons + unit, values == "count")
    return spikes_in_cells(cells, number, num_steps, batch_size, num_neurons, max_spikes, overflow, left_out)


def spikes_in_cells(
    cells: np.ndarray,
    values: Optional[np.ndarray],
    num_steps: int,
    batch_size: int,
    num_neurons: int,
    max_spikes: Optional[int],
    overflow: str,
    outside: int = 0,
) -> SparseSpikes:
    """Return spikes in sorted cells of ``[T, B, N]``, each cell once; ``values`` None: all values are 1."""
    rows = num_steps * batch_size
    begin = np.searchsorted(cells, np.arange(rows + 1) * num_neurons)
    row_lengths = np.diff(begin)
    most = int(row_lengths.max()) if rows else 0
    capacity = most if max_spikes is None else min(max(max_spikes, most), num_neurons)
    # The slot of a spike is the first slot of its row plus its rank in the row.
    at = np.repeat(np.arange(rows) * capacity - begin[:-1], row_lengths) + np.arange(len(cells))
    shape = (num_steps, batch_size, capacity)
    ids, amounts = np.zeros(rows * capacity, np.int32), np.zeros(rows * capacity, np.float32)
    ids[at], amounts[at] = (
        cells - np.repeat(np.arange(rows) * num_neurons, row_lengths),
        1 if values is None else values,
    )
    pairs = np.repeat(row_lengths.astype(np.int32)[:, None], 2, 1).reshape(num_steps, batch_size, 2)
    spikes = SparseSpikes._trusted(
        torch.from_numpy(ids.reshape(shape)),
        torch.from_numpy(amounts.reshape(shape)),
        torch.from_numpy(pairs),
        num_neurons,
        torch.zeros(num_steps, batch_size, 2, dtype=torch.int32),
        outside,
    )
    return spikes if max_spikes is None or max_spikes >= most else spikes.limit(max_spikes, overflow=overflow)


def _array(name: str, values: Any, integer: bool) -> np.ndarray:
    """Return ``values`` as a one-dimensional array: int64, or finite float64 unless ``integer``."""
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
        # NumPy has no bfloat16.
        values = values.detach().to("cpu", torch.float64 if values.is_floating_point() else torch.int64).numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        array = np.minimum(array, array.dtype.type(_INT64.max))
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=np.int64)
    array = np.ascontiguousarray(array, dtype=np.float64)
    finite = np.isfinite(array)
    if not finite.all():
        raise ValueError(f"{name} must be finite, got {array[~finite][0]}")
    if not integer:
        return array
    broken = array != np.floor(array)
    if broken.any():
        raise ValueError(f"{name} must hold whole numbers, got {array[broken][0]}")
    # Values beyond 64 bits are out of range anyway; clipping keeps their sign for the message.
    return np.clip(array, -(2.0**62), 2.0**62).astype(np.int64)


def _in_range(name: str, values: np.ndarray, end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        first = int(((values < 0) | (values >= end)).argmax())
        expected = f"from 0 to {end - 1}" if end else "0 or more"
        raise ValueError(f"{name} must be {expected}, got {values[first]} (event {first})")


def _steps(when: np.ndarray, step: float, num_steps: int) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return the time steps of the events within the window, and a mask of the later events, or None."""
    if len(when) and when.min() < 0:
        raise ValueError(f"times must be 0 or more, got {when.min():g}")
    if when.dtype.kind == "f" or step != int(step):
        at = np.floor(when / step)
    else:
        at = when if step == 1 else when // int(step)
    late = at >= num_steps if len(at) and at.max() >= num_steps else None
    # Steps within the window fit into an integer; later ones may not.
    return (at if late is None else at[~late]).astype(np.int64, copy=False), late


def _tally(cells: np.ndarray, count: bool) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return the sorted unique ``cells`` and, with ``count``, the number of each in float32."""
    if len(cells) and not (cells[1:] > cells[:-1]).all():
        cells = np.sort(cells)
        new = np.concatenate([[True], cells[1:] != cells[:-1]])
        if count:
            first = np.flatnonzero(new)
            return cells[first], np.diff(first, append=len(cells)).astype(np.float32)
        return cells[new], None
    return cells, np.ones(len(cells), np.float32) if count else None
