"""Schemas of operators, made from the fields of records or from the signature of the reference.

A record is a named tuple of an operator's arguments or results.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Type, Union, get_type_hints

import torch

from snnipu.ops import _library

_TYPES = {
    torch.Tensor: "Tensor",
    Optional[torch.Tensor]: "Tensor?",
    int: "int",
    float: "float",
    Optional[float]: "float?",
    bool: "bool",
    str: "str",
    List[int]: "int[]",
    Sequence[int]: "SymInt[]",
    Optional[int]: "SymInt?",
    Sequence[bool]: "bool[]",
    Sequence[torch.Tensor]: "Tensor[]",
    Sequence[Optional[torch.Tensor]]: "Tensor?[]",
    Optional[Sequence[torch.Tensor]]: "Tensor[]?",
}


def define(
    reference: Callable[..., Any],
    meta: Optional[Callable[..., Any]] = None,
    results: str = "Tensor",
    arguments: Optional[Type[Any]] = None,
    name: Optional[str] = None,
) -> Callable[..., Any]:
    """Define an operator.

    Args:
        reference: reference kernel.
        meta: meta kernel; None: ``reference``, which then reads only shapes of meta tensors.
        results: results in the syntax of a schema.
        arguments: record of the arguments. None: the arguments of the reference's signature.
        name: name of the operator; None: the name of ``reference`` without ``_reference``.

    Returns:
        The operator.
    """
    name = name or reference.__name__[: -len("_reference")]
    schema = f"{name}({declared(arguments or reference, defaults=True)}) -> {results}"
    return _library.define(schema, reference=reference, meta=meta or reference)


def declared(source: Union[Type[Any], Callable[..., Any]], without: Sequence[str] = (), defaults: bool = False) -> str:
    """Return the schema of the fields of a record, or of a function's arguments, but for those in ``without``.

    ``defaults``: fields of a record that have a default get ``=None``.
    """
    types = {name: kind for name, kind in get_type_hints(source).items() if name not in (*without, "return")}
    optional = getattr(source, "_field_defaults", {}) if defaults else {}
    return ", ".join(f"{_TYPES[kind]} {name}{'=None' if name in optional else ''}" for name, kind in types.items())


class Operator:
    """The operator ``snnipu::<name>``, called with a record of arguments.

    Args:
        name: name of the operator.
        arguments: class of the record of arguments.
        results: class of the record of results; None: the result is one tensor. PyTorch gets an empty tensor, of the
            dtype of ``weight``, for each field that is None.
        without: fields of both records that this operator lacks; they are None.
    """

    def __init__(
        self, name: str, arguments: Type[Any], results: Optional[Type[Any]] = None, without: Sequence[str] = ()
    ) -> None:
        self.name, self.arguments, self.results = name, arguments, results
        self._missing = [place for place, field in enumerate(arguments._fields) if field in without]
        self._missing_results: List[int] = []
        returned = "Tensor"
        if results is not None:
            self._missing_results = [place for place, field in enumerate(results._fields) if field in without]
            # Operators return no optional tensors: a field that is None becomes an empty tensor.
            returned = f"({declared(results, without).replace('?', '')})"
        # The kernels with records, by the functions with plain arguments that are registered with PyTorch.
        self._functions: Dict[Callable[..., Any], Callable[[Any], Any]] = {}
        self.schema = f"{name}({declared(arguments, without)}) -> {returned}"

    def define(self, reference: Callable[[Any], Any], meta: Callable[[Any], Any]) -> None:
        """Define the operator with its reference and its meta kernel, which take and return records."""
        _library.define(self.schema, reference=self.kernel(reference), meta=self.kernel(meta))

    def implement(self, key: str, function: Callable[[Any], Any]) -> None:
        """Register a kernel that takes and returns records for the dispatch key ``key``."""
        _library.implement(self.name, key, self.kernel(function))

    def kernel(self, function: Callable[[Any], Any]) -> Callable[..., Any]:
        """Return ``function``, which takes and returns records, as a function of plain arguments for PyTorch."""

        def run(*arguments: Any) -> Any:
            record = self.arguments._make(_insert_none(arguments, self._missing))
            results = function(record)
            if self.results is None:
                return results
            # An operator may not return the same tensor twice, so each missing result is a new one.
            tensors = _drop_fields(results, self._missing_results)
            return tuple([record.weight.new_empty(0) if each is None else each for each in tensors])

        run.__name__ = self.name
        self._functions[run] = function
        return run

    def __call__(self, record: Any, *tensors: Optional[torch.Tensor]) -> Any:
        """Call the operator on this record; ``tensors`` are those of :func:`snnipu.ops._library.kernel_for`."""
        run = _library.kernel_for(self.name, *tensors)
        function = self._functions.get(run)
        if function is not None:
            return function(record)
        results = run(*_drop_fields(record, self._missing))
        return results if self.results is None else self.results._make(_insert_none(results, self._missing_results))


class Operators(NamedTuple):
    """The forward and the backward operator of a kind of connection."""

    name: str
    forward: Operator
    backward: Operator


def _insert_none(present: Sequence[Any], missing: Sequence[int]) -> List[Any]:
    values = list(present)
    for place in missing:
        values.insert(place, None)
    return values


def _drop_fields(record: Sequence[Any], missing: Sequence[int]) -> List[Any]:
    values = list(record)
    for place in reversed(missing):
        del values[place]
    return values
