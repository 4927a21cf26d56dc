"""The context in which a wrapper runs a model's ``forward``.

On an IPU ``forward`` runs once, to be traced; the host runs it for every micro-batch. In this context:

* ``isRunningOnIpu()`` is true.
* ``identity_loss`` and PyTorch's loss functions mark their results, from which the loss is found.
* Operands of mixed types that PyTorch refuses are converted as an IPU compiler does: half with float becomes float, and
  int32 indices become int64.
* Half matrix products and convolutions compute in float and round their result. The result of a layer (linear,
  convolution) has the type of the activations.
* ``device="ipu"`` means the host.
* The first run, which is the only run on an IPU, raises for code that a compiled graph cannot hold: Python reading the
  value of a tensor, shapes that depend on values, and operations outside of blocks.

``set_execution_hook`` lets another executor (the IPU model) run custom operators.
"""

import contextlib
import functools
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from snnipu.poptorch._errors import Error
from snnipu.poptorch._structure import flatten, map_tensors

# The functions whose result PopTorch takes as a loss; all others need identity_loss.
_LOSS_NAMES = """
binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss hinge_embedding_loss
kl_div l1_loss margin_ranking_loss mse_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
triplet_margin_loss
"""
_PRODUCT_NAMES = """
addmm addmv addbmm baddbmm bmm chain_matmul dot einsum inner matmul mm mv tensordot __matmul__ __rmatmul__
"""
# Functions of activations and weights: the weights are converted to the activations' type.
_LAYER_NAMES = """
bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution linear
"""


def _functions(names: str) -> Set[Any]:
    places = (F, torch, torch.Tensor, torch._C._nn)
    return {getattr(place, name) for name in names.split() for place in places if hasattr(place, name)}


# Functions that return a tensor's value to Python.
_VALUE_NAMES = """
__bool__ __contains__ __float__ __index__ __int__ allclose equal is_nonzero item numpy tolist
"""
# Functions whose result has a shape that depends on values.
_SHAPE_NAMES = "_unique2 argwhere masked_select nonzero nonzero_numpy unique unique_consecutive unique_dim"

_LOSSES = _functions(_LOSS_NAMES)
_LAYERS = _functions(_LAYER_NAMES)
_PRODUCTS = _functions(_PRODUCT_NAMES) | _LAYERS
_VALUES = _functions(_VALUE_NAMES)
_SHAPES = _functions(_SHAPE_NAMES)
_FLOATS = (torch.float16, torch.float32, torch.float64)

_state = threading.local()


class Loss(NamedTuple):
    """A tensor marked as a loss, with its ``grad_fn`` when it was marked."""

    tensor: torch.Tensor
    function: Any
    explicit: bool  # marked by identity_loss, not by a loss function of PyTorch


class ForwardTrace:
    """A run of ``forward``: its mode (training or not) and the losses marked so far."""

    def __init__(self, training: bool) -> None:
        self.training = training
        self.losses: List[Loss] = []
        self.dummy = False  # True in compile(), where the values of the inputs have no meaning
        self.on_host = False  # True inside poptorch.CPU, which runs on the host of an IPU

    def mark_loss(self, tensor: torch.Tensor, explicit: bool) -> None:
        self.losses.append(Loss(tensor, tensor.grad_fn, explicit))


def current() -> Optional[ForwardTrace]:
    """Return the present run of ``forward`` in this thread, or None."""
    return getattr(_state, "trace", None)


def isRunningOnIpu() -> bool:
    """Return True while a PopTorch wrapper runs a model's ``forward``.

    On an IPU it is true while the model is traced. The host runs ``forward`` for every micro-batch, and it is true each
    time, so a model takes the same branch as on an IPU.
    """
    return current() is not None


@contextlib.contextmanager
def tracing(training: bool) -> Iterator[ForwardTrace]:
    """Enter the context in which a wrapper runs ``forward``."""
    before = current()
    trace = ForwardTrace(training)
    _state.trace = trace
    try:
        yield trace
    finally:
        _state.trace = before


ExecutionHook = Callable[[str, str, int, List[torch.Tensor], Dict[str, Any]], Optional[List[torch.Tensor]]]
_execution_hook: Optional[ExecutionHook] = None


def set_execution_hook(hook: Optional[ExecutionHook]) -> Optional[ExecutionHook]:
    """Set the function that runs custom operators inside wrappers; return the previous one.

    ``hook(name, domain, version, inputs, attributes)`` returns the outputs. If it returns None, or ``hook`` is None,
    the registry of Python implementations runs the operator.
    """
    global _execution_hook
    before, _execution_hook = _execution_hook, hook
    return before


def execution_hook() -> Optional[ExecutionHook]:
    return _execution_hook


_PytorchsDynamicShape: Any = getattr(torch._subclasses.fake_tensor, "DynamicOutputShapeException", RuntimeError)


class DynamicShape(Error, _PytorchsDynamicShape):
    """``forward`` makes a tensor whose shape depends on values."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class GraphChecks:
    """Checks of one run of ``forward``, which follow the tensors that an IPU computes.

    These are the inputs, weights and buffers, and all tensors computed from them. Other tensors are constants, whose
    values Python may read.
    """

    def __init__(self, inputs: List[torch.Tensor], in_block: Callable[[], bool]) -> None:
        self._on_ipu = WeakIdKeyDictionary()
        self._in_block = in_block
        self._add(inputs)

    def _add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._on_ipu[tensor] = True

    def _is_on_ipu(self, tensor: torch.Tensor) -> bool:
        return tensor in self._on_ipu

    def before(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Raise ``poptorch.Error`` for a call that a compiled graph cannot hold."""
        reads_values = func in _VALUES or func in _SHAPES or func is _GETITEM or func is torch.where
        if not reads_values or not any(map(self._is_on_ipu, flatten([args, kwargs]))):
            return
        name, package = func.__name__, _calling_package()
        if package in ("snntorch", "snnipu"):
            return
        if func in _VALUES and package != "torch":
            raise Error(
                f"forward: {name}() asks for a tensor's value, as do if, while, int() and float() on a tensor. An IPU "
                "runs a compiled graph, and compiling knows no values. Use torch.where or poptorch.cond in place of a "
                "branch, poptorch.for_loop in place of a loop, or return the tensor and read it outside."
            )
        mask = func is _GETITEM and any(map(self._is_mask, flatten([args[1]])))
        if func in _SHAPES or mask or (func is torch.where and len(args) + len(kwargs) == 1):
            operation = "indexing with a boolean mask" if mask else f"{name.strip('_2')}()"
            raise DynamicShape(
                f"forward: {operation} gives a tensor whose shape depends on values. An IPU runs a compiled graph with "
                "fixed shapes. Use torch.where(mask, x, 0), or x * mask, which keep the shape."
            )

    def _is_mask(self, index: torch.Tensor) -> bool:
        return index.dtype in (torch.bool, torch.uint8) and index.dim() > 0 and self._is_on_ipu(index)

    def after(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any) -> None:
        """Follow the results of a call; raise ``poptorch.Error`` if it is outside of the model's blocks."""
        if not any(map(self._is_on_ipu, flatten([args, kwargs]))):
            return
        outputs = flatten(result)
        name = getattr(func, "__name__", "")
        if name == "__setitem__":
            outputs = [args[0]]
        elif outputs and name != "__get__" and not self._in_block():
            raise Error(
                f"No active Block, all the ops must belong to a Block: forward calls {name}() after a poptorch.Block "
                "has ended and before the next one begins."
            )
        self._add(outputs)


def _calling_package() -> str:
    """Return the package whose code makes the present call; code of PyTorch, snnTorch and snnipu may read values."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    name: str = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name.partition(".")[0]


_GETITEM, _SETITEM = torch.Tensor.__getitem__, torch.Tensor.__setitem__
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _modes_see_indexing() -> bool:
    """Return True if PyTorch calls a mode when a tensor is indexed. PyTorch 2.0, which PopTorch 3.4 uses, does not."""

    class CountCalls(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with CountCalls() as mode:
        torch.zeros(1)[0]
    return mode.calls > 1


def _through_mode(function: Any) -> Any:
    """Return ``function``, called through the active mode."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        if torch.overrides._get_current_function_mode() is None or type(args[0]) not in _PLAIN:
            return function(*args)
        with torch.overrides._pop_mode_temporarily() as mode:
            return mode.__torch_function__(function, (), args)

    return called


@functools.lru_cache(maxsize=None)
def _make_modes_see_indexing() -> None:
    """Make PyTorch call modes when a tensor is indexed, if this version does not."""
    if not _modes_see_indexing():
        for name, function in (("__getitem__", _GETITEM), ("__setitem__", _SETITEM)):
            setattr(torch.Tensor, name, _through_mode(function))


class HostMode(TorchFunctionMode):
    """A mode that handles every PyTorch call inside ``forward``; ``acted``: it changed a type or device of any call."""

    def __init__(self, trace: ForwardTrace, checks: Optional[GraphChecks] = None) -> None:
        super().__init__()
        _make_modes_see_indexing()
        self._trace = trace
        self._checks = checks
        self.acted = False

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._checks is None or self._trace.on_host:
            return self._call(func, args, kwargs)
        self._checks.before(func, args, kwargs)
        result = self._call(func, args, kwargs)
        self._checks.after(func, args, kwargs, result)
        return result

    def _call(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if func in _LOSSES:
            # Losses of mixed operands may fail only in their backward pass.
            mixed = len({tensor.dtype for tensor in flatten([args, kwargs]) if tensor.dtype in _FLOATS}) > 1
            self.acted = self.acted or mixed
            retyped = _retyped(func, args, kwargs) if mixed else None
            result = self._run(func, args, kwargs) if retyped is None else retyped()
            if self._trace.training and isinstance(result, torch.Tensor):
                self._trace.mark_loss(result, explicit=False)
            return result
        if func in _PRODUCTS:
            tensors = flatten([args, kwargs])
            if any(tensor.dtype == torch.float16 for tensor in tensors):
                self.acted = True
                return _multiply_in_float(func, args, kwargs, tensors[:1] if func in _LAYERS else tensors)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError):
            on_cpu = _to_cpu(args, kwargs)
            if on_cpu is not None:
                self.acted = True
                return self._run(func, *on_cpu)
            retyped = _retyped(func, args, kwargs)
            if retyped is None:
                raise
            try:
                result = retyped()
            except (RuntimeError, NotImplementedError, IndexError):
                retyped = None
            if retyped is None:
                raise
            self.acted = True
            return result


def _multiply_in_float(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], tensors: List[torch.Tensor]) -> Any:
    """Compute a product in float; return it in half if all ``tensors`` are half."""
    all_half = all(tensor.dtype == torch.float16 for tensor in tensors if tensor.is_floating_point())
    result = func(*_cast(args, torch.float16, torch.float32), **_cast(kwargs, torch.float16, torch.float32))
    return result.half() if all_half else result


def _cast(structure: Any, old: torch.dtype, new: torch.dtype) -> Any:
    return map_tensors(structure, lambda tensor: tensor.to(new) if tensor.dtype == old else tensor)


def _retyped(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Callable[[], Any]]:
    """Return a call with its operands converted to one type, to retry a failed call; None if they have one type."""
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return None  # an in-place operation would change the converted copy
    tensors = flatten([args, kwargs])
    floats = {tensor.dtype for tensor in tensors if tensor.dtype in _FLOATS}
    casts = []
    if len(floats) > 1 or torch.float16 in floats:
        widest = torch.float64 if torch.float64 in floats else torch.float32
        casts += [(dtype, widest) for dtype in floats if dtype != widest]
    if any(tensor.dtype == torch.int32 for tensor in tensors):
        casts.append((torch.int32, torch.int64))
    if not casts:
        return None

    def retry() -> Any:
        new_args, new_kwargs = args, kwargs
        for old, new in casts:
            new_args, new_kwargs = _cast(new_args, old, new), _cast(new_kwargs, old, new)
        result = func(*new_args, **new_kwargs)
        return _cast(result, torch.float32, torch.float16) if floats == {torch.float16} else result

    return retry


def _to_cpu(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
    """Return the arguments with the device "ipu" replaced by the CPU; None if they name no IPU."""
    if not any(_is_ipu(value) for value in (*args, *kwargs.values())):
        return None
    new_args = tuple("cpu" if _is_ipu(value) else value for value in args)
    return new_args, {name: "cpu" if _is_ipu(value) else value for name, value in kwargs.items()}


def _is_ipu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "ipu"
    return isinstance(value, str) and (value == "ipu" or value.startswith("ipu:"))


def find_loss(losses: List[Loss]) -> int:
    """Return the position of the final loss, on which no other loss depends.

    Raises ``poptorch.Error`` if there is none, or more than one (PopTorch user guide, "Multiple/custom losses").
    """
    if not losses:
        raise Error(
            "forward computes no loss: a trainingModel needs one, from a torch.nn loss function or marked with "
            "poptorch.identity_loss(loss, reduction)."
        )
    if len(losses) == 1:
        return 0
    positions = {loss.function: number for number, loss in enumerate(losses) if loss.function is not None}
    consumed: Set[int] = set()
    for loss in losses:
        consumed |= _ancestors(loss.function, positions)
    final = [number for number in range(len(losses)) if number not in consumed]
    if len(final) != 1:
        raise Error(
            f"forward computes {len(losses)} losses of which {len(final)} are independent of each other: a "
            "trainingModel needs one final loss. Combine them and mark the result with poptorch.identity_loss."
        )
    return final[0]


def _ancestors(function: Any, positions: Dict[Any, int]) -> Set[int]:
    ancestors: Set[int] = set()
    seen = {function}
    stack = [parent for parent, _ in function.next_functions] if function is not None else []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in positions:
            ancestors.add(positions[node])
        stack.extend(parent for parent, _ in node.next_functions)
    return ancestors
