"""Connections of a layer's input to its neurons, with forward and backward products in plain PyTorch."""

from dataclasses import dataclass
from typing import Iterator, List, Optional, Sequence, Tuple

import torch

from snnipu.ops._break_even import ALWAYS_SPARSE, CONVOLUTION, LINEAR, Shares, shares_of_list
from snnipu.ops._maps import Geometry

MaybeTensor = Optional[torch.Tensor]


class Connection:
    """Weights between ``inputs`` and ``neurons``; the base class of all connections.

    Dense spikes are ``[T, B, inputs]``, currents and membranes ``[T, B, neurons]``. A parameter such as a bias or a
    beta has one value for each neuron; in a convolution, for each channel.
    """

    weight: torch.Tensor
    break_even: Shares = LINEAR

    @property
    def geometry(self) -> Optional[List[int]]:
        """The sizes that operators take, see :func:`connection`."""
        return None

    @property
    def inputs(self) -> int:
        raise NotImplementedError

    @property
    def neurons(self) -> int:
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """Number of values of a parameter: one for each neuron, or for each channel."""
        return self.neurons

    @property
    def stored_shape(self) -> Tuple[int, ...]:
        """Shape of a step's membranes in the layout in which a layer stores them for its backward pass."""
        return (self.neurons,)

    def currents(self, dense: torch.Tensor, bias: MaybeTensor = None) -> torch.Tensor:
        """Return the weighted spikes plus ``bias``."""
        raise NotImplementedError

    def adjoint(self, grad: torch.Tensor, dense: MaybeTensor, spikes: bool = True) -> Tuple[MaybeTensor, MaybeTensor]:
        """Return the gradients of the dense spikes and of the weight from that of the currents.

        The first is None unless ``spikes``; the second is None unless ``dense``, the spikes, is given.
        """
        raise NotImplementedError

    def per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter with one element, or one element for each neuron."""
        return parameter

    def per_parameter(self, total: torch.Tensor) -> torch.Tensor:
        """Return the adjoint of :meth:`per_neuron`: sums of ``[..., neurons]`` for each value of a parameter."""
        return total.reshape(-1, self.neurons).sum(0)

    def to_stored(self, mem: torch.Tensor) -> torch.Tensor:
        """Return ``[T, B, neurons]`` in the stored layout ``[T, B, *stored_shape]``."""
        return mem

    def from_stored(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the inverse of :meth:`to_stored`; the neurons' dimensions may stay unflattened."""
        return stored


# These are dataclasses because TorchDynamo 2.9 cannot read properties of named tuples.
@dataclass(eq=False)
class FullyConnected(Connection):
    """A full matrix ``[neurons, inputs]``."""

    weight: torch.Tensor

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    @property
    def neurons(self) -> int:
        return self.weight.shape[0]

    def currents(self, dense: torch.Tensor, bias: MaybeTensor = None) -> torch.Tensor:
        return torch.nn.functional.linear(dense, self.weight, bias)

    def adjoint(self, grad: torch.Tensor, dense: MaybeTensor, spikes: bool = True) -> Tuple[MaybeTensor, MaybeTensor]:
        rows = grad.reshape(-1, self.neurons)
        return (
            grad @ self.weight if spikes else None,
            None if dense is None else rows.t() @ dense.reshape(-1, self.inputs),
        )


# Largest number of pairs of a spike and a synapse whose indices are in memory at a time.
_PAIRS = 1 << 20


@dataclass(eq=False)
class Listed(Connection):
    """A pruned matrix ``[neurons, inputs] = sizes``, stored as a list of synapses.

    ``weight`` ``[kept]`` has the weights. ``synapses``, int64 ``[2, kept]``, has the neuron and the input of each
    synapse, in ascending order of (input, neuron). Work and memory are proportional to the number of pairs of a spike
    and a synapse; for the spikes' gradient, to the number of synapses times rows.
    """

    weight: torch.Tensor
    synapses: torch.Tensor
    sizes: Sequence[int]

    @property
    def geometry(self) -> Optional[List[int]]:
        return list(self.sizes)

    @property
    def break_even(self) -> Shares:  # type: ignore[override]
        return shares_of_list(self.weight.shape[0] / (self.neurons * self.inputs))

    @property
    def inputs(self) -> int:
        return self.sizes[1]

    @property
    def neurons(self) -> int:
        return self.sizes[0]

    def matrix(self) -> torch.Tensor:
        """Return the dense matrix ``[neurons, inputs]``, differentiable in ``weight``."""
        places = self.synapses[0] * self.inputs + self.synapses[1]
        return self.weight.new_zeros(self.neurons * self.inputs).scatter(0, places, self.weight).reshape(*self.sizes)

    def _pairs(self, rows: torch.Tensor) -> Iterator[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield the pairs of a spike and a synapse for ``rows`` ``[N, inputs]``, in parts.

        A part is the spikes' values, the synapses' numbers, and the flat indices into the currents ``[N, neurons]``.
        """
        row, source = rows.nonzero(as_tuple=True)
        first = torch.searchsorted(self.synapses[1].contiguous(), torch.arange(self.inputs + 1, device=rows.device))
        reach = (first[1:] - first[:-1])[source]
        begin = reach.cumsum(0) - reach
        # A part has whole spikes, up to the first that exceeds the size of a part.
        ends = torch.searchsorted(begin, torch.arange(_PAIRS, int(reach.sum()) + _PAIRS, _PAIRS, device=rows.device))
        start = 0
        for end in ends.tolist():
            part = slice(start, end)
            spike = torch.repeat_interleave(reach[part])
            synapse = torch.arange(len(spike), device=rows.device)
            synapse = synapse + (first[source[part]] - begin[part] + begin[start] if len(spike) else first[:0])[spike]
            number = rows[row[part], source[part]][spike]
            yield number, synapse, row[part][spike] * self.neurons + self.synapses[0][synapse]
            start = end

    def currents(self, dense: torch.Tensor, bias: MaybeTensor = None) -> torch.Tensor:
        out = dense.new_zeros(*dense.shape[:2], self.neurons)
        for number, synapse, place in self._pairs(dense.reshape(-1, self.inputs)):
            out.view(-1).index_add_(0, place, number * self.weight[synapse])
        return out if bias is None else out + bias

    def adjoint(self, grad: torch.Tensor, dense: MaybeTensor, spikes: bool = True) -> Tuple[MaybeTensor, MaybeTensor]:
        grad_dense = grad_weight = None
        if dense is not None:
            grad_weight, flat = torch.zeros_like(self.weight), grad.reshape(-1)
            for number, synapse, place in self._pairs(dense.reshape(-1, self.inputs)):
                grad_weight.index_add_(0, synapse, number * flat[place])
        if spikes:
            indices, sizes = self.synapses.flip(0), (self.inputs, self.neurons)
            transposed = torch.sparse_coo_tensor(indices, self.weight, sizes, check_invariants=False)
            by_input = torch.sparse.mm(transposed, grad.reshape(-1, self.neurons).t())
            grad_dense = by_input.t().reshape(*grad.shape[:2], self.inputs)
        return grad_dense, grad_weight


@dataclass(eq=False)
class Delayed(Connection):
    """A full matrix whose synapses have delays.

    A spike of input i arrives at neuron j with ``weight[i, j, k]`` after ``lags[i, j] + k`` steps, for each tap k.

    Args:
        weight: ``[inputs, neurons, taps]``.
        lags: int32 ``[inputs, neurons]``, in steps.
        span: the longest arrival in steps, plus 1.
    """

    weight: torch.Tensor
    lags: torch.Tensor
    span: int
    break_even = ALWAYS_SPARSE

    @property
    def geometry(self) -> Optional[List[int]]:
        return [self.span, self.weight.shape[2]]

    @property
    def inputs(self) -> int:
        return self.weight.shape[0]

    @property
    def neurons(self) -> int:
        return self.weight.shape[1]

    def _places(self) -> torch.Tensor:
        """Return the lag of each weight, ``[taps, inputs, neurons]``: its index in ``[span, inputs, neurons]``."""
        taps = torch.arange(self.weight.shape[2], device=self.weight.device)
        return taps[:, None, None] + self.lags

    def _by_lag(self) -> torch.Tensor:
        """Return the weights by lag, ``[span, inputs, neurons]``; most are 0."""
        zeros = self.weight.new_zeros(self.span, self.inputs, self.neurons)
        return zeros.scatter_(0, self._places(), self.weight.permute(2, 0, 1))

    def currents(self, dense: torch.Tensor, bias: MaybeTensor = None) -> torch.Tensor:
        steps, weight = dense.shape[0], self._by_lag()
        out = dense.new_zeros(steps, dense.shape[1], self.neurons)
        for lag in range(min(self.span, steps)):
            out[lag:] += dense[: steps - lag] @ weight[lag]
        return out if bias is None else out + bias

    def adjoint(self, grad: torch.Tensor, dense: MaybeTensor, spikes: bool = True) -> Tuple[MaybeTensor, MaybeTensor]:
        steps, grad_dense, grad_weight = grad.shape[0], None, None
        lags = range(min(self.span, steps))
        if dense is not None:
            by_lag = self.weight.new_zeros(self.span, self.inputs, self.neurons)
            for lag in lags:
                by_lag[lag] = dense[: steps - lag].flatten(0, 1).t() @ grad[lag:].flatten(0, 1)
            grad_weight = by_lag.gather(0, self._places()).permute(1, 2, 0).contiguous()
        if spikes:
            weight, grad_dense = self._by_lag(), grad.new_zeros(*grad.shape[:2], self.inputs)
            for lag in lags:
                grad_dense[: steps - lag] += grad[lag:] @ weight[lag].t()
        return grad_dense, grad_weight


@dataclass(eq=False)
class Convolution2d(Connection):
    """A convolution with kernels ``[out channels, in channels / groups, height, width]``."""

    weight: torch.Tensor
    sizes: Geometry
    break_even = CONVOLUTION

    @property
    def geometry(self) -> Optional[List[int]]:
        return list(self.sizes)

    @property
    def inputs(self) -> int:
        return self.sizes.inputs

    @property
    def neurons(self) -> int:
        return self.sizes.neurons

    @property
    def parameters(self) -> int:
        return self.sizes.out_channels

    @property
    def stored_shape(self) -> Tuple[int, ...]:
        return self.sizes.positions, self.sizes.out_channels

    def _options(self) -> Tuple[List[int], List[int], List[int]]:
        """Return stride, padding and dilation."""
        return [*self.sizes[8:10]], [*self.sizes[10:12]], [*self.sizes[12:14]]

    def currents(self, dense: torch.Tensor, bias: MaybeTensor = None) -> torch.Tensor:
        rows = dense.shape[:2]
        if rows.numel() == 0:
            return dense.new_zeros(*rows, self.neurons)
        maps = dense.reshape(-1, *self.sizes.in_shape)
        out = torch.nn.functional.conv2d(maps, self.weight, bias, *self._options(), self.sizes.groups)
        return out.reshape(*rows, self.neurons)

    def adjoint(self, grad: torch.Tensor, dense: MaybeTensor, spikes: bool = True) -> Tuple[MaybeTensor, MaybeTensor]:
        rows = grad.shape[:2]
        if rows.numel() == 0:
            nothing = None if dense is None else torch.zeros_like(self.weight, memory_format=torch.contiguous_format)
            return grad.new_zeros(*rows, self.inputs) if spikes else None, nothing
        maps = grad.reshape(-1, *self.sizes.out_shape)
        like = grad.new_empty(1).expand(maps.shape[0], *self.sizes.in_shape)  # only its shape is read
        gradients = torch.ops.aten.convolution_backward(
            maps,
            like if dense is None else dense.reshape(like.shape),
            self.weight,
            None,
            *self._options(),
            False,
            [0, 0],
            self.sizes.groups,
            [spikes, dense is not None, False],
        )
        return gradients[0].reshape(*rows, self.inputs) if spikes else None, None if dense is None else gradients[1]

    def per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter if parameter.numel() == 1 else parameter.reshape(-1).repeat_interleave(self.sizes.positions)

    def per_parameter(self, total: torch.Tensor) -> torch.Tensor:
        return total.reshape(-1, self.sizes.out_channels, self.sizes.positions).sum((0, 2))

    def to_stored(self, mem: torch.Tensor) -> torch.Tensor:
        return mem.unflatten(2, self.stored_shape[::-1]).transpose(2, 3).contiguous()

    def from_stored(self, stored: torch.Tensor) -> torch.Tensor:
        height, width = self.sizes.out_shape[1:]
        return stored.unflatten(2, (height, width)).permute(0, 1, 4, 2, 3)


def parameter_gradient(connected: Connection, total: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter, of one or ``connected.parameters`` elements, from sums ``[..., neurons]``."""
    total_of_parameter = connected.per_parameter(total)
    return (total_of_parameter.sum() if parameter.numel() == 1 else total_of_parameter).reshape(parameter.shape)


def connection(
    weight: torch.Tensor,
    geometry: Optional[Sequence[int]],
    synapses: MaybeTensor = None,
    lags: MaybeTensor = None,
) -> Connection:
    """Make a connection from an operator's arguments.

    ``geometry`` is None for a full matrix, (neurons, inputs) with ``synapses``, and (span, taps) with ``lags``. Else
    it has the fields of a :class:`Geometry`, and the connection is a convolution.
    """
    if geometry is None:
        return FullyConnected(weight)
    if lags is not None:
        return Delayed(weight, lags, geometry[0])
    return Convolution2d(weight, Geometry(*geometry)) if synapses is None else Listed(weight, synapses, geometry)
