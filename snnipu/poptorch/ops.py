"""PopTorch's operators on the host (PopTorch user guide, "API reference", "Custom operations").

``Block``, the other annotations of ``_blocks`` and ``custom_op`` are importable from here, as from ``poptorch.ops``.
"""

import builtins
import sys
from typing import Any, Callable, Dict, List

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
    check_type,
    not_available,
)
from snnipu.poptorch._structure import check_like, map_tensors
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
    """Mark a tensor as a loss and return it reduced.

    A ``trainingModel`` trains on the one marked loss on which no other marked loss depends.

    Args:
        x: the loss, of any shape.
        reduction: ``"sum"``, ``"mean"`` or ``"none"``.
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
    """Repeat ``inputs = body(*inputs)`` and return the last outputs. For inference only, as on an IPU.

    Args:
        count: the number of repetitions; 0 returns copies of the inputs.
        body: a function of tensors. Its outputs match its inputs in number, shapes and types, else it raises
            ``poptorch.Error``.
        inputs: the tensors of the first call, which gets copies of them.
    """
    check_int(count, "for_loop: count")
    check_type(inputs, "for_loop: inputs", list, "a list of tensors")
    state = [check_tensor(tensor, f"for_loop: inputs[{number}]").clone() for number, tensor in enumerate(inputs)]
    _only_in_inference("for_loop")
    for _ in range(count):
        outputs = body(*state)
        new = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        check_like("for_loop: body", "inputs", state, new)
        state = new
    return state


def _only_in_inference(function: str) -> None:
    trace = _tracing.current()
    if trace is not None and trace.training:
        raise Error(f"poptorch.{function}() is only supported in inference models: an IPU has no gradient for it")


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: List[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: List[torch.Tensor],
) -> List[torch.Tensor]:
    """Return the outputs of ``then_body`` or ``else_body``. For inference only, as on an IPU.

    Args:
        condition: a tensor of one element: nonzero for ``then_body``.
        then_body, else_body: functions of tensors; one of them runs.
        then_inps, else_inps: the lists of their inputs.
    """
    for name, value in (("then_inps", then_inps), ("else_inps", else_inps)):
        check_type(value, f"cond: {name}", list, "a list of tensors")
    _only_in_inference("cond")
    body, arguments = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
    outputs = body(*arguments)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``tensor``."""
    return check_tensor(tensor, "nop: tensor").clone()


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return copies of the tensors. An IPU with recomputation stores them; the host stores every activation.

    Args:
        tensors: one tensor, several tensors (returned as a tuple), or one list or tuple (returned as such).
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return type(tensors[0])(check_tensor(tensor, "recomputationCheckpoint").clone() for tensor in tensors[0])
    copies = tuple(check_tensor(tensor, "recomputationCheckpoint").clone() for tensor in tensors)
    return copies[0] if len(copies) == 1 else copies


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Return a copy of ``tensor``; the proportion has no effect on the host.

    Args:
        tensor: the output of an operator.
        available_memory_proportion: the share of tile memory that the operator may use, between 0 and 1.
    """
    check_fraction(available_memory_proportion, "set_available_memory: available_memory_proportion")
    return check_tensor(tensor, "set_available_memory: tensor").clone()


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return copies of the tensors; the mode has no effect on the host.

    Args:
        input_tensors: a tensor, or tuples, lists and dictionaries of tensors.
        mode: an :class:`OverlapMode`.
    """
    check_enum(mode, "set_overlap_for_input: mode", OverlapMode)
    return map_tensors(input_tensors, torch.clone)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return copies of the tensors; the mode has no effect on the host.

    Args:
        output_tensors: a tensor, or tuples, lists and dictionaries of tensors.
        mode: an :class:`OverlapMode`.
    """
    check_enum(mode, "set_overlap_for_output: mode", OverlapMode)
    return map_tensors(output_tensors, torch.clone)


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """Return ``lhs @ rhs``. An IPU computes the product in ``factor`` parts, the host in one.

    Args:
        lhs: [..., M, K].
        rhs: [..., K, N].
        mode: the dimension that an IPU splits, a :class:`MatMulSerializationMode`.
        factor: the number of parts, which must divide that dimension; 0: not split.
        keep_precision: no effect on the host.
    """
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


def _check_size(size: Any, function: str) -> None:
    check_int(size, f"{function}: size", -sys.maxsize)
    if size == 0:
        raise InvalidArgument(f"{function}: The start and end of a slice must be different.")
    if size < 0:
        raise InvalidArgument(
            f"{function}: Taking a slice of a tensor with the end less than the start is not supported."
        )


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Return ``tensor[start : start + size : step]`` along one dimension.

    Args:
        tensor: the tensor to slice.
        dim: the dimension; negative numbers count from the last one.
        start: an integer tensor of one element. A slice that leaves the dimension raises ``poptorch.Error``.
        size: the length of the slice before ``step``, above 0.
        step: take every ``step``-th element, from 1.
    """
    check_tensor(tensor, "dynamic_slice: tensor")
    check_tensor(start, "dynamic_slice: start")
    check_int(dim, "dynamic_slice: dim", -tensor.dim())
    _check_size(size, "dynamic_slice")
    check_int(step, "dynamic_slice: step", 1)
    index = _slice_index("dynamic_slice", tensor, dim, start, size)
    return tensor.index_select(dim, index[::step])


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """Return a copy of ``input`` with ``input[start : start + size]`` along one dimension replaced by ``src``.

    Args:
        input: the tensor to copy.
        src: the new elements, of the dtype and number of dimensions of ``input`` and of ``size`` along ``dim``.
        dim: the dimension; negative numbers count from the last one.
        start: an integer tensor of one element. A slice that leaves the dimension raises ``poptorch.Error``.
        size: the length of the slice, above 0.
    """
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
    return input.index_copy(dim, _slice_index("dynamic_update", input, dim, start, size), src)


def _slice_index(function: str, tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    first = int(start.item())
    trace = _tracing.current()
    if trace is not None and trace.dummy and 0 < size <= tensor.shape[dim]:
        first = min(max(first, 0), tensor.shape[dim] - size)
    if not 0 <= first <= tensor.shape[dim] - size:
        raise InvalidArgument(f"{function}: start {first} and size {size} leave dimension {dim} of {tensor.shape[dim]}")
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
    """Print a tensor, and in the backward pass its gradient; return a copy of the tensor.

    Args:
        tensor: the tensor to print.
        title: printed before the values; ``"tensor"`` if empty. The gradient is printed as ``title_gradient``.
        print_gradient: print the gradient as well.
        summarise_threshold: shorten tensors of more elements; 0: never.
        edge_items: elements at each edge of a shortened tensor.
        max_line_width: characters in a line; 0: unlimited.
        digits: digits after the decimal point.
        float_format: ``"auto"``, ``"fixed"``, ``"scientific"`` or ``"none"``.
        separator, open_bracket, close_bracket: the text between and around elements.
    """
    check_tensor(tensor, "ipu_print_tensor: tensor")
    if float_format not in _FLOAT_FORMATS:
        raise InvalidArgument(f"ipu_print_tensor: expected float_format {_FLOAT_FORMATS}, got {float_format!r}")
    kinds = {"fixed": f"{{:.{digits}f}}", "scientific": f"{{:.{digits}e}}"}

    def show(label: str, values: torch.Tensor) -> None:
        text = numpy.array2string(
            values.detach().cpu().numpy(),
            threshold=summarise_threshold or sys.maxsize,
            edgeitems=edge_items,
            max_line_width=max_line_width or sys.maxsize,
            precision=digits,
            separator=separator,
            formatter={"float_kind": kinds[float_format].format} if float_format in kinds else None,
        )
        builtins.print(f"{label}: {text.replace('[', open_bracket).replace(']', close_bracket)}")

    name = title or "tensor"
    show(name, tensor)
    same = tensor.clone()
    if print_gradient and same.requires_grad:
        same.register_hook(lambda gradient: show(f"{name}_gradient", gradient))
    return same


class CPU:
    """A call of a host function in the middle of an inference model: ``poptorch.CPU(function, ID)(*inputs)``.

    Args:
        layer_to_call: a function or module of tensors; a module's parameters stop requiring gradients.
        ID: the name of the call.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        check_type(layer_to_call, "CPU: layer_to_call", Callable, "a function or module")
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
    """Raise ``poptorch.Error``: return the log probabilities from ``forward`` and decode them on the host instead."""
    raise not_available(
        "ctc_beam_search_decoder",
        "return the log probabilities from forward and decode them outside of the model, for instance with "
        "torchaudio.models.decoder.",
    )


def fps(*args: Any, **kwargs: Any) -> Any:
    """Raise ``poptorch.Error``: farthest point sampling is not available on the host."""
    raise not_available("fps (farthest point sampling)")


def nearest(*args: Any, **kwargs: Any) -> Any:
    """Raise ``poptorch.Error``: the search for nearest neighbours is not available on the host."""
    raise not_available("nearest (nearest neighbours)")


def print_module(m: Any) -> None:
    """Print ``m``; a module is printed with the blocks that it begins. Exported as ``poptorch.print``."""
    builtins.print(module_repr(m) if isinstance(m, torch.nn.Module) else m)
