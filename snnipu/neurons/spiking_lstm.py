"""``snnipu.SLSTM`` and ``snnipu.SConv2dLSTM``: snnTorch's spiking LSTMs, the input's part for all steps at once."""

import warnings
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import snntorch
import torch
from torch import nn
from torch.nn import functional as F

from snnipu.functional.quant import StateQuant, as_state_quant
from snnipu.neurons import _instances
from snnipu.neurons._hooks import is_plain
from snnipu.ops._arguments import check_input, reset_code
from snnipu.ops.lif_sequence import check_num_steps
from snnipu.surrogate import SpikeGrad, as_surrogate

# The input's part is computed for so many steps at once that it has about so many numbers: 64 MiB in float32.
_CHUNK = 1 << 24
_NEURON_STEP = ("fire", "mem_reset")
_CELL_STEP = ("_base_state_function", "_base_state_reset_zero", "_base_sub", "_base_zero", "_base_int")
_STATE_FUNCTIONS = ("_base_sub", "_base_zero", "_base_int")  # by the code of the reset mechanism
_SAID: Set[Tuple[Any, ...]] = set()

States = Tuple[torch.Tensor, torch.Tensor]


class _SpikingLSTM(snntorch.SpikingNeuron):
    r"""The sequence of both: gates from the input's part and the hidden state's, one step after the other.

    .. math::

        i, f, g, o &= \sigma, \sigma, \tanh, \sigma(\text{input's part} + \text{part of } h_{t-1}) \\
        c_t &= f c_{t-1} + i g \\
        h_t &= o \tanh(c_t) - S(h_{t-1})\,\theta \quad\text{or}\quad (1 - S(h_{t-1}))\, o \tanh(c_t)
    """

    syn: torch.Tensor
    mem: torch.Tensor
    reset_mechanism_val: torch.Tensor
    max_pool: Any = 0
    avg_pool: Any = 0

    def _part(self) -> nn.Module:
        """The module with the weights."""
        raise NotImplementedError

    def _hidden_shape(self, step: torch.Size) -> Tuple[int, ...]:
        raise NotImplementedError

    def _input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """The input's part of the gates with the biases, ``[N, 4H, ...]`` of ``x [N, ...]``."""
        raise NotImplementedError

    def _hidden_weight(self) -> torch.Tensor:
        raise NotImplementedError

    def _add_hidden(self, gates: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _check_step(self, shape: torch.Size) -> None:
        raise NotImplementedError

    def _replaced(self) -> List[str]:
        """Names of what a subclass or this instance has in place of parts of the step."""
        kind, own = type(self), self.__dict__
        stock = SLSTM if isinstance(self, SLSTM) else SConv2dLSTM
        names = [
            name
            for name in (*_NEURON_STEP, *_CELL_STEP, "forward", "reset_mem")
            if name in own or getattr(kind, name) is not getattr(stock, name)
        ]
        function = getattr(getattr(self, "state_function", None), "__func__", None)
        if function not in [getattr(stock, name) for name in _STATE_FUNCTIONS] and not names:
            names.append("state_function")
        return names

    def _kernel_known(self) -> bool:
        known = as_surrogate(self.spike_grad)
        return known is not None and known.kernel is not None

    def runs_fused(self) -> bool:
        """Whether :meth:`sequence` computes the input's part for all steps at once."""
        part = self._part()
        return (
            self._kernel_known()
            and (not self.state_quant or isinstance(self.state_quant, StateQuant))
            and type(part) in (nn.LSTMCell, nn.Conv2d)
            and is_plain(part)
            and not self._replaced()
        )

    def sequence(
        self,
        x: torch.Tensor,
        syn: Optional[torch.Tensor] = None,
        mem: Optional[torch.Tensor] = None,
        *,
        num_steps: Optional[int] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All time steps; the input's part of the gates is computed for all of them before the loop.

        Args:
            x: ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            syn: cell state before the first step; None: zeros, or with ``init_hidden=True`` where the last call ended.
            mem: hidden state before the first step, likewise.
            num_steps: number of steps of a constant input.

        Returns:
            ``(spk, syn, mem)`` with time as first dimension.

        Raises:
            TypeError: a state passed with ``init_hidden=True``; ``x`` or a state is no floating tensor.
            ValueError: a shape that does not fit; the message names the argument.
        """
        if num_steps is None:
            check_input(x, 1, "[T, B, ...]")
        else:
            check_input(x, 0, "[B, ...]")
            check_num_steps(num_steps)
        step = x.shape[1:] if num_steps is None else x.shape
        self._check_step(step)
        shape = self._hidden_shape(step)
        if self.init_hidden:
            if syn is not None or mem is not None:
                raise TypeError("`mem` or `syn` should not be passed as an argument while `init_hidden=True`")
            syn, mem = (state if state.shape == shape else None for state in (self.syn, self.mem))
        for name, state in (("syn", syn), ("mem", mem)):
            if state is not None and not isinstance(state, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor or None, got {type(state).__name__}")
            if state is not None and state.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(state.shape)}")
        steps = x.shape[0] if num_steps is None else num_steps
        if steps == 0:
            raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")
        if not self.runs_fused():
            self._say_slow()
            return self._by_steps(x, syn, mem, num_steps)
        weight = self._hidden_weight()
        # Without a state the first step's product with it would give zeros; a single step's gives a gradient of zeros.
        skips = mem is None and steps > 1
        syn, mem = (weight.new_zeros(shape) if state is None else state for state in (syn, mem))
        syns, mems = self._steps(x, syn, mem, weight, num_steps, skips)
        spk = self._spikes(mems)
        if self.init_hidden:
            # A copy, so that the whole sequence's states are not kept.
            self.syn, self.mem = syns[-1].clone(), mems[-1].clone()
        return spk, syns, mems

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """What ``MultiStep`` calls: :meth:`sequence`, or its spikes where a call returns them alone."""
        out = self.sequence(x, num_steps=num_steps)
        return out[0] if self.init_hidden and not self.output else out

    def _chunks(self, x: torch.Tensor, num_steps: Optional[int], size: int) -> Iterator[torch.Tensor]:
        """The input's part of the gates of each step."""
        if num_steps is not None:
            gates = self._input_gates(x)
            for _ in range(num_steps):
                yield gates
            return
        for part in x.split(max(1, _CHUNK // max(1, size))):
            yield from self._input_gates(part.flatten(0, 1)).unflatten(0, part.shape[:2]).unbind()

    def _steps(
        self,
        x: torch.Tensor,
        syn: torch.Tensor,
        mem: torch.Tensor,
        weight: torch.Tensor,
        num_steps: Optional[int],
        skips: bool,
    ) -> States:
        syns, mems = [], []
        for gates in self._chunks(x, num_steps, 4 * syn.numel()):
            syn, mem = self._step(gates if skips else self._add_hidden(gates, mem, weight), syn, mem)
            skips = False
            syns.append(syn)
            mems.append(mem)
        return torch.stack(syns), torch.stack(mems)

    def _activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """``i, f, g, o``, which snnTorch's classes have in different order."""
        raise NotImplementedError

    def _step(self, gates: torch.Tensor, syn: torch.Tensor, mem: torch.Tensor) -> States:
        """Gates and states ``[N, 4H, ...]``, ``[N, H, ...]``: the states after the step."""
        i, f, g, o = self._activations(gates)
        syn_next = f * syn + i * g
        mem_next = o * syn_next.tanh()
        code = _STATE_FUNCTIONS.index(self.state_function.__name__)
        if code < 2:
            reset = mem.detach() - self.threshold.detach() > 0
            mem_next = mem_next - reset * self.threshold if code == 0 else mem_next.masked_fill(reset, 0)
        if self.state_quant:
            syn_next, mem_next = self.state_quant(syn_next), self.state_quant(mem_next)
        return syn_next, mem_next

    def _spikes(self, mems: torch.Tensor) -> torch.Tensor:
        if not (self.max_pool or self.avg_pool):
            return self.fire(mems)
        pool = F.max_pool2d if self.max_pool else F.avg_pool2d
        pooled = pool(mems.flatten(0, 1), self.max_pool or self.avg_pool)
        return self.fire(pooled.unflatten(0, mems.shape[:2]))

    def _by_steps(
        self, x: torch.Tensor, syn: Optional[torch.Tensor], mem: Optional[torch.Tensor], num_steps: Optional[int]
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """snnTorch's code for each step."""
        if not self.init_hidden:
            self.reset_mem()
        states: Sequence[Any] = () if self.init_hidden or (syn is None and mem is None) else (syn, mem)
        outs = []
        for current in x.unbind() if num_steps is None else [x] * num_steps:
            out = self(current, *states)
            out = out if isinstance(out, tuple) else (out, self.syn, self.mem)
            states = () if self.init_hidden else out[1:]
            outs.append(out)
        spk, syns, mems = (torch.stack(part) for part in zip(*outs))
        return spk, syns, mems

    def _say_slow(self) -> None:
        names = self._replaced()
        key = (type(self), *names)
        if names and key not in _SAID:
            _SAID.add(key)
            stock = "SLSTM" if isinstance(self, SLSTM) else "SConv2dLSTM"
            warnings.warn(
                f"{type(self).__name__} replaces {', '.join(names)} of {stock}: it runs step by step", stacklevel=4
            )

    def __getstate__(self) -> Dict[str, Any]:
        # What a forward pass left behind belongs to its autograd graph, which cannot be copied.
        state = self.__dict__.copy()
        state["_buffers"] = {**self._buffers, "syn": self.syn.detach(), "mem": self.mem.detach()}
        for name in ("spk", "reset"):
            state.pop(name, None)
        return state


class SLSTM(_SpikingLSTM, snntorch.SLSTM):
    """A spiking LSTM: ``snntorch.SLSTM`` 1.0, with :meth:`sequence`.

    Signature, ``state_dict`` and one step are snnTorch's. In a sequence the product with the input is one for all
    steps, that with the hidden state is in the loop: up to the rounding of the products, the numbers are snnTorch's.

    As in snnTorch, the states start from zeros in *every* step where ``input_size`` differs from ``hidden_size``: its
    step takes them only where they have the input's shape. A warning says so when such a layer is built.

    snnTorch's code runs for each step for a ``spike_grad`` that is none of ``snntorch.surrogate``'s with a fixed
    function, a ``state_quant`` of one's own, and where parts of the step or the cell are replaced or hooked.
    """

    lstm_cell: nn.LSTMCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        threshold: Any = 1.0,
        spike_grad: Optional[SpikeGrad] = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "none",
        state_quant: Any = False,
        output: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            bias=bias,
            threshold=threshold,
            spike_grad=_spike_function(spike_grad, reset_mechanism),
            surrogate_disable=surrogate_disable,
            init_hidden=init_hidden,
            inhibition=inhibition,
            learn_threshold=learn_threshold,
            reset_mechanism=reset_mechanism,
            state_quant=as_state_quant(state_quant),
            output=output,
        )
        if input_size != hidden_size:
            warnings.warn(
                f"SLSTM with input_size {input_size} and hidden_size {hidden_size}: as snnTorch's, it starts from "
                "zeros in every step, for its states are kept only where the two are the same",
                stacklevel=2,
            )

    def _part(self) -> nn.Module:
        return self.lstm_cell

    def _check_step(self, shape: torch.Size) -> None:
        if len(shape) != 2 or shape[1] != self.input_size:
            raise ValueError(f"x must have steps of shape [B, {self.input_size}], got {tuple(shape)}")

    def _hidden_shape(self, step: torch.Size) -> Tuple[int, ...]:
        return (step[0], self.hidden_size)

    def _input_gates(self, x: torch.Tensor) -> torch.Tensor:
        cell = self.lstm_cell
        return F.linear(x, cell.weight_ih, cell.bias_ih + cell.bias_hh if cell.bias else None)

    def _hidden_weight(self) -> torch.Tensor:
        return self.lstm_cell.weight_hh.t()

    def _add_hidden(self, gates: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addmm(gates, mem, weight)

    def _activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        size = self.hidden_size
        i, f = gates[:, : 2 * size].sigmoid().chunk(2, 1)
        return i, f, gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()

    def _steps(
        self,
        x: torch.Tensor,
        syn: torch.Tensor,
        mem: torch.Tensor,
        weight: torch.Tensor,
        num_steps: Optional[int],
        skips: bool,
    ) -> States:
        if self.input_size == self.hidden_size:
            return super()._steps(x, syn, mem, weight, num_steps, skips)
        # Every step starts from zeros: all of them are one batch.
        gates = self._input_gates(x if num_steps is not None else x.flatten(0, 1))
        zeros = gates.new_zeros(gates.shape[0], self.hidden_size)
        out = self._step(gates + zeros[:1] @ weight, zeros, zeros)
        syns, mems = (state.unflatten(0, (-1, syn.shape[0])) for state in out)
        return (syns, mems) if num_steps is None else (_held(syns, num_steps), _held(mems, num_steps))


class SConv2dLSTM(_SpikingLSTM, snntorch.SConv2dLSTM):
    """A spiking convolutional LSTM: ``snntorch.SConv2dLSTM`` 1.0, with :meth:`sequence`.

    Signature, ``state_dict`` and one step are snnTorch's. In a sequence the convolution of the input is one for all
    steps, that of the hidden state is in the loop: up to the rounding of their sum, snnTorch's one convolution of both.
    When snnTorch's code runs for each step is told at :class:`SLSTM`.
    """

    conv: nn.Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        bias: bool = True,
        max_pool: Any = 0,
        avg_pool: Any = 0,
        threshold: Any = 1.0,
        spike_grad: Optional[SpikeGrad] = None,
        surrogate_disable: bool = False,
        init_hidden: bool = False,
        inhibition: bool = False,
        learn_threshold: bool = False,
        reset_mechanism: str = "none",
        state_quant: Any = False,
        output: bool = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            bias=bias,
            max_pool=max_pool,
            avg_pool=avg_pool,
            threshold=threshold,
            spike_grad=_spike_function(spike_grad, reset_mechanism),
            surrogate_disable=surrogate_disable,
            init_hidden=init_hidden,
            inhibition=inhibition,
            learn_threshold=learn_threshold,
            reset_mechanism=reset_mechanism,
            state_quant=as_state_quant(state_quant),
            output=output,
        )

    def _part(self) -> nn.Module:
        return self.conv

    def _check_step(self, shape: torch.Size) -> None:
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ValueError(f"x must have steps of shape [B, {self.in_channels}, H, W], got {tuple(shape)}")
        if any(size % 2 == 0 for size in self.conv.kernel_size):
            raise ValueError(
                f"kernel_size must be odd, for the states keep their height and width, got {self.conv.kernel_size}"
            )

    def _hidden_shape(self, step: torch.Size) -> Tuple[int, ...]:
        return (step[0], self.out_channels, step[2], step[3])

    def _input_gates(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.conv.weight[:, : self.in_channels], self.conv.bias, padding=self.padding)

    def _hidden_weight(self) -> torch.Tensor:
        return self.conv.weight[:, self.in_channels :].contiguous()

    def _add_hidden(self, gates: torch.Tensor, mem: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gates + F.conv2d(mem, weight, padding=self.padding)

    def _activations(self, gates: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        size = 3 * self.out_channels
        i, f, o = gates[:, :size].sigmoid().chunk(3, 1)
        return i, f, gates[:, size:].tanh(), o


def _spike_function(spike_grad: Optional[SpikeGrad], reset_mechanism: str) -> Optional[SpikeGrad]:
    """Check what snnTorch does not; its surrogates as ours, which can be pickled."""
    if spike_grad is not None and not callable(spike_grad):
        raise TypeError(f"spike_grad must be callable or None, got {spike_grad!r}")
    reset_code(reset_mechanism)
    _instances.hold_weakly()
    return as_surrogate(spike_grad) or spike_grad


def _held(state: torch.Tensor, num_steps: int) -> torch.Tensor:
    return state.expand(num_steps, *state.shape[1:])
