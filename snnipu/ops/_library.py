"""The ``snnipu::`` operator library and what is registered in it."""

from typing import Callable, Dict

import torch

_definitions = torch.library.Library("snnipu", "DEF")

# Operator -> dispatch key -> function. `python -m snnipu info` and the completeness test read it.
REGISTERED: Dict[str, Dict[str, Callable]] = {}


def define(schema: str, *, reference: Callable, meta: Callable) -> None:
    """Define ``snnipu::<schema>`` with its reference kernel (any device) and its meta kernel (shapes and dtypes)."""
    name = schema.split("(", 1)[0]
    _definitions.define(schema)
    REGISTERED[name] = {}
    implement(name, "CompositeExplicitAutograd", reference)
    implement(name, "Meta", meta)


def implement(name: str, key: str, function: Callable) -> None:
    """Register ``function`` as the kernel of ``snnipu::<name>`` for the dispatch key ``key``."""
    _definitions.impl(name, function, key)
    REGISTERED[name][key] = function
