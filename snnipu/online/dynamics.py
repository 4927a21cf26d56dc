"""A neuron's derivatives over a chunk, by the kernels of its adjoint: of each step by itself, and with the history.

With ``h`` the states, ``x`` the input and ``s`` the output of a step,

    s[t], h[t] = step(h[t-1], x[t])

the *local* adjoint is that of every step by itself, the states before it held constant; the *history* adjoint carries
gradients of the states back through the chunk, by ``dh[t]/dh[t-1]`` alone. What a rule leaves out is left out here: the
connections between neurons, and for rules without the reset the reset.
"""

from functools import cached_property, lru_cache
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._generator import Adjoint
from snnipu._generator.graph import Operand, Value
from snnipu._generator.step import Reads, is_one_of
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.ops import _library, _neurons
from snnipu.ops._arguments import compute_dtype, is_autocast
from snnipu.ops.neuron_sequence import kernel_arguments
from snnipu.ops.recurrent_sequence import SPIKES, STRENGTH, RecurrentConnection

Tensors = Sequence[Optional[torch.Tensor]]


class Gradients(NamedTuple):
    """Of an adjoint: of the input ``[T, B, ...]``, the states before and what is made of the parameters.

    Of parameters that do not learn they are empty.
    """

    x: torch.Tensor
    before: List[torch.Tensor]
    parameters: List[torch.Tensor]


class Chunk(NamedTuple):
    """A neuron's chunk: its input, its output, the states before it and after each step."""

    x: Optional[torch.Tensor]  # None: no derivative reads it
    spk: torch.Tensor
    initial: List[torch.Tensor]
    states: List[torch.Tensor]  # [T, B, ...]
    arrived: Optional[torch.Tensor]  # what came through the recurrent connection
    values: List[torch.Tensor]  # what is made of the parameters, as the kernels take it
    needs: Sequence[bool]  # which of them learn

    @property
    def before(self) -> List[torch.Tensor]:
        """The states before each step."""
        return [torch.cat([first.unsqueeze(0), rows[:-1]]) for first, rows in zip(self.initial, self.states)]


class Dynamics:
    """The derivatives of ``neuron``; ``keeps_reset``: those of its resets, ``keeps_loop``: of a recurrent neuron's own
    connection to itself."""

    def __init__(self, neuron: Any, keeps_reset: bool, keeps_loop: bool) -> None:
        self.neuron: Any = neuron
        self.keeps_reset, self.keeps_loop = keeps_reset, keeps_loop
        # Kept for the backward pass: the neuron's attributes may change before it.
        self.neuron_options: Dict[str, Any] = dict(neuron._options())
        self.surrogate = neuron._surrogate()

    def check(self, name: str) -> None:
        """Raise where the kernels do not do what the neuron does."""
        neuron = self.neuron
        if neuron._fuses() and not neuron._replaces("forward", "reset_mem") and not is_hooked(neuron):
            return
        known = self.surrogate
        all_to_all = getattr(neuron, "all_to_all", False)
        reasons = {
            "its spike_grad is not a surrogate of snnipu.surrogate or snntorch.surrogate with a fixed function": (
                known is None or known.kernel is None
            ),
            "it has inhibition=True": getattr(neuron, "inhibition", False),
            "it has a state_quant": getattr(neuron, "state_quant", False),
            "it has hooks": is_hooked(neuron),
            "its reset_mechanism is one that no kernel has": (
                hasattr(neuron, "_reset_mechanism") and neuron._reset_mechanism not in neuron.fusable
            ),
            "it is recurrent, under torch.autocast": all_to_all and is_autocast(neuron.threshold.device.type),
            "its recurrent layer must be a plain nn.Linear, or nn.Conv2d of stride 1 padded by zeros; remove its "
            "parametrizations and hooks": all_to_all and (self.connection is None or not is_plain(neuron.recurrent)),
        }
        why = next((why for why, holds in reasons.items() if holds), "it replaces parts of its step")
        raise TypeError(f"module {name} ({type(neuron).__name__}) cannot learn online: {why}")

    @cached_property
    def plan(self) -> _neurons.NeuronPlan:
        """Of the step that is differentiated."""
        return _neurons.plan(self.neuron.equation, self._options())

    def _options(self) -> Dict[str, Any]:
        options = dict(self.neuron_options)
        if not self.keeps_reset and self._is_built():
            changed = {"reset_mechanism": "none", "reset_delay": True}
            options.update((name, value) for name, value in changed.items() if name in options)
        return options

    def _is_built(self) -> bool:
        return self.neuron.equation in _neurons.BUILT

    @property
    def connection(self) -> Optional[RecurrentConnection]:
        """Of an all-to-all recurrent layer."""
        found: Optional[RecurrentConnection] = (
            self.neuron._connection() if getattr(self.neuron, "all_to_all", False) else None
        )
        return found

    @property
    def strength(self) -> Optional[int]:
        """The place of the strength by which spikes come back, among what the kernels take."""
        names = self.plan.names
        return names.index(STRENGTH) if self._is_built() and STRENGTH in names else None

    def parameters(self, x: torch.Tensor) -> List[torch.Tensor]:
        """What the kernels take, made of the neuron's parameters under autograd."""
        # Never those that are shared.
        return list(kernel_arguments(self.plan, x, x.shape[1:], [], self._values())[1])

    def _values(self) -> Dict[str, Any]:
        values = dict(self.neuron._values())
        if self.connection is not None:
            values[STRENGTH] = 1.0
        return values

    def start(self, x: torch.Tensor) -> List[torch.Tensor]:
        """The states a sequence starts from."""
        starts = getattr(self.neuron, "_starts", None)
        step = x.shape[1:]
        found = [None] * len(self.neuron._states())
        if starts is not None:
            hidden, self.neuron.init_hidden = self.neuron.init_hidden, False
            try:
                found = starts(found, step, x)
            finally:
                self.neuron.init_hidden = hidden
        zero = x.new_zeros(step, dtype=compute_dtype(x.dtype))
        return [zero if state is None else state.contiguous() for state in found]

    def run(
        self, x: torch.Tensor, initial: List[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Tuple[Chunk, List[torch.Tensor]]:
        """The chunk, and the states after it; what arrived is not known yet."""
        x = x.contiguous()
        made = self.neuron._kernels(x, initial, num_steps=None, store=[True] * len(initial), need_final=True)
        spk = made.spk.contiguous()
        states = [state.contiguous() for state in made.states]
        needs = [value.requires_grad for value in values]
        read = x if self._reads(needs).x or self._remakes(needs) or not x.numel() else None
        chunk = Chunk(read, spk, initial, states, None, [value.detach() for value in values], needs)
        return chunk, [state.contiguous() for state in made.final]

    # ---- adjoints

    def local(
        self,
        chunk: Chunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
        need_before: bool = True,
    ) -> Gradients:
        """Of every step by itself: gradients of its input and of the states before it, ``[T, B, ...]``.

        ``parameters``: as :meth:`history` takes them.
        """
        shape = chunk.spk.shape
        folded = (1, shape[:2].numel(), *shape[2:])
        after = self._made(chunk)
        made = self._adjoint(
            None if grad_spk is None else grad_spk.reshape(folded),
            [None if grad is None else grad.reshape(folded) for grad in grad_states],
            [],
            None if chunk.x is None else chunk.x.reshape(folded),
            self._read_before(chunk, folded[1:]),
            chunk.values if parameters is None else parameters,
            [state.reshape(folded) for state in after],
            chunk.needs,
            need_before,
        )
        of_states = [grad.reshape(shape) for grad in made.before] if need_before else []
        if need_before and chunk.arrived is not None and self.keeps_loop:
            of_states[SPIKES] = of_states[SPIKES] * self._loop().to(chunk.spk.dtype)
        return Gradients(made.x.reshape(shape), of_states, made.parameters)

    def _read_before(self, chunk: Chunk, shape: Sequence[int]) -> List[Optional[torch.Tensor]]:
        """The states before each step that the adjoint reads, and what arrives in the place of spikes."""
        reads = self._reads(chunk.needs)
        found: List[Optional[torch.Tensor]] = []
        for place, (first, rows) in enumerate(zip(chunk.initial, chunk.states)):
            if not reads.before >> place & 1:
                found.append(None)
            elif place == SPIKES and chunk.arrived is not None:
                found.append(chunk.arrived.reshape(shape))
            else:
                found.append(torch.cat([first.unsqueeze(0), rows[:-1]]).reshape(shape))
        return found

    def _reads(self, needs: Sequence[bool]) -> Reads:
        """What the adjoint reads, with the gradients of these parameters."""
        reads = self.plan.reads
        for needed, of_parameter in zip(needs, self.plan.reads_for):
            reads = reads | of_parameter if needed else reads
        return reads

    def _is_cut(self) -> bool:
        """Whether the step that is differentiated leaves out a reset of the neuron's."""
        return not self.keeps_reset and self._is_built() and self._options() != self.neuron_options

    def _fires_earlier(self) -> bool:
        """Whether spikes are decided on other states than those after the step, which has reset them."""
        return self._is_cut() and not self.neuron_options.get("reset_delay", True)

    def _remakes(self, needs: Sequence[bool]) -> bool:
        """Whether the states after a step are not what its adjoint is to read."""
        return self._fires_earlier() or (self._is_cut() and self._reads_others(needs))

    def _reads_others(self, needs: Sequence[bool]) -> bool:
        """Whether the adjoint reads states after a step beside the membrane, which is the last one."""
        return bool(self._reads(needs).after & ~(1 << len(self.plan.states) - 1))

    def _made(self, chunk: Chunk) -> List[torch.Tensor]:
        """The states after each step by the step that is differentiated, its membrane as spikes are decided on: without
        a reset at once."""
        made = list(chunk.states)
        if self._is_cut() and self._reads_others(chunk.needs):
            made[:-1] = self._by_steps(chunk, self.plan)[:-1]
        if self._fires_earlier():
            options = {**self.neuron_options, "reset_delay": True}
            made[-1] = self._by_steps(chunk, _neurons.plan(self.neuron.equation, options))[-1]
        if self.plan.output is not None:
            made[self.plan.output] = chunk.states[self.plan.output]
        return made

    def _by_steps(self, chunk: Chunk, plan: _neurons.NeuronPlan) -> List[torch.Tensor]:
        """The states after each step, by itself from those before it."""
        shape, before = chunk.spk.shape, chunk.before
        if chunk.arrived is not None:
            before[SPIKES] = chunk.arrived
        assert chunk.x is not None
        rows = [state.flatten(0, 1) for state in before]
        run = _library.kernel_for("neuron_sequence_fwd", chunk.values[0])
        x = chunk.x.reshape(1, -1, *shape[2:])
        states = run(x, rows, chunk.values, plan.neuron, plan.variant, None, (1 << len(rows)) - 1, False)[1]
        return [state.reshape(shape) for state in states]

    def history(
        self,
        chunk: Chunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        grad_final: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
    ) -> Gradients:
        """Through the states, of gradients after each step or after the last one; those of the states before are of the
        chunk's beginning.

        ``parameters`` in place of the chunk's: spread, for the gradient of each neuron of each sample.
        """
        values, needs = list(chunk.values if parameters is None else parameters), list(chunk.needs)
        x, arrived, place = chunk.x, chunk.arrived, self.strength
        cut = place if not self.keeps_loop else None
        if cut is not None and arrived is None and (x is not None or needs[cut]):
            arrived = _by_neuron(chunk.before[SPIKES], chunk.values[cut])
        if arrived is not None and x is not None:
            x = x + arrived
        if cut is not None:
            # The kernels make a step's spikes of its membrane again, which a reset at once has changed: what came back
            # is input, and its strength's gradient is that of an input.
            values[cut], needs[cut] = torch.zeros_like(values[cut]), False
        elif place is not None and chunk.arrived is not None:
            # What a neuron sends itself is told apart from what arrives.
            loop = self._loop().to(chunk.spk.dtype)
            x = None if x is None else x - chunk.before[SPIKES] * loop
            values[place] = loop.expand(chunk.spk.shape[2:]).reshape(-1)
        made = self._adjoint(grad_spk, grad_states, grad_final, x, chunk.initial, values, chunk.states, needs)
        if cut is not None and chunk.needs[cut]:
            of_strength = _rows(made.x * chunk.before[SPIKES], values[cut])
            made.parameters[cut] = of_strength.sum((0, 1)).reshape(values[cut].shape)
        return made

    def whole(
        self,
        chunk: Chunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
    ) -> Gradients:
        """What the output and the states owe to the chunk, by each step and by the history."""
        if not self._remakes(chunk.needs):
            return self.history(chunk, grad_spk, grad_states, [], parameters)
        # The states that are there afterwards are not those that the adjoint of a step reads.
        local = self.local(chunk, grad_spk, grad_states, parameters)
        later = [torch.cat([rows[1:], torch.zeros_like(rows[:1])]) for rows in local.before]
        remembers = self.remembers
        of_states = [rows if place in remembers else None for place, rows in enumerate(later)]
        through = self.history(chunk, None, of_states, [], parameters)
        return Gradients(
            local.x + through.x,
            [rows[0] + grad for rows, grad in zip(local.before, through.before)],
            [a + b for a, b in zip(local.parameters, through.parameters)],
        )

    def _loop(self) -> torch.Tensor:
        """By what a neuron's own spike comes back through the connection: broadcasts to a step."""
        connection = self.connection
        assert connection is not None
        weight = connection.weight.detach()
        if not connection.geometry:
            return weight.diagonal()
        own = torch.arange(weight.shape[0], device=weight.device) % weight.shape[1]
        centre = weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2]
        return centre.gather(1, own[:, None]).reshape(-1, 1, 1)

    def _adjoint(
        self,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        grad_final: Tensors,
        x: Optional[torch.Tensor],
        initial: Tensors,
        values: List[torch.Tensor],
        states: List[torch.Tensor],
        needs: Sequence[bool],
        need_before: bool = True,
    ) -> Gradients:
        output = self.plan.output
        if output is not None and grad_states:
            # The kernels take the gradient of a state that is the output as the output's.
            of_state = grad_states[output]
            if of_state is not None:
                grad_spk = of_state if grad_spk is None else grad_spk + of_state
            grad_states = [None if place == output else grad for place, grad in enumerate(grad_states)]
        of_states = list(grad_states) or [None] * len(states)
        given = (grad_spk, of_states, list(grad_final), x, list(initial), values)
        return _run(self._operator, given, states, needs, need_before)

    @property
    def _operator(self) -> "_Operator":
        kernel = self.surrogate.kernel
        return _Operator(self.plan.neuron, self.plan.variant, kernel.id, kernel.a, kernel.b)

    # ---- what the history is made of

    @property
    def remembers(self) -> List[int]:
        """The states whose history counts: not the spikes where they only come back through a connection."""
        cut = self.plan.output if self.strength is not None and not self.keeps_loop else None
        return [place for place in range(len(self.plan.states)) if place != cut]

    @cached_property
    def is_uniform(self) -> bool:
        """Whether the history is the same for all neurons and samples: made of parameters of one element alone."""
        plan, values = self.plan, self._values()
        read = _parameters_read(plan.neuron, plan.variant, tuple(self.remembers))
        if read is None:
            return False
        tensors = [values[name] for name in plan.parameters]
        is_single = [not isinstance(value, torch.Tensor) or value.numel() == 1 for value in tensors]
        for _, operands in plan.operations:
            is_single.append(all(is_single[place] for is_place, place in operands if is_place))
        return all(place is None or is_single[place] for name, place in zip(plan.names, plan.places) if name in read)

    def of_one(self, chunk: Chunk) -> List[Gradients]:
        """Of each state that counts, after the chunk: what a neuron's input and states before owe it, where all neurons
        are alike."""
        values = [v.reshape(-1)[:1] for v in chunk.values]
        place = self.strength
        if place is not None and not self.keeps_loop:
            values[place] = torch.zeros_like(values[place])
        steps, numbers = len(chunk.spk), tuple(torch.cat(values).tolist())
        given = (self._operator, steps, chunk.spk.dtype, values[0].dtype, chunk.spk.device, numbers, len(chunk.states))
        return [_of_one(*given, place) for place in self.remembers]


def _by_neuron(steps: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Steps ``[T, B, ...]`` times one value for all or for each neuron."""
    return (_rows(steps, value) * value.reshape(-1)).reshape(steps.shape)


def _rows(steps: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Reshape steps ``[T, B, ...]`` to ``[T, rows, n]``, where ``value`` has ``n`` elements."""
    count = value.numel()
    return steps.reshape(len(steps), steps.shape[1:].numel() // max(count, 1), count)  # 0 in an empty batch


class _Operator(NamedTuple):
    """Which adjoint."""

    neuron: str
    variant: int
    surrogate: int
    a: float
    b: float


def _run(
    operator: _Operator, given: Sequence[Any], states: List[torch.Tensor], needs: Sequence[bool], need_before: bool
) -> Gradients:
    """``given``: what ``neuron_sequence_bwd`` takes before the neuron's name."""
    run = _library.kernel_for("neuron_sequence_bwd", states[0])
    neuron, variant, *surrogate = operator
    return Gradients(*run(*given, neuron, variant, None, *surrogate, [need_before] * len(states), list(needs), states))


@lru_cache(maxsize=256)
def _of_one(
    operator: _Operator,
    steps: int,
    dtype: torch.dtype,
    of_values: torch.dtype,
    device: torch.device,
    numbers: Tuple[float, ...],
    count: int,
    place: int,
) -> Gradients:
    """The gradients of one of ``count`` states of a neuron, after so many steps, by the parameters' numbers."""
    with torch.inference_mode(False), torch.no_grad():  # it is kept for calls of every mode
        values = [torch.tensor([number], dtype=of_values, device=device) for number in numbers]
        states = [torch.zeros(steps, 1, dtype=dtype, device=device)] * count
        none: List[Optional[torch.Tensor]] = [None] * count
        final = list(none)
        final[place] = torch.ones(1, dtype=dtype, device=device)
        initial = [row[0] for row in states]
        given = (None, none, final, states[0], initial, values)
        return _run(operator, given, states, [False] * len(values), True)


@lru_cache(maxsize=256)
def _parameters_read(neuron: str, variant: int, remembers: Tuple[int, ...]) -> Optional[FrozenSet[str]]:
    """The parameters that the history of the states is made of; None: of a state or the input, too."""
    adjoint = _neurons.adjoint(neuron, variant)
    found = _read(adjoint, remembers)
    if found is None:
        return None
    texts = _neurons.derived_names(neuron, variant)
    return frozenset(text for text, value in zip(texts, adjoint.step.derived) if is_one_of(value, found))


def _read(adjoint: Adjoint, remembers: Sequence[int]) -> Optional[List[Value]]:
    """Of what is made of parameters, that which the history of the states is made of; None: of a state or the input."""
    zeros = {id(adjoint.grad_spk)}
    zeros |= {id(value) for place, value in enumerate(adjoint.grad_after) if place not in remembers}
    derived = adjoint.step.derived
    seeds = {id(value) for value in (*adjoint.grad_after, *adjoint.seeds)}
    zero: Dict[int, bool] = {}

    def is_zero(value: Optional[Operand]) -> bool:
        if not isinstance(value, Value):
            return value is None or value == 0
        if id(value) not in zero:
            operation, operands = value.operation, value.operands
            if id(value) in zeros:
                zero[id(value)] = True
            elif operation == "mul":
                zero[id(value)] = any(map(is_zero, operands))
            elif operation in ("neg", "div", "stored"):
                zero[id(value)] = is_zero(operands[0])
            elif operation == "surrogate":
                zero[id(value)] = is_zero(operands[1])
            elif operation == "where":
                zero[id(value)] = all(map(is_zero, operands[1:]))
            elif operation in ("add", "sub"):
                zero[id(value)] = all(map(is_zero, operands))
            else:
                zero[id(value)] = False
        return zero[id(value)]

    found: List[Value] = []
    left: List[Any] = [adjoint.grad_x, *(adjoint.grad_before[place] for place in remembers)]
    seen = set()
    while left:
        value = left.pop()
        if not isinstance(value, Value) or id(value) in seen or id(value) in seeds or is_zero(value):
            continue
        seen.add(id(value))
        if is_one_of(value, derived):
            found.append(value)
        elif value.operation == "input":
            return None
        else:
            left.extend(value.operands)
    return found
