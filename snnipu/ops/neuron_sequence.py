"""The operator that runs any neuron of ``snnipu.equations`` over a sequence: schema, meta, autograd, reference."""

from array import array
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from snnipu import _route
from snnipu import surrogate as surrogates
from snnipu._layout import SINGLE_STEP, broadcasts_to, layout, memory_order, permute_argument, permute_step
from snnipu._pointers import pointer
from snnipu.ops import _library, _neurons
from snnipu.ops._arguments import (
    PLAIN,
    Parameter,
    compute_dtype,
    has_plain_memory,
    is_differentiated,
    is_direct,
    is_eager,
    parameter_argument,
    state_argument,
)
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import define
from snnipu.ops._reference import ReferenceStep, Tensors, sum_to_parameter
from snnipu.surrogate import Kernel, SpikeGrad

OperatorResults = Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]


class ForwardArguments(NamedTuple):
    """Arguments of ``neuron_sequence_fwd``, in the order of its schema.

    ``store`` has a bit for each state that is stored. An initial state without elements means zeros; in a direct call,
    None does. torch.jit.trace requires both: it supports neither lists of bools nor lists with None.
    """

    x: torch.Tensor
    initial: Sequence[torch.Tensor]
    parameters: Sequence[torch.Tensor]
    neuron: str
    variant: int
    num_steps: Optional[int]
    store: int
    store_final: bool


class BackwardArguments(NamedTuple):
    """Arguments of ``neuron_sequence_bwd``, in the order of its schema."""

    grad_spk: Optional[torch.Tensor]
    grad_states: Tensors
    grad_final: Tensors
    x: Optional[torch.Tensor]
    initial: Tensors
    parameters: Sequence[torch.Tensor]
    neuron: str
    variant: int
    num_steps: Optional[int]
    surrogate: int
    surrogate_a: float
    surrogate_b: float
    need_initial: Sequence[bool]
    need_parameters: Sequence[bool]
    states: Optional[Sequence[torch.Tensor]] = None

    @property
    def stored(self) -> torch.Tensor:
        """A tensor with the shape and the dtype of x: x or, if x is None, a state after each step."""
        if self.x is not None:
            return self.x
        for state in self.states or ():
            if state.numel():
                return state
        raise ValueError("x must be given to snnipu::neuron_sequence_bwd where no state is")


def neuron_sequence_fwd_reference(*arguments: Any, **functions: Callable[..., torch.Tensor]) -> OperatorResults:
    """Compute ``snnipu::neuron_sequence_fwd`` in plain PyTorch: a loop over the recorded step.

    ``functions`` may replace the Heaviside step by ``spike=``.
    """
    a = ForwardArguments(*arguments)
    _, _, shape = layout(a.x, a.num_steps)
    rows, states = _loop(a, **functions)
    # A reshaped result would be a view, which a program cannot change in place.
    stored = [a.x.new_empty(shape) for _ in rows]
    for result, row in zip(stored, rows):
        if row:
            result.copy_(torch.stack(row).reshape(shape))
    # An operator may not return the same tensor twice.
    results = [row if a.store >> place & 1 else row.new_empty(0) for place, row in enumerate(stored[1:])]
    return stored[0], results, [state.clone() for state in states] if a.store_final else []


def _loop(
    a: Union[ForwardArguments, "BackwardArguments"], **functions: Callable[..., torch.Tensor]
) -> Tuple[List[List[torch.Tensor]], List[torch.Tensor]]:
    """Return the rows of the spikes and of each state after every step, and the last states."""
    assert a.x is not None
    steps, step_shape, _ = layout(a.x, a.num_steps)
    step = ReferenceStep(a.neuron, a.variant, a.parameters, step_shape, a.x.dtype)
    states = step.as_tensors(a.initial)
    rows: List[List[torch.Tensor]] = [[] for _ in range(1 + len(states))]
    for t in range(steps):
        spk, *states = step(a.x[t] if a.num_steps is None else a.x, states, **functions)
        for row, value in zip(rows, (spk, *states)):
            row.append(value)
    return rows, states


def neuron_sequence_bwd_reference(*arguments: Any) -> OperatorResults:
    """Compute ``snnipu::neuron_sequence_bwd`` in plain PyTorch: a loop over the recorded adjoint, last step first.

    The argument ``states`` has the states after each step; a state that the adjoint does not read is empty. None: the
    states are recomputed from ``x``. With states, ``x`` may be None if the adjoint does not read it.
    """
    a = BackwardArguments(*arguments)
    like = a.stored
    steps, step_shape, _ = layout(like, a.num_steps)
    step = ReferenceStep(a.neuron, a.variant, a.parameters, step_shape, like.dtype)
    output = step.step.output_state

    def rows_of(sequence: Optional[torch.Tensor]) -> Tensors:
        if sequence is None or sequence.numel() != steps * step_shape.numel():
            return [None] * steps
        return sequence.reshape(steps, *step_shape).unbind()

    states: Tensors = [None] * len(a.initial) if a.states is None else a.states
    after = [rows_of(state) for state in states]
    befores: List[Tensors] = list(after)
    if a.states is None:
        befores = [*_loop(a)[0][1:]]
    elif output is not None and step.recorded.remakes_output and not a.states[output].numel():
        befores[output] = [step.output(row) for row in zip(*after)]
    # The states before each step.
    befores = [[state, *rows] for state, rows in zip(a.initial, befores)]
    currents = [a.x] * steps if a.num_steps is not None else rows_of(a.x)
    # If the output is a state, the gradient of the spikes is that state's upstream gradient.
    grad_state_rows = [rows_of(a.grad_spk if place == output else grad) for place, grad in enumerate(a.grad_states)]
    grad_spk_rows = rows_of(a.grad_spk)
    carry = step.as_tensors(a.grad_final or [None] * len(grad_state_rows))
    if steps:
        carry = [value + grad for value, grad in zip(carry, step.as_tensors([rows[-1] for rows in grad_state_rows]))]
    grad_x = [step.zero] * steps
    sums = dict.fromkeys(_neurons.find(a.neuron).parameters, step.zero)
    kernel = Kernel(a.surrogate, a.surrogate_a, a.surrogate_b)
    for t in range(steps - 1, -1, -1):
        grad_x[t], carry, grad_parameters = step.adjoint(
            currents[t],
            [rows[t] for rows in befores],
            [rows[t] for rows in after],
            grad_spk_rows[t],
            carry,
            [rows[t - 1] if t else None for rows in grad_state_rows],
            surrogate=partial(surrogates.surrogate_gradient, kernel),
        )
        sums.update((name, sums[name] + grad) for name, grad in grad_parameters.items())
    if a.num_steps is not None:
        grad_x_result = torch.stack(grad_x[::-1]).sum(0).to(like.dtype).reshape(step_shape)
    else:
        grad_x_result = torch.stack(grad_x).to(like.dtype) if steps else torch.zeros_like(like)
    return (
        grad_x_result,
        [value.clone() if needed else a.parameters[0].new_empty(0) for value, needed in zip(carry, a.need_initial)],
        [
            sum_to_parameter(total, p) if needed else p.new_empty(0)
            for total, p, needed in zip([*sums.values()] or [step.zero], a.parameters, a.need_parameters)
        ],
    )


def new_empty(like: torch.Tensor, shape: Any) -> torch.Tensor:
    """Allocate a tensor like ``like``."""
    return like.new_empty(shape)


def new_results(a: ForwardArguments, empty: Callable[..., torch.Tensor] = new_empty) -> OperatorResults:
    """Allocate the results of ``neuron_sequence_fwd`` by ``empty``."""
    _, step_shape, shape = layout(a.x, a.num_steps)
    return (
        empty(a.x, shape),
        [empty(a.x, shape) if a.store >> place & 1 else a.x.new_empty(0) for place in range(len(a.initial))],
        [empty(a.parameters[0], step_shape) for _ in a.initial] if a.store_final else [],
    )


def new_gradients(a: BackwardArguments, empty: Callable[..., torch.Tensor] = new_empty) -> OperatorResults:
    """Allocate the results of ``neuron_sequence_bwd``. ``empty`` allocates the input's gradient."""
    like, step_shape = a.parameters[0], layout(a.stored, a.num_steps)[1]
    return (
        empty(a.stored, a.stored.shape),
        [like.new_empty(step_shape if needed else 0) for needed in a.need_initial],
        [like.new_empty(p.shape if needed else 0) for p, needed in zip(a.parameters, a.need_parameters)],
    )


def without_empty(tensors: Tensors) -> Tensors:
    """Return None in place of tensors without elements, which stand for those that are not given or not needed."""
    return [None if tensor is None or not tensor.numel() else tensor for tensor in tensors]


def copy_states(final: Sequence[torch.Tensor], initial: Tensors) -> None:
    """Write the final states of a sequence without steps or elements."""
    for state, start in zip(final, without_empty(initial)):
        state.zero_() if start is None else state.copy_(start)


def zero_gradients(a: BackwardArguments, gradients: OperatorResults) -> None:
    """Write the gradients of a sequence without steps or elements."""
    grad_x, grad_initial, grad_parameters = gradients
    for gradient in (grad_x, *grad_initial, *grad_parameters):
        gradient.zero_()
    for gradient, last in zip(grad_initial, a.grad_final):
        if gradient.numel() and last is not None:
            gradient.copy_(last)


def _fwd_meta(*arguments: Any) -> OperatorResults:
    return new_results(ForwardArguments(*arguments))


def _bwd_meta(*arguments: Any) -> OperatorResults:
    return new_gradients(BackwardArguments(*arguments))


_fwd = define(
    neuron_sequence_fwd_reference, _fwd_meta, "(Tensor spk, Tensor[] states, Tensor[] final)", ForwardArguments
)
define(
    neuron_sequence_bwd_reference,
    _bwd_meta,
    "(Tensor grad_x, Tensor[] grad_initial, Tensor[] grad_parameters)",
    BackwardArguments,
)
_KERNELS_FWD = _library.REGISTERED["neuron_sequence_fwd"]


class _SequenceOptions(NamedTuple):
    neuron: str
    variant: int
    num_steps: Optional[int]
    kernel: Kernel
    store: Tuple[bool, ...]
    store_final: bool
    # The values that the backward pass reads from stored states; None: it recomputes the states.
    reads: Optional[_neurons.Reads] = None
    # The parameters if they are :func:`constants`; kernels then run without the dispatcher.
    constants: Optional[Sequence[torch.Tensor]] = None
    silent: bool = False  # the spikes have no gradient


def bits(flags: Sequence[bool]) -> int:
    """Return an int with a bit for each flag, the lowest for the first."""
    return sum([1 << place for place, flag in enumerate(flags) if flag])


def _forward(
    direct: bool, x: torch.Tensor, initial: Sequence[Optional[torch.Tensor]], *arguments: Any
) -> OperatorResults:
    """Call the kernel if ``direct`` and all states are ordinary tensors, else the dispatcher's operator."""
    direct = direct and all(state is None or has_plain_memory(state) for state in initial)
    run = _KERNELS_FWD.get("CPU" if x.is_cpu else "CUDA") if direct else None
    if run is None:
        run, initial = _fwd, [x.new_empty(0) if state is None else state for state in initial]
    results: OperatorResults = run(x, initial, *arguments)
    return results


def _backward(like: torch.Tensor, grads: Tensors, *arguments: Any) -> OperatorResults:
    results: OperatorResults = _library.kernel_for("neuron_sequence_bwd", like, *grads)(*arguments)
    return results


class NeuronSequence(torch.autograd.Function):
    """The autograd function of the two operators: spikes, the stored states, the final states.

    The backward pass saves only the input, and recomputes the states. If it reads one state that is a result anyway, it
    saves that state instead. A single step saves copies, because loops change states in place between steps. One of
    these copies is a result, too, so that a second derivative finds this function's inputs.
    """

    @staticmethod
    def forward(ctx: Any, o: _SequenceOptions, x: torch.Tensor, *tensors: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        count = len(o.store)
        initial, parameters = tensors[:count], tensors[count:] if o.constants is None else o.constants
        direct = o.constants is not None or is_eager(x)
        arguments = (parameters, o.neuron, o.variant, o.num_steps, bits(o.store), o.store_final)
        spk, states, final = _forward(direct, x, initial, *arguments)
        results = (spk, *[state for state, stored in zip(states, o.store) if stored], *final)
        saved_states: List[torch.Tensor] = []
        saved_x: Optional[torch.Tensor] = x
        if o.reads is not None:
            read = o.reads.states
            saved_states = [state if read >> place & 1 else x.new_empty(0) for place, state in enumerate(states)]
            initial = tuple([state if o.reads.before >> place & 1 else None for place, state in enumerate(initial)])
            saved_x = None
        if o.num_steps == SINGLE_STEP:
            saved_x = None if saved_x is None else saved_x.clone()
            initial = tuple([None if tensor is None else tensor.clone() for tensor in initial])
            saved_states = [state.clone() for state in saved_states]
            results = (*results, *(saved_states if saved_x is None else [saved_x]))
        saved_parameters = [] if o.constants is not None else [p if p is None else p.clone() for p in parameters]
        ctx.save_for_backward(saved_x, *initial, *saved_parameters, *saved_states)
        ctx.options = o
        ctx.set_materialize_grads(False)
        if o.silent:
            ctx.mark_non_differentiable(spk)
        return results

    @staticmethod
    @once_differentiable("neuron_sequence")
    def backward(ctx: Any, grad_spk: Optional[torch.Tensor], *others: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        o: _SequenceOptions = ctx.options
        x, *tensors = ctx.saved_tensors
        need = ctx.needs_input_grad[2:]
        count, total = len(o.store), len(need)
        initial, saved_states = tensors[:count], tensors[total:]
        parameters = tensors[count:total] if o.constants is None else o.constants
        if grad_spk is None and all(grad is None for grad in others):
            return (None,) * (2 + total)
        if o.constants is None:
            single = o.num_steps == SINGLE_STEP and not o.store_final
            learns = _neurons.requested_gradients(o.neuron, o.variant, need[count:], grad_spk is not None, single)
            need = (*need[:count], *learns)
        remaining = iter(others)
        grad_states = [next(remaining) if stored else None for stored in o.store]
        grad_final = [next(remaining) for _ in o.store] if o.store_final else []
        num_steps = o.num_steps
        if num_steps == SINGLE_STEP:
            num_steps = 1
            grad_spk, *grad_states = (None if g is None else g.unsqueeze(0) for g in (grad_spk, *grad_states))
            if o.reads is not None:
                num_steps = None
                saved_states = [state.unsqueeze(0) if state.numel() else state for state in saved_states]
        grad_x, grad_initial, grad_parameters = _backward(
            parameters[0],
            (grad_spk, *grad_states, *grad_final),
            grad_spk,
            grad_states,
            grad_final,
            x,
            initial,
            parameters,
            o.neuron,
            o.variant,
            num_steps,
            o.kernel.id,
            o.kernel.a,
            o.kernel.b,
            need[:count],
            need[count:] if o.constants is None else (False,) * len(parameters),
            *((saved_states,) if o.reads is not None else ()),
        )
        if o.num_steps == SINGLE_STEP and o.reads is not None:
            grad_x = grad_x.squeeze(0)
        gradients = [g if needed else None for g, needed in zip([*grad_initial, *grad_parameters], need)]
        return (None, grad_x, *gradients)


class Results(NamedTuple):
    """Results: spikes, the states after each step (None if not stored), the states after the last step."""

    spk: torch.Tensor
    states: List[Optional[torch.Tensor]]
    final: Optional[List[torch.Tensor]]


class Constants(List[torch.Tensor]):
    """Derived parameters of ``dtype`` that are all numbers, with their addresses. They are shared: never write them."""

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__(tensors)
        self.dtype = dtype
        self.pointers = array("q", [pointer("a constant parameter", tensor, dtype, 1) for tensor in tensors])
        self.sizes = array("q", [1] * len(tensors))


# Key: neuron, variant, compute dtype, and the numbers with their dtypes.
_CONSTANTS: Dict[Tuple[Any, ...], Constants] = {}
_MOST_CONSTANTS = 256


def constants(
    plan: _neurons.NeuronPlan, parameters: Mapping[str, Parameter], dtype: torch.dtype
) -> Optional[Constants]:
    """Return the derived parameters for a CPU if all parameters are numbers that do not learn; None for others.

    The tensors are shared between calls: never write them. Making them takes several times as long as a small step.
    """
    key: List[Any] = [plan.neuron, plan.variant, dtype]
    for value in parameters.values():
        if type(value) in PLAIN:
            if value.requires_grad or value.dim() or not value.is_cpu or value.dtype.is_complex:  # type: ignore[union-attr]
                return None
            key.append(value.dtype)  # type: ignore[union-attr]
            value = value.item()  # type: ignore[union-attr]
        elif not isinstance(value, (int, float)):
            return None
        key.append(value or repr(value))  # -0.0 and 0.0 are equal, but need two keys: 1 / -0.0 differs from 1 / 0.0
    shared = _CONSTANTS.get(tuple(key))
    if shared is None:
        if len(_CONSTANTS) >= _MOST_CONSTANTS:
            _CONSTANTS.clear()
        with torch.inference_mode(False), torch.no_grad():
            unit = torch.ones((), dtype=dtype, device="cpu")
            derived = plan.derive(_as_tensors(parameters, unit), unit) or [unit]
            # Always copies: the parameters' tensors may change.
            shared = _CONSTANTS[tuple(key)] = Constants(
                [
                    value.to(dtype, copy=True)
                    if isinstance(value, torch.Tensor)
                    else torch.tensor(value, dtype=dtype, device="cpu")
                    for value in derived
                ],
                dtype,
            )
    return shared


def _as_tensors(parameters: Mapping[str, Parameter], like: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Return numbers as tensors of the compute dtype, so that derived parameters are rounded in it."""
    return {
        name: value if isinstance(value, torch.Tensor) else like.new_full((), value)
        for name, value in parameters.items()
    }


def kernel_arguments(
    plan: _neurons.NeuronPlan,
    x: torch.Tensor,
    step_shape: torch.Size,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
) -> Tuple[List[Optional[torch.Tensor]], List[torch.Tensor], bool]:
    """Check states and parameters; return the states, the derived parameters, and True if those are constants."""
    initial = [
        None if state is None else state_argument(name, state, step_shape, x)
        for name, state in zip(plan.states, states)
    ]
    shared = constants(plan, parameters, compute_dtype(x.dtype)) if is_direct(x) else None
    if shared is not None:
        return initial, shared, True
    unit = x.new_ones((), dtype=compute_dtype(x.dtype))
    for name, value in parameters.items():
        parameter_argument(name, value, step_shape, x)  # errors name this parameter, not a derived one
    derived = plan.derive(_as_tensors(parameters, unit), unit)
    values = [parameter_argument(name, value, step_shape, x) for name, value in zip(plan.names, derived)]
    return initial, values or [unit], False  # a neuron without parameters gets its compute dtype from ``unit``


def is_silent(neuron: str, kernel: Kernel, parameters: Mapping[str, Parameter]) -> bool:
    """Return True if the spikes have no gradient, because the surrogate is 0.

    The spikes of a user's neuron may depend on parameters and states in other ways.
    """
    if not kernel.is_zero or neuron not in _neurons.BUILT:
        return False
    return not getattr(parameters.get("graded_spikes_factor"), "requires_grad", False)


def neuron_apply(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    *,
    options: Mapping[str, Any],
    num_steps: Optional[int] = None,
    spike_grad: Optional[SpikeGrad] = None,
    store: Optional[Sequence[bool]] = None,
    need_final: bool = False,
    connection: Any = None,
) -> Results:
    """Run a neuron over a sequence; ``x`` and ``options`` have been checked.

    Args:
        neuron: name of the neuron.
        x: input, ``[T, ...]``, or a step with ``num_steps``.
        states: states before the first step; None: zeros. A state called ``spk`` is the output, and not stored twice.
        parameters: parameters of the equation, by name.
        options: options of the equation, by name.
        num_steps: None, SINGLE_STEP, or the number of steps for which ``x`` is held constant.
        spike_grad: surrogate gradient; None: ``atan()``.
        store: a flag for each state that is returned after each step; None: all.
        need_final: return the states after the last step.
        connection: :class:`~snnipu.ops.recurrent_sequence.RecurrentConnection` through which the spikes are fed back.
            They are then the first of ``states`` for every neuron. If the neuron has a state ``spk``, ``parameters``
            lacks its ``V``. Else the connection's output is added to the input.

    Raises:
        TypeError: with a connection, ``spike_grad`` is no surrogate, or x has another dtype or device than its weight.
        ValueError: the steps of x do not fit the connection.
    """
    plan = _neurons.plan(neuron, options)
    step_shape = layout(x, num_steps)[1]
    surrogate = surrogates.as_surrogate(spike_grad)
    kernel = None if surrogate is None else surrogate.kernel
    store = [True] * len(states) if store is None else list(store)
    on_ipu = connection is None and _route.uses_operator(neuron, "NeuronSequence")
    if connection is not None:
        if kernel is None:
            raise TypeError(f"spike_grad must be a surrogate of snnipu or snnTorch, got {spike_grad!r}")
        connection.check(x, step_shape)
    if kernel is None and not on_ipu:
        return apply_in_pytorch(neuron, x, states, parameters, options, num_steps, spike_grad, store, need_final)
    order = None if on_ipu else memory_order(x, num_steps)
    if order is not None and all(broadcasts_to(argument, step_shape) for argument in (*states, *parameters.values())):
        # Neurons are independent, so the kernels run in the order of memory. A connection gets views in its own order.
        results = neuron_apply(
            neuron,
            permute_step(x, order),
            [permute_argument(state, order) for state in states],
            {name: permute_argument(value, order) for name, value in parameters.items()},
            options=options,
            num_steps=num_steps,
            spike_grad=spike_grad,
            store=store,
            need_final=need_final,
            connection=None if connection is None else connection._replace(order=order),
        )
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return Results(
            permute_step(results.spk, inverse),
            [None if state is None else permute_step(state, inverse) for state in results.states],
            None if results.final is None else [permute_step(state, inverse) for state in results.final],
        )
    if connection is not None:
        results = connection.run(plan, x, states, parameters, num_steps, kernel, store, need_final)
        return results  # type: ignore[no-any-return]
    initial, values, constant = kernel_arguments(plan, x, step_shape, states, parameters)
    variant, output = plan.variant, plan.output
    if kernel is not None and not on_ipu:
        settings = (num_steps, kernel, store, need_final, plan, constant, is_silent(neuron, kernel, parameters))
        return run_kernels(neuron, variant, x, initial, values, *settings)
    store_or_final = [stored or need_final for stored in store]
    read = plan.reads_all.states
    spk, after = _route.call(
        "neuron_sequence", neuron, variant, read, x, initial, values, num_steps, store_or_final, output, kernel
    )
    if output is not None:
        after[output] = spk
    # A view would keep the memory of all steps alive.
    last = [state if num_steps == SINGLE_STEP else state[-1].clone() for state in after if state is not None]
    final = [state.to(compute_dtype(x.dtype)) for state in last]
    return Results(spk, [s if stored else None for s, stored in zip(after, store)], final if need_final else None)


def apply_in_pytorch(
    neuron: str,
    x: torch.Tensor,
    states: Sequence[Optional[torch.Tensor]],
    parameters: Mapping[str, Parameter],
    options: Mapping[str, Any],
    num_steps: Optional[int],
    spike_grad: Any,
    store: Sequence[bool],
    need_final: bool,
) -> Results:
    """Run :func:`neuron_apply` in PyTorch under autograd, for a ``spike_grad`` that no kernel has.

    If ``spike_grad`` is a surrogate, kernels compute the states, unless a state depends on the spikes' gradient.
    """
    if not callable(spike_grad):
        raise TypeError(f"spike_grad must be callable or None, got {spike_grad!r}")
    plan = _neurons.plan(neuron, options)
    steps, step_shape, shape = layout(x, num_steps)
    initial, values, _ = kernel_arguments(plan, x, step_shape, states, parameters)

    def spike(u: torch.Tensor) -> torch.Tensor:
        return spike_grad(u).to(u.dtype)  # type: ignore[no-any-return]

    after: Tensors
    if plan.spikes_of_states and surrogates.as_surrogate(spike_grad) is not None:
        silent, every = surrogates.Surrogate("no_gradient").kernel, [True] * len(states)
        assert silent is not None
        spk, after, final = run_kernels(
            neuron, plan.variant, x, initial, values, num_steps, silent, every, need_final, plan
        )
        step = ReferenceStep(neuron, plan.variant, values, step_shape, x.dtype)
        rows = [state.reshape(steps, *step_shape).unbind() for state in after if state is not None]
        spikes = [step.output(row, spike=spike) for row in zip(*rows)]
        spk = torch.stack(spikes).to(x.dtype).reshape(shape) if spikes else spk
    else:
        arguments = (x, initial, values, neuron, plan.variant, num_steps, bits(store), need_final)
        spk, after, last = neuron_sequence_fwd_reference(*arguments, spike=spike)
        final = last if need_final else None
    return Results(spk, [s if stored else None for s, stored in zip(after, store)], final)


def run_kernels(
    neuron: str,
    variant: int,
    x: torch.Tensor,
    initial: Sequence[Optional[torch.Tensor]],
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    kernel: Kernel,
    store: Sequence[bool],
    need_final: bool = False,
    plan: Optional[_neurons.NeuronPlan] = None,
    constant: bool = False,
    silent: bool = False,
) -> Results:
    """Run the operators, differentiable.

    Args:
        neuron: name of the neuron.
        variant: number of the variant.
        x: input.
        initial: states before the first step.
        parameters: derived parameters.
        num_steps: as in :func:`neuron_apply`.
        kernel: surrogate.
        store: a flag for each state that is returned after each step.
        need_final: return the states after the last step.
        plan: plan of the neuron; with it, the backward pass may read states that are results.
        constant: the parameters are :func:`constants`.
        silent: the spikes have no gradient.
    """
    output = _neurons.find(neuron).steps[variant].output_state if plan is None else plan.output
    stores = tuple([bool(stored) and place != output for place, stored in enumerate(store)])
    tensors = (x, *initial, *parameters)
    if is_differentiated(tensors):
        reads = None
        if plan is not None and True in stores:
            reads = _stored_state_reads(plan, x, parameters, num_steps, stores, constant)
        shared = parameters if constant else None
        options = _SequenceOptions(neuron, variant, num_steps, kernel, stores, need_final, reads, shared, silent)
        spk, *others = NeuronSequence.apply(options, x, *initial, *(() if constant else parameters))
    else:
        spk, states, last = _forward(
            constant or is_eager(x), x, initial, parameters, neuron, variant, num_steps, bits(stores), need_final
        )
        others = [*[state for state, stored in zip(states, stores) if stored], *last]
    return results_of(spk, others, stores, output if output is not None and store[output] else None, need_final)


def results_of(
    spk: torch.Tensor, others: Sequence[Any], stores: Sequence[bool], output: Optional[int], need_final: bool
) -> Results:
    """Return the results from the spikes, the stored states, and then the final states.

    ``output`` is the state that the spikes are, if it is requested.
    """
    remaining = iter(others)
    after = [next(remaining) if stored else None for stored in stores]
    if output is not None:
        after[output] = spk
    return Results(spk, after, [next(remaining) for _ in stores] if need_final else None)


def _stored_state_reads(
    plan: _neurons.NeuronPlan,
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    stored: Sequence[bool],
    constant: bool,
) -> Optional[_neurons.Reads]:
    """Return the values that the adjoint reads from stored states; None if it recomputes the states from the input.

    It reads stored states only if it needs one state and not the input: more would take more memory than the input.
    States that are rounded when they are stored would give other gradients.
    """
    if num_steps not in (None, SINGLE_STEP) or not (x.is_cpu or x.is_cuda) or x.dtype != parameters[0].dtype:
        return None
    reads = plan.reads
    if x.is_cuda:  # CUDA kernels compute the gradients of all parameters if one learns
        reads = plan.reads_all if any(parameter.requires_grad for parameter in parameters) else reads
    else:
        for parameter, needs in zip(() if constant else parameters, plan.reads_for):
            reads = reads | needs if parameter.requires_grad else reads
    read = reads.states if x.is_cuda else plan.needed_states(reads)
    is_single = read and not read & (read - 1)
    return reads if is_single and not read & ~bits(stored) and not reads.x and x.numel() else None
