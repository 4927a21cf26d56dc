"""A neuron's step as one node of the graphs of ``torch.compile``, and the same neuron over all steps.

``snnipu.compiler`` finds chains of :data:`STEPS` in a graph, and puts their :data:`SEQUENCES` in their place.
"""

import weakref
from functools import lru_cache
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import torch

from snnipu._layout import SINGLE_STEP
from snnipu.ops import _neurons
from snnipu.ops.lif_sequence import lif_apply
from snnipu.ops.neuron_sequence import neuron_apply
from snnipu.surrogate import Kernel, Surrogate

Tensors = Tuple[Optional[torch.Tensor], ...]

# Set by `snnipu.compiler`, which makes the functions below known to TorchDynamo; without it a step is traced.
enabled = False


def look_up(neuron: Any, parts: Iterable[str]) -> None:
    """Ask the instance for its methods: TorchDynamo compiles anew once something else stands in their place there."""
    for name in parts:
        getattr(neuron, name)


def at_trace_time(function: Any) -> Any:
    """Mark of a method that TorchDynamo calls where it meets it, its result being a constant of the graph."""
    function._dynamo_marked_constant = True
    return function


@at_trace_time
def tracing() -> bool:
    """Whether ``torch.compile`` is to see a neuron's step as one node."""
    return enabled and torch._guards.TracingContext.try_get() is not None


def apart(function: Any, *args: Any, **keywords: Any) -> Any:
    """Call ``function``, into which ``snnipu.compiler`` does not let TorchDynamo look: the graph ends there."""
    return function(*args, **keywords)


# Neurons whose step was traced in full, and by whom: the guards of that trace are there.
_known: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


def note(neuron: Any) -> bool:
    """The trace that goes on has seen a step of this neuron with all its checks."""
    context = torch._guards.TracingContext.try_get()
    if context is not None:
        _known[neuron] = weakref.ref(context)
    return True


def is_known(neuron: Any) -> bool:
    """Whether it has."""
    context = torch._guards.TracingContext.try_get()
    reference = _known.get(neuron)
    return context is not None and reference is not None and reference() is context


@lru_cache(maxsize=256)
def _surrogate_of(number: int, a: float, b: float) -> Surrogate:
    surrogate = Surrogate("kernel")
    surrogate.kernel = Kernel(number, a, b)
    return surrogate


def _surrogate(number: int, a: float, b: float) -> Surrogate:
    if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat):
        # TorchDynamo asks what comes out, whose form does not depend on them; to look at them would fix them.
        a, b = 1.0, 0.0
    return _surrogate_of(number, a, b)


def lif_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[int, bool],
    rolls: str,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """``snnipu.ops.lif_step`` once its arguments have been checked: ``(spk, mem)``.

    Args:
        states: ``(mem,)``; None: zeros.
        parameters: beta, threshold, graded_spikes_factor.
        kernel: the fields of a ``surrogate.Kernel``.
        options: code of the reset mechanism, reset_delay.
        rolls: why the step must stay a step; empty where it need not.
    """
    beta, threshold, graded = parameters
    reset, delay = options
    spk, mem, _ = lif_apply(x, states[0], beta, threshold, graded, SINGLE_STEP, reset, delay, _surrogate(*kernel))
    assert mem is not None
    return spk, mem


def lif_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[int, bool],
    store: Sequence[bool],
    need_final: bool,
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`lif_step`: ``(spk, mem, last mem)``, None for what is not asked for."""
    beta, threshold, graded = parameters
    reset, delay = options
    return lif_apply(
        x,
        states[0],
        beta,
        threshold,
        graded,
        num_steps,
        reset,
        delay,
        _surrogate(*kernel),
        need_mem=store[0],
        need_last=need_final,
    )


def neuron_step(
    x: torch.Tensor,
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]],
    rolls: str,
) -> Tuple[torch.Tensor, ...]:
    """One step of a neuron of ``snnipu.equations``: ``(spk, *states)``.

    Args:
        states, parameters: those of the equation, in its order.
        kernel: the fields of a ``surrogate.Kernel``.
        options: the equation's name, its parameters' names, its options.
        rolls: why the step must stay a step; empty where it need not.
    """
    name, names, chosen = options
    made = neuron_apply(
        name,
        x,
        states,
        dict(zip(names, parameters)),
        options=dict(chosen),
        num_steps=SINGLE_STEP,
        spike_grad=_surrogate(*kernel),
    )
    found: List[Any] = [made.spk, *made.states]
    return tuple(found)


def neuron_over_time(
    x: torch.Tensor,
    num_steps: Optional[int],
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    kernel: Tuple[int, float, float],
    options: Tuple[str, Tuple[str, ...], Tuple[Tuple[str, Any], ...]],
    store: Sequence[bool],
    need_final: bool,
) -> Tuple[Optional[torch.Tensor], ...]:
    """All steps of :func:`neuron_step`: spikes, each state over time, each final state, or None."""
    name, names, chosen = options
    made = neuron_apply(
        name,
        x,
        states,
        dict(zip(names, parameters)),
        options=dict(chosen),
        num_steps=num_steps,
        spike_grad=_surrogate(*kernel),
        store=store,
        need_final=need_final,
    )
    final = made.final if made.final is not None else [None] * len(made.states)
    return (made.spk, *made.states, *final)


# Step -> the same over time.
SEQUENCES = {lif_step: lif_over_time, neuron_step: neuron_over_time}


def state_names(equation: str) -> Tuple[str, ...]:
    """The states of a neuron of ``snnipu.equations``."""
    return _neurons.find(equation).states
