"""Addresses of tensors for native code; no other module passes a tensor's memory to it."""

from typing import List, Tuple, Union

import torch

# A shape, or the number of elements of a tensor of any shape.
Size = Union[int, Tuple[int, ...]]


def pointer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size) -> int:
    """Check a tensor and return the address of its elements, for native code that reads or writes it.

    The tensor must be a contiguous ``dtype`` tensor of ``size`` on the CPU. Errors name the argument.

    Raises:
        TypeError: the dtype is wrong.
        ValueError: the shape, the device or the layout is wrong, or the tensor has no memory.
    """
    has_size = tensor.numel() == size if type(size) is int else tensor.shape == size
    if not (
        has_size
        and tensor.dtype is dtype
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        raise _refusal(name, tensor, dtype, size)
    address = tensor.data_ptr()
    # A tensor without memory (a ZeroTensor, or one with a freed storage) has its offset as the address.
    if address == tensor.storage_offset() * tensor.element_size() and tensor.numel():
        raise ValueError(f"{name} must have memory, got a tensor of shape {tuple(tensor.shape)} without")
    return address


def trusted_pointer(tensor: torch.Tensor) -> int:
    """Return the address of a tensor that the caller has checked or created; only check that it has memory."""
    address = tensor.data_ptr()
    if not address:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} must have memory")
    return address


def pointer_to_read(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size, kept: List[torch.Tensor]) -> int:
    """Return :func:`pointer` of a tensor that native code only reads.

    A tensor that is not contiguous is copied; the copy is appended to ``kept``, which must outlive the call.
    """
    if tensor.layout is torch.strided and (tensor.is_neg() or not tensor.is_contiguous()):
        tensor = tensor.resolve_neg().contiguous()
        kept.append(tensor)
    return pointer(name, tensor, dtype, size)


def _refusal(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: Size) -> Exception:
    shape = f"{size} elements" if isinstance(size, int) else f"shape {tuple(size)}"
    expected = f"{name} must be a contiguous {dtype} tensor of {shape} on the CPU"
    got = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
    if tensor.layout is not torch.strided:
        got += f", {tensor.layout}"
    elif tensor.is_neg() or not tensor.is_contiguous():
        got += ", not contiguous"
    return (TypeError if tensor.dtype is not dtype else ValueError)(f"{expected}, got {got}")
