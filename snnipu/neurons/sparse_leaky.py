"""``snnipu.SparseLeaky``: a fully connected event-driven layer; and the base classes of all event-driven layers."""

from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from torch import nn

from snnipu import ops
from snnipu._checks import check_int
from snnipu.neurons.delay_linear import DelayLinear, Delays
from snnipu.neurons.fused import FusedNeuron, load_scalars, values_of
from snnipu.neurons.leaky import Leaky
from snnipu.neurons.sparse_activity import DeviceActivity
from snnipu.neurons.sparse_linear import check_path, choose_path, init_like_linear
from snnipu.ops import _neurons
from snnipu.ops._arguments import compute_dtype, reset_code
from snnipu.ops._slots import check_max_spikes, overflow_code
from snnipu.ops._sparse_layers import delayed
from snnipu.ops._spike_gradient import fused
from snnipu.ops.neuron_sequence import Results, neuron_apply
from snnipu.ops.select_spikes import grad_threshold_argument
from snnipu.spikes import DenseOrSparse, SparseSpikes, SpikeTotals
from snnipu.surrogate import SpikeGrad, as_surrogate

Parameter = Union[float, torch.Tensor]
_FACTOR = "graded_spikes_factor"


class SparseNeurons(nn.Module):
    """The base class of event-driven layers: parameters and options of the neurons, slots and counters.

    ``neuron`` is the dense neuron of the same equation. Its last state must be the membrane, and it must fire if the
    membrane is above ``threshold``. The reset follows one step after its spike.
    """

    neuron: ClassVar[Type[FusedNeuron]] = Leaky
    # The equation's parameters without the spikes' factor, which is 1 in event-driven layers.
    parameter_names: ClassVar[Sequence[str]]
    _delayed_reset: ClassVar[Dict[str, bool]]
    takes_whole_sequences = True  # in a MultiStep

    bias: Optional[torch.Tensor]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.parameter_names = [name for name in cls.neuron.parameter_names if name != _FACTOR]
        cls._delayed_reset = {"reset_delay": True} if "reset_delay" in cls.neuron.options else {}
        names = cls.neuron.state_names
        if names[0] == "spk" or names[-1] != "mem":
            raise TypeError(f"{cls.__name__}: {cls.neuron.__name__} does not fire by its last state alone")

    def _set_neurons(self, options: Mapping[str, Any]) -> None:
        """Take the neurons' parameters and options from the constructor's arguments, and draw the weights."""
        spike_grad, input_scale = options["spike_grad"], options["input_scale"]
        self.reset_mechanism, self.max_spikes = options["reset_mechanism"], options["max_spikes"]
        self.overflow_order = options["overflow"]
        reset_code(self.reset_mechanism)
        check_max_spikes(self.max_spikes)
        overflow_code(self.overflow_order)
        fused(spike_grad)
        if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)) or input_scale == 0:
            raise ValueError(f"input_scale must be a number other than 0, got {input_scale!r}")
        _neurons.prepare(self.neuron.equation)  # torch.compile cannot trace it
        for name in self.parameter_names:
            self._register(name, options[name], options[f"learn_{name}"])
        self.grad_threshold = grad_threshold_argument(options["grad_threshold"])
        surrogate = as_surrogate(spike_grad)
        self.spike_grad = spike_grad if surrogate is None else surrogate
        self.input_scale = float(input_scale)
        self.path = check_path(options["path"])
        self._last: Optional[SpikeTotals] = None
        self._measured = DeviceActivity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights."""
        raise NotImplementedError

    # Set by _register.
    beta: torch.Tensor
    threshold: torch.Tensor

    # The length of a parameter: the number of neurons, or of channels of maps.
    _neurons: int

    def _parameter_values(self) -> Dict[str, torch.Tensor]:
        return values_of(self, self.parameter_names)

    def _register(self, name: str, value: Parameter, learn: bool) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float, torch.Tensor)):
            raise TypeError(f"{name} must be a number or a torch.Tensor, got {value!r}")
        tensor = torch.as_tensor(value, dtype=torch.float32) if not isinstance(value, torch.Tensor) else value
        if not tensor.dtype.is_floating_point:
            tensor = tensor.float()
        tensor = tensor.detach().clone()
        if tensor.numel() != 1 and tensor.shape != (self._neurons,):
            raise ValueError(f"{name} must have one element or shape {(self._neurons,)}, got {tuple(tensor.shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite, got {value!r}")
        if learn:
            setattr(self, name, nn.Parameter(tensor))
        else:
            self.register_buffer(name, tensor)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        load_scalars(self, state_dict, prefix, self.parameter_names)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(self, x: DenseOrSparse, *, delay: int = 0) -> SparseSpikes:
        """Run all time steps of a batch.

        Args:
            x: SparseSpikes of the input's neurons; or a dense tensor of any real dtype, ``[T, B, in_features]`` or
                ``[T, B, in_channels, H, W]``, whose nonzero elements are spikes. A dense tensor that requires a
                gradient takes the dense product, and each element gets its gradient. With ``path="sparse"``, nonzero
                elements alone do.
            delay: time steps that the input takes to arrive, in addition to the delays of the synapses.

        Returns:
            SparseSpikes of the layer's neurons, ``T`` steps and ``B`` samples; for layers on maps with ``map_shape``.

        Raises:
            TypeError, ValueError: wrong type, shape or device of ``x``; the message names it.
        """
        check_int("delay", delay, 0)
        out = self._spikes(self.chosen(x), delay)
        self._last = out._totals()
        return out

    def membranes(self, x: DenseOrSparse, *, delay: int = 0) -> torch.Tensor:
        """Return the dense membranes ``[T, B, ...]``, for inspection or for a loss on them.

        Args:
            x: input, as in :meth:`forward`.
            delay: time steps that the input takes to arrive, as in :meth:`forward`.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        check_int("delay", delay, 0)
        return self._membranes(self.chosen(x), delay)

    _run_neurons: Any = staticmethod(neuron_apply)

    # A method: return the input in the form whose product is to be computed.
    chosen: Any

    def weighted(self, x: DenseOrSparse) -> torch.Tensor:
        """Return the weighted input ``[T, B, ...]`` of spikes, without ``input_scale`` and bias."""
        raise NotImplementedError

    def _membranes(self, x: DenseOrSparse, delay: int) -> torch.Tensor:
        return self.integrated(self.weighted(x), delay)[0]

    def selected(self, mem: torch.Tensor) -> SparseSpikes:
        """Return the spikes, in their slots, of membranes ``[T, B, ...]``."""
        threshold, maps = self.threshold, mem.shape[2:]
        if len(maps) == 3 and threshold.numel() > 1:
            threshold = threshold.reshape(-1).repeat_interleave(maps[1] * maps[2])
        spikes = ops.select_spikes(
            mem.flatten(2),
            threshold,
            self.grad_threshold,
            self.max_spikes,
            spike_grad=self.spike_grad,
            overflow=self.overflow_order,
        )
        return spikes.with_maps((maps[0], maps[1], maps[2])) if len(maps) == 3 else spikes

    def _spikes(self, x: DenseOrSparse, delay: int) -> SparseSpikes:
        """Return the layer's spikes: product, neurons and selection one after the other."""
        return self.selected(self._membranes(x, delay))

    def _per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter in a shape that broadcasts to one step of the membranes."""
        return parameter

    def integrated(
        self, current: torch.Tensor, delay: int, before: Optional[List[torch.Tensor]] = None, goes_on: bool = False
    ) -> Tuple[torch.Tensor, Optional[List[torch.Tensor]]]:
        """Return the membranes from the weighted spikes, and the last states if ``goes_on``.

        ``before``: states before the first step; None: zeros.
        """
        if self.input_scale != 1:
            current = current * self.input_scale
        result = self.stepped(delayed(current, delay), before, goes_on)
        mem = result.states[-1]
        assert mem is not None
        return mem, result.final

    def stepped(
        self,
        current: torch.Tensor,
        before: Optional[List[torch.Tensor]] = None,
        goes_on: bool = False,
        spike_grad: Optional[SpikeGrad] = None,
    ) -> Results:
        """Run the neurons over the current ``[T, B, ...]`` plus bias; return spikes and membranes.

        With ``spike_grad`` the spikes carry gradient, and the membranes are not stored.
        """
        if self.bias is not None:
            current = current + self._per_neuron(self.bias)
        kind, values = self.neuron, self._parameter_values()
        others = len(kind.state_names) - 1
        # The layer selects its spikes from the membranes, so that this operator's spikes need no surrogate. A custom
        # spike_grad would have to compute the spikes of the reset.
        return self._run_neurons(
            kind.equation,
            current,
            [None] * (1 + others) if before is None else before,
            {**{name: self._per_neuron(values[name]) for name in values}, _FACTOR: 1.0},
            options={"reset_mechanism": self.reset_mechanism, **self._delayed_reset},
            spike_grad=spike_grad,
            store=[False] * others + [spike_grad is None],
            need_final=goes_on,
        )

    @property
    def activity(self) -> Optional[float]:
        """Mean spikes per neuron and step of the last forward pass, from 0 to 1; None before the first with data."""
        return self._last.activity if self._last is not None and self._last.has_data else None

    @property
    def overflow(self) -> Optional[int]:
        """Spikes without a slot in the last forward pass; None before the first with data."""
        return self._last.overflow if self._last is not None and self._last.has_data else None

    def _neuron_options(self) -> Dict[str, Any]:
        """Return the neurons' parameters and options as keywords of the operators of whole layers."""
        return {
            **self._parameter_values(),
            "grad_threshold": self.grad_threshold,
            "max_spikes": self.max_spikes,
            "reset_mechanism": self.reset_mechanism,
            "spike_grad": self.spike_grad,
            "input_scale": self.input_scale,
            "overflow": self.overflow_order,
        }

    # ---- to and from a linear map and the neuron

    weight: torch.Tensor

    def to_dense(self) -> nn.Sequential:
        """Return the linear map and the dense neuron with the same parameters, as ``nn.Sequential``."""
        raise NotImplementedError

    def dense_state_dict(self) -> Dict[str, torch.Tensor]:
        """Return the ``state_dict`` of :meth:`to_dense`'s network, which computes the same."""
        return dict(self.to_dense().state_dict())

    def load_dense_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Load weight, bias and the neuron's parameters from the ``state_dict`` of a network as of :meth:`to_dense`.

        Args:
            state: names ``0.*`` of the linear map and ``1.*`` of the neuron, and their tensors.

        Raises:
            ValueError: names or shapes do not fit.
        """
        self._load_state(self._own_state(state))

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Return this layer's state for the dense network's; raise ValueError if names or shapes do not fit."""
        names = self.parameter_names
        required = {"0.weight", *(f"1.{name}" for name in names)} | ({"0.bias"} if self.bias is not None else set())
        missing = sorted(required - set(state))
        if missing or ("0.bias" in state and self.bias is None):
            raise ValueError(f"state must hold {sorted(required)} and no other weights, got {sorted(state)}")
        layer_state = {"weight": state["0.weight"] / self.input_scale}
        layer_state.update({name: state[f"1.{name}"] for name in names})
        if self.bias is not None:
            layer_state["bias"] = state["0.bias"]
        each = (self._neurons,)
        for name, value in layer_state.items():
            of_neurons = name in names
            if of_neurons and value.numel() == 1:
                continue
            shape = tuple(self.weight.shape) if name == "weight" else each
            broadcast_shape = tuple(self._per_neuron(torch.empty(each)).shape) if of_neurons else shape
            if tuple(value.shape) not in (shape, broadcast_shape):
                raise ValueError(f"state: {name} must have shape {shape}, got {tuple(value.shape)}")
            if of_neurons:
                layer_state[name] = value.reshape(each)
        return layer_state

    def _dense_twin(self, linear: Union[nn.Linear, nn.Conv2d, DelayLinear]) -> nn.Sequential:
        """Copy this layer's weights into ``linear``; return it, followed by the dense neurons."""
        values = self._parameter_values()
        neuron = self.neuron(
            **{name: self._per_neuron(value.detach().clone()) for name, value in values.items()},
            **{f"learn_{name}": isinstance(value, nn.Parameter) for name, value in values.items()},
            spike_grad=self.spike_grad,
            reset_mechanism=self.reset_mechanism,
        )
        if self.reset_mechanism not in neuron.fusable:
            raise ValueError(
                f"{type(neuron).__name__} of the installed snnTorch resets by {self.reset_mechanism!r} in another way "
                'than this layer, which has no dense twin; use reset_mechanism="subtract" or "none"'
            )
        with torch.no_grad():
            linear.weight.copy_(self.weight * self.input_scale)
            if self.bias is not None and linear.bias is not None:
                linear.bias.copy_(self.bias)
        return nn.Sequential(linear, neuron)

    def _load_state(self, layer_state: Dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, value in layer_state.items():
                current = getattr(self, name)
                if value.numel() == current.numel():
                    current.copy_(value.reshape(current.shape))
                else:  # one value for all neurons replaces one for each, or the reverse
                    replaced = value.detach().to(current).clone()
                    setattr(self, name, nn.Parameter(replaced) if isinstance(current, nn.Parameter) else replaced)

    def _repr_of_neurons(self) -> str:
        parts = []
        for name, value in self._parameter_values().items():
            is_number = value.numel() == 1 and not value.is_meta
            parts.append(f"{name}={value.item():g}" if is_number else f"{name}=[{value.numel()}]")
        parts.append(f"reset_mechanism={self.reset_mechanism!r}")
        for name, default in (("grad_threshold", None), ("max_spikes", None), ("input_scale", 1.0), ("path", "auto")):
            value = getattr(self, name)
            parts += [f"{name}={value!r}"] if value != default else []
        return ", ".join(parts)

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        state["_last"] = None
        return state


class FullyConnectedNeurons(Delays, SparseNeurons):
    """The base class of fully connected event-driven layers: product of the spikes, fused neurons, selection of spikes.

    With delays the product is that of :class:`DelayLinear`.
    """

    def _set_features(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        max_delay: Optional[int] = None,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
        recurrent: bool = False,
        spike_grad: Optional[SpikeGrad] = None,
    ) -> None:
        if fused(spike_grad)[1] is not None and recurrent:
            raise ValueError(f"spike_grad must be a fused surrogate where recurrent=True, got {spike_grad!r}")
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.recurrent_weight = nn.Parameter(torch.empty(out_features, out_features)) if recurrent else None
        self._neurons = self.out_features
        if max_delay is not None:
            self._set_delays(max_delay, delay, learn_delay)
        elif delay is not None:
            raise ValueError(f"delay needs max_delay, the longest delay, got delay={delay!r} alone")

    def reset_parameters(self) -> None:
        """Draw the initial weights of ``nn.Linear``, and delays uniformly unless the caller gave them."""
        init_like_linear(self.weight, self.bias)
        self._draw_delays()
        if self.recurrent_weight is not None:
            init_like_linear(self.recurrent_weight, None)

    def weighted(self, x: DenseOrSparse) -> torch.Tensor:
        if self.max_delay is not None:
            x = x if isinstance(x, SparseSpikes) else x.to(compute_dtype(self.weight.dtype))
            return self._delayed_product(x, self._delayed_connection())
        if isinstance(x, SparseSpikes):
            return ops.sparse_linear(x, self.weight)
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)

    def chosen(self, x: DenseOrSparse) -> DenseOrSparse:
        # With delays, the dense product is never faster.
        path = "sparse" if self.max_delay is not None and isinstance(x, SparseSpikes) else self.path
        return choose_path(x, self.weight, path, self._measured)

    def to_dense(self) -> nn.Sequential:
        """Return ``nn.Sequential`` of ``nn.Linear`` or :class:`DelayLinear`, and the neuron with the same parameters.

        The neuron's ``sequence`` takes ``[T, B, out]``.
        """
        self._refuse_recurrent("to_dense")
        sizes, bias = (self.in_features, self.out_features), self.bias is not None
        linear: Union[nn.Linear, DelayLinear]
        if self.max_delay is None:
            linear = nn.Linear(*sizes, bias=bias)
        else:
            learns = isinstance(self.delay, nn.Parameter)
            linear = DelayLinear(
                *sizes, self.max_delay, delay=torch.zeros_like(self.delay), learn_delay=learns, bias=bias
            )
        linear = linear.to(self.weight)
        if isinstance(linear, DelayLinear):
            linear.delay.data = self.delay.detach().clone()
        return self._dense_twin(linear)

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        self._refuse_recurrent("state")
        layer_state, delay = super()._own_state(state), state.get("0.delay")
        if (delay is None) != (self.max_delay is None):
            raise ValueError(f"state must {'' if delay is None else 'not '}hold 0.delay, got {sorted(state)}")
        if delay is not None:
            if delay.shape != self.delay.shape:
                raise ValueError(f"state: delay must have shape {tuple(self.delay.shape)}, got {tuple(delay.shape)}")
            layer_state["delay"] = delay
        return layer_state

    def extra_repr(self) -> str:
        delays = "" if self.max_delay is None else f"{self._repr_of_delays()}, "
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        recurrent = "" if self.recurrent_weight is None else ", recurrent=True"
        return f"{sizes}, {delays}{self._repr_of_neurons()}{recurrent}"

    def _refuse_recurrent(self, operation: str) -> None:
        if self.recurrent_weight is not None:
            raise ValueError(f"{operation}: a recurrent layer has no dense twin")


def _as_spikes(currents: torch.Tensor) -> SparseSpikes:
    """Return currents ``[T, B, N]`` as SparseSpikes: a spike for each neuron, whose value is the current."""
    currents, neurons = currents.to(compute_dtype(currents.dtype)), currents.shape[2]
    ids = torch.arange(neurons, dtype=torch.int32, device=currents.device).expand(currents.shape).contiguous()
    return SparseSpikes._trusted(ids, currents, ids.new_full((*currents.shape[:2], 2), neurons), neurons)


class SparseLeaky(FullyConnectedNeurons):
    r"""``nn.Linear`` and leaky integrate-and-fire neurons as one event-driven layer.

    .. math::

        r_t &= H(u_{t-1} - \theta) \\
        x_t &= \alpha W s^{in}_t + b \\
        u_t &= \beta (1 - r_t) u_{t-1} + x_t \quad \text{(zero)} \\
        u_t &= \beta u_{t-1} + x_t - r_t \theta \quad \text{(subtract)} \\
        u_t &= \beta u_{t-1} + x_t \quad \text{(none)} \\
        s_t &= H(u_t - \theta)

    :math:`s^{in}` are the spikes of the input, :math:`u` the membrane, :math:`s` the spikes of the layer, :math:`r` the
    reset, which carries no gradient. :math:`H` is the step function with :math:`H(0) = 0`; in the backward pass the
    surrogate replaces its derivative.

    Forward and backward pass read the weights of spikes alone. A neuron carries gradient if its membrane is above
    ``grad_threshold``. A neuron that spikes without getting a slot is still reset. With ``max_spikes=None`` and
    ``grad_threshold=None`` the layer equals ``nn.Linear`` followed by ``Leaky``, up to the order of additions.

    .. code-block:: python

        layer = snn.SparseLeaky(700, 128, beta=0.95, grad_threshold=0.9, max_spikes=16)
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 700] -> SparseSpikes of 128 neurons
        layer.activity, layer.overflow   # of that call

    Args:
        in_features: neurons of the input.
        out_features: neurons of the layer.
        beta: :math:`\beta`, the decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element
            or ``[out]``.
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
        learn_beta: if True, ``beta`` is an ``nn.Parameter``, otherwise a buffer.
        learn_threshold: if True, ``threshold`` is an ``nn.Parameter``, otherwise a buffer.
        input_scale: :math:`\alpha`, a factor of the weighted spikes, not 0. ``(1 - beta) * 10`` is the update rule of
            the published sparse benchmark (arXiv 2311.04386). It also scales ``recurrent_weight``.
        overflow: which neurons get a slot if there are too few: ``"lowest"`` ids first, or ``"rotate"``, where the
            first id moves with the time step. :func:`snnipu.ops.select_spikes` defines both.
        recurrent: if True, the layer also receives its spikes of the step before, through ``recurrent_weight``.
        path: ``"sparse"``: products of spikes; ``"dense"``: one matrix product over all time steps; ``"auto"``: the
            faster one at the measured activity of the input. Results are equal up to the order of additions. On CUDA,
            ``"auto"`` reads the activity a few calls earlier, so that the host need not wait, and keeps dense inputs
            dense. With delays there is no dense product of spikes.
        max_delay: the longest delay of a synapse, in time steps; None: no delays. ``recurrent_weight`` has no delays
            beyond its one step.
        delay: delays of the synapses in time steps: a number, or a tensor ``[out, in]``, ``[1, in]`` or ``[out, 1]``;
            see :class:`DelayLinear`. None: drawn uniformly from [0, ``max_delay``].
        learn_delay: if True, ``delay`` is an ``nn.Parameter``, otherwise a buffer.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``, or None.
        recurrent_weight: ``[out, out]``, or None.
        delay: the delays in time steps, if ``max_delay`` is given.
        activity: mean spikes per neuron and step of the last forward pass, from 0 to 1; None before the first.
        overflow: spikes without a slot in the last forward pass; None before the first.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: :func:`snnipu.ops.sparse_lif_sequence`; Gruen et al., "Sparse spiking neural networks on the IPU", arXiv
    2311.04386, 2023.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        beta: Parameter,
        threshold: Parameter = 1.0,
        grad_threshold: Optional[float] = None,
        max_spikes: Optional[int] = None,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: float = 1.0,
        overflow: str = "lowest",
        recurrent: bool = False,
        path: str = "auto",
        max_delay: Optional[int] = None,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
    ) -> None:
        super().__init__()
        self._set_features(in_features, out_features, bias, max_delay, delay, learn_delay, recurrent, spike_grad)
        self._set_neurons(locals())

    def membranes(self, x: DenseOrSparse, *, delay: int = 0) -> torch.Tensor:
        """Return the dense membranes ``[T, B, out]``, for inspection or for a loss on them.

        Args:
            x: input, as in :meth:`forward`.
            delay: time steps that the input takes to arrive, as in :meth:`forward`.

        Raises:
            ValueError: the layer is recurrent.
            TypeError, ValueError: as :meth:`forward`.
        """
        if self.recurrent_weight is not None:
            raise ValueError("membranes: a recurrent layer's membranes depend on its spikes and are not stored")
        return super().membranes(x, delay=delay)

    def chosen(self, x: DenseOrSparse) -> DenseOrSparse:
        # The operator takes spikes. Only a dense input that requires a gradient needs that of its zeros.
        if self.recurrent_weight is None or (isinstance(x, torch.Tensor) and x.requires_grad):
            return super().chosen(x)
        return choose_path(x, self.weight, "sparse", self._measured)

    def _spikes(self, x: DenseOrSparse, delay: int) -> SparseSpikes:
        """Return the layer's spikes, by one operator if ``x`` is spikes or the layer is recurrent."""
        weight = self.weight
        if self.max_delay is not None or not isinstance(x, SparseSpikes):
            if self.recurrent_weight is None:
                return super()._spikes(x, delay)
            # Pass the weighted currents to the operator as spikes, through an identity matrix.
            x = _as_spikes(self.weighted(x))
            weight = torch.eye(self.out_features, dtype=x.values.dtype, device=x.device)
        return ops.sparse_lif_sequence(
            x,
            weight,
            self.bias,
            **self._neuron_options(),
            delay=delay,
            recurrent_weight=self.recurrent_weight,
        )
