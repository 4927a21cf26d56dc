"""How each module of a network ran, and how much of its input was not zero."""

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from snnipu.ops._arguments import count_nonzero
from snnipu.ops.sparse_input import Choice
from snnipu.spikes import SparseSpikes


@dataclass(frozen=True)
class Path:
    """How one module ran, in all parts of the sequence.

    Attributes:
        name: as the network calls it.
        kind: its class.
        runs_as: in words.
        activity: share of its input that was not zero; None: nobody counted.
        limit: of a product, the share up to which it leaves out zeros, 0 where its size forbids it; None: of what is
            none.
    """

    name: str
    kind: str
    runs_as: str
    activity: Optional[float]
    limit: Optional[float]

    @property
    def cells(self) -> Tuple[str, ...]:
        """Of a table's row."""
        limit = "never" if self.limit == 0 else _percent(self.limit)
        return self.name, self.kind, self.runs_as, _percent(self.activity), limit


class Paths(Tuple[Path, ...]):
    """One :class:`Path` for each module; ``str`` gives a table."""

    def __str__(self) -> str:
        head = ("module", "kind", "runs as", "input not zero", "events up to")
        return "\n".join(text_table(head, [path.cells for path in self]))


class Tally:
    """What was seen of one module or product."""

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
        """How a product ran."""
        if self.by_events in (0, self.calls):
            return "events" if self.by_events else "dense"
        return f"events in {self.by_events} of {self.calls} parts"


class Watch:
    """What a network calls after each of its modules, while somebody asks for its paths."""

    def __init__(self, choices: List[Choice]) -> None:
        self._choices = choices
        self._seen: Dict[str, Tuple[nn.Module, str, Tally]] = {}

    def ran(self, name: str, module: nn.Module, runs_as: str, x: Any) -> None:
        choice = next((one for one in self._choices[-1:] if one.weight is getattr(module, "weight", None)), None)
        self._choices.clear()
        numbers, nonzero = _counted(x[0] if isinstance(x, tuple) else x)
        self._seen.setdefault(name, (module, runs_as, Tally()))[2].add(numbers, nonzero, choice)

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


def of_choices(choices: Iterable[Choice], modules: Sequence[nn.Module]) -> Paths:
    """Of products that were watched, those with a parameter of ``modules`` by its module's name, in the order of their
    first calls."""
    owners = {
        (parameter.data_ptr(), parameter.shape): (name, type(module).__name__)
        for root in modules
        for name, module in root.named_modules()
        for parameter in module.parameters(recurse=False)
    }
    seen: Dict[Tuple[str, str], Tally] = {}
    for choice in choices:
        weight = choice.weight
        owner = owners.get((weight.data_ptr(), weight.shape), (f"weight {list(weight.shape)}", ""))
        seen.setdefault(owner, Tally()).add(choice.numbers, choice.nonzero, choice)
    return Paths(Path(*owner, tally.product, tally.activity, tally.limit) for owner, tally in seen.items())


def _counted(x: Any) -> Tuple[int, int]:
    """How many numbers there are, and how many are not zero."""
    if isinstance(x, SparseSpikes):
        return x.shape.numel(), int(x.counts[..., 0].sum())
    if isinstance(x, torch.Tensor) and x.device.type != "meta":
        return x.numel(), count_nonzero(x)
    return 0, 0


def _percent(share: Optional[float]) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def text_table(head: Tuple[str, ...], rows: Sequence[Tuple[str, ...]]) -> List[str]:
    """Lines with aligned columns."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]
