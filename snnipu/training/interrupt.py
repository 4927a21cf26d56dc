"""Ctrl-C as a question that the training loop asks between batches, instead of an exception anywhere."""

import contextlib
import signal
import threading
from typing import Any, Iterator, List


@contextlib.contextmanager
def stop_requests() -> Iterator[List[int]]:
    """Yield a list to which the first SIGINT or SIGTERM of the block adds its number; a second one acts at once.

    Outside the main thread, where Python takes no signal handlers, it stays empty.
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
