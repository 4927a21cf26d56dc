"""Operators' schemas, made from the fields of records or from the signature of the reference."""

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
    meta: Callable[..., Any],
    results: str = "Tensor",
    arguments: Optional[Type[Any]] = None,
    name: Optional[str] = None,
) -> Callable[..., Any]:
    """Define an operator.

    Args:
        reference: reference kernel.
        meta: meta kernel.
        results: results in the schema's words.
        arguments: named tuple of the arguments; None: those of the reference's signature.
        name: name of the operator; None: the name of ``reference`` without ``_reference``.

    Returns:
        The operator.
    """
    name = name or reference.__name__[: -len("_reference")]
    schema = f"{name}({declared(arguments or reference, defaults=True)}) -> {results}"
    return _library.define(schema, reference=reference, meta=meta)


def declared(source: Union[Type[Any], Callable[..., Any]], without: Sequence[str] = (), defaults: bool = False) -> str:
    """Return the arguments of a schema that the fields of a named tuple, or a function's arguments, stand for."""
    types = {name: kind for name, kind in get_type_hints(source).items() if name not in (*without, "return")}
    optional = getattr(source, "_field_defaults", {}) if defaults else {}
    return ", ".join(f"{_TYPES[kind]} {name}{'=None' if name in optional else ''}" for name, kind in types.items())


class Operator:
    """``snnipu::<name>``, which takes the fields of the named tuple ``arguments`` and gives those of ``results``.

    Of both it has all but ``without``: those are None in its records. A ``results`` of None is one tensor. What is None
    in a record of results is an empty tensor, of the arguments' ``weight``'s dtype.
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
            # What is None in a record is an empty tensor here.
            returned = f"({declared(results, without).replace('?', '')})"
        # The kernels that take records, by what PyTorch calls in their place.
        self._functions: Dict[Callable[..., Any], Callable[[Any], Any]] = {}
        self.schema = f"{name}({declared(arguments, without)}) -> {returned}"

    def define(self, reference: Callable[[Any], Any], meta: Callable[[Any], Any]) -> None:
        """With its reference and its meta kernel, which take and return records."""
        _library.define(self.schema, reference=self.kernel(reference), meta=self.kernel(meta))

    def implement(self, key: str, function: Callable[[Any], Any]) -> None:
        """With a kernel likewise for the dispatch key ``key``."""
        _library.implement(self.name, key, self.kernel(function))

    def kernel(self, function: Callable[[Any], Any]) -> Callable[..., Any]:
        """``function``, which takes and returns records, as what PyTorch calls."""

        def run(*given: Any) -> Any:
            record = self.arguments._make(_insert_none(given, self._missing))
            results = function(record)
            if self.results is None:
                return results
            # No two outputs may be the same tensor.
            tensors = _drop_fields(results, self._missing_results)
            return tuple([record.weight.new_empty(0) if each is None else each for each in tensors])

        run.__name__ = self.name
        self._functions[run] = function
        return run

    def __call__(self, record: Any, *tensors: Optional[torch.Tensor]) -> Any:
        """The operator on this record, see :func:`snnipu.ops._library.kernel_for` for its ``tensors``."""
        run = _library.kernel_for(self.name, *tensors)
        function = self._functions.get(run)
        if function is not None:
            return function(record)
        results = run(*_drop_fields(record, self._missing))
        return results if self.results is None else self.results._make(_insert_none(results, self._missing_results))


class Operators(NamedTuple):
    """Forward and backward operator of one connectivity."""

    name: str
    forward: Operator
    backward: Operator


def _insert_none(given: Sequence[Any], missing: Sequence[int]) -> List[Any]:
    values = list(given)
    for place in missing:
        values.insert(place, None)
    return values


def _drop_fields(record: Sequence[Any], missing: Sequence[int]) -> List[Any]:
    values = list(record)
    for place in reversed(missing):
        del values[place]
    return values
