"""Loop distribution: the graph of one step of a loop as a graph of all steps.

The body of a loop over time is one graph. In it, :func:`carried` marks values of the previous step, :func:`result`
their new values, and :func:`collected` values that the program keeps of each step. With an edge from each new value to
the carried one, each strongly connected component of this graph becomes one of these (Allen and Kennedy, 1990):

| component | becomes |
| --- | --- |
| constant over time | the operation, once |
| a number that depends on the step alone | a list of numbers |
| ``x[t]``, ``x[:, t]``, ``x[t * n : t * n + n]`` | a view of ``x``, time first |
| an operation without a cycle that has a rule (:mod:`snnipu.compiler.rules`) | the operation over all steps |
| a value of the previous step, without a cycle | the sequence, delayed by one step |
| a neuron's step and its states | the neuron over all steps |
| a neuron's step with feedback of its spikes through a layer | the recurrent neuron over all steps |
| an addition to its own result | a cumulative sum, or a sum if only the last value is read |
| elementwise arithmetic | a generated neuron over all steps (:mod:`snnipu.compiler.arithmetic`) |
| random numbers | drawn step by step, in the loop's order |
| anything else | a loop over this component alone |

Operations that change a tensor of the program in place run step by step, in the loop's order. Batch norms in training
update their averages in this order, too.
"""

import operator
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from snnipu.compiler import helpers, nodes, rules
from snnipu.compiler.body import Body, First, adds_integer, attributes_of, on_memory
from snnipu.compiler.cycles import components
from snnipu.compiler.lifting import Call, Lifted, map_leaves
from snnipu.compiler.marks import (
    MARKS,
    Refused,
    carried,
    changed_input,
    collected,
    counted,
    is_number,
    kept,
    result,
    unmarked,
)
from snnipu.compiler.steps import fed_back, is_output, is_step, summands
from snnipu.ops import step_operators


class Distribution:
    """The graph of all steps of a body.

    The graph's inputs are those of the body, without the clock, and then the number of steps and of the first one.

    Attributes:
        module: the graph.
        neurons: the neurons' steps that are one operator.
        cycles: the operations that run step by step, each with all operations of its cycle.
        modules: the modules that the graph calls, by name.
        changed_inputs: positions of the inputs that the graph changes in place.
    """

    def __init__(self, body: Body, first: Optional["First"] = None) -> None:
        """
        Args:
            first: the first step, if its values have another shape or type.

        Raises:
            Refused: the loop cannot be distributed.
        """
        self.body = body
        self._first = first
        self.graph = Graph()
        self.neurons: List[Node] = []
        self.cycles: Dict[Node, Sequence[Node]] = {}
        self._constant: Dict[Node, Any] = {}  # values that are the same at each step
        self._sequence: Dict[Node, Any] = {}  # tensors with time first
        self._numbers: Dict[Node, Any] = {}  # lists of numbers
        self._final: Dict[Node, Any] = {}
        self.modules: Dict[str, GraphModule] = {}
        self._find_effects()
        self.draws = any(map(nodes.is_random, body.graph.nodes))
        self.has_effects = bool(self.memory.changes)
        inputs = [node for node in (body if first is None else first.body).graph.nodes if node.op == "placeholder"]
        mapped = {node: node for node in inputs} if first is None else first.inputs
        self.changed_inputs = [inputs.index(mapped[node]) for node in self.memory.changed_inputs() if node in mapped]
        self._write()
        self.module = GraphModule({**attributes_of(body.module), **self.modules}, self.graph)

    def _find_effects(self) -> None:
        """Find the operations that change tensors of the program in place.

        Raises:
            Refused: the gradient mode or autocast changes within a step.
        """
        graph = self.body.graph
        if any(nodes.is_barrier(node) and node.target not in MARKS for node in graph.nodes):
            raise Refused("a step changes the gradient mode or autocast")
        memory = self.memory = nodes.Memory(graph)
        self._records: Dict[Node, Tuple[Node, List[Any]]] = {}
        self._in_order: List[List[Node]] = []  # groups of nodes on memory that is changed in place
        roots: Dict[Any, None] = {}
        for node, changed in memory.changes.items():
            if node in self.body.ordered or not (nodes.is_norm_in_training(node) or adds_integer(node)):
                roots.update(dict.fromkeys(memory.root(one) for one in changed))
        for root in roots:
            writes = self._writes(root)
            self._records.update(writes)
            if writes:
                continue
            self._in_order.append(on_memory(graph, memory, root))

    def _counts(self, node: Node) -> bool:
        """Return True if a call only adds an integer to a counter tensor that no other call reads."""
        return adds_integer(node) and node not in self.body.ordered

    def check(self, inputs: Sequence[Any]) -> None:
        """
        Raises:
            Refused: an input that the graph changes shares memory with another one.
        """
        if helpers.share_memory(inputs, self.changed_inputs):
            raise Refused("it changes a tensor in place that is also another input")

    def _writes(self, root: Any) -> Dict[Node, Tuple[Node, List[Any]]]:
        """Return tensor and index of each ``setitem`` if the body only writes to this memory, at one index per step."""
        group = {node for node in self.body.graph.nodes if node in self.memory and self.memory.root(node) == root}
        setitems: Dict[Node, Tuple[Node, List[Any]]] = {}
        times = set()
        for node in group:
            if not set(node.users) <= group:
                return {}
            if node not in self.memory.changes:
                continue
            if nodes.name_of(node) != "setitem" or node.args[2] in group:
                return {}
            base, index = node.args[:2]
            index = [] if index is ... else list(index) if isinstance(index, tuple) else [index]
            while nodes.name_of(base) == "select" and len(base.args) == 3:
                base, dim, number = base.args
                dim %= nodes.value_of(base).dim()
                index += [slice(None)] * (dim - len(index))
                index.insert(dim, number)
            varying = [one for one in nodes.leaves_of(index) if self._varies(one)]
            if base.op != "placeholder" or not all(map(is_number, varying)):
                return {}
            if any(one is None or one is ... or isinstance(one, list) or nodes.is_tensor(one) for one in index):
                return {}  # a list would be the numbers of all steps
            times.add((base, tuple(str(one) if nodes.leaves_of(one) else None for one in index)))
            setitems[node] = base, index
        return setitems if len(times) == 1 else {}

    # ---- writing

    def _write(self) -> None:
        body = self.body
        first = self._first
        inputs = [node for node in (body if first is None else first.body).graph.nodes if node.op == "placeholder"]
        self._inputs = {node: self.graph.placeholder(str(node.name)) for node in inputs}
        for node in body.graph.nodes:
            if node.op == "placeholder" and node not in body.clocks:
                source = node if first is None else first.inputs.get(node)
                if source is not None:
                    self._constant[node] = self._inputs[source]
        self.steps = self.graph.placeholder("num_steps")
        self.first = self.graph.placeholder("first_step")
        draws = [node for node in body.graph.nodes if nodes.is_random(node)]
        order = {node: place for place, node in enumerate(body.graph.nodes)}

        def needs(node: Node) -> List[Node]:
            sources = list(node.all_input_nodes)
            if node in self._records:
                sources = nodes.leaves_of([*self._records[node], node.args[2]])
            if node in body.number_of:
                after = body.after.get(body.number_of[node])
                sources += [after] if isinstance(after, Node) and after is not node else []
            for together in (draws, *self._in_order):
                if len(together) > 1 and node in together:
                    sources.append(together[together.index(node) - 1])
            return sources

        output = next(iter(reversed(body.graph.nodes)))
        effects = [n for n in body.graph.nodes if n in self._records or self._counts(n) or nodes.is_norm_in_training(n)]
        for component in components([*effects, *draws, *(n for each in self._in_order for n in each), output], needs):
            component.sort(key=order.__getitem__)
            if len(component) == 1 and component[0] not in needs(component[0]):
                self._write_node(component[0])
            elif self.body.varying.isdisjoint(component):
                for node in component:
                    self._write_node(node)
            else:
                self._write_cycle(component)
        self.graph.lint()

    def _write_node(self, node: Node) -> None:
        if node in self._sequence or node in self._final:
            return  # results of a neuron
        if node in self.body.clocks:
            self._numbers[node] = self._call(helpers.clock, self.steps, self.first)
        elif node.op == "placeholder":
            pass
        elif node.op == "output":
            self.graph.output(map_arg(node.args[0], self._output))
        elif node.target in (result, kept, counted, collected):
            return
        elif node.target is carried:
            if node not in self.body.varying:
                self._constant[node] = self.constant(node.args[0])
        elif node in self._records:
            target, index = self._records[node]
            value = node.args[2]
            values = self._any_sequence(value) if isinstance(value, Node) else value
            self._call(helpers.set_steps, self.constant(target), self._index(tuple(index)), values, self.steps)
        elif self._counts(node):
            by = self._call(operator.mul, self.steps, node.args[1])
            self.graph.call_method("add_", (self.constant(node.args[0]), by))
        elif node not in self.body.varying and nodes.is_norm_in_training(node):
            names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
            named = {name: map_arg(one, self.constant) for name, one in nodes.bound(node, names).items()}
            self._constant[node] = self.graph.call_function(helpers.norm_again, (self.steps,), named)
        elif node not in self.body.varying:
            self._constant[node] = self.graph.node_copy(node, self.constant)
        elif is_number(node):
            self._numbers[node] = self._number(node)
        else:
            self._write_operation(node)

    def _number(self, node: Node) -> Any:
        """Return a list of the numbers of all steps."""
        operands = node.all_input_nodes
        name = nodes.name_of(node)
        if getattr(operator, name or "none", None) is not node.target or not all(map(is_number, operands)):
            return self._each_step([node])[node]
        return self._call(helpers.each_number, name, self.steps, map_arg(node.args, self._value))

    def _write_operation(self, node: Node) -> None:
        name = nodes.name_of(node)
        first: Any = node.args[0] if node.args else None
        if node.target is torch.scalar_tensor and first in self._numbers and set(node.kwargs) == {"dtype"}:
            value, numbers = nodes.value_of(node), self._numbers[first]
            self._sequence[node] = self._call(helpers.as_tensor, numbers, value.dtype, value.device)
            return
        if name in ("getitem", "select", "narrow") and not self._varies(node.args[0]):
            self._sequence[node] = self._slices(node)
            return

        def lift(argument: Any) -> Any:
            argument = unmarked(argument)
            return Lifted(nodes.value_of(argument), argument) if self._varies(argument) else argument

        def given(argument: Any) -> Any:
            if isinstance(argument, Lifted):
                return self.sequence(argument.source)
            return self.constant(argument) if isinstance(argument, Node) else argument

        varying = [one for one in node.all_input_nodes if self._varies(one)]
        ready = bool(varying) and not any(map(is_number, varying)) and not nodes.is_random(node)
        call = Call(node, map_leaves(node.args, lift), map_leaves(node.kwargs, lift))
        make = rules.over_time(call) if ready else None
        if make is not None:
            self._sequence[node] = make(self.graph, map_leaves(call.args, given), map_leaves(call.kwargs, given))
            return
        is_pure = name != "" and not any(node in group for group in (self.memory.changes, *self._in_order))
        self._sequence.update(self._each_step([node], may_be_vmap=ready and is_pure))

    # ---- values

    def _varies(self, node: Any) -> bool:
        return isinstance(node, Node) and unmarked(node) in self.body.varying

    def constant(self, node: Any) -> Any:
        if unmarked(node) not in self._constant:
            raise Refused("it changes a new tensor in place, and reads it later")
        return self._constant[unmarked(node)]

    def sequence(self, node: Node) -> Any:
        """Return the tensor over all steps, time first."""
        node = unmarked(node)
        if node not in self._sequence:
            if node.target is not carried:
                raise Refused(f"{node} is read as a sequence")  # pragma: no cover
            number = self.body.number_of[node]
            after = self.body.after[number]
            after_values = self._any_sequence(after)
            self._sequence[node] = self._call(helpers.one_later, self._start(node), after_values)
        return self._sequence[node]

    def _any_sequence(self, node: Any) -> Any:
        """Return a value over all steps, also a constant one."""
        if self._varies(node):
            return self.sequence(node)
        return self._call(helpers.held, self.constant(node) if isinstance(node, Node) else node, self.steps)

    def _value(self, node: Node) -> Any:
        """Return a sequence, a list of numbers, or a constant."""
        if node in self._numbers:
            return self._numbers[node]
        return self.sequence(node) if self._varies(node) else self.constant(node)

    def _start(self, before: Node) -> Any:
        """Return the initial value of a carried node."""
        if self._first is None:
            return self.constant(before.args[0])
        start = self._first.starts.get(self.body.number_of[before])
        if isinstance(start, Node) and start.target == "item":
            return self.graph.call_method("item", (self._inputs[start.args[0]],))
        return self._inputs[start] if isinstance(start, Node) else start

    def _output(self, node: Any) -> Any:
        if not isinstance(node, Node):
            return node
        value_of_output = self._any_sequence(node) if node.target is collected else self._last(unmarked(node))
        value = nodes.value_of(unmarked(node))
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        detached = floating and not value.requires_grad and self._varies(node) and changed_input(unmarked(node)) is None
        return self.graph.call_method("detach", (value_of_output,)) if detached else value_of_output

    def _last(self, node: Node) -> Any:
        """Return a copy of the value after the last step."""
        changed = changed_input(node)
        if changed is not None:
            return self.constant(changed)
        if not self._varies(node):
            return self.constant(node)
        if node in self._final:
            return self._final[node]
        if node in self._numbers:
            return self._call(operator.getitem, self._numbers[node], -1)
        if not isinstance(nodes.value_of(node), torch.Tensor):
            raise Refused(f"the program reads {node} after the loop, which is not a tensor")
        self._final[node] = self._call(helpers.last, self.sequence(node))
        return self._final[node]

    def _call(self, function: Callable[..., Any], *args: Any) -> Node:
        return self.graph.call_function(function, args)

    # ---- slices

    def _index(self, index: Any) -> Any:
        """Return an index with a list of numbers in place of each number that varies."""

        def replaced(one: Any) -> Any:
            if not isinstance(one, Node):
                return one
            if not self._varies(one):
                return self.constant(one)
            if one not in self._numbers:
                raise Refused("an index is a tensor that differs from step to step")
            return self._numbers[one]

        return map_leaves(index if isinstance(index, tuple) else (index,), replaced)

    def _slices(self, node: Node) -> Node:
        """Return the parts of a tensor that the steps read, time first."""
        if nodes.name_of(node) == "narrow":
            dims = nodes.value_of(node.args[0]).dim()
            if len(node.args) != 4:
                return self._each_step([node])[node]
            dim, start, length = node.args[1:]
            bounds = [self._value(one) if isinstance(one, Node) else one for one in (start, length)]
            return self._call(helpers.take_windows, self.constant(node.args[0]), dim % dims, *bounds, self.steps)
        if nodes.name_of(node) == "select":
            dim = nodes.argument(node, "dim", node.args[1] if len(node.args) > 1 else 0)
            at = node.args[2] if len(node.args) > 2 else node.kwargs["index"]
            dims = nodes.value_of(node.args[0]).dim()
            index: Any = (*(slice(None) for _ in range(dim % dims)), at)
        else:
            index = node.args[1]
        if not nodes.is_tensor(node.args[0]) or any(nodes.is_tensor(one) for one in nodes.leaves_of(index)):
            return self._each_step([node])[node]
        return self._call(helpers.take_steps, self.constant(node.args[0]), self._index(index), self.steps)

    # ---- cycles

    def _write_cycle(self, component: List[Node]) -> None:
        inside = set(component)
        for kind in (self._as_neuron, self._as_sum):
            if kind(component, inside):
                return
        results = self._each_step(component)
        for node, value in results.items():
            (self._numbers if is_number(node) else self._sequence)[node] = value

    def _outside_users(self, node: Node, inside: Set[Node]) -> List[Node]:
        return [user for user in node.users if user not in inside]

    def _wants_sequence(self, node: Node, inside: Set[Node]) -> bool:
        """Return True if a node outside of the component reads more than the last value."""
        waiting = self._outside_users(node, inside)
        for user in waiting:  # the list grows
            if user.target in (result, kept, counted):
                waiting.extend(one for one in user.users if one.op != "output")
            elif user.op != "output":
                return True
        return any(self._outside_users(before, inside) for before in self.body.marks_of(node))

    def _as_neuron(self, component: List[Node], inside: Set[Node]) -> bool:
        steps = [node for node in component if is_step(node)]
        if len(steps) != 1 or steps[0].args[5]:
            return False
        (step,) = steps
        states: Any = step.args[1]
        parts = [node for node in component if nodes.name_of(node) == "getitem" and node.args[0] is step]
        before = [node for node in component if node.target is carried]
        feedback = None
        step_nodes = {step, *parts, *before}
        if inside != step_nodes:
            feedback = self._find_feedback(step, inside, step_nodes)
            if feedback is None:
                return False
        others = [*nodes.leaves_of(step.args[2]), *nodes.leaves_of(step.args[3]), *nodes.leaves_of(step.args[4])]
        if any(self._varies(one) for one in others):
            return False
        for place, state in enumerate(states):
            if not isinstance(state, Node) or not self._varies(state):
                continue
            if state not in before:
                return False
            after = self.body.after[self.body.number_of[state]]
            if nodes.name_of(after) != "getitem" or after.args[0] is not step:
                return False
            is_spikes = is_output(step, place) or (step, place) in self.body.spike_states
            if after.args[1] != place + 1 and not (after.args[1] == 0 and is_spikes):
                return False
        x = step.args[0] if feedback is None else feedback.other
        if x in inside:
            return False
        self._write_neuron(step, x, feedback, inside)
        return True

    def _find_feedback(self, step: Node, inside: Set[Node], step_nodes: Set[Node]) -> Any:
        """Return the layer of a feedback from the neuron's spikes to its input, or None."""
        if (
            step.target not in step_operators.FED_BACK
            or step_operators.output_state(step.target, step.args[4]) is not None
        ):
            return None
        for source_of_layer, layer, other in fed_back(step, set()):
            source = unmarked(source_of_layer)
            if source.target is not carried or source not in inside:
                continue
            after = self.body.after[self.body.number_of[source]]
            spikes = nodes.name_of(after) == "getitem" and after.args == (step, 0)
            total: Any = step.args[0]
            product = next(one for one in total.args if one is not other)
            if spikes and inside == {*step_nodes, total, product} and other not in inside:
                return _Feedback(source, other, *layer)
        return None

    def _write_neuron(self, step: Node, x: Any, feedback: Any, inside: Set[Node]) -> None:
        constant = not self._varies(x)
        outputs: Dict[int, List[Node]] = {}
        for user in step.users:
            if nodes.name_of(user) == "getitem":
                outputs.setdefault(int(user.args[1]), []).append(user)  # type: ignore[arg-type]
        states: Any = step.args[1]
        reads_all = {place: any(self._wants_sequence(n, inside) for n in same) for place, same in outputs.items()}
        store = tuple(
            reads_all.get(place + 1, False) or is_output(step, place) or step.target is not step_operators.neuron_step
            for place in range(len(states))
        )
        starts = tuple(self._state(state) for state in states)
        more: Tuple[Any, ...] = ()
        target: Any = step.target
        over_time: Any = step_operators.SEQUENCES[target]
        if feedback is not None:
            over_time, more = step_operators.FED_BACK[target], (self._connection(feedback),)
        x_values = self.constant(x) if constant else self.sequence(x)
        parameters, kernel, options = (map_arg(step.args[place], self.constant) for place in (2, 3, 4))
        call = self.graph.call_function(
            over_time,
            (x_values, self.steps if constant else None, starts, parameters, kernel, options, store, True, *more),
        )
        self.neurons.append(step)
        count = 1 + len(states)
        for place, same in outputs.items():
            for node in same:
                if place == 0 or store[place - 1]:
                    self._sequence[node] = self._call(operator.getitem, call, place)
                if place:
                    self._final[node] = self._call(operator.getitem, call, count + place - 1)

    def _state(self, state: Any) -> Any:
        if not isinstance(state, Node):
            return state
        return self._start(state) if self._varies(state) else self.constant(state)

    def _connection(self, feedback: "_Feedback") -> Tuple[Any, ...]:
        weight = self.constant(feedback.weight)
        if feedback.transposed:
            weight = self._call(torch.t, weight)
        bias = None if feedback.bias is None else self.constant(feedback.bias)
        if feedback.minus:
            weight = self._call(torch.neg, weight)
            bias = None if bias is None else self._call(torch.neg, bias)
        return self._start(feedback.spikes), weight, bias, feedback.geometry

    def _as_sum(self, component: List[Node], inside: Set[Node]) -> bool:
        """Write ``total = total + x + y`` as a sum over time."""
        before = [node for node in component if node.target is carried]
        if len(before) != 1 or any(len(node.users) > 1 for node in component[1:-1]):
            return False
        total = self.body.after[self.body.number_of[before[0]]]
        others = summands(total, before[0], inside)
        value = nodes.value_of(total)
        if len(component) != 1 + len(others) or not others or not isinstance(value, torch.Tensor):
            return False
        if nodes.key_of(nodes.value_of(before[0])) != nodes.key_of(value) or value.dtype is torch.bool:
            return False
        if value.dtype in (torch.float16, torch.bfloat16):
            return False  # a sum over time would round once, not at each step
        if not all(nodes.is_tensor(one) and nodes.value_of(one).dtype == value.dtype for one in others):
            return False
        parts: Any = None
        for other in others:
            part = self._any_sequence(other)
            missing = value.dim() - nodes.value_of(other).dim()
            if missing:
                part = self._call(helpers.widen, part, missing)
            parts = part if parts is None else self._call(operator.add, parts, part)
        if self._wants_sequence(total, inside) or self._outside_users(before[0], inside):
            self._sequence[total] = self._call(helpers.sums, self._start(before[0]), parts)
        else:
            self._final[total] = self._call(helpers.total, self._start(before[0]), parts)
        return True

    # ---- step by step

    def _each_step(self, component: Sequence[Node], may_be_vmap: bool = False) -> Dict[Node, Any]:
        """Run operations step by step, or by ``torch.vmap`` if it can, and return their results over time."""
        inside = set(component)
        states = [(node, self.body.after[self.body.number_of[node]]) for node in component if node.target is carried]
        calls = [node for node in component if node.target is not carried]
        nexts = [unmarked(after) for _, after in states]
        outside: Dict[Node, None] = {}
        for node in (*(one for call in calls for one in call.all_input_nodes), *nexts):
            if isinstance(node, Node) and unmarked(node) not in inside:
                outside[unmarked(node)] = None
        inputs = [self._value(node) for node in outside]
        sequences = tuple(self._varies(node) for node in outside)
        body = Graph()
        copies: Dict[Node, Any] = {}
        for node in (*(node for node, _ in states), *outside):
            copies[node] = body.placeholder(node.name)
        for node in calls:
            copies[node] = body.node_copy(node, lambda one: copies[unmarked(one)])
        read_later = [node for node in calls if self._used_outside(node, inside)]
        changed = {node for each in self._in_order for node in each}
        for node in read_later:
            if node in changed and nodes.is_tensor(node):
                copies[node] = body.call_method("clone", (copies[node],))
        after = tuple(copies[node] if isinstance(node, Node) else node for node in nexts)
        body.output((tuple(copies[node] for node in read_later), after))
        body.lint()
        name = f"steps_{len(self.modules)}"
        self.modules[name] = GraphModule(attributes_of(self.body.module), body)
        run = self.graph.get_attr(name)
        values = [*map(nodes.value_of, outside)], [*map(nodes.value_of, read_later)]
        if may_be_vmap and helpers.is_vectorized(self.modules[name], *values, sequences):
            call = self._call(helpers.vectorized, run, tuple(inputs), sequences)
            return {node: self._call(operator.getitem, call, place) for place, node in enumerate(read_later)}
        starts = tuple(self._start(node) for node, _ in states)
        call = self._call(helpers.each_step, run, self.steps, starts, tuple(inputs), sequences)
        self.cycles.update({node: component for node in calls if not is_number(node)})
        series = self._call(operator.getitem, call, 0)
        finals = self._call(operator.getitem, call, 1)
        for place, node in enumerate(nexts):
            if isinstance(node, Node):
                self._final.setdefault(node, self._call(operator.getitem, finals, place))
        return {node: self._call(operator.getitem, series, place) for place, node in enumerate(read_later)}

    def _used_outside(self, node: Node, inside: Set[Node]) -> bool:
        return any(self._outside_users(one, inside) for one in (node, *self.body.marks_of(node)))


@dataclass
class _Feedback:
    """A layer from a neuron's spikes of the previous step to its input."""

    spikes: Node
    other: Node
    weight: Node
    bias: Optional[Node]
    geometry: Tuple[int, ...]
    transposed: bool
    minus: bool
