"""``poptorch.testing``: the comparison of outputs."""

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Return True if two tensors, or lists or tuples of tensors, have the same structure and close values.

    Args:
        ref, other: the tensors to compare, by ``torch.allclose``.
    """
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(other, ref)
    if isinstance(ref, (list, tuple)):
        same = type(ref) is type(other) and len(ref) == len(other)
        return same and all(allclose(left, right) for left, right in zip(ref, other))
    raise TypeError(f"allclose: expected tensors, lists or tuples, got {type(ref).__name__}")
