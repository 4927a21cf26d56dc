"""``import popart`` without PopART, for ``python -m snnipu run``: every attribute raises an error that names it."""

from typing import Any

from snnipu.poptorch._errors import not_available


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise not_available(f"popart.{name}", "PopART is not installed.")
