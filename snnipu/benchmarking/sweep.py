"""What a sweep found: times along its axes, and where one contender begins to take longer than another."""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from snnipu.benchmarking.case import Axis, Contender, Sweep
from snnipu.benchmarking.runner import CaseResult, ContenderResult
from snnipu.benchmarking.timing import Timing


def crossing(values: Sequence[float], times: Sequence[Optional[float]], others: Sequence[Optional[float]]) -> float:
    """Where ``times`` first rises above ``others``, of straight lines between points on logarithmic axes.

    Args:
        values: ascending and above 0.
        times: seconds at each; None: not measured, such a point is left out.
        others: likewise.

    Returns:
        The value; infinity where ``times`` is never above ``others``, 0 where it is from the first value on; NaN where
        nothing was measured.

    Raises:
        ValueError: the lengths differ, or ``values`` is not ascending and above 0.
    """
    if not len(values) == len(times) == len(others):
        raise ValueError(f"times: as many as values are needed, got {len(values)}, {len(times)} and {len(others)}")
    if any(b <= a for a, b in zip([0.0, *values], values)):
        raise ValueError(f"values: must be ascending and above 0, got {list(values)}")
    ratios = [(v, math.log(t / o)) for v, t, o in zip(values, times, others) if t is not None and o is not None]
    if not ratios:
        return math.nan
    if ratios[0][1] > 0:
        return 0.0
    for (left, below), (right, above) in zip(ratios, ratios[1:]):
        if above > 0:
            share = -below / (above - below)
            return math.exp(math.log(left) + share * (math.log(right) - math.log(left)))
    return math.inf


@dataclass
class SweepResult:
    """A sweep and the table of each of its points, as far as they have run."""

    sweep: Sweep
    results: List[CaseResult]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    def contenders(self) -> List[Contender]:
        """The rows, in their order."""
        return [r.contender for r in self.results[0].results] if self.results else []

    def point(self, axis: Axis, value: float) -> Optional[CaseResult]:
        """The table at ``value`` of ``axis``."""
        wanted = {**axis.fixed, axis.parameter: value}
        return self._find(wanted)

    def headline(self) -> Optional[CaseResult]:
        """The one table that is shown whole, where it is one."""
        return None if self.sweep.headline is None else self._find(dict(self.sweep.headline))

    def whole(self) -> List[CaseResult]:
        """The tables that are shown whole."""
        return [result for result in self.results if self.sweep.shown_whole(result.case.parameters)]

    def _find(self, wanted: Dict[str, Any]) -> Optional[CaseResult]:
        for result in self.results:
            if all(result.case.parameters[key] == value for key, value in wanted.items()):
                return result
        return None

    def rows(self, axis: Axis, name: str) -> List[Tuple[float, Optional[ContenderResult]]]:
        """The contender ``name`` along ``axis``; None where that point did not run."""
        found: List[Tuple[float, Optional[ContenderResult]]] = []
        for value in axis.values:
            point = self.point(axis, value)
            rows = point.results if point else []
            found.append((value, next((r for r in rows if r.contender.name == name), None)))
        return found

    def times(self, axis: Axis, name: str) -> List[Optional[Timing]]:
        """Its times; None where it has none."""
        return [row.timing if row else None for _, row in self.rows(axis, name)]

    def medians(self, axis: Axis, name: str) -> List[Optional[float]]:
        """Their medians."""
        return [timing.median if timing else None for timing in self.times(axis, name)]

    def break_even(self, name: str) -> float:
        """Where along the first axis the contender begins to take longer than the reference: see :func:`crossing`."""
        axis, reference = self.sweep.axes[0], self.sweep.reference
        if reference is None:
            return math.nan
        return crossing(axis.values, self.medians(axis, name), self.medians(axis, reference))

    def compared(self) -> List[Contender]:
        """snnipu's own rows but for the reference: those that have a break-even; none without a reference."""
        if self.sweep.reference is None:
            return []
        return [c for c in self.contenders() if c.own and c.name != self.sweep.reference]
