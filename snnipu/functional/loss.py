"""snnTorch's losses, vectorised over samples, with backward passes in time linear in the steps.

Values and gradients equal snnTorch's. Each loss is a subclass of snnTorch's class. :func:`padded_loss` is ours.
"""

import inspect
from typing import Any, List, Tuple

import snntorch.functional.loss
import torch
from snntorch import spikegen
from torch import nn

from snnipu.ops._arguments import check_lengths

_stock: Any = snntorch.functional.loss


def _numbered(spk_rec: torch.Tensor, device: Any) -> torch.Tensor:
    """Return the spikes ``[T, ...]`` with step ``t`` multiplied by ``t + 1``."""
    steps = torch.arange(len(spk_rec), device=device) + 1
    return (spk_rec.transpose(0, -1) * steps).transpose(0, -1)


def _first_times(spk_rec: torch.Tensor, device: Any) -> torch.Tensor:
    """Return the time of each neuron's first spike; the last step if it has none."""
    times = _numbered(spk_rec, device)
    fired = times.bool()
    comes_first = fired.cumsum(0, dtype=torch.int32) - fired.to(torch.int32) == 0
    first = (times * comes_first).sum(0)
    first += ~first.bool() * len(spk_rec)
    first -= 1
    return first


def _as_steps(times: torch.Tensor, num_steps: int) -> torch.Tensor:
    """Return spike times as indices; raise IndexError if they are no steps, as for spikes other than 0 and 1."""
    steps = times.long()
    outside = (steps < -num_steps) | (steps >= num_steps)
    if bool(outside.any()):
        raise IndexError(
            f"index {int(steps[outside][0])} is out of bounds for the {num_steps} steps of spk_out: its spikes must be "
            "0 or 1"
        )
    return steps % num_steps


class SpikeTime(_stock.SpikeTime):  # type: ignore[misc]
    """``snntorch.functional.loss.SpikeTime`` for all samples and neurons at once."""

    class FirstSpike(_stock.SpikeTime.FirstSpike):  # type: ignore[misc]
        """The times ``[B, N]`` of the first spikes in ``spk_rec`` ``[T, B, N]``. At these spikes the gradient is -1."""

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
        """The times ``[F, B, N]`` of the first ``spk_count`` (F) spikes in ``spk_rec`` ``[T, B, N]``.

        As in snnTorch, a step at which a neuron has its n-th spike is removed for all neurons before the next spikes.
        """

        @staticmethod
        def forward(ctx: Any, spk_rec: torch.Tensor, spk_count: int, device: Any = "cpu") -> torch.Tensor:
            if not len(spk_rec):
                return _stock.SpikeTime.MultiSpike.forward(ctx, spk_rec, spk_count, device)  # type: ignore[no-any-return]
            remaining, nth_times = spk_rec.clone(), []
            for _ in range(spk_count):
                times = _first_times(remaining, device)
                nth_times.append(times)
                used = torch.zeros(len(remaining), dtype=torch.bool, device=remaining.device)
                used[_as_steps(times, len(remaining)).reshape(-1)] = True
                remaining.masked_fill_(used.reshape(-1, *[1] * (remaining.dim() - 1)), 0)
            all_times = torch.stack(nth_times)
            ctx.save_for_backward(all_times, spk_rec)
            return all_times

        @staticmethod
        def backward(ctx: Any, grad_output: torch.Tensor) -> Tuple[Any, ...]:
            times, spk_rec = ctx.saved_tensors
            if spk_rec.dim() != 3:
                return _stock.SpikeTime.MultiSpike.backward(ctx, grad_output)  # type: ignore[no-any-return]
            grad, steps = torch.zeros_like(spk_rec), _as_steps(times, len(spk_rec))
            for step, upstream in zip(steps, grad_output):
                # In order of n: of several spikes at one step, the last one determines the gradient, as in snnTorch.
                grad.scatter_(0, step.unsqueeze(0), -upstream.unsqueeze(0).to(grad.dtype))
            return grad, None, None


class _Temporal:
    """A mixin for losses of spike times: replaces snnTorch's ``SpikeTime`` with ours."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        stock = self.spk_time_fn
        targets = {} if stock.target_is_time else {"on_target": stock.on_target, "off_target": stock.off_target}
        self.spk_time_fn: Any = SpikeTime(
            stock.target_is_time, tolerance=stock.tolerance, multi_spike=stock.multi_spike, **targets
        )


class mse_temporal_loss(_Temporal, _stock.mse_temporal_loss):  # type: ignore[misc]
    r"""Mean squared error between spike times and target times: snnTorch's loss, vectorised.

    .. math:: L = \text{mean} \left( \frac{t_{bn} - \hat t_{bn}}{T} \right)^2

    :math:`t_{bn}` is the step of the neuron's first spike, the last step without a spike. Its derivative by the spike
    is -1.

    .. code-block:: python

        loss = snn.functional.mse_temporal_loss(on_target=5, off_target=100)(spk_out, labels)

    A call takes spikes ``[T, B, N]`` of 0 and 1, and targets: labels ``[B]``, or times ``[B, N]`` (``[F, B, N]`` with
    ``multi_spike``). It returns one number, or the shape of the times with ``reduction="none"``.

    Args:
        target_is_time: if True, targets are times in steps; if False, labels.
        on_target: target time of the label's neuron, in steps; negative values count from the last step. With
            ``multi_spike``, a tensor ``[F]``.
        off_target: target time of the other neurons, as ``on_target``.
        tolerance: distance in steps within which a spike contributes no loss.
        multi_spike: if True, the first F spikes of a neuron have targets; if False, the first spike.
        reduction: ``"mean"`` or ``"none"``.
        weight: factors ``[N]`` of the classes, applied as ``loss * weight[labels]``. As in snnTorch, this needs
            ``B`` = ``N``. None: no factors.

    Raises:
        IndexError: spikes other than 0 and 1 give a time outside the steps.

    Source: ``snntorch.functional.mse_temporal_loss`` 1.0.
    """

    __signature__ = inspect.signature(_stock.mse_temporal_loss)


class ce_temporal_loss(_Temporal, _stock.ce_temporal_loss):  # type: ignore[misc]
    r"""Cross entropy of inverted spike times: snnTorch's loss, vectorised.

    .. math:: L = -\log \frac{e^{v_y}}{\sum_n e^{v_n}}, \quad v_n = -t_n \text{ or } v_n = 1 / (t_n + 1)

    :math:`t_n` is the step of the neuron's first spike, the last step without a spike, and :math:`y` the label: an
    earlier spike of the label's neuron lowers the loss. The derivative of :math:`t_n` by the spike is -1.

    .. code-block:: python

        loss = snn.functional.ce_temporal_loss()(spk_out, labels)

    A call takes spikes ``[T, B, N]`` of 0 and 1, and labels ``[B]``. It returns one number, or ``[B]`` with
    ``reduction="none"``.

    Args:
        inverse: ``"negate"``, :math:`v = -t`, or ``"reciprocal"``, :math:`v = 1 / (t + 1)`.
        reduction: ``"mean"`` or ``"none"``.
        weight: one factor for each class, ``[N]``; None: 1.

    Raises:
        ValueError: unknown ``inverse``.
        IndexError: spikes other than 0 and 1 give a time outside the steps.

    Source: ``snntorch.functional.ce_temporal_loss`` 1.0.
    """

    __signature__ = inspect.signature(_stock.ce_temporal_loss)


class ce_rate_loss(_stock.ce_rate_loss):  # type: ignore[misc]
    r"""Cross entropy of the spikes at each step, averaged over the steps: snnTorch's loss.

    .. math:: L = -\frac{1}{T} \sum_t \log \frac{e^{s_{ty}}}{\sum_n e^{s_{tn}}}

    :math:`s` are the spikes and :math:`y` is the label. The backward pass takes time linear in the steps; snnTorch's
    creates a tensor of all steps for each step.

    .. code-block:: python

        loss = snn.functional.ce_rate_loss()(spk_out, labels)

    A call takes spikes ``[T, B, N]`` and labels ``[B]``. It returns one number, of shape ``[1]``, or ``[B]`` with
    ``reduction="none"``.

    Args:
        population_code: if True, several neurons encode a class, and snnTorch's code runs.
        num_classes: number of classes for ``population_code``; False: none.
        reduction: ``"mean"`` or ``"none"``.
        weight: one factor for each class, ``[N]``; None: 1.

    Source: ``snntorch.functional.ce_rate_loss`` 1.0.
    """

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
    r"""Mean squared error of the membranes at each step, averaged over the steps: snnTorch's loss.

    .. math:: L = \frac{1}{T} \sum_t \text{mean} (u_{tbn} - \hat u_{bn})^2

    :math:`u` are the membranes. The target :math:`\hat u` is ``on_target`` for the label's neuron, ``off_target`` for
    the others. The backward pass takes time linear in the steps; snnTorch's creates a tensor of all steps for each
    step.

    .. code-block:: python

        loss = snn.functional.mse_membrane_loss(on_target=2.0)(mem_out, labels)

    A call takes membranes ``[T, B, N]`` and labels ``[B]``; with ``time_var_targets`` one label for each step, ``[T]``,
    for all samples. It returns one number, of shape ``[1]``, or ``[B, N]`` with ``reduction="none"``.

    Args:
        time_var_targets: if True, each step has a label; if False, each sample.
        on_target: target membrane of the label's neuron.
        off_target: target membrane of the other neurons.
        reduction: ``"mean"`` or ``"none"``.
        weight: factors ``[N]`` of the classes, applied as ``loss * weight[labels]``. As in snnTorch, this needs
            ``B`` = ``N``. None: no factors.

    Source: ``snntorch.functional.mse_membrane_loss`` 1.0.
    """

    def _compute_loss(self, mem_out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        target_mem = spikegen.targets_convert(
            targets, num_classes=mem_out.size(-1), on_target=self.on_target, off_target=self.off_target
        )
        reduction = self._intermediate_reduction()
        loss_of_step = nn.MSELoss(reduction=reduction)
        loss = torch.zeros(mem_out[0].shape if reduction == "none" else 1, device=mem_out.device, dtype=torch.float32)
        for step, mem in enumerate(mem_out.unbind()):
            loss += loss_of_step(mem, target_mem[step] if self.time_var_targets else target_mem)
        if self.weight is not None:
            loss = loss * self.weight[targets]
        return loss / mem_out.size(0)


def padded_loss(loss_function: Any, out: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""Compute the mean of a loss over samples of different lengths, without the steps of their padding.

    .. math:: L = \frac{1}{B} \sum_b \ell(s_{1 \dots T_b, b},\ y_b)

    :math:`T_b` is the length of sample :math:`b`. Samples of one length are one call of :math:`\ell`. So losses divide
    by each sample's own number of steps, and neither a padded step nor its time counts.

    .. code-block:: python

        spk, mem = net(x, lengths=lengths)
        loss = snn.functional.padded_loss(snn.functional.ce_rate_loss(), spk, labels, lengths)

    Args:
        loss_function: a loss with ``reduction="mean"`` and without ``weight``, of this module or your own. It takes
            ``[T, b, ...]`` and targets ``[b, ...]``, and returns the mean over samples.
        out: spikes or membranes, ``[T, B, ...]``.
        targets: ``[B, ...]``; no target is ignored, as by ``ignore_index``.
        lengths: the number of steps of each sample, an int32 or int64 tensor ``[B]`` of 1 to ``T``; B is at least 1.

    Returns:
        The mean, in the shape of the loss: one number.

    Raises:
        TypeError: wrong dtype of ``lengths``.
        ValueError: shape, values or device of ``lengths`` are wrong; ``loss_function`` has a ``weight`` or another
            ``reduction``, or returns several numbers.
    """
    check_lengths(lengths, out.shape, out.device)
    if not len(lengths):
        raise ValueError("lengths must have at least one sample, got an empty tensor")
    losses = []
    for steps in lengths.unique().tolist():
        same = lengths == steps
        losses.append(loss_function(out[:steps, same], targets[same]) * same.sum() / len(lengths))
    # Class weights would weigh each group of samples by its own labels.
    options = getattr(loss_function, "weight", None), getattr(loss_function, "reduction", "mean")
    if options != (None, "mean") or any(loss.numel() != 1 for loss in losses):
        raise ValueError("loss_function must return one number, the mean over samples, and have weight=None")
    return torch.stack(losses).sum(0)


def __getattr__(name: str) -> Any:
    return getattr(_stock, name)


def __dir__() -> List[str]:
    return sorted({*globals(), *dir(_stock)})
