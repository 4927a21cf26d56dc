"""A neuron's step and its adjoint by PyTorch's operations: the definition of what the kernels compute."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from snnipu import _generator
from snnipu.ops import _neurons
from snnipu.ops._arguments import RESET_MECHANISMS

Tensors = Sequence[Optional[torch.Tensor]]


def spread(parameter: torch.Tensor, step_shape: torch.Size) -> torch.Tensor:
    """A parameter as the ops take it (one value, or one for each element modulo its length), as [*step_shape]."""
    if parameter.numel() == 1:
        return parameter.reshape(()).expand(step_shape)
    return parameter.reshape(-1).repeat(step_shape.numel() // max(parameter.numel(), 1)).reshape(step_shape)


class ReferenceStep:
    """The recorded step of a neuron, and its adjoint.

    Args:
        neuron: name by which the operators know the equation.
        variant: number of a choice of its options.
        values: parameters of the kernels, each of which broadcasts to a step.
        storage: dtype of the stored states; a spike is decided on the membrane as it is stored.
    """

    def __init__(self, neuron: str, variant: int, values: Sequence[torch.Tensor], storage: torch.dtype) -> None:
        found = _neurons.find(neuron)
        self.neuron, self.variant, self.step = neuron, variant, found.steps[variant]
        self._names = [_generator.expression(value) for value in self.step.derived]
        named = dict(zip(found.parameters, values))
        self._derived = {id(value): named[name] for value, name in zip(self.step.derived, self._names)}
        self._functions: Dict[str, Callable[..., Any]] = {
            "spike": lambda u: (u > 0).to(u.dtype),
            "stored": lambda value: value.to(storage).to(value.dtype),
        }

    @property
    def recorded(self) -> _generator.Adjoint:
        """The recorded adjoint."""
        return _neurons.adjoint(self.neuron, self.variant)

    def __call__(self, x: torch.Tensor, before: Sequence[torch.Tensor], **functions: Any) -> List[torch.Tensor]:
        """Return spikes and states after the step; ``functions``: ``spike`` in place of the Heaviside step."""
        step = self.step
        given = {**self._derived, id(step.x): x, **{id(value): state for value, state in zip(step.before, before)}}
        return _generator.evaluate([step.spk, *step.after], given, **{**self._functions, **functions})

    def output(self, after: Tensors, **functions: Any) -> torch.Tensor:
        """Return the spikes from the states after the step, None for the spikes; ``functions`` as in a call."""
        given = {**self._derived, **{id(v): state for v, state in zip(self.step.after, after) if state is not None}}
        spikes: torch.Tensor = _generator.evaluate([self.step.spk], given, **{**self._functions, **functions})[0]
        return spikes

    def adjoint(
        self,
        x: torch.Tensor,
        before: Sequence[torch.Tensor],
        after: Tensors,
        grad_spk: torch.Tensor,
        grad_after: Sequence[torch.Tensor],
        seeds: Sequence[torch.Tensor],
        surrogate: Callable[..., Any],
        **functions: Any,
    ) -> Tuple[Optional[torch.Tensor], List[torch.Tensor], Dict[str, Optional[torch.Tensor]]]:
        """Return the gradients of x, of the states before the step and, by name, of the parameters; None is zero.

        Args:
            x: input of the step.
            before: states before the step.
            after: states after the step; those that are None are computed again.
            grad_spk: gradient of the spikes.
            grad_after: gradients of the states after the step.
            seeds: gradients of the states before the step, to which those by the step are added.
            surrogate: function of ``u`` and the spike's gradient.
            functions: ``spike`` in place of the Heaviside step.
        """
        recorded = self.recorded
        given = {**self._derived, id(self.step.x): x, id(recorded.grad_spk): grad_spk}
        for values, tensors in (
            (self.step.before, before),
            (recorded.grad_after, grad_after),
            (recorded.seeds, seeds),
        ):
            given.update((id(value), tensor) for value, tensor in zip(values, tensors))
        for place, value in recorded.kept:
            state = after[place]
            if state is not None:
                given[id(value)] = state
        results = [recorded.grad_x, *recorded.grad_before, *recorded.grad_derived]
        grad_x, *others = _generator.evaluate(results, given, surrogate=surrogate, **{**self._functions, **functions})
        return grad_x, others[: len(before)], dict(zip(self._names, others[len(before) :]))


def leaky_step(beta: torch.Tensor, threshold: torch.Tensor, reset: int) -> ReferenceStep:
    """Return the step of ``leaky`` with a delayed reset; ``reset``: code of the mechanism."""
    plan = _neurons.plan("leaky", {"reset_mechanism": list(RESET_MECHANISMS)[reset], "reset_delay": True})
    given = {"beta": beta, "threshold": threshold, "graded_spikes_factor": torch.ones_like(threshold)}
    return ReferenceStep("leaky", plan.variant, plan.derive(given, None), threshold.dtype)


def leaky_adjoint(
    step: ReferenceStep, grad_spk: torch.Tensor, grad_mem: torch.Tensor, before: torch.Tensor, fired: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, of the membranes before the step, of the clamped beta and of the threshold.

    Args:
        step: a :func:`leaky_step`.
        grad_spk: gradient behind the surrogate.
        grad_mem: gradient of the membranes after the step.
        before: membranes before the step.
        fired: 1 where they are above the threshold.
    """
    zero = torch.zeros_like(grad_mem)
    arguments = (zero, [before], [zero], grad_spk, [grad_mem], [zero])
    grad_x, (carry,), sums = step.adjoint(*arguments, surrogate=lambda u, grad: grad, spike=lambda u: fired)
    of_beta, of_threshold = sums["clamp(beta, 0.0, 1.0)"], sums["threshold"]
    assert grad_x is not None
    assert of_beta is not None
    assert of_threshold is not None
    return grad_x, carry, of_beta, of_threshold


def sum_to_parameter(total: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter, as the ops take it, from those of the elements of a step."""
    summed = total.sum() if parameter.numel() == 1 else total.reshape(-1, parameter.numel()).sum(0)
    return summed.reshape(parameter.shape)
