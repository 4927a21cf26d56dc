"""The errors of the host runtime.

PopTorch raises ``poptorch.Error`` for some mistakes, and ``AssertionError``, ``ValueError``, ``RuntimeError`` or
``AttributeError`` for others. Every error here is a ``poptorch.Error`` and also of the class that PopTorch raises, so
that ``except`` clauses for either class work.
"""

import difflib
import reprlib
from typing import Any, Iterable, Type

import torch


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


NUMBER = (int, float)


def check_type(value: Any, name: str, expected: Any, description: str) -> Any:
    """Return ``value`` if it is an instance of ``expected``, a type or several types; a bool is no number.

    ``description`` describes the expected types in the error.
    """
    if not isinstance(value, expected) or (isinstance(value, bool) and expected in (int, NUMBER)):
        raise InvalidType(f"{name}: expected {description}, got {reprlib.repr(value)} of type {type(value).__name__}")
    return value


def check_int(value: Any, name: str, minimum: int = 0) -> Any:
    """Return ``value`` if it is an int of at least ``minimum``."""
    if check_type(value, name, int, "an int") < minimum:
        raise InvalidArgument(f"{name}: expected an int of at least {minimum}, got {value}")
    return value


def check_bool(value: Any, name: str) -> Any:
    return check_type(value, name, bool, "True or False")


def check_str(value: Any, name: str) -> Any:
    return check_type(value, name, str, "a str")


def check_fraction(value: Any, name: str) -> float:
    if not 0.0 <= check_type(value, name, NUMBER, "a number between 0 and 1") <= 1.0:
        raise InvalidArgument(f"{name}: expected a number between 0 and 1, got {value}")
    return float(value)


def check_enum(value: Any, name: str, enum_type: Type[Any]) -> Any:
    members = ", ".join(f"{enum_type.__name__}.{member.name}" for member in enum_type)
    return check_type(value, name, enum_type, f"one of {members}")


def check_tensor(value: Any, name: str) -> Any:
    return check_type(value, name, torch.Tensor, "a torch.Tensor")


def check_module(value: Any, name: str) -> Any:
    return check_type(value, name, torch.nn.Module, "a torch.nn.Module")
