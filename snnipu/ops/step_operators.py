"""Step operators: functions that are one node in the graphs of ``torch.compile``, and their sequences.

Each function runs one time step of a neuron. ``snnipu.compiler`` replaces the steps of a loop over time by the
function in :data:`SEQUENCES` that runs all steps.
"""

import weakref
from functools import lru_cache
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple, Union

import snntorch
import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops import _neurons
from snnipu.ops import spiking_lstm as lstm
from snnipu.ops.neuron_sequence import neuron_apply
from snnipu.ops.recurrent_sequence import SPIKES, STRENGTH, RecurrentConnection
from snnipu.surrogate import Kernel, Surrogate

Tensors = Tuple[Optional[torch.Tensor], ...]
KernelFields = Tuple[int, float, float]
# The equation's name, the names of its parameters, its options; then the geometry of a ``RecurrentConnection``.
StepOptions = Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]]
RecurrentOptions = Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...], Tuple[int, ...]]

# True once `snnipu.compiler` has registered the functions below with TorchDynamo. Without it a step is traced.
enabled = False


def guard_methods(neuron: Any, parts: Iterable[str]) -> None:
    """Read methods of the instance, so that TorchDynamo guards them and recompiles after they are replaced."""
    for name in parts:
        getattr(neuron, name)


def at_trace_time(function: Any) -> Any:
    """Decorate a function that TorchDynamo calls at trace time; the result is a constant of the graph."""
    function._dynamo_marked_constant = True
    return function


def on_fake_tensors() -> bool:
    """Return True while TorchDynamo runs a function on fake tensors."""
    return torch._guards.TracingContext.try_get() is not None


@at_trace_time
def tracing() -> bool:
    """Return True if a trace by ``torch.compile`` should record a neuron's step as one node."""
    return enabled and on_fake_tensors()


def call_untraced(function: Any, *args: Any, **keywords: Any) -> Any:
    """Call ``function`` outside of the graph: TorchDynamo does not trace it, and breaks the graph."""
    return function(*args, **keywords)


# Calls of snntorch.utils.reset in each trace: the number of resets of each kind of neuron, and the number of resets of
# each neuron at its last step.
_resets: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


@at_trace_time
def note_reset(kinds: Tuple[str, ...]) -> bool:
    """Record that the current trace resets all of snnTorch's neurons of these kinds. Returns True."""
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        counts, _ = _resets.setdefault(context, ({}, {}))
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    return True


def is_reset(neuron: Any) -> bool:
    """Return True if the neuron was reset since its last step, so its states are no longer inputs of the graph."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context not in _resets:
        return False
    if not getattr(neuron, "_is_listed", True):
        return False
    counts, seen = _resets[context]
    count = sum(number for kind, number in counts.items() if isinstance(neuron, getattr(snntorch, kind)))
    before = seen.get(id(neuron), 0)
    seen[id(neuron)] = count
    return bool(count > before)


@lru_cache(maxsize=256)
def _surrogate_of(number: int, a: float, b: float) -> Surrogate:
    surrogate = Surrogate("kernel")
    surrogate.kernel = Kernel(number, a, b)
    return surrogate


def _surrogate(number: int, a: float, b: float) -> Surrogate:
    if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat):
        # TorchDynamo needs only the shapes of the results, which do not depend on a and b. Reading a and b would
        # specialise the graph.
        a, b = 1.0, 0.0
    return _surrogate_of(number, a, b)


def neuron_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: KernelFields,
    options: StepOptions,
    rolls: str,
) -> Tuple[torch.Tensor, ...]:
    """Run one step of a neuron of ``snnipu.equations``; return ``(spk, *states)``.

    Args:
        x: input of the step.
        states: states of the equation, in its order; None: zeros.
        parameters: parameters of the equation, in its order.
        kernel: the fields of a ``surrogate.Kernel``.
        options: the equation's name, the names of its parameters, its options.
        rolls: the reason why the step must not become a sequence; empty if it may.
    """
    store = [True] * len(states)
    results: Tuple[Any, ...] = neuron_over_time(x, SINGLE_STEP, states, parameters, kernel, options, store, False)
    return results[: 1 + len(states)]


def neuron_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: KernelFields,
    options: Union[StepOptions, RecurrentOptions],
    store: Sequence[bool],
    need_final: bool,
) -> Tensors:
    """Run all steps of :func:`neuron_step` or :func:`recurrent_step`; return spikes, states over time and final states.

    States that are not requested are None.
    """
    connection, values = _connection(parameters, options)
    how: Dict[str, Any] = {"num_steps": num_steps, "store": store, "need_final": need_final}
    how.update(options=dict(options[2]), spike_grad=_surrogate(*kernel), connection=connection)
    results = neuron_apply(options[0], x, states, values, **how)
    final = results.final if results.final is not None else [None] * len(results.states)
    return (results.spk, *results.states, *final)


def recurrent_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: KernelFields,
    options: RecurrentOptions,
    rolls: str,
) -> Tuple[torch.Tensor, ...]:
    """Run one step of a neuron with feedback through a linear layer or a convolution; return ``(spk, *states)``.

    The arguments are those of :func:`neuron_step`, with the spikes as the first state. The parameters are those of the
    equation without ``V``, then weight and bias of the layer. The options end with the layer's geometry.
    """
    name, _, chosen, _ = options
    connection, values = _connection(parameters, options)
    assert connection is not None
    spikes = states[SPIKES]
    incoming = connection.product(torch.zeros_like(x) if spikes is None else spikes.to(x.dtype))
    values[STRENGTH] = 1.0
    return neuron_step(x, (incoming, *states[1:]), tuple(values.values()), kernel, (name, tuple(values), chosen), rolls)


def _connection(
    parameters: Sequence[Optional[torch.Tensor]], options: Union[StepOptions, RecurrentOptions]
) -> Tuple[Optional[RecurrentConnection], Dict[str, Any]]:
    """Return the layer, or None without a geometry, and the equation's parameters by name."""
    _, names, _, *geometry = options
    if not geometry:
        return None, dict(zip(names, parameters))
    *values, weight, bias = parameters
    assert weight is not None
    return RecurrentConnection(weight, bias, geometry[0]), dict(zip(names, values))


def neuron_fed_back(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: KernelFields,
    options: StepOptions,
    store: Sequence[bool],
    need_final: bool,
    connection: Sequence[Any],
) -> Tensors:
    """Run all steps of :func:`neuron_step` on ``x`` plus a layer's output for the spikes of the step before.

    Args:
        x: input.
        num_steps: see :func:`neuron_over_time`, as for the other arguments.
        states: states before the first step.
        parameters: parameters of the equation.
        kernel: the fields of a ``surrogate.Kernel``.
        options: the equation's name, the names of its parameters, its options.
        store: a flag for each state that is returned over time.
        need_final: return the final states.
        connection: the spikes before the first step, then weight, bias and geometry of the layer.

    Returns:
        The results of :func:`neuron_over_time`, then the last spikes or None.
    """
    spikes, weight, bias, geometry = connection
    spk, _, *states_and_final = neuron_over_time(
        x,
        num_steps,
        (spikes, *states),
        (*parameters, weight, bias),
        kernel,
        (*options, geometry),
        (False, *store),
        need_final,
    )
    after, (last, *final) = states_and_final[: len(states)], states_and_final[len(states) :]
    return (spk, *after, *final, last)


def spiking_lstm_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: KernelFields,
    options: Tuple[Any, ...],
    rolls: str,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run one step of a spiking LSTM; return ``(spk, syn, mem)``.

    Args:
        x: input of the step.
        states: ``(syn, mem)``; None: zeros.
        parameters: threshold, graded_spikes_factor, then the cell's tensors.
        kernel: the fields of a ``surrogate.Kernel``.
        options: number of the reset mechanism, then the cell's other fields.
        rolls: the reason why the step must not become a sequence; empty if it may.
    """
    cell, neuron = _lstm(parameters, kernel, options)
    return lstm.spiking_lstm_step(cell, neuron, x, states[0], states[1])


def spiking_lstm_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[Optional[torch.Tensor]],
    kernel: KernelFields,
    options: Tuple[Any, ...],
    store: Sequence[bool],
    need_final: bool,
) -> Tensors:
    """Run all steps of :func:`spiking_lstm_step`; the results are as in :func:`neuron_over_time`."""
    cell, neuron = _lstm(parameters, kernel, options)
    spk, syn, mem = lstm.spiking_lstm_sequence(cell, neuron, x, states[0], states[1], num_steps)
    # Views would keep the memory of all steps alive.
    final = (syn[-1].clone(), mem[-1].clone()) if need_final else (None, None)
    return (spk, syn, mem, *final)


def _lstm(
    parameters: Sequence[Optional[torch.Tensor]], kernel: KernelFields, options: Tuple[Any, ...]
) -> Tuple[lstm.Cell, lstm.LSTMNeuron]:
    threshold, graded, *tensors = parameters
    assert threshold is not None
    assert graded is not None
    reset, *how = options
    return lstm.make_cell(tensors, how), lstm.LSTMNeuron(threshold, graded, reset, _surrogate(*kernel))


# Step operator -> the function that runs all steps.
SEQUENCES = {
    neuron_step: neuron_over_time,
    recurrent_step: neuron_over_time,
    spiking_lstm_step: spiking_lstm_over_time,
}

# Step operator -> the function that runs all steps, with feedback of the spikes through a layer into the input.
FED_BACK = {neuron_step: neuron_fed_back}


def restarts(step: Any, parameters: Sequence[Any], options: Any) -> bool:
    """Return True if a step ignores its states and starts from zeros."""
    return step is spiking_lstm_step and bool(_lstm(parameters, (0, 0.0, 0.0), options)[0].restarts)


def output_state(step: Any, options: Any) -> Optional[int]:
    """Return the index of the state that is the spikes, for a step with these options; None: no state is."""
    if step not in (neuron_step, recurrent_step):
        return None
    states = _neurons.find(options[0]).states
    return states.index("spk") if "spk" in states else None
