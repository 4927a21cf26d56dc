"""A neuron with the modules in front of it, learning online."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.online import traces as history
from snnipu.online.afferents import Afferents, Direction
from snnipu.online.dynamics import Chunk, Dynamics
from snnipu.online.rules import Rule
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.recurrent_sequence import SPIKES


class Memory(NamedTuple):
    """What a layer carries from chunk to chunk."""

    states: List[torch.Tensor]
    traces: Optional[history.Traces] = None


class Layer:
    """``modules`` and, behind them, ``neuron``; None: there is none."""

    def __init__(self, modules: Sequence[Any], named: Optional[Tuple[str, Any]], rule: Rule) -> None:
        self.rule = rule
        self.name, neuron = named if named is not None else ("", None)
        self.dynamics = None if neuron is None else Dynamics(neuron, rule.keeps_reset, rule.keeps_loop)
        self.afferents = [Afferents(modules)]
        if self.dynamics is not None and self.dynamics.connection is not None:
            self.afferents.append(Afferents([(f"{self.name}.recurrent", neuron.recurrent)]))

    def check(self) -> None:
        has_traces = self.rule.history and self.dynamics is not None
        for afferents in self.afferents:
            afferents.check(self.rule.name, has_traces)
        if self.dynamics is not None:
            self.dynamics.check(self.name)

    def __call__(self, u: torch.Tensor, memory: Optional[Memory], online: Any) -> Tuple[List[torch.Tensor], Memory]:
        """What the layer makes of a chunk, spikes first, then the states; and what it carries on."""
        learns, down = torch.is_grad_enabled(), Direction()
        first = self.afferents[0]
        leaf = u.detach().requires_grad_(learns and u.requires_grad)
        inputs = [first.of_input(leaf)]
        made = [first.of_body(inputs[0], down)]
        if self.dynamics is None:
            chunk, after = None, Memory([])
            out, values = [made[0].detach()], []
        else:
            initial = self.dynamics.start(made[0]) if memory is None else memory.states
            values = self.dynamics.parameters(made[0])
            with torch.no_grad():
                chunk, final = self.dynamics.run(made[0].detach(), initial, [value.detach() for value in values])
            if len(self.afferents) > 1:
                inputs.append(chunk.before[SPIKES].to(chunk.x.dtype))
                made.append(self.afferents[1].of_body(inputs[1], down))
                chunk = chunk._replace(arrived=made[1].detach())
            after, out = Memory(final), [chunk.spk, *chunk.states]
        parameters = [p for afferents in self.afferents for p in afferents.parameters()]
        if not learns or not any(tensor.requires_grad for tensor in (u, *parameters, *values)):
            return out, after
        before = memory.traces if memory is not None else None
        if self.rule.history and self.dynamics is not None and chunk is not None:
            with torch.no_grad():
                needs = [value.requires_grad for value in values]
                seen = [given.detach() for given in inputs]
                found = history.after(self.dynamics, chunk, self.afferents, seen, needs, before)
            after = after._replace(traces=found)
        work = Work(self, online, down, leaf, made, parameters, chunk, before)
        return list(_Learning.apply(work, out, u, *parameters, *values)), after


class Work:
    """The backward pass of a layer's chunk."""

    def __init__(
        self,
        layer: Layer,
        online: Any,
        direction: Direction,
        leaf: torch.Tensor,
        made: List[torch.Tensor],
        parameters: List[torch.nn.Parameter],
        chunk: Optional[Chunk],
        before: Optional[history.Traces],
    ) -> None:
        self.layer, self.online, self.number, self.direction = layer, online, online.chunks, direction
        self.leaf, self.made, self.parameters = leaf, made, parameters
        self.chunk, self.before = chunk, before
        self.done = False

    def check(self) -> None:
        """Raise where this chunk cannot learn any more."""
        if self.done:
            raise RuntimeError(
                "backward was called twice for one chunk of an online network: add the chunk's losses up, and call "
                "backward() once"
            )
        if self.number != self.online.chunks:
            raise RuntimeError(
                f"the loss reaches back into chunk {self.number} of an online network, which is at chunk "
                f"{self.online.chunks}: call backward() for each chunk before the next one, and .detach() what a "
                "later loss takes of an earlier chunk"
            )
        self.done = True

    def backward(
        self, upstream: Sequence[Optional[torch.Tensor]], needs: Sequence[bool]
    ) -> Tuple[Optional[torch.Tensor], List[Any], List[Any]]:
        """Gradients of the layer's input, of the parameters in front of the neuron, and of the neuron's."""
        self.check()
        dynamics, chunk = self.layer.dynamics, self.chunk
        of_values: List[Any] = []
        carried: List[torch.Tensor] = []
        if dynamics is None or chunk is None:
            (own,) = upstream
            assert own is not None
            down = own
        else:
            local = dynamics.local(chunk, upstream[0], self._of_states(upstream))
            down, own, of_values = local.x, local.x, local.parameters
            if self.layer.rule.history:
                later = [torch.cat([rows[1:], torch.zeros_like(rows[:1])]) for rows in local.before]
                remembers = dynamics.remembers
                of_states = [rows if place in remembers else None for place, rows in enumerate(later)]
                through = dynamics.history(chunk, of_states, [])
                own = own + through.x
                carried = [local.before[place][0] + through.before[place] for place in remembers]
                of_values = [a + b for a, b in zip(of_values, through.parameters)]
        return self._down(down), self._own(own, carried), self._values(of_values, carried, needs)

    def _of_states(self, upstream: Sequence[Optional[torch.Tensor]]) -> List[Optional[torch.Tensor]]:
        return list(upstream[1:])

    def _down(self, grad: torch.Tensor) -> Optional[torch.Tensor]:
        if not self.leaf.requires_grad:
            return None
        self.direction.down = True
        try:
            return torch.autograd.grad(self.made[0], self.leaf, grad, retain_graph=True)[0]
        finally:
            self.direction.down = False

    def _own(self, grad: torch.Tensor, carried: Sequence[torch.Tensor]) -> List[Any]:
        """Of all that is made of parameters: of the chunk's inputs, and of the traces from before it."""
        if not self.parameters:
            return []
        outputs, grads = list(self.made), [grad] * len(self.made)
        if carried and self.before is not None:
            for number, afferents in enumerate(self.layer.afferents):
                if afferents.parameters():
                    with torch.enable_grad():
                        made = history.of_inputs(self.before, afferents, number, carried[0].shape)
                    outputs += made
                    grads += carried[: len(made)]
        pairs = [(output, grad) for output, grad in zip(outputs, grads) if output.requires_grad]
        made_by, of = [output for output, _ in pairs], [grad for _, grad in pairs]
        return list(torch.autograd.grad(made_by, self.parameters, of, allow_unused=True))

    def _values(self, grads: List[Any], carried: Sequence[torch.Tensor], needs: Sequence[bool]) -> List[Any]:
        if carried and self.before is not None:
            assert self.chunk is not None
            for number, (value, need) in enumerate(zip(self.chunk.values, needs)):
                if need:
                    grads[number] = grads[number] + history.of_parameter(self.before, number, carried, value)
        return [grad if need else None for grad, need in zip(grads, needs)]


class _Learning(torch.autograd.Function):
    """What a layer made of a chunk, and its rule's gradients."""

    @staticmethod
    def forward(ctx: Any, work: Work, out: List[torch.Tensor], *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.work = work
        ctx.set_materialize_grads(False)
        return tuple(out)

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, *upstream: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        work: Work = ctx.work
        count = len(work.parameters)
        needs = ctx.needs_input_grad[3 + count :]
        if all(grad is None for grad in upstream):
            return (None,) * len(ctx.needs_input_grad)
        with torch.no_grad():
            of_input, own, of_values = work.backward(upstream, needs)
        return (None, None, of_input, *own, *of_values)
