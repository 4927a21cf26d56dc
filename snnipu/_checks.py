"""Checks of arguments."""

from typing import Any

import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_int(name: str, value: Any, least: int = 1, or_none: bool = False) -> Any:
    """Check that ``value`` is an int of at least ``least``, or None if ``or_none``; return it."""
    if value is None and or_none:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if or_none else ''}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def check_tensor(name: str, value: Any, common: bool = False, or_none: bool = False) -> None:
    """Check that ``value`` is a floating tensor; with ``common``, of one of ``DTYPES``.

    ``or_none`` adds "or None" to the message; callers check for None themselves.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor{' or None' if or_none else ''}, got {type(value).__name__}")
    if not (value.dtype in DTYPES if common else value.dtype.is_floating_point):
        known = "float32, float64, float16 or bfloat16" if common else "floating"
        raise TypeError(f"{name} must be {known}, got {value.dtype}")


def check_device(name: str, value: Any, of: str, device: torch.device) -> None:
    """Check that ``value`` is on ``device``, which is that of the argument ``of``."""
    if value.device != device:
        raise ValueError(f"{name} must be on the device of {of}, {device}, got {value.device}")
