"""``poptorch.poptorch_core``: the errors, which scripts import from here as well."""

from snnipu.poptorch._errors import Error, RecoverableError, UnrecoverableError

__all__ = ["Error", "RecoverableError", "UnrecoverableError"]
