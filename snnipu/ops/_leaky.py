"""One step of Leaky as layers from spikes to spikes need it, in plain PyTorch: the recorded step and its adjoint."""

from typing import Any, Dict, NamedTuple, Tuple

import torch

from snnipu import _generator
from snnipu.ops import _neurons
from snnipu.ops._arguments import RESET_MECHANISMS

_DECAY, _THRESHOLD, _FACTOR = "clamp(beta, 0.0, 1.0)", "threshold", "graded_spikes_factor"


class LeakyStep(NamedTuple):
    """Of neurons with these parameters, reset a step after their spike."""

    beta: torch.Tensor
    threshold: torch.Tensor
    reset: int

    def _recorded(self) -> Tuple[Any, Dict[int, Any]]:
        """The adjoint, which knows its step, and the parameters' values."""
        mechanism = list(RESET_MECHANISMS)[self.reset]
        variant = _neurons.plan("leaky", {"reset_mechanism": mechanism, "reset_delay": True}).variant
        adjoint = _neurons.adjoint("leaky", variant)
        values = {_DECAY: self.beta.clamp(0, 1), _THRESHOLD: self.threshold, _FACTOR: torch.ones_like(self.threshold)}
        texts = _neurons.derived_texts("leaky", variant)
        return adjoint, {id(value): values[text] for value, text in zip(adjoint.step.derived, texts)}

    def above(self, mem: torch.Tensor) -> torch.Tensor:
        """Who fires with these membranes: bool."""
        return mem - self.threshold > 0

    def __call__(self, mem: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The membranes after a step."""
        adjoint, given = self._recorded()
        step = adjoint.step
        given.update({id(step.x): x, id(step.before[0]): mem})
        found = _generator.evaluate(step.after, given, spike=lambda u: (u > 0).to(u.dtype), stored=lambda u: u)
        made: torch.Tensor = found[0]
        return made

    def adjoint(
        self, through: torch.Tensor, carry: torch.Tensor, before: torch.Tensor, fired: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of x, of the membranes before the step, of the clamped beta and of the threshold.

        ``through``: what has passed the spike function; ``carry``: that of the membranes, from the step after;
        ``before``, ``fired``: membranes before the step, and whether they were above the threshold.
        """
        adjoint, given = self._recorded()
        nothing = torch.zeros_like(carry)
        given.update((id(value), nothing) for value in (adjoint.step.x, *adjoint.seeds, adjoint.kept[0][1]))
        given.update({id(adjoint.step.before[0]): before, id(adjoint.grad_spk): through})
        given[id(adjoint.grad_after[0])] = carry
        texts = [_generator.expression(value) for value in adjoint.step.derived]
        sums = dict(zip(texts, adjoint.grad_derived))
        results = [adjoint.grad_x, *adjoint.grad_before, sums[_DECAY], sums[_THRESHOLD]]
        functions: Dict[str, Any] = {
            "stored": lambda u: u,
            "spike": lambda u: fired,
            "surrogate": lambda u, grad: grad,
        }
        grad_x, grad_mem, grad_beta, grad_threshold = _generator.evaluate(results, given, **functions)
        return grad_x, grad_mem, grad_beta, grad_threshold
