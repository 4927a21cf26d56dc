"""``snnipu.SparseLeaky``: a fully connected layer of spiking neurons, from spikes to spikes."""

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import nn

from snnipu import ops
from snnipu.neurons.fused import load_scalars
from snnipu.neurons.leaky import Leaky
from snnipu.neurons.sparse_activity import DeviceActivity
from snnipu.neurons.sparse_linear import check_features, check_path, choose_path, init_like_linear
from snnipu.ops._arguments import reset_code
from snnipu.ops._slots import check_delay, check_max_spikes, overflow_code
from snnipu.ops._sparse_layers import delayed
from snnipu.ops._spike_gradient import fused
from snnipu.ops.lif_sequence import lif_apply
from snnipu.ops.select_spikes import grad_threshold_argument
from snnipu.spikes import SparseSpikes, SpikeTotals
from snnipu.surrogate import SpikeGrad, as_surrogate

Parameter = Union[float, torch.Tensor]


class SparseNeurons(nn.Module):
    """What event-driven layers of leaky integrate-and-fire neurons have in common: parameters, options, counters."""

    takes_whole_sequences = True  # in a MultiStep

    bias: Optional[torch.Tensor]

    def _set_neurons(
        self,
        beta: Parameter,
        threshold: Parameter,
        learn_beta: bool,
        learn_threshold: bool,
        grad_threshold: Optional[float],
        max_spikes: Optional[int],
        reset_mechanism: str,
        spike_grad: Optional[SpikeGrad],
        input_scale: float,
        overflow: str,
        path: str,
    ) -> None:
        reset_code(reset_mechanism)
        check_max_spikes(max_spikes)
        overflow_code(overflow)
        fused(spike_grad)
        if isinstance(input_scale, bool) or not isinstance(input_scale, (int, float)) or input_scale == 0:
            raise ValueError(f"input_scale must be a number other than 0, got {input_scale!r}")
        self._register("beta", beta, learn_beta)
        self._register("threshold", threshold, learn_threshold)
        self.grad_threshold = grad_threshold_argument(grad_threshold)
        self.max_spikes = max_spikes
        self.reset_mechanism = reset_mechanism
        known = as_surrogate(spike_grad)
        self.spike_grad = spike_grad if known is None else known
        self.input_scale = float(input_scale)
        self.overflow_order = overflow
        self.path = check_path(path)
        self._last: Optional[SpikeTotals] = None
        self._measured = DeviceActivity()

    # Set by _register.
    beta: torch.Tensor
    threshold: torch.Tensor

    # Of one parameter each: neurons, or channels of maps.
    _neurons: int

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
        load_scalars(self, state_dict, prefix, ("beta", "threshold"))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def weighted(self, x: torch.Tensor) -> torch.Tensor:
        """The weighted input ``[T, B, ...]`` of dense spikes ``[T, B, N]``, without ``input_scale`` and bias."""
        raise NotImplementedError

    def _per_neuron(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter as it spreads over a step of the membranes."""
        return parameter

    def _integrate(self, current: torch.Tensor, delay: int) -> torch.Tensor:
        """Membranes from the weighted spikes."""
        return self._integrated(current, delay)[0]

    def _integrated(
        self, current: torch.Tensor, delay: int, before: Optional[torch.Tensor] = None, goes_on: bool = False
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """From the membranes ``before`` the first step, None for zeros; the last ones too, where it ``goes_on``."""
        if self.input_scale != 1:
            current = current * self.input_scale
        current = delayed(current, delay)
        if self.bias is not None:
            current = current + self._per_neuron(self.bias)
        # The spikes are selected from the membranes: no gradient passes through this operator's, and the surrogate is
        # not passed on. A callable of one's own would be asked for the value of the spike that resets.
        _, mem, last = lif_apply(
            current,
            before,
            self._per_neuron(self.beta),
            self._per_neuron(self.threshold),
            1.0,
            None,
            reset_code(self.reset_mechanism),
            True,
            None,
            need_last=goes_on,
        )
        assert mem is not None
        return mem, last

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
            "beta": self.beta,
            "threshold": self.threshold,
            "grad_threshold": self.grad_threshold,
            "max_spikes": self.max_spikes,
            "reset_mechanism": self.reset_mechanism,
            "spike_grad": self.spike_grad,
            "input_scale": self.input_scale,
            "overflow": self.overflow_order,
        }

    # ---- to and from a linear map and Leaky

    weight: torch.Tensor

    def to_dense(self) -> nn.Sequential:
        """The linear map and ``Leaky`` with the same parameters."""
        raise NotImplementedError

    def dense_state_dict(self) -> Dict[str, torch.Tensor]:
        """The ``state_dict`` of :meth:`to_dense`'s network, which computes the same."""
        linear, leaky = self.to_dense()
        return {
            **{f"0.{name}": value for name, value in linear.state_dict().items()},
            **{f"1.{name}": value for name, value in leaky.state_dict().items()},
        }

    def load_dense_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Take weight, bias, beta and threshold from the ``state_dict`` of such a network."""
        self._load(self._own_state(state))

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """This layer's names and values for the dense network's; raises ValueError where they do not fit."""
        wanted = {"0.weight", "1.beta", "1.threshold"} | ({"0.bias"} if self.bias is not None else set())
        missing = sorted(wanted - set(state))
        if missing or ("0.bias" in state and self.bias is None):
            raise ValueError(f"state must hold {sorted(wanted)} and no other weights, got {sorted(state)}")
        own = {"weight": state["0.weight"] / self.input_scale}
        own.update({name: state[f"1.{name}"] for name in ("beta", "threshold")})
        if self.bias is not None:
            own["bias"] = state["0.bias"]
        each = (self._neurons,)
        for name, value in own.items():
            of_neurons = name in ("beta", "threshold")
            if of_neurons and value.numel() == 1:
                continue
            shape = tuple(self.weight.shape) if name == "weight" else each
            spread = tuple(self._per_neuron(torch.empty(each)).shape) if of_neurons else shape
            if tuple(value.shape) not in (shape, spread):
                raise ValueError(f"state: {name} must have shape {shape}, got {tuple(value.shape)}")
            if of_neurons:
                own[name] = value.reshape(each)
        return own

    def _dense_twin(self, linear: Union[nn.Linear, nn.Conv2d]) -> nn.Sequential:
        """``linear``, with this layer's weights, and its neurons as ``Leaky``."""
        leaky = Leaky(
            self._per_neuron(self.beta.detach().clone()),
            threshold=self._per_neuron(self.threshold.detach().clone()),
            spike_grad=self.spike_grad,
            learn_beta=isinstance(self.beta, nn.Parameter),
            learn_threshold=isinstance(self.threshold, nn.Parameter),
            reset_mechanism=self.reset_mechanism,
        )
        with torch.no_grad():
            linear.weight.copy_(self.weight * self.input_scale)
            if self.bias is not None and linear.bias is not None:
                linear.bias.copy_(self.bias)
        return nn.Sequential(linear, leaky)

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
        for name in ("beta", "threshold"):
            value = getattr(self, name)
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


class SparseLeaky(SparseNeurons):
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
        input_scale: factor of the weighted spikes. ``(1 - beta) * 10`` gives the update rule of the published sparse
            benchmark (arXiv 2311.04386).
        overflow: what is dropped where more neurons want a slot than there are: see
            :func:`snnipu.ops.select_spikes`.
        recurrent: whether the layer reads its own spikes of the step before, through ``recurrent_weight``.
        path: ``"sparse"``, ``"dense"`` (matrix products over all time steps), or ``"auto"``: whichever is faster at the
            measured activity of the input. The results are the same, up to the order of the additions. On CUDA the
            activity is that of a few calls before, so that the host need not wait, and a dense tensor stays dense.

    Attributes:
        weight: ``[out, in]``.
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
    ) -> None:
        super().__init__()
        self.in_features = check_features("in_features", in_features)
        self.out_features = check_features("out_features", out_features)
        if fused(spike_grad)[1] is not None and recurrent:
            raise ValueError(f"spike_grad must be a fused surrogate where recurrent=True, got {spike_grad!r}")
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.recurrent_weight = nn.Parameter(torch.empty(out_features, out_features)) if recurrent else None
        self._neurons = self.out_features
        self._set_neurons(
            beta,
            threshold,
            learn_beta,
            learn_threshold,
            grad_threshold,
            max_spikes,
            reset_mechanism,
            spike_grad,
            input_scale,
            overflow,
            path,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """``nn.Linear``'s initial weights."""
        init_like_linear(self.weight, self.bias)
        if self.recurrent_weight is not None:
            init_like_linear(self.recurrent_weight, None)

    def forward(self, x: Union[torch.Tensor, SparseSpikes], *, delay: int = 0) -> SparseSpikes:
        """All time steps of a batch.

        Args:
            x: SparseSpikes of ``in_features`` neurons, or a dense ``[T, B, in]`` of any real dtype (bool: True is a
                spike). A dense tensor that needs a gradient gets the whole of it, by way of the matrix product, unless
                ``path="sparse"``: then only its nonzero elements do.
            delay: steps that the input takes to arrive.

        Returns:
            SparseSpikes of ``out_features`` neurons.

        Raises:
            TypeError, ValueError: ``x`` of another type, shape or device; the message says which.
        """
        check_delay(delay)
        path = "sparse" if self.recurrent_weight is not None else self.path
        chosen = choose_path(x, self.weight, path, self._measured)
        if isinstance(chosen, SparseSpikes):
            out = ops.sparse_lif_sequence(
                chosen,
                self.weight,
                self.bias,
                **self._neuron_options(),
                delay=delay,
                recurrent_weight=self.recurrent_weight,
            )
        else:
            out = self._dense(chosen, delay)
        self._last = out._totals()
        return out

    def membranes(self, x: Union[torch.Tensor, SparseSpikes], *, delay: int = 0) -> torch.Tensor:
        """Membranes ``[T, B, out]`` for ``x``, dense: to look at, or for a loss on them. Not for recurrent layers."""
        if self.recurrent_weight is not None:
            raise ValueError("membranes: a recurrent layer's membranes depend on its spikes and are not kept")
        check_delay(delay)
        chosen = choose_path(x, self.weight, self.path, self._measured)
        if isinstance(chosen, SparseSpikes):
            current = ops.sparse_linear(chosen, self.weight)
        else:
            current = nn.functional.linear(chosen.to(self.weight.dtype), self.weight)
        return self._integrate(current, delay)

    def weighted(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)

    def _dense(self, x: torch.Tensor, delay: int) -> SparseSpikes:
        """The layer by matrix product, fused neurons and selection: what the sparse operator equals."""
        return ops.select_spikes(
            self._integrate(self.weighted(x), delay),
            self.threshold,
            self.grad_threshold,
            self.max_spikes,
            spike_grad=self.spike_grad,
            overflow=self.overflow_order,
        )

    # ---- to and from nn.Linear + Leaky

    def _own_state(self, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        self._refuse_recurrent("state")
        return super()._own_state(state)

    def to_dense(self) -> nn.Sequential:
        """``nn.Sequential(nn.Linear, Leaky)`` with the same parameters; ``Leaky`` takes ``[T, B, out]`` with
        ``.sequence``."""
        self._refuse_recurrent("to_dense")
        device, dtype = self.weight.device, self.weight.dtype
        return self._dense_twin(
            nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device=device, dtype=dtype)
        )

    def _refuse_recurrent(self, what: str) -> None:
        if self.recurrent_weight is not None:
            raise ValueError(f"{what}: a recurrent layer has no dense twin")

    def extra_repr(self) -> str:
        recurrent = ", recurrent=True" if self.recurrent_weight is not None else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self._repr_of_neurons()}{recurrent}"
