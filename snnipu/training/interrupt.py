"""Ctrl-C as a question that the training loop asks between batches, instead of an exception anywhere."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Dict, Optional, Type


class StopRequest:
    """Within the ``with`` block, the first SIGINT or SIGTERM sets ``signum``; a second one acts at once, as ever.

    Outside the main thread, where Python takes no signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.signum: Optional[int] = None
        self._previous: Dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signum is not None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def _handle(self, signum: int, frame: Optional[FrameType]) -> None:
        self.signum = signum
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
