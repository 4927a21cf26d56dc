"""The derivatives of a neuron over a chunk, computed by the kernels of its adjoint.

With ``h`` the states, ``x`` the input and ``s`` the output of a step,

    s[t], h[t] = step(h[t-1], x[t])

the *local* adjoint differentiates every step separately, with the states before it constant. The *history* adjoint
propagates gradients of the states back through the chunk, by ``dh[t]/dh[t-1]`` alone. Both omit the parts that the
rule neglects: the connections between neurons and, for some rules, the reset.
"""

from functools import cached_property, lru_cache
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu._generator.graph import Value
from snnipu._generator.step import Reads, is_one_of, needed
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.ops import _library, _neurons
from snnipu.ops._arguments import compute_dtype, is_autocast
from snnipu.ops.neuron_sequence import kernel_arguments
from snnipu.ops.recurrent_sequence import SPIKES, STRENGTH, RecurrentConnection

Tensors = Sequence[Optional[torch.Tensor]]


class AdjointGradients(NamedTuple):
    """Results of an adjoint: gradients of the input ``[T, B, ...]``, the states before it and the kernel's parameters.

    The gradient of a fixed parameter is an empty tensor.
    """

    x: torch.Tensor
    before: List[torch.Tensor]
    parameters: List[torch.Tensor]


class NeuronChunk(NamedTuple):
    """A neuron's chunk: its input, its output, and the states before the chunk and after each step."""

    x: Optional[torch.Tensor]  # absent if no derivative reads it
    spk: torch.Tensor
    initial: List[torch.Tensor]
    states: List[torch.Tensor]  # [T, B, ...]
    recurrent_input: Optional[torch.Tensor]  # current of the recurrent connection
    values: List[torch.Tensor]  # the kernel's arguments, derived from the parameters
    needs: Sequence[bool]  # True for each value that learns

    @property
    def before(self) -> List[torch.Tensor]:
        """The states before each step."""
        return [torch.cat([first.unsqueeze(0), rows[:-1]]) for first, rows in zip(self.initial, self.states)]


class Dynamics:
    """The derivatives of a neuron over a chunk.

    Args:
        neuron: the neuron.
        keeps_reset: include the derivatives of the reset.
        keeps_loop: include a recurrent neuron's connection to itself.
    """

    def __init__(self, neuron: Any, keeps_reset: bool, keeps_loop: bool) -> None:
        self.neuron: Any = neuron
        self.keeps_reset, self.keeps_loop = keeps_reset, keeps_loop
        # Copies for the backward pass: the neuron's attributes may change before it.
        self.neuron_options: Dict[str, Any] = dict(neuron._options())
        self.surrogate = neuron._surrogate()

    def check(self, name: str) -> None:
        """Check that the kernels compute the neuron's step.

        Raises:
            TypeError: they do not; the message names the reason.
        """
        neuron = self.neuron
        if neuron._fuses() and not neuron._replaces("forward", "reset_mem") and not is_hooked(neuron):
            return
        surrogate = self.surrogate
        all_to_all = getattr(neuron, "all_to_all", False)
        reasons = {
            "its spike_grad is not a surrogate of snnipu.surrogate or snntorch.surrogate with a fixed function": (
                surrogate is None or surrogate.kernel is None
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
        reason = next((reason for reason, holds in reasons.items() if holds), "it replaces parts of its step")
        raise TypeError(f"module {name} ({type(neuron).__name__}) cannot learn online: {reason}")

    @cached_property
    def plan(self) -> _neurons.NeuronPlan:
        """The plan of the step that is differentiated."""
        return _neurons.plan(self.neuron.equation, self._options())

    def _options(self) -> Dict[str, Any]:
        options = dict(self.neuron_options)
        if not self.keeps_reset and self._is_builtin():
            changed = {"reset_mechanism": "none", "reset_delay": True}
            options.update((name, value) for name, value in changed.items() if name in options)
        return options

    def _is_builtin(self) -> bool:
        return self.neuron.equation in _neurons.BUILT

    @property
    def connection(self) -> Optional[RecurrentConnection]:
        """The connection of an all-to-all recurrent layer, else None."""
        return self.neuron._connection() if getattr(self.neuron, "all_to_all", False) else None  # type: ignore[no-any-return]

    @property
    def strength(self) -> Optional[int]:
        """Index of the recurrent strength among the kernel's arguments; None if the neuron has none."""
        names = self.plan.names
        return names.index(STRENGTH) if self._is_builtin() and STRENGTH in names else None

    def parameters(self, x: torch.Tensor) -> List[torch.Tensor]:
        """Return the kernel's arguments, derived from the neuron's parameters under autograd."""
        # A copy: the list may be shared with other calls.
        return list(kernel_arguments(self.plan, x, x.shape[1:], [], self._values())[1])

    def _values(self) -> Dict[str, Any]:
        values = dict(self.neuron._values())
        if self.connection is not None:
            values[STRENGTH] = 1.0
        return values

    def initial_states(self, x: torch.Tensor) -> List[torch.Tensor]:
        """Return the initial states of a sequence."""
        starts = getattr(self.neuron, "_starts", None)
        step = x.shape[1:]
        states = [None] * len(self.neuron._states())
        if starts is not None:
            hidden, self.neuron.init_hidden = self.neuron.init_hidden, False
            try:
                states = starts(states, step, x)
            finally:
                self.neuron.init_hidden = hidden
        zero = x.new_zeros(step, dtype=compute_dtype(x.dtype))
        return [zero if state is None else state.contiguous() for state in states]

    def run(
        self, x: torch.Tensor, initial: List[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Tuple[NeuronChunk, List[torch.Tensor]]:
        """Run the neuron; return the chunk, without the recurrent current, and the states after it."""
        x = x.contiguous()
        results = self.neuron._kernels(x, initial, num_steps=None, store=[True] * len(initial), need_final=True)
        spk = results.spk.contiguous()
        states = [state.contiguous() for state in results.states]
        needs = [value.requires_grad for value in values]
        needed_x = x if self._reads(needs).x or self._needs_other_states(needs) or not x.numel() else None
        chunk = NeuronChunk(needed_x, spk, initial, states, None, [value.detach() for value in values], needs)
        return chunk, [state.contiguous() for state in results.final]

    # ---- adjoints

    def local(
        self,
        chunk: NeuronChunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
        need_before: bool = True,
    ) -> AdjointGradients:
        """Return the gradients of the input and of the states before it within each step, ``[T, B, ...]``.

        ``parameters`` replaces the chunk's values, see :meth:`history`.
        """
        shape = chunk.spk.shape
        folded = (1, shape[:2].numel(), *shape[2:])
        after = self._adjoint_states(chunk)
        gradients = self._adjoint(
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
        grad_before = [grad.reshape(shape) for grad in gradients.before] if need_before else []
        if need_before and chunk.recurrent_input is not None and self.keeps_loop:
            grad_before[SPIKES] = grad_before[SPIKES] * self._self_weight().to(chunk.spk.dtype)
        return AdjointGradients(gradients.x.reshape(shape), grad_before, gradients.parameters)

    def _read_before(self, chunk: NeuronChunk, shape: Sequence[int]) -> List[Optional[torch.Tensor]]:
        """Return the states before each step that the adjoint reads; the recurrent current in place of the spikes."""
        reads = self._reads(chunk.needs)
        before: List[Optional[torch.Tensor]] = []
        for place, (first, rows) in enumerate(zip(chunk.initial, chunk.states)):
            if not reads.before >> place & 1:
                before.append(None)
            elif place == SPIKES and chunk.recurrent_input is not None:
                before.append(chunk.recurrent_input.reshape(shape))
            else:
                before.append(torch.cat([first.unsqueeze(0), rows[:-1]]).reshape(shape))
        return before

    def _reads(self, needs: Sequence[bool]) -> Reads:
        """Return the tensors that the adjoint reads if it computes the gradients of the parameters in ``needs``."""
        reads = self.plan.reads
        for need, of_parameter in zip(needs, self.plan.reads_for):
            reads = reads | of_parameter if need else reads
        return reads

    def _omits_reset(self) -> bool:
        """Return True if the differentiated step omits a reset of the neuron."""
        return not self.keeps_reset and self._is_builtin() and self._options() != self.neuron_options

    def _spikes_before_reset(self) -> bool:
        """Return True if an immediate reset changes the membrane after its comparison with the threshold."""
        return self._omits_reset() and not self.neuron_options.get("reset_delay", True)

    def _needs_other_states(self, needs: Sequence[bool]) -> bool:
        """Return True if the adjoint must read other states than those the neuron returned."""
        return self._spikes_before_reset() or (self._omits_reset() and self._reads_other_states(needs))

    def _reads_other_states(self, needs: Sequence[bool]) -> bool:
        """Return True if the adjoint reads states after a step besides the membrane, which is the last state."""
        return bool(self._reads(needs).after & ~(1 << len(self.plan.states) - 1))

    def _adjoint_states(self, chunk: NeuronChunk) -> List[torch.Tensor]:
        """Return the states after each differentiated step; the membrane is that before an immediate reset."""
        states = list(chunk.states)
        if self._omits_reset() and self._reads_other_states(chunk.needs):
            states[:-1] = self._rerun_steps(chunk, self.plan)[:-1]
        if self._spikes_before_reset():
            options = {**self.neuron_options, "reset_delay": True}
            states[-1] = self._rerun_steps(chunk, _neurons.plan(self.neuron.equation, options))[-1]
        if self.plan.output is not None:
            states[self.plan.output] = chunk.states[self.plan.output]
        return states

    def _rerun_steps(self, chunk: NeuronChunk, plan: _neurons.NeuronPlan) -> List[torch.Tensor]:
        """Return the states after each step, computed by one step from the states before it."""
        shape, before = chunk.spk.shape, chunk.before
        if chunk.recurrent_input is not None:
            before[SPIKES] = chunk.recurrent_input
        assert chunk.x is not None
        rows = [state.flatten(0, 1) for state in before]
        run = _library.kernel_for("neuron_sequence_fwd", chunk.values[0])
        x = chunk.x.reshape(1, -1, *shape[2:])
        states = run(x, rows, chunk.values, plan.neuron, plan.variant, None, (1 << len(rows)) - 1, False)[1]
        return [state.reshape(shape) for state in states]

    def history(
        self,
        chunk: NeuronChunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        grad_final: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
    ) -> AdjointGradients:
        """Propagate gradients of the output, the states and the final states back through the states.

        The result's gradients of the states belong to the states before the chunk. ``parameters`` replaces the chunk's
        values.
        With one value for each neuron of each sample, the result has one gradient for each.
        """
        values, needs = list(chunk.values if parameters is None else parameters), list(chunk.needs)
        x, recurrent_input, place = chunk.x, chunk.recurrent_input, self.strength
        cut = place if not self.keeps_loop else None
        if cut is not None and recurrent_input is None and (x is not None or needs[cut]):
            recurrent_input = _scale_by_neuron(chunk.before[SPIKES], chunk.values[cut])
        if recurrent_input is not None and x is not None:
            x = x + recurrent_input
        if cut is not None:
            # The kernels recompute spikes from the membrane, which an immediate reset has changed. So the recurrent
            # current is part of the input, and the gradient of its strength is derived from the input's.
            values[cut], needs[cut] = torch.zeros_like(values[cut]), False
        elif place is not None and chunk.recurrent_input is not None:
            # A neuron's current to itself is separated from the current of the other neurons.
            loop = self._self_weight().to(chunk.spk.dtype)
            x = None if x is None else x - chunk.before[SPIKES] * loop
            values[place] = loop.expand(chunk.spk.shape[2:]).reshape(-1)
        gradients = self._adjoint(grad_spk, grad_states, grad_final, x, chunk.initial, values, chunk.states, needs)
        if cut is not None and chunk.needs[cut]:
            grad_strength = _by_parameter(gradients.x * chunk.before[SPIKES], values[cut])
            gradients.parameters[cut] = grad_strength.sum((0, 1)).reshape(values[cut].shape)
        return gradients

    def total(
        self,
        chunk: NeuronChunk,
        grad_spk: Optional[torch.Tensor],
        grad_states: Tensors,
        parameters: Optional[List[torch.Tensor]] = None,
    ) -> AdjointGradients:
        """Return the gradients of the output and the states, within each step and through the history."""
        if not self._needs_other_states(chunk.needs):
            return self.history(chunk, grad_spk, grad_states, [], parameters)
        # The adjoint of a step reads other states than those the next step starts from, so the two adjoints differ.
        local = self.local(chunk, grad_spk, grad_states, parameters)
        later = [torch.cat([rows[1:], torch.zeros_like(rows[:1])]) for rows in local.before]
        history_states = self.history_states
        grad_later = [rows if place in history_states else None for place, rows in enumerate(later)]
        through = self.history(chunk, None, grad_later, [], parameters)
        return AdjointGradients(
            local.x + through.x,
            [rows[0] + grad for rows, grad in zip(local.before, through.before)],
            [a + b for a, b in zip(local.parameters, through.parameters)],
        )

    def _self_weight(self) -> torch.Tensor:
        """Return each neuron's recurrent weight to itself, in a shape that broadcasts to a step."""
        connection = self.connection
        assert connection is not None
        weight = connection.weight.detach()
        if not connection.geometry:
            return weight.diagonal()
        input_channels = torch.arange(weight.shape[0], device=weight.device) % weight.shape[1]
        centre = weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2]
        return centre.gather(1, input_channels[:, None]).reshape(-1, 1, 1)

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
    ) -> AdjointGradients:
        output = self.plan.output
        if output is not None and grad_states:
            # The kernels have one gradient for the output, even if it is a state, too.
            grad_output_state = grad_states[output]
            if grad_output_state is not None:
                grad_spk = grad_output_state if grad_spk is None else grad_spk + grad_output_state
            grad_states = [None if place == output else grad for place, grad in enumerate(grad_states)]
        grads = list(grad_states) or [None] * len(states)
        arguments = (grad_spk, grads, list(grad_final), x, list(initial), values)
        return _run(self._operator, arguments, states, needs, need_before)

    @property
    def _operator(self) -> "_AdjointOperator":
        kernel = self.surrogate.kernel
        return _AdjointOperator(self.plan.neuron, self.plan.variant, kernel.id, kernel.a, kernel.b)

    # ---- the Jacobian of the states

    @property
    def history_states(self) -> List[int]:
        """Indices of the states with a history. Excluded are spikes that only return through a recurrent connection."""
        cut = self.plan.output if self.strength is not None and not self.keeps_loop else None
        return [place for place in range(len(self.plan.states)) if place != cut]

    @cached_property
    def is_uniform(self) -> bool:
        """True if the states have the same Jacobian for all neurons and samples: it reads scalar parameters alone."""
        plan, values = self.plan, self._values()
        read = _history_parameter_names(plan.neuron, plan.variant, tuple(self.history_states))
        if read is None:
            return False
        tensors = [values[name] for name in plan.parameters]
        is_single = [not isinstance(value, torch.Tensor) or value.numel() == 1 for value in tensors]
        for _, operands in plan.operations:
            is_single.append(all(is_single[place] for is_place, place in operands if is_place))
        return all(place is None or is_single[place] for name, place in zip(plan.names, plan.places) if name in read)

    def unit_gradients(self, chunk: NeuronChunk) -> List[AdjointGradients]:
        """Return the gradients of each state after the chunk, for a neuron that represents all."""
        values = [v.reshape(-1)[:1] for v in chunk.values]
        place = self.strength
        if place is not None and not self.keeps_loop:
            values[place] = torch.zeros_like(values[place])
        steps, numbers = len(chunk.spk), tuple(torch.cat(values).tolist())
        dtypes = chunk.spk.dtype, values[0].dtype
        arguments = (self._operator, steps, *dtypes, chunk.spk.device, numbers, len(chunk.states))
        return [_unit_gradients(*arguments, place) for place in self.history_states]


def _scale_by_neuron(steps: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Multiply steps ``[T, B, ...]`` by one value, or by one value for each neuron."""
    return (_by_parameter(steps, value) * value.reshape(-1)).reshape(steps.shape)


def _by_parameter(steps: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Reshape steps ``[T, B, ...]`` to ``[T, rows, n]``, where ``value`` has ``n`` elements."""
    count = value.numel()
    return steps.reshape(len(steps), steps.shape[1:].numel() // max(count, 1), count)  # count is 0 in an empty batch


class _AdjointOperator(NamedTuple):
    """The arguments that select an adjoint: neuron, variant and surrogate."""

    neuron: str
    variant: int
    surrogate: int
    a: float
    b: float


def _run(
    operator: _AdjointOperator,
    arguments: Sequence[Any],
    states: List[torch.Tensor],
    needs: Sequence[bool],
    need_before: bool,
) -> AdjointGradients:
    """Run ``neuron_sequence_bwd``; ``arguments`` are those before the neuron's name."""
    run = _library.kernel_for("neuron_sequence_bwd", states[0])
    neuron, variant, *surrogate = operator
    return AdjointGradients(
        *run(*arguments, neuron, variant, None, *surrogate, [need_before] * len(states), list(needs), states)
    )


@lru_cache(maxsize=256)
def _unit_gradients(
    operator: _AdjointOperator,
    steps: int,
    dtype: torch.dtype,
    of_values: torch.dtype,
    device: torch.device,
    numbers: Tuple[float, ...],
    count: int,
    place: int,
) -> AdjointGradients:
    """Return the gradients of state ``place`` of ``count`` states after ``steps`` steps, for one neuron.

    ``numbers`` are the values of the kernel's parameters.
    """
    with torch.inference_mode(False), torch.no_grad():  # the cached result serves calls of every gradient mode
        values = [torch.tensor([number], dtype=of_values, device=device) for number in numbers]
        states = [torch.zeros(steps, 1, dtype=dtype, device=device)] * count
        no_gradients: List[Optional[torch.Tensor]] = [None] * count
        final = list(no_gradients)
        final[place] = torch.ones(1, dtype=dtype, device=device)
        initial = [state[0] for state in states]
        arguments = (None, no_gradients, final, states[0], initial, values)
        return _run(operator, arguments, states, [False] * len(values), True)


# True for the flags of an operation's operands, which are True for zeros, if its result is zero.
_IS_ZERO: Dict[str, Callable[[List[bool]], bool]] = {
    "mul": any,
    **dict.fromkeys(("add", "sub"), all),
    **dict.fromkeys(("neg", "div", "stored"), lambda zero: zero[0]),
    "surrogate": lambda zero: zero[1],
    "where": lambda zero: all(zero[1:]),
}


@lru_cache(maxsize=256)
def _history_parameter_names(neuron: str, variant: int, history_states: Tuple[int, ...]) -> Optional[FrozenSet[str]]:
    """Return the parameters that the Jacobian of the states reads; None if it reads a state or the input, too."""
    adjoint = _neurons.adjoint(neuron, variant)
    derived, results = adjoint.step.derived, [adjoint.grad_x, *(adjoint.grad_before[place] for place in history_states)]
    zeros = [adjoint.grad_spk, *(grad for place, grad in enumerate(adjoint.grad_after) if place not in history_states)]
    for value in needed(results, ()):
        is_zero = [is_one_of(o, zeros) if isinstance(o, Value) else o is None or o == 0 for o in value.operands]
        if is_zero and _IS_ZERO.get(value.operation, lambda zero: False)(is_zero):
            zeros.append(value)
    read = [value for value in needed(results, [*derived, *zeros]) if not is_one_of(value, zeros)]
    gradients = [*adjoint.grad_after, *adjoint.seeds, *derived]
    if any(value.operation == "input" and not is_one_of(value, gradients) for value in read):
        return None
    texts = _neurons.derived_names(neuron, variant)
    return frozenset(text for text, value in zip(texts, derived) if is_one_of(value, read))
