"""Single steps of a neuron on a GPU: of loops, and of neurons whose spikes come back through a layer."""

from functools import partial
from typing import List, Optional, Sequence

import torch

from snnipu.backends.triton.neurons import Tensors, _reads, launch_backward, launch_forward
from snnipu.ops import recurrent_sequence
from snnipu.ops._reference import StepBackward
from snnipu.surrogate import Kernel


class Steps:
    """As :class:`snnipu.backends.neurons.Steps`, a launch each.

    Also here rows are contiguous, those of states in the compute dtype, and None is zeros.
    """

    __slots__ = ("_kernel", "_name", "_parameters", "_sums", "_variant")

    def __init__(self, name: str, variant: int, parameters: Sequence[torch.Tensor] = ()) -> None:
        self._name, self._variant, self._parameters = name, variant, parameters

    def copy(self, elements: int, parameters: Sequence[torch.Tensor]) -> "Steps":
        """Return the same with these parameters, contiguous; a launch takes any size."""
        return Steps(self._name, self._variant, parameters)

    def forward(
        self, x: torch.Tensor, before: Tensors, spk: Optional[torch.Tensor], after: Tensors, copies: Tensors = ()
    ) -> None:
        """Writes ``spk``, the states ``after`` the step, and ``copies`` of them."""
        like = self._parameters[0]
        final = [like.new_empty(x.shape) if state is None else state for state in after]
        kept = copies or [None] * len(final)
        sizes = (1, x.numel())
        launch_forward(self._name, self._variant, x, before, self._parameters, False, sizes, spk, kept, final)

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        """Make it steps backward; each writes the sums of its own to ``grad_parameters``."""
        self._kernel, self._sums = Kernel(surrogate, surrogate_a, surrogate_b), grad_parameters

    def backward(self, a: StepBackward) -> None:
        """Write ``grad_x`` and ``grad_before``."""
        x = a.grad_x if a.x is None else a.x  # not read
        need = [grad is not None for grad in self._sums] or [False] * len(self._parameters)
        read, _ = _reads(self._name, self._variant, any(need))
        kept: List[Optional[torch.Tensor]] = [state if place in read else None for place, state in enumerate(a.after)]
        if any(kept[place] is None for place in read):
            kept = [self._parameters[0].new_empty(x.shape) if place in read else None for place in range(len(kept))]
            self.forward(x, a.before, None, [None] * len(kept), kept)
        made = launch_backward(
            (self._name, self._variant),
            self._kernel,
            x,
            a.before,
            kept,
            self._parameters,
            False,
            (1, x.numel()),
            (a.grad_spk, False),
            [(grad, False) for grad in a.grad_states],
            a.grad_after or [None] * len(a.before),
            (a.grad_x, a.grad_before),
            need,
        )
        for into, gradient in zip(self._sums, made):
            if into is not None:
                into.copy_(gradient.reshape(into.shape))


_MEANS = recurrent_sequence.LoopFunctions(
    lambda neuron, variant, x, parameters: Steps(neuron, variant, [value.contiguous() for value in parameters]),
    torch.Tensor.new_empty,
    lambda *made: None,
)


# CUDA kernels of the operators.
neuron_recurrent_fwd = partial(recurrent_sequence.run_forward, _MEANS)
neuron_recurrent_bwd = partial(recurrent_sequence.run_backward, _MEANS)
