"""The ``snnipu::`` operator library and what is registered in it."""

from typing import Callable, Dict

import torch

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
    implement(name, "Meta", meta)
    return getattr(torch.ops.snnipu, name).default


def implement(name: str, key: str, function: Callable) -> None:
    """Register ``function`` as the kernel of ``snnipu::<name>`` for the dispatch key ``key``."""
    _definitions.impl(name, function, key)
    REGISTERED[name][key] = function
