"""A neuron with the modules in front of it, learning online."""

from itertools import zip_longest
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.neurons.delay_linear import DelayLinear
from snnipu.online import traces as history
from snnipu.online.afferents import Afferents, Made
from snnipu.online.dynamics import Chunk, Dynamics
from snnipu.online.events import DenseOrSparse, leaf_of, of_slots
from snnipu.online.rules import Rule
from snnipu.online.weights import LAYERS, version
from snnipu.ops._arguments import compute_dtype, is_autocast
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.recurrent_sequence import SPIKES
from snnipu.spikes import SparseSpikes

Gradient = Optional[torch.Tensor]


class Memory(NamedTuple):
    """What a layer carries from chunk to chunk."""

    states: List[torch.Tensor]
    traces: Optional[history.Traces] = None
    # Of what a leaky readout remembers of the layer's spikes: traces, and the spikes themselves.
    filtered: Optional[history.Traces] = None
    low: Optional[List[torch.Tensor]] = None
    # The last inputs, as far back as delays reach.
    past: Optional[torch.Tensor] = None


class Signals:
    """Of one chunk: what comes from the readout's backward pass."""

    def __init__(self) -> None:
        # Of its current at each step, and of its states before the chunk.
        self.error: Gradient = None
        self.carried: List[torch.Tensor] = []
        # Of what its states remember, before the chunk, of the spikes of the layer whose turn is next.
        self.below: List[torch.Tensor] = []


class Layer:
    """``modules`` and, behind them, ``neuron``; None: there is none."""

    def __init__(self, modules: Sequence[Any], named: Optional[Tuple[str, Any]], rule: Rule, is_first: bool) -> None:
        self.rule, self.is_first = rule, is_first
        neuron = None if named is None else named[1]
        self.name: str = modules[-1][0] if named is None else named[0]
        self.dynamics = None if neuron is None else Dynamics(neuron, rule.keeps_reset, rule.keeps_loop)
        self.afferents = [Afferents(modules)]
        # An event-driven layer hands on spikes, one that is a linear map alone does not.
        events = self.afferents[0].events
        self.events = None if events is None or events.neuron is None else events
        if events is not None:
            events.is_behind = not is_first
        if self.dynamics is not None and self.dynamics.connection is not None:
            self.afferents.append(Afferents([(f"{self.name}.recurrent", self.dynamics.neuron.recurrent)]))
        # e-prop's own, [outputs, neurons]; None: that of the weights, or the layer is the last one.
        self.feedback: Optional[torch.nn.Parameter] = None
        self.is_readout = False
        # True if the memory of e-prop's readout carries errors to earlier steps.
        self.low_passes = False
        # Not None if each weight of each neuron has a trace, instead of each input: advice for an error.
        self.each_weight: Optional[str] = None

    def check(self) -> None:
        """Raise for a module or a neuron that the rule cannot treat; the error names it."""
        rule, dynamics = self.rule, self.dynamics
        self.each_weight = None
        if self.events is not None:
            self.events.check()
        self.check_modules()
        if dynamics is None:
            return
        dynamics.check(self.name)
        if not rule.history:
            return
        is_uniform = dynamics.is_uniform
        if self.is_readout and self.low_passes and not is_uniform:
            raise ValueError(
                f'module {self.name} ({type(dynamics.neuron).__name__}): rule "eprop" passes errors through a leaky '
                "readout, whose decay is the same for all neurons and whose membrane is not reset to zero; take "
                'low_pass=False, or reset_mechanism="none"'
            )
        if not is_uniform:
            self.each_weight = (
                'take rule "sltt", or neurons with one decay for all, which are neither reset to zero nor recurrent'
            )
        elif self.low_passes and not self.is_readout:
            self.each_weight = "take low_pass=False"
        if self.each_weight is not None:
            for afferents in self.afferents:
                if afferents.parameters():
                    afferents.check_own(rule.name, self.each_weight)

    def check_modules(self) -> None:
        """Raise for a module that the rule cannot treat."""
        rule, has_traces = self.rule, self.rule.history and self.dynamics is not None
        for afferents in self.afferents:
            afferents.check(rule.name, has_traces, self.is_first)
        if self.low_passes and not self.is_first and rule.options["feedback"] == "symmetric":
            self.afferents[0].check_linear()

    def parts(self) -> List["Part"]:
        """Describe each module as far as states and traces depend on it."""
        modules = [named for afferents in self.afferents for named in (*afferents.head, *afferents.body)]
        parts = [Part(name, type(module).__name__, (), _sizes(module)) for name, module in modules]
        if self.dynamics is not None:
            neuron = self.dynamics.neuron
            parts.append(Part(self.name, type(neuron).__name__, tuple(neuron._states()), _sizes(neuron)))
        return parts

    def check_input(self, x: DenseOrSparse) -> None:
        """Raise if the first layer does not take ``x``."""
        if x.device.type == "meta":
            raise ValueError("x must have values, got a tensor on the device meta")
        if isinstance(x, SparseSpikes):
            return
        first = self.afferents[0]
        name, module = first.body[0] if first.body else (self.name, None)
        takes_any = isinstance(module, (torch.nn.Embedding, DelayLinear)) or first.events is not None
        if takes_any and not x.is_complex():
            return
        if not x.is_floating_point():
            raise TypeError(f"x must be a floating torch.Tensor, got {x.dtype}: call x.to(torch.get_default_dtype())")
        if not isinstance(module, LAYERS):
            return
        weight, why = module.weight, f"as the weights of module {name} ({type(module).__name__})"
        if x.dtype != weight.dtype and not is_autocast(x.device.type):
            raise TypeError(f"x must be of {weight.dtype}, {why}, got {x.dtype}")
        if x.device != weight.device:
            raise ValueError(f"x must be on {weight.device}, {why}, got {x.device}")

    @property
    def size(self) -> Optional[int]:
        """How many neurons there are, where a linear layer tells."""
        modules = [*self.afferents[0].head, *self.afferents[0].body]
        found = [m.out_features for _, m in modules if isinstance(m, torch.nn.Linear)]
        return found[-1] if found else None

    def run(
        self, u: DenseOrSparse, memory: Optional[Memory], online: Any, signals: Signals
    ) -> Tuple["Work", List[torch.Tensor]]:
        """The chunk, its backward pass waiting, and what it gives."""
        learns, work = torch.is_grad_enabled(), Work(self, online, signals)
        first = self.afferents[0]
        work.leaf, entering = leaf_of(u, learns)
        work.inputs = [first.of_input(entering)]
        self._check_rows(first, work.inputs[0], learns)
        seen, past = self._with_past(work.inputs[0], memory)
        made = first.of_body(seen)
        x = made.out
        if len(seen) != len(u):
            # A part of it would have its gradient written into zeros.
            x = x[len(seen) - len(u) :]
        work.made = [made._replace(out=x.new_empty(0) if made.is_alone else x)]  # what nobody reads again is let go
        # An event-driven layer computes in 16 bits by one of its paths alone.
        self._check_precision(x.dtype if self.events is None else self.events.layer.weight.dtype)
        values: List[torch.Tensor] = []
        if self.dynamics is None:
            work.after, out = Memory([]), [x.detach()]
        else:
            values = self.dynamics.parameters(x)
            with torch.no_grad():
                initial = self.dynamics.start(x) if memory is None else memory.states
                chunk, final = self.dynamics.run(x.detach(), initial, values)
            if len(self.afferents) > 1:
                work.inputs.append(chunk.before[SPIKES].to(chunk.spk.dtype))
                self._check_rows(self.afferents[1], work.inputs[1], learns)
                work.made.append(self.afferents[1].of_body(work.inputs[1]))
                chunk = chunk._replace(arrived=work.made[1].out.detach())
            work.chunk, work.after, out = chunk, Memory(final), [chunk.spk, *chunk.states]
        work.after = work.after._replace(past=past)
        work.parameters = [p for afferents in self.afferents for p in afferents.parameters()]
        feedback = [] if self.feedback is None else [self.feedback]
        given = [u.values if isinstance(u, SparseSpikes) else u, *work.parameters, *values, *feedback]
        work.learns = learns and any(tensor.requires_grad for tensor in given)
        if work.learns:
            work.before = memory
            work.keep(feedback)
            out = list(_Learning.apply(work, out, *given))
        return work, out

    def _check_rows(self, afferents: Afferents, u: DenseOrSparse, learns: bool) -> None:
        if learns and self.each_weight is not None and afferents.parameters():
            afferents.check_rows(self.rule.name, u, self.each_weight)

    def _check_precision(self, dtype: torch.dtype) -> None:
        if self.rule.history and self.dynamics is not None and compute_dtype(dtype) != dtype:
            raise TypeError(
                f'module {self.name} ({type(self.dynamics.neuron).__name__}) is of {dtype}: rule "{self.rule.name}" '
                'carries traces in float32 or float64; take these, without autocast, or rule "sltt"'
            )

    def handed_on(self, out: List[torch.Tensor], above: Optional["Layer"]) -> DenseOrSparse:
        """What the layer above gets, of the spikes and the states; None: there is none."""
        if self.events is None:
            return out[0]
        made = self.events.handed_on(out[0], out[1:], above is None or bool(above.afferents[0].head))
        # As MultiStep has it: PyTorch's modules get spikes of maps as a row.
        is_row = above is not None and above.afferents[0].events is None
        return made.flatten(2) if is_row and isinstance(made, torch.Tensor) else made

    def _with_past(
        self, given: DenseOrSparse, memory: Optional[Memory]
    ) -> Tuple[DenseOrSparse, Optional[torch.Tensor]]:
        """The input behind the steps before it that are still on their way, and those for the next chunk."""
        reach = self.afferents[0].delays
        if not reach:
            return given, None
        assert isinstance(given, torch.Tensor)
        if given.requires_grad:
            raise ValueError("x must not require a gradient: behind delays it would go back into earlier chunks")
        seen = given if memory is None or memory.past is None else torch.cat([memory.past, given])
        return seen, seen[max(0, len(seen) - reach) :].clone()

    def remember(self, work: "Work", by: Optional[history.Filter]) -> Memory:
        """What the layer carries on from a chunk; ``by``: how a readout remembers."""
        after, dynamics, chunk, before = work.after, self.dynamics, work.chunk, work.before
        if not work.learns or not self.rule.history or dynamics is None or chunk is None:
            return after
        is_uniform = dynamics.is_uniform
        seen = [given.detach() for given in work.inputs]
        for number, made in enumerate(work.made if by is None and is_uniform else ()):
            slots, x = made.slots, seen[number]
            if slots is not None and isinstance(x, torch.Tensor):
                seen[number] = of_slots(slots, x)  # few numbers are read again
        states = None if before is None else before.traces
        with torch.no_grad():
            of_chunk = (dynamics, chunk, self.afferents, seen)
            after = after._replace(traces=history.after(*of_chunk, states))
            if by is not None:
                filtered = history.filtered_after(by, *of_chunk, states, None if before is None else before.filtered)
                low = history.low_passed(by, chunk.spk, None if before is None else before.low)
                after = after._replace(filtered=filtered, low=low)
        return after


class Part(NamedTuple):
    """A module of a network: its states, and its parameters' names, shapes and dtypes."""

    name: str
    kind: str
    states: Tuple[str, ...]
    parameters: Tuple[Tuple[str, torch.Size, torch.dtype], ...]

    def __str__(self) -> str:
        texts = [*self.states, *(f"{name} {list(shape)} {dtype}" for name, shape, dtype in self.parameters)]
        return f"{self.name} ({self.kind}: {', '.join(texts)})" if texts else f"{self.name} ({self.kind})"


def _sizes(module: torch.nn.Module) -> Tuple[Tuple[str, torch.Size, torch.dtype], ...]:
    return tuple([(name, p.shape, p.dtype) for name, p in module._parameters.items() if p is not None and p.dim()])


def parts_of(layers: Sequence[Layer]) -> List[Part]:
    """Return the parts of a network, see :meth:`Layer.parts`."""
    return [part for layer in layers for part in layer.parts()]


def check_same(before: Sequence[Any], now: Sequence[Any], advice: str) -> None:
    """Raise if a network has changed since its states and traces were made."""
    if before != now:
        old, new = next(pair for pair in zip_longest(before, now, fillvalue="none") if pair[0] != pair[1])
        raise ValueError(f"the network has changed: there was module {old}, and now there is {new}; {advice}")


class Work:
    """A layer's chunk, and its backward pass."""

    leaf: torch.Tensor
    after: Memory

    def __init__(self, layer: Layer, online: Any, signals: Signals) -> None:
        self.layer, self.online, self.number, self.signals = layer, online, online.chunks + 1, signals
        self.before: Optional[Memory] = None
        self.chunk: Optional[Chunk] = None
        self.inputs: List[DenseOrSparse] = []
        self.made: List[Made] = []
        self.parameters: List[torch.nn.Parameter] = []
        # Tensors that the backward pass reads, and their versions: parameters, and the chunk's tensors by name.
        self.versions: List[Tuple[torch.Tensor, int]] = []
        self.chunk_versions: List[Tuple[str, torch.Tensor, int]] = []
        self.learns = self.done = False

    def keep(self, feedback: Sequence[torch.Tensor]) -> None:
        """Record the versions of the tensors that the backward pass reads."""
        layer, chunk = self.layer, self.chunk
        owner: Any = layer.events.layer if layer.events is not None else layer.dynamics and layer.dynamics.neuron
        modules = [module for afferents in layer.afferents for _, module in afferents.body]
        tensors: List[Any] = [tensor for module in modules for tensor in module._parameters.values()]
        tensors += [*([] if owner is None else owner._parameters.values()), *feedback]
        self.versions = [(tensor, version(tensor)) for tensor in tensors if tensor is not None]
        if chunk is None or layer.dynamics is None:
            return
        states = [f"its {name}" for name in layer.dynamics.neuron._states()]
        kept = [*zip(states, chunk.initial), *zip(states, chunk.states), *(("a parameter", v) for v in chunk.values)]
        kept += [("its input", tensor) for tensor in (chunk.x, chunk.arrived) if tensor is not None]
        kept += [("its spikes", chunk.spk)] if feedback else []
        self.chunk_versions = [(what, tensor, version(tensor)) for what, tensor in kept]

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
        self.layer.check_modules()  # .train() may have been called since
        changed = next((what for what, tensor, before in self.chunk_versions if version(tensor) != before), None)
        if changed is not None:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{changed} in module {self.layer.name} of an online network, between chunk {self.number} and its "
                "backward(); change a clone() of it"
            )
        if any(version(tensor) != before for tensor, before in self.versions):
            raise RuntimeError(
                f"a parameter of an online network was changed in place between chunk {self.number} and its "
                "backward(): call optimizer.step() behind it"
            )
        now = [p for afferents in self.layer.afferents for p in afferents.parameters()]
        if len(now) != len(self.parameters) or any(a is not b for a, b in zip(now, self.parameters)):
            raise RuntimeError(
                f"a parameter of an online network was replaced, or its requires_grad changed, between chunk "
                f"{self.number} and its backward(): call backward() first; torch.func.functional_call, which puts the "
                "network's own parameters back, is not for online networks"
            )
        self.done = True

    def release(self) -> None:
        """Let go of the chunk: who holds its result does not hold its memory."""
        self.before = self.chunk = None
        self.inputs, self.made, self.chunk_versions = [], [], []
        del self.leaf

    def backward(self, upstream: Sequence[Gradient]) -> List[Gradient]:
        """Gradients of the layer's input, of the parameters in front of the neuron, the neuron's, the feedback's."""
        self.check()
        layer, dynamics, chunk, before = self.layer, self.layer.dynamics, self.chunk, self.before
        is_hidden = layer.rule.name == "eprop" and not layer.is_readout
        below = self.signals.below if is_hidden else []
        spk = upstream[0]
        if is_hidden and layer.feedback is not None:
            spk, below = self._fed_back()
        own_states: List[torch.Tensor] = []
        at_once: Any = None
        own: Any = None
        of_values: List[Any] = []
        if dynamics is None or chunk is None:
            assert spk is not None
            at_once = own = spk
        else:
            states = list(upstream[1:])
            if self._takes_steps(is_hidden):
                local = dynamics.local(chunk, spk, states, need_before=False)
                at_once = own = local.x
                of_values = local.parameters
            if layer.rule.history:
                whole = dynamics.whole(chunk, spk, states)
                own, of_values = whole.x, whole.parameters
                own_states = [whole.before[place] for place in dynamics.remembers]
        gradients: List[Gradient] = [self._down(at_once, own, spk, own_states, below, is_hidden)]
        carried = [] if before is None else [(before.traces, own_states), (before.filtered, below)]
        known = [(traces, grads) for traces, grads in carried if traces is not None and grads]
        gradients += self._own(own, at_once, known)
        for number, grad in enumerate(of_values):
            assert chunk is not None
            need = chunk.needs[number]
            for traces, grads in known:
                if need:
                    grad = grad + history.of_parameter(traces, number, grads, chunk.values[number])
            gradients.append(grad if need else None)
        if layer.feedback is not None:
            gradients.append(self._of_feedback() if layer.feedback.requires_grad else None)
        return gradients

    def _takes_steps(self, is_hidden: bool) -> bool:
        """Whether the gradients of each step by itself are asked for."""
        rule = self.layer.rule
        options = rule.options
        if not rule.history or not options.get("bias_trace", True):
            return True
        if rule.name == "eprop":
            return not is_hidden and not options["low_pass"]
        return self.leaf.requires_grad or (self.layer.is_first and not options.get("input_trace", True))

    # ---- the layer below

    def _down(
        self,
        at_once: torch.Tensor,
        own: torch.Tensor,
        spk: Gradient,
        own_states: List[torch.Tensor],
        below: List[torch.Tensor],
        is_hidden: bool,
    ) -> Gradient:
        """What the layer below is given: by each step alone, or e-prop's learning signal."""
        rule, signals = self.layer.rule, self.signals
        if rule.name != "eprop":
            return self.made[0].of_leaf(self.leaf, at_once) if self.leaf.requires_grad else None
        if not is_hidden:
            low_pass = rule.options["low_pass"]
            signals.error, signals.carried = (own, own_states) if low_pass else (at_once, [])
            if not self.leaf.requires_grad:
                return None
            if rule.options["feedback"] != "symmetric":
                return torch.zeros_like(self.leaf)  # each layer takes the error itself
            signals.below = [self._through_step(grad) for grad in signals.carried]
            return self.made[0].of_leaf(self.leaf, signals.error)
        if not self.leaf.requires_grad:
            return None
        if self.layer.feedback is not None:
            return torch.zeros_like(self.leaf)
        assert spk is not None
        signals.below = [self._through_step(grad) for grad in below]
        return self.made[0].of_leaf(self.leaf, spk)

    def _through_step(self, grad: torch.Tensor) -> torch.Tensor:
        """Of one step, through modules that are the same linear function at every step."""
        first = self.layer.afferents[0]
        with torch.enable_grad():
            leaf = torch.zeros_like(self.leaf[:1]).requires_grad_()
            made = first.of_body(first.of_input(leaf))
        return made.of_leaf(leaf, grad.unsqueeze(0))[0]

    # ---- e-prop's own feedback

    def _fed_back(self) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        """The learning signal at each step, and of what the readout remembers before the chunk."""
        feedback, chunk, error = self.layer.feedback, self.chunk, self.signals.error
        assert feedback is not None
        assert chunk is not None
        assert error is not None
        spk = (error.flatten(2) @ feedback).reshape(chunk.spk.shape)
        return spk, [(grad.flatten(1) @ feedback).reshape(chunk.spk.shape[1:]) for grad in self.signals.carried]

    def _of_feedback(self) -> torch.Tensor:
        """As of the readout's weights, if the layer were in front of it."""
        chunk, error = self.chunk, self.signals.error
        assert chunk is not None
        assert error is not None
        made = error.flatten(2).flatten(0, 1).t() @ chunk.spk.flatten(2).flatten(0, 1)
        low = None if self.before is None else self.before.low
        for grad, spikes in zip(self.signals.carried, low or []):
            made = made + grad.flatten(1).t() @ spikes.flatten(1)
        return made

    # ---- the layer's own

    def _own(self, own: torch.Tensor, at_once: torch.Tensor, known: Sequence[Any]) -> List[Any]:
        """Of the parameters in front of the neuron: of the chunk's inputs, and of the traces from before it."""
        layer, found = self.layer, []
        has_bias = layer.rule.options.get("bias_trace", True)
        for number, (afferents, made) in enumerate(zip(layer.afferents, self.made)):
            parameters = afferents.parameters()
            if not parameters:
                continue
            is_input = layer.is_first and not number and not layer.rule.options.get("input_trace", True)
            grad = at_once if is_input else own
            carried = [] if is_input else history.carried(known, number)
            constant = None if is_input or has_bias else (at_once - own).sum(0)  # by each step alone
            found += afferents.of_own(made, grad, carried, constant, parameters)
        return found


class _Learning(torch.autograd.Function):
    """What a layer made of a chunk, and its rule's gradients."""

    @staticmethod
    def forward(ctx: Any, work: Work, out: List[torch.Tensor], *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.work = work
        ctx.set_materialize_grads(False)
        # Others than those of the chunk: results that the chunk held would hold it, for ever without a backward pass.
        return tuple([value.detach() for value in out])

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, *upstream: Gradient) -> Any:  # type: ignore[override]
        if all(grad is None for grad in upstream):
            return (None,) * len(ctx.needs_input_grad)
        with torch.no_grad():
            gradients = ctx.work.backward(upstream)
        ctx.work.release()
        return (None, None, *gradients)
