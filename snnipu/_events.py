"""Binning of events into time steps, without a dense detour."""

from typing import Any, Optional

import numpy as np
import torch

from snnipu.ops._slots import check_max_spikes, overflow_code, pick
from snnipu.spikes import SparseSpikes, check_num_neurons


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
    """What ``SparseSpikes.from_events`` does; its docstring says what the arguments mean."""
    check_num_neurons(num_neurons)
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 0:
        raise ValueError(f"num_steps must be an int of 0 or more, got {num_steps!r}")
    if not step > 0 or step == float("inf"):
        raise ValueError(f"step must be a number above 0, got {step!r}")
    for name, value, allowed in (("values", values, ("binary", "count")), ("outside", outside, ("raise", "drop"))):
        if value not in allowed:
            raise ValueError(f"{name} must be {allowed[0]!r} or {allowed[1]!r}, got {value!r}")
    rotate = overflow_code(overflow)
    check_max_spikes(max_spikes)
    when = _array("times", times, integer=False)
    unit = _array("units", units, integer=True)
    sample = torch.zeros_like(unit) if samples is None else _array("samples", samples, integer=True)
    if not len(when) == len(unit) == len(sample):
        raise ValueError(
            f"times, units and samples must be of one length, got {len(when)}, {len(unit)} and {len(sample)}"
        )
    if batch_size is None:
        batch_size = int(sample.max()) + 1 if samples is not None and len(sample) else 1
    elif isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 0:
        raise ValueError(f"batch_size must be an int of 0 or more, got {batch_size!r}")
    _in_range("units", unit, num_neurons)
    _in_range("samples", sample, batch_size)
    at = _steps(when, step)
    late = at >= num_steps
    left_out = int(late.sum())
    if left_out:
        if outside == "raise":
            first = int(late.nonzero()[0])
            raise ValueError(
                f"times must be below num_steps * step = {num_steps * step:g}, got {when[first].item():g} (event "
                f'{first}); outside="drop" leaves such events out'
            )
        at, unit, sample = at[~late], unit[~late], sample[~late]
    cells, number = torch.unique((at * batch_size + sample) * num_neurons + unit, return_counts=True)
    rows, unit = torch.div(cells, num_neurons, rounding_mode="floor"), cells % num_neurons
    ids, slots, counts, dropped = pick(rows, unit, num_steps, batch_size, num_neurons, max_spikes, rotate)
    events = torch.zeros(ids.shape, dtype=torch.float32)
    kept = slots >= 0
    events.view(-1)[slots[kept]] = number[kept].float() if values == "count" else 1.0
    return SparseSpikes._trusted(ids, events, counts, num_neurons, dropped, left_out)


def _array(name: str, values: Any, integer: bool) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "iufb":
            raise TypeError(f"{name} must hold numbers, got dtype {array.dtype}")
        # torch has no unsigned types but uint8.
        array = array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)
        values = torch.from_numpy(np.ascontiguousarray(array))
    if values.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(values.shape)}")
    if values.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
    if values.is_floating_point():
        if len(values) and not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} must be finite, got {values[~torch.isfinite(values)][0].item()}")
        if integer and len(values):
            if bool((values != values.floor()).any()):
                raise ValueError(f"{name} must hold whole numbers, got {values[values != values.floor()][0].item()}")
            return values.long()
        return values.double()
    return values.long()


def _in_range(name: str, values: torch.Tensor, end: int) -> None:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < end):
        first = int(((values < 0) | (values >= end)).nonzero()[0])
        raise ValueError(f"{name} must be from 0 to {end - 1}, got {int(values[first])} (event {first})")


def _steps(when: torch.Tensor, step: float) -> torch.Tensor:
    if len(when) and float(when.min()) < 0:
        raise ValueError(f"times must be 0 or more, got {when.min().item():g}")
    if when.is_floating_point() or step != int(step):
        return torch.floor(when.double() / step).long()
    return torch.div(when, int(step), rounding_mode="floor")


__all__ = ["bin_events"]
