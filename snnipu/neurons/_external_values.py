"""The numbers that a step function reads from globals, enclosing functions, and attributes of both."""

import builtins
import dis
import numbers
import types
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

_PLAIN = (numbers.Number, str, bytes, type(None))
_LIBRARIES = ("torch", "math", "numpy", "snnipu")
_MISSING = "missing"


class _Reading(NamedTuple):
    """A read of a global or closure variable, with the attributes that follow its name."""

    variables: Any  # the function's globals, or the variable's closure cell
    name: str
    attributes: Tuple[str, ...]

    def value(self) -> Any:
        if isinstance(self.variables, dict):
            value = self.variables.get(self.name, getattr(builtins, self.name, _MISSING))
        else:
            value = _contents(self.variables)
        for attribute in self.attributes:
            value = getattr(value, attribute, _MISSING)
        return value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return _MISSING


def _readings(code: types.CodeType, variables: Dict[str, Any], cells: Mapping[str, Any]) -> List[_Reading]:
    readings: List[_Reading] = []
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
            readings.append(reading)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a lambda, a comprehension
            readings += _readings(constant, variables, cells)
    return readings


def _key(value: Any) -> Any:
    """Return a key that differs for different values; None for a value that the recorded step cannot depend on."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        return dict, tuple((name, _key(item)) for name, item in value.items())
    return id(value) if isinstance(value, types.FunctionType) else None


def external_values(function: Callable[..., Any]) -> Callable[[], Tuple[Any, ...]]:
    """Return a function that returns the external numbers and strings that ``function`` currently reads.

    A recorded step is valid as long as these are equal. The search includes the functions that ``function`` calls,
    except those of libraries.
    """
    readings: List[_Reading] = []
    seen: Set[Any] = set()
    pending: List[Any] = [function]
    while pending:
        current = pending.pop()
        if not isinstance(current, types.FunctionType) or current in seen:
            continue
        seen.add(current)
        if current is not function and str(current.__module__).split(".")[0] in _LIBRARIES:
            continue
        cells = dict(zip(current.__code__.co_freevars, current.__closure__ or ()))
        found_readings = _readings(current.__code__, current.__globals__, cells)
        readings += found_readings
        pending += [reading.value() for reading in found_readings]
    relevant = [reading for reading in readings if _key(reading.value()) is not None]
    return lambda: tuple(_key(reading.value()) for reading in relevant)
