"""Ctrl-C as a request that the training loop reads between batches, instead of an exception at any point."""

import contextlib
import signal
import threading
from typing import Any, Iterator, List


@contextlib.contextmanager
def stop_requests() -> Iterator[List[int]]:
    """Yield a list to which the first SIGINT or SIGTERM adds its number; a second signal acts immediately.

    Outside the main thread the list stays empty, because Python handles signals in the main thread only.
    """
    requests: List[int] = []

    def handle(signum: int, frame: Any) -> None:
        requests.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signums = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {signum: signal.signal(signum, handle) for signum in signums}
    try:
        yield requests
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
