"""Correctness checks: the results of a contender compared with their reference."""

import contextlib
import warnings
from typing import NamedTuple

import torch

from benchmarks.case import Check
from snnipu import dense_only


class Tolerance(NamedTuple):
    """The largest difference between a result and its reference.

    Attributes:
        flips: largest fraction of spikes that may differ.
        gradient: largest gradient error relative to the largest gradient, over the neurons whose spikes all agree. A
            differing spike changes all gradients of its neuron.
    """

    flips: float
    gradient: float


# Half precision and the fused multiply-adds of a GPU round the membrane differently from the reference. Values near
# the threshold may then be on its other side. On a CPU float32 and float64 must be equal.
_HALF = {torch.float16: Tolerance(1e-2, 2e-2), torch.bfloat16: Tolerance(5e-2, 1e-1)}
_EXACT = Tolerance(0.0, 1e-5)
_FUSED_MULTIPLY_ADD = Tolerance(1e-4, 1e-5)


def tolerance_for(dtype, device, same_operations=True):
    """Return the tolerance of a LIF layer; with ``same_operations`` both sides round in the same order."""
    exact = device.type == "cpu" and same_operations
    return _HALF.get(dtype, _EXACT if exact else _FUSED_MULTIPLY_ADD)


def relative_error(value, reference):
    """Return the largest absolute difference over the largest absolute reference; infinity for non-finite numbers."""
    if value.shape != reference.shape:
        raise ValueError(f"value: shape {tuple(value.shape)}, but the reference has {tuple(reference.shape)}")
    if reference.numel() == 0:
        return 0.0
    value, reference = value.detach().double(), reference.detach().double()
    error = float((value - reference).abs().max())
    scale = float(reference.abs().max())
    if not torch.isfinite(torch.tensor([error, scale])).all():
        return float("inf")
    return error / scale if scale > 0 else error


def check_close(values, expected, tolerance, against):
    """Compare tensors, with errors relative to the largest value of each."""
    error = max(relative_error(value, reference) for value, reference in zip(values, expected))
    passed = error <= tolerance and len(values) == len(expected)
    return Check(passed, against, f"relative error {error:.1e} (allowed: {tolerance:.0e})")


def check_layer(parts, tolerance, against):
    """Compare spikes and gradient of a layer over a sequence, ``[T, ...]``, with their references.

    The parts are those of groups of neurons. A part's gradient error is relative to the part's largest gradient, and so
    is at least the error relative to the largest gradient of all.
    """
    flips = total = 0
    error = 0.0
    for spikes, gradient, reference_spikes, reference_gradient in parts:
        differs = spikes.detach().double() != reference_spikes.detach().double()
        flips += int(differs.sum())
        total += differs.numel()
        agrees = ~differs.any(dim=0)
        agreeing = (gradient[:, agrees], reference_gradient[:, agrees])
        error = max(error, relative_error(*agreeing) if agrees.any() else float("inf"))
    return Check(
        flips <= tolerance.flips * total and error <= tolerance.gradient,
        against,
        f"{flips:,} of {total:,} spikes differ (allowed: {tolerance.flips:.2%}); gradient error {error:.1e} (allowed: "
        f"{tolerance.gradient:.0e})",
    )


def check_network(
    spikes,
    gradients,
    reference_spikes,
    reference_gradients,
    tolerance,
    against,
):
    """Compare the spikes of every layer, which must be equal, and the weight gradients; inference has none."""
    differing = sum(int((s.detach().double() != r.detach().double()).sum()) for s, r in zip(spikes, reference_spikes))
    total = sum(reference.numel() for reference in reference_spikes)
    error = max(map(relative_error, gradients, reference_gradients), default=0.0)
    return Check(
        differing == 0
        and error <= tolerance
        and len(spikes) == len(reference_spikes)
        and len(gradients) == len(reference_gradients),
        against,
        f"{differing:,} of {total:,} spikes differ (allowed: 0); gradient error {error:.1e} (allowed: {tolerance:.0e})",
    )


def check_training(
    loss,
    gradients,
    reference_loss,
    reference_gradients,
    tolerance,
    against,
    of_network=False,
):
    """Compare the loss and the gradient of every parameter, in the same order on both sides.

    The gradient of a parameter may be None on both sides. Errors are relative to the largest gradient of the parameter
    or, with ``of_network``, of all parameters: a bias before a batch norm has a gradient of rounding errors alone.
    """
    loss_error = relative_error(loss.reshape(()), reference_loss.reshape(()))
    pairs = [(g, r) for g, r in zip(gradients, reference_gradients) if g is not None and r is not None]
    if of_network and pairs:
        pairs = [tuple(torch.cat([tensor.flatten() for tensor in side]) for side in zip(*pairs))]
    gradient_error = max((relative_error(g, r) for g, r in pairs), default=0.0)
    one_sided = sum((g is None) != (r is None) for g, r in zip(gradients, reference_gradients))
    return Check(
        loss_error <= tolerance and gradient_error <= tolerance and not one_sided,
        against,
        f"loss error {loss_error:.1e}, gradient error {gradient_error:.1e} (allowed: {tolerance:.0e}); {one_sided} "
        "parameters have a gradient on one side alone",
    )


def summation_rounding(terms):
    """Return the relative error of a float32 sum of ``terms`` numbers in one accumulator.

    It is about 2**-24 times the square root of their number (Higham and Mary, A new approach to probabilistic rounding
    error analysis, 2019).
    """
    return float(2.0**-24 * terms**0.5)


def both(first, second, how):
    """Combine two checks of the same results; ``how`` describes the second one."""
    return Check(first.passed and second.passed, first.against, f"{first.detail}; {how}: {second.detail}")


@contextlib.contextmanager
def without_onednn():
    """Use PyTorch's convolutions on a CPU, which sum gradients in blocks of bounded size; never skip zeros."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about TF32 on Intel GPUs
        with torch.backends.mkldnn.flags(enabled=False), dense_only():
            yield
