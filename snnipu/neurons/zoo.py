"""snnTorch's neurons other than ``Leaky`` as fused operators; :class:`~snnipu.neurons.fused.FusedNeuron` runs them."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import snntorch
import torch
from snntorch._neurons import rleaky, rsynaptic
from torch import nn

from snnipu._layout import SINGLE_STEP
from snnipu._names.stock import stock
from snnipu.backends import popart
from snnipu.backends.neuron_step import shared_one
from snnipu.neurons._hooks import is_plain
from snnipu.neurons.fused import FusedNeuron, StepDescription
from snnipu.ops import step_operators
from snnipu.ops._arguments import is_autocast
from snnipu.ops.neuron_sequence import Results
from snnipu.ops.recurrent_sequence import STRENGTH, RecurrentConnection

_ONE_TO_ONE = (rleaky.RecurrentOneToOne, rsynaptic.RecurrentOneToOne)


class Synaptic(FusedNeuron, snntorch.Synaptic):
    r"""Leaky integrate-and-fire neurons of second order: ``snntorch.Synaptic`` 1.0 as a fused operator.

    A synaptic current, which decays by itself, feeds the membrane.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        i_t &= \alpha i_{t-1} + x_t \\
        v_t &= \beta u_{t-1} + i_t \\
        u_t &= v_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= (1 - r_t) v_t \quad \text{(zero)} \\
        u_t &= v_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`x` is the input current, :math:`i` the synaptic current ``syn``, :math:`u` the membrane ``mem``, :math:`s`
    the spikes, :math:`r` the reset, which carries no gradient. :math:`H` is the step function with :math:`H(0) = 0`; in
    the backward pass the surrogate replaces its derivative.

    .. code-block:: python

        neurons = snn.Synaptic(alpha=0.9, beta=0.8)
        spk, syn, mem = neurons(x, syn, mem)  # one step: x, syn and mem are [B, ...]
        spk, syn, mem = neurons.sequence(x)   # T steps as one operator: [T, B, ...]

    Args:
        alpha: :math:`\alpha`, the decay of the synaptic current per step. The step clamps it to [0, 1]. A number, or a
            tensor that broadcasts to one step ``[B, ...]``: one element for all neurons, or one for each neuron.
        beta: :math:`\beta`, the decay of the membrane per step; as ``alpha``.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes the states to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_alpha: if True, ``alpha`` is an ``nn.Parameter``, otherwise a buffer.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the membrane after a spike: ``"subtract"`` the threshold, set it to ``"zero"``, or
            ``"none"``. The attribute may be set at any time.
        state_quant: function that rounds ``syn`` and ``mem`` after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.
        reset_delay: if True, the reset follows one step after its spike, as in the equations. If False, the membrane is
            reset in the step of the spike.

    Attributes:
        syn, mem: the states after the last step, ``[B, ...]``; no elements before the first step.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    :class:`Leaky` lists the cases in which snnTorch's code runs instead of the fused operator, and the differences from
    snnTorch.

    Source: ``snntorch.Synaptic`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """

    equation, options, stock = "synaptic", ("reset_mechanism", "reset_delay"), snntorch.Synaptic


class Alpha(FusedNeuron, snntorch.Alpha):
    r"""Neurons whose membrane follows an alpha function: ``snntorch.Alpha`` 1.0 as a fused operator.

    The membrane is a multiple of the sum of an excitatory and an inhibitory current, so that it peaks after its input.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        e_t &= \alpha e_{t-1} + x_t \\
        h_t &= \beta h_{t-1} - x_t \\
        u_t &= \tau (e_t + h_t), \quad \tau = \frac{\ln \alpha}{\ln \beta - \ln \alpha} + 1 \\
        s_t &= H(u_t - \theta)

    :math:`x` is the input current, :math:`e` the excitatory current ``syn_exc``, :math:`h` the inhibitory current
    ``syn_inh``, :math:`u` the membrane ``mem``, :math:`s` the spikes, :math:`r` the reset, which carries no gradient.
    Where :math:`r_t = 1`, ``"zero"`` sets :math:`e_t`, :math:`h_t` and :math:`u_t` to 0. ``"subtract"`` is snnTorch's:
    :math:`e_t - \theta`, :math:`h_t = 0` and :math:`u_t + h_{t-1}`. :math:`H` is the step function with
    :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.

    .. code-block:: python

        neurons = snn.Alpha(alpha=0.9, beta=0.8)
        spk, syn_exc, syn_inh, mem = neurons(x, syn_exc, syn_inh, mem)  # one step: x and the states are [B, ...]
        spk, syn_exc, syn_inh, mem = neurons.sequence(x)                # T steps as one operator: [T, B, ...]

    Args:
        alpha: :math:`\alpha`, the decay of the excitatory current per step, larger than ``beta`` if positive currents
            shall raise the membrane. The step clamps it to [0, 1]. A number, or a tensor that broadcasts to one step
            ``[B, ...]``: one element for all neurons, or one for each neuron.
        beta: :math:`\beta`, the decay of the inhibitory current per step; as ``alpha``.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes the states to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_alpha: if True, ``alpha`` is an ``nn.Parameter``, otherwise a buffer.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the states after a spike: ``"subtract"``, ``"zero"`` or ``"none"``, as above. The
            attribute may be set at any time.
        state_quant: function that rounds the three states after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.

    Attributes:
        syn_exc, syn_inh, mem: the states after the last step, ``[B, ...]``; no elements before the first step.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    :class:`Leaky` lists the cases in which snnTorch's code runs instead of the fused operator, and the differences from
    snnTorch.

    Source: ``snntorch.Alpha`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """

    equation, stock, has_long_step = "alpha", snntorch.Alpha, True


class Lapicque(FusedNeuron, snntorch.Lapicque):
    r"""Integrate-and-fire neurons of an RC circuit: ``snntorch.Lapicque`` 1.0 as a fused operator.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        v_t &= \frac{\Delta t}{C} x_t + \left(1 - \frac{\Delta t}{R C}\right) u_{t-1} \\
        u_t &= v_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= (1 - r_t) v_t \quad \text{(zero)} \\
        u_t &= v_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`x` is the input current, :math:`u` the membrane ``mem``, :math:`s` the spikes, :math:`r` the reset, which
    carries no gradient. :math:`H` is the step function with :math:`H(0) = 0`; in the backward pass the surrogate
    replaces its derivative.

    .. code-block:: python

        neurons = snn.Lapicque(R=1, C=1.44)
        spk, mem = neurons(x, mem)       # one step: x, spk and mem are [B, ...]
        spk, mem = neurons.sequence(x)   # T steps as one operator: x, spk and mem are [T, B, ...]

    ``R`` and ``C`` are fixed at construction. Give ``beta`` alone, ``beta`` with one of ``R`` and ``C``, or ``R`` and
    ``C``: the rest follows from :math:`\beta = e^{-\Delta t / R C}`, with :math:`R = 1` if ``beta`` is alone.

    Args:
        beta: :math:`\beta`, between 0 and 1: a number, or a tensor of one element. False: computed from ``R`` and
            ``C``.
        R: resistance :math:`R` of the circuit; a number or a tensor, as ``beta``. False: computed.
        C: capacitance :math:`C` of the circuit; a number or a tensor, as ``beta``. False: computed.
        time_step: length :math:`\Delta t` of a time step, in the unit of :math:`R C`.
        threshold: :math:`\theta`, the membrane above which a neuron spikes. A number, or a tensor that broadcasts to
            one step ``[B, ...]``: one element for all neurons, or one for each neuron.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes the states to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer. The step reads ``R`` and ``C`` alone:
            use :class:`Leaky` to train a decay.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        reset_mechanism: change of the membrane after a spike: ``"subtract"`` the threshold, set it to ``"zero"``, or
            ``"none"``. The attribute may be set at any time.
        state_quant: function that rounds the membrane after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.

    Attributes:
        mem: the membrane after the last step, ``[B, ...]``; no elements before the first step.

    Raises:
        TypeError: ``spike_grad`` is not callable.
        ValueError: neither ``beta`` nor both ``R`` and ``C`` are given; unknown ``reset_mechanism``.

    :class:`Leaky` lists the cases in which snnTorch's code runs instead of the fused operator, and the differences from
    snnTorch.

    Source: ``snntorch.Lapicque`` 1.0; Lapicque, "Recherches quantitatives sur l'excitation électrique des nerfs traitée
    comme une polarisation", J. Physiol. Pathol. Gen. 9, 1907.
    """

    equation, stock = "lapicque", snntorch.Lapicque


class _Recurrent(FusedNeuron):
    """Neurons that receive their own spikes.

    With one-to-one connections the sequence is one fused operator. With a recurrent ``nn.Linear`` or ``nn.Conv2d``
    (all-to-all), a loop over time alternates the product and the fused step.
    """

    all_to_all: bool
    spk: Any

    def _base_state_function(self, input_: torch.Tensor) -> Any:
        if self.all_to_all and input_.dtype == torch.float64:  # snnTorch's spikes are float32
            self.spk = self.spk.to(input_.dtype)
        return super()._base_state_function(input_)

    def _fuses(self) -> bool:
        return super()._fuses() and self._recurs()

    def _recurs(self) -> bool:
        """Return True if kernels support the recurrent layer."""
        recurrent = self._modules.get("recurrent")
        if recurrent is None or not is_plain(recurrent):
            return False
        if type(recurrent) in _ONE_TO_ONE:
            strength = getattr(recurrent, STRENGTH)
            if self.all_to_all or not isinstance(strength, torch.Tensor):
                return False
            return strength.dim() == 0 or strength.device == self.threshold.device
        if not self.all_to_all or popart.on_ipu_model() or popart.on_real_ipu():
            return False
        return self._connection() is not None and not is_autocast(self.threshold.device.type)

    def _direct_step(self, description: StepDescription, x: Any, passed: Sequence[Any]) -> Any:
        return super()._direct_step(description, x, passed) if self._recurs() else None

    def _kernel_states(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]]
    ) -> Sequence[Optional[torch.Tensor]]:
        if not self.all_to_all:
            return states
        spk = states[0]
        return [self.recurrent(torch.zeros_like(x) if spk is None else spk.to(x.dtype)), *states[1:]]

    def _step_values(self, x: torch.Tensor) -> Dict[str, Any]:
        values = self._values()
        return {**values, STRENGTH: shared_one(x.dtype, x.device)} if self.all_to_all else values

    def _connection(self) -> Optional[RecurrentConnection]:
        """Return the recurrent layer as the kernels' connection; None if they do not support it."""
        layer = self._modules["recurrent"]
        if type(layer) is nn.Linear:
            return RecurrentConnection(layer.weight, layer.bias)
        if (
            type(layer) is not nn.Conv2d
            or layer.padding_mode != "zeros"
            or isinstance(layer.padding, str)
            or tuple(layer.stride) != (1, 1)
        ):
            return None
        return RecurrentConnection(layer.weight, layer.bias, (*layer.padding, *layer.dilation, layer.groups))

    def _values(self) -> Dict[str, Any]:
        # snnTorch reads V of the recurrent module, which differs from the layer's V after a move or cast if V is fixed.
        return {
            name: getattr(self._modules["recurrent"] if name == STRENGTH else self, name)
            for name in self._parameters_of_equation()
            if not (self.all_to_all and name == STRENGTH)
        }

    def _step_operator(self) -> Tuple[Any, Sequence[Any], Sequence[Any]]:
        connection = self._connection() if self.all_to_all else None
        if connection is None:
            return super()._step_operator()
        return step_operators.recurrent_step, (connection.weight, connection.bias), (tuple(connection.geometry),)

    def _kernels(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], **how: Any) -> Results:
        if self.all_to_all and how.get("num_steps") != SINGLE_STEP:
            how["connection"] = self._connection()
        return super()._kernels(x, states, **how)


class RLeaky(_Recurrent, snntorch.RLeaky):
    r""":class:`Leaky` neurons that also receive their spikes of the step before: ``snntorch.RLeaky`` 1.0, fused.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        v_t &= \beta u_{t-1} + x_t + V(s_{t-1}) \\
        u_t &= v_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= (1 - r_t) v_t \quad \text{(zero)} \\
        u_t &= v_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`x` is the input current, :math:`u` the membrane ``mem``, :math:`s` the spikes ``spk``, :math:`V` the
    recurrent connection, :math:`r` the reset, which carries no gradient. :math:`H` is the step function with
    :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.

    .. code-block:: python

        neurons = snn.RLeaky(beta=0.9, linear_features=100)
        spk, mem = neurons(x, spk, mem)  # one step: x, spk and mem are [B, 100]
        spk, mem = neurons.sequence(x)   # T steps: x, spk and mem are [T, B, 100]

    Args:
        beta: :math:`\beta`, the decay of the membrane per step. The step clamps it to [0, 1]. A number, or a tensor
            that broadcasts to one step ``[B, ...]``: one element for all neurons, or one for each neuron.
        V: :math:`V`, the strength of each neuron's connection to itself if ``all_to_all=False``; a number or a tensor,
            as ``beta``.
        all_to_all: if True, :math:`V` is a linear or a convolutional layer, the attribute ``recurrent``. If False,
            :math:`V` multiplies each neuron's own spike.
        linear_features: neurons ``N`` of the layer: :math:`V` is ``nn.Linear(N, N)``, and inputs are ``[B, N]``. For
            ``all_to_all=True``; None: convolutional.
        conv2d_channels: channels ``C`` of the layer: :math:`V` is ``nn.Conv2d(C, C, kernel_size)``, and inputs are
            ``[B, C, H, W]``. For ``all_to_all=True``; None: linear.
        kernel_size: size of the kernel for ``conv2d_channels``, an int or ``(height, width)``, padded so that maps keep
            their size.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes the states to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        learn_recurrent: if True, ``V``, or weight and bias of the layer ``recurrent``, are learnt.
        reset_mechanism: change of the membrane after a spike: ``"subtract"`` the threshold, set it to ``"zero"``, or
            ``"none"``. The attribute may be set at any time.
        state_quant: function that rounds the membrane after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.
        reset_delay: if True, the reset follows one step after its spike, as in the equations. If False, the membrane is
            reset in the step of the spike.

    Attributes:
        spk, mem: the states after the last step, ``[B, ...]``; no elements before the first step.
        recurrent: the module that computes :math:`V`.

    Raises:
        TypeError: ``linear_features``, ``conv2d_channels`` and ``kernel_size`` do not fit ``all_to_all``;
            ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    If :math:`V` multiplies each neuron's own spike, the sequence is one fused operator. If :math:`V` is a layer, a loop
    over time alternates its product and the fused step.
    :class:`Leaky` lists the cases in which snnTorch's code runs instead of the fused operator, and the differences from
    snnTorch.

    Source: ``snntorch.RLeaky`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """

    equation, options, stock = "rleaky", ("reset_mechanism", "reset_delay"), snntorch.RLeaky


class RSynaptic(_Recurrent, snntorch.RSynaptic):
    r""":class:`Synaptic` neurons that also receive their spikes of the step before: ``snntorch.RSynaptic`` 1.0, fused.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        i_t &= \alpha i_{t-1} + x_t + V(s_{t-1}) \\
        v_t &= \beta u_{t-1} + i_t \\
        u_t &= v_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= (1 - r_t) v_t \quad \text{(zero)} \\
        u_t &= v_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`x` is the input current, :math:`i` the synaptic current ``syn``, :math:`u` the membrane ``mem``, :math:`s`
    the spikes ``spk``, :math:`V` the recurrent connection, :math:`r` the reset, which carries no gradient. :math:`H` is
    the step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.

    .. code-block:: python

        neurons = snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=100)
        spk, syn, mem = neurons(x, spk, syn, mem)  # one step: x and the states are [B, 100]
        spk, syn, mem = neurons.sequence(x)        # T steps: [T, B, 100]

    Args:
        alpha: :math:`\alpha`, the decay of the synaptic current per step. The step clamps it to [0, 1]. A number, or a
            tensor that broadcasts to one step ``[B, ...]``: one element for all neurons, or one for each neuron.
        beta: :math:`\beta`, the decay of the membrane per step; as ``alpha``.
        V: :math:`V`, the strength of each neuron's connection to itself if ``all_to_all=False``; a number or a tensor,
            as ``beta``.
        all_to_all: if True, :math:`V` is a linear or a convolutional layer, the attribute ``recurrent``. If False,
            :math:`V` multiplies each neuron's own spike.
        linear_features: neurons ``N`` of the layer: :math:`V` is ``nn.Linear(N, N)``, and inputs are ``[B, N]``. For
            ``all_to_all=True``; None: convolutional.
        conv2d_channels: channels ``C`` of the layer: :math:`V` is ``nn.Conv2d(C, C, kernel_size)``, and inputs are
            ``[B, C, H, W]``. For ``all_to_all=True``; None: linear.
        kernel_size: size of the kernel for ``conv2d_channels``, an int or ``(height, width)``, padded so that maps keep
            their size.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``mem - threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call: a call takes the current alone and returns
            the spikes alone. If False, the caller passes the states to each step.
        inhibition: if True, at most one neuron of each sample spikes: the neuron with the largest
            ``mem - threshold``. Inputs are then ``[B, N]``.
        learn_alpha: if True, ``alpha`` is an ``nn.Parameter``, otherwise a buffer.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        learn_recurrent: if True, ``V``, or weight and bias of the layer ``recurrent``, are learnt.
        reset_mechanism: change of the membrane after a spike: ``"subtract"`` the threshold, set it to ``"zero"``, or
            ``"none"``. The attribute may be set at any time.
        state_quant: function that rounds ``syn`` and ``mem`` after each step, such as
            :func:`snnipu.functional.quant.state_quant` returns; False: no rounding.
        output: if True, calls return the states also with ``init_hidden=True``.
        reset_delay: without effect, as in snnTorch 1.0: the reset follows one step after its spike.

    Attributes:
        spk, syn, mem: the states after the last step, ``[B, ...]``; no elements before the first step.
        recurrent: the module that computes :math:`V`.

    Raises:
        TypeError: ``linear_features``, ``conv2d_channels`` and ``kernel_size`` do not fit ``all_to_all``;
            ``spike_grad`` is not callable.
        ValueError: unknown ``reset_mechanism``.

    If :math:`V` multiplies each neuron's own spike, the sequence is one fused operator. If :math:`V` is a layer, a loop
    over time alternates its product and the fused step.
    :class:`Leaky` lists the cases in which snnTorch's code runs instead of the fused operator, and the differences from
    snnTorch.

    Source: ``snntorch.RSynaptic`` 1.0; Eshraghian et al., "Training spiking neural networks using lessons from deep
    learning", Proc. IEEE 2023.
    """

    equation, stock = "rsynaptic", snntorch.RSynaptic

    def _reset_hidden(self) -> None:
        spk = self.spk
        super()._reset_hidden()
        self.spk = spk  # snnTorch's reset_hidden keeps the spikes


_DeltaLeaky: Any = stock("DeltaLeaky")


class DeltaLeaky(FusedNeuron, _DeltaLeaky):
    r"""Neurons that spike if their membrane changes by more than a threshold: ``snntorch.DeltaLeaky`` 1.0, fused.

    .. math::

        u_t &= \beta u_{t-1} + x_t \\
        s_t &= H(|u_t - u_{t-1}| - \delta)

    :math:`x` is the input current, :math:`u` the membrane, :math:`s` the spikes. There is no reset. :math:`H` is the
    step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.

    .. code-block:: python

        neurons = snn.DeltaLeaky(delta_threshold=0.5, beta=0.9)
        spk, (mem, mem_prev) = neurons(x, (mem, mem_prev))  # one step: x and the states are [B, ...]
        spk, mem, mem_prev = neurons.sequence(x)            # T steps as one operator: [T, B, ...]

    Args:
        delta_threshold: :math:`\delta`, the change of the membrane in one step above which a neuron spikes; a number.
        beta: :math:`\beta`, the decay of the membrane per step, not clamped. A number, or a tensor that broadcasts to
            one step ``[B, ...]``.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes ``abs(mem - mem_prev) - delta_threshold`` and returns the spikes. None: ``atan()``.
        surrogate_disable: if True, spikes carry no gradient, and ``spike_grad`` is ignored.
        init_hidden: if True, the layer keeps its states from call to call, and a call takes the current alone. If
            False, the caller passes the pair ``(mem, mem_prev)`` to each step; None in the pair: zeros.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        threshold, inhibition, learn_threshold, reset_mechanism, state_quant, output: accepted as by :class:`Leaky`;
            the step does not read them.
        graded_spikes_factor, learn_graded_spikes_factor, reset_delay: accepted as by :class:`Leaky`, and not read.

    Attributes:
        mem: the membrane after the last step, ``[B, ...]``; None before the first step.
        mem_prev: the membrane after the step before it; None before the first step.

    Raises:
        NotImplementedError: the installed snnTorch is older than 1.0.
        TypeError: ``spike_grad`` is not callable.

    Source: ``snntorch.DeltaLeaky`` 1.0.
    """

    equation, options, stock = "delta_leaky", (), _DeltaLeaky
    parts = ()

    def _hidden(self, step_shape: torch.Size) -> List[Optional[torch.Tensor]]:
        # No step reads mem_prev, and detach_hidden detaches mem alone: mem_prev must not keep the earlier graph.
        mem, mem_prev = super()._hidden(step_shape)
        return [mem, None if mem_prev is None else mem_prev.detach()]

    def _call(self, x: torch.Tensor, states: List[Any]) -> Any:
        spk, pair = self.forward(x) if self.init_hidden else self.forward(x, tuple(states))
        return (spk, *pair)

    def _returns_states(self) -> bool:
        return True

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        return _paired(super().over_time(x, num_steps=num_steps, need_mem=need_mem))

    def resume(
        self, x: torch.Tensor, states: Optional[Any], *, num_steps: Optional[int] = None, need_mem: bool = True
    ) -> Tuple[Any, Any]:
        out, final = super().resume(x, states, num_steps=num_steps, need_mem=need_mem)
        return _paired(out), final

    def forward(self, input_: torch.Tensor, mem: Any = None) -> Tuple[torch.Tensor, Any]:
        """Run one time step, as snnTorch's ``forward``.

        Args:
            input_: current, ``[B, ...]``.
            mem: the pair ``(mem, mem_prev)``, each ``[B, ...]`` or None for zeros; None with ``init_hidden=True``.

        Returns:
            ``(spk, (mem, mem_prev))``, each ``[B, ...]``.

        Raises:
            TypeError: ``mem`` is None although ``init_hidden=False``.
        """
        return _DeltaLeaky.forward(self, input_, mem)


def _paired(out: Any) -> Any:
    """Return ``(spk, (mem, mem_prev))``, the form of a step's results."""
    return (out[0], tuple(out[1:])) if isinstance(out, tuple) else out
