"""The items of a loop, by the number of the step."""

import builtins
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch

from snnipu.compiler.marks import Refused
from snnipu.compiler.private import version_of

# Fewer tensors in a list are none of a loop over time.
_FEWEST = 3


class Called(NamedTuple):
    """A call in the head of a loop, with its arguments."""

    function: Any
    arguments: Tuple[Any, ...]
    keywords: Mapping[str, Any] = {}

    def made(self) -> Any:
        """Call it."""
        return self.function(
            *(one.made() if isinstance(one, Called) else one for one in self.arguments), **self.keywords
        )


def _unbound(given: Called) -> Optional[torch.Tensor]:
    """Return the tensor of ``x.unbind(dim)`` or ``torch.unbind(x, dim)``, time first, or None for another call."""
    owner, values = getattr(given.function, "__self__", None), list(given.arguments)
    if isinstance(owner, torch.Tensor) and getattr(given.function, "__name__", "") == "unbind":
        values.insert(0, owner)
    elif given.function is not torch.unbind:
        return None
    dim = given.keywords.get("dim", values[1] if len(values) > 1 else 0)
    if (
        values
        and isinstance(values[0], torch.Tensor)
        and type(dim) is int
        and -values[0].dim() <= dim < values[0].dim()
    ):
        return values[0].movedim(dim, 0)
    return None  # the program's own error


class Items:
    """The items of a loop, by the number of the step.

    Attributes:
        text: the item of step ``t`` as an expression, in which ``I`` are the values that it needs.
        values: the values of ``I``.
        bars: progress bars of tqdm around them, and calls that make such bars.
    """

    def __init__(self, given: Any) -> None:
        """
        Args:
            given: the iterable; a call of ``enumerate``, ``zip`` or ``reversed`` is a :class:`Called`.

        Raises:
            Refused: the items cannot be read by number.
        """
        self.values: List[Any] = []
        self.bars: List[Any] = []
        self.text, self.count = self._read(given)

    def _value(self, value: Any) -> str:
        self.values.append(value)
        return f"I[{len(self.values) - 1}]"

    def _read(self, given: Any) -> Tuple[str, int]:
        of = given.function if isinstance(given, Called) else type(given)
        if str(of.__module__).split(".")[0] == "tqdm":
            self.bars.append(given)
            if not isinstance(given, Called):
                return self._read(given.iterable)
            return self._read(range(*given.arguments) if of.__name__ == "trange" else given.arguments[0])
        if isinstance(given, Called):
            return self._called(given)
        if isinstance(given, range):
            return self._numbers(given.start, given.step), len(given)
        if isinstance(given, torch.Tensor) and given.dim():
            return f"{self._value(given)}[t]", given.shape[0]
        tensors = isinstance(given, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in given)
        if tensors and len(given) >= _FEWEST and len({(one.shape, one.dtype, one.device) for one in given}) == 1:
            return f"{self._value(given)}[t]", len(given)
        raise Refused(f"it goes through a {type(given).__name__}")

    def _numbers(self, start: int, by: int) -> str:
        text = "t" if by == 1 else f"{self._value(by)} * t"
        return f"({self._value(start)} + {text})" if start else text

    def _called(self, given: "Called") -> Tuple[str, int]:
        if given.function is builtins.enumerate and 1 <= len(given.arguments) <= 2:
            inner, count = self._read(given.arguments[0])
            start = given.arguments[1] if len(given.arguments) > 1 else 0
            if type(start) is int:
                return f"({self._numbers(start, 1)}, {inner})", count
        if given.function is builtins.zip and given.arguments:
            read = [self._read(one) for one in given.arguments]
            return f"({''.join(f'{text}, ' for text, _ in read)})", min(count for _, count in read)
        if given.function is builtins.reversed and len(given.arguments) == 1 and isinstance(given.arguments[0], range):
            return self._read(given.arguments[0][::-1])
        unbound = _unbound(given)
        if unbound is not None:
            return self._read(unbound)
        raise Refused(f"it goes through what {getattr(given.function, '__name__', given.function)} returns")

    def tensors(self) -> List[Any]:
        """Return the values of ``I`` for a graph: a list of tensors is one tensor."""
        return [torch.stack(list(one)) if isinstance(one, (list, tuple)) else one for one in self.values]

    def versions(self) -> List[Any]:
        """Return what tells whether lists of tensors, or these tensors, have changed."""
        lists = [one for one in self.values if isinstance(one, (list, tuple))]
        return [(id(one), version_of(one)) for each in lists for one in each]

    def reader(self) -> Callable[[int], Any]:
        return eval(f"lambda t: {self.text}", {"I": self.values})  # type: ignore[no-any-return]
