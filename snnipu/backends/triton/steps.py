"""Run single steps of a neuron on a GPU, for loops over time and for recurrent neurons."""

from functools import partial
from typing import List, Optional, Sequence

import torch

from snnipu.backends.triton.neurons import Tensors, _reads, launch_backward, launch_forward
from snnipu.ops import recurrent_sequence
from snnipu.ops._reference import StepBackward
from snnipu.surrogate import Kernel


class TritonSteps:
    """Single steps like those of :class:`snnipu.backends.neurons.SingleSteps`, a launch for each.

    Rows are contiguous. States have the compute dtype; None stands for zeros.
    """

    __slots__ = ("_kernel", "_name", "_parameters", "_sums", "_variant")

    def __init__(self, name: str, variant: int, parameters: Sequence[torch.Tensor] = ()) -> None:
        self._name, self._variant, self._parameters = name, variant, parameters

    def copy(self, elements: int, parameters: Sequence[torch.Tensor]) -> "TritonSteps":
        """Return a copy with these parameters, which are contiguous. Launches take steps of any size."""
        return TritonSteps(self._name, self._variant, parameters)

    def forward(
        self, x: torch.Tensor, before: Tensors, spk: Optional[torch.Tensor], after: Tensors, copies: Tensors = ()
    ) -> None:
        """Write ``spk``, the states ``after`` the step, and ``copies`` of them."""
        like = self._parameters[0]
        final = [like.new_empty(x.shape) if state is None else state for state in after]
        states = copies or [None] * len(final)
        sizes = (1, x.numel())
        launch_forward(self._name, self._variant, x, before, self._parameters, False, sizes, spk, states, final)

    def differentiate(self, surrogate: int, surrogate_a: float, surrogate_b: float, grad_parameters: Tensors) -> None:
        """Prepare calls of :meth:`backward`; each overwrites ``grad_parameters`` with its own sums."""
        self._kernel, self._sums = Kernel(surrogate, surrogate_a, surrogate_b), grad_parameters

    def backward(self, a: StepBackward) -> None:
        """Write ``grad_x`` and ``grad_before``."""
        x = a.grad_x if a.x is None else a.x  # not read
        need = [grad is not None for grad in self._sums] or [False] * len(self._parameters)
        read, _ = _reads(self._name, self._variant, any(need))
        states: List[Optional[torch.Tensor]] = [state if place in read else None for place, state in enumerate(a.after)]
        if any(states[place] is None for place in read):
            states = [self._parameters[0].new_empty(x.shape) if s in read else None for s in range(len(states))]
            self.forward(x, a.before, None, [None] * len(states), states)
        gradients = launch_backward(
            (self._name, self._variant),
            self._kernel,
            x,
            a.before,
            states,
            self._parameters,
            False,
            (1, x.numel()),
            (a.grad_spk, False),
            [(grad, False) for grad in a.grad_states],
            a.grad_after or [None] * len(a.before),
            (a.grad_x, a.grad_before),
            need,
        )
        for total, gradient in zip(self._sums, gradients):
            if total is not None:
                total.copy_(gradient.reshape(total.shape))


_LOOP_FUNCTIONS = recurrent_sequence.LoopFunctions(
    lambda neuron, variant, x, parameters: TritonSteps(neuron, variant, [value.contiguous() for value in parameters]),
    torch.Tensor.new_empty,
    lambda *results: None,
)


# CUDA kernels of the operators.
neuron_recurrent_fwd = partial(recurrent_sequence.run_forward, _LOOP_FUNCTIONS)
neuron_recurrent_bwd = partial(recurrent_sequence.run_backward, _LOOP_FUNCTIONS)
