"""The conditions under which the trace of one step is valid for other steps."""

import operator
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import torch

from snnipu.compiler import nodes
from snnipu.compiler.body import Body
from snnipu.compiler.marks import OFFSET, Recount, Refused, Relook, clock, counted


class Guards:
    """The conditions on the step's number under which a trace is valid."""

    def __init__(self, body: Body) -> None:
        """
        Raises:
            Refused: the trace is valid for a single step.
        """
        self._conditions: List[Any] = []
        self._symbols: Dict[Any, Tuple[int, int]] = {}  # the input, and its dimension; -1: it is a number
        self._known: Dict[Any, bool] = {}
        self._starts: List[Tuple[int, Any]] = []  # counters and their values before the first step
        inputs = [node for node in body.module.graph.nodes if node.op == "placeholder"]
        mark = next(node for node in body.module.graph.nodes if node.target is clock)
        size = nodes.value_of(mark).shape[0]
        if not isinstance(size, torch.SymInt):
            raise Refused("its steps depend on their number")
        self._clock, environment = size.node.expr, size.node.shape_env
        for place, node in enumerate(inputs):
            value = nodes.value_of(node)
            if isinstance(value, torch.SymInt):
                self._symbols.setdefault(value.node.expr, (place, -1))
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt):
                    self._symbols.setdefault(size.node.expr, (place, dim))
        fixed = [one for symbol, value in environment.replacements.items() for one in (symbol, *value.free_symbols)]
        if getattr(self._clock, "is_Integer", False) or self._clock in fixed:
            raise Refused("its steps depend on their number")
        read = set(fixed)
        for guard in environment.guards:
            read |= guard.expr.free_symbols
            if self._clock in guard.expr.free_symbols:
                self._conditions.append(guard.expr)
        items = {symbol for source, symbol in environment.source_to_var.items() if source.endswith(".item()")}
        if read & items and _changes_numbers(body):
            raise Refused("a condition reads a number that its steps change")

    def prove(self, module: torch.fx.GraphModule, counters: Sequence[Tuple[Any, int]]) -> None:
        """Prove that counters have constant increments, and that no other number of the program depends on a step.

        Raises:
            Recount: a counter has no constant increment.
            Relook: an attribute or item is such a number.
        """
        marked = [node for node in module.graph.nodes if node.target is counted]
        known = set()
        for node in marked:
            (value,), number = node.args[0].args, node.args[1] - 1
            known.add(value)
            value = nodes.value_of(value) if isinstance(value, torch.fx.Node) else int(value)
            if isinstance(value, (torch.SymBool, torch.SymFloat)):
                raise Recount(number)
            value = value.node.expr if isinstance(value, torch.SymInt) else value
            start = (value - counters[number][1] * (self._clock - OFFSET + 1)).expand()
            if not (start.is_Integer or start in self._symbols) or start == self._clock:
                raise Recount(number)
            self._starts.append((number, start))
        for node in nodes.leaves_of(next(iter(reversed(module.graph.nodes))).args[0]):
            value = nodes.value_of(node)
            is_number = node not in known and isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat))
            if is_number and not value.node.expr.free_symbols <= self._symbols.keys() - {self._clock}:
                raise Relook

    def hold(self, inputs: Sequence[Any], first: int, steps: int, numbers: Sequence[int]) -> bool:
        """Return True if the trace is valid for all steps from ``first`` on, with these values of the counters."""
        if any(numbers[number] != self._value(start, inputs) for number, start in self._starts):
            return False
        if not self._conditions:
            return True
        needed = {symbol for one in self._conditions for symbol in one.free_symbols} - {self._clock}
        if not needed <= self._symbols.keys():
            return False
        values = {symbol: self._value(symbol, inputs) for symbol in needed}
        key = first, steps, tuple(values.values())
        if key not in self._known:
            clocks = range(first + OFFSET, first + steps + OFFSET)
            conditions = {one.subs(values) for one in self._conditions}
            self._known[key] = all(_holds(one, self._clock, clocks) for one in conditions)
        return self._known[key]

    def _value(self, symbol: Any, inputs: Sequence[Any]) -> int:
        """Return the value of a symbol, or a number itself."""
        if symbol not in self._symbols:
            return int(symbol)
        place, dim = self._symbols[symbol]
        return int(inputs[place] if dim < 0 else inputs[place].shape[dim])


def _changes_numbers(body: Body) -> bool:
    """Return True if a step changes a tensor in place whose numbers PyTorch may know in the trace."""
    changes = nodes.Memory(body.module.graph).changes.values()
    dtypes = {nodes.value_of(node).dtype for changed in changes for node in changed if nodes.is_tensor(node)}
    return not dtypes.isdisjoint((torch.int64, torch.float64))


# The operations in guards that sympy does not have, by the names of PyTorch's classes.
_INTEGER_DIVISIONS = {"FloorDiv": operator.floordiv, "Mod": operator.mod, "PythonMod": operator.mod}


def _holds(condition: Any, symbol: Any, values: Iterable[int]) -> bool:
    """Return True if a condition on one symbol holds for all values."""
    if not getattr(condition, "free_symbols", ()):
        return bool(condition)
    import sympy

    # sympy would write Mod(s - 2, 10) as s - 2 % 10.
    named = condition.replace(
        lambda part: type(part).__name__ in _INTEGER_DIVISIONS,
        lambda part: sympy.Function(f"of_integers_{type(part).__name__}")(*part.args),
    )
    functions = {f"of_integers_{name}": division for name, division in _INTEGER_DIVISIONS.items()}
    function = sympy.lambdify(symbol, named, [functions, "math"])
    try:
        return all(map(function, values))
    except (NameError, TypeError):  # an operation that Python's numbers do not have
        return all(bool(condition.subs({symbol: value})) for value in values)
