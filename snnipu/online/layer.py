"""A neuron with the modules before it: its chunk, its backward pass and the gradients of an online rule."""

from itertools import zip_longest
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from snnipu.neurons._computed_weights import LAYERS, version
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.online import traces as history
from snnipu.online.afferents import Afferents, BodyOutput
from snnipu.online.dynamics import Dynamics, NeuronChunk
from snnipu.online.events import DenseOrSparse, make_leaf, spikes_of_slots
from snnipu.online.rules import Rule
from snnipu.ops._arguments import compute_dtype, is_autocast
from snnipu.ops._derivative import once_differentiable
from snnipu.ops.recurrent_sequence import SPIKES
from snnipu.spikes import SparseSpikes

Gradient = Optional[torch.Tensor]


class LayerMemory(NamedTuple):
    """The states and traces that a layer carries from chunk to chunk."""

    states: List[torch.Tensor]
    traces: Optional[history.Traces] = None
    # e-prop's low_pass: the low-pass filtered traces and spikes [B, ...] of the layer, for each state of the readout.
    filtered: Optional[history.Traces] = None
    low_passed: Optional[List[torch.Tensor]] = None
    # The last inputs, as many steps as the longest delay.
    past: Optional[torch.Tensor] = None


class LearningSignals:
    """The gradients of one chunk that e-prop sends from the readout to the layers below."""

    def __init__(self) -> None:
        # Gradients of the readout's current at each step, and of its states before the chunk.
        self.error: Gradient = None
        self.state_grads: List[torch.Tensor] = []
        # Gradients of the low-pass filtered spikes before the chunk, for the layer whose backward pass is next.
        self.below: List[torch.Tensor] = []


class Layer:
    """A neuron and the modules before it, or the modules after the last neuron.

    Args:
        modules: (name, module) pairs in front of the neuron.
        named: name and neuron; None for modules without a neuron after them.
        rule: the learning rule.
        is_first: True for the first layer of the network.
    """

    def __init__(self, modules: Sequence[Any], named: Optional[Tuple[str, Any]], rule: Rule, is_first: bool) -> None:
        self.rule, self.is_first = rule, is_first
        neuron = None if named is None else named[1]
        self.name: str = modules[-1][0] if named is None else named[0]
        self.dynamics = None if neuron is None else Dynamics(neuron, rule.keeps_reset, rule.keeps_loop)
        self.afferents = [Afferents(modules)]
        # Absent for modules without event-driven neurons. A linear map of spikes alone returns a dense tensor.
        events = self.afferents[0].events
        self.events = None if events is None or events.neuron is None else events
        if events is not None:
            events.has_layer_below = not is_first
        if self.dynamics is not None and self.dynamics.connection is not None:
            self.afferents.append(Afferents([(f"{self.name}.recurrent", self.dynamics.neuron.recurrent)]))
        # e-prop's feedback matrix, [outputs, neurons]; None: symmetric feedback, or the last layer.
        self.feedback: Optional[torch.nn.Parameter] = None
        self.is_readout = False
        # True if e-prop's readout sends errors to earlier steps through its membranes.
        self.has_low_pass = False
        # A trace for each weight and neuron is needed: advice for an error message. None: a trace for each input.
        self.weight_trace_advice: Optional[str] = None

    def check(self) -> None:
        """Check that the rule supports the modules and the neuron.

        Raises:
            TypeError, ValueError: an unsupported module, by name.
        """
        rule, dynamics = self.rule, self.dynamics
        self.weight_trace_advice = None
        if self.events is not None:
            self.events.check()
        self.check_modules()
        if dynamics is None:
            return
        dynamics.check(self.name)
        if not rule.history:
            return
        is_uniform = dynamics.is_uniform
        if self.is_readout and self.has_low_pass and not is_uniform:
            raise ValueError(
                f'module {self.name} ({type(dynamics.neuron).__name__}): rule "eprop" passes errors through a leaky '
                "readout, whose decay is the same for all neurons and whose membrane is not reset to zero; use "
                'low_pass=False, or reset_mechanism="none"'
            )
        if not is_uniform:
            self.weight_trace_advice = (
                'use rule "sltt", or neurons with one decay for all, which are neither reset to zero nor recurrent'
            )
        elif self.has_low_pass and not self.is_readout:
            self.weight_trace_advice = "use low_pass=False"
        if self.weight_trace_advice is not None:
            for afferents in self.afferents:
                if afferents.parameters():
                    afferents.check_weight_traces(rule.name, self.weight_trace_advice)

    def check_modules(self) -> None:
        """Check that the rule supports the modules."""
        rule, has_traces = self.rule, self.rule.history and self.dynamics is not None
        for afferents in self.afferents:
            afferents.check(rule.name, has_traces, self.is_first)
        if self.has_low_pass and not self.is_first and rule.options["feedback"] == "symmetric":
            self.afferents[0].check_linear()

    def describe(self) -> List["ModuleDescription"]:
        """Describe each module: the properties that states and traces depend on."""
        modules = [named for afferents in self.afferents for named in (*afferents.head, *afferents.body)]
        parts = [ModuleDescription(name, type(module).__name__, (), _sizes(module)) for name, module in modules]
        if self.dynamics is not None:
            neuron = self.dynamics.neuron
            parts.append(ModuleDescription(self.name, type(neuron).__name__, tuple(neuron._states()), _sizes(neuron)))
        return parts

    def check_input(self, x: DenseOrSparse) -> None:
        """Check that the first layer accepts ``x``."""
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
        weight, expected = module.weight, f"as the weights of module {name} ({type(module).__name__})"
        if x.dtype != weight.dtype and not is_autocast(x.device.type):
            raise TypeError(f"x must be of {weight.dtype}, {expected}, got {x.dtype}")
        if x.device != weight.device:
            raise ValueError(f"x must be on {weight.device}, {expected}, got {x.device}")

    @property
    def size(self) -> Optional[int]:
        """Number of neurons, from the last linear layer; None if there is no linear layer."""
        modules = [*self.afferents[0].head, *self.afferents[0].body]
        sizes = [m.out_features for _, m in modules if isinstance(m, torch.nn.Linear)]
        return sizes[-1] if sizes else None

    def run(
        self, u: DenseOrSparse, memory: Optional[LayerMemory], online: Any, signals: LearningSignals
    ) -> Tuple["ChunkRecord", List[torch.Tensor]]:
        """Run a chunk; return the record for its backward pass, and the output ``[spikes, *states]``."""
        learns, record = torch.is_grad_enabled(), ChunkRecord(self, online, signals)
        first = self.afferents[0]
        record.leaf, leaf_input = make_leaf(u, learns)
        record.inputs = [first.run_head(leaf_input)]
        self._check_rows(first, record.inputs[0], learns)
        inputs, past = self._with_past(record.inputs[0], memory)
        body_output = first.run_body(inputs)
        x = body_output.out
        if len(inputs) != len(u):
            # A slice has a slow backward: it writes the gradient into zeros. So only slice if there are earlier inputs.
            x = x[len(inputs) - len(u) :]
        # The backward pass does not read the output of a single product: free it.
        record.outputs = [body_output._replace(out=x.new_empty(0) if body_output.is_alone else x)]
        # The dtype of the current of an event-driven layer depends on its path: check the weights.
        self._check_precision(x.dtype if self.events is None else self.events.layer.weight.dtype)
        values: List[torch.Tensor] = []
        if self.dynamics is None:
            record.after, out = LayerMemory([]), [x.detach()]
        else:
            values = self.dynamics.parameters(x)
            with torch.no_grad():
                initial = self.dynamics.initial_states(x) if memory is None else memory.states
                chunk, final = self.dynamics.run(x.detach(), initial, values)
            if len(self.afferents) > 1:
                record.inputs.append(chunk.before[SPIKES].to(chunk.spk.dtype))
                self._check_rows(self.afferents[1], record.inputs[1], learns)
                record.outputs.append(self.afferents[1].run_body(record.inputs[1]))
                chunk = chunk._replace(recurrent_input=record.outputs[1].out.detach())
            record.chunk, record.after, out = chunk, LayerMemory(final), [chunk.spk, *chunk.states]
        record.after = record.after._replace(past=past)
        record.parameters = [p for afferents in self.afferents for p in afferents.parameters()]
        feedback = [] if self.feedback is None else [self.feedback]
        operands = [u.values if isinstance(u, SparseSpikes) else u, *record.parameters, *values, *feedback]
        record.learns = learns and any(tensor.requires_grad for tensor in operands)
        if record.learns:
            record.before = memory
            record.store_versions(feedback)
            out = list(_ChunkFunction.apply(record, out, *operands))
        return record, out

    def _check_rows(self, afferents: Afferents, u: DenseOrSparse, learns: bool) -> None:
        if learns and self.weight_trace_advice is not None and afferents.parameters():
            afferents.check_rows(self.rule.name, u, self.weight_trace_advice)

    def _check_precision(self, dtype: torch.dtype) -> None:
        if self.rule.history and self.dynamics is not None and compute_dtype(dtype) != dtype:
            raise TypeError(
                f'module {self.name} ({type(self.dynamics.neuron).__name__}) is of {dtype}: rule "{self.rule.name}" '
                'carries traces in float32 or float64; use these, without autocast, or rule "sltt"'
            )

    def output_for(self, out: List[torch.Tensor], above: Optional["Layer"]) -> DenseOrSparse:
        """Return the input of the layer above, from spikes and states; ``above`` is None for the last layer."""
        if self.events is None:
            return out[0]
        spikes = self.events.select_output(out[0], out[1:], above is None or bool(above.afferents[0].head))
        # Like MultiStep: PyTorch's modules get the spikes of maps flattened.
        is_row = above is not None and above.afferents[0].events is None
        return spikes.flatten(2) if is_row and isinstance(spikes, torch.Tensor) else spikes

    def _with_past(
        self, inputs: DenseOrSparse, memory: Optional[LayerMemory]
    ) -> Tuple[DenseOrSparse, Optional[torch.Tensor]]:
        """Return the input preceded by the earlier steps that delays still need, and the steps for the next chunk."""
        reach = self.afferents[0].delays
        if not reach:
            return inputs, None
        assert isinstance(inputs, torch.Tensor)
        if inputs.requires_grad:
            raise ValueError("x must not require a gradient: with delays its gradient would reach earlier chunks")
        extended = inputs if memory is None or memory.past is None else torch.cat([memory.past, inputs])
        return extended, extended[max(0, len(extended) - reach) :].clone()

    def remember(self, record: "ChunkRecord", readout: Optional[history.ReadoutFilter]) -> LayerMemory:
        """Return states and traces after a chunk; ``readout`` is the filter of e-prop's readout."""
        after, dynamics, chunk, before = record.after, self.dynamics, record.chunk, record.before
        if not record.learns or not self.rule.history or dynamics is None or chunk is None:
            return after
        is_uniform = dynamics.is_uniform
        inputs = [values.detach() for values in record.inputs]
        for number, output in enumerate(record.outputs if readout is None and is_uniform else ()):
            slots, x = output.slots, inputs[number]
            if slots is not None and isinstance(x, torch.Tensor):
                inputs[number] = spikes_of_slots(slots, x)  # a few slots are stored instead of a dense input
        states = None if before is None else before.traces
        with torch.no_grad():
            arguments = (dynamics, chunk, self.afferents, inputs)
            after = after._replace(traces=history.traces_after(*arguments, states))
            if readout is not None:
                filtered = history.filtered_traces_after(
                    readout, *arguments, states, None if before is None else before.filtered
                )
                low_passed = history.low_pass(readout, chunk.spk, None if before is None else before.low_passed)
                after = after._replace(filtered=filtered, low_passed=low_passed)
        return after


class ModuleDescription(NamedTuple):
    """A module's name, class and states, and its parameters' names, shapes and dtypes."""

    name: str
    kind: str
    states: Tuple[str, ...]
    parameters: Tuple[Tuple[str, torch.Size, torch.dtype], ...]

    def __str__(self) -> str:
        texts = [*self.states, *(f"{name} {list(shape)} {dtype}" for name, shape, dtype in self.parameters)]
        return f"{self.name} ({self.kind}: {', '.join(texts)})" if texts else f"{self.name} ({self.kind})"


def _sizes(module: torch.nn.Module) -> Tuple[Tuple[str, torch.Size, torch.dtype], ...]:
    return tuple([(name, p.shape, p.dtype) for name, p in module._parameters.items() if p is not None and p.dim()])


def describe_modules(layers: Sequence[Layer]) -> List[ModuleDescription]:
    """Describe the modules of all layers, see :meth:`Layer.describe`."""
    return [part for layer in layers for part in layer.describe()]


def check_same(before: Sequence[Any], now: Sequence[Any], advice: str) -> None:
    """Check that the network is the one to which the stream's states and traces belong."""
    if before != now:
        old, new = next(pair for pair in zip_longest(before, now, fillvalue="none") if pair[0] != pair[1])
        raise ValueError(f"the network has changed: there was module {old}, and now there is {new}; {advice}")


class ChunkRecord:
    """The record of a layer's chunk that its backward pass reads."""

    leaf: torch.Tensor
    after: LayerMemory

    def __init__(self, layer: Layer, online: Any, signals: LearningSignals) -> None:
        self.layer, self.online, self.number, self.signals = layer, online, online.chunks + 1, signals
        self.before: Optional[LayerMemory] = None
        self.chunk: Optional[NeuronChunk] = None
        self.inputs: List[DenseOrSparse] = []
        self.outputs: List[BodyOutput] = []
        self.parameters: List[torch.nn.Parameter] = []
        # Version counters of the tensors that the backward pass reads: parameters, and named tensors of the chunk.
        self.versions: List[Tuple[torch.Tensor, int]] = []
        self.chunk_versions: List[Tuple[str, torch.Tensor, int]] = []
        self.learns = self.done = False

    def store_versions(self, feedback: Sequence[torch.Tensor]) -> None:
        """Store the version counters of the tensors that the backward pass reads."""
        layer, chunk = self.layer, self.chunk
        owner: Any = layer.events.layer if layer.events is not None else layer.dynamics and layer.dynamics.neuron
        modules = [module for afferents in layer.afferents for _, module in afferents.body]
        tensors: List[Any] = [tensor for module in modules for tensor in module._parameters.values()]
        tensors += [*([] if owner is None else owner._parameters.values()), *feedback]
        self.versions = [(tensor, version(tensor)) for tensor in tensors if tensor is not None]
        if chunk is None or layer.dynamics is None:
            return
        states = [f"its {name}" for name in layer.dynamics.neuron._states()]
        named = [*zip(states, chunk.initial), *zip(states, chunk.states), *(("a parameter", v) for v in chunk.values)]
        named += [("its input", tensor) for tensor in (chunk.x, chunk.recurrent_input) if tensor is not None]
        named += [("its spikes", chunk.spk)] if feedback else []
        self.chunk_versions = [(name, tensor, version(tensor)) for name, tensor in named]

    def check(self) -> None:
        """Check that the chunk can still be differentiated.

        Raises:
            RuntimeError: a second backward, a loss on an earlier chunk, or a change of a module, parameter or tensor.
        """
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
        self.layer.check_modules()  # .train() may have been called since the forward pass
        changed = next((name for name, tensor, before in self.chunk_versions if version(tensor) != before), None)
        if changed is not None:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{changed} in module {self.layer.name} of an online network, between chunk {self.number} and its "
                "backward(); change a clone() of it"
            )
        if any(version(tensor) != before for tensor, before in self.versions):
            raise RuntimeError(
                f"a parameter of an online network was changed in place between chunk {self.number} and its "
                "backward(): call optimizer.step() after it"
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
        """Free the chunk's tensors, also if the caller still holds its result."""
        self.before = self.chunk = None
        self.inputs, self.outputs, self.chunk_versions = [], [], []
        del self.leaf

    def backward(self, upstream: Sequence[Gradient]) -> List[Gradient]:
        """Return the gradients of the layer's input, the body's parameters, the neuron's values and the feedback."""
        self.check()
        layer, dynamics, chunk, before = self.layer, self.layer.dynamics, self.chunk, self.before
        is_hidden = layer.rule.name == "eprop" and not layer.is_readout
        below = self.signals.below if is_hidden else []
        spk = upstream[0]
        if is_hidden and layer.feedback is not None:
            spk, below = self._feedback_signals()
        state_grads: List[torch.Tensor] = []
        local_grad: Any = None
        total_grad: Any = None
        value_grads: List[Any] = []
        if dynamics is None or chunk is None:
            assert spk is not None
            local_grad = total_grad = spk
        else:
            states = list(upstream[1:])
            if self._needs_local_gradients(is_hidden):
                local = dynamics.local(chunk, spk, states, need_before=False)
                local_grad = total_grad = local.x
                value_grads = local.parameters
            if layer.rule.history:
                total = dynamics.total(chunk, spk, states)
                total_grad, value_grads = total.x, total.parameters
                state_grads = [total.before[place] for place in dynamics.history_states]
        gradients: List[Gradient] = [self._input_gradient(local_grad, total_grad, spk, state_grads, below, is_hidden)]
        carried = [] if before is None else [(before.traces, state_grads), (before.filtered, below)]
        trace_grads = [(traces, grads) for traces, grads in carried if traces is not None and grads]
        gradients += self._parameter_gradients(total_grad, local_grad, trace_grads)
        for number, grad in enumerate(value_grads):
            assert chunk is not None
            need = chunk.needs[number]
            for traces, grads in trace_grads:
                if need:
                    grad = grad + history.parameter_gradient(traces, number, grads, chunk.values[number])
            gradients.append(grad if need else None)
        if layer.feedback is not None:
            gradients.append(self._feedback_gradient() if layer.feedback.requires_grad else None)
        return gradients

    def _needs_local_gradients(self, is_hidden: bool) -> bool:
        """Return True if the rule needs the gradients within each step, without the history."""
        rule = self.layer.rule
        options = rule.options
        if not rule.history or not options.get("bias_trace", True):
            return True
        if rule.name == "eprop":
            return not is_hidden and not options["low_pass"]
        return self.leaf.requires_grad or (self.layer.is_first and not options.get("input_trace", True))

    # ---- gradients for the layer below

    def _input_gradient(
        self,
        local_grad: torch.Tensor,
        total_grad: torch.Tensor,
        spk: Gradient,
        state_grads: List[torch.Tensor],
        below: List[torch.Tensor],
        is_hidden: bool,
    ) -> Gradient:
        """Return the gradient of the layer's input, and set e-prop's signals for the layer below."""
        rule, signals = self.layer.rule, self.signals
        if rule.name != "eprop":
            return self.outputs[0].leaf_gradient(self.leaf, local_grad) if self.leaf.requires_grad else None
        if not is_hidden:
            low_pass = rule.options["low_pass"]
            signals.error, signals.state_grads = (total_grad, state_grads) if low_pass else (local_grad, [])
            if not self.leaf.requires_grad:
                return None
            if rule.options["feedback"] != "symmetric":
                return torch.zeros_like(self.leaf)  # each hidden layer reads the error from the signals
            signals.below = [self._step_input_gradient(grad) for grad in signals.state_grads]
            return self.outputs[0].leaf_gradient(self.leaf, signals.error)
        if not self.leaf.requires_grad:
            return None
        if self.layer.feedback is not None:
            return torch.zeros_like(self.leaf)
        assert spk is not None
        signals.below = [self._step_input_gradient(grad) for grad in below]
        return self.outputs[0].leaf_gradient(self.leaf, spk)

    def _step_input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Propagate a step's gradient ``[B, ...]`` through modules that are the same linear function at every step."""
        first = self.layer.afferents[0]
        with torch.enable_grad():
            leaf = torch.zeros_like(self.leaf[:1]).requires_grad_()
            output = first.run_body(first.run_head(leaf))
        return output.leaf_gradient(leaf, grad.unsqueeze(0))[0]

    # ---- e-prop's feedback matrices

    def _feedback_signals(self) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        """Return the learning signals at each step, and of the readout's states before the chunk."""
        feedback, chunk, error = self.layer.feedback, self.chunk, self.signals.error
        assert feedback is not None
        assert chunk is not None
        assert error is not None
        spk = (error.flatten(2) @ feedback).reshape(chunk.spk.shape)
        return spk, [(grad.flatten(1) @ feedback).reshape(chunk.spk.shape[1:]) for grad in self.signals.state_grads]

    def _feedback_gradient(self) -> torch.Tensor:
        """Return the gradient of the feedback matrix: the outer product of the readout's error and the spikes."""
        chunk, error = self.chunk, self.signals.error
        assert chunk is not None
        assert error is not None
        gradient = error.flatten(2).flatten(0, 1).t() @ chunk.spk.flatten(2).flatten(0, 1)
        low_passed = None if self.before is None else self.before.low_passed
        for grad, spikes in zip(self.signals.state_grads, low_passed or []):
            gradient = gradient + grad.flatten(1).t() @ spikes.flatten(1)
        return gradient

    # ---- gradients of the layer's parameters

    def _parameter_gradients(
        self, total_grad: torch.Tensor, local_grad: torch.Tensor, trace_grads: Sequence[Any]
    ) -> List[Any]:
        """Return the gradients of the parameters before the neuron: from the chunk's inputs and from earlier traces."""
        layer, gradients = self.layer, []
        has_bias = layer.rule.options.get("bias_trace", True)
        for number, (afferents, output) in enumerate(zip(layer.afferents, self.outputs)):
            parameters = afferents.parameters()
            if not parameters:
                continue
            is_input = layer.is_first and not number and not layer.rule.options.get("input_trace", True)
            grad = local_grad if is_input else total_grad
            carried = [] if is_input else history.input_traces(trace_grads, number)
            # bias_trace=False: the bias gets the gradient within each step.
            constant = None if is_input or has_bias else (local_grad - total_grad).sum(0)
            gradients += afferents.parameter_gradients(output, grad, carried, constant, parameters)
        return gradients


class _ChunkFunction(torch.autograd.Function):
    """The autograd function of a layer's chunk, with the gradients of the online rule."""

    @staticmethod
    def forward(ctx: Any, record: ChunkRecord, out: List[torch.Tensor], *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.record = record
        ctx.set_materialize_grads(False)
        # Detached copies: outputs held by the chunk's record would form a cycle, not freed without a backward.
        return tuple([value.detach() for value in out])

    @staticmethod
    @once_differentiable("online learning")
    def backward(ctx: Any, *upstream: Gradient) -> Any:  # type: ignore[override]
        if all(grad is None for grad in upstream):
            return (None,) * len(ctx.needs_input_grad)
        with torch.no_grad():
            gradients = ctx.record.backward(upstream)
        ctx.record.release()
        return (None, None, *gradients)
