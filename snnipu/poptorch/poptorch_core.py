"""The names that scripts take from ``poptorch.poptorch_core``: the errors."""

from snnipu.poptorch._errors import Error, RecoverableError, UnrecoverableError

__all__ = ["Error", "RecoverableError", "UnrecoverableError"]
