"""``snnipu.SynapticDelay``: a layer that delays each channel."""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import nn

from snnipu._checks import check_int
from snnipu.neurons.delay_linear import check_kernel, check_sigma, delay_argument
from snnipu.ops.delay_linear import shares


class SynapticDelay(nn.Module):
    r"""A layer that delays each channel by a real number of time steps, which can be learnt.

    .. math::

        y_{tbc} = \sum_{l=0}^{\text{max\_delay}} k_{cl} \, x_{(t - l) b c}

    The kernel :math:`k` distributes an input over later steps; its sum is 1. For a delay :math:`d`:

    * ``"linear"``: :math:`1 - (d - \lfloor d \rfloor)` at lag :math:`l = \lfloor d \rfloor`, the rest at the next lag.
    * ``"gaussian"``: proportional to :math:`\exp(-(l - d)^2 / 2 \sigma^2)` at all lags.

    .. code-block:: python

        delay = snn.SynapticDelay(20, channels=64, learn_delay=True)  # in a loop: a call is one step, [B, 64]
        net = snn.MultiStep(nn.Linear(140, 64), snn.Leaky(beta=0.9), delay, nn.Linear(64, 10))

    In a ``MultiStep`` one call runs all steps, with zeros before the first. In a loop, the module keeps its last
    ``max_delay`` inputs and their autograd graph, until :meth:`reset_delay` or ``utils.reset(net)``.

    Args:
        max_delay: the longest delay, in time steps.
        delay: delays in time steps, clamped to [0, ``max_delay``]: a number, or a tensor of one element or ``[C]``.
        channels: number of channels ``C``; None: the length of ``delay``, or any number if all share one delay.
        learn_delay: if True, ``delay`` is an ``nn.Parameter``, otherwise a buffer. A delay that becomes NaN makes its
            channel NaN.
        kernel: ``"linear"`` or ``"gaussian"``.
        sigma: :math:`\sigma`, the width of the Gaussian in time steps. The attribute may be set at any time.
        step_mode: if True, a call is one step ``[B, C, ...]``. If False, it is a sequence ``[T, B, C, ...]``.

    Attributes:
        delay: the delays, ``[C]`` or of one element.

    Raises:
        TypeError, ValueError: wrong type, shape or value; the message names the argument.

    Source: the module of this name that snnTorch has announced. :class:`DelayLinear` has a delay for each synapse.
    """

    def __init__(
        self,
        max_delay: int,
        delay: Union[float, torch.Tensor] = 0.0,
        channels: Optional[int] = None,
        learn_delay: bool = False,
        kernel: str = "linear",
        sigma: float = 1.0,
        step_mode: bool = True,
    ) -> None:
        super().__init__()
        self.max_delay = check_int("max_delay", max_delay, 0)
        self.kernel, self.sigma = check_kernel(kernel), check_sigma(sigma)
        self.step_mode = step_mode
        delays = self._delays(delay, channels)
        if learn_delay:
            self.delay: Any = nn.Parameter(delays)
        else:
            self.register_buffer("delay", delays)
        # The last max_delay inputs of a loop, the newest first, or none. TorchDynamo of PyTorch 2.13 traces a deque
        # with a maximum length wrongly.
        self._last: List[torch.Tensor] = []

    def _delays(self, delay: Any, channels: Optional[int]) -> torch.Tensor:
        delays = delay_argument(delay)
        check_int("channels", channels, or_none=True)
        if delays.dim() > 1 or (channels is not None and delays.numel() not in (1, channels)):
            expected = "one element, or one for each channel"
            expected = expected if channels is None else f"1 or channels = {channels} elements"
            raise ValueError(f"delay must have {expected}, got shape {list(delays.shape)}")
        if not bool(torch.isfinite(delays).all()):
            raise ValueError(f"delay must be finite, got {delay!r}")
        delays = delays.clamp(0, self.max_delay)
        return delays if channels is None else delays.reshape(-1).expand(channels).clone()

    def __getstate__(self) -> Dict[str, Any]:
        # A copy has the stored inputs without their autograd graph.
        return {**self.__dict__, "_last": [x.detach() for x in self._last]}

    def reset_delay(self) -> None:
        """Forget the stored inputs: the next step begins another sequence."""
        self._last = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the delayed input, of the input's shape.

        Args:
            x: floating tensor, one step ``[B, C, ...]``; with ``step_mode=False`` all steps ``[T, B, C, ...]``.

        Raises:
            TypeError: ``x`` is no floating tensor.
            ValueError: ``x`` has another number of channels. Or it differs from the step before in shape, dtype or
                device.
        """
        return self._step(x) if self.step_mode else self.sequence(x)

    def _step(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x, 2, "[B, C, ...]")
        last = self._last[0] if self._last else x
        if last.shape != x.shape or last.dtype != x.dtype or last.device != x.device:
            raise ValueError(
                f"x must have the shape {list(last.shape)} of the step before ({last.dtype} on {last.device}), got "
                f"{list(x.shape)} ({x.dtype} on {x.device}): call reset_delay() where another sequence begins"
            )
        if self._last and len(self._last) != self.max_delay:
            raise ValueError(
                f"max_delay was {len(self._last)} at the step before, and is {self.max_delay}: call reset_delay() "
                "where another sequence begins"
            )
        # max_delay inputs from the first step on, so that all steps of a compiled loop are equal.
        inputs = [x.clone(), *(self._last or [torch.zeros_like(x)] * self.max_delay)]  # callers may write into x
        self._last = inputs[: self.max_delay]
        arriving, first = self._shares(x)
        steps = torch.stack(inputs)
        out: Any = 0
        for tap in range(arriving.shape[-1]):
            lag = (first + tap).clamp(max=self.max_delay)  # the share of a later tap is 0
            out = out + arriving[..., tap] * steps.gather(0, lag.expand(x.shape).unsqueeze(0))[0]
        return out  # type: ignore[no-any-return]

    def sequence(self, x: torch.Tensor) -> torch.Tensor:
        """Return the delayed input of all steps, with zeros before the first.

        Args:
            x: floating tensor ``[T, B, C, ...]``; the result has its shape.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        self._check(x, 3, "[T, B, C, ...]")
        arriving, first = self._shares(x[0] if len(x) else x.new_zeros(x.shape[1:]))
        now = torch.arange(len(x), device=x.device).reshape(-1, *[1] * (x.dim() - 1))
        out: Any = x.new_zeros(x.shape)
        for tap in range(arriving.shape[-1]):
            source = (now - first - tap).expand(x.shape)
            out = out + torch.where(source >= 0, arriving[..., tap] * x.gather(0, source.clamp(min=0)), 0)
        return out  # type: ignore[no-any-return]

    def _shares(self, step: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the kernels ``[C, 1, ..., taps]`` and first lags ``[C, 1, ...]`` for steps ``[B, C, ...]``."""
        delay = self.delay.to(step.dtype).reshape(-1, *[1] * (step.dim() - 2))
        arriving, first = shares(delay, self.max_delay, self.kernel, check_sigma(self.sigma))
        return arriving, first.long()

    def _check(self, x: Any, least: int, shape: str) -> None:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise TypeError(f"x must be a floating torch.Tensor, got {getattr(x, 'dtype', type(x).__name__)}")
        if x.dim() < least or (self.delay.numel() > 1 and x.shape[least - 1] != self.delay.numel()):
            channels = f" of {self.delay.numel()} channels" if self.delay.numel() > 1 else ""
            raise ValueError(f"x must have shape {shape}{channels}, got {list(x.shape)}")

    # ---- in a MultiStep

    def runs_fused(self) -> bool:
        return type(self).forward is SynapticDelay.forward and "forward" not in self.__dict__

    def resumes(self) -> bool:
        return False

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> torch.Tensor:
        """Run all steps for ``MultiStep``; with ``num_steps``, ``x`` is the same at every step."""
        return self.sequence(x if num_steps is None else x.unsqueeze(0).expand(num_steps, *x.shape))

    def extra_repr(self) -> str:
        kernel = f", kernel={self.kernel!r}, sigma={self.sigma:g}" if self.kernel != "linear" else ""
        learns = isinstance(self.delay, nn.Parameter)
        return f"max_delay={self.max_delay}, channels={self.delay.numel()}, learn_delay={learns}{kernel}"
