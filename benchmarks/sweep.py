"""What a sweep found: times along its axes, and where one contender begins to take longer than another."""

import math
import statistics
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.case import Axis, Contender, Sweep
from benchmarks.runner import CaseResult, ContenderResult
from benchmarks.timing import Timing


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


@dataclass(frozen=True)
class Speedup:
    """Of several programs, one contender's.

    Attributes:
        mean: geometric.
        slower: how many are below :data:`SLOWER`.
    """

    mean: float
    least: float
    most: float
    slower: int
    programs: int


# Below this share of the reference's speed a program is slower, by more than timing tells apart.
SLOWER = 0.97


def summary(speedups: Sequence[Optional[float]]) -> Optional[Speedup]:
    """Of those that are not None; None where there is none."""
    known = [ratio for ratio in speedups if ratio is not None]
    if not known:
        return None
    slower = sum(ratio < SLOWER for ratio in known)
    return Speedup(statistics.geometric_mean(known), min(known), max(known), slower, len(known))


@dataclass
class SweepResult:
    """A sweep and the table of each of its points, as far as they have run."""

    sweep: Sweep
    results: List[CaseResult]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    def contenders(self) -> List[Contender]:
        """The rows, in the order in which they first appear."""
        return list({r.contender.name: r.contender for result in self.results for r in result.results}.values())

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

    def speedups(self, axis: Axis, name: str) -> List[Optional[float]]:
        """How many times as fast as the reference the contender is along ``axis``; None where either has no time."""
        pairs = zip(self.medians(axis, str(self.sweep.reference)), self.medians(axis, name))
        return [reference / own if reference and own else None for reference, own in pairs]

    def break_even(self, name: str) -> float:
        """Where along the first axis the contender begins to take longer than the reference: see :func:`crossing`."""
        axis, reference = self.sweep.axes[0], self.sweep.reference
        if reference is None or axis.has_names:
            return math.nan
        return crossing(axis.values, self.medians(axis, name), self.medians(axis, reference))

    def compared(self) -> List[Contender]:
        """snnipu's own rows but for the reference: those that have a break-even; none without a reference."""
        if self.sweep.reference is None:
            return []
        return [c for c in self.contenders() if c.own and c.name != self.sweep.reference]

    def summaries(self) -> Dict[str, Dict[str, Optional[Speedup]]]:
        """Of each own row, its :class:`Speedup` over the names of each axis of names, by its title, and over all."""
        axes = [axis for axis in self.sweep.axes if axis.has_names]
        places = {**{axis.title: [axis] for axis in axes}, "all": axes}
        return {
            contender.name: {
                place: summary([ratio for axis in along for ratio in self.speedups(axis, contender.name)])
                for place, along in places.items()
            }
            for contender in (self.compared() if axes else [])
            if any(c.name == self.sweep.reference for c in self.contenders())
        }
