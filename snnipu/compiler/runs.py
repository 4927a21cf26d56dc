"""The operators of a loop whose results come back, those of all steps that are the same one together."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch
from torch.fx import Node

from snnipu._generator.graph import FUNCTIONS
from snnipu.compiler import nodes, own_functions
from snnipu.compiler.own_functions import COPIES, NUMBERS, SAME
from snnipu.compiler.plan import Bundle, Chain, Operator, is_step
from snnipu.ops import leaves

# A loop of more operators than this is not looked into further.
_MOST_RUNS = 256


class Same(NamedTuple):
    """An argument that is a result of the same step."""

    run: int


class Before(NamedTuple):
    """An argument that is a result of the step before; before the first step it is ``first``."""

    run: int
    first: Any


class Given(NamedTuple):
    """An argument that comes from outside, at each step another one."""

    values: Tuple[Any, ...]


class Fixed(NamedTuple):
    """An argument that is the same at all steps."""

    value: Any


Argument = Union[Same, Before, Given, Fixed]


def form_of(node: Any) -> Any:
    """Shape, dtype and device; of a neuron's step those of its spikes."""
    value = nodes.value_of(node)
    if isinstance(value, (tuple, list)) and value and len({nodes.key_of(one) for one in value}) == 1:
        value = value[0]
    return nodes.key_of(value) if isinstance(value, torch.Tensor) else ((), None, None)


def is_neuron(node: Node) -> bool:
    """Whether the call is a neuron's step that has an equation, and may be a part of a sequence."""
    return node.target is leaves.neuron_step and not node.args[5]


def has_several(node: Node) -> bool:
    """Whether a call's results are taken from it one by one: a neuron's step, a function of the program's own."""
    return is_neuron(node) or own_functions.is_own(node)


def given_to(node: Node) -> List[Any]:
    """What a call takes; of a neuron's step the input, its states and its parameters."""
    if own_functions.is_own(node):
        return own_functions.given(node)
    if not is_step(node):
        return list(node.args)
    x, states, parameters = node.args[:3]
    return [x, *states, *parameters]  # type: ignore[misc]


@dataclass(eq=False)
class Runs:
    """Operators of a loop; those of all steps that are the same one are a run.

    Attributes:
        form: of the results of every step.
        place: run and step of a node.
        arguments: of the runs that can be recorded, as far as can be told without trying.
        inside: all nodes of the loop whose results come back, operators or not.
    """

    steps: int
    form: Any
    inside: Set[Node] = field(default_factory=set)
    runs: List[Tuple[Node, ...]] = field(default_factory=list)
    place: Dict[Node, Tuple[int, int]] = field(default_factory=dict)
    arguments: Dict[int, List[Argument]] = field(default_factory=dict)

    def add(self, run: Sequence[Any]) -> Optional[int]:
        """Take nodes for a run, where they are none yet; returns its number, or None where they cannot be one."""
        if not all(isinstance(node, Node) and node.op in ("call_function", "call_method") for node in run):
            return None
        kinds = {(node.op, node.target, len(given_to(node)), tuple(node.kwargs)) for node in run}
        if len(kinds) > 1 or len(set(run)) < self.steps or len(self.runs) >= _MOST_RUNS:
            return None
        if is_step(run[0]) and not all(is_neuron(node) and node.args[3:5] == run[0].args[3:5] for node in run):
            return None
        if len({node.meta.get(nodes.OWN) for node in run}) > 1:
            return None
        run = tuple(run)
        if run in self.runs:
            return self.runs.index(run)
        if any(run[1:] == other[:-1] for other in self.runs):
            return None  # the results of the step before
        # A node may be of two runs, at different steps, for equal calls of the graph are one.
        for t, node in enumerate(run):
            self.place.setdefault(node, (len(self.runs), t))
        self.runs.append(run)
        return len(self.runs) - 1

    def complete(self) -> None:
        """Find the other runs among the nodes ``inside``."""
        inside = self.inside
        for number, run in enumerate(self.runs):  # which grow
            if is_step(run[0]):
                for users in self.followers(number):
                    self.add(users)
            for values in zip(*map(given_to, run)):
                # The first step needs no result of the loop.
                own = all(isinstance(value, Node) and value in inside for value in values[1:])
                if own and self.add(values) is None:
                    self.add([*values[1:], self.after(values[-1])])
            for users in self.followers(number):
                if users[1] in inside:
                    self.add(users)

    def followers(self, number: int) -> Iterator[List[Node]]:
        """What all steps do with a run's results, where each does it once."""
        run = self.runs[number]

        def kinds(t: int) -> Dict[Any, List[Node]]:
            found: Dict[Any, List[Node]] = {}
            for user in run[t].users:
                places = tuple(at for at, one in enumerate(given_to(user)) if one is run[t])
                numbers = str([one for one in user.args if not isinstance(one, Node)]) if not is_step(user) else ""
                found.setdefault((user.op, user.target, places, numbers), []).append(user)
            return found

        steps = [kinds(t) for t in range(self.steps)]
        for kind in steps[0]:
            if all(len(step.get(kind, ())) == 1 for step in steps):
                yield [step[kind][0] for step in steps]

    def after(self, node: Node) -> Optional[Node]:
        """What takes one step later the same results as ``node``; None where that is not known."""
        for at, one in enumerate(given_to(node)):
            run, t = self.place.get(one, (-1, self.steps)) if isinstance(one, Node) else (-1, self.steps)
            if t + 1 < self.steps:
                later = self.runs[run][t + 1]
                found = [
                    user
                    for user in later.users
                    if (user.op, user.target) == (node.op, node.target)
                    and len(given_to(user)) == len(given_to(node))
                    and given_to(user)[at] is later
                    and (nodes.name_of(node) != "getitem" or user.args[1] == node.args[1])
                ]
                if len(found) == 1:
                    return found[0]
        return None

    def look(self, number: int) -> bool:
        """Find what a run takes; returns whether it can be recorded."""
        run = self.runs[number]
        name = nodes.name_of(run[0])
        known = name in (*COPIES, *NUMBERS, "spike_of", "getitem") or SAME.get(name, name) in FUNCTIONS
        if not known and not has_several(run[0]):
            return False
        shape, _, device = self.form
        forms = [(shape, torch.float32, device), (shape, torch.bool, device)]
        if any(form_of(node) not in forms for node in run[1:]) or form_of(run[0])[1:] != form_of(run[-1])[1:]:
            return False
        if not self._spreads(run[0]) or any(node.kwargs != run[0].kwargs for node in run[1:]):
            return False
        if known and not (own_functions.keywords_are_known(run[0]) and not own_functions.is_cast_to_bool(run[-1])):
            return False
        found = [self._argument(values) for values in zip(*map(given_to, run))]
        if name == "getitem" and not (isinstance(found[0], Same) and has_several(self.runs[found[0].run][0])):
            return False
        arguments = [one for one in found if one is not None and self._fits(one)]
        if len(arguments) < len(found):
            return False
        self.arguments[number] = arguments
        return True

    def _argument(self, values: Sequence[Any]) -> Optional[Argument]:
        first, last = values[0], values[-1]
        if all(value is first for value in values):
            whole = isinstance(first, Node) and nodes.is_tensor(first) and form_of(first) == self.form
            return Given(tuple(values)) if whole and len(self.form[0]) > 1 else Fixed(first)
        if not any(isinstance(value, Node) for value in values):
            return Fixed(first) if all(type(one) is type(first) and one == first for one in values) else None
        run = self.place.get(last, (-1, 0))[0] if isinstance(last, Node) else -1
        if run >= 0 and tuple(values) == self.runs[run]:
            return Same(run)
        if run >= 0 and tuple(values[1:]) == self.runs[run][:-1]:
            return Before(run, first)
        return Given(tuple(values)) if all(form_of(value) == self.form for value in values) else None

    def _fits(self, argument: Argument) -> bool:
        if isinstance(argument, Before):
            first = argument.first
            return first is None or (_of_float(first, self.form[2]) and self._spreads(first))
        if not isinstance(argument, Fixed) or not isinstance(argument.value, Node):
            return True
        if not nodes.is_tensor(argument.value):
            return True  # a surrogate's number; others are refused when the step is recorded
        return _of_float(argument.value, self.form[2]) and self._spreads(argument.value)

    def _spreads(self, value: Any) -> bool:
        """Whether a number or a tensor broadcasts to the form of a step."""
        own, shape = form_of(value)[0], self.form[0]
        return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(own[::-1], shape[::-1]))

    def is_narrow(self, number: int) -> bool:
        """Whether the first step's result is broadcast later."""
        return form_of(self.runs[number][0])[0] != self.form[0]


def _of_float(value: Any, device: Any) -> bool:
    """A number, or a tensor whose product with one of float32 is one."""
    if not isinstance(value, Node):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return nodes.is_tensor(value) and form_of(value)[1:] == (torch.float32, device)


def runs_of(cycles: Sequence[Sequence[Any]], apart: int, ends: bool = False) -> List[Runs]:
    """The runs of what needs its own results, those of one form together: from the bundles to all that they take.

    Args:
        apart: so many first steps are left as they are.
        ends: what runs one step more often than the others ends with them: at the last step, what is computed for a
            next one is in vain, and gone.
    """
    found: Dict[Any, Runs] = {}
    for cycle in cycles:
        bundles = [unit for unit in cycle if isinstance(unit, Operator)]
        floats = [bundle for bundle in bundles if form_of(bundle.nodes[0])[1] is torch.float32]
        if not floats:
            continue
        whole = Counter(bundle.steps for bundle in floats).most_common(1)[0][0]
        form = Counter(form_of(bundle.nodes[-1]) for bundle in floats if bundle.steps == whole).most_common(1)[0][0]
        steps = whole - apart
        if steps < 2:
            continue
        runs = found.setdefault((steps, form), Runs(steps, form))
        # Neurons first: their results must be runs before an operator is seen to take those of the step before.
        for unit in sorted(cycle, key=lambda unit: not isinstance(unit, Chain)):
            own = unit.nodes if isinstance(unit, Bundle) else (unit,)
            runs.inside.update(own)
            runs.inside.update(user for node in own if is_step(node) for user in node.users)
            fed_back = isinstance(unit, Chain) and unit.feedback is not None
            if isinstance(unit, (Operator, Chain)) and steps <= unit.steps <= whole + ends and not fed_back:
                runs.add(own[-steps:])
    for runs in found.values():
        runs.complete()
    return list(found.values())
