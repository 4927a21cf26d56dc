"""Run neurons over a sequence on a GPU, by the Triton kernels that ``snnipu._generator`` prints for each neuron."""

from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from snnipu import _generator
from snnipu._layout import layout
from snnipu.backends import triton as backend
from snnipu.backends.host import upstream_row
from snnipu.backends.triton.sequence import _constants, _geometry, _reduced, define
from snnipu.ops import _neurons
from snnipu.ops.neuron_sequence import (
    BackwardArguments,
    ForwardArguments,
    OperatorResults,
    copy_states,
    new_gradients,
    new_results,
    without_empty,
    zero_gradients,
)
from snnipu.surrogate import Kernel

Tensors = Sequence[Optional[torch.Tensor]]
# First version of Triton with tl.range(loop_unroll_factor=...).
_UNROLLS_SINCE = (3, 2)


class _NeuronKernels:
    """The kernels of a neuron, defined from generated source."""

    def __init__(self, name: str) -> None:
        self.neuron = _neurons.find(name)
        prefix = self.neuron.name if self.neuron.name.isascii() else "neuron"
        text = _generator.print_triton([self.neuron._replace(name=prefix)], backend.version() >= _UNROLLS_SINCE)
        self.module = module = define(f"neuron {name}", text)
        self.forward = getattr(module, f"{prefix}_fwd_kernel")
        self.backward = getattr(module, f"{prefix}_bwd_kernel")


@lru_cache(maxsize=None)
def _kernels(name: str) -> _NeuronKernels:
    return _NeuronKernels(name)


def step_functions(name: str) -> Any:
    """Return the module with a neuron's step and adjoint, for use in other kernels.

    See ``snnipu._generator.print_triton`` for its functions.
    """
    return _kernels(name).module


@lru_cache(maxsize=None)
def _reads(name: str, variant: int, parameters: bool) -> Tuple[Tuple[int, ...], bool]:
    """Return the indices of the states that the adjoint reads, before or after a step, and True if it reads x."""
    reads = _neurons.reads_all(name, variant) if parameters else _neurons.reads(name, variant)[0]
    return tuple(s for s in range(reads.states.bit_length()) if reads.states >> s & 1), reads.x


@lru_cache(maxsize=None)
def _names(name: str, count: int) -> Tuple[str, ...]:
    return tuple(f"{name}{number}" for number in range(count))


def _numbered(name: str, values: Sequence[Any]) -> Dict[str, Any]:
    return dict(zip(_names(name, len(values)), values))


def _fill_none(tensors: Tensors, placeholder: torch.Tensor) -> List[torch.Tensor]:
    """Return ``tensors`` with ``placeholder`` in place of None: a kernel takes a pointer even if it does not use it."""
    return [placeholder if tensor is None else tensor for tensor in tensors]


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
    states: Tensors,
    final: Sequence[torch.Tensor],
) -> None:
    """Launch the forward kernel of a neuron.

    Args:
        name: name of the neuron.
        variant: number of the choice of its options.
        x: input current, contiguous.
        initial: states before the first step; None for zeros.
        parameters: parameters of the kernel.
        constant_input: True if x is the same at all steps.
        sizes: steps, and elements of a step.
        spk: the output spikes; None if they are not needed.
        states: outputs for the states after each step, each in its own dtype; None for those that are not needed.
        final: outputs for the states after the last step; empty if they are not needed.
    """
    steps, elements = sizes
    kernels = _kernels(name)
    device = backend.check_launch(x, *initial, *parameters, spk, *states, *final)
    programs, options = _geometry(elements)
    counts = [parameter.numel() for parameter in parameters]
    like = parameters[0]
    with backend.on_device(device):
        # In the order of print_triton_kernels.forward_arguments.
        kernels.forward[(programs,)](
            x,
            *_fill_none(initial, like),
            *parameters,
            x if spk is None else spk,
            *_fill_none(states, x),
            *(final or [like] * len(states)),
            steps,
            elements // options["UNIT"],
            *counts,
            VARIANT=variant,
            PER_ELEMENT=max(counts) > 1,
            CONSTANT_INPUT=constant_input,
            STORE_SPK=spk is not None,
            STORE_FINAL=bool(final),
            **_numbered("HAS_INITIAL", [state is not None for state in initial]),
            **_numbered("KEEP", [state is not None for state in states]),
            **options,
            **backend.exact(),
        )


def launch_backward(
    step: Tuple[str, int],
    kernel: Kernel,
    x: torch.Tensor,
    initial: Tensors,
    states: Tensors,
    parameters: Sequence[torch.Tensor],
    constant_input: bool,
    sizes: Tuple[int, int],
    grad_spk: Tuple[Optional[torch.Tensor], bool],
    grad_states: Sequence[Tuple[Optional[torch.Tensor], bool]],
    grad_final: Tensors,
    outputs: Tuple[torch.Tensor, Tensors],
    need: Sequence[bool],
) -> List[torch.Tensor]:
    """Launch the backward kernel of a neuron.

    Args:
        step: name of the neuron, and number of the choice of its options.
        kernel: the surrogate.
        x: input current, contiguous.
        initial: states before the first step; None for zeros.
        states: states after each step; None for those that the adjoint does not read.
        parameters: parameters of the kernel.
        constant_input: True if x is the same at all steps.
        sizes: steps, and elements of a step.
        grad_spk: gradient of the spikes, and True if it is one row for all steps.
        grad_states: likewise the gradient of each state.
        grad_final: gradients of the states after the last step.
        outputs: the gradients to write: of x, and of the initial states (None for those that are not needed).
        need: for each parameter, True if its gradient is needed.

    Returns:
        The gradients of the parameters; empty for those that are not needed.
    """
    (name, variant), (grad_x, grad_initial), (steps, elements) = step, outputs, sizes
    kernels = _kernels(name)
    like = parameters[0]
    upstream, output = list(grad_states), kernels.neuron.steps[variant].output_state
    if output is not None:  # the output is a state: its gradient is passed as that of the state
        upstream[output], grad_spk = grad_spk, (None, False)
    spk, spk_constant = grad_spk
    learns = any(need)
    device = backend.check_launch(x, spk, *(grad for grad, _ in upstream), *grad_final, *initial, *parameters)
    programs, options = _geometry(elements)
    counts = [parameter.numel() for parameter in parameters]
    per_element = max(counts) > 1
    names = len(kernels.neuron.parameters)
    of_sums = like.new_empty if names else like.new_zeros  # no kernel writes the tensor of a neuron without parameters
    sums = [of_sums(elements if per_element else programs) if needed else None for needed in need]
    with backend.on_device(device):
        # In the order of print_triton_kernels.backward_arguments.
        kernels.backward[(programs,)](
            x,
            *_fill_none(initial, like),
            *_fill_none(states, like),
            *parameters,
            x if spk is None else spk,
            *_fill_none([grad for grad, _ in upstream], x),
            *_fill_none(grad_final, like),
            grad_x,
            *_fill_none(grad_initial, like),
            *_fill_none(sums, like),
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
            **_numbered("READ", [state is not None for state in states]),
            **_numbered("HAS_INITIAL", [state is not None for state in initial]),
            **_numbered("HAS_UPSTREAM", [grad is not None for grad, _ in upstream]),
            **_numbered("ROWS", [int(not constant) for _, constant in upstream]),
            **_numbered("HAS_FINAL", [grad is not None for grad in grad_final]),
            **_numbered("NEED_INITIAL", [grad is not None for grad in grad_initial]),
            **_numbered("NEED", [bool(needed) for needed in need][:names]),
            **options,
            # Steps that are computed again must reach the same decisions as in the forward pass.
            **backend.exact(),
        )
    return [_reduced(total, parameter) for total, parameter in zip(sums, parameters)]


def neuron_sequence_fwd(*arguments: Any) -> OperatorResults:
    """CUDA kernel of ``snnipu::neuron_sequence_fwd``."""
    a = ForwardArguments(*arguments)
    steps, step_shape, _ = layout(a.x, a.num_steps)
    elements = step_shape.numel()
    spk, states, final = new_results(a)
    if elements and steps:
        launch_forward(
            a.neuron,
            a.variant,
            a.x.contiguous(),
            _contiguous(without_empty(a.initial)),
            [parameter.contiguous() for parameter in a.parameters],
            a.num_steps is not None,
            (steps, elements),
            spk,
            without_empty(states),
            final,
        )
    else:
        copy_states(final, a.initial)
    return spk, states, final


def neuron_sequence_bwd(*arguments: Any) -> OperatorResults:
    """CUDA kernel of ``snnipu::neuron_sequence_bwd``.

    Without ``states``, the forward kernel runs again and stores the states that the adjoint reads, until this call
    ends. The adjoint starts at the last step, and registers cannot hold a whole sequence.
    """
    a = BackwardArguments(*arguments)
    x = a.stored  # if this is another tensor than x, the kernel does not read it
    stored = None if a.states is None else _contiguous(without_empty(a.states))
    steps, step_shape, _ = layout(x, a.num_steps)
    elements = step_shape.numel()
    parameters = [parameter.contiguous() for parameter in a.parameters]
    like = parameters[0]
    grad_final: Tensors = list(a.grad_final) or [None] * len(a.initial)
    gradients = grad_x, grad_initial, _ = new_gradients(a)
    if not (elements and steps):
        zero_gradients(a, gradients)
        return gradients
    read, _ = _reads(a.neuron, a.variant, any(a.need_parameters))
    x, initial, grad_final = x.contiguous(), _contiguous(a.initial), _contiguous(grad_final)
    constant_input = a.num_steps is not None
    states: List[Optional[torch.Tensor]] = [None] * len(initial)
    if stored is not None and all(stored[s] is not None for s in read):
        states = [state if s in read else None for s, state in enumerate(stored)]
    elif a.x is None:
        raise ValueError("snnipu::neuron_sequence_bwd needs x, because a state that the adjoint reads is not stored")
    elif read:
        states = [like.new_empty(steps, elements) if s in read else None for s in range(len(initial))]
        sizes = (steps, elements)
        launch_forward(a.neuron, a.variant, x, initial, parameters, constant_input, sizes, None, states, [])
    grad_parameters = launch_backward(
        (a.neuron, a.variant),
        Kernel(a.surrogate, a.surrogate_a, a.surrogate_b),
        x,
        initial,
        states,
        parameters,
        constant_input,
        (steps, elements),
        upstream_row(a.grad_spk),
        [upstream_row(grad) for grad in a.grad_states],
        grad_final,
        (grad_x, without_empty(grad_initial)),
        a.need_parameters,
    )
    return grad_x, grad_initial, grad_parameters
