"""Random spikes of a given activity, for benchmarks and tests."""

import math
from typing import Optional

import torch

from snnipu._checks import check_int
from snnipu.ops._events import spikes_in_cells
from snnipu.ops._slots import check_max_spikes, overflow_code
from snnipu.spikes import SparseSpikes, check_num_neurons


def random_spikes(
    num_steps: int,
    batch_size: int,
    num_neurons: int,
    activity: float,
    generator: Optional[torch.Generator] = None,
    max_spikes: Optional[int] = None,
    *,
    exact: bool = True,
    overflow: str = "lowest",
) -> SparseSpikes:
    """Return spikes ``[T, B, S]`` of value 1 at random positions, in memory proportional to the number of spikes.

    Args:
        num_steps, batch_size, num_neurons: T, B and N.
        activity: spikes per neuron and step, 0 to 1.
        generator: generator of the random numbers, on the CPU; None: PyTorch's.
        max_spikes: slots; None: as many as the busiest step needs.
        exact: True: ``round(activity * T * B * N)`` spikes, whose numbers in two steps of a sample differ by at most
            one. False: each neuron spikes at each step with probability ``activity``, independently.
        overflow: the spikes that are dropped if a step has more than ``max_spikes``, see
            :func:`snnipu.ops.select_spikes`.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """
    check_int("num_steps", num_steps, 0)
    check_int("batch_size", batch_size, 0)
    check_num_neurons(num_neurons)
    if not 0 <= activity <= 1:
        raise ValueError(f"activity must be from 0 to 1, got {activity!r}")
    check_max_spikes(max_spikes)
    overflow_code(overflow)
    rows = num_steps * batch_size
    # The cells of [T * B, N] that spike or, if these are fewer, the cells that do not.
    if exact:
        total = round(activity * rows * num_neurons)
        cells = _exact(rows, num_neurons, rows * num_neurons - total if activity > 0.5 else total, generator)
    else:
        cells = _independent(rows * num_neurons, min(activity, 1 - activity), generator)
    if activity > 0.5:
        cells = _others(cells, rows * num_neurons)
    return spikes_in_cells(cells.numpy(), None, num_steps, batch_size, num_neurons, max_spikes, overflow)


def _exact(rows: int, neurons: int, total: int, generator: Optional[torch.Generator]) -> torch.Tensor:
    """Return ``total`` sorted random cells, whose numbers in two rows differ by at most one."""
    counts = torch.arange(1, rows + 1) * total // max(rows, 1)
    counts[1:] -= counts[:-1].clone()
    cells = torch.empty(0, dtype=torch.int64)
    missing = counts
    # Duplicates are drawn again. No neuron is preferred, so all subsets of a row have the same probability.
    while bool(missing.any()):
        row = torch.repeat_interleave(torch.arange(rows), missing)
        drawn = row * neurons + torch.randint(neurons, (len(row),), generator=generator)
        cells = torch.unique(torch.cat([cells, drawn]))
        missing = counts - torch.bincount(torch.div(cells, neurons, rounding_mode="floor"), minlength=rows)
    return cells


def _independent(total: int, probability: float, generator: Optional[torch.Generator]) -> torch.Tensor:
    """Return sorted cells of ``range(total)``, each present with ``probability``.

    The gaps between them have a geometric distribution.
    """
    parts, last = [], -1
    while probability > 0 and last < total:
        number = int((total - last) * probability * 1.05) + 16
        uniform = 1 - torch.rand(number, generator=generator, dtype=torch.float64)  # above 0
        # Clamped to avoid overflow: a gap of all cells ends the range.
        gaps = torch.floor(uniform.log() / math.log1p(-probability)).clamp(max=total).long() + 1
        parts.append(last + gaps.cumsum(0))
        last = int(parts[-1][-1])
    cells = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
    return cells[cells < total]


def _others(cells: torch.Tensor, total: int) -> torch.Tensor:
    """Return the cells of ``range(total)`` that are not in the sorted ``cells``."""
    others = torch.arange(total - len(cells))
    # There are c - i other cells before cell c, the i-th of ``cells``.
    return others + torch.searchsorted(cells - torch.arange(len(cells)), others, right=True)
