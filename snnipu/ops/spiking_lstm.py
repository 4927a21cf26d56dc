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
        rows: Tuple[List[torch.Tensor], List[torch.Tensor]] = ([], [])
        for of_input in _chunks(cell, x, num_steps, 4 * shape.numel()):
            syn, mem = neuron.after(*_cell(cell.activations(cell.gates(of_input, mem, weight)), syn), mem)
            rows[0].append(syn)
            rows[1].append(mem)
        syns, mems = (torch.stack(row) for row in rows)
    flat = cell.pooled(mems.flatten(0, 1))
    return neuron.fire(flat.unflatten(0, mems.shape[:2])), syns, mems


def _chunks(cell: Cell, x: torch.Tensor, num_steps: Optional[int], size: int) -> Iterator[torch.Tensor]:
    """The input's part of the gates of each step."""
    if num_steps is not None:
        of_input = cell.input_gates(x)
        for _ in range(num_steps):
            yield of_input
        return
    for part in x.split(max(1, _CHUNK // max(1, size))):
        yield from cell.input_gates(part.flatten(0, 1)).unflatten(0, part.shape[:2]).unbind()
