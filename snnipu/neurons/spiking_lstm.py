"""``snnipu.SLSTM`` and ``snnipu.SConv2dLSTM``: snnTorch's spiking LSTMs, the input's part for all steps at once."""

import warnings
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import snntorch
import torch
from torch import nn

from snnipu._route import is_exporting
from snnipu.functional.quant import StateQuant
from snnipu.neurons import _instances
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.neurons._states import STATE_FUNCTIONS, PlainStates
from snnipu.ops import step_operators
from snnipu.ops._arguments import check_sequence, is_autocast, reset_code
from snnipu.ops.spiking_lstm import Cell, ConvCell, LinearCell, LSTMNeuron, spiking_lstm_sequence

_NEURON_STEP = ("fire", "mem_reset")
_CELL_STEP = ("_base_state_function", "_base_state_reset_zero", "_base_sub", "_base_zero", "_base_int")
_CALLS = ("forward", "reset_mem")
_SAID: Set[Tuple[Any, ...]] = set()


class _SpikingLSTM(PlainStates):
    """The sequence of both."""

    syn: torch.Tensor
    mem: torch.Tensor
    reset_mechanism_val: torch.Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _instances.hold_weakly()
        if "reset_mechanism" in kwargs:
            reset_code(kwargs["reset_mechanism"])
        super().__init__(*args, **kwargs)
        self._take_over()

    def _states(self) -> Tuple[str, ...]:
        return ("syn", "mem")

    def _part(self) -> nn.Module:
        """The module with the weights."""
        raise NotImplementedError

    def _cell(self) -> Cell:
        """Its weights, as the operator takes them."""
        raise NotImplementedError

    def _check_step(self, shape: torch.Size) -> None:
        raise NotImplementedError

    def _replaced(self) -> List[str]:
        """Names of what a subclass or this instance has in place of parts of the step."""
        kind, own = type(self), self.__dict__
        home = self.home
        parts = (*_NEURON_STEP, *_CELL_STEP, *_CALLS)
        if step_operators.tracing():
            step_operators.look_up(self, parts)
        names = [name for name in parts if name in own or getattr(kind, name) is not getattr(home, name)]
        function = getattr(getattr(self, "state_function", None), "__code__", None)
        if not names and not any(function is getattr(home, name).__code__ for name in STATE_FUNCTIONS):
            names.append("state_function")
        return names

    def _kernel_known(self) -> bool:
        known = self._surrogate()
        return known is not None and known.kernel is not None

    def runs_fused(self) -> bool:
        """Whether :meth:`sequence` computes the input's part for all steps at once."""
        return (
            self._has_plain_cell()
            and (not self.state_quant or isinstance(self.state_quant, StateQuant))
            and not self._replaced()
            and not is_exporting()
        )

    def _has_plain_cell(self) -> bool:
        """Whether surrogate and cell are those that the operator knows."""
        part = self._part()
        return self._kernel_known() and type(part) in (nn.LSTMCell, nn.Conv2d) and is_plain(part)

    def forward(self, input_: torch.Tensor, syn: Optional[torch.Tensor] = None, mem: Any = None) -> Any:
        """One time step, as snnTorch's ``forward``."""
        if step_operators.enabled and self._reset_in_trace():
            self.reset_mem()
        if is_exporting():
            return self._exported(super().forward, input_, syn, mem)
        made = self._step_in_graph(input_, syn, mem) if step_operators.tracing() else None
        return super().forward(input_, *self._left_to_give((syn, mem))) if made is None else made

    def _step_in_graph(self, x: torch.Tensor, syn: Any, mem: Any) -> Any:
        """The step as one node of a compiled graph; None where snnTorch's code is to be traced."""
        if (
            not isinstance(x, torch.Tensor)
            or x.dtype != torch.float32
            or (self.init_hidden and (syn is not None or mem is not None))
            or self.state_quant
            or is_autocast(x.device.type)
            or not self._has_plain_cell()
            or set(self._replaced()) - set(_CALLS)
        ):
            return None
        cell = self._cell()
        if not cell.fits(x):
            return None
        shape = cell.shape(x.shape)
        states: List[Optional[torch.Tensor]] = []
        for state in (self.syn if syn is None else syn, self.mem if mem is None else mem):
            if not isinstance(state, torch.Tensor) or (cell.restarts and state.shape == x.shape):
                return None
            fresh = cell.restarts or state.shape != shape  # zeros, as in snnTorch
            if not fresh and state.dtype != x.dtype:
                return None
            states.append(None if fresh else state)
        known = self._surrogate()
        assert known is not None
        assert known.kernel is not None
        tensors, how = cell.plain()
        spk, syn, mem = step_operators.spiking_lstm_step(
            x,
            (states[0], states[1]),
            (self.threshold, self.graded_spikes_factor, *tensors),
            known.kernel.plain(),
            (self._reset_code(), *how),
            "hooks" if is_hooked(self) else "",
        )
        self.spk, self.syn, self.mem, self.reset = spk, syn, mem, None
        return spk if self.init_hidden and not self.output else (spk, syn, mem)

    def _base_state_function(self, input_: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        if input_.dtype == torch.float64:  # snnTorch's step starts from zeros in float32: no cell of float64 takes them
            self.syn, self.mem = self.syn.to(input_.dtype), self.mem.to(input_.dtype)
        made: Tuple[torch.Tensor, torch.Tensor] = super()._base_state_function(input_)
        return made

    def sequence(
        self,
        x: torch.Tensor,
        syn: Optional[torch.Tensor] = None,
        mem: Optional[torch.Tensor] = None,
        *,
        num_steps: Optional[int] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All time steps, as one operator.

        Args:
            x: ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            syn: cell state before the first step; None: zeros, or with ``init_hidden=True`` where the last call ended.
            mem: hidden state before the first step, likewise.
            num_steps: number of steps of a constant input.

        Returns:
            ``(spk, syn, mem)`` with time as first dimension; spikes in x's dtype, where a step's are snnTorch's.

        Raises:
            TypeError: a state passed with ``init_hidden=True``; ``x`` or a state is no floating tensor.
            ValueError: a shape that does not fit; the message names the argument.
        """
        check_sequence(x, num_steps)
        step = x.shape[1:] if num_steps is None else x.shape
        self._check_step(step)
        shape = self._cell().shape(step)
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
            spk, syns, mems = self._by_steps(x, syn, mem, num_steps)
            return spk.to(x.dtype), syns, mems
        spk, syns, mems = spiking_lstm_sequence(self._cell(), self._neuron(), x, syn, mem, num_steps)
        if self.init_hidden:
            # A copy, so that the whole sequence's states are not kept.
            self.syn, self.mem = syns[-1].clone(), mems[-1].clone()
        return spk.to(x.dtype), syns, mems

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """What ``MultiStep`` calls: :meth:`sequence`, or its spikes where a call returns them alone."""
        out = self.sequence(x, num_steps=num_steps)
        return out[0] if self.init_hidden and not self.output else out

    def _neuron(self) -> LSTMNeuron:
        """What is done with the hidden state, as the operator takes it."""
        return LSTMNeuron(
            self.threshold, self.graded_spikes_factor, self._reset_code(), self.spike_grad, self.state_quant
        )

    def _reset_code(self) -> int:
        # By its code: TorchDynamo 2.9 has no name of a method.
        code = self.state_function.__code__
        return [code is getattr(type(self), name).__code__ for name in STATE_FUNCTIONS].index(True)

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
            warnings.warn(
                f"{type(self).__name__} replaces {', '.join(names)} of {self.home.__name__}: it runs step by step",
                stacklevel=4,
            )

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        for name in ("spk", "reset"):
            state.pop(name, None)
        return state


class SLSTM(_SpikingLSTM, snntorch.SLSTM):
    """A spiking LSTM: ``snntorch.SLSTM`` 1.0, with :meth:`sequence`.

    Signature, ``state_dict`` and one step are snnTorch's. In a sequence the product with the input is one for all
    steps, that with the hidden state is in the loop, and all that follows it in a step is one pass over the gates: up
    to rounding, the numbers are snnTorch's.

    As in snnTorch, the states start from zeros in *every* step where ``input_size`` differs from ``hidden_size``: its
    step takes them only where they have the input's shape. A warning says so when such a layer is built.

    snnTorch's code runs for each step for a ``spike_grad`` that is none of ``snntorch.surrogate``'s with a fixed
    function, a ``state_quant`` of one's own, and where parts of the step or the cell are replaced or hooked.
    """

    lstm_cell: nn.LSTMCell

    stock = snntorch.SLSTM

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.input_size != self.hidden_size:
            warnings.warn(
                f"SLSTM with input_size {self.input_size} and hidden_size {self.hidden_size}: as snnTorch's, it starts "
                "from zeros in every step, for its states are kept only where the two are the same",
                stacklevel=2,
            )

    def _base_zero(self, input_: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """snnTorch's, not in place: the cell's backward pass on a GPU needs the state that it gave."""
        syn, mem = self._base_state_function(input_)
        syn2, mem2 = self._base_state_reset_zero(input_)
        return syn - syn2 * self.reset, mem - mem2 * self.reset

    def _part(self) -> nn.Module:
        return self.lstm_cell

    def _check_step(self, shape: torch.Size) -> None:
        if len(shape) != 2 or shape[1] != self.input_size:
            raise ValueError(f"x must have steps of shape [B, {self.input_size}], got {tuple(shape)}")

    def _cell(self) -> Cell:
        cell = self.lstm_cell
        biases = (cell.bias_ih, cell.bias_hh) if cell.bias else (None, None)
        return LinearCell(cell.weight_ih, cell.weight_hh, *biases)


class SConv2dLSTM(_SpikingLSTM, snntorch.SConv2dLSTM):
    """A spiking convolutional LSTM: ``snntorch.SConv2dLSTM`` 1.0, with :meth:`sequence`.

    Signature, ``state_dict`` and one step are snnTorch's. In a sequence the convolution of the input is one for all
    steps, that of the hidden state is in the loop, and all that follows it in a step is one pass over the gates: up to
    rounding, snnTorch's one convolution of both.
    When snnTorch's code runs for each step is told at :class:`SLSTM`.
    """

    conv: nn.Conv2d

    stock = snntorch.SConv2dLSTM

    def _part(self) -> nn.Module:
        return self.conv

    def _check_step(self, shape: torch.Size) -> None:
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ValueError(f"x must have steps of shape [B, {self.in_channels}, H, W], got {tuple(shape)}")
        if any(size % 2 == 0 for size in self.conv.kernel_size):
            raise ValueError(
                f"kernel_size must be odd, for the states keep their height and width, got {self.conv.kernel_size}"
            )

    def _cell(self) -> Cell:
        return ConvCell(self.conv.weight, self.conv.bias, self.padding, self.max_pool, self.avg_pool)
