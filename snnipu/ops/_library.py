"""The ``snnipu::`` operator library and what is registered in it."""

import functools
from typing import Any, Callable, Dict, Optional

import torch

from snnipu.ops._arguments import has_plain_memory, is_eager

_definitions = torch.library.Library("snnipu", "DEF")

# Operator -> dispatch key -> function. `python -m snnipu info` and the completeness test read it.
REGISTERED: Dict[str, Dict[str, Callable]] = {}


def define(schema: str, *, reference: Callable, meta: Callable) -> Callable:
    """Define ``snnipu::<schema>`` with its reference kernel (any device) and its meta kernel (shapes and dtypes).

    Returns the operator. To look it up as ``torch.ops.snnipu.<name>`` in each call takes as long as a small call.
    """
    name = schema.split("(", 1)[0]
    _definitions.define(schema)
    REGISTERED[name] = {}
    implement(name, "CompositeExplicitAutograd", reference)
    implement(name, "Meta", _of_meta_tensors(name, meta))
    return getattr(torch.ops.snnipu, name).default


def _of_meta_tensors(name: str, meta: Callable) -> Callable:
    """``meta``, which PyTorch also calls where only some of the tensors are on ``meta``: an error, as PyTorch's own."""

    @functools.wraps(meta)
    def checked(*arguments: Any) -> Any:
        for argument in arguments:
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                    raise RuntimeError(
                        f"snnipu::{name} expects all tensors to be on the same device, got meta and {tensor.device}"
                    )
        return meta(*arguments)

    return checked


def kernel_for(name: str, *tensors: Optional[torch.Tensor]) -> Callable:
    """``snnipu::<name>`` for these tensors, the first of them on the device; where nobody looks, its kernel there.

    See :func:`is_eager`: of many arguments the dispatcher makes as much work as Python's own part of the operator.
    """
    first = tensors[0]
    if first is not None and is_eager(first):
        kernel = REGISTERED[name].get("CPU" if first.is_cpu else "CUDA")
        if kernel is not None and all(tensor is None or has_plain_memory(tensor) for tensor in tensors):
            return kernel
    return getattr(torch.ops.snnipu, name)  # type: ignore[no-any-return]


def implement(name: str, key: str, function: Callable) -> None:
    """Register ``function`` as the kernel of ``snnipu::<name>`` for the dispatch key ``key``."""
    _definitions.impl(name, function, key)
    REGISTERED[name][key] = function
