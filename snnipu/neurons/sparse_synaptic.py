"""``snnipu.SparseSynaptic`` and ``SparseConvSynaptic``: event-driven layers of neurons with a synaptic current."""

import math
from contextlib import nullcontext
from typing import Any, Mapping, Optional, Union

import torch

from snnipu import _route
from snnipu.neurons.sparse_conv import ConvolutionalNeurons
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons, Parameter, SparseNeurons
from snnipu.neurons.sparse_linear import check_path
from snnipu.neurons.zoo import Synaptic
from snnipu.ops import eventprop
from snnipu.ops._arguments import compute_dtype, is_autocast, is_compiling
from snnipu.ops._maps import Pair
from snnipu.ops.connections import Connection, Convolution2d, FullyConnected
from snnipu.ops.delay_linear import within_steps
from snnipu.ops.neuron_sequence import Results
from snnipu.ops.recurrent_sequence import RecurrentConnection
from snnipu.ops.sparse_conv2d import conv_argument
from snnipu.spikes import DenseOrSparse, SparseSpikes
from snnipu.surrogate import SpikeGrad


class SynapticNeurons(SparseNeurons):
    """The base class of event-driven layers of neurons with a synaptic current: by a surrogate, or by EventProp."""

    neuron = Synaptic

    alpha: torch.Tensor

    def _set_synaptic(self, options: Mapping[str, Any]) -> None:
        """Take the neurons' parameters and options, and the kind of gradient, from the constructor's arguments."""
        self.gradient = options["gradient"]
        if self.gradient not in ("surrogate", "eventprop"):
            raise ValueError(f"gradient must be 'surrogate' or 'eventprop', got {self.gradient!r}")
        if self.gradient == "surrogate":
            self._set_neurons(options)
            return
        check_path(options["path"])
        _check_eventprop(options)
        self._set_neurons({**options, "path": "sparse"})
        self.grad_threshold = math.inf  # only spikes have slots
        self._check_event_neurons()

    def _connected(self, x: SparseSpikes) -> Connection:
        """Return the layer's connection for the input ``x``, differentiable, in the dtype of the computation."""
        raise NotImplementedError

    def _check_event_neurons(self) -> None:
        """Raise an error where EventProp does not run; attributes may have changed since the layer was made."""
        if _route.on_ipu():
            raise RuntimeError(
                f'{type(self).__name__} with gradient="eventprop" does not run on an IPU: use "surrogate"'
            )
        if self.max_spikes is not None:
            raise ValueError(f'max_spikes must be None with gradient="eventprop", got {self.max_spikes}')
        if self.path != "sparse":
            raise ValueError(f"path must be 'sparse' with gradient=\"eventprop\", got {self.path!r}")
        if self.reset_mechanism == "none":
            raise ValueError("reset_mechanism must not be 'none' with gradient=\"eventprop\"")
        for name, most in (("alpha", 1.0), ("beta", 1.0), ("threshold", math.inf)):
            value = getattr(self, name)
            if value.requires_grad:
                raise ValueError(f'{name} must not require a gradient with gradient="eventprop"')
            if not is_compiling() and not bool(((value > 0) & (value <= most)).all()):
                above = "above 0" if most > 1 else "above 0 and at most 1"
                raise ValueError(f'{name} must be {above} with gradient="eventprop", got {value.tolist()}')

    def _event_layer(self, x: DenseOrSparse, delay: int) -> eventprop.EventLayer:
        self._check_event_neurons()
        assert isinstance(x, SparseSpikes)
        connected, dtype = self._connected(x), compute_dtype(self.weight.dtype)
        each = (connected.per_neuron(value.to(dtype)) for value in (self.alpha, self.beta, self.threshold))
        neurons = eventprop.Neurons._make((*each, self.reset_mechanism == "zero"))
        bias, recurrent_weight = (
            None if each is None else each.to(dtype) for each in (self.bias, getattr(self, "recurrent_weight", None))
        )
        return eventprop.EventLayer(x, connected, bias, recurrent_weight, neurons, self.input_scale, delay)

    def _spikes(self, x: DenseOrSparse, delay: int) -> SparseSpikes:
        if self.gradient == "surrogate":
            return super()._spikes(x, delay)
        layer = self._event_layer(x, delay)
        with torch.no_grad():
            mem = super()._membranes(x, delay)
            spikes = self.selected(mem)
        return eventprop.spikes_with_times(layer, mem.flatten(2), spikes)

    def _membranes(self, x: DenseOrSparse, delay: int) -> torch.Tensor:
        if self.gradient == "surrogate" or not torch.is_grad_enabled():
            return super()._membranes(x, delay)
        layer = self._event_layer(x, delay)
        with torch.no_grad():
            mem = super()._membranes(x, delay)
        return eventprop.membranes_with_gradient(layer, mem.flatten(2)).reshape(mem.shape)

    def _repr_of_neurons(self) -> str:
        if self.gradient == "surrogate":
            return super()._repr_of_neurons()
        return super()._repr_of_neurons().replace(", grad_threshold=inf", "") + f", gradient={self.gradient!r}"


class SparseSynaptic(SynapticNeurons, FullyConnectedNeurons):
    r"""``nn.Linear`` and leaky integrate-and-fire neurons of second order as an event-driven layer.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        i_t &= \alpha i_{t-1} + c (W s^{in}_t + W^{rec} s_{t-1}) + b \\
        v_t &= \beta u_{t-1} + i_t \\
        u_t &= (1 - r_t) v_t \quad \text{(zero)} \\
        u_t &= v_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= v_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`s^{in}` are the spikes of the input, :math:`i` the synaptic current, :math:`u` the membrane, :math:`s` the
    spikes of the layer, :math:`r` the reset, which carries no gradient. :math:`W^{rec}` is 0 unless ``recurrent``.
    :math:`H` is the step function with :math:`H(0) = 0`; in the backward pass the surrogate replaces its derivative.

    The product reads the weights of spikes alone. The neurons run as one fused operator over all steps. A neuron
    carries gradient if its membrane is above ``grad_threshold``. With ``max_spikes=None`` and ``grad_threshold=None``
    the layer equals ``nn.Linear`` followed by ``Synaptic``, up to the order of additions.

    .. code-block:: python

        layer = snn.SparseSynaptic(700, 128, alpha=0.9, beta=0.95, grad_threshold=0.9)
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 700] -> SparseSpikes of 128 neurons

    Args:
        in_features: neurons of the input.
        out_features: neurons of the layer.
        alpha: :math:`\alpha`, the decay of the synaptic current per step, clamped to [0, 1]: a number, or a tensor of
            one element or ``[out]``.
        beta: :math:`\beta`, the decay of the membrane per step; as ``alpha``.
        threshold: :math:`\theta`, the membrane above which a neuron spikes; a number or a tensor, as ``beta``.
        grad_threshold: second threshold, below ``threshold``: a neuron whose membrane is above it carries gradient.
            None: every neuron carries gradient. The attribute may be set at any time, for example by a schedule.
        max_spikes: slots of a step, for spikes and gradient-only neurons together; None: as many as needed. The
            attribute may be set at any time.
        reset_mechanism: change of the membrane in the step after a spike: ``"zero"`` sets it to 0, ``"subtract"``
            subtracts the threshold, ``"none"`` keeps it.
        spike_grad: surrogate gradient of the spikes, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            of ``mem - threshold`` whose gradient is used. None: ``atan()``.
        bias: if True, a learnable bias is added to the current.
        learn_alpha: if True, ``alpha`` is an ``nn.Parameter``, otherwise a buffer.
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        input_scale: :math:`c`, a factor of the weighted spikes, not 0. It also scales ``recurrent_weight``.
        overflow: which neurons get a slot if there are too few: ``"lowest"`` ids first, or ``"rotate"``, where the
            first id moves with the time step. :func:`snnipu.ops.select_spikes` defines both.
        recurrent: if True, the layer also receives its spikes of the step before, through ``recurrent_weight``. The
            forward pass then computes a dense product of all neurons in each step, as :class:`RSynaptic` does.
            ``max_spikes`` and ``grad_threshold`` must be None.
        path: ``"sparse"``: products of spikes; ``"dense"``: one matrix product over all time steps; ``"auto"``: the
            faster one at the measured activity of the input. Results are equal up to the order of additions. On CUDA,
            ``"auto"`` reads the activity a few calls earlier and keeps dense inputs dense. With delays there is no
            dense product of spikes.
        max_delay: the longest delay of a synapse, in time steps; None: no delays.
        delay: delays of the synapses in time steps: a number, or a tensor ``[out, in]``, ``[1, in]`` or ``[out, 1]``;
            see :class:`DelayLinear`. None: drawn uniformly from [0, ``max_delay``].
        learn_delay: if True, ``delay`` is an ``nn.Parameter``, otherwise a buffer.
        gradient: ``"surrogate"``, or ``"eventprop"``: the exact gradient of spike times in the limit of short steps,
            at a cost that follows the spikes. The spikes are the same. A loss reads
            :func:`snnipu.functional.first_spike_times` or the membranes of a layer that does not spike. It refuses
            ``grad_threshold``, ``max_spikes``, ``spike_grad``, learnt decays and thresholds,
            ``reset_mechanism="none"`` and ``path="dense"``. Learnt delays have the exact gradient, too.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``, or None.
        recurrent_weight: ``[out, out]``, or None.
        delay: the delays in time steps, if ``max_delay`` is given.
        activity: mean spikes per neuron and step of the last forward pass, from 0 to 1; None before the first.
        overflow: spikes without a slot in the last forward pass; None before the first.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: ``snntorch.Synaptic`` 1.0; Gruen et al., arXiv 2311.04386, 2023, for the two thresholds; Wunderlich & Pehle,
    Scientific Reports 11, 2021, for EventProp; Meszaros et al., arXiv 2501.07331, 2025, for its delays.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        alpha: Parameter,
        beta: Parameter,
        threshold: Parameter = 1.0,
        grad_threshold: Optional[float] = None,
        max_spikes: Optional[int] = None,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_alpha: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: float = 1.0,
        overflow: str = "lowest",
        recurrent: bool = False,
        path: str = "auto",
        max_delay: Optional[int] = None,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
        gradient: str = "surrogate",
    ) -> None:
        super().__init__()
        self._set_features(in_features, out_features, bias, max_delay, delay, learn_delay, recurrent, spike_grad)
        self._set_synaptic(locals())
        self._check_recurrent()

    def _check_recurrent(self) -> None:
        """Raise an error for options that the product of all neurons lacks; attributes may change at any time."""
        if self.recurrent_weight is None:
            return
        if _route.on_ipu():
            raise RuntimeError("SparseSynaptic with recurrent=True does not run on an IPU")
        for name in ("max_spikes", "grad_threshold"):
            value = getattr(self, name)
            if value not in (None, math.inf):  # with EventProp, grad_threshold is infinite
                raise ValueError(f"{name} must be None with recurrent=True, got {value}")

    def _run_neurons(
        self, equation: str, current: torch.Tensor, before: Any, parameters: Any, **options: Any
    ) -> Results:
        weight = self.recurrent_weight
        if weight is None:
            return super()._run_neurons(equation, current, before, parameters, **options)
        self._check_recurrent()
        spikes = [None] * (3 - len(before))
        options.update(spike_grad=self.spike_grad, store=[False, *options["store"]])
        kind = current.device.type
        autocasts = kind in ("cpu", "cuda") and is_autocast(kind)
        with torch.autocast(kind, enabled=False) if autocasts else nullcontext():
            connection = RecurrentConnection((weight * self.input_scale).to(current.dtype), None)
            before = [*spikes, *before]
            return super()._run_neurons(equation, current, before, parameters, connection=connection, **options)

    def _connected(self, x: SparseSpikes) -> Connection:
        if self.max_delay is not None:
            return within_steps(self._delayed_connection(), x.num_steps)
        return FullyConnected(self.weight.to(compute_dtype(self.weight.dtype)))


class SparseConvSynaptic(SynapticNeurons, ConvolutionalNeurons):
    r"""``nn.Conv2d`` and leaky integrate-and-fire neurons of second order as one event-driven layer.

    The equations are those of :class:`SparseSynaptic`, with the convolution :math:`W * s^{in}_t` in place of the
    product. The neuron at row :math:`y`, column :math:`x` of channel :math:`c` has the id ``(c * H + y) * W + x``.

    .. code-block:: python

        layer = snn.SparseConvSynaptic(2, 12, 5, input_size=(34, 34), alpha=0.9, beta=0.95, gradient="eventprop")
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 2, 34, 34] -> SparseSpikes

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, input_size: the convolution, as in
            :class:`SparseConvLeaky`.
        alpha, beta, threshold: decays of the current and of the membrane, and the membrane above which a neuron spikes:
            a number, or a tensor of one element or ``[out_channels]``.
        grad_threshold, max_spikes, reset_mechanism, spike_grad, bias, input_scale, overflow, path: as in
            :class:`SparseConvLeaky`.
        learn_alpha, learn_beta, learn_threshold: if True, the parameter is an ``nn.Parameter``, otherwise a buffer.
        gradient: ``"surrogate"`` or ``"eventprop"``, as in :class:`SparseSynaptic`. A :class:`SparsePool2d` passes on
            the times of spikes.

    Attributes:
        weight: ``[out_channels, in_channels / groups, height, width]``.
        bias: ``[out_channels]``, or None.
        activity: mean spikes per neuron and step of the last forward pass, from 0 to 1; None before the first.
        overflow: spikes without a slot in the last forward pass; None before the first.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: as :class:`SparseSynaptic`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Union[Pair, str] = 0,
        dilation: Pair = 1,
        groups: int = 1,
        *,
        alpha: Parameter,
        beta: Parameter,
        input_size: Optional[Pair] = None,
        threshold: Parameter = 1.0,
        grad_threshold: Optional[float] = None,
        max_spikes: Optional[int] = None,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_alpha: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: float = 1.0,
        overflow: str = "lowest",
        path: str = "auto",
        gradient: str = "surrogate",
    ) -> None:
        super().__init__()
        self._set_maps(locals())
        self._set_synaptic(locals())

    def _connected(self, x: SparseSpikes) -> Connection:
        weight = self.weight.to(compute_dtype(self.weight.dtype))
        return Convolution2d(weight, conv_argument(x, weight, **self._maps()))


def _check_eventprop(options: Mapping[str, Any]) -> None:
    """Raise an error for options that EventProp does not have."""
    expected = dict.fromkeys(("grad_threshold", "max_spikes", "spike_grad"))
    expected.update(dict.fromkeys(("learn_alpha", "learn_beta", "learn_threshold"), False))
    for name, value in expected.items():
        if options[name] is not value:
            raise ValueError(f'{name} must be {value} with gradient="eventprop", got {options[name]!r}')
    for name, refused in (("reset_mechanism", "none"), ("path", "dense")):
        if options[name] == refused:
            raise ValueError(f'{name} must not be {refused!r} with gradient="eventprop"')
