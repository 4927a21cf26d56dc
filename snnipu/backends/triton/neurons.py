"""Neurons over a sequence on a GPU: launches of the kernels that ``snnipu._generator`` prints for each neuron."""

from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from snnipu import _generator
from snnipu._layout import layout
from snnipu.backends import triton as backend
from snnipu.backends.host import _upstream
from snnipu.backends.triton.sequence import _constants, _geometry, _reduced, define
from snnipu.ops import _neurons
from snnipu.ops.neuron_sequence import BackwardArguments, ForwardArguments
from snnipu.surrogate import Kernel

Tensors = Sequence[Optional[torch.Tensor]]
Made = Tuple[torch.Tensor, List[torch.Tensor], List[torch.Tensor]]
# Triton's first version with tl.range(loop_unroll_factor=...).
_UNROLLS_SINCE = (3, 2)


class _Kernels:
    """A neuron's kernels, defined from their text, which Triton reads again where it compiles them."""

    def __init__(self, name: str) -> None:
        self.neuron = _neurons.find(name)
        own = self.neuron.name if self.neuron.name.isascii() else "neuron"
        text = _generator.print_triton([self.neuron._replace(name=own)], backend.version() >= _UNROLLS_SINCE)
        self.module = module = define(f"neuron {name}", text)
        self.forward = getattr(module, f"{own}_fwd_kernel")
        self.backward = getattr(module, f"{own}_bwd_kernel")


@lru_cache(maxsize=None)
def _kernels(name: str) -> _Kernels:
    return _Kernels(name)


def generated(name: str) -> Any:
    """The module with a neuron's step and adjoint, for other kernels: see ``snnipu._generator.print_triton``."""
    return _kernels(name).module


@lru_cache(maxsize=None)
def _reads(name: str, variant: int, parameters: bool) -> Tuple[Tuple[int, ...], bool]:
    """Numbers of the states that the adjoint reads, before or after a step, and whether it reads x."""
    reads = _neurons.reads_all(name, variant) if parameters else _neurons.reads(name, variant)[0]
    return tuple(s for s in range(reads.states.bit_length()) if reads.states >> s & 1), reads.x


@lru_cache(maxsize=None)
def _names(name: str, count: int) -> Tuple[str, ...]:
    return tuple(f"{name}{number}" for number in range(count))


def _numbered(name: str, values: Sequence[Any]) -> Dict[str, Any]:
    return dict(zip(_names(name, len(values)), values))


def _or(tensors: Tensors, other: torch.Tensor) -> List[torch.Tensor]:
    """``tensors``, and ``other`` in the place of those that no kernel reads or writes."""
    return [other if tensor is None else tensor for tensor in tensors]


def _contiguous(tensors: Tensors) -> List[Optional[torch.Tensor]]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def launch_forward(
    name: str,
    variant: int,
    x: torch.Tensor,
    initial: Tensors,
    parameters: Sequence[torch.Tensor],
    constant_input: bool,
    sizes: Tuple[int, int],
    spk: Optional[torch.Tensor],
    kept: Tensors,
    final: Sequence[torch.Tensor],
) -> None:
    """Write ``spk``, the states ``kept`` after each step, in their own dtypes, and ``final``, those that there are."""
    steps, elements = sizes
    kernels = _kernels(name)
    device = backend.check_launch(x, *initial, *parameters, spk, *kept, *final)
    programs, options = _geometry(elements)
    counts = [parameter.numel() for parameter in parameters]
    like = parameters[0]
    with backend.on_device(device):
        # In the order of print_triton_kernels.forward_arguments.
        kernels.forward[(programs,)](
            x,
            *_or(initial, like),
            *parameters,
            x if spk is None else spk,
            *_or(kept, x),
            *(final or [like] * len(kept)),
            steps,
            elements // options["UNIT"],
            *counts,
            VARIANT=variant,
            PER_ELEMENT=max(counts) > 1,
            CONSTANT_INPUT=constant_input,
            STORE_SPK=spk is not None,
            STORE_FINAL=bool(final),
            **_numbered("HAS_INITIAL", [state is not None for state in initial]),
            **_numbered("KEEP", [state is not None for state in kept]),
            **options,
            **backend.exact(),
        )


def launch_backward(
    step: Tuple[str, int],
    kernel: Kernel,
    x: torch.Tensor,
    initial: Tensors,
    kept: Tensors,
    parameters: Sequence[torch.Tensor],
    constant_input: bool,
    sizes: Tuple[int, int],
    grad_spk: Tuple[Optional[torch.Tensor], bool],
    grad_states: Sequence[Tuple[Optional[torch.Tensor], bool]],
    ends: Tensors,
    made: Tuple[torch.Tensor, Tensors],
    need: Sequence[bool],
) -> List[torch.Tensor]:
    """Write the gradients of x and of the initial states, ``made``; returns those of the parameters that ``need`` one,
    empty for others.

    ``step``: a neuron's name and its variant. ``kept``: the states after each step that the adjoint reads.
    ``grad_spk``, ``grad_states``: gradients, and whether one row stands for all steps.
    """
    (name, variant), (grad_x, grad_initial), (steps, elements) = step, made, sizes
    kernels = _kernels(name)
    like = parameters[0]
    upstream, output = list(grad_states), kernels.neuron.steps[variant].output_state
    if output is not None:  # of a neuron whose output is a state, that state's gradient is the output's
        upstream[output], grad_spk = grad_spk, (None, False)
    spk, spk_constant = grad_spk
    learns = any(need)
    device = backend.check_launch(x, spk, *(grad for grad, _ in upstream), *ends, *initial, *parameters)
    programs, options = _geometry(elements)
    counts = [parameter.numel() for parameter in parameters]
    per_element = max(counts) > 1
    sums = [like.new_empty(elements if per_element else programs) if needed else None for needed in need]
    names = len(kernels.neuron.parameters)
    with backend.on_device(device):
        # In the order of print_triton_kernels.backward_arguments.
        kernels.backward[(programs,)](
            x,
            *_or(initial, like),
            *_or(kept, like),
            *parameters,
            x if spk is None else spk,
            *_or([grad for grad, _ in upstream], x),
            *_or(ends, like),
            grad_x,
            *_or(grad_initial, like),
            *_or(sums, like),
            steps,
            elements // options["UNIT"],
            *counts,
            *_constants(kernel.a, kernel.b),
            VARIANT=variant,
            PER_ELEMENT=per_element,
            CONSTANT_INPUT=constant_input,
            SURROGATE=kernel.id,
            PARAMETERS=learns,
            READ_X=_reads(name, variant, learns)[1],
            HAS_GRAD_SPK=spk is not None,
            SPK_ROWS=int(not spk_constant),
            **_numbered("READ", [state is not None for state in kept]),
            **_numbered("HAS_INITIAL", [state is not None for state in initial]),
            **_numbered("HAS_UPSTREAM", [grad is not None for grad, _ in upstream]),
            **_numbered("ROWS", [int(not constant) for _, constant in upstream]),
            **_numbered("HAS_FINAL", [grad is not None for grad in ends]),
            **_numbered("NEED_INITIAL", [grad is not None for grad in grad_initial]),
            **_numbered("NEED", [bool(needed) for needed in need][:names]),
            **options,
            # A step that is computed again decides as it did.
            **backend.exact(),
        )
    return [_reduced(total, parameter) for total, parameter in zip(sums, parameters)]


def neuron_sequence_fwd(*arguments: Any) -> Made:
    """CUDA kernel of ``snnipu::neuron_sequence_fwd``."""
    a = ForwardArguments(*arguments)
    steps, step_shape, shape = layout(a.x, a.num_steps)
    elements = step_shape.numel()
    like = a.parameters[0]
    initial = [state if state is not None and state.numel() else None for state in a.initial]
    spk = a.x.new_empty(shape)
    states = [a.x.new_empty(shape if a.store >> place & 1 else 0) for place in range(len(initial))]
    final = [like.new_empty(step_shape) for _ in initial] if a.store_final else []
    if elements and steps:
        launch_forward(
            a.neuron,
            a.variant,
            a.x.contiguous(),
            _contiguous(initial),
            [parameter.contiguous() for parameter in a.parameters],
            a.num_steps is not None,
            (steps, elements),
            spk,
            [state if state.numel() else None for state in states],
            final,
        )
    else:
        for state, start in zip(final, initial):
            state.zero_() if start is None else state.copy_(start)
    return spk, states, final


def neuron_sequence_bwd(*arguments: Any) -> Made:
    """CUDA kernel of ``snnipu::neuron_sequence_bwd``.

    Without ``states`` the forward kernel writes once more those that the adjoint reads, for as long as this call takes:
    the recurrence runs backward from the last step, and registers do not hold a sequence.
    """
    a = BackwardArguments(*arguments)
    x = a.stored  # what is not x is not read in its place
    given = None if a.states is None else [state.contiguous() if state.numel() else None for state in a.states]
    steps, step_shape, _ = layout(x, a.num_steps)
    elements = step_shape.numel()
    parameters = [parameter.contiguous() for parameter in a.parameters]
    like, empty = parameters[0], parameters[0].new_empty(0)
    ends: Tensors = list(a.grad_final) or [None] * len(a.initial)
    grad_x = x.new_empty(x.shape)
    grad_initial = [like.new_empty(step_shape if needed else 0) for needed in a.need_initial]
    if not (elements and steps):
        for gradient, end in zip(grad_initial, ends):
            gradient.zero_()
            if gradient.numel() and end is not None:
                gradient.copy_(end)
        gradients = [torch.zeros_like(p) if needed else empty for p, needed in zip(parameters, a.need_parameters)]
        return grad_x.zero_(), grad_initial, gradients
    read, _ = _reads(a.neuron, a.variant, any(a.need_parameters))
    x, initial, ends = x.contiguous(), _contiguous(a.initial), _contiguous(ends)
    constant_input = a.num_steps is not None
    kept: List[Optional[torch.Tensor]] = [None] * len(initial)
    if given is not None and all(given[s] is not None for s in read):
        kept = [state if s in read else None for s, state in enumerate(given)]
    elif a.x is None:
        raise ValueError("x must be given to snnipu::neuron_sequence_bwd where a state that it reads is not")
    elif read:
        kept = [like.new_empty(steps, elements) if s in read else None for s in range(len(initial))]
        sizes = (steps, elements)
        launch_forward(a.neuron, a.variant, x, initial, parameters, constant_input, sizes, None, kept, [])
    grad_parameters = launch_backward(
        (a.neuron, a.variant),
        Kernel(a.surrogate, a.surrogate_a, a.surrogate_b),
        x,
        initial,
        kept,
        parameters,
        constant_input,
        (steps, elements),
        _upstream(a.grad_spk),
        [_upstream(grad) for grad in a.grad_states],
        ends,
        (grad_x, [gradient if gradient.numel() else None for gradient in grad_initial]),
        a.need_parameters,
    )
    return grad_x, grad_initial, grad_parameters
