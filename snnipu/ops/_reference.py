"""A neuron's step and its adjoint in plain PyTorch: the definition of correct kernels."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu import _generator
from snnipu.ops import _neurons
from snnipu.ops._arguments import RESET_MECHANISMS

Tensors = Sequence[Optional[torch.Tensor]]


class StepBackward(NamedTuple):
    """Arguments of one step's adjoint: contiguous tensors of a step.

    An input of None means zeros. A result of None is not written.

    Attributes:
        x: input of the step.
        grad_spk: gradient of the spikes.
        before: states before the step.
        after: states after the step; if one is None, all are recomputed.
        grad_states: upstream gradients of the states after the step.
        grad_after: gradients of the same states from the next step.
        grad_x: result, the gradient of ``x``.
        grad_before: result, the gradients of ``before``.
    """

    x: Optional[torch.Tensor]
    grad_spk: Optional[torch.Tensor]
    before: Tensors
    after: Tensors
    grad_states: Tensors
    grad_after: Tensors
    grad_x: torch.Tensor
    grad_before: Tensors


def broadcast_to_step(parameter: torch.Tensor, step_shape: torch.Size) -> torch.Tensor:
    """Return a parameter broadcast to a step; it has one value, or one for each element modulo its length."""
    if parameter.numel() == 1:
        return parameter.reshape(()).expand(step_shape)
    return parameter.reshape(-1).repeat(step_shape.numel() // max(parameter.numel(), 1)).reshape(step_shape)


class ReferenceStep:
    """The recorded step of a neuron, and its adjoint.

    Args:
        neuron: name of the neuron.
        variant: number of the variant.
        parameters: derived parameters, as the kernels take them.
        step_shape: shape of a step.
        storage: dtype of the stored states. The spike reads the membrane in this dtype.
    """

    def __init__(
        self,
        neuron: str,
        variant: int,
        parameters: Sequence[torch.Tensor],
        step_shape: torch.Size,
        storage: torch.dtype,
    ) -> None:
        equation = _neurons.find(neuron)
        self.neuron, self.variant, self.step = neuron, variant, equation.steps[variant]
        self.zero = parameters[0].new_zeros(step_shape)
        self._names = [_generator.expression(value) for value in self.step.derived]
        named = dict(zip(equation.parameters, parameters))
        self._derived = {
            id(v): broadcast_to_step(named[name], step_shape) for v, name in zip(self.step.derived, self._names)
        }
        self._functions: Dict[str, Callable[..., Any]] = {
            "spike": lambda u: (u > 0).to(u.dtype),
            "stored": lambda value: value.to(storage).to(value.dtype),
        }

    @property
    def recorded(self) -> _generator.Adjoint:
        """The recorded adjoint."""
        return _neurons.adjoint(self.neuron, self.variant)

    def as_tensors(self, tensors: Tensors) -> List[torch.Tensor]:
        """Return the tensors in the compute dtype; zeros for those that are None or empty."""
        zero = self.zero
        return [zero if tensor is None or not tensor.numel() else tensor.to(zero.dtype) for tensor in tensors]

    def _evaluate(
        self, results: Sequence[Any], values: Sequence[Any], tensors: Sequence[torch.Tensor], functions: Dict[str, Any]
    ) -> List[torch.Tensor]:
        known = {**self._derived, **{id(value): tensor for value, tensor in zip(values, tensors)}}
        computed = _generator.evaluate(results, known, **{**self._functions, **functions})
        return [self.zero if tensor is None else tensor.expand(self.zero.shape) for tensor in computed]

    def __call__(self, x: torch.Tensor, before: Tensors, **functions: Any) -> List[torch.Tensor]:
        """Return spikes and states after the step; ``functions`` may replace the Heaviside step by ``spike=``."""
        step = self.step
        tensors = self.as_tensors([x, *before])
        return self._evaluate([step.spk, *step.after], (step.x, *step.before), tensors, functions)

    def output(self, after: Tensors, **functions: Any) -> torch.Tensor:
        """Return the spikes from the states after the step; a state that is the spikes is None."""
        known = [value for value, state in zip(self.step.after, after) if state is not None]
        tensors = self.as_tensors([state for state in after if state is not None])
        return self._evaluate([self.step.spk], known, tensors, functions)[0]

    def adjoint(
        self,
        x: Optional[torch.Tensor],
        before: Tensors,
        after: Tensors,
        grad_spk: Optional[torch.Tensor],
        grad_after: Tensors,
        seeds: Tensors,
        **functions: Any,
    ) -> Tuple[torch.Tensor, List[torch.Tensor], Dict[str, torch.Tensor]]:
        """Return the gradients of x, of the states before the step and, by name, of the parameters.

        Args:
            x: input of the step.
            before: states before the step.
            after: states after the step; those that are None are recomputed.
            grad_spk: gradient of the spikes.
            grad_after: gradients of the states after the step.
            seeds: upstream gradients of the states before the step, to which the adjoint adds.
            functions: ``surrogate=``, a function of ``u`` and the spike's gradient; ``spike=`` as in a call.
        """
        step, recorded = self.step, self.recorded
        values = [step.x, *step.before, recorded.grad_spk, *recorded.grad_after, *recorded.seeds]
        tensors = self.as_tensors([x, *before, grad_spk, *grad_after, *seeds])
        known = [(value, after[place]) for place, value in recorded.stored_states if after[place] is not None]
        values += [value for value, _ in known]
        tensors += self.as_tensors([state for _, state in known])
        results = [recorded.grad_x, *recorded.grad_before, *recorded.grad_derived]
        grad_x, *grads = self._evaluate(results, values, tensors, functions)
        count = len(before)
        return grad_x, grads[:count], dict(zip(self._names, grads[count:]))


def leaky_step(beta: torch.Tensor, threshold: torch.Tensor, reset: int, step_shape: torch.Size) -> ReferenceStep:
    """Return the step of ``leaky`` with a delayed reset; ``reset``: code of the mechanism."""
    plan = _neurons.plan("leaky", {"reset_mechanism": list(RESET_MECHANISMS)[reset], "reset_delay": True})
    parameters = {"beta": beta, "threshold": threshold, "graded_spikes_factor": torch.ones_like(threshold)}
    return ReferenceStep("leaky", plan.variant, plan.derive(parameters, None), step_shape, threshold.dtype)


def leaky_adjoint(
    step: ReferenceStep, grad_spk: torch.Tensor, grad_mem: torch.Tensor, before: torch.Tensor, fired: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, of the membranes before the step, of the clamped beta and of the threshold.

    Args:
        step: a :func:`leaky_step`.
        grad_spk: gradient of ``u``, after the surrogate.
        grad_mem: gradient of the membranes after the step.
        before: membranes before the step.
        fired: 1 for membranes before the step above the threshold, else 0.
    """
    functions = {"surrogate": lambda u, grad: grad, "spike": lambda u: fired}
    grad_x, (carry,), sums = step.adjoint(None, [before], [step.zero], grad_spk, [grad_mem], [None], **functions)
    return grad_x, carry, sums["clamp(beta, 0.0, 1.0)"], sums["threshold"]


def sum_to_parameter(total: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a derived parameter: the sum of ``total`` over the elements that share a value."""
    summed = total.sum() if parameter.numel() == 1 else total.reshape(-1, parameter.numel()).sum(0)
    return summed.reshape(parameter.shape)
