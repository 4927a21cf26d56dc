"""The inputs of a call: matched to the parameters of ``forward``, compared with the compiled ones, and split."""

import inspect
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from snnipu.ipu.model import CONVERSIONS, TYPES
from snnipu.poptorch._errors import InvalidArgument, InvalidType
from snnipu.poptorch._logging import logger
from snnipu.poptorch._structure import flatten, rebuild
from snnipu.poptorch.options import Options

_ADVICE = (
    "; a model stays compiled for the inputs of its first call. For other inputs, wrap the model again, or call "
    "destroy() on this wrapper first"
)
_CONVERSIONS = {**CONVERSIONS, torch.bfloat16: torch.float32}
_DTYPES = (*TYPES, *_CONVERSIONS, torch.int16)


class Inputs:
    """The positional and keyword arguments of one call; ``names`` are the parameters of the positional ones."""

    def __init__(self, names: List[str], args: List[Any], kwargs: Dict[str, Any]) -> None:
        self.names = names
        self.args = args
        self.kwargs = kwargs

    def tensors(self) -> List[torch.Tensor]:
        return flatten([self.args, self.kwargs])

    def named(self) -> Dict[str, Any]:
        return {**dict(zip(self.names, self.args)), **self.kwargs}

    def named_tensors(self) -> Iterator[Tuple[str, torch.Tensor]]:
        for name, value in self.named().items():
            tensors = flatten(value)
            for number, tensor in enumerate(tensors):
                yield (name if len(tensors) == 1 else f"{name}[{number}]"), tensor

    def with_tensors(self, tensors: List[torch.Tensor]) -> Tuple[List[Any], Dict[str, Any]]:
        args, kwargs = rebuild([self.args, self.kwargs], iter(tensors))
        return args, kwargs

    def spec(self) -> "Inputs":
        """Return the same arguments with tensors that have a shape and a dtype, and no values."""
        return Inputs(self.names, *self.with_tensors([tensor.to("meta") for tensor in self.tensors()]))


class InputParser:
    """A parser that matches the arguments of calls to the signature of ``forward``."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        try:
            self._signature = inspect.signature(forward)
        except ValueError:  # some built-in functions have no signature
            kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
            self._signature = inspect.Signature([inspect.Parameter(*parameter) for parameter in kinds.items()])
        self._warned = False

    def __call__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Inputs:
        """Return the inputs of a call.

        Raises ``poptorch.Error`` naming an argument that is missing, surplus or passed twice, or has a type that IPUs
        lack.
        """
        parameters = self._signature.parameters
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(f"forward: {error}; its parameters are {list(parameters)}") from None
        bound.apply_defaults()
        names: List[str] = []
        for name, parameter in parameters.items():
            if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
                names.extend(f"*{name}[{number}]" for number in range(len(bound.arguments[name])))
            elif parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
                names.append(name)
        return self._prepared(Inputs(names, list(bound.args), bound.kwargs))

    def _prepared(self, inputs: Inputs) -> Inputs:
        tensors = []
        for name, tensor in inputs.named_tensors():
            if tensor.dtype not in _DTYPES:
                raise InvalidType(f"input {name}: IPUs have no type {tensor.dtype}")
            if tensor.numel() == 0:
                raise InvalidArgument(f"input {name}: zero-sized tensors of shape {tuple(tensor.shape)} do not run")
            if tensor.requires_grad:
                if not self._warned:
                    logger.warning(
                        "input %s has requires_grad=True and is detached: a call runs its own backward", name
                    )
                self._warned = True
                tensor = tensor.detach()
            if tensor.device.type != "cpu":
                tensor = tensor.cpu()
            tensors.append(tensor)
        return Inputs(inputs.names, *inputs.with_tensors(tensors))


def check_same(compiled: Inputs, inputs: Inputs) -> None:
    """Raise ``poptorch.Error`` naming the first input that differs from the inputs the model was compiled for."""
    expected, got = compiled.named(), inputs.named()
    _check_keys("inputs", expected, got)
    for name, value in expected.items():
        _check_value(name, value, got[name])


def _elements(value: Any) -> Optional[Dict[Any, Any]]:
    """Return the elements of a structure, by key or position; None for a tensor and for any other value."""
    if isinstance(value, dict):
        return value
    tensors = [] if isinstance(value, torch.Tensor) else flatten(value)  # of a registered type
    elements = value if isinstance(value, (list, tuple)) else tensors
    return dict(enumerate(elements)) if elements is value or tensors else None


def _check_value(name: str, expected: Any, got: Any) -> None:
    before, after = _elements(expected), _elements(got)
    if before is not None and after is not None:
        _check_keys(f"input {name}", before, after)
        for key, value in before.items():
            _check_value(f"{name}[{key!r}]", value, after[key])
    elif isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        if expected.dtype != got.dtype:
            raise InvalidType(f"input {name}: expected {expected.dtype} but got {got.dtype}{_ADVICE}")
        if expected.shape != got.shape:
            raise InvalidArgument(f"input {name}: expected shape {expected.shape} but got {got.shape}{_ADVICE}")
    elif type(expected) is not type(got):
        types = f"expected a {type(expected).__name__} but got a {type(got).__name__}"
        raise InvalidType(f"input {name}: {types}{_ADVICE}")
    elif expected is not got and expected != got:
        raise InvalidArgument(
            f"input {name}: expected {expected!r} but got {got!r}; only tensors may change after compiling{_ADVICE}"
        )


def _check_keys(name: str, expected: Dict[Any, Any], got: Dict[Any, Any]) -> None:
    if expected.keys() != got.keys():
        missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
        raise InvalidArgument(f"{name}: missing {missing}, not expected {extra}{_ADVICE}")


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
