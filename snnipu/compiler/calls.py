"""Counts of the calls of snnipu's neurons and surrogates."""

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

from snnipu.neurons._states import AttributeStates
from snnipu.surrogate import Surrogate

# Calls of one neuron, and of one surrogate, from which on a step has a loop over time itself. Several layers may share
# a surrogate.
FEW, MANY = 3, 20


class _Calls(threading.local):
    """The calls of neurons and surrogates during a step, and whether another loop over time ran in it.

    Attributes:
        seen: the number of calls of each neuron, by its id, and of each surrogate, by the negative of its id.
    """

    seen: Optional[Dict[int, int]] = None
    has_loop = False


calls = _Calls()
_lock = threading.RLock()
_SURROGATE_CALL = Surrogate.__call__
# Functions that are called at each call of a neuron.
_listeners: List[Callable[[], None]] = []
_traces: List[None] = []  # an item for each trace that runs


def _neuron_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.compiler.is_compiling():
        _count(id(self))
        for listener in tuple(_listeners):
            listener()
    return torch.nn.Module.__call__(self, *args, **kwargs)


def _surrogate_call(self: Any, u: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        _count(-id(self))
    return _SURROGATE_CALL(self, u)


def _count(key: int) -> None:
    if calls.seen is not None:
        calls.seen[key] = calls.seen.get(key, 0) + 1


def has_loop_over_time(seen: Dict[int, int]) -> bool:
    """Return True if a step calls a neuron or a surrogate so often that it has a loop over time itself."""
    return any(number >= (FEW if key > 0 else MANY) for key, number in seen.items())


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener`` at each call of a neuron, until :func:`unlisten`."""
    with _lock:
        _listeners.append(listener)
        _update()


def unlisten(listener: Callable[[], None]) -> None:
    """Stop calling ``listener``."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        _update()


def _update() -> None:
    """Replace the calls of neurons and surrogates while there are listeners and no trace."""
    if _listeners and not _traces:
        AttributeStates.__call__ = _neuron_call  # type: ignore[method-assign]
        Surrogate.__call__ = _surrogate_call  # type: ignore[method-assign]
    elif "__call__" in vars(AttributeStates):
        del AttributeStates.__call__
        Surrogate.__call__ = _SURROGATE_CALL  # type: ignore[method-assign]


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Remove the counters during a trace, so that TorchDynamo sees the original ``__call__`` of the classes."""
    if not _listeners:
        yield
        return
    with _lock:
        _traces.append(None)
        _update()
    try:
        yield
    finally:
        with _lock:
            _traces.pop()
            _update()


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Count the calls of neurons and surrogates in ``calls.seen``."""
    outer = calls.seen, calls.has_loop
    calls.seen, calls.has_loop = {}, False

    def ignore() -> None:
        pass

    listen(ignore)
    try:
        yield
    finally:
        unlisten(ignore)
        seen, calls.seen = calls.seen, outer[0]
        before = outer[0]
        if before is not None:
            for key, number in (seen or {}).items():
                before[key] = before.get(key, 0) + number
        calls.has_loop = calls.has_loop or outer[1]
