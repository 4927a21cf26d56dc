"""``snnipu.SynapticDelay``: what each channel sends arrives later."""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import nn

from snnipu._checks import check_int
from snnipu.neurons.delay_linear import check_kernel, check_sigma, delay_argument
from snnipu.ops.delay_linear import shares


class SynapticDelay(nn.Module):
    r"""What each channel sends arrives ``delay`` time steps later.

    .. math::

        y_{tbc} = \sum_{l=0}^{\text{max\_delay}} k_{cl} \, x_{(t - l) b c}

    With kernel ``"linear"``, of a delay :math:`d` clamped to ``[0, max_delay]``, :math:`k` is :math:`1 - (d - \lfloor d
    \rfloor)` at :math:`l = \lfloor d \rfloor` and the rest one step later (at ``max_delay`` nothing is left for it);
    with ``"gaussian"`` it is in proportion to :math:`\exp(-(l - d)^2 / 2 \sigma^2)`, of sum 1.

    .. code-block:: python

        delay = snn.SynapticDelay(20, channels=64, learn_delay=True)  # in a loop: one step, [B, 64], at a call
        net = snn.MultiStep(nn.Linear(140, 64), snn.Leaky(beta=0.9), delay, nn.Linear(64, 10))

    In a ``MultiStep`` all steps are one call, which starts with nothing on its way. Step by step the module keeps its
    last inputs, with their graph, from call to call, until :meth:`reset_delay` or ``utils.reset(net)``.

    Args:
        max_delay: the longest delay, in time steps.
        delay: the delays: a number, or a tensor of one element or one for each channel. Where one
            becomes NaN, its channel is NaN.
        channels: how many channels there are; None: what ``delay`` has, or one delay for all.
        learn_delay: whether they are a parameter; else a buffer.
        kernel: ``"linear"`` or ``"gaussian"``.
        sigma: of the Gaussian, in time steps; the attribute may be set anew.
        step_mode: whether a call is one step, ``[B, C, ...]``; else it is a sequence, ``[T, B, C, ...]``.

    Raises:
        TypeError, ValueError: the message names the argument.

    Source: the module of this name announced for snnTorch; :class:`DelayLinear` has a delay for each synapse.
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
        found = self._delays(delay, channels)
        if learn_delay:
            self.delay: Any = nn.Parameter(found)
        else:
            self.register_buffer("delay", found)
        # The steps before in a loop, the newest first: max_delay of them, or none. No deque: PyTorch 2.13's TorchDynamo
        # traces one with a greatest length wrongly.
        self._last: List[torch.Tensor] = []

    def _delays(self, delay: Any, channels: Optional[int]) -> torch.Tensor:
        found = delay_argument(delay)
        check_int("channels", channels, or_none=True)
        if found.dim() > 1 or (channels is not None and found.numel() not in (1, channels)):
            wanted = "one element, or one for each channel"
            wanted = wanted if channels is None else f"1 or channels = {channels} elements"
            raise ValueError(f"delay must have {wanted}, got shape {list(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"delay must be finite, got {delay!r}")
        found = found.clamp(0, self.max_delay)
        return found if channels is None else found.reshape(-1).expand(channels).clone()

    def __getstate__(self) -> Dict[str, Any]:
        # A copy has no part in the graph of what is on its way.
        return {**self.__dict__, "_last": [x.detach() for x in self._last]}

    def reset_delay(self) -> None:
        """Forget what is on its way."""
        self._last = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step ``[B, C, ...]``, or with ``step_mode=False`` all of them, ``[T, B, C, ...]``."""
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
        # From the first step on as many: each step of a compiled loop is then the same.
        known = [x, *(self._last or [torch.zeros_like(x)] * self.max_delay)]
        self._last = known[: self.max_delay]
        arriving, first = self._shares(x)
        steps = torch.stack(known)
        out: Any = 0
        for tap in range(arriving.shape[-1]):
            lag = (first + tap).clamp(max=self.max_delay)  # nothing is left for a tap behind that
            out = out + arriving[..., tap] * steps.gather(0, lag.expand(x.shape).unsqueeze(0))[0]
        return out  # type: ignore[no-any-return]

    def sequence(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, B, C, ...]`` -> the same shape: all steps, with nothing on its way before them."""
        self._check(x, 3, "[T, B, C, ...]")
        arriving, first = self._shares(x[0] if len(x) else x.new_zeros(x.shape[1:]))
        now = torch.arange(len(x), device=x.device).reshape(-1, *[1] * (x.dim() - 1))
        out: Any = x.new_zeros(x.shape)
        for tap in range(arriving.shape[-1]):
            source = (now - first - tap).expand(x.shape)
            out = out + torch.where(source >= 0, arriving[..., tap] * x.gather(0, source.clamp(min=0)), 0)
        return out  # type: ignore[no-any-return]

    def _shares(self, step: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Those of a step ``[B, C, ...]``'s channels, ``[C, 1, ..., taps]``, and their first lags, ``[C, 1, ...]``."""
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
        """All steps as one call, see :meth:`sequence`; ``num_steps``: ``x`` is one step, held constant."""
        return self.sequence(x if num_steps is None else x.unsqueeze(0).expand(num_steps, *x.shape))

    def extra_repr(self) -> str:
        kernel = f", kernel={self.kernel!r}, sigma={self.sigma:g}" if self.kernel != "linear" else ""
        learns = isinstance(self.delay, nn.Parameter)
        return f"max_delay={self.max_delay}, channels={self.delay.numel()}, learn_delay={learns}{kernel}"
