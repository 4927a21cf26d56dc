"""Sequences in parts of time: what ``MultiStep`` does with large activations, for the bundles of a plan."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.fx import GraphModule, Node

from snnipu.compiler import nodes
from snnipu.compiler.plan import Bundle, Chain, Constant, Operator, Part, Plan, Series, Source
from snnipu.neurons.multistep import Join, bytes_of_maps, part_lengths


class Stretch:
    """Bundles that run part by part of time, each part through all of them, with the neurons' states handed on.

    Attributes:
        bundles: in the order in which they run.
        body: the graph of a part: called with sequences, constants, states, the number of steps and whether another
            part follows; returns sequences and states.
        counts: of the sequences and constants that the body is given.
        outputs: of the sequences it returns.
        last: for each state, whether its last value is asked for.
    """

    def __init__(self, bundles: List[Bundle]) -> None:
        self.bundles = bundles
        self.steps = bundles[0].steps
        self.body: Optional[GraphModule] = None
        self.counts = (0, 0)
        self.outputs = 0
        self._bytes, self._per, self._held = 0, 1, 0

    def size(self, sequences: Sequence[Any], held: Tuple[int, Any]) -> None:
        """Note the bytes of the largest value of a step, beside the size of an input: others grow with it.

        Args:
            sequences: values of a step of the sequences.
            held: the place among the constants of one that is held over time, and its value.
        """
        self._held = held[0]
        values = [*sequences, *([] if held[1] is None else [held[1]])]
        self._bytes = max(
            *(_numel(value) * value.element_size() for value in values),
            *(_bytes(bundle, series.value) for bundle in self.bundles for series in bundle.series),
        )
        self._per = max(1, _numel(values[0]))

    def lengths(self, sequences: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> List[int]:
        """Those of the parts."""
        numel = sequences[0].numel() // self.steps if sequences else constants[self._held].numel()
        return part_lengths(self.steps, self._bytes * numel // self._per)

    def __call__(self, *given: Any) -> Tuple[Any, ...]:
        count, known = self.counts
        sequences, constants, states = given[:count], given[count : count + known], given[count + known :]
        assert self.body is not None
        run = self.body.forward
        lengths = self.lengths(sequences, constants)
        if len(lengths) == 1:
            result: Tuple[Any, ...] = run(*given, self.steps, False)
            return result
        parts = [sequence.split(lengths) for sequence in sequences]
        made: List[Tuple[torch.Tensor, ...]] = []
        for place, length in enumerate(lengths):
            out = run(*(part[place] for part in parts), *constants, *states, length, True)
            made.append(out[: self.outputs])
            states = out[self.outputs :]
        return (*(Join.apply(*same) for same in zip(*made)), *states)


def in_parts(stretch: Stretch, *given: Any) -> Tuple[Any, ...]:
    """What the compiled graph calls."""
    return stretch(*given)


def _bytes(bundle: Bundle, value: torch.Tensor) -> int:
    """Bytes of one step of a bundle's result, and of what it takes to compute it."""
    call = bundle.call if isinstance(bundle, Operator) else None
    if call is not None and nodes.name_of(call.node) == "conv2d" and value.dim() == 4:
        return bytes_of_maps(_numel(value), int(value.shape[1]), value.element_size())
    return _numel(value) * value.element_size()


def _numel(value: torch.Tensor) -> int:
    """As many elements as the traced call has, without a guard on them."""
    sizes = (size if isinstance(size, int) else size.node.hint for size in value.shape)
    return math.prod(1 if size is None else int(size) for size in sizes)


def stretches(plan: Plan, units: Sequence[Any], needs: Callable[[Any], List[Any]]) -> List[Stretch]:
    """The bundles that may run in parts together: nothing outside needs a result of theirs and gives them one.

    Args:
        units: what there is, each behind what it needs.
    """
    level: Dict[Any, int] = {}
    found: Dict[Tuple[int, int], List[Bundle]] = {}
    for unit in units:
        fits = _may_be_cut(unit)
        together = _same_steps(plan, unit) if fits else set()
        level[unit] = 0
        for other in needs(unit):
            cut = other in found.get((level[other], getattr(other, "steps", 0)), ()) and other not in together
            level[unit] = max(level[unit], level[other] + cut)
        if fits:
            found.setdefault((level[unit], unit.steps), []).append(unit)
    return [
        Stretch(bundles)
        for bundles in found.values()
        if any(isinstance(bundle, Chain) for bundle in bundles)
        and any(isinstance(bundle, Operator) for bundle in bundles)
        and all(series.value.device.type == "cpu" for bundle in bundles for series in bundle.series)
    ]


def _may_be_cut(unit: Any) -> bool:
    if not isinstance(unit, (Chain, Operator)) or not all(isinstance(s.value, torch.Tensor) for s in unit.series):
        return False
    if isinstance(unit, Chain):
        return True
    return all(isinstance(lifted.value, torch.Tensor) for lifted in (unit.call.lifted() if unit.call else ()))


def _same_steps(plan: Plan, unit: Bundle) -> Set[Any]:
    """The bundles whose results the unit takes step by step, and in no other way."""
    together: Set[Any] = set()
    otherwise: Set[Any] = set()
    for source in unit.sources():
        series = series_of(source)
        if series is not None and series.steps == unit.steps:
            together.add(series.bundle)
        elif not isinstance(source, Constant):
            otherwise.update(part.series.bundle if isinstance(part, Part) else plan.unit(part) for part in source.parts)
        elif isinstance(source.value, Node):
            otherwise.add(plan.unit(source.value))
    return together - otherwise


def series_of(source: Source) -> Optional[Series]:
    """The series that a source is, all of it."""
    return None if isinstance(source, Constant) else source.whole()
