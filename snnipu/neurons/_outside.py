"""The numbers that a step function takes from outside: globals, enclosing functions' variables, their attributes."""

import builtins
import dis
import numbers
import types
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

_PLAIN = (numbers.Number, str, bytes, type(None))
_LIBRARIES = ("torch", "math", "numpy", "snnipu")
_MISSING = "missing"


class _Reading(NamedTuple):
    """A name outside, and the attributes read from what it stands for."""

    variables: Any  # a function's globals, or a cell
    name: str
    attributes: Tuple[str, ...]

    def value(self) -> Any:
        if isinstance(self.variables, dict):
            found = self.variables.get(self.name, getattr(builtins, self.name, _MISSING))
        else:
            found = _contents(self.variables)
        for attribute in self.attributes:
            found = getattr(found, attribute, _MISSING)
        return found


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return _MISSING


def _readings(code: types.CodeType, variables: Dict[str, Any], cells: Mapping[str, Any]) -> List[_Reading]:
    found: List[_Reading] = []
    reading: Optional[_Reading] = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            reading = _Reading(variables, name, ())
        elif instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and name in cells:
            reading = _Reading(cells[name], name, ())
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and reading is not None:
            reading = reading._replace(attributes=(*reading.attributes, name))
        elif instruction.opname not in ("CACHE", "PUSH_NULL"):
            reading = None
        if reading is not None:
            found.append(reading)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a lambda, a comprehension
            found += _readings(constant, variables, cells)
    return found


def _key(value: Any) -> Any:
    """What tells one value from another; None for what a recording may not depend on, as modules."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        return dict, tuple((name, _key(one)) for name, one in value.items())
    return id(value) if isinstance(value, types.FunctionType) else None


def outside(function: Callable[..., Any]) -> Callable[[], Tuple[Any, ...]]:
    """What tells whether the function would still be recorded as it was: its numbers and strings from outside, now.

    Functions that it calls are looked into as well, but for libraries'.
    """
    readings: List[_Reading] = []
    seen: Set[Any] = set()
    left: List[Any] = [function]
    while left:
        one = left.pop()
        if not isinstance(one, types.FunctionType) or one in seen:
            continue
        seen.add(one)
        if one is not function and str(one.__module__).split(".")[0] in _LIBRARIES:
            continue
        cells = dict(zip(one.__code__.co_freevars, one.__closure__ or ()))
        found = _readings(one.__code__, one.__globals__, cells)
        readings += found
        left += [reading.value() for reading in found]
    kept = [reading for reading in readings if _key(reading.value()) is not None]
    return lambda: tuple(_key(reading.value()) for reading in kept)
