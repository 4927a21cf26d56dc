"""``fixed_weights``: weights that do not change during a stream are packed for the kernels once."""

import contextlib
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch

_thread = threading.local()


class Identity(NamedTuple):
    """A key that changes if a weight's values, memory, shape or dtype change.

    PyTorch's version counter covers changes of values; the other fields cover replacements through ``.data``.
    """

    version: int
    pointer: int
    dtype: torch.dtype
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


def identity(weight: torch.Tensor) -> Identity:
    version = 0 if weight.is_inference() else weight._version
    return Identity(version, weight.data_ptr(), weight.dtype, weight.shape, weight.stride())


class _CacheEntry(NamedTuple):
    weight: "weakref.ref[torch.Tensor]"
    identity: Any
    fingerprint: Optional[int]
    packed: torch.Tensor


class WeightCache(Dict[int, _CacheEntry]):
    """The packed copies of weights, by the id of the weight. An entry goes with its weight."""

    def find(self, weight: torch.Tensor, identity: Any) -> Optional[_CacheEntry]:
        """Return the entry of ``weight``, if its identity is still the same."""
        entry = self.get(id(weight))
        return entry if entry is not None and entry.weight() is weight and entry.identity == identity else None

    def keep(
        self, weight: torch.Tensor, identity: Any, packed: torch.Tensor, fingerprint: Optional[int] = None
    ) -> torch.Tensor:
        """Store the packed copy of ``weight``, and return it."""
        key = id(weight)
        reference = weakref.ref(weight, lambda _: self.pop(key, None))
        self[key] = _CacheEntry(reference, identity, fingerprint, packed)
        return packed


class FixedWeights:
    """The packed weights within one :func:`fixed_weights`."""

    def __init__(self) -> None:
        self._entries = WeightCache()
        self._fingerprint: Optional[Callable[[torch.Tensor], int]] = None

    def get_or_make(
        self,
        weight: torch.Tensor,
        make: Callable[[torch.Tensor], torch.Tensor],
        fingerprint: Callable[[torch.Tensor], int],
    ) -> torch.Tensor:
        """Return ``make(weight)``, cached until the :class:`Identity` of the weight changes.

        ``fingerprint`` returns a checksum of the values, which :meth:`check` compares.
        """
        now = identity(weight)
        entry = self._entries.find(weight, now)
        if entry is not None:
            return entry.packed
        self._fingerprint = fingerprint
        return self._entries.keep(weight, now, make(weight), fingerprint(weight))

    def check(self) -> None:
        """Raise RuntimeError if the values of a weight differ from the packed ones."""
        for entry in list(self._entries.values()):
            weight = entry.weight()
            if weight is None or entry.identity != identity(weight):
                continue  # the packed copy would not be used
            if self._fingerprint is not None and self._fingerprint(weight) != entry.fingerprint:
                raise RuntimeError(
                    f"a weight of shape {list(weight.shape)} was changed within fixed_weights() by way of .data or "
                    "NumPy, which PyTorch does not count: results since then may be those of its values before"
                )


def current_fixed_weights() -> Optional[FixedWeights]:
    """Return the packed weights of this thread; None outside of :func:`fixed_weights`."""
    fixed: Optional[FixedWeights] = getattr(_thread, "fixed", None)
    return fixed


@contextlib.contextmanager
def fixed_weights() -> Iterator[None]:
    """Declare that weights do not change, so that a single step reads only the weights of inputs that spiked.

    Use it for streams, which run one step at a time:

    .. code-block:: python

        with torch.no_grad(), snn.fixed_weights():
            for step in stream:  # [1, 1, inputs]
                out = net(step)

    CPU kernels read a fully connected weight in a packed order. The first step packs the weight, which takes the memory
    and the time of a copy. Later steps compare only the version counter. Without ``fixed_weights`` each step compares
    all values of the weight. With it, products of few samples run by events, too: in :class:`~snnipu.MultiStep` and in
    compiled loops, without gradients.

    A weight may change inside by operations that PyTorch counts: an optimizer's step, ``load_state_dict``, ``copy_``.
    It must not change through ``.data`` or through a NumPy array that shares its memory.

    Raises:
        RuntimeError: a weight was changed through ``.data`` or NumPy. The check runs at the end of the outermost
            ``fixed_weights``. A later change that PyTorch counts hides the earlier one.
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
