"""Runs of a loop over time.

The loop's body is a function of the item and of the variables that it reads; it returns the variables that it sets. A
step can also pass values to the next step in attributes of objects and in items of lists and dictionaries. These are
found by comparing the objects that the body can reach, before and after the first two steps. The body is then traced
once (:mod:`snnipu.compiler.trace`), and :mod:`snnipu.compiler.distribute` makes a graph of all steps.
"""

import collections
import logging
import random
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy
import torch

from snnipu.compiler import reasons
from snnipu.compiler.calls import calls, counting, has_loop_over_time
from snnipu.compiler.distribute import Distribution
from snnipu.compiler.helpers import storage
from snnipu.compiler.items import Called, Items
from snnipu.compiler.marks import Peel, Recount, Refused, Relook
from snnipu.compiler.objects import LAST_STEP, Missing, Objects, Place
from snnipu.compiler.private import hindrance, version_of
from snnipu.compiler.steps import is_step
from snnipu.compiler.trace import Spec, Traced, tensors_of

_LOG = logging.getLogger("snnipu.compiler")
# Loops with fewer steps are not compiled.
FEWEST = 3
# Steps that run in Python, and are observed, before the body is traced.
LOOKED_AT = 2
# LOOKS: after this number of runs without a neuron that two steps call, a loop is not a loop over time. MOST_LOOKS: the
# number of times that steps are observed in a run. MOST_PLANS: the number of different sets of attributes that the runs
# of a compiled loop may set.
LOOKS, MOST_LOOKS, MOST_PLANS = 3, 2, 4
# Values that are the same if they are equal.
_CONSTANTS = (int, float, bool, str, torch.Size, torch.dtype, torch.device)


# ---- the loop


class Loop:
    """A loop of the program.

    Attributes:
        body: called with the item and the variables that the loop reads; returns the variables that it sets.
        label: file, line and function.
        carries: for each result of ``body``, its position among the arguments, or -1.
        records: positions of lists among the arguments that only ``torch.stack`` reads.
        traced: the body for the trace, which stores the values that are printed or logged.
        after: makes the calls that print or log, after the compiled loop; None if there are none.
        shown_to: returns the objects that these calls write to, and the values that they read.
        reads_gradients: True if its steps may read if a tensor requires a gradient.
        has_neurons: True if its steps call neurons of snnipu. Other loops may have hand-coded neurons.
        reason: why the loop runs in Python; empty if it can run compiled.
        note: the reason with the program's lines that cause it; None if they are unknown.
        runs: the number of compiled runs.
        hindrance: why the last run could not be compiled; empty if it could.
        entries: the number of times that the program reached the loop.
        steps: the number of steps of the last run.
        is_on: returns True if loops may run compiled.
    """

    unbound: Any = None
    is_on: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(
        self,
        body: Any,
        label: str,
        carries: Sequence[int],
        records: Sequence[int],
        traced: Any,
        after: Any = None,
        shown_to: Any = None,
    ) -> None:
        self.body, self.label, self.carries, self.records = body, label, tuple(carries), set(records)
        self.traced, self.after, self.shown_to = traced, after, shown_to
        self.reason = ""
        self.note: Optional[reasons.Reason] = None
        self.error: Optional[BaseException] = None
        self.stopped = False
        self.runs = self.entries = self.steps = 0
        self.looks = 0
        self.hindrance, self._is_logged = "", False
        self.has_neurons = self.reads_gradients = False
        self.plans: List[Traced] = []

    def __bool__(self) -> bool:
        if self.stopped or torch.compiler.is_compiling() or not self.is_on():
            return False
        self.entries += 1
        return not self.reason

    def __reduce__(self) -> Any:
        """Pickle as False: cloudpickle stores functions with their global names, and the program's loop then runs."""
        return bool, ()

    def __call__(self, iterable: Any, *arguments: Any) -> Optional[Tuple[Any, ...]]:
        """Run the loop and return its variables in a tuple, or return None if the loop has to run in Python."""
        try:
            items = Items(iterable)
        except Refused as refused:
            self.refuse(str(refused), quiet=True)
            return None
        self.hindrance = hindrance()
        if items.count < FEWEST or self.hindrance:
            return None
        return (_Run(self, items, list(arguments)).run(),)

    def refuse(self, reason: str, note: Optional[reasons.Reason] = None, quiet: bool = False) -> None:
        """Let the loop run in Python from now on."""
        if self.reason:
            return
        if not self.has_neurons and not self.runs:
            self.plans, note, quiet = [], None, True
        self.reason, self.note, self._is_logged = reason, note, not quiet
        if not quiet:
            _LOG.warning("%s runs in Python: %s", self.label, reason)

    def reconsider(self) -> None:
        """Observe a loop over time again that runs in Python."""
        if self.reason and self.is_over_time():
            self.reason, self.note, self.looks, self.plans = "", None, 0, []

    def is_observed(self) -> bool:
        """Return True if this run is observed: less and less often while only neurons of snnTorch itself are called."""
        return self.looks < LOOKS or self.entries % 3 ** min(self.looks - LOOKS + 1, 4) == 0

    def is_over_time(self) -> bool:
        """Return True if the loop calls neurons at each step."""
        return bool(self.plans or self._is_logged or self.hindrance)

    @property
    def distribution(self) -> Optional[Distribution]:
        """The graph of all steps, or None if the loop runs in Python."""
        return self.plans[-1].distribution if self.plans and self.runs and not self.reason else None

    def _summary(self) -> str:
        """Return the numbers of layers that are one operator and of layers that run step by step, as text."""
        distribution: Any = self.distribution
        layers, alone = len(distribution.neurons), sum(map(is_step, distribution.cycles))
        text = f"{layers} layer{'s'[: layers > 1]} of neurons over {self.steps} steps"
        return f"{text}, {alone} step by step" if alone else text

    def text_lines(self) -> List[str]:
        """Return lines of text: if the loop runs compiled or in Python, and why."""
        if self.distribution is not None:
            return [f"{self.label}  compiled: {self._summary()}"]
        if not self.is_over_time():
            return []
        lines = [f"{self.label}  in Python: {self.reason or self.hindrance}"]
        return [*lines, *(f"    {line}" for line in (self.note.text_lines("the cause") if self.note else ()))]


class _Run:
    """A run of a loop."""

    def __init__(self, loop: Loop, items: Items, arguments: List[Any]) -> None:
        self.loop, self.items, self.arguments = loop, items, arguments
        self._at: Any = None
        self.step = 0
        self.looks = 0
        self.results: Tuple[Any, ...] = ()
        self.random_state: Any = None  # of Python's generator, before the compiled steps
        self._first: Optional[Objects] = None  # the snapshot before the observed steps
        self._bars = [iter(one.evaluate() if isinstance(one, Called) else one) for one in items.bars]

    def run(self) -> Tuple[Any, ...]:
        try:
            if self.loop.plans:
                calls.has_loop = True
                self._distribute()
            elif self.loop.is_observed():
                self._look()
            while self.step < self.items.count:
                self.step_in_python()
            for bar in self._bars:
                collections.deque(bar, 0)
        finally:
            for bar in self._bars:
                bar.close()
        return self.results

    def step_in_python(self) -> None:
        """Run a step in Python."""
        if self._at is None:
            self._at = self.items.reader()
        for bar in self._bars:
            next(bar, None)
        self.results = self.loop.body(self._at(self.step), *self.arguments)
        self.carry()
        self.step += 1

    def carry(self) -> None:
        """Make the results of a step the arguments of the next one."""
        for value, place in zip(self.results, self.loop.carries):
            if place >= 0:
                self.arguments[place] = value

    # ---- the first run

    def _look(self) -> None:
        """Run two steps in Python and observe them. If this is a loop over time, run the others compiled."""
        loop = self.loop
        self.looks += 1
        if self.items.count - self.step < FEWEST:
            return
        called: List[Dict[int, int]] = []
        moments, values, versions = [self._objects()], [list(self.arguments)], [_versions(self.arguments)]
        self._first = moments[0]
        random_state, items = _random_state(), self.items.versions()
        has_loop = False
        for _ in range(LOOKED_AT):
            with counting():
                self.step_in_python()
                called.append(dict(calls.seen or {}))
                has_loop = has_loop or calls.has_loop
            moments.append(self._objects())
            values.append(list(self.arguments))
            versions.append(_versions(self.arguments))
        again = [key for key in called[0] if key in called[1]]
        loop.has_neurons = loop.has_neurons or bool(again)
        loop.reads_gradients = moments[0].reads_gradients
        may_be = again or moments[0].has_functions()
        # A first step may register parameters, which the next call finds in place.
        is_set_up = moments[0].changes_modules(moments[1]) and not moments[1].changes_modules(moments[2])
        if not may_be or has_loop or has_loop_over_time(called[1]) or is_set_up:
            loop.looks += 1
            if loop.looks >= LOOKS and not loop.plans and not moments[0].has_others():
                why = "its first step changes the mode, the layers or the parameters of a module"
                loop.refuse(why if is_set_up else "it is no loop over time", quiet=not is_set_up)
            return
        try:
            if _random_state() != random_state:
                raise Refused("it draws random numbers from Python's or NumPy's generators")
            if self.items.versions() != items:
                raise Refused("it changes the tensors that it iterates over")
            spec = self._spec(moments, values, versions)
        except Refused as refused:
            if moments[0].has_hooks:
                return  # a tool may remove its hooks later
            loop.refuse(str(refused))
            return
        same = [plan for plan in loop.plans if plan.spec == spec]
        if same:
            loop.plans.remove(same[0])
        elif len(loop.plans) >= MOST_PLANS:
            loop.refuse("it sets other variables or attributes in each run")
            return
        loop.plans.append(same[0] if same else Traced(loop, spec, len(self.arguments)))
        calls.has_loop = True
        self._distribute(looked=True)

    def _objects(self) -> Objects:
        return Objects(self.arguments, self.loop.body, self._first)

    def _spec(
        self, moments: Sequence[Objects], values: Sequence[Sequence[Any]], versions: Sequence[Sequence[Any]]
    ) -> Spec:
        changes = [before.changes(after) for before, after in zip(moments, moments[1:])]
        grown = {**changes[0].grown, **changes[1].grown}
        places: Set[Any] = {one for each in changes for one in each.places} - set(grown)
        variables: Set[Any] = set()
        counters: Dict[Any, int] = {}
        in_place: List[int] = []
        lists = {place.path[0] for place in grown if place.key is None}
        for place in {place for place in self.loop.carries if place >= 0} - lists:
            history = [moment[place] for moment in values]
            if all(one is history[0] for one in history):
                if isinstance(history[0], torch.Tensor):
                    if versions[0][place] == versions[-1][place]:
                        continue
                    in_place.append(place)
                elif type(history[0]) in (int, bool):
                    counters[place] = 0  # the trace proves that no step changes it
                    continue
                else:
                    continue
            variables.add(place)
        written = {place for place in places if place.key == LAST_STEP}
        places -= written
        strange = [repr(one.key) for one in (*places, *grown) if not one.is_literal()]
        if strange:
            raise Refused(f"it sets an item or attribute whose name is no literal: {strange[0]}")
        numbers: Set[Any] = set()
        for place in (*places, *variables):
            if isinstance(place, Place):
                history = [moment.value(place) for moment in moments]
            else:
                history = [moment[place] for moment in values]
            name = place.key if isinstance(place, Place) else self.loop.body.__code__.co_varnames[place + 1]
            by = _counted(name, history)
            if by is not None and by is not Missing:
                counters[place] = by
            elif by is Missing:
                numbers.add(place)
        spec = Spec(
            self.items.text,
            tuple(sorted(variables - counters.keys())),
            tuple(sorted(places - counters.keys(), key=repr)),
            tuple(sorted(numbers, key=repr)),
            tuple(sorted(counters.items(), key=repr)),
            tuple(sorted(grown, key=repr)),
            tuple(sorted(in_place)),
            tuple(sorted(written, key=repr)),
            self.loop.body,
        )
        self.refuse_aliases(spec)
        return spec

    def refuse_aliases(self, spec: Spec) -> None:
        """Refuse a tensor that each step changes in place if a list or another variable also holds it.

        Raises:
            Peel: there is such a tensor before the first step, as in mem = spk = total = torch.zeros(...).
            Refused: there is such a tensor later.
        """
        changed = {storage(one) for place in spec.in_place for one in tensors_of(self.arguments[place])}
        if not spec.in_place:
            return
        lists = [items[-4:] for items in spec.lists(self.arguments)]
        others = [value for place, value in enumerate(self.arguments) if place not in spec.in_place]
        others += [place.get(owner) for place, owner in zip(spec.places, spec.owners(spec.places, self.arguments))]
        if len(changed) < len(spec.in_place) or any(storage(one) in changed for one in tensors_of([*lists, *others])):
            if not self.step:
                raise Peel
            raise Refused("it changes a tensor in place that a list or another variable also holds")

    # ---- later runs

    def _distribute(self, looked: bool = False) -> None:
        loop, plan = self.loop, self.loop.plans[-1]
        for first in range(self.step, self.step + LOOKED_AT + 1):
            if self.step < first or (plan.first_in_python and not self.step):
                self.step_in_python()
            if self.items.count - self.step < 2:
                return
            self.random_state = random.getstate()
            try:
                self.results = plan.run(self, self._objects)
                self.step = loop.steps = self.items.count
                loop.runs += 1
                if loop.runs == 1:
                    _LOG.info(loop.text_lines()[0])
                return
            except Exception as error:
                random.setstate(self.random_state)
                cause = _cause(error)
                if isinstance(cause, Peel):
                    continue
                if isinstance(cause, Recount):
                    loop.plans[-1] = Traced(loop, plan.spec.recounted(cause.number), len(self.arguments))
                    return self._distribute(looked)
                if isinstance(cause, Relook):
                    self._look_again(plan, looked, str(cause))
                    return
                if plan.has_begun(error):
                    return  # the steps run in Python, and raise the error at the program's line
                if cause is None and plan.distribution is not None and not self.step:
                    plan.first_in_python = True
                    continue
                loop.error = error
                if cause is not None:
                    loop.refuse(str(cause), getattr(cause, "note", None))
                else:
                    why = reasons.reason_of_error(error)
                    loop.refuse(f"refused: {why.why}" + "".join(f" ({line.place})" for line in why.lines), why)
                return
        loop.refuse(plan.peeled or "its first steps differ from each other")

    def _look_again(self, plan: Traced, looked: bool, why: str) -> None:
        """Observe two more steps: the first spikes, and with them changes of a number, may occur late."""
        ends = self.looks == MOST_LOOKS
        if ends and self.loop.entries >= LOOKS:
            return self.loop.refuse(why)
        if looked:
            self.loop.plans.remove(plan)
        if not ends:
            self._look()


def _counted(name: str, history: Sequence[Any]) -> Any:
    """Return the increment of a number per step, Missing if it is not constant, or None for other values.

    Raises:
        Refused: the value changes and is neither a tensor nor a number.
    """
    first, before, last = history
    if before is Missing or last is Missing:
        raise Refused(f"`{name}` appears")
    if type(last) is int and type(before) is int:
        even = first is Missing or (type(first) is int and before - first == last - before)
        return last - before if even else Missing
    if type(last) is float and type(before) in (int, float):
        return Missing
    if not _differ_in_tensors(before, last):
        raise Refused(f"`{name}` is not a tensor, and changes")
    return None


def _differ_in_tensors(before: Any, last: Any) -> bool:
    """Return True if two values are equal but for their tensors, which may be in tuples, lists and dictionaries."""
    if isinstance(last, torch.Tensor) or last is before:
        return True
    if type(last) is not type(before):
        return False
    if type(last) is dict:
        return list(last) == list(before) and all(_differ_in_tensors(before[key], last[key]) for key in last)
    if type(last) in (tuple, list):
        return len(last) == len(before) and all(map(_differ_in_tensors, before, last))
    return type(last) in _CONSTANTS and last == before


def _cause(error: BaseException) -> Optional[BaseException]:
    """Return the error of this package that TorchDynamo has wrapped in another one."""
    cause: Optional[BaseException] = error
    while cause is not None and not isinstance(cause, (Peel, Recount, Relook, Refused)):
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    return cause


def _versions(values: Sequence[Any]) -> List[Any]:
    return [version_of(one) if isinstance(one, torch.Tensor) else None for one in values]


def _random_state() -> Any:
    """Return the state of Python's and NumPy's random generators."""
    words: Any = numpy.random.get_state()
    return random.getstate(), words[0], words[1].tobytes(), words[2:]
