"""Structures of tensors: tuples, lists, dictionaries and registered types, flattened and rebuilt in order."""

import abc
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Type

import torch

from snnipu.poptorch._errors import Error, check_tensor, check_type


class ICustomArgParser(abc.ABC):
    """A parser that finds the tensors in objects of a custom type (PopTorch user guide, "Custom arguments")."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Any:
        """Yield every tensor of the object ``struct``, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Return a copy of an object with other tensors.

        Args:
            original_structure: the object.
            tensor_iterator: the new tensors, in the order of :meth:`yieldTensors`.
        """


_parsers: Dict[Type[Any], ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: Type[Any], arg_parser: Optional[ICustomArgParser]) -> None:
    """Register the parser of a custom type of inputs and outputs.

    Args:
        arg_data_type: the type; its subclasses are included.
        arg_parser: the parser; None removes the registered one.
    """
    if arg_parser is None:
        _parsers.pop(arg_data_type, None)
    else:
        name = "registerCustomArgParser: arg_parser"
        _parsers[arg_data_type] = check_type(arg_parser, name, ICustomArgParser, "an ICustomArgParser")


def _parser_of(value: Any) -> Optional[ICustomArgParser]:
    if type(value) in _parsers:
        return _parsers[type(value)]
    return next((parser for kind, parser in _parsers.items() if isinstance(value, kind)), None)


def flatten(structure: Any) -> List[torch.Tensor]:
    """Return the tensors of ``structure`` in order, without its other values."""
    if isinstance(structure, torch.Tensor):
        return [structure]
    parser = _parser_of(structure) if _parsers else None
    if parser is not None:
        return list(parser.yieldTensors(structure))
    if isinstance(structure, dict):
        return [tensor for value in structure.values() for tensor in flatten(value)]
    if isinstance(structure, (list, tuple)):
        return [tensor for value in structure for tensor in flatten(value)]
    return []


def rebuild(structure: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return a copy of ``structure`` with the tensors in ``tensors``, in the order of :func:`flatten`."""
    if isinstance(structure, torch.Tensor):
        return next(tensors)
    parser = _parser_of(structure) if _parsers else None
    if parser is not None:
        return parser.reconstruct(structure, tensors)
    if isinstance(structure, dict):
        values = {key: rebuild(value, tensors) for key, value in structure.items()}
        return values if type(structure) is dict else _same_mapping(structure, values)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(rebuild(value, tensors) for value in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(rebuild(value, tensors) for value in structure)
    return structure


def _same_mapping(structure: Any, values: Dict[Any, Any]) -> Any:
    try:
        return type(structure)(values)
    except TypeError:  # a mapping built from keyword arguments, such as a dataclass
        return type(structure)(**values)


def check_like(function: str, like: str, expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
    """Raise ``poptorch.Error`` unless a function's outputs equal the tensors ``like`` in number, shape and type."""
    if len(got) != len(expected):
        raise Error(f"{function}: expected {len(expected)} outputs, as {like}, got {len(got)}")
    for number, (old, new) in enumerate(zip(expected, got)):
        check_tensor(new, f"{function}: output {number}")
        if new.shape != old.shape or new.dtype != old.dtype:
            raise Error(
                f"{function}: output {number} must be {tuple(old.shape)} {old.dtype}, as {like}[{number}], "
                f"got {tuple(new.shape)} {new.dtype}"
            )


def map_tensors(structure: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of ``structure`` with ``function`` applied to each of its tensors."""
    return rebuild(structure, iter([function(tensor) for tensor in flatten(structure)]))
