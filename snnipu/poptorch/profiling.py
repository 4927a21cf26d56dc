"""``poptorch.profiling``: trace points, which have no effect. PopTorch without ``libpvti`` ignores them as well."""

import contextlib
from typing import Any, ContextManager

from snnipu.poptorch._errors import check_str


class Channel:
    """A named group of trace points; no effect on the host."""

    def __init__(self, name: str) -> None:
        check_str(name, "Channel: name")

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Trace methods of an object; returns the object.

        Args:
            obj: the object.
            methods: the names of its methods.
        """
        return obj

    def tracepoint(self, name: str) -> ContextManager[None]:
        """Return a context whose body is traced under ``name``."""
        check_str(name, "tracepoint: name")
        return contextlib.nullcontext()
