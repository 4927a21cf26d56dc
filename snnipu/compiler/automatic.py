"""The compiler finds the loop: ``snnipu.auto()``.

A neuron that is called again and again while one frame runs is called by a loop over time. The function of that frame,
or the loop alone (:mod:`snnipu.compiler.outline`), is compiled the next time it is called; the rest stays as it is.
"""

import ast
import builtins
import contextlib
import functools
import gc
import inspect
import itertools
import logging
import os
import sys
import sysconfig
import textwrap
import tokenize
import types
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import snntorch
import torch

from snnipu.compiler import backend, nodes, outline, reasons, shown, tracing
from snnipu.compiler.lists import Lists, Read
from snnipu.compiler.reasons import PACKAGES, Reason
from snnipu.compiler.report import GraphReport
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
# A function that calls one of these is no graph.
_EAGER_NAMES = {"backward", "item", "numpy", "tolist", "zero_grad", "print"}
NO_NUMBER = "inside `with torch.device(...)`, or with a default device, PyTorch loses what `.item()` gives"
OTHERS = "its network's neurons are snnTorch's own, not snnipu's"
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
# Whose frames have no loops of a program's.
_UNSEEN = (PACKAGES[0], PACKAGES[2])
_LIBRARIES = ("torch.", "snntorch.", "snnipu.")
_LIBRARY = tuple({str(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")})
_numbers = itertools.count(1)
_SPIKE = Surrogate.__call__
_APPLY = vars(torch.autograd.Function)["apply"]  # a class method of Python's or, from PyTorch 2.14 on, of C's


class Unbound:
    """In place of a variable that has no value: what is done with it is the error that it would be."""

    def __repr__(self) -> str:
        return "<no value yet>"


def _unbound(self: Unbound, *args: Any) -> Any:
    raise UnboundLocalError("a variable is read before it has a value")


_OPERATORS = (
    *("getattr", "bool", "eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul"),
    *("truediv", "neg", "call", "iter", "len", "getitem", "setitem"),
)
for _name in _OPERATORS:
    setattr(Unbound, f"__{_name}__", _unbound)
UNBOUND = Unbound()


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


class Site:
    """A function with a loop over time, or such a loop as a function: called eagerly, until it is to be compiled.

    Attributes:
        function: what runs eagerly.
        source: what is compiled: the same, its loops where the program has them, or without what it shows.
        after: what shows that then; None: it shows nothing.
        label: where it stands: file, line, function.
        nested: whether the loop stands in another one of its function.
        reports: one for each compilation.
        reasons: why it runs as it is, by whether gradients are enabled.
        notes: the program's lines of these reasons, and what to write instead.
    """

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
        self.waits_for: Optional[Site] = None
        self.reports: List[GraphReport] = []
        self.reasons: Dict[bool, str] = {}
        self.notes: List[Reason] = []
        self.wanted = False
        self._compiled: Any = None
        self._modes: Set[bool] = set()  # that have graphs: with and without gradients
        self._began = False
        self._again = False  # whether an error in a graph leaves all as it was before, but random numbers
        self._random: Optional[torch.Tensor] = None  # the generator's state before it
        self._used, self._calls, self._failures, self._runs = True, 0, 0, 0
        self._useless: Dict[Any, int] = {}  # compilations, by what they were for
        self._passed: Dict[str, bool] = {}  # why single calls ran as they are
        self._lists = Lists()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

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

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What runs in the function's place."""
        if not (self.wanted and self.auto.searches) or torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        return self._run(args, kwargs)

    def _run(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        why = OTHERS if _has_others_alone((*args, *kwargs.values())) else tracing.not_now()
        if why:
            if why not in self._passed and self.waits_for is None:
                self._passed[why] = True
                _LOG.warning("%s runs as it is: %s", self.label, why)
            return self.function(*args, **kwargs)
        grad = torch.is_grad_enabled()
        if self.waits_for is not None:
            self._calls += 1
            # A function that is compiled as a whole does not come here; one that only runs once does, again and again.
            if not self.waits_for.reasons and self._calls < 2:
                return self.function(*args, **kwargs)
            self.waits_for = None
        if grad in self.reasons:
            return self.function(*args, **kwargs)
        if self._shown_to is not None and not self._may_wait(args):
            self.source, self.after, self._shown_to, self._compiled = self.function, None, None, None
        with tracing.Restored():
            if self._compiled is None:
                self._compiled = self._compile()
            before = len(self.reports)
            lists = self._lists.watch(self._reached(args, kwargs)) if not before else {}
            self._began = False
            try:
                with self._lists.aside():
                    result = self._compiled(*args, **kwargs)
            except Exception as error:
                tracing.Restored.failed = True
                full = _cause(error, torch._dynamo.exc.FailOnRecompileLimitHit)
                if full is not None or _cause(error, tracing.Changed) is not None:
                    self._compiled = None
                    return self._run(args, kwargs)
                if self._began:
                    if not self._again:
                        raise
                    # The error with the lines of the program, which has done by then what stands before them.
                    if self._random is not None:
                        torch.set_rng_state(self._random)
                    return self.function(*args, **kwargs)
                if _cause(error, Read) is not None:
                    return self.function(*args, **kwargs)
                self._failures = 1 if self._runs >= FORGOTTEN else self._failures + 1
                self._runs = 0
                # Where other calls run compiled, one that cannot, a smaller last batch say, is not the end of it.
                if not self.compiled or self._failures >= FAILURES:
                    better = _cause(error, AsItIs)
                    self._refuse(grad, error) if better is None else self._leave(grad, str(better))
            else:
                self._lists.note(lists)
                self._count(grad, len(self.reports) > before, (*args, *kwargs.values()))
                return self._shown(result, args)
        return self.function(*args, **kwargs)

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

    def _reached(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Any]:
        """The objects that the function knows: its arguments, and those of its names that are global."""
        names = self.source.__code__.co_names
        outside = [self.source.__globals__[name] for name in names if name in self.source.__globals__]
        return [*args, *kwargs.values(), *outside]

    def _compile(self) -> Any:
        def compile_graph(module: Any, example_inputs: Any, **options: Any) -> Any:
            self._lists.traced()
            codes = tracing.ResetCodes(module)
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

        # Code of its own, so that what PyTorch keeps for it is not that of calls elsewhere.
        copy = _function_like(self.source, self.source.__code__.replace())
        return tracing.one_graph(copy, compile_graph, self._traced)

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


class _Codes:
    """Numbers of code: equal ones have one number. The hash of a code goes through all that is in it, at each call."""

    def __init__(self) -> None:
        self._numbers: Dict[Any, int] = {}
        self._seen: Dict[int, Tuple[Any, int, bool]] = {}  # by id, which the code here keeps from being another's

    def _found(self, code: Any) -> Tuple[Any, int, bool]:
        found = self._seen.get(id(code))
        if found is None:
            has_loops = not code.co_filename.startswith(_UNSEEN) and code.co_name not in _COMPREHENSIONS
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
        self._by_code: Dict[int, Site] = {}  # functions and outlined loops, by the code that runs eagerly
        self._originals: Dict[Any, Any] = {}  # code of functions before their loops were taken out
        self._files: Dict[str, bool] = {}
        self._said: Dict[Any, bool] = {}
        self.told: Set[Any] = set()  # causes for which loops run as they are
        self._refused: Dict[int, List[str]] = {}  # what is told of loops that are no graph, by their function's code
        self._in_vain: Dict[Any, int] = {}  # how often a code's loop was looked at, and nothing could be done
        self._counts: Dict[Any, Dict[Any, Tuple[int, Any]]] = {}
        self._looked: Dict[int, int] = {}  # how often functions were looked for, by their code
        self._modules = 0
        self._runs_on: Any = None  # the frame of a function whose code was exchanged
        self._quiet = 0
        self._paused = 0
        self._watching = False
        self._changed: List[Tuple[Any, Any]] = []
        self.graph: Any = None  # the code of what runs a compiled graph: neurons that it calls show no loop
        self.searches = True

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

    def stop(self) -> None:
        """Find no further loops, and let those that were found run as they are."""
        self.searches = False
        self._rest()
        for function, code in reversed(self._changed):
            function.__code__ = code
        self._changed.clear()

    def skip(self, filename: str) -> None:
        """A file whose loops are functions already."""
        self._files[filename] = True

    def _rest(self) -> None:
        self._watching = False
        self._runs_on = None
        self._counts.clear()
        self._uninstall()

    def _install(self) -> None:
        auto = self
        plain = torch.nn.Module.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                auto._saw(id(self), sys._getframe(1))
            return plain(self, *args, **kwargs)

        # Where another compiler leaves a graph, what only looks is no function to compile.
        lookers: Tuple[Any, ...] = (call, _spike, _Apply.__call__)
        for one in lookers:
            torch._dynamo.eval_frame.skip_code(one.__code__)
        snntorch.SpikingNeuron.__call__ = call
        Surrogate.__call__ = _spike  # type: ignore[method-assign]
        torch.autograd.Function.apply = _apply  # type: ignore[method-assign, assignment]
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
        stack = []
        while frame is not None:
            code = frame.f_code
            if code is self.graph:
                return
            if self._codes.may_have_loops(code):
                stack.append(frame)
            frame = frame.f_back
        # Frames that have returned are let go of.
        self._counts = {frame: self._counts.get(frame, {}) for frame in stack}
        if self._runs_on not in self._counts:
            self._runs_on = None
        self._quiet += 1
        if self._quiet > QUIET:
            self._rest()
            return
        found = decided = False
        inner: Any = None
        for place, frame in enumerate(stack):
            counts = self._counts[frame]
            number, last = counts.get(neuron, (0, None))
            # All calls that one frame makes are one call of the frame around it.
            if inner is None or last is not inner:
                number += 1
            counts[neuron] = number, inner
            if not found and number >= CALLS:
                found = self._found(frame, stack[place + 1 :], decided)
            if not (found or decided):
                key = self._codes.number(frame.f_code)
                site = self._by_code.get(key)
                decided = (site is not None and site.wanted) or bool(self._refused.get(key))
            inner = counts

    def _found(self, frame: Any, outer: Sequence[Any], decided: bool) -> bool:
        """A frame has a loop over time; returns whether an outer one need not be looked at.

        Args:
            decided: whether a loop inside runs as it is.
        """
        code = frame.f_code
        key = self._codes.number(code)
        site = self._by_code.get(key)
        if site is not None:
            if site.wanted:
                return not site.reasons or site.compiled
            site.wanted = True
            self._quiet = 0
            self.sites.append(site)
            if not site.nested and outer:
                site.waits_for = self._whole(outer[0].f_code)
            return True
        if code.co_name == "<module>":
            if not decided:
                self._say(code, f"{_place(code, frame.f_lineno)}: the loop over time is code of a module that runs")
            return True
        if frame is self._runs_on:
            return True
        looked = key, len(self._originals)
        if self._in_vain.get(looked, 0) >= LOOKS:
            return False
        outlined = self._outlined(code)
        if outlined is not None:
            self._runs_on = frame
        whole = self._whole(code if outlined is None else outlined)
        if whole is None and outlined is not None:
            return True
        if whole is None:
            if not decided:
                self._refuse(code, frame.f_lineno)
            self._in_vain[looked] = self._in_vain.get(looked, 0) + 1
            return False
        self._quiet = 0
        return True

    def _outlined(self, code: Any) -> Optional[Any]:
        """Take the loops out of a function that was made behind :func:`auto`, or by another one before its module's
        were; returns its code then, None where it has none."""
        found = None
        for made, original in self._originals.items():
            if original == code and made is not code:
                found = made if self._put(code, made) else None
                break
        if found is not None:
            # What makes such functions makes others.
            for made, original in self._originals.items():
                if original.co_flags & inspect.CO_OPTIMIZED and code in original.co_consts:  # no class, no module
                    self._put(original, made)
        return found

    def _put(self, code: Any, made: Any) -> bool:
        """Exchange the code of all functions that have it; returns whether there are any."""
        functions = self._functions_with(code) if made.co_freevars == code.co_freevars else []
        for function in functions:
            self._changed.append((function, code))
            function.__code__ = made
            self._quiet = 0
        return bool(functions)

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

    def _whole(self, code: Any) -> Optional[Site]:
        """The site of a function, all of it; None where there is no such function."""
        original = self._originals.get(code, code)
        if code.co_name == "<module>" or set(original.co_names) & _EAGER_NAMES or original.co_flags & _GENERATOR:
            return None
        key = self._codes.number(code)
        known = self._by_code.get(key)
        if known is not None:
            return known if known.wanted else None
        sites = [self._exchange(one, original) for one in self._functions_with(code)]
        found = next((site for site in sites if site is not None), None)
        if found is not None:
            self._by_code[key] = found
        return found

    def _functions_with(self, code: Any) -> List[Any]:
        """The functions of this code, as often as that is worth its time: a few times."""
        key = self._codes.number(code)
        self._looked[key] = self._looked.get(key, 0) + 1
        if self._looked[key] > LOOKS:
            return []
        return [one for one in gc.get_referrers(code) if isinstance(one, types.FunctionType) and one.__code__ is code]

    def _exchange(self, function: Any, original: Any) -> Optional[Site]:
        """Let a function's calls come to a site."""
        code = function.__code__
        name = f"{outline.PREFIX}call_{next(_numbers)}__"
        free = code.co_freevars
        lines = [f"def outer({', '.join(free)}):", " def inner(*args, **kwargs):", f"  return {name}(*args, **kwargs)"]
        if free:
            lines.append(f"  ({', '.join(free)},)")
        namespace: Dict[str, Any] = {}
        exec("\n".join([*lines, " return inner"]), namespace)
        inner = next(one for one in namespace["outer"].__code__.co_consts if hasattr(one, "co_code"))
        if inner.co_freevars != free or original.co_freevars != free:
            return None
        as_it_is, whole = _function_like(function, code), _function_like(function, original)
        site = Site(self, as_it_is, f"{_place(code, code.co_firstlineno)} ({code.co_name})", source=whole)
        site.wanted = True
        self.sites.append(site)

        def call(*args: Any, **kwargs: Any) -> Any:
            return site.call(*args, **kwargs)

        function.__globals__[name] = call
        with contextlib.suppress(TypeError, ValueError):
            function.__signature__ = inspect.signature(as_it_is)
        self._changed.append((function, code))
        function.__code__ = inner.replace(
            co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )
        return site

    # ---- programs whose loops become functions

    def transform(self, tree: ast.Module, filename: str) -> Dict[str, Any]:
        """Take the loops out of a program, in place; returns the global names that it then needs, if any."""
        original = compile(tree, filename, "exec", dont_inherit=True)
        loops = {loop.name: loop for loop in outline.outline(tree, _numbers)}
        if not loops:
            return {}
        before = outline.code_of(original)
        for key, code in outline.code_of(compile(tree, filename, "exec", dont_inherit=True)).items():
            if key in before and code != before[key]:
                self._originals[code] = before[key]

        def register(function: Any) -> Any:
            loop = loops[function.__name__]
            names = {"source": outline.COMPILED, "after": outline.AFTER, "shown_to": outline.SHOWN_TO}
            parts = {key: function.__globals__.get(loop.name + name) for key, name in names.items()}
            for one in (function, *filter(None, parts.values())):
                one.__code__ = one.__code__.replace(co_name=loop.host)
            label = f"{os.path.basename(filename)}:{loop.line}" + (f" ({loop.host})" if loop.host[0] != "<" else "")
            site = Site(self, function, label, loop.nested, shows=loop.shows, **parts)
            self._by_code[self._codes.number(function.__code__)] = site

            def call(*args: Any) -> Any:
                return site.call(*args)

            return call

        return {outline.UNBOUND: UNBOUND, outline.REGISTER: register, outline.KEPT: shown.kept}

    def adopt(self, module: types.ModuleType) -> None:
        """Take the loops out of the functions and methods of a module that is loaded already."""
        filename = str(getattr(module, "__file__", None) or "")
        if filename in self._files or not filename.endswith(".py") or filename.startswith((*PACKAGES, *_LIBRARY)):
            return
        self._files[filename] = True
        try:
            with tokenize.open(filename) as file:
                tree = ast.parse(file.read(), filename)
            names = self.transform(tree, filename)
        except (OSError, SyntaxError, UnicodeDecodeError):
            return
        if not names:
            return
        code = compile(tree, filename, "exec", dont_inherit=True)
        made = outline.code_of(code)
        vars(module).update(names)
        loops = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith(outline.LOOP)]
        exec(compile(ast.Module([*loops], []), filename, "exec", dont_inherit=True), vars(module))
        for function in _functions_of(module):
            one = made.get((function.__code__.co_name, function.__code__.co_firstlineno))
            same = one is not None and one.co_freevars == function.__code__.co_freevars
            if same and function.__code__ == self._originals.get(one):
                self._changed.append((function, function.__code__))
                function.__code__ = one

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


def _functions_of(module: types.ModuleType) -> List[Any]:
    """A module's own functions and methods, as far as they can be found from its names."""
    found: List[Any] = []
    waiting = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    seen = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                waiting.extend(vars(value).values())
        elif isinstance(value, property):
            waiting += [value.fget, value.fset]
        else:
            value = getattr(value, "__func__", value)
            if isinstance(value, types.FunctionType):
                with contextlib.suppress(ValueError):
                    value = inspect.unwrap(value)
            if isinstance(value, types.FunctionType) and value.__code__.co_filename == module.__file__:
                found.append(value)
    return found


_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _function_like(function: Any, code: Any) -> Any:
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def _place(code: Any, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


class _Cells:
    """What IPython calls with the tree of every cell."""

    def __init__(self, auto: Automatic, shell: Any) -> None:
        self._auto, self._shell = auto, shell

    def visit(self, tree: ast.Module) -> ast.Module:
        self._shell.user_ns.update(self._auto.transform(tree, "<cell>"))
        return tree


_auto: Optional[Automatic] = None


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
    backend.enable()
    if _auto is None:
        _auto = Automatic()
        shell = _shell()
        if shell is not None:
            shell.ast_transformers.append(_Cells(_auto, shell))
        _watch_new_neurons(_auto)
    _auto.searches = True
    _auto.adopt_all()
    _auto.watch()
    return _auto


def alone(function: Any) -> Any:
    """A method compiled as :func:`auto` would, without the calls that show where the loop is, for this object alone.

    Its code and that of its own loops are copies: nothing else runs compiled.
    """
    backend.enable()
    automatic = Automatic()
    plain = function.__func__
    filename = plain.__code__.co_filename
    with tokenize.open(filename) as file:
        tree = ast.parse(file.read(), filename)
    namespace = {**plain.__globals__, **automatic.transform(tree, filename)}
    loops = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith(outline.LOOP)]
    exec(compile(ast.Module([*loops], []), filename, "exec", dont_inherit=True), namespace)
    code = outline.code_of(compile(tree, filename, "exec", dont_inherit=True))
    found = code.get((plain.__code__.co_name, plain.__code__.co_firstlineno), plain.__code__)
    outlined = types.FunctionType(found, namespace, plain.__name__, plain.__defaults__, plain.__closure__)
    for site in automatic._by_code.values():
        site.wanted = True
    whole = Site(automatic, outlined, f"{_place(plain.__code__, found.co_firstlineno)}", source=plain)
    whole.wanted = not set(plain.__code__.co_names) & _EAGER_NAMES
    return types.MethodType(whole.call, function.__self__)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _watch_new_neurons(automatic: Automatic) -> None:
    """A new neuron may be called by a loop that nobody has seen, in a module that was not loaded."""
    plain = snntorch.SpikingNeuron.__init__

    @functools.wraps(plain)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if automatic.searches:
            automatic.adopt_all()
            automatic.watch()

    snntorch.SpikingNeuron.__init__ = initialise  # type: ignore[method-assign]


def run_script(script: str) -> None:
    """Run a script as ``__main__``, its loops over time compiled."""
    automatic = auto()
    with tokenize.open(script) as file:
        tree = ast.parse(file.read(), script)
    module = types.ModuleType("__main__")
    vars(module).update(automatic.transform(tree, script), __file__=script, __builtins__=builtins)
    automatic.skip(script)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(compile(tree, script, "exec", dont_inherit=True), vars(module))
    finally:
        sys.modules["__main__"] = before
