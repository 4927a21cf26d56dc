"""The errors of the host runtime.

PopTorch raises ``poptorch.Error`` for some mistakes, and ``AssertionError``, ``ValueError``, ``RuntimeError`` or
``AttributeError`` for others. Every error here is a ``poptorch.Error`` and also of the class that PopTorch raises, so
that ``except`` clauses for either class work.
"""

import difflib
from typing import Any, Iterable, Type


class Error(Exception):
    """The base of all errors, with PopTorch's attributes ``type``, ``message`` and ``location``."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.type = "poptorch_py_error"
        self.message = message
        self.location = ""


class RecoverableError(Error):
    """A failure of IPU hardware that a reset cures; never raised on the host."""

    recovery_action = ""


class UnrecoverableError(Error):
    """A failure of IPU hardware that no reset cures; never raised on the host."""


class ConfigFileError(Error):
    """``Options.loadFromFile`` read a line that it cannot apply."""


class InvalidArgument(Error, ValueError, AssertionError):
    """An argument has a value outside its range."""


class InvalidType(InvalidArgument, TypeError):
    """An argument is of the wrong type."""


class FrozenOptions(Error, AttributeError):
    """Options were changed after a model or a data loader had used them."""


class UnknownName(Error, AttributeError):
    """An option or attribute of this name does not exist."""


class AlreadyWrapped(Error, RuntimeError):
    """A model was given to ``trainingModel`` twice."""


class InvalidUse(Error, RuntimeError):
    """An object was used for a purpose that it does not allow."""


class NotAvailable(Error, AttributeError, NotImplementedError):
    """The host runtime lacks a part of PopTorch."""


def not_available(part: str, reason: str = "") -> NotAvailable:
    """Return the error to raise for a part of PopTorch that the host runtime lacks."""
    return NotAvailable(
        f"{part} is not available in snnipu's host runtime of PopTorch{': ' + reason if reason else '.'}"
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` if a known name is close to ``name``, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_int(value: Any, name: str, minimum: int = 0) -> int:
    """Return ``value`` if it is an int of at least ``minimum``; a bool is not accepted."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{name}: expected an int, got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise InvalidArgument(f"{name}: expected an int of at least {minimum}, got {value}")
    return value


def check_bool(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(f"{name}: expected True or False, got {value!r} of type {type(value).__name__}")
    return value


def check_str(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"{name}: expected a str, got {value!r} of type {type(value).__name__}")
    return value


def check_fraction(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(f"{name}: expected a number between 0 and 1, got {value!r} of type {type(value).__name__}")
    if not 0.0 <= value <= 1.0:
        raise InvalidArgument(f"{name}: expected a number between 0 and 1, got {value}")
    return float(value)


def check_enum(value: Any, name: str, enum_type: Type[Any]) -> Any:
    if not isinstance(value, enum_type):
        members = ", ".join(f"{enum_type.__name__}.{member.name}" for member in enum_type)
        raise InvalidType(f"{name}: expected one of {members}; got {value!r} of type {type(value).__name__}")
    return value


def check_tensor(value: Any, name: str) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        raise InvalidType(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    return value
