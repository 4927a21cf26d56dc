"""``snnipu.DelayLinear``: a linear layer with a delay for each synapse; and the delays of event-driven layers."""

import math
from typing import Any, Dict, Optional, Union

import torch
from torch import nn

from snnipu import _route
from snnipu._checks import check_device, check_int
from snnipu.neurons.sparse_linear import init_like_linear, input_argument
from snnipu.ops._arguments import compute_dtype
from snnipu.ops.connections import Delayed
from snnipu.ops.delay_linear import KERNELS, append_silent_steps, delay_linear, delay_linear_dense, taps
from snnipu.spikes import DenseOrSparse, SparseSpikes


def check_kernel(kernel: object) -> str:
    """Return ``kernel``; raise if no kernel has this name."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, KERNELS))}, got {kernel!r}")
    return str(kernel)


def check_sigma(sigma: object) -> float:
    """Return ``sigma`` as a float; raise if it is no finite number above 0."""
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)):
        raise TypeError(f"sigma must be a number, got {sigma!r}")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma must be above 0, got {sigma!r}")
    return float(sigma)


def delay_argument(delay: Any) -> torch.Tensor:
    """Return a copy of ``delay`` as a floating tensor."""
    if isinstance(delay, bool) or not isinstance(delay, (int, float, torch.Tensor)):
        raise TypeError(f"delay must be a number or a torch.Tensor, got {delay!r}")
    delays = torch.as_tensor(delay, dtype=None if isinstance(delay, torch.Tensor) else torch.get_default_dtype())
    if delays.is_complex() or delays.dtype == torch.bool:
        raise TypeError(f"delay must be of real numbers, got {delays.dtype}")
    return (delays if delays.is_floating_point() else delays.to(torch.get_default_dtype())).detach().clone()


class Delays:
    """A mixin: the delays of a module with ``weight`` ``[out_features, in_features]``, one a synapse or shared."""

    in_features: int
    out_features: int
    weight: torch.Tensor
    max_delay: Optional[int] = None  # no delays
    kernel = "linear"
    sigma = 1.0
    _drawn = False

    def _set_delays(self, max_delay: int, delay: Any, learn: bool) -> None:
        self.max_delay = check_int("max_delay", max_delay, 0)
        delays = self._delays(delay, self.max_delay)
        self._drawn = delay is None
        if learn:
            self.delay: Any = nn.Parameter(delays)
        else:
            self.register_buffer("delay", delays)  # type: ignore[attr-defined]

    def _delays(self, delay: Any, max_delay: int) -> torch.Tensor:
        if delay is None:
            return torch.empty(self.out_features, self.in_features)
        delays = delay_argument(delay)
        self._check_shape(delays)
        if not bool(((delays >= 0) & (delays <= max_delay)).all()):
            raise ValueError(f"delay must be from 0 to max_delay = {max_delay}, got {delay!r}")
        return delays

    def _check_shape(self, delay: torch.Tensor) -> None:
        out, count = self.out_features, self.in_features
        if tuple(delay.shape) not in ((), (out, count), (1, count), (out, 1)):
            raise ValueError(
                f"delay must have shape {[out, count]}, [1, {count}], [{out}, 1] or none, got {list(delay.shape)}"
            )

    def _draw_delays(self) -> None:
        """Draw delays uniformly, unless the constructor's caller gave them."""
        if self._drawn and self.max_delay is not None:
            nn.init.uniform_(self.delay, 0, self.max_delay)

    def _delayed_connection(self) -> Delayed:
        """Return the connection, in the dtype of the computation."""
        assert self.max_delay is not None
        if not isinstance(self.delay, torch.Tensor):
            raise TypeError(f"delay must be a torch.Tensor, got {self.delay!r}")
        self._check_shape(self.delay)
        check_device("delay", self.delay, "weight", self.weight.device)
        if tuple(self.weight.shape) != (self.out_features, self.in_features):
            raise ValueError(
                f"weight must have shape {[self.out_features, self.in_features]}, got {list(self.weight.shape)}"
            )
        weight = self.weight.to(compute_dtype(self.weight.dtype))
        return taps(weight, self.delay, self.max_delay, self.kernel, check_sigma(self.sigma))

    def _delayed_product(
        self, x: DenseOrSparse, connected: Delayed, bias: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Return the delayed product ``[T, B, out]``. An IPU has an operator for spikes alone."""
        if not _route.on_ipu():
            return delay_linear(x, connected, bias)
        if isinstance(x, SparseSpikes) and _route.uses_operator(type(self).__name__, "DelayLinear"):
            currents: torch.Tensor = _route.call("delay_linear", x, connected, bias)
            return currents
        assert self.max_delay is not None
        assert isinstance(x, torch.Tensor)
        return delay_linear_dense(x.to(connected.weight.dtype), connected, self.max_delay, bias)

    @torch.no_grad()
    def round_(self) -> Any:
        """Round the delays to whole steps, in place, so that each spike arrives once; return the layer."""
        if self.max_delay is None:
            raise ValueError("round_: the layer has no delays")
        self.delay.copy_(self.delay.clamp(0, self.max_delay).round())
        return self

    def _repr_of_delays(self) -> str:
        whole = tuple(self.delay.shape) == (self.out_features, self.in_features)
        shape = "" if whole else f", delay={list(self.delay.shape)}"
        learns = "" if isinstance(self.delay, nn.Parameter) else ", learn_delay=False"
        kernel = f", kernel={self.kernel!r}, sigma={self.sigma:g}" if self.kernel != "linear" else ""
        return f"max_delay={self.max_delay}{shape}{learns}{kernel}"


class DelayLinear(Delays, nn.Module):
    r"""A linear layer whose synapses have a weight and a delay each.

    .. math::

        y_{tbo} = \sum_i W_{oi} \sum_{l=0}^{\text{max\_delay}} k_{oil} \, x_{(t - l) b i} + b_o

    A delay :math:`d_{oi}` is a real number of time steps in [0, ``max_delay``]. The kernel :math:`k` distributes an
    input over later steps; its sum is 1:

    * ``"linear"``: :math:`1 - (d - \lfloor d \rfloor)` at lag :math:`l = \lfloor d \rfloor`, the rest at the next lag.
    * ``"gaussian"``: proportional to :math:`\exp(-(l - d)^2 / 2 \sigma^2)` at all lags.

    Inputs before the first step of a call are zeros. Currents that would arrive after its last step are lost.

    .. code-block:: python

        net = snn.MultiStep(snn.DelayLinear(140, 128, max_delay=25), snn.Leaky(beta=0.9), nn.Linear(128, 10))
        out = net(x)  # x: [T, B, 140], dense or SparseSpikes

    With ``init_hidden=True`` each call continues the last one, and may be one step ``[B, in]``. The module keeps the
    currents that arrive later, with their autograd graph, until :meth:`reset_delay` or ``utils.reset(net)``;
    :meth:`detach_delay` cuts the graph. Results do not depend on the division of a stream into calls, up to the order
    of additions. These currents are in no ``state_dict``, and a copy of the module has them without their graph.

    The cost of a spike is the number of its synapses' taps, however long the delays are, on CPUs and CUDA devices in
    float32 and float64, and on IPUs for SparseSpikes. Otherwise the layer computes one product for each lag. 16-bit
    weights are computed in float32.

    Args:
        in_features: neurons of the input.
        out_features: neurons of the output.
        max_delay: the longest delay, in time steps.
        delay: delays in time steps: a number, or a tensor of shape ``[out, in]``, ``[1, in]`` (one for each input:
            axonal) or ``[out, 1]`` (one for each output: dendritic). None: ``[out, in]``, drawn uniformly from [0,
            ``max_delay``].
        learn_delay: if True, ``delay`` is an ``nn.Parameter``, otherwise a buffer.
        bias: if True, the layer has a learnable bias.
        kernel: ``"linear"`` or ``"gaussian"``.
        sigma: :math:`\sigma`, the width of the Gaussian in time steps. The attribute may be set at any time, so that
            training can lower it.
        init_hidden: if True, currents that arrive after a call's last step arrive in the next call.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``, or None.
        delay: of the shape given, or ``[out, in]``. Values beyond [0, ``max_delay``] count as the nearer bound, with
            zero gradient. A synapse with a delay of NaN outputs NaN.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument. With ``init_hidden=True``, a
            call has another batch size than the call that it continues.
        RuntimeError: ``init_hidden=True`` on an IPU or its model, whose graph keeps no currents between calls.

    Sources: Hammouamri et al., "Learning delays in spiking neural networks using dilated convolutions with learnable
    spacings", ICLR 2024, for the Gaussian; Goeltz et al., "DelGrad", 2025, and Meszaros et al., arXiv 2501.07331, for
    delays of events.
    """

    takes_whole_sequences = True  # in a MultiStep
    max_delay: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        max_delay: int,
        *,
        delay: Union[float, torch.Tensor, None] = None,
        learn_delay: bool = True,
        bias: bool = False,
        kernel: str = "linear",
        sigma: float = 1.0,
        init_hidden: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(init_hidden, bool):
            raise TypeError(f"init_hidden must be a bool, got {init_hidden!r}")
        self.init_hidden = init_hidden
        # The currents [max_delay, B, out] that arrive after the last call; None before the first call.
        self._in_transit: Optional[torch.Tensor] = None
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.kernel, self.sigma = check_kernel(kernel), check_sigma(sigma)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self._set_delays(max_delay, delay, learn_delay)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias as ``nn.Linear`` does, and delays uniformly unless the caller gave them."""
        init_like_linear(self.weight, self.bias)
        self._draw_delays()

    def __getstate__(self) -> Dict[str, Any]:
        # A copy has the currents in transit without their autograd graph.
        return {**self.__dict__, "_in_transit": None if self._in_transit is None else self._in_transit.detach()}

    def reset_delay(self) -> None:
        """Forget the currents in transit: the next call begins another sequence."""
        self._in_transit = None

    def detach_delay(self) -> None:
        """Detach the currents in transit: gradients of later calls do not reach earlier calls."""
        if self._in_transit is not None:
            self._in_transit = self._in_transit.detach()

    def forward(self, x: DenseOrSparse) -> torch.Tensor:
        """Return the output currents ``[T, B, out]``.

        Args:
            x: SparseSpikes of ``in_features`` neurons, or a dense ``[T, B, in]`` of any real dtype. With
                ``init_hidden=True`` also one step ``[B, in]``; the result is then ``[B, out]``.

        Raises:
            TypeError, ValueError: wrong type, shape or device. With ``init_hidden=True``, another batch size than in
                the call before.
        """
        if not self.init_hidden:
            return self.sequence(x)
        _route.uses_operator("DelayLinear with init_hidden=True")  # raises on an IPU, which has no such operator
        if isinstance(x, torch.Tensor) and x.dim() == 2:
            return self.forward(x.unsqueeze(0))[0]
        x = self._check_input(x)
        steps, batch = x.shape[:2]
        arriving, before = (
            delay_linear(append_silent_steps(x, self.max_delay), self._delayed_connection()),
            self._in_transit,
        )
        if before is not None:
            expected = (self.max_delay, batch, self.out_features)
            if before.shape != expected or before.dtype != arriving.dtype or before.device != arriving.device:
                raise ValueError(
                    f"x must go on with the batch of {before.shape[1]} samples of the call before ({before.dtype} on "
                    f"{before.device}), and max_delay={before.shape[0]}, got {batch} ({arriving.dtype} on "
                    f"{arriving.device}), and max_delay={self.max_delay}: call reset_delay() where another sequence "
                    "begins"
                )
            arriving = torch.cat([arriving[: self.max_delay] + before, arriving[self.max_delay :]])
        # A copy, so that these few steps do not keep the memory of a long call alive.
        out, self._in_transit = arriving[:steps], arriving[steps:].clone()
        bias = self._bias(out.dtype)
        return out if bias is None else out + bias

    def sequence(self, x: DenseOrSparse) -> torch.Tensor:
        """Run all steps with zeros before the first, whether ``init_hidden`` is True or not.

        Args:
            x: SparseSpikes of ``in_features`` neurons, or a dense ``[T, B, in]`` of any real dtype.

        Returns:
            The output currents ``[T, B, out]``.

        Raises:
            TypeError, ValueError: wrong type, shape or device.
        """
        x, connected = self._check_input(x), self._delayed_connection()
        return self._delayed_product(x, connected, self._bias(connected.weight.dtype))

    def _bias(self, dtype: torch.dtype) -> Optional[torch.Tensor]:
        bias = self.bias
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ValueError(f"bias must have shape [{self.out_features}], got {list(bias.shape)}")
        return None if bias is None else bias.to(dtype)

    def _check_input(self, x: DenseOrSparse) -> DenseOrSparse:
        x = input_argument(x, self.in_features, self.weight)
        return x.to(compute_dtype(self.weight.dtype)) if isinstance(x, torch.Tensor) else x

    def extra_repr(self) -> str:
        hidden = ", init_hidden=True" if self.init_hidden else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, {self._repr_of_delays()}, "
            f"bias={self.bias is not None}{hidden}"
        )
