"""PopTorch's own operators on a host (PopTorch user guide, "API reference", "Custom operations").

The marks of ``_blocks`` and ``custom_op`` are offered here too, under the names that ``poptorch.ops`` has.
"""

import builtins
import sys
from typing import Any, Callable, Dict, List, Sequence

import numpy
import torch

from snnipu.poptorch import _tracing
from snnipu.poptorch._blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    MultiConv,
    NameScope,
    module_repr,
    removeBlocks,
)
from snnipu.poptorch._errors import (
    Error,
    InvalidArgument,
    InvalidType,
    check_bool,
    check_enum,
    check_fraction,
    check_int,
    check_tensor,
    not_available,
)
from snnipu.poptorch._structure import map_tensors
from snnipu.poptorch.custom_ops import custom_op
from snnipu.poptorch.enums import MatMulSerializationMode, OverlapMode

__all__ = [
    "CPU",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark ``x`` as a loss, reduced by ``"sum"``, ``"mean"`` or not at all (``"none"``).

    The one marked tensor from which no other mark follows is the loss that a ``trainingModel`` trains on.
    """
    check_tensor(x, "identity_loss: x")
    reductions: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": torch.sum,
        "mean": torch.mean,
        "none": torch.clone,
    }
    if reduction not in reductions:
        raise InvalidArgument(f"identity_loss: expected reduction 'sum', 'mean' or 'none', got {reduction!r}")
    loss = reductions[reduction](x)
    trace = _tracing.current()
    if trace is not None and trace.training:
        trace.mark_loss(loss, explicit=True)
    return loss


def for_loop(count: int, body: Callable[..., Any], inputs: List[torch.Tensor]) -> List[torch.Tensor]:
    """``count`` times ``inputs = body(*inputs)``; returns the last outputs. In inference only, as on an IPU.

    ``body`` gets copies and must return as many tensors as it takes, of the same shapes and types.
    """
    check_int(count, "for_loop: count")
    if not isinstance(inputs, list):
        raise InvalidType(f"for_loop: inputs must be a list of tensors, got an object of type {type(inputs).__name__}")
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise InvalidType(f"for_loop: inputs[{number}] must be a torch.Tensor, got {type(tensor).__name__}")
    _only_in_inference("for_loop")
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        outputs = body(*state)
        new = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        _check_same_signature("for_loop: body", state, new)
        state = new
    return state


def _check_same_signature(what: str, expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
    if len(got) != len(expected):
        raise Error(f"{what} must return as many tensors as it takes: takes {len(expected)}, returned {len(got)}")
    for number, (old, new) in enumerate(zip(expected, got)):
        check_tensor(new, f"{what}: output {number}")
        if new.shape != old.shape or new.dtype != old.dtype:
            raise Error(
                f"{what}: output {number} must be like input {number}, {tuple(old.shape)} {old.dtype}, "
                f"got {tuple(new.shape)} {new.dtype}"
            )


def _only_in_inference(what: str) -> None:
    trace = _tracing.current()
    if trace is not None and trace.training:
        raise Error(f"poptorch.{what}() is only supported in inference models: an IPU has no gradient for it")


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: List[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: List[torch.Tensor],
) -> List[torch.Tensor]:
    """The outputs of ``then_body`` or ``else_body``, chosen by the value of ``condition``. In inference only."""
    for name, value in (("then_inps", then_inps), ("else_inps", else_inps)):
        if not isinstance(value, list):
            raise InvalidType(f"cond: {name} must be a list of tensors, got {type(value).__name__}")
    _only_in_inference("cond")
    body, arguments = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
    outputs = body(*arguments)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself."""
    return check_tensor(tensor, "nop: tensor").clone()


def recomputationCheckpoint(*tensors: Any) -> Any:
    """The tensors themselves: one as it is, several as a tuple, a list or tuple as one of the same type.

    On an IPU with recomputation it keeps them in memory; a host keeps every activation.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return type(tensors[0])(check_tensor(tensor, "recomputationCheckpoint").clone() for tensor in tensors[0])
    kept = tuple(check_tensor(tensor, "recomputationCheckpoint").clone() for tensor in tensors)
    return kept[0] if len(kept) == 1 else kept


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """The tensor itself; the proportion, between 0 and 1, is checked."""
    check_fraction(available_memory_proportion, "set_available_memory: available_memory_proportion")
    return check_tensor(tensor, "set_available_memory: tensor").clone()


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """The tensors themselves, alone or in tuples, lists and dictionaries."""
    check_enum(mode, "set_overlap_for_input: mode", OverlapMode)
    return map_tensors(input_tensors, torch.clone)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """The tensors themselves, alone or in tuples, lists and dictionaries."""
    check_enum(mode, "set_overlap_for_output: mode", OverlapMode)
    return map_tensors(output_tensors, torch.clone)


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``lhs @ rhs``; ``factor`` must divide the dimension that ``mode`` names."""
    check_enum(mode, "serializedMatMul: mode", MatMulSerializationMode)
    check_int(factor, "serializedMatMul: factor")
    check_bool(keep_precision, "serializedMatMul: keep_precision")
    sizes = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2],
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }
    if mode in sizes and factor and sizes[mode] % factor:
        raise InvalidArgument(f"serializedMatMul: factor {factor} does not divide {mode.name} of {sizes[mode]}")
    return torch.matmul(lhs, rhs)


def _check_size(size: Any, what: str) -> None:
    check_int(size, f"{what}: size", -sys.maxsize)
    if size == 0:
        raise InvalidArgument(f"{what}: The start and end of a slice must be different.")
    if size < 0:
        raise InvalidArgument(f"{what}: Taking a slice of a tensor with the end less than the start is not supported.")


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """``size`` elements of ``tensor`` along ``dim`` from the index in ``start`` on, every ``step``-th of them."""
    check_tensor(tensor, "dynamic_slice: tensor")
    check_tensor(start, "dynamic_slice: start")
    check_int(dim, "dynamic_slice: dim", -tensor.dim())
    _check_size(size, "dynamic_slice")
    check_int(step, "dynamic_slice: step", 1)
    index = _window("dynamic_slice", tensor, dim, start, size)
    return tensor.index_select(dim, index[::step])


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """A copy of ``input`` with ``size`` elements along ``dim``, from ``start`` on, taken from ``src``."""
    check_tensor(input, "dynamic_update: input")
    check_tensor(src, "dynamic_update: src")
    check_tensor(start, "dynamic_update: start")
    check_int(dim, "dynamic_update: dim", -input.dim())
    _check_size(size, "dynamic_update")
    if input.dim() != src.dim():
        raise InvalidArgument(
            f"dynamic_update: input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        raise InvalidType(f"dynamic_update: input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})")
    return input.index_copy(dim, _window("dynamic_update", input, dim, start, size), src)


def _window(what: str, tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    first = int(start.item())
    trace = _tracing.current()
    if trace is not None and trace.dummy and 0 < size <= tensor.shape[dim]:
        first = min(max(first, 0), tensor.shape[dim] - size)
    if not 0 <= first <= tensor.shape[dim] - size:
        raise InvalidArgument(f"{what}: start {first} and size {size} leave dimension {dim} of {tensor.shape[dim]}")
    return torch.arange(first, first + size, device=tensor.device)


_FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """The tensor itself, printed with its title, and its gradient in the backward pass as ``title_gradient``.

    More than ``summarise_threshold`` elements (0: never) are shortened to ``edge_items`` at each edge; lines longer
    than ``max_line_width`` (0: never) are broken; ``digits`` follow the decimal point.
    """
    check_tensor(tensor, "ipu_print_tensor: tensor")
    if float_format not in _FLOAT_FORMATS:
        raise InvalidArgument(f"ipu_print_tensor: expected float_format {_FLOAT_FORMATS}, got {float_format!r}")
    kinds = {"fixed": f"{{:.{digits}f}}", "scientific": f"{{:.{digits}e}}"}

    def show(what: str, values: torch.Tensor) -> None:
        text = numpy.array2string(
            values.detach().cpu().numpy(),
            threshold=summarise_threshold or sys.maxsize,
            edgeitems=edge_items,
            max_line_width=max_line_width or sys.maxsize,
            precision=digits,
            separator=separator,
            formatter={"float_kind": kinds[float_format].format} if float_format in kinds else None,
        )
        builtins.print(f"{what}: {text.replace('[', open_bracket).replace(']', close_bracket)}")

    name = title or "tensor"
    show(name, tensor)
    same = tensor.clone()
    if print_gradient and same.requires_grad:
        same.register_hook(lambda gradient: show(f"{name}_gradient", gradient))
    return same


class CPU:
    """``poptorch.CPU(function, ID)``: call ``function`` on the host in the middle of an inference model."""

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise InvalidType(f"CPU: layer_to_call must be callable, got {layer_to_call!r}")
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._ID = ID

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        _only_in_inference("CPU")
        trace = _tracing.current()
        if trace is None:
            return self._layer_to_call(*input, **kwargs)
        before, trace.on_host = trace.on_host, True
        try:
            return self._layer_to_call(*input, **kwargs)
        finally:
            trace.on_host = before


def ctc_beam_search_decoder(*args: Any, **kwargs: Any) -> Any:
    """Not available: return the log probabilities from ``forward`` and decode them on the host."""
    raise not_available(
        "ctc_beam_search_decoder",
        "return the log probabilities from forward and decode them outside of the model, for instance with "
        "torchaudio.models.decoder.",
    )


def fps(*args: Any, **kwargs: Any) -> Any:
    """Not available."""
    raise not_available("fps (farthest point sampling)")


def nearest(*args: Any, **kwargs: Any) -> Any:
    """Not available."""
    raise not_available("nearest (nearest neighbours)")


def print_module(m: Any) -> None:
    """``poptorch.print``: print a module with the blocks that it begins, or anything else as it is."""
    builtins.print(module_repr(m) if isinstance(m, torch.nn.Module) else m)
