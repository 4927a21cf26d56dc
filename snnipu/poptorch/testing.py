"""``poptorch.testing``."""

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """True where two tensors, or lists or tuples of them, have one structure and close values."""
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(other, ref)
    if isinstance(ref, (list, tuple)):
        same = type(ref) is type(other) and len(ref) == len(other)
        return same and all(allclose(one, two) for one, two in zip(ref, other))
    raise TypeError(f"allclose: expected tensors, lists or tuples, got {type(ref).__name__}")
