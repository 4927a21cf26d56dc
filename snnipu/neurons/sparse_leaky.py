"""``snnipu.SparseLeaky``: a fully connected layer of spiking neurons, from spikes to spikes."""

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
from snnipu.spikes import SparseSpikes, SpikeTotals
from snnipu.surrogate import SpikeGrad, as_surrogate

Parameter = Union[float, torch.Tensor]
DenseOrSparse = Union[torch.Tensor, SparseSpikes]
_FACTOR = "graded_spikes_factor"


class SparseNeurons(nn.Module):
    """What event-driven layers of neurons have in common: parameters, options, counters.

    ``neuron`` is what they are without events: one whose last state is its membrane, which fires where that is above
    ``threshold``. Their step is its equation, with the reset one step after its spike.
    """

    neuron: ClassVar[Type[FusedNeuron]] = Leaky
    # Those of the equation that are the layer's own: its spikes are not graded.
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
        _neurons.prepare(self.neuron.equation)  # nothing that torch.compile could trace
        for name in self.parameter_names:
            self._register(name, options[name], options[f"learn_{name}"])
        self.grad_threshold = grad_threshold_argument(options["grad_threshold"])
        known = as_surrogate(spike_grad)
        self.spike_grad = spike_grad if known is None else known
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

    # Of one parameter each: neurons, or channels of maps.
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
            x: SparseSpikes of the input's neurons, or a dense tensor of any real dtype (bool: True is a spike):
                ``[T, B, in_features]``, or ``[T, B, in_channels, H, W]``. A dense tensor that needs a gradient gets the
                whole of it, by way of the dense product, unless ``path="sparse"``: then only its nonzero elements do.
            delay: steps that the input takes to arrive, besides the delays of the synapses.

        Returns:
            SparseSpikes of the layer's neurons; of maps with their ``map_shape``.

        Raises:
            TypeError, ValueError: ``x`` of another type, shape, size or device; the message says which.
        """
        check_int("delay", delay, 0)
        out = self._spikes(self.chosen(x), delay)
        self._last = out._totals()
        return out

    def membranes(self, x: DenseOrSparse, *, delay: int = 0) -> torch.Tensor:
        """Return the membranes ``[T, B, ...]`` for ``x``, dense: to look at, or for a loss on them."""
        check_int("delay", delay, 0)
        return self._membranes(self.chosen(x), delay)

    # The input in the form whose product is to be computed.
    chosen: Any

    def weighted(self, x: DenseOrSparse) -> torch.Tensor:
        """Return the weighted input ``[T, B, ...]`` of spikes, without ``input_scale`` and bias."""
        raise NotImplementedError

    def _membranes(self, x: DenseOrSparse, delay: int) -> torch.Tensor:
        return self.integrated(self.weighted(x), delay)[0]

    def selected(self, mem: torch.Tensor) -> SparseSpikes:
        """Return the slots of membranes ``[T, B, ...]``."""
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
        """Return the layer's spikes by its parts."""
        return self.selected(self._membranes(x, delay))

    def _per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter as it spreads over a step of the membranes."""
        return parameter

    def integrated(
        self, current: torch.Tensor, delay: int, before: Optional[List[torch.Tensor]] = None, goes_on: bool = False
    ) -> Tuple[torch.Tensor, Optional[List[torch.Tensor]]]:
        """Return the membranes from the weighted spikes, and the last states if ``goes_on``.

        ``before``: states before the first step; None: zeros.
        """
        if self.input_scale != 1:
            current = current * self.input_scale
        made = self.stepped(delayed(current, delay), before, goes_on)
        mem = made.states[-1]
        assert mem is not None
        return mem, made.final

    def stepped(
        self,
        current: torch.Tensor,
        before: Optional[List[torch.Tensor]] = None,
        goes_on: bool = False,
        spike_grad: Optional[SpikeGrad] = None,
    ) -> Results:
        """The neurons over what arrives, to which the bias is added: spikes, and of the states the membranes.

        With ``spike_grad`` the spikes carry gradient, and no membranes are stored.
        """
        if self.bias is not None:
            current = current + self._per_neuron(self.bias)
        kind, values = self.neuron, self._parameter_values()
        others = len(kind.state_names) - 1
        # The spikes are selected from the membranes: no gradient passes through this operator's, and the surrogate is
        # not passed on. A callable of one's own would be asked for the value of the spike that resets.
        return neuron_apply(
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
        """Mean spikes per neuron and step in the last forward, 0 to 1; None where there was none, or none with data."""
        return self._last.activity if self._last is not None and self._last.has_data else None

    @property
    def overflow(self) -> Optional[int]:
        """Spikes dropped in the last forward; None where there was none, or none with data."""
        return self._last.overflow if self._last is not None and self._last.has_data else None

    def _neuron_options(self) -> Dict[str, Any]:
        """The neurons' parameters and options, as the operators of whole layers take them."""
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
        """The linear map and the neuron with the same parameters."""
        raise NotImplementedError

    def dense_state_dict(self) -> Dict[str, torch.Tensor]:
        """The ``state_dict`` of :meth:`to_dense`'s network, which computes the same."""
        linear, neuron = self.to_dense()
        return {
            **{f"0.{name}": value for name, value in linear.state_dict().items()},
            **{f"1.{name}": value for name, value in neuron.state_dict().items()},
        }

    def load_dense_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Take weight, bias and the neuron's parameters from the ``state_dict`` of such a network."""
        self._load(self._own_state(state))

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """This layer's names and values for the dense network's; raises ValueError where they do not fit."""
        names = self.parameter_names
        wanted = {"0.weight", *(f"1.{name}" for name in names)} | ({"0.bias"} if self.bias is not None else set())
        missing = sorted(wanted - set(state))
        if missing or ("0.bias" in state and self.bias is None):
            raise ValueError(f"state must hold {sorted(wanted)} and no other weights, got {sorted(state)}")
        own = {"weight": state["0.weight"] / self.input_scale}
        own.update({name: state[f"1.{name}"] for name in names})
        if self.bias is not None:
            own["bias"] = state["0.bias"]
        each = (self._neurons,)
        for name, value in own.items():
            of_neurons = name in names
            if of_neurons and value.numel() == 1:
                continue
            shape = tuple(self.weight.shape) if name == "weight" else each
            spread = tuple(self._per_neuron(torch.empty(each)).shape) if of_neurons else shape
            if tuple(value.shape) not in (shape, spread):
                raise ValueError(f"state: {name} must have shape {shape}, got {tuple(value.shape)}")
            if of_neurons:
                own[name] = value.reshape(each)
        return own

    def _dense_twin(self, linear: Union[nn.Linear, nn.Conv2d, DelayLinear]) -> nn.Sequential:
        """``linear``, with this layer's weights, and its neurons."""
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
                'than this layer, which has no dense twin; take reset_mechanism="subtract" or "none"'
            )
        with torch.no_grad():
            linear.weight.copy_(self.weight * self.input_scale)
            if self.bias is not None and linear.bias is not None:
                linear.bias.copy_(self.bias)
        return nn.Sequential(linear, neuron)

    def _load(self, own: Dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, value in own.items():
                current = getattr(self, name)
                if value.numel() == current.numel():
                    current.copy_(value.reshape(current.shape))
                else:  # one number for all neurons in place of one for each, or the other way round
                    replaced = value.detach().to(current).clone()
                    setattr(self, name, nn.Parameter(replaced) if isinstance(current, nn.Parameter) else replaced)

    def _repr_of_neurons(self) -> str:
        parts = []
        for name, value in self._parameter_values().items():
            known = value.numel() == 1 and not value.is_meta
            parts.append(f"{name}={value.item():g}" if known else f"{name}=[{value.numel()}]")
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
    """Those that see every input: the product of the spikes, the neurons' fused kernel, and the selection of spikes.

    With delays the product is :class:`DelayLinear`'s.
    """

    def _set_features(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        max_delay: Optional[int] = None,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
    ) -> None:
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self._neurons = self.out_features
        if max_delay is not None:
            self._set_delays(max_delay, delay, learn_delay)
        elif delay is not None:
            raise ValueError(f"delay needs max_delay, the longest one, got delay={delay!r} alone")

    def reset_parameters(self) -> None:
        """``nn.Linear``'s initial weights; delays that were not given are drawn uniformly."""
        init_like_linear(self.weight, self.bias)
        self._draw_delays()

    def weighted(self, x: DenseOrSparse) -> torch.Tensor:
        if self.max_delay is not None:
            x = x if isinstance(x, SparseSpikes) else x.to(compute_dtype(self.weight.dtype))
            return self._arriving(x, self._taps())
        if isinstance(x, SparseSpikes):
            return ops.sparse_linear(x, self.weight)
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)

    def chosen(self, x: DenseOrSparse) -> DenseOrSparse:
        # With delays no dense product is faster.
        path = "sparse" if self.max_delay is not None and isinstance(x, SparseSpikes) else self.path
        return choose_path(x, self.weight, path, self._measured)

    def to_dense(self) -> nn.Sequential:
        """``nn.Sequential`` of ``nn.Linear``, or :class:`DelayLinear`, and the neuron with the same parameters; the
        neuron takes ``[T, B, out]`` with ``.sequence``."""
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
        own, found = super()._own_state(state), state.get("0.delay")
        if (found is None) != (self.max_delay is None):
            raise ValueError(f"state must {'' if found is None else 'not '}hold 0.delay, got {sorted(state)}")
        if found is not None:
            if found.shape != self.delay.shape:
                raise ValueError(f"state: delay must have shape {tuple(self.delay.shape)}, got {tuple(found.shape)}")
            own["delay"] = found
        return own

    def extra_repr(self) -> str:
        delays = "" if self.max_delay is None else f"{self._repr_of_delays()}, "
        return f"in_features={self.in_features}, out_features={self.out_features}, {delays}{self._repr_of_neurons()}"


def _each(currents: torch.Tensor) -> SparseSpikes:
    """Every number of ``[T, B, N]`` as a spike of its own."""
    neurons = currents.shape[2]
    ids = torch.arange(neurons, dtype=torch.int32, device=currents.device).expand(currents.shape).contiguous()
    return SparseSpikes._trusted(ids, currents, ids.new_full((*currents.shape[:2], 2), neurons), neurons)


class SparseLeaky(FullyConnectedNeurons):
    r"""``nn.Linear`` and leaky integrate-and-fire neurons as one event-driven layer.

    Only weights of neurons that spiked are read, and only neurons whose membrane is above ``grad_threshold`` carry
    gradient. With ``max_spikes=None`` and ``grad_threshold=None`` the layer equals ``nn.Linear`` followed by
    ``Leaky``, up to the order of the additions. Equations, gradients and source are those of
    :func:`snnipu.ops.sparse_lif_sequence`.

    .. code-block:: python

        layer = snn.SparseLeaky(700, 128, beta=0.95, grad_threshold=0.9, max_spikes=16)
        spikes = layer(x)                # x: SparseSpikes or a dense [T, B, 700] -> SparseSpikes of 128 neurons
        layer.activity, layer.overflow   # of that call

    Args:
        in_features: neurons of the input.
        out_features: neurons of the layer.
        beta: decay of the membrane per step, clamped to [0, 1]: a number, or a tensor of one element or ``[out]``.
        threshold: firing threshold, likewise.
        grad_threshold: second threshold, below ``threshold``; None: every neuron carries gradient. May be changed at
            any time, so that a schedule can raise it.
        max_spikes: slots for spikes and gradient-only neurons; None: as many as needed. May be changed at any time.
        reset_mechanism: ``"subtract"``, ``"zero"`` or ``"none"``.
        spike_grad: surrogate gradient; None: ``atan()``.
        bias: whether to add a learnable bias to the current.
        learn_beta: whether ``beta`` is learnt.
        learn_threshold: whether ``threshold`` is learnt.
        input_scale: factor of the weighted spikes, a recurrent layer's own ones too. ``(1 - beta) * 10`` gives the
            update rule of the published sparse benchmark (arXiv 2311.04386).
        overflow: what is dropped where more neurons want a slot than there are: see
            :func:`snnipu.ops.select_spikes`.
        recurrent: whether the layer reads its own spikes of the step before, through ``recurrent_weight``.
        path: ``"sparse"``, ``"dense"`` (matrix products over all time steps), or ``"auto"``: whichever is faster at the
            measured activity of the input. The results are the same, up to the order of the additions. On CUDA the
            activity is that of a few calls before, so that the host need not wait, and a dense tensor stays dense.
            With delays there is no dense product.
        max_delay: the longest delay of a synapse, in time steps; None: none has one. What the layer's own spikes take
            through ``recurrent_weight`` stays one step.
        delay: of the synapses, as :class:`DelayLinear`'s.
        learn_delay: whether the delays are learnt.

    Attributes:
        weight: ``[out, in]``.
        delay: with ``max_delay``, as of :class:`DelayLinear`.
        activity: mean spikes per neuron and step in the last forward, 0 to 1; None before the first.
        overflow: spikes dropped in the last forward; None before the first.

    Raises:
        TypeError, ValueError: the message names the argument.
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
        self._set_features(in_features, out_features, bias, max_delay, delay, learn_delay)
        if fused(spike_grad)[1] is not None and recurrent:
            raise ValueError(f"spike_grad must be a fused surrogate where recurrent=True, got {spike_grad!r}")
        self.recurrent_weight = nn.Parameter(torch.empty(out_features, out_features)) if recurrent else None
        self._set_neurons(locals())

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.recurrent_weight is not None:
            init_like_linear(self.recurrent_weight, None)

    def membranes(self, x: DenseOrSparse, *, delay: int = 0) -> torch.Tensor:
        if self.recurrent_weight is not None:
            raise ValueError("membranes: a recurrent layer's membranes depend on its spikes and are not kept")
        return super().membranes(x, delay=delay)

    def chosen(self, x: DenseOrSparse) -> DenseOrSparse:
        if self.recurrent_weight is not None:
            return choose_path(x, self.weight, "sparse", self._measured)
        return super().chosen(x)

    def _spikes(self, x: DenseOrSparse, delay: int) -> SparseSpikes:
        """Return the layer's spikes by one operator if ``x`` is spikes; it equals the parts."""
        if not isinstance(x, SparseSpikes) or (self.max_delay is not None and self.recurrent_weight is None):
            return super()._spikes(x, delay)
        weight = self.weight
        if self.max_delay is not None:
            # What arrives at each neuron goes into the operator as an input of its own.
            x = _each(self.weighted(x))
            weight = torch.eye(self.out_features, dtype=x.values.dtype, device=x.device)
        return ops.sparse_lif_sequence(
            x,
            weight,
            self.bias,
            **self._neuron_options(),
            delay=delay,
            recurrent_weight=self.recurrent_weight,
        )

    # ---- to and from nn.Linear + Leaky

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        self._refuse_recurrent("state")
        return super()._own_state(state)

    def to_dense(self) -> nn.Sequential:
        self._refuse_recurrent("to_dense")
        return super().to_dense()

    def _refuse_recurrent(self, what: str) -> None:
        if self.recurrent_weight is not None:
            raise ValueError(f"{what}: a recurrent layer has no dense twin")

    def extra_repr(self) -> str:
        return super().extra_repr() + (", recurrent=True" if self.recurrent_weight is not None else "")
