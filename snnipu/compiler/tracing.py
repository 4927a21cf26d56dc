"""TorchDynamo's traces: what surrounds them, and what those that fail leave behind."""

import contextlib
import ctypes
import functools
import operator
import sys
import threading
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import snntorch
import torch

from snnipu.compiler.patches import Patches
from snnipu.ops._arguments import is_interpreted

_CALL = torch.nn.Module.__call__
_RESET = "reset_mechanism_val"
# Graphs of one function, for sizes and lengths, before they are made anew. PyTorch's limit is 8, and ends them all.
_GRAPHS = 64


def one_graph(code: Any, backend: Callable[..., Any], around: Callable[[], ContextManager[None]]) -> Any:
    """``torch.compile(backend=backend, fullgraph=True)`` for functions of this code, with ``around()`` at each trace.

    A call for which there is a graph already enters nothing. A call that TorchDynamo does not look at runs as it is.
    """
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    # What torch.compile calls; sizes are numbers until another one comes, for arithmetic with unknown ones costs time
    # at each call.
    context: Any = torch._dynamo.optimize(backend, nopython=True)  # type: ignore[attr-defined]
    trace = context.callback

    @functools.wraps(trace)
    def traced(frame: Any, *args: Any, **kwargs: Any) -> Any:
        if frame.f_code is not code:
            # The function runs as it is; what it calls does, too.
            return ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=False)
        with around(), _settings():
            return trace(frame, *args, **kwargs)

    context.callback = traced
    # Else such a call ends in an error when it has run, after which the loop would run again.
    context.fullgraph = False
    return context


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    from torch._dynamo import config

    # NumPy's own random numbers, not others in their place: a loop that draws them is not compiled. And .item() is an
    # operation like any other, whose number the program may count or keep, not decide by. A number that a module
    # counts (self.count += 1) is an input of the graph once it has changed.
    settings: Dict[str, Any] = {"use_numpy_random_stream": True, "capture_scalar_outputs": True}
    settings["recompile_limit"] = _GRAPHS
    if hasattr(config, "allow_unspec_int_on_nn_module"):
        settings["allow_unspec_int_on_nn_module"] = True
    with config.patch(settings):
        yield


def correct(patches: Patches) -> None:
    """Correct what TorchDynamo computes otherwise than Python, without an error.

    ``in`` takes the numbers in lists and tuples that are symbols for different from every constant: ``t in skip`` is
    False (PyTorch's issue 153366). A range of symbols ends in an error. A ``random.Random`` draws in each call what it
    drew in the trace, in float64: its methods end the graph.
    """
    from torch._dynamo import utils
    from torch._dynamo.variables import ConstantVariable, lists, misc, tensor

    plain: Any = utils.iter_contains

    def known(value: Any) -> Any:
        value = value.realize()
        if isinstance(value, tensor.SymNodeVariable):
            return ConstantVariable.create(value.evaluate_expr())
        if isinstance(value, (lists.ListVariable, lists.TupleVariable)):
            items = [known(item) for item in value.items]
            return value if all(map(operator.is_, items, value.items)) else value.clone(items=items)
        return value

    @functools.wraps(plain)
    def contains(items: Any, *others: Any, **keywords: Any) -> Any:
        return plain([known(item) for item in items], *others, **keywords)

    def bound_of(place: int) -> Callable[[Any], Any]:
        return lambda numbers: known(numbers.items[place]).as_python_constant()

    for module in (utils, lists):
        patches.replace(module, "iter_contains", contains)
    for place, name in enumerate(("start", "stop", "step")):
        if hasattr(lists.RangeVariable, name):
            patches.replace(lists.RangeVariable, name, bound_of(place))
    patches.replace(misc.RandomVariable, "_supported_fn_names", set())


class Changed(Exception):
    """A neuron's reset is another one than what was traced for."""


def not_now() -> str:
    """Why a call is to run as it is, whatever its function; empty where nothing is in the way."""
    # torch.utils.checkpoint counts these tensors, in the forward pass and when it runs anew, between which a loop must
    # not become another one.
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # type: ignore[attr-defined]
        return "what its backward pass needs is saved in another way there, as torch.utils.checkpoint does"
    # TorchDynamo does not look at such a call, nor ever again at its function.
    if sys.gettrace() is not None:
        return "a debugger, or what measures coverage, sees each of its lines there"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode sees each of its operations there"
    if _sees_functions():
        return "a TorchFunctionMode sees each of its operations there"
    if is_interpreted():
        return "a tracer, or a transform of torch.func, sees each of its operations there"
    if torch.nn.modules.module._has_any_global_hook() or torch.nn.Module.__call__ is not _CALL:
        return "a hook looks at the calls of all modules"
    if torch._dynamo.config.disable or _stance() == "force_eager":  # type: ignore[attr-defined]
        return "PyTorch is told to compile nothing there"
    return ""


def _sees_functions() -> bool:
    """Return True if a mode of the program's sees PyTorch's functions: a default device is PyTorch's own."""
    count = torch._C._len_torch_function_stack()
    modes = map(torch._C._get_function_stack_at, range(count))
    return any(not type(mode).__module__.startswith("torch.utils._device") for mode in modes)


def _stance() -> str:
    """What ``torch.compiler.set_stance`` was told."""
    from torch._dynamo import eval_frame

    return str(getattr(getattr(eval_frame, "_stance", None), "stance", ""))


def loses_a_result(module: torch.fx.GraphModule) -> bool:
    """Whether the graph gives None where the code around it takes a tensor's number."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    return None in output.args[0]


def reads(names: Sequence[str]) -> bool:
    """Whether the trace that goes on has looked at an object of these names: of variables, ``self.rows``."""
    roots = [name.partition(".") for name in names]
    sources = {f"{scope}['{root}']{dot}{rest}" for root, dot, rest in roots for scope in "LG"}
    guards = torch._guards.TracingContext.get().guards_context.dynamo_guards
    return any(guard.name == one or guard.name.startswith(f"{one}[") for guard in guards for one in sources)


def traced_code() -> List[Any]:
    """The code that the trace that goes on has gone through, as far as this PyTorch tells."""
    get = getattr(torch._guards.TracingContext, "get_traced_code", None)
    return list(get() or ()) if get is not None else []


def code_is(code: torch.Tensor, number: int) -> torch.Tensor:
    """A note in a graph: it gives the loop's results as long as the code of a neuron's reset is this number."""
    return code


class ResetCodes:
    """The codes of neurons' resets, by which people's own neurons decide: ``if self.reset_mechanism_val == 0``.

    snnTorch keeps them as buffers. Inside ``with reading():`` a trace takes their numbers, for which alone its graph is
    right.
    """

    _thread = threading.local()  # whether they are read in a thread

    def __init__(self, module: torch.fx.GraphModule) -> None:
        """Those that a graph was traced for. The notes of them are taken out of it."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._numbers: Dict[int, int] = {}
        self._last: Dict[int, Tuple[torch.Tensor, int]] = {}  # what had the right number
        for node in [one for one in module.graph.nodes if one.target is code_is]:
            self._numbers[inputs.index(node.args[0])] = node.args[1]
            module.graph.erase_node(node)

    def check(self, inputs: Sequence[Any]) -> None:
        """
        Raises:
            Changed: an input of the graph has another number.
        """
        for place, number in self._numbers.items():
            code, last = inputs[place], self._last.get(place)
            if last is None or last[0] is not code or last[1] != code._version:
                if int(code) != number:
                    raise Changed
                self._last[place] = code, code._version

    @classmethod
    @contextlib.contextmanager
    def reading(cls) -> Iterator[None]:
        """A trace reads numbers."""
        before, cls._thread.reads = getattr(cls._thread, "reads", False), True
        try:
            yield
        finally:
            cls._thread.reads = before

    @classmethod
    def enable(cls, patches: Patches) -> None:
        """Let snnTorch's neurons have them."""

        def reads(self: Any) -> bool:
            return bool(getattr(cls._thread, "reads", False))

        def number(self: Any) -> int:
            return int(self._buffers[_RESET])

        def value(self: Any) -> Any:
            if torch.compiler.is_compiling() and self._reads_reset_code():
                code_is(self._buffers[_RESET], self._reset_code())
                return self._reset_code()
            if _RESET not in self._buffers:
                raise AttributeError(_RESET)
            return self._buffers[_RESET]

        # TorchDynamo calls them, by these names, and takes what they return for constants.
        for name, function in (("_reads_reset_code", reads), ("_reset_code", number)):
            function.__name__ = name
            patches.replace(snntorch.SpikingNeuron, name, torch.compiler.assume_constant_result(function))
        patches.replace(snntorch.SpikingNeuron, _RESET, property(value))


def _of_python(name: str, result: Any, *arguments: Any) -> Optional[Callable[..., Any]]:
    try:
        function: Any = ctypes.pythonapi[name]
    except AttributeError:
        return None
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


_interpreter = _of_python("PyInterpreterState_Get", ctypes.c_void_p)
_evaluator = _of_python("_PyInterpreterState_GetEvalFrameFunc", ctypes.c_void_p, ctypes.c_void_p)
_set_evaluator = _of_python("_PyInterpreterState_SetEvalFrameFunc", None, ctypes.c_void_p, ctypes.c_void_p)


class Restored:
    """``with Restored():`` Python's frames run afterwards as before, once no thread is inside any longer.

    A trace that ends with an error leaves TorchDynamo's evaluation of frames in place of Python's own, which makes
    each call of a Python function half as slow again, in all of the process and for good. Without an error, nothing is
    put back: a thread that another compiler serves may be at work.
    """

    failed = False  # whether a trace has ended with an error
    _lock = threading.RLock()
    _inside = 0
    _before: Optional[int] = None

    def __enter__(self) -> None:
        with self._lock:
            if not Restored._inside and _set_evaluator and _evaluator and _interpreter:
                Restored._before = _evaluator(_interpreter())
            Restored._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            Restored._inside -= 1
            left = self.failed and not self._inside and self._before is not None
            if left and _evaluator(_interpreter()) != self._before:  # type: ignore[misc]
                _set_evaluator(_interpreter(), self._before)  # type: ignore[misc]
