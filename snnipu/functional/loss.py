"""snnTorch's losses without Python loops over samples, and without backward passes in the square of the steps.

Values and gradients are snnTorch's; a loss is an instance of snnTorch's class.
"""

import inspect
from typing import Any, List, Tuple

import snntorch.functional.loss
import torch
from snntorch import spikegen
from torch import nn

_stock: Any = snntorch.functional.loss


def _numbered(spk_rec: torch.Tensor, device: Any) -> torch.Tensor:
    """Return the spikes ``[T, ...]`` with step ``t`` multiplied by ``t + 1``."""
    steps = torch.arange(len(spk_rec), device=device) + 1
    return (spk_rec.transpose(0, -1) * steps).transpose(0, -1)


def _first_times(spk_rec: torch.Tensor, device: Any) -> torch.Tensor:
    """Return the time of each neuron's first spike; the last step where it has none."""
    times = _numbered(spk_rec, device)
    fired = times.bool()
    comes_first = fired.cumsum(0, dtype=torch.int32) - fired.to(torch.int32) == 0
    first = (times * comes_first).sum(0)
    first += ~first.bool() * len(spk_rec)
    first -= 1
    return first


def _as_steps(times: torch.Tensor, num_steps: int) -> torch.Tensor:
    """Return spike times as indices. Spikes that are not 0 or 1 may give other times, which are an IndexError."""
    steps = times.long()
    outside = (steps < -num_steps) | (steps >= num_steps)
    if bool(outside.any()):
        raise IndexError(
            f"index {int(steps[outside][0])} is out of bounds for the {num_steps} steps of spk_out: its spikes must be "
            "0 or 1"
        )
    return steps % num_steps


class SpikeTime(_stock.SpikeTime):  # type: ignore[misc]
    """``snntorch.functional.loss.SpikeTime``: spike times of all samples and neurons at once."""

    class FirstSpike(_stock.SpikeTime.FirstSpike):  # type: ignore[misc]
        """Times of the first spikes ``[B, N]`` of ``spk_rec`` ``[T, B, N]``. Its gradient is -1 at these spikes."""

        @staticmethod
        def forward(ctx: Any, spk_rec: torch.Tensor, device: Any = "cpu") -> torch.Tensor:
            if not len(spk_rec):
                return _stock.SpikeTime.FirstSpike.forward(ctx, spk_rec, device)  # type: ignore[no-any-return]
            times = _first_times(spk_rec, device)
            ctx.save_for_backward(times, spk_rec)
            return times

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> Tuple[Any, ...]:
            times, spk_rec = ctx.saved_tensors
            if spk_rec.dim() != 3:
                return _stock.SpikeTime.FirstSpike.backward(ctx, grad_output)  # type: ignore[no-any-return]
            steps = _as_steps(times, len(spk_rec))
            return -grad_output * torch.zeros_like(spk_rec).scatter_(0, steps.unsqueeze(0), 1.0), None

    class MultiSpike(_stock.SpikeTime.MultiSpike):  # type: ignore[misc]
        """Times of the first ``spk_count`` spikes ``[F, B, N]`` of ``spk_rec`` ``[T, B, N]``.

        As in snnTorch, a step at which any neuron has its n-th spike counts for none of them from then on.
        """

        @staticmethod
        def forward(ctx: Any, spk_rec: torch.Tensor, spk_count: int, device: Any = "cpu") -> torch.Tensor:
            if not len(spk_rec):
                return _stock.SpikeTime.MultiSpike.forward(ctx, spk_rec, spk_count, device)  # type: ignore[no-any-return]
            left, found = spk_rec.clone(), []
            for _ in range(spk_count):
                times = _first_times(left, device)
                found.append(times)
                used = torch.zeros(len(left), dtype=torch.bool, device=left.device)
                used[_as_steps(times, len(left)).reshape(-1)] = True
                left.masked_fill_(used.reshape(-1, *[1] * (left.dim() - 1)), 0)
            all_times = torch.stack(found)
            ctx.save_for_backward(all_times, spk_rec)
            return all_times

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> Tuple[Any, ...]:
            times, spk_rec = ctx.saved_tensors
            if spk_rec.dim() != 3:
                return _stock.SpikeTime.MultiSpike.backward(ctx, grad_output)  # type: ignore[no-any-return]
            grad, steps = torch.zeros_like(spk_rec), _as_steps(times, len(spk_rec))
            for step, upstream in zip(steps, grad_output):
                # The n-th spikes one after the other: the last of several at one step counts, as in snnTorch.
                grad.scatter_(0, step.unsqueeze(0), -upstream.unsqueeze(0).to(grad.dtype))
            return grad, None, None


class _Temporal:
    """Losses of spike times."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        theirs = self.spk_time_fn
        targets = {} if theirs.target_is_time else {"on_target": theirs.on_target, "off_target": theirs.off_target}
        self.spk_time_fn: Any = SpikeTime(
            theirs.target_is_time, tolerance=theirs.tolerance, multi_spike=theirs.multi_spike, **targets
        )


class mse_temporal_loss(_Temporal, _stock.mse_temporal_loss):  # type: ignore[misc]
    """``snntorch.functional.mse_temporal_loss``, vectorised."""

    __signature__ = inspect.signature(_stock.mse_temporal_loss)


class ce_temporal_loss(_Temporal, _stock.ce_temporal_loss):  # type: ignore[misc]
    """``snntorch.functional.ce_temporal_loss``, vectorised."""

    __signature__ = inspect.signature(_stock.ce_temporal_loss)


class ce_rate_loss(_stock.ce_rate_loss):  # type: ignore[misc]
    """``snntorch.functional.ce_rate_loss``, whose backward pass made a tensor of all steps for each step."""

    def _compute_loss(self, spk_out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if getattr(self, "population_code", False):
            return super()._compute_loss(spk_out, targets)  # type: ignore[no-any-return]
        reduction = self._intermediate_reduction()
        loss_of_step = nn.NLLLoss(reduction=reduction, weight=self.weight)
        loss = torch.zeros(spk_out.size(1) if reduction == "none" else 1, device=spk_out.device, dtype=torch.float32)
        for log_p in nn.functional.log_softmax(spk_out, -1).unbind():
            loss += loss_of_step(log_p, targets)
        return loss / spk_out.size(0)


class mse_membrane_loss(_stock.mse_membrane_loss):  # type: ignore[misc]
    """``snntorch.functional.mse_membrane_loss``, whose backward pass made a tensor of all steps for each step."""

    def _compute_loss(self, mem_out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted = spikegen.targets_convert(
            targets, num_classes=mem_out.size(-1), on_target=self.on_target, off_target=self.off_target
        )
        reduction = self._intermediate_reduction()
        loss_of_step = nn.MSELoss(reduction=reduction)
        loss = torch.zeros(mem_out[0].shape if reduction == "none" else 1, device=mem_out.device, dtype=torch.float32)
        for step, mem in enumerate(mem_out.unbind()):
            loss += loss_of_step(mem, wanted[step] if self.time_var_targets else wanted)
        if self.weight is not None:
            loss = loss * self.weight[targets]
        return loss / mem_out.size(0)


def __getattr__(name: str) -> Any:
    return getattr(_stock, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *dir(_stock)})
