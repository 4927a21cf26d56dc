"""Spiking LSTMs: one step, and an operator for a sequence.

.. math::

    i, f, g, o &= \\sigma, \\sigma, \\tanh, \\sigma(W x_t + V h_{t-1} + b) \\\\
    c_t &= f c_{t-1} + i g \\\\
    h_t &= o \\tanh(c_t) - S(h_{t-1})\\,\\theta \\quad\\text{or}\\quad (1 - S(h_{t-1}))\\, o \\tanh(c_t)

with the cell state :math:`c` (``syn``), the hidden state :math:`h` (``mem``), and the spike function :math:`S`.

The operator computes :math:`W x_t + b` for all steps in one product. The loop over time has the product with the hidden
state and one pass over the gates. The backward pass is a loop, too; the weights' gradients are one product over all
steps.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn import functional as F

from snnipu import _route
from snnipu._layout import upstream_rows
from snnipu.ops import _library
from snnipu.ops._arguments import is_autocast, is_differentiated
from snnipu.ops._derivative import once_differentiable
from snnipu.ops._records import declared, define

# The size of a chunk of time in numbers of gates, 64 MiB in float32. A sequence without a backward pass runs in chunks.
_CHUNK = 1 << 24

States = Tuple[torch.Tensor, torch.Tensor]
Tensors = Sequence[Optional[torch.Tensor]]


class LSTMNeuron(NamedTuple):
    """The spikes and the reset of a spiking LSTM.

    Attributes:
        threshold: firing threshold.
        graded: graded_spikes_factor, the value of a spike.
        reset: number of the reset mechanism.
        spike: the spike function.
        quantise: function that quantises the states, or None.
    """

    threshold: torch.Tensor
    graded: torch.Tensor
    reset: int
    spike: Callable[[torch.Tensor], torch.Tensor]
    quantise: Any = None

    def fire(self, mem: torch.Tensor) -> torch.Tensor:
        """Return the spikes of the hidden state."""
        if self.quantise:
            mem = self.quantise(mem)
        return self.spike(mem - self.threshold) * self.graded

    def was_above(self, mem: torch.Tensor) -> torch.Tensor:
        """Return the reset signal, bool."""
        return mem.detach() - self.threshold.detach() > 0

    def after(self, syn: torch.Tensor, mem: torch.Tensor, before: Optional[torch.Tensor]) -> States:
        """Return the cell's states after the reset by the hidden state ``before``; None: zeros."""
        if self.reset < 2:
            reset = self.was_above(torch.zeros_like(mem) if before is None else before)
            mem = mem - reset * self.threshold if self.reset == 0 else mem.masked_fill(reset, 0)
        return (self.quantise(syn), self.quantise(mem)) if self.quantise else (syn, mem)


# These are dataclasses because TorchDynamo 2.9 cannot read properties of named tuples.
@dataclass(eq=False)
class LinearCell:
    """``nn.LSTMCell``: weights ``[4 * H, I]`` and ``[4 * H, H]``."""

    weight_ih: torch.Tensor
    weight_hh: torch.Tensor
    bias_ih: Optional[torch.Tensor]
    bias_hh: Optional[torch.Tensor]

    def plain(self) -> Tuple[Tuple[Optional[torch.Tensor], ...], Tuple[Any, ...]]:
        """Return the tensors and the other fields, the arguments of :func:`make_cell`."""
        return (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh), ()

    def fits(self, x: torch.Tensor) -> bool:
        """Return True if ``x`` is a step of the input."""
        return x.dim() == 2 and x.shape[1] == self.weight_ih.shape[1] and x.dtype == self.weight_ih.dtype

    def shape(self, step: torch.Size) -> Tuple[int, ...]:
        """Return the shape of the states for input steps of shape ``step``."""
        return (step[0], self.weight_hh.shape[1])

    @property
    def restarts(self) -> bool:
        """True if every step starts from zeros: snnTorch discards states that do not have the input's shape."""
        return self.weight_ih.shape[1] != self.weight_hh.shape[1]

    def step(self, x: torch.Tensor, syn: torch.Tensor, mem: torch.Tensor) -> States:
        """Return the states after one step, computed as in snnTorch."""
        states = torch.lstm_cell(x, (mem, syn), self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return states[1], states[0]

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input's part of the gates with the biases, ``[N, 4 * H]`` for ``x [N, I]``, in new memory."""
        bias = None if self.bias_ih is None or self.bias_hh is None else self.bias_ih + self.bias_hh
        return F.linear(x, self.weight_ih, bias)

    def hidden_weight(self) -> torch.Tensor:
        """Return the weight of the hidden state."""
        return self.weight_hh

    def hidden_gates(self, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the hidden state's part of the gates."""
        return F.linear(mem, weight)

    def add_hidden(self, gates: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> None:
        """Add :meth:`hidden_gates` to ``gates`` in place."""
        gates.addmm_(mem, weight.t())

    def grad_hidden(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a hidden state with the shape of ``mem`` from that of the gates."""
        return grad @ weight

    def gradients(self, grad: torch.Tensor, x: torch.Tensor, hidden: "Pairs", needs: Sequence[bool]) -> Tensors:
        """Return the gradients of ``x`` and of the cell's tensors from that of the gates for ``x``.

        ``hidden``: pairs of the gradient of gates and the hidden state that they read, for all steps.
        """
        bias = grad.sum(0) if any(needs[3:]) else None
        gradients = [
            grad @ self.weight_ih if needs[0] else None,
            grad.t() @ x if needs[1] else None,
            _sum([rows.t() @ mem for rows, mem in hidden], self.weight_hh) if needs[2] else None,
        ]
        # Two tensors: PyTorch may store a returned gradient as the grad of a parameter.
        return (*gradients, bias if needs[3] else None, bias.clone() if bias is not None and needs[4] else None)

    def activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Return the activations ``i, f, g, o``."""
        size = self.weight_hh.shape[1]
        i, f = gates[:, : 2 * size].sigmoid().chunk(2, 1)
        return i, f, gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()

    def pooled(self, mem: torch.Tensor) -> torch.Tensor:
        """Return the hidden state from which the neurons fire."""
        return mem


@dataclass(eq=False)
class ConvCell:
    """A cell with one convolution of input and hidden state, ``weight [4 * H, I + H, k, k]``.

    ``max_pool`` or ``avg_pool`` is the window in which the hidden state is pooled before it fires; 0: none.
    """

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    padding: Tuple[int, int]
    max_pool: Any = 0
    avg_pool: Any = 0
    restarts: bool = False

    def plain(self) -> Tuple[Tuple[Optional[torch.Tensor], ...], Tuple[Any, ...]]:
        """Return the tensors and the other fields, the arguments of :func:`make_cell`."""
        return (self.weight, self.bias), (self.padding, self.max_pool, self.avg_pool)

    def fits(self, x: torch.Tensor) -> bool:
        """Return True if ``x`` is a step of the input."""
        odd = self.weight.shape[2] % 2 == 1 and self.weight.shape[3] % 2 == 1
        return (
            x.dim() == 4 and odd and x.shape[1] + self.hidden == self.weight.shape[1] and x.dtype == self.weight.dtype
        )

    @property
    def hidden(self) -> int:
        """Number of channels of the states."""
        return self.weight.shape[0] // 4

    def shape(self, step: torch.Size) -> Tuple[int, ...]:
        """Return the shape of the states for input steps of shape ``step``."""
        return (step[0], self.hidden, step[2], step[3])

    def step(self, x: torch.Tensor, syn: torch.Tensor, mem: torch.Tensor) -> States:
        """Return the states after one step, computed as in snnTorch."""
        gates = F.conv2d(torch.cat([x, mem], 1), self.weight, self.bias, padding=self.padding)
        return _cell(self.activations(gates), syn)

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input's part of the gates with the bias, ``[N, 4 * H, h, w]`` for ``x [N, I, h, w]``, in new
        memory."""
        return F.conv2d(x, self.weight[:, : -self.hidden], self.bias, padding=self.padding)

    def hidden_weight(self) -> torch.Tensor:
        """Return the weight of the hidden state."""
        return self.weight[:, -self.hidden :].contiguous()

    def hidden_gates(self, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the hidden state's part of the gates."""
        return F.conv2d(mem, weight, padding=self.padding)

    def add_hidden(self, gates: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> None:
        """Add :meth:`hidden_gates` to ``gates`` in place."""
        gates.add_(self.hidden_gates(mem, weight))

    def _backward(self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, of_input: bool) -> torch.Tensor:
        mask = [of_input, not of_input, False]
        gradients: Tensors = torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1, 1], self.padding, [1, 1], False, [0, 0], 1, mask
        )
        gradient = gradients[0 if of_input else 1]
        assert gradient is not None
        return gradient

    def grad_hidden(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a hidden state with the shape of ``mem`` from that of the gates."""
        return self._backward(grad, mem, weight, True)

    def gradients(self, grad: torch.Tensor, x: torch.Tensor, hidden: "Pairs", needs: Sequence[bool]) -> Tensors:
        """Return the gradients of ``x`` and of the cell's tensors from that of the gates for ``x``.

        ``hidden``: pairs of the gradient of gates and the hidden state that they read, for all steps.
        """
        of_input, of_hidden = self.weight[:, : -self.hidden], self.weight[:, -self.hidden :]
        grad_weight = None
        if needs[1]:
            parts = [self._backward(rows, mem, of_hidden, False) for rows, mem in hidden]
            grad_weight = torch.cat([self._backward(grad, x, of_input, False), _sum(parts, of_hidden)], 1)
        return (
            self._backward(grad, x, of_input, True) if needs[0] else None,
            grad_weight,
            grad.sum([0, 2, 3]) if needs[2] else None,
        )

    def activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Return the activations ``i, f, g, o``; snnTorch's convolutional cell has the order ``i, f, o, g``."""
        size = 3 * self.hidden
        i, f, o = gates[:, :size].sigmoid().chunk(3, 1)
        return i, f, gates[:, size:].tanh(), o

    def pooled(self, mem: torch.Tensor) -> torch.Tensor:
        """Return the hidden state from which the neurons fire."""
        if not (self.max_pool or self.avg_pool):
            return mem
        return F.max_pool2d(mem, self.max_pool) if self.max_pool else F.avg_pool2d(mem, self.avg_pool)


Cell = Any  # LinearCell or ConvCell
Pairs = Sequence[Tuple[torch.Tensor, torch.Tensor]]


def _sum(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def make_cell(tensors: Sequence[Any], how: Sequence[Any]) -> Cell:
    """Return the cell from the results of its ``plain``."""
    return ConvCell(*tensors, *how) if how else LinearCell(*tensors)


def tanh_gate(cell: Cell) -> int:
    """Return the index of the gate with a tanh, 2 or 3; the output gate has the other index."""
    return 3 if isinstance(cell, ConvCell) else 2


def _cell(activations: Tuple[torch.Tensor, ...], syn: Optional[torch.Tensor]) -> States:
    """Return cell and hidden state after a step; ``syn`` None: zeros."""
    i, f, g, o = activations
    syn = i * g if syn is None else f * syn + i * g
    return syn, o * syn.tanh()


def spiking_lstm_step(
    cell: Cell, neuron: LSTMNeuron, x: torch.Tensor, syn: Optional[torch.Tensor], mem: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run one step, with snnTorch's numbers; return ``(spk, syn, mem)``. States that are None are zeros."""
    shape = cell.shape(x.shape)
    syn, mem = (x.new_zeros(shape) if state is None or cell.restarts else state for state in (syn, mem))
    states: States = cell.step(x, syn, mem)
    syn, after = neuron.after(*states, mem)
    return neuron.fire(cell.pooled(after)), syn, after


# ---- the operator


class PointwiseBackward(NamedTuple):
    """Arguments of the elementwise part of a step's adjoint. Pairs are of the cell state and the hidden state.

    Attributes:
        activations: activations of the gates.
        before: states before the step; None: zeros.
        syn: cell state after the step.
        grad: upstream gradients of the states after the step; None: zeros.
        carried: gradients of the same states from the next step.
        grad_gates: result, the gradient of the gates.
        grad_before: result, the gradient of the cell state before the step; it may share memory with ``carried``.
        grad_reset: result, the gradient of the threshold at each neuron; or None.
    """

    activations: torch.Tensor
    before: Tensors
    syn: torch.Tensor
    grad: Tensors
    carried: Tensors
    grad_gates: torch.Tensor
    grad_before: torch.Tensor
    grad_reset: Optional[torch.Tensor]


class ReferencePointwise:
    """The elementwise part of a step in plain PyTorch; a backend has a class with the same methods."""

    def __init__(self, cell: Cell, threshold: torch.Tensor, reset: int) -> None:
        self.threshold, self.reset = threshold, reset
        self.place = tanh_gate(cell)

    def _split(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        parts = gates.chunk(4, 1)
        return parts[0], parts[1], parts[self.place], parts[5 - self.place]

    def _reset(self, mem: Optional[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        return (torch.zeros_like(like) if mem is None else mem) - self.threshold > 0

    def forward(self, gates: torch.Tensor, before: Tensors, after: Tensors) -> None:
        """Replace the gates by their activations, and write the cell and the hidden state after the step."""
        parts = i, f, g, o = self._split(gates)
        for part in parts:
            part.tanh_() if part is g else part.sigmoid_()
        syn, mem = _cell((i, f, g, o), before[0])
        if self.reset < 2:
            reset = self._reset(before[1], mem)
            mem = mem - reset * self.threshold if self.reset == 0 else mem.masked_fill(reset, 0)
        for to, value in zip(after, (syn, mem)):
            assert to is not None
            to.copy_(value)

    def backward(self, a: PointwiseBackward) -> None:
        """Write the gradients of the gates, of the cell state before the step and of the threshold."""
        i, f, g, o = self._split(a.activations)
        both = [[part for part in pair if part is not None] for pair in zip(a.grad, a.carried)]
        grad_syn, grad_mem = (_sum(pair, a.syn) for pair in both)
        if self.reset < 2:
            reset = self._reset(a.before[1], a.syn)
            if a.grad_reset is not None:
                a.grad_reset.copy_(-grad_mem * reset)
            grad_mem = grad_mem.masked_fill(reset, 0) if self.reset == 1 else grad_mem
        tanh = a.syn.tanh()
        grad_syn = grad_syn + grad_mem * o * (1 - tanh * tanh)
        grad_i, grad_f, grad_g, grad_o = self._split(a.grad_gates)
        grad_i.copy_(grad_syn * g * i * (1 - i))
        grad_f.zero_() if a.before[0] is None else grad_f.copy_(grad_syn * a.before[0] * f * (1 - f))
        grad_g.copy_(grad_syn * i * (1 - g * g))
        grad_o.copy_(grad_mem * tanh * o * (1 - o))
        a.grad_before.copy_(grad_syn * f)


class LSTMArguments(NamedTuple):
    """Arguments of ``spiking_lstm_fwd``, in the order of its schema; empty ``padding``: a :class:`LinearCell`."""

    x: torch.Tensor
    syn: Optional[torch.Tensor]
    mem: Optional[torch.Tensor]
    cell: Tensors
    padding: List[int]
    threshold: torch.Tensor
    reset: int
    num_steps: Optional[int]

    def make_cell(self) -> Cell:
        return make_cell(self.cell, (tuple(self.padding),) if self.padding else ())

    def steps(self) -> Tuple[int, torch.Size]:
        """Return the number of steps and the shape of an input step."""
        return (len(self.x), self.x.shape[1:]) if self.num_steps is None else (self.num_steps, self.x.shape)


ForwardResults = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BackwardResults = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, List[torch.Tensor]]
MakePointwise = Callable[[Cell, torch.Tensor, int], Any]


def run_forward(pointwise: MakePointwise, *arguments: Any) -> ForwardResults:
    a = LSTMArguments(*arguments)
    cell, (steps, step) = a.make_cell(), a.steps()
    if a.num_steps is None:
        gates = cell.input_gates(a.x.flatten(0, 1)).contiguous().unflatten(0, (steps, step[0]))
    else:
        gates = cell.input_gates(a.x).repeat(steps, *[1] * a.x.dim())
    shape = (steps, *cell.shape(step))
    syns, mems = gates.new_empty(shape), gates.new_empty(shape)
    weight, kernels = cell.hidden_weight(), pointwise(cell, a.threshold, a.reset)
    before: Tensors = [None if state is None else state.contiguous() for state in (a.syn, a.mem)]
    for row, *after in zip(gates.unbind(), syns.unbind(), mems.unbind()):
        if before[1] is not None:
            cell.add_hidden(row, before[1], weight)
        kernels.forward(row, before, after)
        before = after
    return gates, syns, mems


def run_backward(
    pointwise: MakePointwise,
    grad_syns: Optional[torch.Tensor],
    grad_mems: Optional[torch.Tensor],
    activations: torch.Tensor,
    syns: torch.Tensor,
    mems: torch.Tensor,
    *arguments: Any,
) -> BackwardResults:
    *fields, needs = arguments
    a = LSTMArguments(*fields)
    cell, (steps, step) = a.make_cell(), a.steps()
    shape = (steps, *cell.shape(step))
    for name, value, expected in (
        ("activations", activations, (*shape[:2], 4 * shape[2], *shape[3:])),
        ("syns", syns, shape),
        ("mems", mems, shape),
    ):
        if value.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {tuple(value.shape)}")
    weight, kernels = cell.hidden_weight(), pointwise(cell, a.threshold, a.reset)
    upstream = list(zip(upstream_rows(grad_syns, steps), upstream_rows(grad_mems, steps)))
    first = tuple(None if state is None else state.contiguous() for state in (a.syn, a.mem))
    states = [first, *zip(syns.unbind(), mems.unbind())]
    grad_gates = activations.new_empty(activations.shape)
    grad_reset = mems.new_empty(mems.shape) if needs[3] and a.reset == 0 else None
    carry = syns.new_empty(syns.shape[1:])
    carried: Tensors = [None, None]
    for t in reversed(range(steps)):
        grad, row = grad_gates[t], None if grad_reset is None else grad_reset[t]
        kernels.backward(PointwiseBackward(activations[t], states[t], syns[t], upstream[t], carried, grad, carry, row))
        carried = [carry, cell.grad_hidden(grad, syns[0], weight) if t or needs[2] else None]
    grads = grad_gates.flatten(0, 1) if a.num_steps is None else grad_gates.sum(0)
    hidden_pairs = [(grad_gates[1:].flatten(0, 1), mems[:-1].flatten(0, 1))] if steps > 1 else []
    if a.mem is not None and steps:
        hidden_pairs.append((grad_gates[0], a.mem))
    x = a.x.flatten(0, 1) if a.num_steps is None else a.x
    needs_cell = [need and tensor is not None for need, tensor in zip(needs[4:], a.cell)]
    grad_x, *grad_cell = cell.gradients(grads, x, hidden_pairs, [needs[0], *needs_cell])
    grad_syn, grad_mem = (
        x.new_empty(0) if state is None or not need else torch.zeros_like(state) if grad is None else grad
        for need, grad, state in zip(needs[1:3], carried, (a.syn, a.mem))
    )
    return (
        x.new_empty(0) if grad_x is None else grad_x.reshape(a.x.shape),
        grad_syn,
        grad_mem,
        x.new_empty(0) if grad_reset is None else grad_reset.sum_to_size(1, *a.threshold.shape)[0],
        [x.new_empty(0) if grad is None else grad for grad in grad_cell],
    )


spiking_lstm_fwd_reference = partial(run_forward, ReferencePointwise)
spiking_lstm_bwd_reference = partial(run_backward, ReferencePointwise)


def _fwd_meta(*arguments: Any) -> ForwardResults:
    a = LSTMArguments(*arguments)
    steps, step = a.steps()
    shape = a.make_cell().shape(step)
    gates = (steps, shape[0], 4 * shape[1], *shape[2:])
    return a.x.new_empty(gates), a.x.new_empty((steps, *shape)), a.x.new_empty((steps, *shape))


def _bwd_meta(
    grad_syns: Any, grad_mems: Any, activations: Any, syns: Any, mems: Any, *arguments: Any
) -> BackwardResults:
    *fields, needs = arguments
    a = LSTMArguments(*fields)

    def like(tensor: Optional[torch.Tensor], need: bool) -> torch.Tensor:
        return a.x.new_empty(tensor.shape if need and tensor is not None else 0)

    return (
        like(a.x, needs[0]),
        like(a.syn, needs[1]),
        like(a.mem, needs[2]),
        like(a.threshold, needs[3] and a.reset == 0),
        [like(tensor, need) for tensor, need in zip(a.cell, needs[4:])],
    )


_fwd = define(
    spiking_lstm_fwd_reference,
    _fwd_meta,
    "(Tensor activations, Tensor syns, Tensor mems)",
    LSTMArguments,
    "spiking_lstm_fwd",
)
_bwd = _library.define(
    "spiking_lstm_bwd(Tensor? grad_syns, Tensor? grad_mems, Tensor activations, Tensor syns, Tensor mems, "
    f"{declared(LSTMArguments)}, bool[] needs) -> "
    "(Tensor grad_x, Tensor grad_syn, Tensor grad_mem, Tensor grad_threshold, Tensor[] grad_cell)",
    reference=spiking_lstm_bwd_reference,
    meta=_bwd_meta,
)


class SpikingLSTM(torch.autograd.Function):
    """The autograd function of the two operators: cell and hidden states after each step.

    It saves the gates' activations, the states and the inputs.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, how: Tuple[Any, ...], x: torch.Tensor, *tensors: Optional[torch.Tensor]
    ) -> States:
        syn, mem, threshold, *cell = tensors
        activations, syns, mems = _fwd(x, syn, mem, cell, how[0], threshold, *how[1:])
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(activations, syns, mems, x, *tensors)
        return syns, mems

    @staticmethod
    @once_differentiable("spiking_lstm")
    def backward(ctx: Any, grad_syns: Optional[torch.Tensor], grad_mems: Optional[torch.Tensor]) -> Any:  # type: ignore[override]
        padding, reset, num_steps = ctx.how
        activations, syns, mems, *tensors = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[1:])
        if grad_syns is None and grad_mems is None:
            return (None,) * (1 + len(needs))
        x, syn, mem, threshold, *cell = tensors
        grad_x, grad_syn, grad_mem, grad_threshold, grad_cell = _bwd(
            grad_syns,
            grad_mems,
            activations,
            syns,
            mems,
            x,
            syn,
            mem,
            cell,
            padding,
            threshold,
            reset,
            num_steps,
            needs,
        )
        needs[3] = needs[3] and reset == 0
        gradients = (grad_x, grad_syn, grad_mem, grad_threshold, *grad_cell)
        return (None, *(grad if need else None for grad, need in zip(gradients, needs)))


def _plain(quantise: Any, how: Tuple[Any, ...], x: torch.Tensor, *tensors: Optional[torch.Tensor]) -> States:
    """Compute the operator's results with differentiable operations of PyTorch."""
    syn, mem, threshold, *tensors_of_cell = tensors
    padding, reset, num_steps = how
    cell = make_cell(tensors_of_cell, (padding,) if padding else ())
    assert threshold is not None
    neuron = LSTMNeuron(threshold, threshold, reset, torch.sign, quantise)
    weight = cell.hidden_weight()
    if num_steps is None:
        rows = cell.input_gates(x.flatten(0, 1)).unflatten(0, x.shape[:2]).unbind()
    else:
        rows = [cell.input_gates(x)] * num_steps
    states: List[States] = []
    for gates in rows:
        # A row of zeros in place of the hidden state gives the weight a gradient of zeros.
        hidden = weight.new_zeros(cell.shape((1, *x.shape[2 - (num_steps is not None) :]))) if mem is None else mem
        if mem is not None or len(rows) == 1:
            gates = gates + cell.hidden_gates(hidden, weight)
        syn, mem = neuron.after(*_cell(cell.activations(gates), syn), mem)
        states.append((syn, mem))
    return torch.stack([state[0] for state in states]), torch.stack([state[1] for state in states])


def spiking_lstm_sequence(
    cell: Cell,
    neuron: LSTMNeuron,
    x: torch.Tensor,
    syn: Optional[torch.Tensor],
    mem: Optional[torch.Tensor],
    num_steps: Optional[int],
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run all steps; return ``(spk, syn, mem)``, each ``[T, B, ...]``.

    Args:
        cell: the LSTM cell.
        neuron: spikes and reset.
        x: ``[T, B, ...]``; with ``num_steps``, ``[B, ...]``, held constant.
        syn: cell state before the first step; None: zeros.
        mem: hidden state before the first step; None: zeros.
        num_steps: number of steps, or None.
    """
    tensors, how = cell.plain()
    neuron_tensors = (neuron.threshold, *tensors)
    options = (how[0] if how else (), neuron.reset)
    fused = (
        not _route.on_real_ipu()  # PopTorch has no such operator, only PyTorch's operations
        and not neuron.quantise
        and not is_autocast(x.device.type)
        and all(tensor is None or tensor.dtype == x.dtype for tensor in (syn, mem, *neuron_tensors))
    )

    def run(part: torch.Tensor, syn: Any, mem: Any, steps: Optional[int]) -> States:
        how = (*options, steps)
        if fused:
            return SpikingLSTM.apply(how, part, syn, mem, *neuron_tensors)  # type: ignore[no-any-return]
        return _plain(neuron.quantise, how, part, syn, mem, *neuron_tensors)

    if cell.restarts:
        # The steps are independent, so they run as one batch.
        flat = run(x[None] if num_steps is not None else x.flatten(0, 1)[None], None, None, None)
        syns, mems = (state[0].unflatten(0, (-1, x.shape[1 - (num_steps is not None)])) for state in flat)
        if num_steps is not None:
            syns, mems = (state.expand(num_steps, *state.shape[1:]) for state in (syns, mems))
    else:
        parts = (x,)
        if num_steps is None and not is_differentiated((x, syn, mem, *neuron_tensors)):
            gates = 4 * torch.Size(cell.shape(x.shape[1:])).numel()
            parts = x.split(max(1, _CHUNK // max(1, gates)))
        states: List[States] = []
        for part in parts:
            states.append(run(part, syn, mem, num_steps))
            syn, mem = states[-1][0][-1], states[-1][1][-1]
        syns, mems = states[0] if len(states) == 1 else (torch.cat(rows) for rows in zip(*states))
    flat_mems = cell.pooled(mems.flatten(0, 1))
    return neuron.fire(flat_mems.unflatten(0, mems.shape[:2])), syns, mems
