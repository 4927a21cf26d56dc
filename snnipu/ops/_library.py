"""The ``snnipu::`` operator library and its registered kernels."""

import functools
from typing import Any, Callable, Dict, Optional

import torch

from snnipu.ops._arguments import has_plain_memory, is_eager

_definitions = torch.library.Library("snnipu", "DEF")

# Operator -> dispatch key -> function. `python -m snnipu info` and the completeness test read this table.
REGISTERED: Dict[str, Dict[str, Callable]] = {}


def define(schema: str, *, reference: Callable, meta: Callable) -> Callable:
    """Define ``snnipu::<schema>`` with its reference kernel (any device) and its meta kernel (shapes and dtypes).

    Returns the operator. Callers keep it: ``torch.ops.snnipu.<name>`` takes as long as a small call.
    """
    name = schema.split("(", 1)[0]
    _definitions.define(schema)
    REGISTERED[name] = {}
    implement(name, "CompositeExplicitAutograd", reference)
    implement(name, "Meta", _of_meta_tensors(name, meta))
    return getattr(torch.ops.snnipu, name).default


def _of_meta_tensors(name: str, meta: Callable) -> Callable:
    """Return ``meta`` with a check that all tensors are on ``meta``; PyTorch calls it if only some are."""

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
    """Return the kernel of ``snnipu::<name>`` for the device of the first tensor, or the dispatcher's operator.

    The kernel is returned if no profiler, mode or tracer is active (see :func:`is_eager`). For many arguments the
    dispatcher takes as long as the operator's Python code.
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
