"""The items of a loop as functions of the step's number."""

import builtins
from typing import Any, Callable, List, Mapping, NamedTuple, Tuple

import torch

from snnipu.compiler.marks import Refused
from snnipu.compiler.private import version_of

# The smallest number of tensors in a list that can be the items of a loop over time.
_FEWEST = 3


class Called(NamedTuple):
    """A call in the head of a loop, with its arguments."""

    function: Any
    arguments: Tuple[Any, ...]
    keywords: Mapping[str, Any] = {}

    def evaluate(self) -> Any:
        """Make the call, and return its result."""
        return self.function(
            *(one.evaluate() if isinstance(one, Called) else one for one in self.arguments), **self.keywords
        )


class Items:
    """The items of a loop, which are read by the step's number.

    Attributes:
        text: the item of step ``t`` as an expression; its list ``I`` has the tensors and numbers that it reads.
        values: the list ``I``.
        bars: progress bars of tqdm around the items, and calls that create such bars.
        count: the number of steps.
    """

    def __init__(self, iterable: Any) -> None:
        """
        Args:
            iterable: the iterable of the loop; a call of ``enumerate``, ``zip``, ``reversed`` or ``tqdm`` is
                a :class:`Called`.

        Raises:
            Refused: the items cannot be read by number.
        """
        self.values: List[Any] = []
        self.bars: List[Any] = []
        self.text, self.count = self._read(iterable)

    def _value(self, value: Any) -> str:
        self.values.append(value)
        return f"I[{len(self.values) - 1}]"

    def _read(self, iterable: Any) -> Tuple[str, int]:
        of = iterable.function if isinstance(iterable, Called) else type(iterable)
        if str(of.__module__).split(".")[0] == "tqdm":
            self.bars.append(iterable)
            if not isinstance(iterable, Called):
                return self._read(iterable.iterable)
            return self._read(range(*iterable.arguments) if of.__name__ == "trange" else iterable.arguments[0])
        if isinstance(iterable, Called):
            return self._called(iterable)
        if isinstance(iterable, range):
            return self._numbers(iterable.start, iterable.step), len(iterable)
        if isinstance(iterable, torch.Tensor) and iterable.dim():
            return f"{self._value(iterable)}[t]", iterable.shape[0]
        tensors = isinstance(iterable, (list, tuple)) and all(isinstance(one, torch.Tensor) for one in iterable)
        if tensors and len(iterable) >= _FEWEST and len({(one.shape, one.dtype, one.device) for one in iterable}) == 1:
            return f"{self._value(iterable)}[t]", len(iterable)
        raise Refused(f"it iterates over a {type(iterable).__name__}")

    def _numbers(self, start: int, by: int) -> str:
        text = "t" if by == 1 else f"{self._value(by)} * t"
        return f"({self._value(start)} + {text})" if start else text

    def _called(self, call: "Called") -> Tuple[str, int]:
        if call.function is builtins.enumerate and 1 <= len(call.arguments) <= 2:
            inner, count = self._read(call.arguments[0])
            start = call.arguments[1] if len(call.arguments) > 1 else 0
            if type(start) is int:
                return f"({self._numbers(start, 1)}, {inner})", count
        if call.function is builtins.zip and call.arguments:
            read = [self._read(one) for one in call.arguments]
            return f"({''.join(f'{text}, ' for text, _ in read)})", min(count for _, count in read)
        if call.function is builtins.reversed and len(call.arguments) == 1 and isinstance(call.arguments[0], range):
            return self._read(call.arguments[0][::-1])
        raise Refused(f"it iterates over the result of {getattr(call.function, '__name__', call.function)}")

    def tensors(self) -> List[Any]:
        """Return the list ``I`` as inputs of a graph: each list of tensors is stacked to one tensor."""
        return [torch.stack(list(one)) if isinstance(one, (list, tuple)) else one for one in self.values]

    def versions(self) -> List[Any]:
        """Return keys that differ if the lists of tensors, or their tensors, have changed."""
        lists = [one for one in self.values if isinstance(one, (list, tuple))]
        return [(id(one), version_of(one)) for each in lists for one in each]

    def reader(self) -> Callable[[int], Any]:
        return eval(f"lambda t: {self.text}", {"I": self.values})  # type: ignore[no-any-return]
