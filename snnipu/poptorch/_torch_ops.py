"""``torch.ops.poptorch``: operators that programs call through ``torch.ops``, as PopTorch has no function for them."""

import torch

from snnipu.ipu.model import DTYPES
from snnipu.poptorch._errors import InvalidArgument

_library = torch.library.Library("poptorch", "DEF")


def _internal_cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype not in DTYPES:
        raise InvalidArgument(f"torch.ops.poptorch.internal_cast: dtype must be one of {sorted(DTYPES)}, got {dtype!r}")
    return x.to(DTYPES[dtype])


for schema, function in (
    ("push_name_scope(str name) -> ()", lambda name: None),
    ("pop_name_scope() -> ()", lambda: None),
    ("internal_cast(Tensor x, str dtype) -> Tensor", _internal_cast),
):
    _library.define(schema)
    _library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
