"""``poptorch.profiling``: trace points, which need Graphcore's ``libpvti``; without it PopTorch ignores them too."""

import contextlib
from typing import Any, ContextManager

from snnipu.poptorch._errors import check_str


class Channel:
    """A named group of trace points; does nothing on a host."""

    def __init__(self, name: str) -> None:
        check_str(name, "Channel: name")

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Trace methods of ``obj``; returns ``obj``."""
        return obj

    def tracepoint(self, name: str) -> ContextManager[None]:
        """``with channel.tracepoint("name"):`` traces what is inside."""
        check_str(name, "tracepoint: name")
        return contextlib.nullcontext()
