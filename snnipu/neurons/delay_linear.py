"""``snnipu.DelayLinear``: a linear layer whose synapses have a time each."""

import math
from typing import Any, Dict, Optional, Union

import torch
from torch import nn

from snnipu import _route
from snnipu._checks import check_device, check_int
from snnipu.neurons.sparse_linear import init_like_linear
from snnipu.ops._arguments import compute_dtype
from snnipu.ops.connections import Delayed
from snnipu.ops.delay_linear import KERNELS, append_silent_steps, delay_linear, delay_linear_dense, taps
from snnipu.ops.dense_to_sparse import dense_argument
from snnipu.spikes import SparseSpikes


def check_kernel(kernel: object) -> str:
    """``kernel`` is the name of one."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, KERNELS))}, got {kernel!r}")
    return str(kernel)


def check_sigma(sigma: object) -> float:
    """``sigma`` is a number above 0."""
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)):
        raise TypeError(f"sigma must be a number, got {sigma!r}")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma must be above 0, got {sigma!r}")
    return float(sigma)


def delay_argument(delay: Any) -> torch.Tensor:
    """Return ``delay`` as a floating tensor of its own."""
    if isinstance(delay, bool) or not isinstance(delay, (int, float, torch.Tensor)):
        raise TypeError(f"delay must be a number or a torch.Tensor, got {delay!r}")
    found = torch.as_tensor(delay, dtype=None if isinstance(delay, torch.Tensor) else torch.get_default_dtype())
    if found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"delay must be of real numbers, got {found.dtype}")
    return (found if found.is_floating_point() else found.to(torch.get_default_dtype())).detach().clone()


class Delays:
    """A module's delays, one for each synapse or shared: of ``weight`` ``[out_features, in_features]``."""

    in_features: int
    out_features: int
    weight: torch.Tensor
    max_delay: Optional[int] = None  # no delays
    kernel = "linear"
    sigma = 1.0
    _drawn = False

    def _set_delays(self, max_delay: int, delay: Any, learn: bool) -> None:
        self.max_delay = check_int("max_delay", max_delay, 0)
        found = self._delays(delay, self.max_delay)
        self._drawn = delay is None
        if learn:
            self.delay: Any = nn.Parameter(found)
        else:
            self.register_buffer("delay", found)  # type: ignore[attr-defined]

    def _delays(self, delay: Any, max_delay: int) -> torch.Tensor:
        if delay is None:
            return torch.empty(self.out_features, self.in_features)
        found = delay_argument(delay)
        self._check_shape(found)
        if not bool(((found >= 0) & (found <= max_delay)).all()):
            raise ValueError(f"delay must be from 0 to max_delay = {max_delay}, got {delay!r}")
        return found

    def _check_shape(self, delay: torch.Tensor) -> None:
        out, count = self.out_features, self.in_features
        if tuple(delay.shape) not in ((), (out, count), (1, count), (out, 1)):
            raise ValueError(
                f"delay must have shape {[out, count]}, [1, {count}], [{out}, 1] or none, got {list(delay.shape)}"
            )

    def _draw_delays(self) -> None:
        """Draw those that were not given uniformly."""
        if self._drawn and self.max_delay is not None:
            nn.init.uniform_(self.delay, 0, self.max_delay)

    def _taps(self) -> Delayed:
        """The connection, in the dtype that is computed in."""
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

    def _arriving(
        self, x: Union[torch.Tensor, SparseSpikes], connected: Delayed, bias: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """What arrives ``[T, B, out]``. On an IPU spikes have an operator; for a dense tensor products do the same."""
        if not _route.on_ipu():
            return delay_linear(x, connected, bias)
        if isinstance(x, SparseSpikes) and _route.uses_operator(type(self).__name__, "DelayLinear"):
            made: torch.Tensor = _route.call("delay_linear", x, connected, bias)
            return made
        assert self.max_delay is not None
        assert isinstance(x, torch.Tensor)
        return delay_linear_dense(x.to(connected.weight.dtype), connected, self.max_delay, bias)

    @torch.no_grad()
    def round_(self) -> Any:
        """Round the delays to whole steps, in place: each spike then arrives once. Returns the layer."""
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
    r"""A linear layer whose synapses have a weight and a delay each: what an input spikes arrives later.

    .. math::

        y_{tbo} = \sum_i W_{oi} \, x_i(t - d_{oi}) + b_o

    A delay is a real number of time steps in ``[0, max_delay]``; between steps a spike arrives at both. With kernel
    ``"linear"`` that is at :math:`\lfloor d \rfloor` with weight :math:`1 - (d - \lfloor d \rfloor)`, and one step
    later with the rest; with ``"gaussian"`` at every step ``l`` in ``[0, max_delay]``, with a weight in proportion to
    :math:`\exp(-(l - d)^2 / 2 \sigma^2)`, of sum 1. What has not arrived by the last step of a call is lost; nothing is
    on its way before the first.

    .. code-block:: python

        net = snn.MultiStep(snn.DelayLinear(140, 128, max_delay=25), snn.Leaky(beta=0.9), nn.Linear(128, 10))
        out = net(x)  # [T, B, 140]

    With ``init_hidden=True`` calls go on where the last one ended, and a call may be one step ``[B, in]``: the module
    keeps the currents on their way, with their graph, until :meth:`reset_delay` or ``utils.reset(net)``;
    :meth:`detach_delay` cuts the graph between two calls. A stream in any division into calls gives the numbers of the
    whole, up to the order of the additions. The currents on their way are in no ``state_dict``; a copy of the module
    has them without their graph.

    On a CPU and on CUDA devices, in float32 and float64, and on an IPU where ``x`` is SparseSpikes, a spike costs its
    synapses' taps, however long the delays are; elsewhere it is a sum of products, one for each step of the longest
    delay. Weights in 16 bits are computed in float32.

    Args:
        in_features, out_features: as ``nn.Linear``'s.
        max_delay: the longest delay, in time steps.
        delay: the delays: a number, or a tensor of shape ``[out, in]``, ``[1, in]`` (one for each input: axonal) or
            ``[out, 1]`` (one for each output: dendritic); None: ``[out, in]``, uniform in ``[0, max_delay]``.
        learn_delay: whether they are a parameter; else a buffer.
        bias: whether to add a learnable bias.
        kernel: ``"linear"`` or ``"gaussian"``.
        sigma: of the Gaussian, in time steps; the attribute may be set anew, for a training that lowers it.
        init_hidden: whether what is on its way at the end of a call arrives in the next one; else it is lost.

    Attributes:
        weight: ``[out, in]``.
        delay: as given. Beyond ``[0, max_delay]`` it counts as the end, and has no gradient. A synapse whose delay is
            NaN gives NaN.

    Raises:
        TypeError, ValueError: the message names the argument; a call that goes on with another batch size.
        RuntimeError: on an IPU or its model with ``init_hidden=True``, whose graph does not keep what is on its way.

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
        # The currents on their way [max_delay, B, out] behind the last call, and None before the first.
        self._coming: Optional[torch.Tensor] = None
        self.in_features = check_int("in_features", in_features)
        self.out_features = check_int("out_features", out_features)
        self.kernel, self.sigma = check_kernel(kernel), check_sigma(sigma)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self._set_delays(max_delay, delay, learn_delay)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias as ``nn.Linear``'s are, and delays that were not given uniformly."""
        init_like_linear(self.weight, self.bias)
        self._draw_delays()

    def __getstate__(self) -> Dict[str, Any]:
        # A copy has no part in the graph of what is on its way.
        return {**self.__dict__, "_coming": None if self._coming is None else self._coming.detach()}

    def reset_delay(self) -> None:
        """Forget what is on its way."""
        self._coming = None

    def detach_delay(self) -> None:
        """Cut the graph of what is on its way: gradients of later calls do not go back through it."""
        if self._coming is not None:
            self._coming = self._coming.detach()

    def forward(self, x: Union[torch.Tensor, SparseSpikes]) -> torch.Tensor:
        """``x``: SparseSpikes, or a dense ``[T, B, in]`` of any real dtype -> ``[T, B, out]``.

        With ``init_hidden=True`` one step ``[B, in]`` -> ``[B, out]``, too.
        """
        if not self.init_hidden:
            return self.sequence(x)
        _route.uses_operator("DelayLinear with init_hidden=True")  # an error where it must have one
        if isinstance(x, torch.Tensor) and x.dim() == 2:
            return self.forward(x.unsqueeze(0))[0]
        x = self._checked(x)
        steps, batch = x.shape[:2]
        arriving, before = delay_linear(append_silent_steps(x, self.max_delay), self._taps()), self._coming
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
        # A copy: a few steps do not hold the memory of a long call.
        out, self._coming = arriving[:steps], arriving[steps:].clone()
        bias = self._bias(out.dtype)
        return out if bias is None else out + bias

    def sequence(self, x: Union[torch.Tensor, SparseSpikes]) -> torch.Tensor:
        """All steps, with nothing on its way before them and whatever ``init_hidden`` is."""
        x, connected = self._checked(x), self._taps()
        return self._arriving(x, connected, self._bias(connected.weight.dtype))

    def _bias(self, dtype: torch.dtype) -> Optional[torch.Tensor]:
        bias = self.bias
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ValueError(f"bias must have shape [{self.out_features}], got {list(bias.shape)}")
        return None if bias is None else bias.to(dtype)

    def _checked(self, x: Union[torch.Tensor, SparseSpikes]) -> Union[torch.Tensor, SparseSpikes]:
        if isinstance(x, SparseSpikes):
            if x.num_neurons != self.in_features:
                raise ValueError(f"x must be spikes of in_features = {self.in_features} neurons, got {x.num_neurons}")
        else:
            if isinstance(x, torch.Tensor) and not x.is_complex():
                x = x.to(compute_dtype(self.weight.dtype))
            x = dense_argument("x", x)
            if x.shape[2] != self.in_features:
                raise ValueError(f"x must have shape [T, B, in_features={self.in_features}], got {tuple(x.shape)}")
        check_device("x", x, "the layer", self.weight.device)
        return x

    def extra_repr(self) -> str:
        hidden = ", init_hidden=True" if self.init_hidden else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, {self._repr_of_delays()}, "
            f"bias={self.bias is not None}{hidden}"
        )
