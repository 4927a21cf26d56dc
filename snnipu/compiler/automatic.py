"""The compiler finds the loop: ``snnipu.auto()``.

A neuron that is called again and again while one frame runs is called by a loop over time. The function of that frame,
or the loop alone (:mod:`snnipu.compiler.outline`), is compiled the next time it is called. All other functions keep
the code that Python made of them, but those with a loop inside another one, which may run once: these get branches in
advance, as do the loops at the top level of a script or a cell. A branch is taken where compiled code has run.
"""

import ast
import builtins
import contextlib
import copy
import functools
import gc
import inspect
import itertools
import logging
import operator
import os
import re
import sys
import sysconfig
import textwrap
import tokenize
import types
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import snntorch
import torch

from snnipu.compiler import backend, discovery, nodes, outline, reasons, shown, tracing
from snnipu.compiler.discovery import UNBOUND
from snnipu.compiler.lists import Lists, Read
from snnipu.compiler.patches import Patches
from snnipu.compiler.reasons import PACKAGES, Reason
from snnipu.compiler.report import GraphReport
from snnipu.compiler.sources import Source
from snnipu.neurons._states import PlainStates
from snnipu.ops._arguments import is_autocast
from snnipu.surrogate import Surrogate

_LOG = logging.getLogger("snnipu.compiler")
# So often one frame calls a neuron where it has a loop over time.
CALLS = 3
# So many compilations that no second call used, of calls that are alike, and of calls with other networks or sizes, as
# of a block that a network calls for each layer: the next call would compile anew as well.
USELESS, USELESS_APART = 3, 8
# So many calls that could not be compiled, of a loop that others run compiled; not counted after so many that were.
FAILURES, FORGOTTEN = 3, 50
# What a neuron's step takes, in calls of operators; and the share of a loop's calls from which on too many are left.
STEP, LEFT = 3, 0.75
# After so many calls of neurons that no loop makes, nobody looks any longer.
QUIET = 2000
# So often the functions of a code are looked for among all objects.
LOOKS = 4
NO_NUMBER = "inside `with torch.device(...)`, or with a default device, PyTorch loses what `.item()` gives"
OTHERS = "its network's neurons are snnTorch's own, not snnipu's"
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
# By these a program sees Python's frames and the lives of objects, of which TorchDynamo has others.
_OF_FRAMES = {
    "vars",
    "dir",
    "__dict__",
    "__traceback__",
    "_getframe",
    "currentframe",
    "f_back",
    "weakref",
    "gc",
    "getrefcount",
}
_LIBRARIES = ("torch.", "snntorch.", "snnipu.")
# Other packages: their loops are theirs.
_INSTALLED = tuple({str(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SITE = re.compile(r"[/\\](site|dist)-packages[/\\]")
_numbers = itertools.count(1)
_SPIKE = Surrogate.__call__
_APPLY = vars(torch.autograd.Function)["apply"]  # a class method of Python's or, from PyTorch 2.14 on, of C's


_looks: List["Automatic"] = []  # who looks at the calls of neurons


class _Apply:
    """``torch.autograd.Function.apply``, shown to who looks; its bound methods are equal to PyTorch's own.

    TorchDynamo asks for that where programs keep ``Spike.apply`` as an attribute, taken before the first look or after.
    """

    def __init__(self) -> None:
        functools.update_wrapper(self, _APPLY.__get__(None, torch.autograd.Function))

    def __get__(self, instance: Any, cls: Any) -> Any:
        return types.MethodType(self, cls)

    def __call__(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            for auto in _looks[:1]:  # which another thread may clear
                if not cls.__module__.startswith(_LIBRARIES):
                    auto.saw_spikes(cls, sys._getframe(1))
        return _APPLY.__get__(None, cls)(*args, **kwargs)

    def __eq__(self, other: Any) -> bool:
        return other is self or other is getattr(_APPLY, "__func__", None)

    def __hash__(self) -> int:
        return hash(getattr(_APPLY, "__func__", None))


_apply = _Apply()


@functools.wraps(_SPIKE)
def _spike(self: Surrogate, u: torch.Tensor) -> torch.Tensor:
    """``Surrogate.__call__``, shown to who looks."""
    if not torch.compiler.is_compiling():
        for auto in _looks[:1]:
            auto.saw_spikes(self, sys._getframe(1))
    return _SPIKE(self, u)


# A frame, and a loop in it, at the entry that is told; None: the frame itself.
_Place = Tuple[Any, Optional["Site"], int]


class AsItIs(Exception):
    """The loop is better not compiled."""


# Whether a network has neurons of snnipu, and whether it has others of snnTorch.
_neurons: "weakref.WeakKeyDictionary[torch.nn.Module, Tuple[bool, bool]]" = weakref.WeakKeyDictionary()


def _has_others_alone(values: Iterable[Any]) -> bool:
    """Whether the networks among ``values`` have snnTorch's own neurons, which nothing fuses, and none of snnipu."""
    ours = others = False
    for network in values:
        if isinstance(network, torch.nn.Module):
            if network not in _neurons:
                neurons = [module for module in network.modules() if isinstance(module, snntorch.SpikingNeuron)]
                # A class of the program's own is a neuron that is written out.
                stock = any(type(module).__module__.startswith("snntorch.") for module in neurons)
                _neurons[network] = any(isinstance(module, PlainStates) for module in neurons), stock
            found = _neurons[network]
            ours, others = ours or found[0], others or found[1]
    return others and not ours


def _count_hooks(values: Iterable[Any]) -> int:
    """The hooks on modules among ``values`` and in them."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules = [part for value in values if isinstance(value, torch.nn.Module) for part in value.modules()]
    return sum(len(getattr(module, name, ())) for module in modules for name in names)


class Site:
    """A loop over time, or a function with one, by the name under which the program's code asks for it.

    The program's own loop runs as long as this is False, and where a call returns nothing.

    Attributes:
        function: the loop as a function; None of a function that is compiled as a whole.
        source: what is compiled: the same, or the loop without what it shows.
        after: what shows that then; None: it shows nothing.
        label: where it stands: file, line, function.
        nested: whether the loop stands in another one of its function.
        entries: how often the program came to it.
        reports: one for each compilation.
        reasons: why it runs as it is, by whether gradients are enabled.
        notes: the program's lines of these reasons, and what to write instead.
    """

    unbound = UNBOUND

    def __init__(
        self,
        auto: "Automatic",
        function: Any,
        label: str,
        nested: bool = False,
        source: Optional[Any] = None,
        after: Optional[Any] = None,
        shown_to: Optional[Any] = None,
        shows: Sequence[str] = (),
    ) -> None:
        self.auto = auto
        self.function = function
        self.source = function if source is None else source
        self.after, self._shown_to, self._shows = after, shown_to, shows
        self.label = label
        self.nested = nested
        self.entries = 0
        self.waits_for: Optional[Site] = None
        self.reports: List[GraphReport] = []
        self.reasons: Dict[bool, str] = {}
        self.notes: List[Reason] = []
        self.wanted = False
        self._graphs: Any = None  # the code that is compiled, what compiles it, and the last function of it
        self._modes: Set[bool] = set()  # that have graphs: with and without gradients
        self._began = False
        self._again = False  # whether an error in a graph leaves all as it was before, but random numbers
        self._random: Optional[torch.Tensor] = None  # the generator's state before it
        self._used, self._calls, self._failures, self._runs = True, 0, 0, 0
        self._useless: Dict[Any, int] = {}  # compilations, by what they were for
        self._passed: Dict[str, bool] = {}  # why single calls ran as they are
        self._lists = Lists()
        self._hooks = 0  # that its modules had when it was left as it is

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    def __reduce__(self) -> Any:
        """A function that is pickled with its global names, by cloudpickle say, runs as it is elsewhere."""
        return bool, ()

    def __bool__(self) -> bool:
        if torch.compiler.is_compiling():
            return False
        self.entries += 1
        return self.wanted and self.auto.searches

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A tuple of what the loop sets, once it has run compiled; None: it has not."""
        return self._run(self.source, args, {}, args)

    @property
    def compiled(self) -> bool:
        """Whether calls run compiled, with or without gradients."""
        return bool(self._modes - self.reasons.keys()) and any(_rolled(report) for report in self.reports)

    @property
    def decision(self) -> str:
        """What is done with it."""
        if self.compiled:
            return f"compiled: {_steps_of(self.reports)}"
        if self.reasons:
            return "as it is, " + "; ".join(dict.fromkeys(self.reasons.values()))
        if self._passed:
            return "as it is, " + "; ".join(self._passed)
        if self.waits_for is not None:
            return f"as {self.waits_for.label}, of which it is a part"
        return "found, and not called since: its next call is compiled"

    def told(self) -> List[str]:
        """Lines of a text: what is done with it, and why its neurons are called step by step."""
        lines = [f"{self.label}  {self.decision}"]
        for note in self.notes:
            lines += note.told("the cause")
        found: Dict[Reason, List[str]] = {}
        for report in self.reports[-1:]:
            for neuron in (*report.neurons, *report.unfused):
                if neuron.reason is not None:
                    found.setdefault(neuron.reason, []).append(neuron.name)
        for reason, names in found.items():
            lines += reason.told(f"step by step, {', '.join(names)}")
        return [lines[0], *(f"    {line}" for line in lines[1:])]

    def _run(self, source: Any, args: Sequence[Any], kwargs: Dict[str, Any], given: Sequence[Any]) -> Any:
        """``given``: all values that the function knows besides global ones."""
        why = OTHERS if _has_others_alone(given) else tracing.not_now()
        if why:
            if why not in self._passed and self.waits_for is None:
                self._passed[why] = True
                _LOG.warning("%s runs as it is: %s", self.label, why)
            return None
        grad = torch.is_grad_enabled()
        if self.waits_for is not None:
            self._calls += 1
            # A function that is compiled as a whole does not come here; one that only runs once does, again and again.
            if not self.waits_for.reasons and self._calls < 2:
                return None
            self.waits_for = None
        if grad in self.reasons and not self._has_lost_hooks(given):
            return None
        if self._shown_to is not None and not self._may_wait(args):
            self.source = source = self.function
            self.after, self._shown_to, self._graphs = None, None, None
        with tracing.Restored():
            compiled = self._compiled(source)
            before = len(self.reports)
            lists = self._lists.watch(self._reached(given)) if not before else {}
            self._began = False
            try:
                with self._lists.aside():
                    result = compiled(*args, **kwargs)
            except Exception as error:
                tracing.Restored.failed = True
                full = _cause(error, torch._dynamo.exc.FailOnRecompileLimitHit)
                if full is not None or _cause(error, tracing.Changed) is not None:
                    self._graphs = None
                    return self._run(source, args, kwargs, given)
                if self._began:
                    if not self._again:
                        raise
                    # The error with the lines of the program, which has done by then what stands before them.
                    if self._random is not None:
                        torch.set_rng_state(self._random)
                    return None
                if _cause(error, Read) is not None:
                    return None
                self._failures = 1 if self._runs >= FORGOTTEN else self._failures + 1
                self._runs = 0
                # Where other calls run compiled, one that cannot, a smaller last batch say, is not the end of it.
                if not self.compiled or self._failures >= FAILURES:
                    self._hooks = _count_hooks(given)
                    better = _cause(error, AsItIs)
                    self._refuse(grad, error) if better is None else self._leave(grad, str(better))
                return None
            self._lists.note(lists)
            self._count(grad, len(self.reports) > before, given)
            return (self._shown(result, args),)

    def _has_lost_hooks(self, given: Sequence[Any]) -> bool:
        """Return True if hooks are no longer there for which it ran as it is: what looks at a network leaves again."""
        if not self._hooks or self._hooks == _count_hooks(given):
            return False
        self._hooks = 0
        self.reasons.clear()
        return True

    def _may_wait(self, args: Sequence[Any]) -> bool:
        """Whether what the loop shows may come behind it."""
        try:
            return shown.may_wait(*self._shown_to(*args))  # type: ignore[misc]
        except Exception:
            return False  # the program's own error comes at its line

    def _shown(self, result: Any, args: Sequence[Any]) -> Any:
        """The results of the function, once what it would have shown is."""
        if self.after is None:
            return result
        self.after(*args, result[-1])
        return result[:-1]

    def _reached(self, given: Sequence[Any]) -> List[Any]:
        """The objects that the function knows: its arguments, and those of its names that are global."""
        names = self.source.__code__.co_names
        outside = [self.source.__globals__[name] for name in names if name in self.source.__globals__]
        return [*given, *outside]

    def _compiled(self, source: Any) -> Any:
        """The function, compiled; one of the same code has the same graphs."""
        graphs = self._graphs
        if graphs is None:
            # Code of its own, so that what PyTorch keeps for it is not that of calls elsewhere.
            code = source.__code__.replace()
            graphs = code, tracing.one_graph(code, self._compile_graph(), self._traced), None, None
        code, context, last, compiled = graphs
        if source is not last:
            compiled = context(_function_like(source, code))
            self._graphs = code, context, source, compiled
        return compiled

    def _compile_graph(self) -> Any:
        def compile_graph(module: Any, example_inputs: Any, **options: Any) -> Any:
            self._lists.traced()
            codes = tracing.ResetCodes(module)
            looks = sorted(_names_in(tracing.traced_code()) & _OF_FRAMES)
            if looks:
                raise AsItIs(f"what Python keeps of its variables and objects is another in a trace: {looks[0]}")
            if tracing.loses_a_result(module):
                raise AsItIs(NO_NUMBER)
            autocast = is_autocast("cpu") or is_autocast("cuda")
            if self._shown_to is not None and tracing.reads(self._shows):
                raise AsItIs("it reads what it keeps arrays in")
            mixed = "" if autocast else nodes.of_several_dtypes(module.graph)
            if mixed:
                raise AsItIs(f"{mixed} is given tensors of several dtypes")
            made = backend.compile_graph(module, example_inputs, observer=self.reports.append, **options)
            reason = not_faster(self.reports[-1])
            if reason:
                raise AsItIs(f"not faster: {reason}")
            draws = any(map(nodes.is_random, module.graph.nodes))
            again = nodes.may_run_again(module.graph) and not (draws and torch.cuda.is_available())

            def run(*inputs: Any) -> Any:
                codes.check(inputs)
                self._began, self._again = True, again
                self._random = torch.get_rng_state() if draws and again else None
                results = made(*inputs)
                self._again = False
                return results

            self.auto.graph = run.__code__
            return run

        return compile_graph

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        with self.auto.paused(), tracing.ResetCodes.reading():
            yield

    def _count(self, grad: bool, compiled: bool, given: Sequence[Any]) -> None:
        self._runs += 1
        if not compiled:
            self._used = True
            if not self.reports:
                self._leave(grad, "it has no operators of PyTorch")
            return
        self._modes.add(grad)
        if len(self.reports) == 1:
            _LOG.info("%s runs compiled: %s", self.label, _steps_of(self.reports))
        if not self._used:
            key = _likeness(given)
            self._useless[key] = self._useless.get(key, 0) + 1
        self._used = False
        useless = sum(self._useless.values())
        if max(self._useless.values(), default=0) >= USELESS or useless >= USELESS_APART:
            for mode in (True, False):
                self._leave(
                    mode,
                    f"it was compiled anew at {useless + 1} calls, for no call was like another: a list or "
                    "a dictionary on an object that changes from call to call, say",
                    reasons.of_compiling_anew(),
                )

    def _refuse(self, grad: bool, error: BaseException) -> None:
        """TorchDynamo makes no graph of it."""
        why = reasons.of_error(error)
        self._leave(grad, f"refused: {why.why}" + "".join(f" ({line.place})" for line in why.lines), why)

    def _leave(self, grad: bool, reason: str, note: Optional[Reason] = None) -> None:
        """From now on it runs as it is."""
        self.reasons[grad] = reason
        if note is not None and note not in self.notes:
            self.notes.append(note)
        # A function and the loop in it end at the same line.
        cause = note if note is not None and note.lines else (self.label, reason)
        if self.waits_for is not None or cause in self.auto.told:
            return
        if self.auto.tries_further(self):
            _LOG.info("%s runs as it is: %s", self.label, reason)
        else:
            self.auto.told.add(cause)
            _LOG.warning("%s runs as it is: %s", self.label, reason)


class Whole(Site):
    """A function that is compiled as a whole."""

    def __init__(self, auto: "Automatic", source: Any, label: str) -> None:
        super().__init__(auto, None, label, source=source)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A tuple of its result, likewise.

        Args:
            args: a function that has the variables that this one has from functions around it, or None; its arguments.
        """
        source, held, (cells, *args) = self.source, [], args  # type: ignore[assignment]
        if cells is not None:
            known = dict(zip(cells.__code__.co_freevars, cells.__closure__))
            closure = tuple(known[name] for name in source.__code__.co_freevars)
            if not all(map(operator.is_, closure, source.__closure__)):
                code = source.__code__
                source = types.FunctionType(code, source.__globals__, source.__name__, None, closure)
                self.source = source
            held = [cell.cell_contents for cell in closure]
        return self._run(source, args, kwargs, (*args, *kwargs.values(), *held))


def _likeness(value: Any) -> Any:
    """What two calls have in common that should need one compilation: their networks, and their tensors' sizes."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, torch.nn.Module):
        return id(value)
    return tuple(map(_likeness, value)) if isinstance(value, (list, tuple)) else type(value)


def _steps_of(reports: Sequence[GraphReport]) -> str:
    """What the newest of the graphs has over time."""
    rolled = [neuron for report in reports if _rolled(report) for neuron in report.neurons if neuron.rolled]
    names = ", ".join(dict.fromkeys(neuron.name or neuron.kind for neuron in rolled))
    return f"{rolled[-1].steps} steps of {names}"


def _rolled(report: GraphReport) -> bool:
    return any(neuron.rolled for neuron in report.neurons)


def not_faster(report: GraphReport) -> str:
    """Why the graph would not run faster than the loop; empty where it does. The same in every run."""
    if report.failed:
        return report.failed
    if not _rolled(report):
        found = (*report.neurons, *report.unfused)
        told = [f"{neuron.name or neuron.kind}: {neuron.why_not}" for neuron in found]
        # Of neurons that are written out, their surrogates.
        spikes = [one for one in report.operators if one.name == "spike_of" and one.reason is not None]
        told += [f"{one.line}: {one.reason.why}" for one in spikes if one.reason is not None]
        why = "; ".join(dict.fromkeys(told))
        return f"no neuron's steps become one operator ({why})" if why else "it calls no neuron"
    steps = sum(neuron.steps for neuron in report.neurons)
    rolled = sum(1 if neuron.rolled else neuron.steps for neuron in report.neurons)
    before = sum(operator.calls for operator in report.operators) + STEP * steps
    after = sum(operator.times for operator in report.operators) + STEP * rolled
    if after > LEFT * before:
        return f"of {before} calls (a neuron's step counted as {STEP}) {after} would be left"
    return ""


def _cause(error: Optional[BaseException], kind: type) -> Optional[BaseException]:
    """The error of this kind that TorchDynamo raises again as another one."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return error


def _is_others(filename: str) -> bool:
    """Whether code is of another package than the program and snnTorch."""
    installed = filename.startswith((*PACKAGES, *_INSTALLED)) or _SITE.search(filename) is not None
    return installed and not filename.startswith(PACKAGES[1])


def _names_in(codes: Iterable[Any]) -> Set[str]:
    """The attributes and global names in the program's own code."""
    found: Set[str] = set()
    for code in codes:
        if not _is_others(code.co_filename):
            inner = [one for one in code.co_consts if hasattr(one, "co_code")]
            found |= {*code.co_names} | _names_in(inner)
    return found


class _Codes:
    """Numbers of code: equal ones have one number. The hash of a code goes through all that is in it, at each call."""

    def __init__(self) -> None:
        self._numbers: Dict[Any, int] = {}
        self._seen: Dict[int, Tuple[Any, int, bool]] = {}  # by id, which the code here keeps from being another's

    def _found(self, code: Any) -> Tuple[Any, int, bool]:
        found = self._seen.get(id(code))
        if found is None:
            has_loops = not _is_others(code.co_filename) and code.co_name not in _COMPREHENSIONS
            found = self._seen[id(code)] = code, self._numbers.setdefault(code, len(self._numbers)), has_loops
        return found

    def number(self, code: Any) -> int:
        return self._found(code)[1]

    def may_have_loops(self, code: Any) -> bool:
        """Whether it is a function, or a module, of the program's."""
        return self._found(code)[2]


class Automatic:
    """What :func:`auto` returns: the loops that were found, and what became of them; ``str`` gives a table.

    Attributes:
        sites: the loops and functions that were found.
    """

    def __init__(self) -> None:
        self.sites: List[Site] = []
        self._codes = _Codes()
        self._sources: Dict[str, Optional[Source]] = {}
        self._hosts: Dict[str, outline.Host] = {}  # by the names that their code asks for
        self._host_of: Dict[int, Optional[outline.Host]] = {}  # by their code
        self._sites: Dict[str, Site] = {}  # by those names
        self._said: Dict[Any, bool] = {}
        self.told: Set[Any] = set()  # causes for which loops run as they are
        self._refused: Dict[int, List[str]] = {}  # what is told of loops that are no graph, by their function's code
        self._counts: Dict[_Place, Dict[Any, Tuple[int, Any]]] = {}
        self._looked: Dict[int, int] = {}  # how often functions were looked for, by their code
        self._modules = 0
        self._runs_on: Any = None  # the frame of a function whose code was exchanged
        self._quiet = 0
        self._paused = 0
        self._watching = False
        self._changed: List[Tuple[Any, Any]] = []
        self._patches = Patches()
        self.graph: Any = None  # the code of what runs a compiled graph: neurons that it calls show no loop
        self.searches = False

    def __str__(self) -> str:
        # A function, and the loop in it that was tried alone, often run as they are for one cause.
        heads: Dict[Any, List[str]] = {}
        for place, told in enumerate((*self._refused.values(), *(site.told() for site in self.sites))):
            heads.setdefault(tuple(told[1:]) or place, []).extend(told[:1])
        lines: List[str] = []
        for notes, own in heads.items():
            lines += [*own, *(notes if isinstance(notes, tuple) else ())]
        return "\n".join(lines) or "no loop over time was found yet"

    # ---- watching neurons

    def watch(self) -> None:
        """Look at the calls of neurons."""
        if not self._watching:
            self._watching = True
            self._quiet = 0
            if not self._paused:
                self._install()

    def start(self) -> None:
        """Begin the search, also once it was stopped; nothing happens while it goes on."""
        backend.enable(self)
        if not self.searches:
            self.searches = True
            self._patches.replace(snntorch.SpikingNeuron, "__init__", self._of_new_neurons())
            self._patches.replace(Surrogate, "__call__", _spike)
            self._patches.replace(torch.autograd.Function, "apply", _apply)
        self.adopt_all()
        self.watch()

    def _of_new_neurons(self) -> Any:
        """A new neuron may be called by a loop that nobody has seen, in a module that was not loaded."""
        plain, automatic = snntorch.SpikingNeuron.__init__, self

        @functools.wraps(plain)
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            if automatic.searches:  # after stop() a function that another package put around this one still calls it
                automatic.adopt_all()
                automatic.watch()

        return initialise

    def stop(self) -> None:
        """Find no further loops, and let those that were found run as they are."""
        self.searches = False
        self._rest()
        for function, code in reversed(self._changed):
            function.__code__ = code
        self._changed.clear()
        self._patches.undo()
        backend.disable(self)

    def _rest(self) -> None:
        self._watching = False
        self._runs_on = None
        self._counts.clear()
        self._uninstall()

    def _install(self) -> None:
        auto = self

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                auto._saw(id(self), sys._getframe(1))
            return torch.nn.Module.__call__(self, *args, **kwargs)  # which torch.fx exchanges while it traces

        # Where another compiler leaves a graph, what only looks is no function to compile.
        lookers: Tuple[Any, ...] = (call, _spike, _Apply.__call__)
        for one in lookers:
            torch._dynamo.eval_frame.skip_code(one.__code__)
        snntorch.SpikingNeuron.__call__ = call
        _looks[:] = [self]

    def _uninstall(self) -> None:
        if "__call__" in vars(snntorch.SpikingNeuron):
            del snntorch.SpikingNeuron.__call__
            _looks.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody looks, in TorchDynamo's trace least of all."""
        self._paused += 1
        if self._paused == 1:
            self._uninstall()
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused and self._watching:
                self._install()

    def saw_spikes(self, surrogate: Any, frame: Any) -> None:
        """A surrogate was called in this frame, as of a neuron that the program writes out."""
        caller = frame.f_back
        if caller is not None and all(one.f_code.co_filename.startswith(PACKAGES[1]) for one in (frame, caller)):
            return  # in snnTorch's step of a neuron, whose call was seen; not lif.fire(mem), which a program calls
        # Layers may have one surrogate, and the same code.
        self._saw((id(surrogate), frame.f_lasti, id(frame.f_locals.get("self"))), frame)

    def _saw(self, neuron: Any, frame: Any) -> None:
        """A neuron was called, or the surrogate of one that the program writes out."""
        self.adopt_all()  # a module that was loaded since may have no neuron but that
        places: List[_Place] = []
        while frame is not None:
            code = frame.f_code
            if code is self.graph:
                return
            if self._codes.may_have_loops(code):
                places += [(frame, site, site.entries) for site in self._around(frame)]
                places.append((frame, None, 0))
            frame = frame.f_back
        # Frames that have returned are let go of.
        self._counts = {place: self._counts.get(place, {}) for place in places}
        if all(frame is not self._runs_on for frame, _, _ in places):
            self._runs_on = None
        self._quiet += 1
        if self._quiet > QUIET:
            self._rest()
            return
        found = decided = False
        inner: Any = None
        for place in places:
            counts = self._counts[place]
            number, last = counts.get(neuron, (0, None))
            # All calls that one run of a loop makes are one call of the loop around it.
            if inner is None or last is not inner:
                number += 1
            counts[neuron] = number, inner
            if not found and number >= CALLS:
                found = self._found(place[0], place[1], decided)
            if not (found or decided):
                decided = self._is_decided(place[0].f_code, place[1])
            inner = counts

    def _around(self, frame: Any) -> List[Site]:
        """The loops around the line that a frame is at, where its function is known, the innermost first."""
        host = self._host(frame.f_code)
        if host is None:
            return []
        sites = [(loop, self._sites.get(loop.name)) for loop in host.loops]
        return [site for loop, site in sites if site is not None and loop.first <= frame.f_lineno <= loop.last]

    def _host(self, code: Any) -> Optional[outline.Host]:
        """What is known of code with branches; None of other code."""
        key = self._codes.number(code)
        if key not in self._host_of:
            self._host_of[key] = next((self._hosts[name] for name in code.co_names if name in self._hosts), None)
        return self._host_of[key]

    def _is_decided(self, code: Any, site: Optional[Site]) -> bool:
        """Whether a loop, or a function, runs as it is."""
        if site is None:
            host = self._host(code)
            site = None if host is None else self._sites.get(host.call)
        return (site is not None and site.wanted) or bool(self._refused.get(self._codes.number(code)))

    def _found(self, frame: Any, site: Optional[Site], decided: bool) -> bool:
        """There is a loop over time; returns whether an outer one need not be looked at.

        Args:
            site: of the loop; None: it is known of the frame alone.
            decided: whether a loop inside runs as it is.
        """
        code = frame.f_code
        if site is None and frame is self._runs_on:
            return True
        host = self._host(code)
        if host is None and code.co_name == "<module>":
            if not decided:
                self._say(code, f"{_place(code, frame.f_lineno)}: the loop over time is code of a module that runs")
            return True
        if host is None:
            host = self._take_out(code)
            self._runs_on = self._runs_on if host is None else frame
        elif self._sites.keys().isdisjoint(host.names):
            self._runs_on = frame
        if host is None:
            if not decided:
                self._refuse(code, frame.f_lineno)
            return False
        self.make_sites(host, frame.f_globals, code.co_filename)
        whole = self._sites.get(host.call)
        if site is None:
            around = [loop for loop in host.loops if loop.first <= frame.f_lineno <= loop.last]
            if len(around) == sum(first <= frame.f_lineno <= last for first, last in host.spans) == 1:
                site = self._sites[around[0].name]  # no other one can be over time
            elif around and frame is self._runs_on:
                return True  # one of them, which its next run shows
            elif whole is None:
                if not decided:
                    self._refuse(code, frame.f_lineno)
                return False
        for one in (site, None if site is not None and site.nested else whole):
            if one is not None and not one.wanted:
                one.wanted = True
                one.waits_for = None if one is whole or one.nested else whole
                self._quiet = 0
                self.sites.append(one)
        one = whole if site is None else site
        return one is None or not one.reasons or one.compiled

    def make_sites(self, host: outline.Host, namespace: Dict[str, Any], filename: str) -> None:
        """From now on the names that the code of a host asks for are not False."""
        if not self._sites.keys().isdisjoint(host.names):
            return
        label, where = os.path.basename(filename), f" ({host.name})" if host.name[0] != "<" else ""
        functions: Dict[str, Any] = {}
        for loop in host.loops:
            exec(compile(ast.Module(loop.functions, []), filename, "exec", dont_inherit=True), namespace, functions)
        for function in functions.values():
            function.__code__ = function.__code__.replace(co_name=host.name)
        suffixes = {"source": outline.COMPILED, "after": outline.AFTER, "shown_to": outline.SHOWN_TO}
        for loop in host.loops:
            parts = {key: functions.get(loop.name + suffix) for key, suffix in suffixes.items()}
            place = f"{label}:{loop.first}{where}"
            self._sites[loop.name] = Site(self, functions[loop.name], place, loop.nested, shows=loop.shows, **parts)
        if host.call:
            code = host.original
            cells = tuple(types.CellType() for _ in code.co_freevars)
            whole = types.FunctionType(code, namespace, host.name, None, cells)
            self._sites[host.call] = Whole(self, whole, f"{label}:{code.co_firstlineno}{where}")
        namespace.update({outline.UNBOUND: UNBOUND, outline.KEPT: shown.kept})
        namespace.update({name: self._sites[name] for name in host.names})

    def _take_out(self, code: Any) -> Optional[outline.Host]:
        """Put branches into all functions of this code; None where that is not possible."""
        number = self._codes.number(code)
        self._looked[number] = self._looked.get(number, 0) + 1
        if self._looked[number] > LOOKS:
            return None
        filename = code.co_filename
        if filename not in self._sources:
            self._sources[filename] = Source.of_file(filename)
        source = self._sources[filename]
        key = None if source is None else source.key(code)
        if source is None or key is None:
            return None
        self.take_out(source, functools.partial(_is_at, key))
        if self._host(source.newest(key)) is not None:
            self._exchange(source, filename)
        return self._host(source.newest(key))

    def take_out(self, source: Source, wanted: Any, of_module: bool = False) -> Dict[str, Any]:
        """Take the loops out of the wanted functions of a source; returns the global names that its code then needs."""
        names = {name: host for host in source.take_out(_numbers, wanted, of_module) for name in host.names}
        self._hosts.update(names)
        return dict.fromkeys(names, False)

    def _exchange(self, source: Source, filename: str) -> None:
        """Let the functions of a source have its newest code, and make functions of it."""
        names = [name for host in source.hosts for name in host.names]
        # What is compiled in a function's place has its code, and must not have branches.
        apart = {id(host.original) for host in source.hosts}
        apart |= {id(site._graphs[0]) for site in self._sites.values() if site._graphs is not None}
        for function in gc.get_objects():
            if type(function) is types.FunctionType and function.__code__.co_filename == filename:
                code = function.__code__
                if id(code) in apart:
                    continue
                made = self._newest(code, source)
                if made is not code and made.co_freevars == code.co_freevars:
                    self._changed.append((function, code))
                    for name in names:
                        function.__globals__.setdefault(name, False)
                    function.__code__ = made
                    self._quiet = 0

    def _newest(self, code: Any, source: Source) -> Any:
        key = source.key(code)
        newest = code if key is None else source.newest(key)
        if self._host(newest) is not None:
            return code if newest == code else newest
        consts = [self._newest(one, source) if hasattr(one, "co_code") else one for one in code.co_consts]
        return code if all(map(operator.is_, consts, code.co_consts)) else code.replace(co_consts=tuple(consts))

    def _refuse(self, code: Any, line: int) -> None:
        """Note why a loop around a line is neither compiled as a function of its own nor with its function."""
        key = self._codes.number(code)
        if key in self._refused:
            return
        self._refused[key] = []
        try:
            source, first = inspect.getsourcelines(code)
            tree = ast.parse(textwrap.dedent("".join(source)))
        except (OSError, SyntaxError):
            return
        start = max(first - 1, 0)
        loops = [one for one in ast.walk(tree) if isinstance(one, (ast.For, ast.While))]
        for loop in [one for one in loops if one.lineno <= line - start <= (one.end_lineno or one.lineno)][-1:]:
            at = outline.obstacle(loop)
            if at is not None:
                trace = f'  File "{code.co_filename}", line {at + start}, in {code.co_name}\n'
                own = not code.co_filename.startswith(PACKAGES)
                why = reasons.of_break(trace, "") if own else Reason("learns")
                told = why.told(f"{_place(code, loop.lineno + start)} ({code.co_name})  as it is, refused")
                self._refused[key] = [told[0], *(f"    {one}" for one in told[1:])]

    def _say(self, key: Any, what: str) -> None:
        if key not in self._said:
            self._said[key] = True
            _LOG.warning("%s; it runs as it is. `python -m snnipu run --compile SCRIPT`, or a function", what)

    def tries_further(self, site: Site) -> bool:
        """Whether the loop of a function that is no graph is tried alone."""
        return any(other.waits_for is site for other in self.sites)

    # ---- programs

    def outlined(
        self, tree: ast.Module, filename: str, namespace: Optional[Dict[str, Any]] = None
    ) -> Tuple[ast.Module, Dict[str, Any]]:
        """A program whose loops may be compiled while it runs, and the global names that it then needs."""
        try:
            source = Source(copy.deepcopy(tree), filename)
            names = self.take_out(source, outline.has_nested_loops, of_module=True)
        except (SyntaxError, RecursionError):  # a cell that awaits something, say
            return tree, {}
        self._sources[filename] = source
        return source.tree, names

    def adopt(self, module: types.ModuleType) -> None:
        """Let the functions of a module that is loaded already have branches where they may be needed in advance."""
        filename = str(getattr(module, "__file__", None) or "")
        if filename in self._sources or not filename.endswith(".py") or _is_others(filename):
            return
        source = self._sources[filename] = Source.of_file(filename)
        if source is not None and self.take_out(source, outline.has_nested_loops):
            self._exchange(source, filename)

    def adopt_all(self) -> None:
        """The modules of the program that are loaded: those beside the script, or in the working directory."""
        if self._modules == len(sys.modules):
            return
        self._modules = len(sys.modules)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        folders = {os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else os.getcwd()}
        for module in list(sys.modules.values()):
            filename = getattr(module, "__file__", None)
            if isinstance(filename, str) and filename.startswith(tuple(folder + os.sep for folder in folders)):
                self.adopt(module)


def _function_like(function: Any, code: Any) -> Any:
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def _is_at(key: Any, function: outline.Function) -> bool:
    return (function.name, outline.first_line(function)) == key


def _place(code: Any, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


class _Cells:
    """What IPython calls with the tree of every cell."""

    def __init__(self, auto: Automatic, shell: Any) -> None:
        self._auto, self._shell = auto, shell

    def visit(self, tree: ast.Module) -> ast.Module:
        if self._auto.searches:
            tree, names = self._auto.outlined(tree, f"<cell {next(_numbers)}>", self._shell.user_ns)
            self._shell.user_ns.update(names)
        return tree


_auto: Any = None


def auto() -> Automatic:
    """From now on loops over time run compiled, wherever they stand: in a network's ``forward``, a function, a method.

    .. code-block:: python

        import snnipu as snn

        snn.auto()

    The first time that a loop runs, it runs as it is, and is found by its neurons' calls. From then on its function is
    compiled as a whole, or, where that is no graph (``loss.backward()``, ``.item()``, printing), the loop alone.
    Results are those of :func:`snnipu.compile`. What cannot be compiled, or would not run faster, runs as it is, and
    the logger ``snnipu.compiler`` says so once.

    In a script, loops of functions are found, those at the level of the module only by ``python -m snnipu run --compile
    SCRIPT``; in a notebook, those of all cells that run later.

    Returns:
        An object whose ``str`` is a table of the loops; its ``stop()`` ends the search.

    Raises:
        RuntimeError: this PyTorch cannot compile.
    """
    global _auto
    if _auto is None:
        _auto = discovery.Discovery() if os.environ.get("SNNIPU_LOOPS") else Automatic()
        shell = _shell()
        if shell is not None:
            shell.ast_transformers.append(_Cells(_auto, shell))
    _auto.start()
    return _auto  # type: ignore[no-any-return]


def alone(function: Any) -> Any:
    """A method compiled as :func:`auto` would, without the calls that show where the loop is, for this object alone.

    Its code and that of its own loops are copies: nothing else runs compiled.
    """
    backend.enable()
    automatic, plain = Automatic(), function.__func__
    automatic.searches = True
    namespace, filename = {**plain.__globals__}, plain.__code__.co_filename
    source = Source.of_file(filename)
    key = None if source is None else source.key(plain.__code__)
    if source is None or key is None:
        raise ValueError(f"the source of {plain.__qualname__} is not found")
    names = automatic.take_out(source, functools.partial(_is_at, key))
    for host in source.hosts:
        automatic.make_sites(host, namespace, filename)
    for name in names:
        namespace[name].wanted = True
    copied = types.FunctionType(source.newest(key), namespace, plain.__name__, plain.__defaults__, plain.__closure__)
    return types.MethodType(copied, function.__self__)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def run_script(script: str) -> None:
    """Run a script as ``__main__``, its loops over time compiled."""
    automatic = auto()
    module = types.ModuleType("__main__")
    with tokenize.open(script) as file:
        tree, names = automatic.outlined(ast.parse(file.read(), script), script, vars(module))
    vars(module).update(names, __file__=script, __builtins__=builtins)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(compile(tree, script, "exec", dont_inherit=True), vars(module))
    finally:
        sys.modules["__main__"] = before
