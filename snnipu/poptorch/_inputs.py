"""The inputs of a call: matched to the parameters of ``forward``, compared with the compiled ones, and split."""

import inspect
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from snnipu.poptorch._errors import InvalidArgument, InvalidType
from snnipu.poptorch._logging import logger
from snnipu.poptorch._structure import flatten, rebuild
from snnipu.poptorch.options import Options

_ADVICE = (
    "; a model stays compiled for the inputs of its first call. For other inputs, wrap the model again, or call "
    "destroy() on this wrapper first"
)
_DTYPES = (
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
_CONVERSIONS = {torch.int64: torch.int32, torch.float64: torch.float32, torch.bfloat16: torch.float32}


class TensorSpec:
    """The shape and dtype of an input tensor that a model is compiled for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype


class Inputs:
    """The positional and keyword arguments of one call; ``names`` are the parameters of the positional ones."""

    def __init__(self, names: List[str], args: List[Any], kwargs: Dict[str, Any]) -> None:
        self.names = names
        self.args = args
        self.kwargs = kwargs

    def tensors(self) -> List[torch.Tensor]:
        return flatten([self.args, self.kwargs])

    def specs(self) -> List["TensorSpec"]:
        """Return the :class:`TensorSpec` objects in a result of :meth:`spec`."""
        return _specs_of([*self.args, *self.kwargs.values()])

    def named_tensors(self) -> Iterator[Tuple[str, torch.Tensor]]:
        for name, value in [*zip(self.names, self.args), *self.kwargs.items()]:
            tensors = flatten(value)
            for number, tensor in enumerate(tensors):
                yield (name if len(tensors) == 1 else f"{name}[{number}]"), tensor

    def with_tensors(self, tensors: List[torch.Tensor]) -> Tuple[List[Any], Dict[str, Any]]:
        args, kwargs = rebuild([self.args, self.kwargs], iter(tensors))
        return args, kwargs

    def spec(self) -> "Inputs":
        """Return the same arguments with a :class:`TensorSpec` in place of each tensor."""
        return Inputs(self.names, [_spec(arg) for arg in self.args], {k: _spec(v) for k, v in self.kwargs.items()})


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec(value)
    if isinstance(value, dict):
        return {key: _spec(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_spec(element) for element in value)
    tensors = flatten(value)
    return tuple(TensorSpec(tensor) for tensor in tensors) if tensors else value


def _specs_of(value: Any) -> List[TensorSpec]:
    if isinstance(value, TensorSpec):
        return [value]
    elements = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [spec for element in elements for spec in _specs_of(element)]


class InputParser:
    """A parser that matches the arguments of calls to the signature of ``forward``."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        try:
            self._parameters = list(inspect.signature(forward).parameters.values())
        except ValueError:  # some built-in functions have no signature
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            self._parameters = [inspect.Parameter(name, kind) for name, kind in zip(("args", "kwargs"), kinds)]
        self._warned: Dict[str, bool] = {}

    def __call__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Inputs:
        """Return the inputs of a call.

        Raises ``poptorch.Error`` naming an argument that is missing, surplus or passed twice, or has a type that IPUs
        lack.
        """
        names: List[str] = []
        values: List[Any] = []
        named: Dict[str, Any] = {}
        remaining, keywords = list(args), dict(kwargs)
        variadic = False
        for parameter in self._parameters:
            if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
                variadic = True
                names.extend(f"*{parameter.name}[{number}]" for number in range(len(remaining)))
                values.extend(remaining)
                remaining = []
            elif parameter.kind == inspect.Parameter.VAR_KEYWORD:
                named.update(keywords)
                keywords = {}
            elif remaining and parameter.kind != inspect.Parameter.KEYWORD_ONLY:
                if parameter.name in keywords:
                    raise InvalidArgument(f"forward: argument {parameter.name!r} was passed twice")
                names.append(parameter.name)
                values.append(remaining.pop(0))
            else:
                if parameter.name in keywords:
                    value = keywords.pop(parameter.name)
                elif parameter.default is not inspect.Parameter.empty:
                    value = parameter.default
                else:
                    raise InvalidArgument(f"forward: argument {parameter.name!r} is missing")
                if variadic or parameter.kind == inspect.Parameter.KEYWORD_ONLY:
                    named[parameter.name] = value
                else:
                    names.append(parameter.name)
                    values.append(value)
        known = [parameter.name for parameter in self._parameters]
        if remaining:
            raise InvalidArgument(f"forward: takes {known}, got {len(args)} positional arguments")
        if keywords:
            raise InvalidArgument(f"forward: {sorted(keywords)} are not among its parameters {known}")
        return self._prepared(Inputs(names, values, named))

    def _prepared(self, inputs: Inputs) -> Inputs:
        tensors = []
        for name, tensor in inputs.named_tensors():
            if tensor.dtype not in _DTYPES:
                raise InvalidType(f"input {name}: IPUs have no type {tensor.dtype}")
            if tensor.numel() == 0:
                raise InvalidArgument(f"input {name}: zero-sized tensors of shape {tuple(tensor.shape)} do not run")
            if tensor.requires_grad:
                self._warn_once(
                    "requires_grad",
                    f"input {name} has requires_grad=True and is detached: a call runs its own backward",
                )
                tensor = tensor.detach()
            if tensor.device.type != "cpu":
                tensor = tensor.cpu()
            tensors.append(tensor)
        args, kwargs = inputs.with_tensors(tensors)
        return Inputs(inputs.names, args, kwargs)

    def _warn_once(self, key: str, message: str) -> None:
        if not self._warned.get(key):
            self._warned[key] = True
            logger.warning(message)


def check_same(compiled: Inputs, inputs: Inputs) -> None:
    """Raise ``poptorch.Error`` naming the first input that differs from the inputs the model was compiled for."""
    if len(compiled.args) != len(inputs.args):
        raise InvalidArgument(
            f"inputs: expected {len(compiled.args)} positional arguments but got {len(inputs.args)}{_ADVICE}"
        )
    for name, expected, value in zip(compiled.names, compiled.args, inputs.args):
        _check_value(name, expected, _spec(value))
    _check_keys("keyword arguments", compiled.kwargs, inputs.kwargs)
    for name, expected in compiled.kwargs.items():
        _check_value(name, expected, _spec(inputs.kwargs[name]))


def _check_value(name: str, expected: Any, got: Any) -> None:
    if type(expected) is not type(got):
        raise InvalidType(f"input {name}: expected a {_type_name(expected)} but got a {_type_name(got)}{_ADVICE}")
    if isinstance(expected, TensorSpec):
        if expected.dtype != got.dtype:
            raise InvalidType(f"input {name}: expected {expected.dtype} but got {got.dtype}{_ADVICE}")
        if expected.shape != got.shape:
            raise InvalidArgument(f"input {name}: expected shape {expected.shape} but got {got.shape}{_ADVICE}")
    elif isinstance(expected, tuple):
        if len(expected) != len(got):
            raise InvalidArgument(f"input {name}: expected {len(expected)} elements but got {len(got)}{_ADVICE}")
        for number, (old, new) in enumerate(zip(expected, got)):
            _check_value(f"{name}[{number}]", old, new)
    elif isinstance(expected, dict):
        _check_keys(f"input {name}", expected, got)
        for key, old in expected.items():
            _check_value(f"{name}[{key!r}]", old, got[key])
    elif expected is not got and expected != got:
        raise InvalidArgument(
            f"input {name}: expected {expected!r} but got {got!r}; only tensors may change after compiling{_ADVICE}"
        )


def _check_keys(name: str, expected: Dict[str, Any], got: Dict[str, Any]) -> None:
    if expected.keys() != got.keys():
        missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
        raise InvalidArgument(f"{name}: missing {missing}, not expected {extra}{_ADVICE}")


def _type_name(value: Any) -> str:
    return "torch.Tensor" if isinstance(value, TensorSpec) else type(value).__name__


def split(inputs: Inputs, options: Options, groups: int) -> List[List[torch.Tensor]]:
    """Split each input tensor along dim 0 into its micro-batches: ``result[input][micro-batch]``.

    Micro-batches are ordered [device iteration, accumulation, input replica group]. float64 and bfloat16 become
    float32, as on an IPU. 64-bit integers are unchanged, since PyTorch on the host indexes with no other type. Raises
    ``poptorch.Error`` naming an input whose dim 0 does not divide.
    """
    iterations, accumulation = options.device_iterations, options.Training.gradient_accumulation
    count = iterations * accumulation * groups
    pieces = []
    for name, tensor in inputs.named_tensors():
        size = tensor.shape[0] if tensor.dim() else 1
        if size % count:
            raise InvalidArgument(
                f"input {name} of shape {tuple(tensor.shape)}: dim 0 must be a multiple of deviceIterations "
                f"({iterations}) * replicationFactor ({options.replication_factor}) / input_group_size "
                f"({options.input_group_size}) * Training.gradientAccumulation ({accumulation}) = {count}"
            )
        if tensor.dtype in (torch.float64, torch.bfloat16):
            tensor = tensor.float()
        pieces.append([tensor] if count == 1 else list(tensor.chunk(count)))
    return pieces


def ipu_output(tensor: torch.Tensor) -> torch.Tensor:
    """Return an output as an IPU would: 64-bit types as 32-bit, bfloat16 as float32, copied and detached."""
    detached = tensor.detach()
    return detached.to(_CONVERSIONS[tensor.dtype]) if tensor.dtype in _CONVERSIONS else detached.clone()
