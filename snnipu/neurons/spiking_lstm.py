"""``snnipu.SLSTM`` and ``snnipu.SConv2dLSTM``: snnTorch's spiking LSTMs over whole sequences."""

import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import snntorch
import torch
from torch import nn

from snnipu._route import is_exporting
from snnipu.functional.quant import StateQuant
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.neurons._states import STATE_FUNCTIONS, AttributeStates
from snnipu.ops import step_operators
from snnipu.ops._arguments import check_sequence, is_autocast
from snnipu.ops.spiking_lstm import Cell, ConvCell, LinearCell, LSTMNeuron, spiking_lstm_sequence

_NEURON_STEP = ("fire", "mem_reset")
_CELL_STEP = ("_base_state_function", "_base_state_reset_zero", "_base_sub", "_base_zero", "_base_int")
_CALLS = ("forward", "reset_mem")


class _SpikingLSTM(AttributeStates):
    """The base class of both LSTMs: one step, and the sequence as one operator."""

    syn: torch.Tensor
    mem: torch.Tensor
    reset_mechanism_val: torch.Tensor

    def _states(self) -> Tuple[str, ...]:
        return ("syn", "mem")

    def _weights_module(self) -> nn.Module:
        """Return the module with the weights."""
        raise NotImplementedError

    def _cell(self) -> Cell:
        """Return the operator's form of the weights."""
        raise NotImplementedError

    def _check_step(self, shape: torch.Size) -> None:
        raise NotImplementedError

    def _replaced(self) -> List[str]:
        """Return the names of parts of the step that a subclass or this instance replaces."""
        kind, attributes = type(self), self.__dict__
        fused_class = self.fused_class
        parts = (*_NEURON_STEP, *_CELL_STEP, *_CALLS)
        if step_operators.tracing():
            step_operators.guard_methods(self, parts)
        names = [name for name in parts if name in attributes or getattr(kind, name) is not getattr(fused_class, name)]
        function = getattr(getattr(self, "state_function", None), "__code__", None)
        if not names and not any(function is getattr(fused_class, name).__code__ for name in STATE_FUNCTIONS):
            names.append("state_function")
        return names

    def _has_kernel(self) -> bool:
        surrogate = self._surrogate()
        return surrogate is not None and surrogate.kernel is not None

    def runs_fused(self) -> bool:
        """Return True if :meth:`sequence` runs as one operator."""
        return (
            self._has_plain_cell()
            and (not self.state_quant or isinstance(self.state_quant, StateQuant))
            and not self._replaced()
            and not is_exporting()
        )

    def _has_plain_cell(self) -> bool:
        """Return True if the operator supports the surrogate and the cell."""
        part = self._weights_module()
        return self._has_kernel() and type(part) in (nn.LSTMCell, nn.Conv2d) and is_plain(part)

    def forward(self, input_: torch.Tensor, syn: Optional[torch.Tensor] = None, mem: Any = None) -> Any:
        """Run one time step, as snnTorch's ``forward``.

        Args:
            input_: ``[B, input_size]``, or ``[B, in_channels, H, W]``.
            syn: cell state after the step before; None: the attribute ``syn``, or zeros if its shape does not fit.
            mem: hidden state after the step before; None: the attribute ``mem``, or zeros.

        Returns:
            ``(spk, syn, mem)``; ``spk`` alone with ``init_hidden=True`` and ``output=False``.

        Raises:
            TypeError: a state is passed although ``init_hidden=True``.
        """
        if step_operators.enabled and self._reset_in_trace():
            self.reset_mem()
        if is_exporting():
            return self._exported(super().forward, input_, syn, mem)
        result = self._step_in_graph(input_, syn, mem) if step_operators.tracing() else None
        return super().forward(input_, *self._stock_states((syn, mem))) if result is None else result

    def _step_in_graph(self, x: torch.Tensor, syn: Any, mem: Any) -> Any:
        """Call the step as one node of a compiled graph; return None if the compiler must trace snnTorch's code."""
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
        surrogate = self._surrogate()
        assert surrogate is not None
        assert surrogate.kernel is not None
        tensors, how = cell.plain()
        spk, syn, mem = step_operators.spiking_lstm_step(
            x,
            (states[0], states[1]),
            (self.threshold, self.graded_spikes_factor, *tensors),
            surrogate.kernel.plain(),
            (self._reset_code(), *how),
            "hooks" if is_hooked(self) else "",
        )
        self.spk, self.syn, self.mem, self.reset = spk, syn, mem, None
        return spk if self.init_hidden and not self.output else (spk, syn, mem)

    def _base_state_function(self, input_: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        if input_.dtype == torch.float64:  # snnTorch starts from zeros in float32, which a float64 cell rejects
            self.syn, self.mem = self.syn.to(input_.dtype), self.mem.to(input_.dtype)
        states: Tuple[torch.Tensor, torch.Tensor] = super()._base_state_function(input_)
        return states

    def sequence(
        self,
        x: torch.Tensor,
        syn: Optional[torch.Tensor] = None,
        mem: Optional[torch.Tensor] = None,
        *,
        num_steps: Optional[int] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run all time steps as one operator.

        Args:
            x: input, ``[T, B, ...]``. With ``num_steps``: ``[B, ...]``, the same input at every step.
            syn: cell state before the first step. None: zeros, or with ``init_hidden=True`` the state after the last
                call.
            mem: hidden state before the first step, as ``syn``.
            num_steps: number of steps ``T`` of a constant input; None: ``x`` has a time dimension.

        Returns:
            ``(spk, syn, mem)`` with time as first dimension; the spikes have x's dtype.

        Raises:
            TypeError: a state is passed although ``init_hidden=True``; ``x`` or a state is no floating tensor.
            ValueError: wrong shape; the message names the argument.
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
            if self._replaced():
                self._warn_replaced()
            spk, syns, mems = self._by_steps(x, syn, mem, num_steps)
            return spk.to(x.dtype), syns, mems
        spk, syns, mems = spiking_lstm_sequence(self._cell(), self._neuron(), x, syn, mem, num_steps)
        if self.init_hidden:
            # A copy, so that the whole sequence's states are not kept.
            self.syn, self.mem = syns[-1].clone(), mems[-1].clone()
        return spk.to(x.dtype), syns, mems

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """Run all steps for ``MultiStep``: return the results of :meth:`sequence`, or what a call returns of them."""
        out = self.sequence(x, num_steps=num_steps)
        return out[0] if self.init_hidden and not self.output else out

    def _neuron(self) -> LSTMNeuron:
        """Return the operator's form of threshold, reset, surrogate and quantizer."""
        return LSTMNeuron(
            self.threshold, self.graded_spikes_factor, self._reset_code(), self.spike_grad, self.state_quant
        )

    def _reset_code(self) -> int:
        # Compare code objects: TorchDynamo of PyTorch 2.9 does not support a method's name.
        code = self.state_function.__code__
        return [code is getattr(type(self), name).__code__ for name in STATE_FUNCTIONS].index(True)

    def _by_steps(
        self, x: torch.Tensor, syn: Optional[torch.Tensor], mem: Optional[torch.Tensor], num_steps: Optional[int]
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run snnTorch's code for each step."""
        if not self.init_hidden:
            self.reset_mem()
        states: Sequence[Any] = () if self.init_hidden or (syn is None and mem is None) else (syn, mem)
        results = []
        for current in x.unbind() if num_steps is None else [x] * num_steps:
            out = self(current, *states)
            out = out if isinstance(out, tuple) else (out, self.syn, self.mem)
            states = () if self.init_hidden else out[1:]
            results.append(out)
        spk, syns, mems = (torch.stack(part) for part in zip(*results))
        return spk, syns, mems

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        for name in ("spk", "reset"):
            state.pop(name, None)
        return state


class SLSTM(_SpikingLSTM, snntorch.SLSTM):
    r"""A spiking LSTM: ``snntorch.SLSTM`` 1.0, with :meth:`sequence`.

    .. math::

        i_t &= \sigma(W_{ii} x_t + b_{ii} + W_{hi} h_{t-1} + b_{hi}) \\
        f_t &= \sigma(W_{if} x_t + b_{if} + W_{hf} h_{t-1} + b_{hf}) \\
        g_t &= \tanh(W_{ig} x_t + b_{ig} + W_{hg} h_{t-1} + b_{hg}) \\
        o_t &= \sigma(W_{io} x_t + b_{io} + W_{ho} h_{t-1} + b_{ho}) \\
        c_t &= f_t c_{t-1} + i_t g_t \\
        h_t &= o_t \tanh(c_t) \\
        s_t &= H(h_t - \theta)

    :math:`c` is the cell state ``syn`` and :math:`h` the hidden state ``mem``, the membrane; :math:`s` are the spikes.
    :math:`H` is the step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.
    The reset changes the membrane alone, and carries no gradient.

    .. code-block:: python

        lstm = snn.SLSTM(128, 128)
        spk, syn, mem = lstm(x, syn, mem)  # one step: x, syn and mem are [B, 128]
        spk, syn, mem = lstm.sequence(x)   # T steps: [T, B, 128]

    As in snnTorch, the states start from zeros in *every* step if ``input_size`` differs from ``hidden_size``: snnTorch
    keeps states only if they have the input's shape. The constructor warns of it.

    In :meth:`sequence` the product with the input runs once for all steps. The product with the hidden state runs in
    the loop over time, followed by one pass over the gates. The results equal snnTorch's up to rounding. snnTorch's
    code runs for each step if ``spike_grad`` is no surrogate with a kernel, if ``state_quant`` is a custom function,
    or if parts of the step or the cell are replaced or have hooks.

    Args:
        input_size: features of the input.
        hidden_size: features of the states and the output.
        bias: if True, the cell has the two learnable biases of ``nn.LSTMCell``.
        threshold: :math:`\theta`, the hidden state above which a neuron spikes. A number, or a tensor that broadcasts
            to ``[B, hidden_size]``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the input alone and returns the
            spikes alone. If False, the caller passes the states to each step.
        inhibition: accepted as in snnTorch, whose step does not read it.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the membrane after a spike, one step later: ``"subtract"`` the threshold, set it to
            ``"zero"``, or ``"none"``, as in an LSTM.
        state_quant: function that rounds ``syn`` and ``mem`` after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.

    Attributes:
        lstm_cell: the ``nn.LSTMCell`` with the weights.
        syn, mem: the states after the last step, ``[B, hidden_size]``; no elements before the first step.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    Warns:
        UserWarning: ``input_size`` differs from ``hidden_size``.

    Source: ``snntorch.SLSTM`` 1.0; the cell is ``nn.LSTMCell``.
    """

    lstm_cell: nn.LSTMCell

    stock = snntorch.SLSTM

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.input_size != self.hidden_size:
            warnings.warn(
                f"SLSTM with input_size {self.input_size} and hidden_size {self.hidden_size}: as snnTorch's, it starts "
                "from zeros in every step, because it keeps states only if the two sizes are equal",
                stacklevel=2,
            )

    def _base_zero(self, input_: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Compute snnTorch's step out of place: on a GPU the backward pass of the cell needs its output unchanged."""
        syn, mem = self._base_state_function(input_)
        syn2, mem2 = self._base_state_reset_zero(input_)
        return syn - syn2 * self.reset, mem - mem2 * self.reset

    def _weights_module(self) -> nn.Module:
        return self.lstm_cell

    def _check_step(self, shape: torch.Size) -> None:
        if len(shape) != 2 or shape[1] != self.input_size:
            raise ValueError(f"x must have steps of shape [B, {self.input_size}], got {tuple(shape)}")

    def _cell(self) -> Cell:
        cell = self.lstm_cell
        biases = (cell.bias_ih, cell.bias_hh) if cell.bias else (None, None)
        return LinearCell(cell.weight_ih, cell.weight_hh, *biases)


class SConv2dLSTM(_SpikingLSTM, snntorch.SConv2dLSTM):
    r"""A spiking convolutional LSTM: ``snntorch.SConv2dLSTM`` 1.0, with :meth:`sequence`.

    .. math::

        (i_t, f_t, o_t, g_t) &= \text{conv}([x_t, h_{t-1}]) \\
        c_t &= \sigma(f_t) c_{t-1} + \sigma(i_t) \tanh(g_t) \\
        h_t &= \sigma(o_t) \tanh(c_t) \\
        s_t &= H(\text{pool}(h_t) - \theta)

    :math:`c` is the cell state ``syn`` and :math:`h` the hidden state ``mem``, the membrane; :math:`s` are the spikes.
    The convolution has :math:`4 C` output channels, its input the channels of :math:`x` and :math:`h`. :math:`H` is the
    step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative. The reset changes
    the membrane alone, and carries no gradient.

    .. code-block:: python

        lstm = snn.SConv2dLSTM(2, 8, 3, max_pool=2)
        spk, syn, mem = lstm(x, syn, mem)  # one step: x [B, 2, H, W], states [B, 8, H, W], spk [B, 8, H // 2, W // 2]
        spk, syn, mem = lstm.sequence(x)   # T steps: the same shapes with T in front

    In :meth:`sequence` the convolution of the input runs once for all steps. The convolution of the hidden state runs
    in the loop over time, followed by one pass over the gates. The results equal snnTorch's up to rounding.
    :class:`SLSTM` lists the cases in which snnTorch's code runs for each step.

    Args:
        in_channels: channels of the input.
        out_channels: channels ``C`` of the states and the output.
        kernel_size: an odd int, or a pair ``(height, width)`` of them; the padding keeps the size of the maps.
        bias: if True, the convolution has a learnable bias.
        max_pool: window of a maximum over the membrane before the threshold: an int or a pair; 0: none.
        avg_pool: window of an average in place of the maximum; 0: none.
        threshold: :math:`\theta`, the hidden state above which a neuron spikes. A number, or a tensor that broadcasts
            to the pooled membrane ``[B, C, H', W']``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the input alone and returns the
            spikes alone. If False, the caller passes the states to each step.
        inhibition: accepted as in snnTorch, whose step does not read it.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the membrane after a spike, one step later: ``"subtract"`` the threshold, set it to
            ``"zero"``, or ``"none"``, as in an LSTM.
        state_quant: function that rounds ``syn`` and ``mem`` after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.

    Attributes:
        conv: the ``nn.Conv2d`` with the weights.
        syn, mem: the states after the last step, ``[B, C, H, W]``; no elements before the first step.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: ``max_pool`` and ``avg_pool`` are both given; unknown ``reset_mechanism``; in :meth:`sequence`, a
            side of the kernel is even.

    Source: ``snntorch.SConv2dLSTM`` 1.0; Shi et al., "Convolutional LSTM network", NeurIPS 2015.
    """

    conv: nn.Conv2d

    stock = snntorch.SConv2dLSTM

    def _weights_module(self) -> nn.Module:
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
