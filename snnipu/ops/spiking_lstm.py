"""Spiking LSTMs: one step, and a sequence with the input's part of the gates computed for all steps at once.

.. math::

    i, f, g, o &= \\sigma, \\sigma, \\tanh, \\sigma(\\text{input's part} + \\text{part of } h_{t-1}) \\\\
    c_t &= f c_{t-1} + i g \\\\
    h_t &= o \\tanh(c_t) - S(h_{t-1})\\,\\theta \\quad\\text{or}\\quad (1 - S(h_{t-1}))\\, o \\tanh(c_t)
"""

from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.nn import functional as F

from snnipu.ops._arguments import is_autocast, is_eager
from snnipu.ops._derivative import once_differentiable

# The input's part is computed for so many steps at once that it has about so many numbers: 64 MiB in float32.
_CHUNK = 1 << 24

States = Tuple[torch.Tensor, torch.Tensor]


class Neuron(NamedTuple):
    """What is done with a cell's hidden state.

    Attributes:
        threshold, graded: of the spikes.
        reset: code of the reset mechanism.
        spike: the spike function.
        quantise: of the states, or None.
    """

    threshold: torch.Tensor
    graded: torch.Tensor
    reset: int
    spike: Callable[[torch.Tensor], torch.Tensor]
    quantise: Any = None

    def fire(self, mem: torch.Tensor) -> torch.Tensor:
        """Spikes."""
        if self.quantise:
            mem = self.quantise(mem)
        return self.spike(mem - self.threshold) * self.graded

    def was_above(self, mem: torch.Tensor) -> torch.Tensor:
        """The reset signal, bool."""
        return mem.detach() - self.threshold.detach() > 0

    def after(self, syn: torch.Tensor, mem: torch.Tensor, before: Optional[torch.Tensor]) -> States:
        """The cell's states with the reset for the hidden state ``before``; None: it was zeros."""
        if self.reset < 2:
            reset = self.was_above(torch.zeros_like(mem) if before is None else before)
            mem = mem - reset * self.threshold if self.reset == 0 else mem.masked_fill(reset, 0)
        return (self.quantise(syn), self.quantise(mem)) if self.quantise else (syn, mem)


# No named tuples: TorchDynamo 2.9 cannot read properties of theirs.
@dataclass(eq=False)
class LinearCell:
    """``nn.LSTMCell``: weights ``[4 * H, I]`` and ``[4 * H, H]``."""

    weight_ih: torch.Tensor
    weight_hh: torch.Tensor
    bias_ih: Optional[torch.Tensor]
    bias_hh: Optional[torch.Tensor]

    order = (0, 1, 2, 3)  # where i, f, g and o stand among the gates

    def plain(self) -> Tuple[Tuple[Optional[torch.Tensor], ...], Tuple[Any, ...]]:
        """Its tensors, and what else there is: what :func:`cell_of` takes."""
        return (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh), ()

    def fits(self, x: torch.Tensor) -> bool:
        """Whether ``x`` is a step of the input."""
        return x.dim() == 2 and x.shape[1] == self.weight_ih.shape[1] and x.dtype == self.weight_ih.dtype

    def shape(self, step: torch.Size) -> Tuple[int, ...]:
        """The states' shape, for steps of the input of shape ``step``."""
        return (step[0], self.weight_hh.shape[1])

    @property
    def restarts(self) -> bool:
        """Whether every step starts from zeros: snnTorch's takes states only where they have the input's shape."""
        return self.weight_ih.shape[1] != self.weight_hh.shape[1]

    def step(self, x: torch.Tensor, syn: torch.Tensor, mem: torch.Tensor) -> States:
        """The states after one step, as snnTorch computes them."""
        made = torch.lstm_cell(x, (mem, syn), self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return made[1], made[0]

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """The input's part of the gates, ``[N, 4 * H]`` of ``x [N, I]``."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def hidden_weight(self) -> torch.Tensor:
        """What :meth:`gates` takes."""
        return self.weight_hh

    def gates(self, of_input: torch.Tensor, mem: Optional[torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
        """The gates, for the hidden state ``mem``; None: zeros."""
        if mem is None:
            return of_input if self.bias_hh is None else self.bias_hh + of_input
        return F.linear(mem, weight, self.bias_hh) + of_input

    def activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """``i, f, g, o``."""
        size = self.weight_hh.shape[1]
        i, f = gates[:, : 2 * size].sigmoid().chunk(2, 1)
        return i, f, gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()

    def grad_hidden(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the hidden state, from that of :meth:`gates`."""
        return grad @ weight

    def grad_weight(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the weight, from those of several rows of :meth:`gates`."""
        return grad.t() @ mem

    def pooled(self, mem: torch.Tensor) -> torch.Tensor:
        """What fires."""
        return mem


@dataclass(eq=False)
class ConvCell:
    """One convolution of input and hidden state: ``weight [4 * H, I + H, k, k]``.

    ``max_pool``, ``avg_pool``: the window in which the hidden state is pooled before it fires; 0: none.
    """

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    padding: Tuple[int, int]
    max_pool: Any = 0
    avg_pool: Any = 0
    restarts: bool = False

    bias_hh = None  # the one bias is the input's
    order = (0, 1, 3, 2)  # where i, f, g and o stand among the gates

    def plain(self) -> Tuple[Tuple[Optional[torch.Tensor], ...], Tuple[Any, ...]]:
        """Its tensors, and what else there is: what :func:`cell_of` takes."""
        return (self.weight, self.bias), (self.padding, self.max_pool, self.avg_pool)

    def fits(self, x: torch.Tensor) -> bool:
        """Whether ``x`` is a step of the input."""
        odd = self.weight.shape[2] % 2 == 1 and self.weight.shape[3] % 2 == 1
        return (
            x.dim() == 4 and odd and x.shape[1] + self.hidden == self.weight.shape[1] and x.dtype == self.weight.dtype
        )

    @property
    def hidden(self) -> int:
        """Channels of the states."""
        return self.weight.shape[0] // 4

    def shape(self, step: torch.Size) -> Tuple[int, ...]:
        """The states' shape, for steps of the input of shape ``step``."""
        return (step[0], self.hidden, step[2], step[3])

    def step(self, x: torch.Tensor, syn: torch.Tensor, mem: torch.Tensor) -> States:
        """The states after one step, as snnTorch computes them."""
        gates = F.conv2d(torch.cat([x, mem], 1), self.weight, self.bias, padding=self.padding)
        return _cell(self.activations(gates), syn)

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """The input's part of the gates, ``[N, 4 * H, h, w]`` of ``x [N, I, h, w]``."""
        return F.conv2d(x, self.weight[:, : -self.hidden], self.bias, padding=self.padding)

    def hidden_weight(self) -> torch.Tensor:
        """What :meth:`gates` takes."""
        return self.weight[:, -self.hidden :].contiguous()

    def gates(self, of_input: torch.Tensor, mem: Optional[torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
        """The gates, for the hidden state ``mem``; None: zeros."""
        return of_input if mem is None else of_input + F.conv2d(mem, weight, padding=self.padding)

    def activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """``i, f, g, o``, which snnTorch's convolutional cell has in another order."""
        size = 3 * self.hidden
        i, f, o = gates[:, :size].sigmoid().chunk(3, 1)
        return i, f, gates[:, size:].tanh(), o

    def grad_hidden(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the hidden state, from that of :meth:`gates`."""
        return self._backward(grad, mem, weight, (True, False, False))[0]

    def grad_weight(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the weight, from those of several rows of :meth:`gates`."""
        return self._backward(grad, mem, weight, (False, True, False))[1]

    def _backward(self, grad: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor, mask: Any) -> Any:
        return torch.ops.aten.convolution_backward(
            grad, mem, weight, None, [1, 1], self.padding, [1, 1], False, [0, 0], 1, mask
        )

    def pooled(self, mem: torch.Tensor) -> torch.Tensor:
        """What fires."""
        if not (self.max_pool or self.avg_pool):
            return mem
        return F.max_pool2d(mem, self.max_pool) if self.max_pool else F.avg_pool2d(mem, self.avg_pool)


Cell = Any  # LinearCell or ConvCell


def cell_of(tensors: Sequence[Any], how: Sequence[Any]) -> Cell:
    """A cell from what its ``plain`` gave."""
    return ConvCell(*tensors, *how) if how else LinearCell(*tensors)


def _cell(activations: Tuple[torch.Tensor, ...], syn: Optional[torch.Tensor]) -> States:
    """Cell and hidden state after a step; ``syn`` None: zeros."""
    i, f, g, o = activations
    syn = i * g if syn is None else f * syn + i * g
    return syn, o * syn.tanh()


def spiking_lstm_step(
    cell: Cell, neuron: Neuron, x: torch.Tensor, syn: Optional[torch.Tensor], mem: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step, snnTorch's numbers: ``(spk, syn, mem)``; states that are None are zeros."""
    shape = cell.shape(x.shape)
    syn, mem = (x.new_zeros(shape) if state is None or cell.restarts else state for state in (syn, mem))
    made: States = cell.step(x, syn, mem)
    syn, after = neuron.after(*made, mem)
    return neuron.fire(cell.pooled(after)), syn, after


def spiking_lstm_sequence(
    cell: Cell,
    neuron: Neuron,
    x: torch.Tensor,
    syn: Optional[torch.Tensor],
    mem: Optional[torch.Tensor],
    num_steps: Optional[int],
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All steps: ``(spk, syn, mem)``, each ``[T, B, ...]``; states that are None are zeros.

    Args:
        x: ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
    """
    weight = cell.hidden_weight()
    constant = num_steps is not None
    steps = num_steps if num_steps is not None else x.shape[0]
    shape = torch.Size(cell.shape(x.shape if constant else x.shape[1:]))
    if cell.restarts:
        # All steps are one batch. The product with zeros is what gives its weight a gradient.
        none = weight.new_zeros(1, shape[1])
        gates = cell.gates(cell.input_gates(x if constant else x.flatten(0, 1)), none, weight)
        made = neuron.after(*_cell(cell.activations(gates), None), None)
        syns, mems = (state.unflatten(0, (-1, shape[0])) for state in made)
        if constant:
            syns, mems = (state.expand(steps, *state.shape[1:]) for state in (syns, mems))
    else:
        if mem is None and steps == 1:
            mem = weight.new_zeros(shape)  # likewise
        if _has_backward(cell, neuron, x, syn, mem):
            of_input = cell.input_gates(x if constant else x.flatten(0, 1))
            of_input = of_input if constant else of_input.unflatten(0, x.shape[:2])
            given = (of_input, syn, mem, weight, cell.bias_hh, neuron.threshold)
            syns, mems = _Sequence.apply(cell, neuron, steps, constant, *given)
            flat = cell.pooled(mems.flatten(0, 1))
            return neuron.fire(flat.unflatten(0, mems.shape[:2])), syns, mems
        rows: Tuple[List[torch.Tensor], List[torch.Tensor]] = ([], [])
        for of_input in _chunks(cell, x, num_steps, 4 * shape.numel()):
            syn, mem = neuron.after(*_cell(cell.activations(cell.gates(of_input, mem, weight)), syn), mem)
            rows[0].append(syn)
            rows[1].append(mem)
        syns, mems = (torch.stack(row) for row in rows)
    flat = cell.pooled(mems.flatten(0, 1))
    return neuron.fire(flat.unflatten(0, mems.shape[:2])), syns, mems


def _has_backward(cell: Cell, neuron: Neuron, x: torch.Tensor, *states: Optional[torch.Tensor]) -> bool:
    """Whether gradients are wanted, and are :class:`_Sequence`'s: others are PyTorch's, through each operation."""
    eager = is_eager(x, dispatched=True) and not is_autocast(x.device.type)
    if not (eager and torch.is_grad_enabled()) or neuron.quantise:
        return False
    tensors = [one for one in (x, *states, *cell.plain()[0], neuron.threshold) if one is not None]
    alike = all(one.dtype == x.dtype and one.device == x.device for one in tensors)
    return alike and x.dtype in (torch.float32, torch.float64) and any(one.requires_grad for one in tensors)


class _Sequence(torch.autograd.Function):
    """The steps of a cell, for the input's part of the gates: ``(syn, mem)``, each ``[T, B, ...]``.

    With :math:`a` for a gate and :math:`\\delta` for the gradient of what is named,

    .. math::

        \\delta_c &= \\delta_{c_t} + f_{t+1} \\delta_{c_{t+1}} + \\delta_{h_t} o (1 - \\tanh^2 c_t) \\\\
        \\delta_a &= a (1 - a) \\cdot (g \\delta_c,\\; c_{t-1} \\delta_c,\\; \\tanh(c_t) \\delta_h), \\quad
        \\delta_g = (1 - g^2)\\, i\\, \\delta_c

    for i, f and o. The hidden weights' gradient is one product over all steps.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        cell: Cell,
        neuron: Neuron,
        steps: int,
        constant: bool,
        of_input: torch.Tensor,
        syn: Optional[torch.Tensor],
        mem: Optional[torch.Tensor],
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        threshold: torch.Tensor,
    ) -> States:
        rows = [of_input] * steps if constant else of_input.unbind()
        gates = torch.empty((steps, *rows[0].shape), dtype=of_input.dtype, device=of_input.device)
        size = rows[0].shape[1] // 4
        syns, tanhs, mems = (torch.empty_like(gates[:, :, :size]).contiguous() for _ in range(3))
        ctx.cell, ctx.reset, ctx.constant = cell, neuron.reset, constant
        ctx.save_for_backward(gates, syns, tanhs, mems, syn, mem, weight, bias, threshold)
        before = mem
        for t, row in enumerate(rows):
            gate, after, made = gates[t], mems[t], syns[t]
            gate.copy_(cell.gates(row, before, weight))
            place = cell.order[2]
            gate[:, : place * size].sigmoid_()
            gate[:, place * size : (place + 1) * size].tanh_()
            gate[:, (place + 1) * size :].sigmoid_()
            i, f, g, o = _parts(cell, gate, 1)
            torch.mul(i, g, out=made)
            if syn is not None:
                made.add_(f * syn)
            torch.mul(o, torch.tanh(made, out=tanhs[t]), out=after)
            if neuron.reset < 2:
                above = neuron.was_above(torch.zeros_like(after) if before is None else before)
                after.sub_(above * threshold) if neuron.reset == 0 else after.masked_fill_(above, 0)
            syn, before = made, after
        return syns, mems

    @staticmethod
    @once_differentiable("SLSTM and SConv2dLSTM")
    def backward(ctx: Any, grad_syns: torch.Tensor, grad_mems: torch.Tensor) -> Any:  # type: ignore[override]
        gates, syns, tanhs, mems, syn, mem, weight, bias, threshold = ctx.saved_tensors
        cell, reset = ctx.cell, ctx.reset
        of_input, of_syn, of_mem, of_weight, of_bias, of_threshold = ctx.needs_input_grad[4:]
        i, f, g, o = _parts(cell, gates, 2)
        slopes = gates * (1 - gates)
        torch.sub(1, g * g, out=_parts(cell, slopes, 2)[2])
        of_tanh = o * (1 - tanhs * tanhs)
        first = torch.zeros_like(mems[:1]) if mem is None else mem.unsqueeze(0)
        before = torch.cat([first, mems[:-1]])
        above: Any = before - threshold > 0 if reset < 2 else None
        grads, total = torch.empty_like(gates), torch.zeros_like(mems[0])
        carried: List[Optional[torch.Tensor]] = [None, None]
        for t in range(len(gates) - 1, -1, -1):
            grad_c, grad_h = carried
            grad_h = grad_mems[t] if grad_h is None else grad_mems[t] + grad_h
            if reset == 0 and of_threshold:
                total.sub_(grad_h * above[t])
            elif reset == 1:
                grad_h = grad_h.masked_fill(above[t], 0)
            own = grad_syns[t] if grad_c is None else grad_syns[t] + grad_c
            grad_c = torch.addcmul(own, grad_h, of_tanh[t])
            grad = grads[t]
            to = _parts(cell, grad, 1)
            torch.mul(grad_c, g[t], out=to[0])
            last = syns[t - 1] if t else syn
            to[1].zero_() if last is None else torch.mul(grad_c, last, out=to[1])
            torch.mul(grad_c, i[t], out=to[2])
            torch.mul(grad_h, tanhs[t], out=to[3])
            grad.mul_(slopes[t])
            carried = [
                grad_c * f[t] if t or of_syn else None,
                cell.grad_hidden(grad, before[t], weight) if t or of_mem else None,
            ]
        flat = grads.flatten(0, 1)
        start = 0 if mem is not None else 1  # zeros before the first step add nothing
        return (
            *(None, None, None, None),
            (grads.sum(0) if ctx.constant else grads) if of_input else None,
            carried[0] if of_syn else None,
            carried[1] if of_mem else None,
            cell.grad_weight(grads[start:].flatten(0, 1), before[start:].flatten(0, 1), weight) if of_weight else None,
            flat.sum(0) if of_bias and bias is not None else None,
            total.sum_to_size(threshold.shape) if of_threshold and reset == 0 else None,
        )


def _parts(cell: Cell, gates: torch.Tensor, dim: int) -> List[torch.Tensor]:
    """``i, f, g, o``."""
    parts = gates.chunk(4, dim)
    return [parts[place] for place in cell.order]


def _chunks(cell: Cell, x: torch.Tensor, num_steps: Optional[int], size: int) -> Iterator[torch.Tensor]:
    """The input's part of the gates of each step."""
    if num_steps is not None:
        of_input = cell.input_gates(x)
        for _ in range(num_steps):
            yield of_input
        return
    for part in x.split(max(1, _CHUNK // max(1, size))):
        yield from cell.input_gates(part.flatten(0, 1)).unflatten(0, part.shape[:2]).unbind()
