"""Records of how each module of a network ran, and of the share of its input that was not zero."""

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from snnipu.ops._arguments import count_nonzero
from snnipu.ops.sparse_input import Choice
from snnipu.spikes import SparseSpikes


@dataclass(frozen=True)
class Path:
    """The record of one module over all chunks of a sequence.

    Attributes:
        name: the module's name in the network.
        kind: name of the module's class.
        runs_as: description of how it ran, such as ``"all steps as one batch, events"``.
        activity: share of its input that was not zero, from 0 to 1; None: not counted.
        limit: the activity up to which a product skips zeros, 0 if its size never allows it; None: not a product.
    """

    name: str
    kind: str
    runs_as: str
    activity: Optional[float]
    limit: Optional[float]

    @property
    def cells(self) -> Tuple[str, ...]:
        """Return the cells of a table's row."""
        limit = "never" if self.limit == 0 else _percent(self.limit)
        return self.name, self.kind, self.runs_as, _percent(self.activity), limit


class Paths(Tuple[Path, ...]):
    """The :class:`Path` of each module; ``str`` returns a table."""

    def __str__(self) -> str:
        head = ("module", "kind", "runs as", "input not zero", "events up to")
        return "\n".join(text_table(head, [path.cells for path in self]))


class InputStatistics:
    """Counts of the inputs of one module or product."""

    def __init__(self) -> None:
        self.numbers, self.nonzero, self.calls, self.by_events = 0, 0, 0, 0
        self.limit: Optional[float] = None

    def add(self, numbers: int, nonzero: int, choice: Optional[Choice]) -> None:
        self.numbers += numbers
        self.nonzero += nonzero
        self.calls += 1
        if choice is not None:
            self.limit = choice.limit
            self.by_events += choice.by_events

    @property
    def activity(self) -> Optional[float]:
        return self.nonzero / self.numbers if self.numbers else None

    @property
    def product(self) -> str:
        """Return how a product ran: ``"events"``, ``"dense"`` or both."""
        if self.by_events in (0, self.calls):
            return "events" if self.by_events else "dense"
        return f"events in {self.by_events} of {self.calls} parts"


class PathRecorder:
    """The recorder that a network calls after each module while it records paths.

    Args:
        choices: the list to which products append their choice between events and dense.
    """

    def __init__(self, choices: List[Choice]) -> None:
        self._choices = choices
        self._seen: Dict[str, Tuple[nn.Module, str, InputStatistics]] = {}

    def ran(self, name: str, module: nn.Module, runs_as: str, x: Any) -> None:
        """Record one call of a module with input ``x``."""
        choice = next((last for last in self._choices[-1:] if last.weight is getattr(module, "weight", None)), None)
        self._choices.clear()
        numbers, nonzero = _counted(x[0] if isinstance(x, tuple) else x)
        self._seen.setdefault(name, (module, runs_as, InputStatistics()))[2].add(numbers, nonzero, choice)

    def paths(self) -> Paths:
        return Paths(
            Path(
                name,
                type(module).__name__,
                runs_as if tally.limit is None else f"{runs_as}, {tally.product}",
                tally.activity,
                tally.limit,
            )
            for name, (module, runs_as, tally) in self._seen.items()
        )


def paths_of_products(choices: Iterable[Choice], modules: Sequence[nn.Module]) -> Paths:
    """Return one path for each product in ``choices``, in the order of their first calls.

    A product with a parameter of ``modules`` has the name of its module, any other the shape of its weight.
    """
    owners = {
        (parameter.data_ptr(), parameter.shape): (name, type(module).__name__)
        for root in modules
        for name, module in root.named_modules()
        for parameter in module.parameters(recurse=False)
    }
    seen: Dict[Tuple[str, str], InputStatistics] = {}
    for choice in choices:
        weight = choice.weight
        owner = owners.get((weight.data_ptr(), weight.shape), (f"weight {list(weight.shape)}", ""))
        seen.setdefault(owner, InputStatistics()).add(choice.numbers, choice.nonzero, choice)
    return Paths(Path(*owner, tally.product, tally.activity, tally.limit) for owner, tally in seen.items())


def _counted(x: Any) -> Tuple[int, int]:
    """Return the count of numbers in ``x``, and the count of those that are not zero; zeros if they are unknown."""
    if isinstance(x, SparseSpikes):
        return x.shape.numel(), int(x.counts[..., 0].sum())
    if isinstance(x, torch.Tensor) and x.device.type != "meta":
        return x.numel(), count_nonzero(x)
    return 0, 0


def _percent(share: Optional[float]) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def text_table(head: Tuple[str, ...], rows: Sequence[Tuple[str, ...]]) -> List[str]:
    """Return lines with aligned columns."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]
