"""Where the elements of a tensor lie: the one place where native code is given a tensor's memory."""

from typing import List, Tuple, Union

import torch

# A shape, or a number of elements that may be in any shape.
Size = Union[int, Tuple[int, ...]]


def pointer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size) -> int:
    """Return the address of a tensor's elements, for native code that reads or writes ``size`` of ``dtype`` there.

    Raises:
        TypeError: the dtype is another one.
        ValueError: the shape, the device or the layout is another one, or there is no memory. Both name the argument.
    """
    fits = tensor.numel() == size if type(size) is int else tensor.shape == size
    if not (
        fits
        and tensor.dtype is dtype
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        raise _refusal(name, tensor, dtype, size)
    address = tensor.data_ptr()
    # Of zeros that nobody wrote down, or where the storage was given back, it is the offset alone.
    if address == tensor.storage_offset() * tensor.element_size() and tensor.numel():
        raise ValueError(f"{name} must have memory, got a tensor of shape {tuple(tensor.shape)} without")
    return address


def compared(tensor: torch.Tensor) -> int:
    """Return the address of a tensor that the caller has compared with what the native code takes, or has just made."""
    address = tensor.data_ptr()
    if not address:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} must have memory")
    return address


def pointer_to_read(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size, kept: List[torch.Tensor]) -> int:
    """Return :func:`pointer` of a tensor that is only read, or of a contiguous copy, which is added to ``kept``."""
    if tensor.layout is torch.strided and (tensor.is_neg() or not tensor.is_contiguous()):
        tensor = tensor.resolve_neg().contiguous()
        kept.append(tensor)
    return pointer(name, tensor, dtype, size)


def _refusal(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size) -> Exception:
    shape = f"{size} elements" if isinstance(size, int) else f"shape {tuple(size)}"
    expected = f"{name} must be a contiguous {dtype} tensor of {shape} on the CPU"
    found = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
    if tensor.layout is not torch.strided:
        found += f", {tensor.layout}"
    elif tensor.is_neg() or not tensor.is_contiguous():
        found += ", not contiguous"
    return (TypeError if tensor.dtype is not dtype else ValueError)(f"{expected}, got {found}")
