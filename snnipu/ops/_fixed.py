"""Weights that stay as they are: what was made of them for the kernels once is good for every step of a stream."""

import contextlib
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch

_thread = threading.local()


class Identity(NamedTuple):
    """What tells a weight from itself later, where its values were changed as PyTorch counts, or by way of ``.data``
    its memory, shape or dtype."""

    version: int
    pointer: int
    dtype: torch.dtype
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


def identity(weight: torch.Tensor) -> Identity:
    version = 0 if weight.is_inference() else weight._version
    return Identity(version, weight.data_ptr(), weight.dtype, weight.shape, weight.stride())


class _Made(NamedTuple):
    weight: "weakref.ref[torch.Tensor]"
    identity: Identity
    fingerprint: int
    made: torch.Tensor


class FixedWeights:
    """What was made of weights within :func:`fixed_weights`."""

    def __init__(self) -> None:
        self._made: Dict[int, _Made] = {}
        self._fingerprint: Optional[Callable[[torch.Tensor], int]] = None

    def get_or_make(
        self,
        weight: torch.Tensor,
        make: Callable[[torch.Tensor], torch.Tensor],
        fingerprint: Callable[[torch.Tensor], int],
    ) -> torch.Tensor:
        """``make(weight)``, which is kept until the weight's :class:`Identity` is another; ``fingerprint``: of its
        values."""
        key, now = id(weight), identity(weight)
        entry = self._made.get(key)
        if entry is not None and entry.weight() is weight and entry.identity == now:
            return entry.made
        self._fingerprint = fingerprint
        result = make(weight)
        reference = weakref.ref(weight, lambda _: self._made.pop(key, None))
        self._made[key] = _Made(reference, now, fingerprint(weight), result)
        return result

    def check(self) -> None:
        """Raise where a weight's values are others than those that were used."""
        for entry in list(self._made.values()):
            weight = entry.weight()
            if weight is None or entry.identity != identity(weight):
                continue  # nothing of it was used since
            if self._fingerprint is not None and self._fingerprint(weight) != entry.fingerprint:
                raise RuntimeError(
                    f"a weight of shape {list(weight.shape)} was changed within fixed_weights() by way of .data or "
                    "NumPy, which PyTorch does not count: results since then may be those of its values before"
                )


def current_fixed_weights() -> Optional[FixedWeights]:
    """None: not within :func:`fixed_weights`."""
    fixed: Optional[FixedWeights] = getattr(_thread, "fixed", None)
    return fixed


@contextlib.contextmanager
def fixed_weights() -> Iterator[None]:
    """Inside, weights stay as they are, and a single step reads only the weights of inputs that spiked: for streams.

    .. code-block:: python

        with torch.no_grad(), snn.fixed_weights():
            for step in stream:  # [1, 1, inputs]
                out = net(step)

    On CPUs the kernels read a fully connected weight in an order of their own. For the first step it is brought into
    that order, which takes a copy's memory and time; the further ones only look at its version counter, where they
    would otherwise look at all of its values to see that they are the same. Products of few samples, which do not pay
    for such a copy, then go by events, too: in :class:`~snnipu.MultiStep` and compiled loops without gradients.

    What PyTorch counts may change a weight here: an optimizer's step, ``load_state_dict``, ``copy_``. Not so a change
    by way of ``.data`` or of a NumPy array that shares its memory.

    Raises:
        RuntimeError: on leaving the outermost one, where a weight's values were changed in such a way, and not by what
            PyTorch counts since.
    """
    before: Any = current_fixed_weights()
    if before is not None:
        yield
        return
    fixed = _thread.fixed = FixedWeights()
    try:
        yield
    finally:
        _thread.fixed = None
    fixed.check()
